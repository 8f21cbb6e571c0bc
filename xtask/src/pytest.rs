//! The verb `pytest`: the Python package, on the MuJoCo releases that the list names it
//! for, each in an environment of its own.
//!
//! Our own tests are `tests/python`. MuJoCo's are run as they come with the release; the
//! plugin `tests/python/mujoco_tests.py` has them test our module. The package is taken
//! from the checkout, with the library of the release profile beside its files.
//!
//! What comes after `--` goes to pytest, whose output then is shown as it comes. The
//! working directory is a folder in the target folder: MuJoCo writes its log to it.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pico_args::Arguments;

use crate::UsageError;
use crate::deps::{Deps, Python};
use crate::in_order::in_order;
use crate::program;
use crate::releases::{self, Suite};
use crate::workspace::Workspace;

/// Runs at a time. Most of what a test does takes one CPU.
const JOBS: usize = 2;

/// After this long a run is taken to hang.
const LIMIT: Duration = Duration::from_secs(900);

/// What pytest says by its status when no test is what it was told to run.
const NO_TESTS: i32 = 5;

/// The verb.
pub(crate) fn main(workspace: &Workspace, mut arguments: Arguments) -> Result<()> {
    let named: Vec<String> = arguments.values_from_str("--release")?;
    let mut rest = arguments.finish();
    if !rest.is_empty() {
        let first = rest.remove(0);
        if first != "--" {
            let message = format!("unknown argument: {}", first.to_string_lossy());
            return Err(UsageError::new(message).into());
        }
    }
    let deps = Deps::new(workspace)?;
    let jobs = jobs(workspace, &deps, &named)?;
    if rest.is_empty() {
        judge(&jobs)
    } else {
        show(&jobs, &rest)
    }
}

/// Runs all of the list.
pub(crate) fn all(workspace: &Workspace, deps: &Deps<'_>) -> Result<()> {
    judge(&jobs(workspace, deps, &[])?)
}

/// One suite on one release.
struct Job<'a> {
    workspace: &'a Workspace,
    version: String,
    python: &'a Python,
    /// The folders where Python finds our package and the tests' modules.
    path: OsString,
    suite: Suite,
}

impl Job<'_> {
    /// The folder that belongs to this job.
    fn folder(&self) -> PathBuf {
        let folder = self.workspace.target("pytest").join(&self.version);
        folder.join(self.suite.to_string().replace('/', "_"))
    }

    /// The call of pytest, and what it needs on the disk.
    fn command(&self) -> Result<Command> {
        let folder = self.folder();
        fs::create_dir_all(&folder)?;
        let mut command = Command::new(self.python.interpreter());
        command
            .args(["-m", "pytest", "-p", "no:cacheprovider", "--basetemp"])
            .arg(folder.join("tmp"))
            .env("PYTHONPATH", &self.path)
            // pip compiles nothing, and tests start many processes: what the first one
            // imports is kept compiled for the others.
            .env_remove("PYTHONDONTWRITEBYTECODE")
            .current_dir(folder);
        match self.suite {
            Suite::Ours => command.arg(self.workspace.path("tests/python")),
            Suite::Theirs(module) => command.args(["-p", "mujoco_tests", "--pyargs", module]),
        };
        Ok(command)
    }
}

impl fmt::Display for Job<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, MuJoCo {}", self.suite, self.version)
    }
}

/// The jobs of the list, after all that they need was put in place.
fn jobs<'a>(
    workspace: &'a Workspace,
    deps: &'a Deps<'_>,
    named: &[String],
) -> Result<Vec<Job<'a>>> {
    let mut releases = releases::choose(deps.releases(), named)?;
    releases.retain(|release| !release.suites.is_empty());
    if releases.is_empty() {
        let message = "tests/mujoco-releases.txt names no Python tests for this release";
        return Err(UsageError::new(message).into());
    }
    deps.get_python(&releases)?;
    let folders = [workspace.package()?, workspace.path("tests/python")];
    let path = env::join_paths(folders)?;

    let mut jobs = Vec::new();
    for release in releases {
        let python = deps.python(&release.version)?;
        if !python.has(&workspace.shell()?, "mujoco")? {
            let version = release.version;
            println!("skipped: MuJoCo {version} has no wheel for this Python");
            continue;
        }
        jobs.extend(release.suites.iter().map(|&suite| Job {
            workspace,
            version: release.version.clone(),
            python,
            path: path.clone(),
            suite,
        }));
    }
    Ok(jobs)
}

/// Runs the jobs and prints a line for each, and all that one that failed has to say.
fn judge(jobs: &[Job<'_>]) -> Result<()> {
    let run = |job: &Job<'_>| {
        // A name and a verdict for each test, so that one which ends the process is known.
        let outcome = program::run(job.command()?.arg("-v"), &job.folder(), LIMIT)?;
        Ok((job.to_string(), outcome))
    };
    let mut failed = Vec::new();
    in_order(jobs, JOBS, run, |result: Result<_>| match result {
        Err(error) => {
            println!("FAILED {error:#}");
            failed.push(format!("{error:#}"));
        }
        Ok((job, outcome)) => match outcome.failure() {
            None => println!("ok {job}: {}", summary(&outcome.stdout)),
            Some(why) => {
                println!("FAILED {job}: {why}");
                let lines = outcome.stdout.lines().chain(outcome.stderr.lines());
                for line in lines.filter(|line| !line.contains(" PASSED ")) {
                    println!("    {line}");
                }
                failed.push(job);
            }
        },
    });
    if !failed.is_empty() {
        bail!("the Python tests failed: {}", failed.join("; "));
    }
    Ok(())
}

/// What pytest says in its last line, and the plugin in its own. (MuJoCo's C has a buffer of
/// its own, which it prints behind that.)
fn summary(stdout: &str) -> String {
    let mut lines = stdout.lines();
    let last = lines.rfind(|line| line.starts_with('='));
    let last = last.unwrap_or_default();
    let last = last.trim_matches(['=', ' ']).to_owned();
    let calls = stdout
        .lines()
        .find_map(|line| line.strip_prefix("mujoco_tests: "));
    calls.map_or(last.clone(), |calls| format!("{last}; {calls}"))
}

/// Runs the jobs one after another, with more arguments, and lets pytest speak.
fn show(jobs: &[Job<'_>], arguments: &[OsString]) -> Result<()> {
    let mut failed = Vec::new();
    for job in jobs {
        eprintln!("==> {job}");
        let status = job
            .command()?
            .args(arguments)
            .status()
            .with_context(|| format!("{job}: pytest does not start"))?;
        if !status.success() && status.code() != Some(NO_TESTS) {
            failed.push(job.to_string());
        }
    }
    if !failed.is_empty() {
        bail!("the Python tests failed: {}", failed.join("; "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::summary;

    #[test]
    fn a_run_is_summed_up_by_pytest_and_the_plugin() {
        let ours = "x PASSED\n===== 1 passed in 0.1s =====\n";
        assert_eq!(summary(ours), "1 passed in 0.1s");
        let theirs = format!("mujoco_tests: 1 test made 2 calls\n{ours}");
        assert_eq!(summary(&theirs), "1 passed in 0.1s; 1 test made 2 calls");
        let with_warnings = format!("{ours}WARNING: Nan\n\n");
        assert_eq!(summary(&with_warnings), "1 passed in 0.1s");
    }
}
