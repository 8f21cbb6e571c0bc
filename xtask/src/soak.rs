//! The verb `soak`: `tests/soak.rs` for longer than `cargo test` runs it.

use anyhow::Result;
use pico_args::Arguments;
use xshell::cmd;

use crate::workspace::Workspace;

/// The verb.
pub(crate) fn main(workspace: &Workspace, mut arguments: Arguments) -> Result<()> {
    let seconds: Option<u32> = arguments.opt_value_from_str("--seconds")?;
    crate::no_more(arguments)?;
    let seconds = seconds.unwrap_or(60).to_string();
    let shell = workspace.shell()?;
    let soak = cmd!(
        shell,
        "cargo test --quiet --package rollout-tests --test soak -- --nocapture"
    );
    Ok(soak.env("ROLLOUT_SOAK_SECONDS", seconds).quiet().run()?)
}
