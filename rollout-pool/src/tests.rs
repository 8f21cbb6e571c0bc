//! What the unit tests of several modules need.

use std::hint;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rollout_core::simulator::{Readings, Specs};
use rollout_core::{Arrays, Request, Simulation, Simulator, Slot};

use crate::Pool;
use crate::pool::Shared;

/// Widens the gap between a worker's look at a job and its step inside, in which the caller
/// can claim the last rollouts.
pub(crate) fn dawdle() {
    thread::sleep(Duration::from_micros(20));
}

/// A simulator whose step takes a few microseconds.
pub(crate) struct Idle;

impl Simulator for Idle {
    type Model = ();
    const SPECS: Specs = Specs {
        full_physics: 1,
        ..Specs::none()
    };
    fn state_size(_: &(), _: u32) -> usize {
        0
    }
    fn get_state(&self, _: &(), _: u32, _: &mut [f64]) {}
    fn set_state(&mut self, _: &(), _: u32, _: &[f64]) {}
    fn step(&mut self, _: &(), _: Readings<'_>) -> Result<(), String> {
        for turn in 0..2000 {
            hint::black_box(turn);
        }
        Ok(())
    }
    fn reset(&mut self, _: &()) {}
}

/// A request of eight rollouts of one step on three data.
pub(crate) fn with_request<R>(test: impl FnOnce(&mut Request<'_>) -> R) -> R {
    let mut slots = [(); 3].map(|()| Slot::new(Idle, &()));
    let arrays = Arrays {
        nbatch: 8,
        nstep: 1,
        ..Arrays::default()
    };
    let simulation = Simulation::of(&[()], &mut slots).unwrap();
    test(&mut Request::new(simulation, arrays).unwrap())
}

/// A pool's shared state.
pub(crate) fn shared() -> Arc<Shared> {
    Arc::clone(Pool::new(0).unwrap().shared())
}

#[test]
fn a_worker_that_is_slow_to_step_inside_does_not_find_a_removed_job() {
    let pool = Pool::new(2).unwrap();
    with_request(|request| {
        for _ in 0..3000 {
            // So that workers are woken though there is little to do.
            pool.forget_step_time();
            assert_eq!(pool.run(request).unwrap().completed, 8);
        }
    });
}
