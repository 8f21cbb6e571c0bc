//! The verb `ctest`: the headers and the library as C and C++ hosts see them,
//! across MuJoCo's releases.
//!
//! - `tests/c/headers.c`, which includes both headers, is compiled as C99 and as
//!   C++ against every release of `tests/mujoco-releases.txt`.
//! - Each header is compiled alone, and twice in one file, by clang too where it
//!   is installed.
//! - Against every release marked `run`, each other `tests/c/*.c` is built both as
//!   C99 and as C++, each `tests/c/*.cpp` as C++, and run. A program that includes
//!   nothing of MuJoCo runs once.
//!
//! C++ is C++11 (with a stand-in for `std::byte` where the headers of a MuJoCo
//! release need C++17: ours keep to C++11).
//!
//! A test program gets two arguments, the folder of our own models and that of the
//! dm_control suite. For each of its cases it prints one line, `ok NAME` or
//! `FAILED NAME: why`, and its exit status says whether all were ok. Its working
//! directory is an empty folder, and its standard input is empty.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pico_args::Arguments;

use crate::cc::{Compiler, Language, Unit};
use crate::deps::{Deps, Mujoco};
use crate::in_order::in_order;
use crate::program;
use crate::releases::{self, Plan, Release};
use crate::workspace::Workspace;

/// Jobs at a time. Programs under test have threads of their own.
const JOBS: usize = 2;

/// After this long a program is taken to hang.
const LIMIT: Duration = Duration::from_secs(300);

/// The headers that must compile alone, and whether they include MuJoCo's.
const HEADERS: [(&str, bool); 2] = [("rollout.h", false), ("rollout_mujoco.h", true)];

/// The verb. A release that the command line names is run, whatever its plan is.
pub(crate) fn main(workspace: &Workspace, mut arguments: Arguments) -> Result<()> {
    let named: Vec<String> = arguments.values_from_str("--release")?;
    crate::no_more(arguments)?;
    let deps = Deps::new(workspace)?;
    let releases = choose(&deps, &named)?;
    run(workspace, &deps, &releases)
}

/// Runs all of it for every release of the list.
pub(crate) fn all(workspace: &Workspace, deps: &Deps<'_>) -> Result<()> {
    run(workspace, deps, &choose(deps, &[])?)
}

/// The releases that are named, to be run, or else all as they are on the list.
fn choose(deps: &Deps<'_>, named: &[String]) -> Result<Vec<Release>> {
    let mut releases = releases::choose(deps.releases(), named)?;
    if !named.is_empty() {
        for release in &mut releases {
            release.plan = Plan::Run;
        }
    }
    Ok(releases)
}

fn run(workspace: &Workspace, deps: &Deps<'_>, releases: &[Release]) -> Result<()> {
    let compiler = Compiler::of_host(workspace)?;
    let clang = Compiler::clang(workspace)?;
    deps.get_mujoco(releases)?;
    let folders = Folders {
        models: workspace.path("examples/models"),
        suite: deps.suite()?.to_owned(),
    };
    workspace.library()?;

    let mut jobs = header_jobs(workspace, deps, releases, &compiler)?;
    let newest = releases.last().context("no release to test against")?;
    let newest = deps.mujoco(&newest.version)?;
    jobs.extend(alone_jobs(workspace, newest, &compiler)?);
    match &clang {
        Some(clang) => jobs.extend(alone_jobs(workspace, newest, clang)?),
        None => println!("skipped: the headers alone by clang: clang not installed"),
    }
    jobs.extend(program_jobs(workspace, deps, releases, &compiler)?);

    let mut total = Report::default();
    in_order(
        &jobs,
        JOBS,
        |job| job.run(workspace, &folders),
        |report| {
            print!("{}", report.text);
            total += report;
        },
    );

    if !total.failures.is_empty() {
        println!("\nFailures:");
        for failure in &total.failures {
            println!("  {failure}");
        }
    }
    println!("\n{} passed, {} failed", total.passed, total.failures.len());
    if !total.failures.is_empty() {
        bail!("{} C and C++ tests failed", total.failures.len());
    }
    Ok(())
}

/// Where the programs find their models.
struct Folders {
    models: PathBuf,
    suite: PathBuf,
}

/// What is done with a compiled unit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Compile,
    Program,
}

