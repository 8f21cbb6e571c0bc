//! Running a program that was built here, with a limit on its time.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use wait_timeout::ChildExt;

/// What a program did.
pub(crate) struct Outcome {
    /// How it ended; none if it ran for too long and was killed.
    pub(crate) status: Option<ExitStatus>,
    /// What it printed.
    pub(crate) stdout: String,
    /// What it complained about.
    pub(crate) stderr: String,
}

impl Outcome {
    /// Why this is a failure, or nothing if it ended well.
    pub(crate) fn failure(&self) -> Option<String> {
        match self.status {
            None => Some("killed, it ran for too long".to_owned()),
            Some(status) if !status.success() => Some(status.to_string()),
            Some(_) => None,
        }
    }
}

/// Runs a program with nothing on its standard input, kills it after `limit`, and keeps
/// what it printed in the files `stdout.txt` and `stderr.txt` of the folder `logs`.
///
/// Files rather than pipes: nobody has to read while it runs, and a child that a
/// killed program leaves behind cannot keep us waiting for the end of a pipe.
pub(crate) fn run(command: &mut Command, logs: &Path, limit: Duration) -> Result<Outcome> {
    fs::create_dir_all(logs)?;
    let (stdout, stderr) = (logs.join("stdout.txt"), logs.join("stderr.txt"));
    let mut child = command
        // Old MuJoCo releases wait for a key after an error.
        .stdin(Stdio::null())
        .stdout(File::create(&stdout)?)
        .stderr(File::create(&stderr)?)
        .spawn()
        .with_context(|| format!("cannot start {command:?}"))?;
    let status = child.wait_timeout(limit)?;
    if status.is_none() {
        child.kill()?;
        child.wait()?;
    }
    let read = |path| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok(Outcome {
        status,
        stdout: read(&stdout)?,
        stderr: read(&stderr)?,
    })
}

/// The last lines of a program's output, for a report.
pub(crate) fn tail(text: &str) -> impl Iterator<Item = &str> {
    let lines: Vec<&str> = text.lines().collect();
    let skipped = lines.len().saturating_sub(20);
    lines.into_iter().skip(skipped)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::run;

    #[test]
    fn a_program_that_hangs_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let start = Instant::now();
        let limit = Duration::from_millis(100);
        let outcome = run(Command::new("sleep").arg("60"), folder.path(), limit).unwrap();
        assert!(outcome.failure().unwrap().starts_with("killed"));
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
