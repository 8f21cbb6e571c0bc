//! The verb `memcheck`: the C tests under valgrind's memcheck, which sees what the
//! sanitizers do not: memory that nobody has set, and MuJoCo's own use of ours.

use anyhow::{Result, bail};
use pico_args::Arguments;
use xshell::{Shell, cmd};

use crate::deps::Deps;
use crate::watched::Watch;
use crate::workspace::Workspace;

const VALGRIND: [&str; 7] = [
    "valgrind",
    "--quiet",
    // One thread runs at a time: without this the same one for as long as it likes.
    "--fair-sched=yes",
    "--error-exitcode=99",
    "--leak-check=full",
    "--show-leak-kinds=definite",
    "--errors-for-leak-kinds=definite",
];

const FAULTS: [(&str, &str); 4] = [
    ("host-overflow", "Invalid read"),
    ("library-overflow", "Invalid write"),
    ("trap-overflow", "Invalid read"),
    ("host-leak", "definitely lost"),
];

/// The verb.
pub(crate) fn main(workspace: &Workspace, arguments: Arguments) -> Result<()> {
    crate::no_more(arguments)?;
    if !is_installed(&workspace.shell()?) {
        bail!("valgrind does not start: `apt-get install valgrind`");
    }
    run(workspace, &Deps::new(workspace)?)
}

/// Runs all of it, unless valgrind is not installed.
pub(crate) fn run_if_installed(workspace: &Workspace, deps: &Deps<'_>) -> Result<()> {
    if is_installed(&workspace.shell()?) {
        return run(workspace, deps);
    }
    println!("skipped: valgrind is not installed");
    Ok(())
}

fn is_installed(shell: &Shell) -> bool {
    cmd!(shell, "valgrind --version")
        .quiet()
        .ignore_stdout()
        .ignore_stderr()
        .run()
        .is_ok()
}

fn run(workspace: &Workspace, deps: &Deps<'_>) -> Result<()> {
    let watch = Watch {
        library: workspace.library()?,
        flags: &[],
        tool: &VALGRIND,
        mark: "==",
        parts: 100,
        folder: workspace.target("memcheck"),
    };
    watch.prove(workspace, &FAULTS)?;
    // (rollouts.c steps real robots for as long as all the others take together, and has
    // nothing that these have not.)
    let newest = deps.newest_mujoco()?.version();
    watch.run(workspace, deps, newest, |name| name != "rollouts")
}
