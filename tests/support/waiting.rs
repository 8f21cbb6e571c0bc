//! A simulator whose steps wait, for tests in which the order of things matters.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rollout_core::simulator::{Readings, Specs};
use rollout_core::{Arrays, Simulator};

/// Far more than anything here takes, even on a machine that is very busy.
const LONG: Duration = Duration::from_secs(60);

/// Waits for a condition that must come true.
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LONG, "never: {what}");
        thread::yield_now();
    }
}

/// A simulator without state whose steps wait: what a thread does inside a step is
/// in the test's hands.
#[derive(Debug)]
pub struct Waiting;

/// The model of [`Waiting`]: a step counts itself as arrived and waits until as many
/// have arrived as are to be let go.
#[derive(Debug)]
pub struct Gate {
    /// Steps that have begun.
    pub arrived: AtomicUsize,
    /// How many must have, before any ends.
    pub open_at: AtomicUsize,
}

impl Gate {
    /// A gate that opens when so many have arrived.
    pub fn new(open_at: usize) -> Self {
        Self {
            arrived: AtomicUsize::new(0),
            open_at: AtomicUsize::new(open_at),
        }
    }
}

impl Simulator for Waiting {
    type Model = Gate;

    const SPECS: Specs = Specs {
        full_physics: 1,
        ..Specs::none()
    };

    fn state_size(_: &Gate, _: u32) -> usize {
        0
    }

    fn get_state(&self, _: &Gate, _: u32, _: &mut [f64]) {}

    fn set_state(&mut self, _: &Gate, _: u32, _: &[f64]) {}

    fn step(&mut self, gate: &Gate, _: Readings<'_>) -> Result<(), String> {
        gate.arrived.fetch_add(1, Ordering::AcqRel);
        eventually("the gate opens", || {
            gate.arrived.load(Ordering::Acquire) >= gate.open_at.load(Ordering::Acquire)
        });
        Ok(())
    }

    fn reset(&mut self, _: &Gate) {}
}

/// Rollouts of one step.
pub fn one_step_each(nbatch: usize) -> Arrays<'static> {
    Arrays {
        nbatch,
        nstep: 1,
        ..Arrays::default()
    }
}
