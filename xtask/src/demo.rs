//! The verb `demo`: builds and runs `examples/demo.c`, and makes a picture of what
//! it wrote.

use std::fs;

use anyhow::Result;
use pico_args::Arguments;
use xshell::cmd;

use crate::cc::{Compiler, Language, Unit};
use crate::deps::Deps;
use crate::workspace::Workspace;

/// The robots that the demo rolls out, each into a file of its name.
const ROBOTS: [&str; 2] = ["humanoid", "quadruped"];

/// The verb.
pub(crate) fn main(workspace: &Workspace, arguments: Arguments) -> Result<()> {
    crate::no_more(arguments)?;
    let deps = Deps::new(workspace)?;
    let unit = Unit {
        compiler: &Compiler::of_host(workspace)?,
        language: Language::C99,
        source: workspace.path("examples/demo.c"),
        mujoco: Some(deps.newest_mujoco()?),
    };
    let folder = workspace.target("demo");
    fs::create_dir_all(&folder)?;
    let binary = folder.join("demo");
    unit.link(workspace, &binary)?;

    let shell = workspace.shell()?;
    let models = workspace.path("examples/models");
    cmd!(shell, "{binary} {models} {folder}").quiet().run()?;

    let python = deps.python()?;
    let picture = folder.join("rollouts.png");
    let trajectories = ROBOTS.map(|robot| {
        let file = folder.join(robot).with_extension("npy");
        format!("{robot}={}", file.display())
    });
    cmd!(
        shell,
        "{python} examples/plot.py {picture} {trajectories...}"
    )
    .quiet()
    .run()?;
    println!("The picture is {}", picture.display());
    Ok(())
}
