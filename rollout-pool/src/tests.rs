//! What the unit tests of several modules need.

use std::cell::RefCell;
use std::hint;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rollout_core::simulator::{Fixed, Readings, Specs};
use rollout_core::trap::HOOKS_RETIRE_THREAD;
use rollout_core::{Arrays, Data, Engine, Model, Request, Simulation, Simulator, Slot};

use crate::pool::{Shared, UNKNOWN};
use crate::spawn::tests::REFUSE;
use crate::sync::Ordering;
use crate::{Pool, RunError};

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

/// A simulator whose rollouts fail where the model says so.
struct Fails;

impl Simulator for Fails {
    type Model = bool;
    const SPECS: Specs = Specs {
        full_physics: 1,
        ..Specs::none()
    };
    fn state_size(_: &bool, _: u32) -> usize {
        0
    }
    fn get_state(&self, _: &bool, _: u32, _: &mut [f64]) {}
    fn set_state(&mut self, _: &bool, _: u32, _: &[f64]) {}
    fn step(&mut self, fails: &bool, _: Readings<'_>) -> Result<(), String> {
        match fails {
            true => Err("as the model says".to_owned()),
            false => Ok(()),
        }
    }
    fn reset(&mut self, _: &bool) {}
}

#[test]
fn what_a_caller_must_leave_a_sleeping_worker_does() {
    // For engines whose threads must go after an error, and a system that has no other
    // thread for the caller.
    let fails: [bool; 8] = std::array::from_fn(|rollout| rollout == 0);
    let fixed = fails.each_ref().map(Fixed::<Fails>::new);
    for nthread in [1, 2] {
        let pool = Pool::new(nthread).unwrap();
        // So cheap that the caller wakes nobody.
        pool.know_step_time(1);
        let mut slots = [(); 3].map(|()| Slot::new(Fails, &fails[0]));
        let mut engine = Engine::of::<Fails>();
        engine.hooks.flags = HOOKS_RETIRE_THREAD;
        let models: Vec<_> = fixed.iter().map(Model::of).collect();
        let data: Vec<_> = slots.iter_mut().map(Data::of).collect();
        let arrays = Arrays {
            nbatch: 8,
            nstep: 1,
            ..Arrays::default()
        };
        // SAFETY: the table is that of these models and data, which are borrowed here.
        let simulation = unsafe { Simulation::new(&engine, models, data) };
        let mut request = Request::new(simulation, arrays).unwrap();
        // On a thread of its own, since it is spent for good.
        let result = thread::scope(|scope| {
            let caller = scope.spawn(|| {
                REFUSE.set(true);
                pool.run(&mut request)
            });
            caller.join().unwrap()
        });
        let tally = result.unwrap();
        assert_eq!((tally.completed, tally.failed), (7, 1));
        // Without workers there is nobody.
        let alone = Pool::new(0).unwrap();
        let result = thread::scope(|scope| {
            let caller = scope.spawn(|| {
                REFUSE.set(true);
                alone.run(&mut request)
            });
            caller.join().unwrap()
        });
        match result {
            Err(RunError::NoThread(_, tally)) => assert_eq!((tally.total(), tally.failed), (1, 1)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_worker_that_is_slow_to_step_inside_does_not_find_a_removed_job() {
    let pool = Pool::new(2).unwrap();
    with_request(|request| {
        for _ in 0..3000 {
            // So that workers are woken though there is little to do.
            pool.know_step_time(UNKNOWN);
            assert_eq!(pool.run(request).unwrap().completed, 8);
        }
    });
}

/// Runs a request until this becomes of it, which each time it may not: other programs on
/// this machine can make a step seem long, or keep workers from being asleep.
fn run_until(what: &str, run: impl Fn() -> bool) {
    let start = Instant::now();
    while !run() {
        assert!(start.elapsed() < Duration::from_secs(60), "never: {what}");
    }
}

#[test]
fn r60_a_request_too_small_to_share_wakes_nobody() {
    let model = [false];
    for nthread in [1, 8, 64] {
        let pool = Pool::new(nthread).unwrap();
        let mut slots = [(); 3].map(|()| Slot::new(Fails, &model[0]));
        let arrays = Arrays {
            nbatch: 8,
            nstep: 1,
            ..Arrays::default()
        };
        let simulation = Simulation::of(&model, &mut slots).unwrap();
        let request = RefCell::new(Request::new(simulation, arrays).unwrap());
        let woken = || pool.shared().woken.load(Ordering::Relaxed);
        let wakes = |step_time| {
            pool.know_step_time(step_time);
            let before = woken();
            assert_eq!(pool.run(&mut request.borrow_mut()).unwrap().completed, 8);
            let wakes = woken() != before;
            // Long enough for a worker that was woken to be asleep again.
            thread::sleep(Duration::from_millis(1));
            wakes
        };
        run_until("nobody is woken", || !wakes(1));
        run_until("what is worth it wakes somebody", || wakes(UNKNOWN));
    }
}
