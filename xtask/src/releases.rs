//! The list of MuJoCo releases, `tests/mujoco-releases.txt`.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;

/// What is done with a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Plan {
    /// The headers are compiled against it.
    Compile,
    /// The test programs are run against it, too.
    Run,
}

/// One line of the list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Release {
    /// As PyPI writes it: `3.0.0`.
    pub(crate) version: String,
    /// What is done with it.
    pub(crate) plan: Plan,
}

/// Reads the list.
pub(crate) fn read(workspace: &Workspace) -> Result<Vec<Release>> {
    let path = workspace.path("tests/mujoco-releases.txt");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    parse(&text).with_context(|| path.display().to_string())
}

fn parse(text: &str) -> Result<Vec<Release>> {
    let mut releases = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        let (version, plan) = match words[..] {
            [] => continue,
            [version, "compile"] => (version, Plan::Compile),
            [version, "run"] => (version, Plan::Run),
            _ => bail!("not a release and `compile` or `run`: {line}"),
        };
        releases.push(Release {
            version: version.to_owned(),
            plan,
        });
    }
    Ok(releases)
}

#[cfg(test)]
mod tests {
    use super::{Plan, parse};

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
    fn a_line_without_a_plan_is_refused() {
        assert!(parse("3.0.0\n").is_err());
        assert!(parse("3.0.0 skip\n").is_err());
    }
}
