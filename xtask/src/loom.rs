//! The verb `loom`: the models of the pool (`rollout-pool/src/models.rs`), each in every
//! order that its threads can come in, within bounds.
//!
//! Then faults are planted in the pool, and loom must find them.

use anyhow::{Result, bail};
use pico_args::Arguments;
use xshell::{Cmd, Shell, cmd};

use crate::workspace::Workspace;

/// What is planted, the model that must fail of it, and what loom says then.
const FAULTS: [(&str, &str, &str); 4] = [
    // A worker looks between the change of the number and the work, and sleeps.
    ("advance-before-lock", "tasks_are_run", "deadlock"),
    // A waiter finds no result, or one that is just being written.
    (
        "done-before-result",
        "a_ticket_is_done",
        "Causality violation",
    ),
    // The caller has returned, and its request is gone.
    ("touch-after-done", "a_worker_helps", "Causality violation"),
    // A waiter sees that it is over, and not what was written before.
    ("relaxed-done", "a_ticket_is_done", "Causality violation"),
];

/// The verb.
pub(crate) fn main(workspace: &Workspace, arguments: Arguments) -> Result<()> {
    let models: Vec<_> = arguments.finish();
    if !models.is_empty() {
        let shell = workspace.shell()?;
        return Ok(models_of(workspace, &shell).args(models).run()?);
    }
    run(workspace)
}

/// Runs all models, and then those that must fail.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let shell = workspace.shell()?;
    let explored = models_of(workspace, &shell)
        .arg("models::")
        .quiet()
        .read()?;
    let mut total = 0_u64;
    for line in explored.lines() {
        // (The test's own name stands before it.)
        let Some((_, line)) = line.split_once("model ") else {
            continue;
        };
        println!("ok {line}");
        let number = line.split_once(": ").map(|(_, rest)| rest);
        let number = number.and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
        total += number.unwrap_or(0);
    }
    if total == 0 {
        bail!("no model was explored:\n{explored}");
    }
    println!("{total} interleavings");
    for (fault, model, said) in FAULTS {
        let models = models_of(workspace, &shell).arg(model);
        let output = models
            .env("ROLLOUT_PLANTED", fault)
            .quiet()
            .ignore_status()
            .output()?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        if output.status.success() || !text.contains(said) {
            bail!("loom does not find a fault that is there, {fault}:\n{text}");
        }
        println!("ok {fault} is found");
    }
    Ok(())
}

/// The command that runs the models, in a folder of its own, as everything is built anew
/// for loom; without the optimisation across crates that takes longer than the models.
fn models_of<'a>(workspace: &Workspace, shell: &'a Shell) -> Cmd<'a> {
    let folder = workspace.target("loom");
    cmd!(
        shell,
        "cargo test --release --package rollout-pool --lib --target-dir {folder} --
         --nocapture --test-threads=1"
    )
    .env("RUSTFLAGS", "--cfg loom --cfg planted")
    .env_remove("CARGO_ENCODED_RUSTFLAGS")
    .env("CARGO_PROFILE_RELEASE_LTO", "off")
    .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
}
