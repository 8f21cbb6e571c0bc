//! The verb `tsan`: threads of the pool under ThreadSanitizer, in Rust (`tests/races.rs`)
//! and in C hosts.
//!
//! First each must find races that are there: between two tasks, in the pool, in a host,
//! and in what the library writes for it.

use std::env::consts::ARCH;
use std::path::PathBuf;

use anyhow::{Result, bail};
use pico_args::Arguments;
use xshell::{Cmd, Shell, cmd};

use crate::deps::Deps;
use crate::watched::Watch;
use crate::workspace::Workspace;

/// What a report begins with.
const MARK: &str = "WARNING: ThreadSanitizer: data race";

/// What the C programs and the library's C are compiled with.
const FLAGS: [&str; 1] = ["-fsanitize=thread"];

/// Races of `tests/c/wrong/wrong.c`.
const FAULTS: [(&str, &str); 2] = [("host-race", MARK), ("library-race", MARK)];

/// The C tests of the pool. (Not `trap.c`: the handlers of a process, which it sets while
/// other threads read them, are plain variables in the engines that have them.)
const PROGRAMS: [&str; 2] = ["pool", "tickets"];

/// The verb.
pub(crate) fn main(workspace: &Workspace, arguments: Arguments) -> Result<()> {
    crate::no_more(arguments)?;
    run(workspace, &Deps::new(workspace)?)
}

/// Runs all of it.
pub(crate) fn run(workspace: &Workspace, deps: &Deps<'_>) -> Result<()> {
    rust(workspace)?;
    let library = library(workspace)?;
    let options = format!("TSAN_OPTIONS={}", options(workspace));
    let memory = workspace
        .path("tests/c/tsan/memory.c")
        .display()
        .to_string();
    let watch = Watch {
        library: &library,
        flags: &[FLAGS[0], &memory],
        tool: &["env", &options],
        mark: MARK,
        parts: 20,
        folder: workspace.target("tsan/programs"),
    };
    watch.prove(workspace, &FAULTS)?;
    let newest = deps.newest_mujoco()?.version();
    watch.run(workspace, deps, newest, |name| PROGRAMS.contains(&name))
}

fn options(workspace: &Workspace) -> String {
    format!(
        "suppressions={}",
        workspace.path("tests/tsan.txt").display()
    )
}

/// The Rust program, with a race of its own, with one that is planted in the pool, and as
/// it is.
fn rust(workspace: &Workspace) -> Result<()> {
    let shell = workspace.shell()?;
    let folder = workspace.target("tsan");
    let target = target();
    let program = |arguments: &[&str], planted: &str| {
        let program = cmd!(
            shell,
            "cargo test --package rollout-tests --test races --target {target}
             --target-dir {folder} -- {arguments...}"
        );
        with_sanitizer(program, "")
            .env("TSAN_OPTIONS", options(workspace))
            .env("ROLLOUT_PLANTED", planted)
            .quiet()
            .ignore_status()
            .output()
    };
    for (arguments, planted) in [(&["planted"][..], ""), (&[], "relaxed-done")] {
        let fault = arguments.first().unwrap_or(&planted);
        let output = program(arguments, planted)?;
        let text = String::from_utf8_lossy(&output.stderr);
        if output.status.success() || !text.contains(MARK) {
            bail!("ThreadSanitizer does not find a race that is there, {fault}:\n{text}");
        }
        println!("ok {fault} is found");
    }
    let output = program(&[], "")?;
    print!("{}", String::from_utf8_lossy(&output.stdout));
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// Builds librollout for a host that has the sanitizer, and returns its folder (see the
/// verb `sanitize`).
fn library(workspace: &Workspace) -> Result<PathBuf> {
    let shell: Shell = workspace.shell()?;
    let folder = workspace.target("tsan-library");
    let target = target();
    let build = cmd!(
        shell,
        "cargo build --package rollout-ffi --target {target} --target-dir {folder}"
    );
    with_sanitizer(build, "-Zexternal-clangrt").quiet().run()?;
    Ok(folder.join(target).join("debug"))
}

fn target() -> String {
    format!("{ARCH}-unknown-linux-gnu")
}

/// A command of cargo's whose Rust and C are instrumented. Rust has this for its nightly
/// toolchain only; the variable makes a stable one take the flags.
fn with_sanitizer<'a>(command: Cmd<'a>, more: &str) -> Cmd<'a> {
    let rust = "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg planted";
    command
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", format!("{rust} {more}").trim())
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("CFLAGS", FLAGS.join(" "))
}
