//! The verb `sanitize`: the C tests under AddressSanitizer and
//! UndefinedBehaviorSanitizer, with the library's Rust and C built for them too.

use std::env::consts::ARCH;
use std::path::PathBuf;

use anyhow::Result;
use pico_args::Arguments;
use xshell::cmd;

use crate::deps::Deps;
use crate::watched::Watch;
use crate::workspace::Workspace;

/// What both the programs and the library's C are compiled with.
const FLAGS: [&str; 3] = [
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
];

/// One fault for each thing that is instrumented, and each tool that it is instrumented
/// for: the host, the library's Rust, and the library's C.
const FAULTS: [(&str, &str); 5] = [
    ("host-overflow", "AddressSanitizer"),
    ("host-undefined", "runtime error"),
    ("library-overflow", "AddressSanitizer"),
    ("trap-overflow", "AddressSanitizer"),
    ("trap-undefined", "runtime error"),
];

/// Releases on which the errors of the engine are tried besides the newest: one with
/// handlers of texts, and one whose threads are retired. (The headers of some others do
/// not compile for gcc's AddressSanitizer.)
const FOR_ERRORS: [&str; 2] = ["3.2.7", "3.13.0"];

/// The verb.
pub(crate) fn main(workspace: &Workspace, arguments: Arguments) -> Result<()> {
    crate::no_more(arguments)?;
    run(workspace, &Deps::new(workspace)?)
}

/// Runs all of it.
pub(crate) fn run(workspace: &Workspace, deps: &Deps<'_>) -> Result<()> {
    let library = library(workspace)?;
    let watch = Watch {
        library: &library,
        flags: &FLAGS,
        tool: &[],
        mark: "runtime error",
        parts: 20,
        folder: workspace.target("sanitize/programs"),
    };
    watch.prove(workspace, &FAULTS)?;
    let newest = deps.newest_mujoco()?.version();
    // (In a forked child the sanitizer's allocator, that of gcc 12, may have locks that a
    // thread of the parent held.)
    watch.run(workspace, deps, newest, |name| name != "fork")?;
    for version in FOR_ERRORS {
        watch.run(workspace, deps, version, |name| name == "errors")?;
    }
    Ok(())
}

/// Builds librollout for AddressSanitizer, and returns its folder. Rust has this for its
/// nightly toolchain only; the variable makes a stable one take the flags. The sanitizer
/// itself is that of the C host (`external-clangrt`).
fn library(workspace: &Workspace) -> Result<PathBuf> {
    let shell = workspace.shell()?;
    let target = format!("{ARCH}-unknown-linux-gnu");
    let folder = workspace.target("sanitize");
    let rust = "-Zsanitizer=address -Zexternal-clangrt -Cunsafe-allow-abi-mismatch=sanitizer";
    cmd!(
        shell,
        "cargo build --package rollout-ffi --target {target} --target-dir {folder}"
    )
    .env("RUSTC_BOOTSTRAP", "1")
    .env("RUSTFLAGS", rust)
    .env_remove("CARGO_ENCODED_RUSTFLAGS")
    .env("CFLAGS", FLAGS.join(" "))
    .quiet()
    .run()?;
    Ok(folder.join(target).join("debug"))
}
