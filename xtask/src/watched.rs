//! C programs that are run while a tool looks for faults of memory and for undefined
//! behaviour: what the verbs `sanitize` and `memcheck` share.
//!
//! Each first proves that its tool is at work: `tests/c/wrong/wrong.c` has a fault for
//! each of its arguments, and must be stopped.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::cc::{Compiler, Language, Unit};
use crate::ctest;
use crate::deps::Deps;
use crate::program;
use crate::workspace::Workspace;

/// After this long a program is taken to hang: everything is slow here.
const LIMIT: Duration = Duration::from_secs(900);

/// A tool that watches.
pub(crate) struct Watch<'a> {
    /// Where librollout is.
    pub(crate) library: &'a Path,
    /// Flags of the C compiler.
    pub(crate) flags: &'a [&'a str],
    /// What the program is an argument of; nothing if it is run by itself.
    pub(crate) tool: &'a [&'a str],
    /// A part of each report of a fault.
    pub(crate) mark: &'a str,
    /// Repetitions are cut to one in so many.
    pub(crate) parts: u32,
    /// Where the programs and what they print go.
    pub(crate) folder: PathBuf,
}

impl Watch<'_> {
    /// Fails unless the tool stops a program with each of these faults.
    pub(crate) fn prove(&self, workspace: &Workspace, faults: &[(&str, &str)]) -> Result<()> {
        let source = workspace.path("tests/c/wrong/wrong.c");
        let folder = self.folder.join("wrong");
        let binary = self.build(workspace, &source, None, &folder)?;
        for &(fault, said) in faults {
            let mut command = self.command(&binary);
            let outcome = program::run(command.arg(fault), &folder.join(fault), LIMIT)?;
            if outcome.failure().is_none() || !outcome.stderr.contains(said) {
                bail!(
                    "the tool is not at work: it said nothing of a fault that is there, {fault}\n\
                     {}{}",
                    outcome.stdout,
                    outcome.stderr
                );
            }
            println!("ok {fault} is found");
        }
        Ok(())
    }

    /// Runs programs of `tests/c` against one release.
    pub(crate) fn run(
        &self,
        workspace: &Workspace,
        deps: &Deps<'_>,
        version: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<()> {
        let mut failures = 0;
        for source in ctest::program_sources(&workspace.path("tests/c"))? {
            let name = source.file_stem().unwrap_or_default().to_string_lossy();
            if !wanted(&name) {
                continue;
            }
            let release = match ctest::needs_mujoco(&source)? {
                true => Some(version),
                false => None,
            };
            let folder = self.folder.join(release.unwrap_or("none")).join(&*name);
            let binary = self.build(workspace, &source, release.map(|v| (deps, v)), &folder)?;
            let mut command = self.command(&binary);
            command
                .arg(workspace.path("examples/models"))
                .arg(deps.suite()?)
                .current_dir(&folder);
            let outcome = program::run(&mut command, &folder, LIMIT)?;
            let title = format!("{name}, MuJoCo {}", release.unwrap_or("not needed"));
            let said = outcome.stderr.contains(self.mark);
            match outcome.failure() {
                None if !said => println!("ok {title}"),
                why => {
                    failures += 1;
                    let why = why.unwrap_or_else(|| "the tool has something to say".to_owned());
                    println!(
                        "FAILED {title}: {why}\n{}{}",
                        outcome.stdout, outcome.stderr
                    );
                }
            }
        }
        match failures {
            0 => Ok(()),
            _ => bail!("{failures} programs failed"),
        }
    }

    fn build(
        &self,
        workspace: &Workspace,
        source: &Path,
        mujoco: Option<(&Deps<'_>, &str)>,
        folder: &Path,
    ) -> Result<PathBuf> {
        let unit = Unit {
            compiler: &Compiler::of_host(workspace)?,
            language: match source
                .extension()
                .is_some_and(|extension| extension == "cpp")
            {
                true => Language::Cxx11,
                false => Language::C99,
            },
            source: source.to_owned(),
            mujoco: mujoco
                .map(|(deps, version)| deps.mujoco(version))
                .transpose()?,
        };
        let binary = folder.join("program");
        unit.link_to(workspace, self.library, self.flags, &binary)?;
        Ok(binary)
    }

    fn command(&self, binary: &Path) -> Command {
        let mut command = match self.tool {
            [] => Command::new(binary),
            [tool, arguments @ ..] => {
                let mut command = Command::new(tool);
                command.args(arguments).arg(binary);
                command
            }
        };
        command.env("ROLLOUT_TESTS_PARTS", self.parts.to_string());
        command
    }
}
