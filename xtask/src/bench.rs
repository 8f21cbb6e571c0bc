//! The verb `bench`: builds and runs `bench/bench.c`, which measures the library
//! and its peers beside each other in one run.

use std::fs;
use std::path::{self, PathBuf};

use anyhow::{Context, Result};
use pico_args::Arguments;
use xshell::cmd;

use crate::cc::{Compiler, Language, Unit};
use crate::deps::Deps;
use crate::workspace::Workspace;

/// The verb.
pub(crate) fn main(workspace: &Workspace, mut arguments: Arguments) -> Result<()> {
    let rounds: u32 = arguments.opt_value_from_str("--rounds")?.unwrap_or(15);
    let threads: Option<u32> = arguments.opt_value_from_str("--threads")?;
    let json: Option<PathBuf> = arguments.opt_value_from_str("--json")?;
    crate::no_more(arguments)?;

    let folder = workspace.target("bench");
    // A path of the user's is relative to where the user is.
    let json = path::absolute(json.unwrap_or_else(|| folder.join("bench.json")))?;
    fs::create_dir_all(json.parent().context("--json names no file")?)?;

    let deps = Deps::new(workspace)?;
    let unit = Unit {
        compiler: &Compiler::of_host(workspace)?,
        language: Language::C99,
        source: workspace.path("bench/bench.c"),
        mujoco: Some(deps.newest_mujoco()?),
    };
    let binary = folder.join("bench");
    unit.link(workspace, &binary)?;

    let shell = workspace.shell()?;
    let suite = deps.suite()?;
    let rounds = rounds.to_string();
    let threads = threads.map(|n| ["--threads".to_owned(), n.to_string()]);
    let threads = threads.iter().flatten();
    cmd!(
        shell,
        "{binary} {suite} --rounds {rounds} --json {json} {threads...}"
    )
    .quiet()
    .run()?;
    println!("The numbers are in {}", json.display());
    Ok(())
}
