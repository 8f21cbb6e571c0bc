//! The verb `lint`: formatting, clippy and rustdoc, warnings denied.

use anyhow::Result;
use pico_args::Arguments;
use xshell::cmd;

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
    })
}
