//! Steps of a job that are announced and timed, so that a reader of a log sees
//! what was going on when it stopped, and where the time went.

use std::time::Instant;

use anyhow::{Context, Result};

/// Runs `work` as the step that `name` describes; an error names the step.
pub(crate) fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("==> {name}");
    let start = Instant::now();
    let value = work().with_context(|| name.to_owned())?;
    eprintln!("    {:.1} s", start.elapsed().as_secs_f64());
    Ok(value)
}