/// One unit to compile, and to run if it is a program.
struct Job<'a> {
    unit: Unit<'a>,
    kind: Kind,
    /// The folder that belongs to this job.
    folder: PathBuf,
}

impl<'a> Job<'a> {
    fn new(
        workspace: &Workspace,
        compiler: &'a Compiler,
        language: Language,
        source: &Path,
        mujoco: Option<&'a Mujoco>,
        kind: Kind,
    ) -> Self {
        let file = source.file_name().unwrap_or_default().to_string_lossy();
        let folder = workspace
            .target("ctest")
            .join(mujoco.map_or("none", Mujoco::version))
            .join(format!(
                "{}-{}-{}",
                file.replace('.', "_"),
                language.suffix(),
                compiler.command(language).replace([' ', '/'], "_")
            ));
        let unit = Unit {
            compiler,
            language,
            source: source.to_owned(),
            mujoco,
        };
        Self { unit, kind, folder }
    }

    fn run(&self, workspace: &Workspace, folders: &Folders) -> Report {
        let mut report = Report::default();
        if let Err(error) = self.try_run(workspace, folders, &mut report) {
            // What went wrong here must not keep the other jobs from running.
            report.failed(&format!("{self}: {error:#}"), []);
        }
        report
    }

    fn try_run(&self, workspace: &Workspace, folders: &Folders, report: &mut Report) -> Result<()> {
        remove(&self.folder)?;
        let output = self.folder.join("output");
        let compiled = match self.kind {
            Kind::Compile => self.unit.compile(workspace, &output),
            Kind::Program => self.unit.link(workspace, &output),
        };
        if let Err(error) = compiled {
            let words = error.to_string();
            report.failed(&format!("{self}: does not compile"), words.lines());
            return Ok(());
        }
        report.passed += 1;
        match self.kind {
            Kind::Compile => report.say(format_args!("ok {self}")),
            Kind::Program => {
                let empty = self.folder.join("empty");
                fs::create_dir_all(&empty)?;
                let mut command = Command::new(&output);
                command
                    .args([&folders.models, &folders.suite])
                    .current_dir(&empty);
                let outcome = program::run(&mut command, &self.folder, LIMIT)?;
                self.judge(&outcome, report);
            }
        }
        Ok(())
    }

    /// Counts the cases of a program that ended.
    fn judge(&self, outcome: &program::Outcome, report: &mut Report) {
        let cases = Cases::read(&outcome.stdout);
        report.passed += cases.ok;
        for case in &cases.failed {
            report.failed(&format!("{self}: {case}"), []);
        }
        // A program that says itself what failed has nothing to add by its status,
        // unless that is a signal.
        let expected = !cases.failed.is_empty()
            && outcome.status.is_some_and(|status| status.code().is_some());
        match outcome.failure() {
            Some(why) if !expected => {
                let words = program::tail(&outcome.stdout).chain(program::tail(&outcome.stderr));
                report.failed(&format!("{self}: {why}"), words);
            }
            None if cases.ok == 0 => report.failed(&format!("{self}: ran no case"), []),
            None if cases.failed.is_empty() => {
                report.say(format_args!("ok {self}, cases: {}", cases.ok));
            }
            _ => {}
        }
    }
}

impl fmt::Display for Job<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = self.unit.source.file_name().unwrap_or_default();
        write!(f, "{} as {}", source.to_string_lossy(), self.unit.language)?;
        if let Some(mujoco) = self.unit.mujoco {
            write!(f, ", MuJoCo {}", mujoco.version())?;
        }
        write!(f, " ({})", self.unit.compiler.command(self.unit.language))
    }
}

/// `headers.c` against every release.
fn header_jobs<'a>(
    workspace: &Workspace,
    deps: &'a Deps<'_>,
    releases: &[Release],
    compiler: &'a Compiler,
) -> Result<Vec<Job<'a>>> {
    let source = workspace.path("tests/c/headers.c");
    let mut jobs = Vec::new();
    for release in releases {
        let mujoco = Some(deps.mujoco(&release.version)?);
        for language in [Language::C99, Language::Cxx11] {
            let job = Job::new(
                workspace,
                compiler,
                language,
                &source,
                mujoco,
                Kind::Compile,
            );
            jobs.push(job);
        }
    }
    Ok(jobs)
}

