//! The verb `lint`: formatting, clippy and rustdoc, ruff and mypy, warnings denied. What
//! the last two look at and how is in `pyproject.toml`.

use anyhow::Result;
use pico_args::Arguments;
use xshell::cmd;

use crate::deps::Deps;
use crate::step::step;
use crate::workspace::Workspace;

/// The verb.
pub(crate) fn main(workspace: &Workspace, arguments: Arguments) -> Result<()> {
    crate::no_more(arguments)?;
    let shell = workspace.shell()?;
    step("rustfmt", || {
        Ok(cmd!(shell, "cargo fmt --all --check").quiet().run()?)
    })?;
    step("clippy", || {
        let clippy = cmd!(
            shell,
            "cargo clippy --workspace --all-targets -- -D warnings"
        );
        Ok(clippy.quiet().run()?)
    })?;
    step("rustdoc", || {
        let rustdoc = cmd!(
            shell,
            "cargo doc --no-deps -p rollout-core -p rollout-pool -p rollout-ffi"
        );
        Ok(rustdoc.env("RUSTDOCFLAGS", "-D warnings").quiet().run()?)
    })?;

    let deps = Deps::new(workspace)?;
    let tools = step("get the Python environments", || {
        deps.newest_python()?;
        Ok(deps.tools()?.interpreter())
    })?;
    step("ruff", || {
        cmd!(shell, "{tools} -m ruff format --check")
            .quiet()
            .run()?;
        Ok(cmd!(shell, "{tools} -m ruff check").quiet().run()?)
    })?;
    step("mypy", || {
        let newest = deps.newest_python()?.interpreter();
        let mypy = cmd!(shell, "{tools} -m mypy --python-executable {newest}");
        mypy.quiet().run()?;
        // What is imported here is in the tools' environment.
        let mypy = cmd!(
            shell,
            "{tools} -m mypy python/build_hook.py xtask/unpack_wheel.py"
        );
        Ok(mypy.quiet().run()?)
    })
}
