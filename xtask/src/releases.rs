//! The list of MuJoCo releases, `tests/mujoco-releases.txt`.

use std::fmt;
use std::fs;

use anyhow::{Context, Result, bail};

use crate::UsageError;
use crate::workspace::Workspace;

/// What is done with a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Plan {
    /// The headers are compiled against it.
    Compile,
    /// The test programs are run against it, too.
    Run,
}

/// Tests that are run with the Python package of a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Suite {
    /// Our own, `tests/python`.
    Ours,
    /// A module or package of MuJoCo's tests, which gets ours for `mujoco.rollout`.
    Theirs(&'static str),
}

impl Suite {
    /// The words of the list.
    const NAMES: [(&str, Self); 4] = [
        ("ours", Self::Ours),
        ("rollout", Self::Theirs("mujoco.rollout_test")),
        ("batch", Self::Theirs("mujoco.batch_test")),
        ("sysid", Self::Theirs("mujoco.sysid")),
    ];

    /// The suite that a word means.
    fn named(word: &str) -> Option<Self> {
        let (_, suite) = Self::NAMES.into_iter().find(|(name, _)| *name == word)?;
        Some(suite)
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ours => "tests/python",
            Self::Theirs(module) => module,
        })
    }
}

/// One line of the list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Release {
    /// As PyPI writes it: `3.0.0`.
    pub(crate) version: String,
    /// What is done with it in C and C++.
    pub(crate) plan: Plan,
    /// What is run with its Python package.
    pub(crate) suites: Vec<Suite>,
}

/// Reads the list.
pub(crate) fn read(workspace: &Workspace) -> Result<Vec<Release>> {
    let path = workspace.path("tests/mujoco-releases.txt");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    parse(&text).with_context(|| path.display().to_string())
}

/// The releases that are named, or all if none is.
pub(crate) fn choose<'a>(
    releases: impl Iterator<Item = &'a Release>,
    named: &[String],
) -> Result<Vec<Release>> {
    let mut releases: Vec<Release> = releases.cloned().collect();
    let listed = |name: &String| releases.iter().any(|release| release.version == *name);
    if let Some(unknown) = named.iter().find(|name| !listed(name)) {
        let message = format!("release {unknown} is not in tests/mujoco-releases.txt");
        return Err(UsageError::new(message).into());
    }
    releases.retain(|release| named.is_empty() || named.contains(&release.version));
    Ok(releases)
}

fn parse(text: &str) -> Result<Vec<Release>> {
    let lines = text.lines().enumerate().filter_map(|(i, line)| {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        (!words.is_empty())
            .then(|| parse_line(&words).with_context(|| format!("line {}: {line}", i + 1)))
    });
    lines.collect()
}

fn parse_line(words: &[&str]) -> Result<Release> {
    let (version, plan, suites) = match words {
        [version, "compile", suites @ ..] => (version, Plan::Compile, suites),
        [version, "run", suites @ ..] => (version, Plan::Run, suites),
        _ => bail!("not a release and `compile` or `run`"),
    };
    let suites = suites
        .iter()
        .map(|word| Suite::named(word).with_context(|| format!("not a suite: {word}")));
    Ok(Release {
        version: version.to_string(),
        plan,
        suites: suites.collect::<Result<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::{Plan, Suite, parse};

    #[test]
    fn comments_and_empty_lines_are_skipped() {
        let releases = parse("# head\n\n3.0.0 run # why\n 3.0.1\tcompile\n").unwrap();
        let read: Vec<_> = releases
            .iter()
            .map(|release| (release.version.as_str(), release.plan))
            .collect();
        assert_eq!(read, [("3.0.0", Plan::Run), ("3.0.1", Plan::Compile)]);
    }

    #[test]
    fn suites_follow_the_plan() {
        let releases = parse("3.0.0 run\n4.0.0 run ours sysid\n").unwrap();
        assert_eq!(releases[0].suites, []);
        let wanted = [Suite::Ours, Suite::Theirs("mujoco.sysid")];
        assert_eq!(releases[1].suites, wanted);
    }

    #[test]
    fn words_that_mean_nothing_are_refused() {
        assert!(parse("3.0.0\n").is_err());
        assert!(parse("3.0.0 skip\n").is_err());
        assert!(parse("3.0.0 run everything\n").is_err());
    }
}
