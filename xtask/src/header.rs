//! The verb `header`: `include/rollout.h`, which cbindgen makes from the crate
//! `rollout-ffi`.
//!
//! The header is committed, so that a host needs no Rust to read it and a review
//! sees how the ABI changes; `--check` fails when it is not what the sources say.
//! It is not made by a build script, because a build should not write to the
//! sources.

use std::fs;

use anyhow::{Context, Error, Result, bail};
use cbindgen::{Builder, Config};
use log::LevelFilter;
use pico_args::Arguments;
use similar::TextDiff;

use crate::workspace::Workspace;

const HEADER: &str = "include/rollout.h";

/// The verb.
pub(crate) fn main(workspace: &Workspace, mut arguments: Arguments) -> Result<()> {
    let only_check = arguments.contains("--check");
    crate::no_more(arguments)?;
    if only_check {
        check(workspace)
    } else {
        write(workspace)
    }
}

/// Fails with the differences if the header is not up to date.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let wanted = generate(workspace)?;
    let found = fs::read_to_string(workspace.path(HEADER)).context(HEADER)?;
    if found == wanted {
        return Ok(());
    }
    let diff = TextDiff::from_lines(&found, &wanted);
    let shown = diff
        .unified_diff()
        .context_radius(3)
        .header(HEADER, "what the sources say")
        .to_string();
    bail!("{HEADER} is out of date: run `cargo xtask header`\n{shown}");
}

fn write(workspace: &Workspace) -> Result<()> {
    let wanted = generate(workspace)?;
    let path = workspace.path(HEADER);
    // An unchanged file keeps its time, for those who build by it.
    if !fs::read_to_string(&path).is_ok_and(|found| found == wanted) {
        fs::write(&path, wanted).context(HEADER)?;
        eprintln!("wrote {HEADER}");
    }
    Ok(())
}

fn generate(workspace: &Workspace) -> Result<String> {
    // cbindgen leaves out types that it does not understand, and says so only here.
    // Its parser also names each private constant that it skips, which is no news.
    let _ = env_logger::Builder::new()
        .filter_level(LevelFilter::Warn)
        .filter_module("cbindgen::bindgen::parser", LevelFilter::Error)
        .format_timestamp(None)
        .try_init();
    let package = workspace.path("rollout-ffi");
    let config = Config::from_file(package.join("cbindgen.toml")).map_err(Error::msg)?;
    let mut text = Vec::new();
    Builder::new()
        .with_crate(package)
        .with_config(config)
        .generate()
        .context("cbindgen cannot read rollout-ffi")?
        .write(&mut text);
    // Rust's heading for what a caller must promise is one word to the lint that
    // asks for it, and says little to a reader of C.
    Ok(String::from_utf8(text)?
        .replace("// # Safety\n//\n", "// The caller promises:\n")
        // A macro that is pasted into an expression.
        .replace("DEFAULT -1\n", "DEFAULT (-1)\n"))
}
