//! Threads that an engine's error has spent, as a host in Rust sees them: who takes
//! their place, and as what. (What becomes of the rollouts is in `rollouts.rs`, jumps
//! out of an engine in `c/trap.c`.)

use std::collections::HashSet;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, ThreadId};

use rollout_core::simulator::{Fixed, Readings, Specs};
use rollout_core::trap::HOOKS_RETIRE_THREAD;
use rollout_core::{Arrays, Data, Engine, Request, Simulation, Simulator, Slot, engine};
use rollout_pool::{Pool, worker_id};
use rollout_tests::thread_name;

/// A simulator whose every step fails.
struct Failing;

/// The model of [`Failing`].
struct Seen {
    /// The threads that have made a step.
    steps: Mutex<Vec<Step>>,
    /// So many steps begin before the first one ends.
    at_once: usize,
}

#[derive(Clone, Debug)]
struct Step {
    thread: ThreadId,
    name: String,
    worker_id: i32,
}

impl Simulator for Failing {
    type Model = Seen;

    const SPECS: Specs = Specs {
        full_physics: 1,
        ..Specs::none()
    };

    fn state_size(_: &Seen, _: u32) -> usize {
        0
    }

    fn get_state(&self, _: &Seen, _: u32, _: &mut [f64]) {}

    fn set_state(&mut self, _: &Seen, _: u32, _: &[f64]) {}

    fn step(&mut self, seen: &Seen, _: Readings<'_>) -> Result<(), String> {
        seen.steps.lock().unwrap().push(Step {
            thread: thread::current().id(),
            name: thread_name(),
            worker_id: worker_id(),
        });
        while seen.steps.lock().unwrap().len() < seen.at_once {
            thread::yield_now();
        }
        Err("as always".to_owned())
    }

    fn reset(&mut self, _: &Seen) {}
}

/// Runs rollouts of one step, all of which fail, and returns who has stepped.
fn run(pool: &Pool, nbatch: usize, ndata: usize, at_once: usize) -> Vec<Step> {
    let seen = Seen {
        steps: Mutex::default(),
        at_once,
    };
    let mut slots: Vec<_> = (0..ndata).map(|_| Slot::new(Failing, &seen)).collect();
    let fixed = Fixed::<Failing>::new(&seen);
    let models = vec![engine::Model::of(&fixed)];
    let data: Vec<_> = slots.iter_mut().map(Data::of).collect();
    let mut engine = Engine::of::<Failing>();
    engine.hooks.flags = HOOKS_RETIRE_THREAD;
    let arrays = Arrays {
        nbatch,
        nstep: 1,
        ..Arrays::default()
    };
    // SAFETY: the table is that of this model and these data, which are borrowed here.
    let simulation = unsafe { Simulation::new(&engine, models, data) };
    let mut request = Request::new(simulation, arrays).unwrap();
    let tally = pool.run(&mut request).unwrap();
    assert_eq!(tally.failed, nbatch);
    drop(request);
    seen.steps.into_inner().unwrap()
}

/// No thread has made a step after the one that spent it.
fn check_retired(steps: &[Step]) {
    let threads: HashSet<ThreadId> = steps.iter().map(|step| step.thread).collect();
    assert_eq!(threads.len(), steps.len(), "{steps:?}");
}

#[test]
fn a_spent_worker_is_replaced_by_one_of_its_id_and_name() {
    let pool = Pool::new(2).unwrap();
    let mut all = vec![];
    for _ in 0..20 {
        // The caller and both workers fail once each, and then whoever has their places.
        let steps = run(&pool, 30, 3, 3);
        let ids: HashSet<i32> = steps.iter().map(|step| step.worker_id).collect();
        assert_eq!(ids, HashSet::from([-1, 0, 1]));
        all.extend(steps);
    }
    check_retired(&all);
    for step in &all {
        if step.worker_id >= 0 {
            assert_eq!(step.name, format!("rollout-{}", step.worker_id));
        }
    }
    // The workers are as many as before.
    let (send, ids) = mpsc::channel();
    let together = Arc::new(std::sync::Barrier::new(2));
    for _ in 0..2 {
        let (send, together) = (send.clone(), Arc::clone(&together));
        pool.schedule(move || {
            together.wait();
            send.send(worker_id()).unwrap();
        });
    }
    pool.wait_count(2).unwrap();
    let ids: HashSet<i32> = ids.try_iter().collect();
    assert_eq!(ids, HashSet::from([0, 1]));
}

#[test]
fn a_spent_caller_has_others_stand_in_for_it() {
    let pool = Pool::new(0).unwrap();
    let first = run(&pool, 5, 1, 1);
    let second = run(&pool, 5, 1, 1);
    let me = thread::current().id();
    assert_eq!(first[0].thread, me);
    let others = first[1..].iter().chain(&second);
    for step in others.clone() {
        assert_ne!(step.thread, me);
        assert_eq!((step.name.as_str(), step.worker_id), ("rollout-caller", -1));
    }
    assert_eq!(others.count(), 9);
    check_retired(&[first, second].concat());
}

#[test]
fn a_worker_that_a_task_has_spent_is_replaced_after_the_task() {
    let pool = Arc::new(Pool::new(1).unwrap());
    let (send, received) = mpsc::channel();
    let inner = Arc::clone(&pool);
    let told = send.clone();
    pool.schedule(move || {
        let steps = run(&inner, 3, 1, 1);
        // Whoever stands in for the worker is taken for it.
        assert!(steps.iter().all(|step| step.worker_id == 0), "{steps:?}");
        told.send(thread::current().id()).unwrap();
        check_retired(&steps);
    });
    pool.schedule(move || {
        assert_eq!(thread_name(), "rollout-0");
        assert_eq!(worker_id(), 0);
        send.send(thread::current().id()).unwrap();
    });
    pool.wait_count(2).unwrap();
    let threads: Vec<ThreadId> = received.try_iter().collect();
    assert_eq!(threads.len(), 2);
    assert_ne!(threads[0], threads[1]);
    // Not by its own task, which may be the last to hold it.
    pool.end();
}

#[test]
fn a_pool_ends_while_its_threads_are_being_replaced() {
    for round in 0..50 {
        let pool = Arc::new(Pool::new(3).unwrap());
        for _ in 0..4 {
            let inner = Arc::clone(&pool);
            pool.schedule(move || check_retired(&run(&inner, 6, 3, 1)));
        }
        pool.end();
        assert_eq!(pool.count(), 4, "round {round}");
        pool.wait_count(4).unwrap();
    }
}
