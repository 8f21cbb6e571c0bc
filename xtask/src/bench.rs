//! The verb `bench`: `bench/bench.c` and `bench/bench.py`, each of which measures the
//! library and its peers beside each other in one run.

use std::fs;
use std::path::{self, PathBuf};

use anyhow::Result;
use pico_args::Arguments;
use xshell::cmd;

use crate::cc::{Compiler, Language, Unit};
use crate::deps::Deps;
use crate::workspace::Workspace;

/// The verb.
pub(crate) fn main(workspace: &Workspace, mut arguments: Arguments) -> Result<()> {
    let rounds: u32 = arguments.opt_value_from_str("--rounds")?.unwrap_or(15);
    let threads: Option<u32> = arguments.opt_value_from_str("--threads")?;
    let output: Option<PathBuf> = arguments.opt_value_from_str("--output")?;
    crate::no_more(arguments)?;
    // A path of the user's is relative to where the user is.
    let output = path::absolute(output.unwrap_or_else(|| workspace.target("bench")))?;
    fs::create_dir_all(&output)?;

    let deps = Deps::new(workspace)?;
    let unit = Unit {
        compiler: &Compiler::of_host(workspace)?,
        language: Language::C99,
        source: workspace.path("bench/bench.c"),
        mujoco: Some(deps.newest_mujoco()?),
    };
    let binary = workspace.target("bench/bench");
    unit.link(workspace, &binary)?;

    let shell = workspace.shell()?;
    let suite = deps.suite()?;
    let mut options = vec!["--rounds".to_owned(), rounds.to_string()];
    if let Some(threads) = threads {
        options.extend(["--threads".to_owned(), threads.to_string()]);
    }
    let options = &options;
    let [of_c, of_python] = ["c.json", "python.json"].map(|name| output.join(name));

    println!("In C\n");
    let program = cmd!(shell, "{binary} {suite} {options...} --json {of_c}");
    program.quiet().run()?;

    println!("\nIn Python\n");
    let python = deps.newest_python()?.interpreter();
    let program = cmd!(
        shell,
        "{python} bench/bench.py --suite {suite} {options...} --json {of_python}"
    );
    let program = program.env("PYTHONPATH", workspace.package()?);
    program.quiet().run()?;

    println!(
        "\nThe numbers are in {} and {}",
        of_c.display(),
        of_python.display()
    );
    Ok(())
}
