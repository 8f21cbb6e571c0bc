//! The verb `demo`: runs `examples/demo.py`, which draws what it rolled out.

use anyhow::Result;
use pico_args::Arguments;
use xshell::cmd;

use crate::deps::Deps;
use crate::workspace::Workspace;

/// The verb.
pub(crate) fn main(workspace: &Workspace, arguments: Arguments) -> Result<()> {
    crate::no_more(arguments)?;
    let python = Deps::new(workspace)?.newest_python()?.interpreter();
    let (package, output) = (workspace.package()?, workspace.target("demo"));
    let shell = workspace.shell()?;
    let demo = cmd!(shell, "{python} examples/demo.py --output {output}");
    Ok(demo.env("PYTHONPATH", package).quiet().run()?)
}
