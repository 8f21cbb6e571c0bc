//! The verb `test`: everything that must pass before a change is done, in the
//! order in which a failure is cheapest to find.

use anyhow::Result;
use pico_args::Arguments;
use xshell::cmd;

use crate::deps::Deps;
use crate::step::step;
use crate::workspace::Workspace;
use crate::{ctest, header, loom, memcheck, package, pytest, readme, sanitize, tsan};

/// The verb.
pub(crate) fn main(workspace: &Workspace, arguments: Arguments) -> Result<()> {
    crate::no_more(arguments)?;
    let deps = Deps::new(workspace)?;
    step("get what comes from outside", || deps.get_all())?;
    step("build the library", || workspace.library().map(|_| ()))?;
    step("header --check", || header::check(workspace))?;
    step("cargo test", || {
        let shell = workspace.shell()?;
        Ok(cmd!(shell, "cargo test --workspace").quiet().run()?)
    })?;
    step("loom", || loom::run(workspace))?;
    step("tsan", || tsan::run(workspace, &deps))?;
    step("the examples of README.md", || {
        readme::run(workspace, &deps)
    })?;
    step("pytest", || pytest::all(workspace, &deps))?;
    package::run(workspace, &deps)?;
    step("sanitize", || sanitize::run(workspace, &deps))?;
    step("memcheck", || memcheck::run_if_installed(workspace, &deps))?;
    // Last, because its closing line sums up.
    step("ctest", || ctest::all(workspace, &deps))
}