/// Each header alone and twice, in files that are made here.
fn alone_jobs<'a>(
    workspace: &Workspace,
    mujoco: &'a Mujoco,
    compiler: &'a Compiler,
) -> Result<Vec<Job<'a>>> {
    let folder = workspace.target("ctest/alone");
    fs::create_dir_all(&folder)?;
    let mut jobs = Vec::new();
    for (header, needs_mujoco) in HEADERS {
        for (times, word) in [(1, "alone"), (2, "twice")] {
            let source = folder.join(format!("{}-{word}.c", header.replace('.', "_")));
            fs::write(&source, format!("#include \"{header}\"\n").repeat(times))?;
            let mujoco = needs_mujoco.then_some(mujoco);
            for language in [Language::C99, Language::Cxx11] {
                let job = Job::new(
                    workspace,
                    compiler,
                    language,
                    &source,
                    mujoco,
                    Kind::Compile,
                );
                jobs.push(job);
            }
        }
    }
    Ok(jobs)
}

/// The programs against every release that is marked `run`.
fn program_jobs<'a>(
    workspace: &Workspace,
    deps: &'a Deps<'_>,
    releases: &[Release],
    compiler: &'a Compiler,
) -> Result<Vec<Job<'a>>> {
    let sources = program_sources(&workspace.path("tests/c"))?;
    if sources.is_empty() {
        bail!("tests/c has no program to run");
    }
    let mut jobs = Vec::new();
    let to_run = releases.iter().filter(|release| release.plan == Plan::Run);
    for (i, release) in to_run.enumerate() {
        let release = Some(deps.mujoco(&release.version)?);
        for source in &sources {
            let mujoco = if needs_mujoco(source)? { release } else { None };
            if mujoco.is_none() && i > 0 {
                continue;
            }
            let c = source.extension().is_some_and(|extension| extension == "c");
            let languages = c.then_some(Language::C99).into_iter();
            for language in languages.chain([Language::Cxx11]) {
                let job = Job::new(workspace, compiler, language, source, mujoco, Kind::Program);
                jobs.push(job);
            }
        }
    }
    Ok(jobs)
}

/// Whether a program has anything to do with MuJoCo.
pub(crate) fn needs_mujoco(source: &Path) -> Result<bool> {
    let text = fs::read_to_string(source).with_context(|| source.display().to_string())?;
    Ok(text.contains("rollout_mujoco.h"))
}

/// The programs' files, by name.
pub(crate) fn program_sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut sources = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if matches!(extension, Some("c" | "cpp")) && !path.ends_with("headers.c") {
            sources.push(path);
        }
    }
    sources.sort();
    Ok(sources)
}

/// The cases that a program reported.
#[derive(Default, PartialEq, Eq, Debug)]
struct Cases<'a> {
    ok: usize,
    /// Name and reason of those that failed.
    failed: Vec<&'a str>,
}

impl<'a> Cases<'a> {
    fn read(stdout: &'a str) -> Self {
        let mut cases = Self::default();
        for line in stdout.lines() {
            if line.starts_with("ok ") {
                cases.ok += 1;
            } else if let Some(case) = line.strip_prefix("FAILED ") {
                cases.failed.push(case);
            }
        }
        cases
    }
}

/// What became of one job, or of all so far.
#[derive(Default)]
struct Report {
    passed: usize,
    /// One line each.
    failures: Vec<String>,
    /// What to print, failures included.
    text: String,
}

impl Report {
    fn say(&mut self, line: fmt::Arguments<'_>) {
        self.text += &format!("{line}\n");
    }

    fn failed<'a>(&mut self, what: &str, details: impl IntoIterator<Item = &'a str>) {
        self.say(format_args!("FAILED {what}"));
        for line in details {
            self.say(format_args!("    {line}"));
        }
        self.failures.push(what.to_owned());
    }
}

impl std::ops::AddAssign for Report {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failures.extend(other.failures);
    }
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::Cases;

    #[test]
    fn cases_are_lines_of_two_kinds() {
        let cases = Cases::read("loading\nok bits\nFAILED stop: 3 is not 4\nok hold\nokay\n");
        let expected = Cases {
            ok: 2,
            failed: vec!["stop: 3 is not 4"],
        };
        assert_eq!(cases, expected);
    }
}
