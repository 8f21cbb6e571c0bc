//! The pool in every order that its threads can come in, within bounds (loom).
//!
//! `cargo xtask loom` runs this. What it runs is the pool itself, on a machine that is a
//! model (`sync/model.rs`): a few threads, a few rollouts of a step or two. Each model
//! says what must hold at its end, and loom, that no thread waits for ever, and that what
//! one thread reads another has written before.

use std::env;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use loom::cell::UnsafeCell;
use rollout_core::simulator::{Fixed, Readings, Specs};
use rollout_core::trap::HOOKS_RETIRE_THREAD;
use rollout_core::{
    Arrays, Data, Ended, Engine, Model, Outcome, OutcomeStatus, Output, Request, Simulation,
    Simulator, Slot, Tally,
};

use crate::pool::UNKNOWN;
use crate::spawn::tests::REFUSE;
use crate::sync::{Gauge, LocalCell, Ordering, WordLock, now};
use crate::{Pool, RunError, Start, Terms, Ticket};

/// Runs a model in every order with at most so many preemptions (threads that are
/// stopped where they need not wait; without a number, any), and prints how many orders
/// that were.
fn explore(name: &str, preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let orders = Arc::new(Gauge::default());
    let counted = Arc::clone(&orders);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = match env::var("ROLLOUT_PREEMPTIONS") {
        Ok(number) => number.parse().ok(),
        Err(_) => preemptions,
    };
    builder.max_branches = 20_000;
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let bound = match builder.preemption_bound {
        Some(bound) => format!("at most {bound} preemptions"),
        None => "any preemptions".to_owned(),
    };
    let orders = orders.load(Ordering::Relaxed);
    println!("model {name}: {orders} interleavings, {bound}");
}

/// A number in a place that loom watches: two that use it at once fail.
#[derive(Default)]
struct Watched(UnsafeCell<u32>);

// SAFETY: loom says so, or the model fails.
unsafe impl Sync for Watched {}

impl Watched {
    fn get(&self) -> u32 {
        // SAFETY: as above.
        self.0.with(|number| unsafe { *number })
    }

    fn add(&self) {
        // SAFETY: as above.
        self.0.with_mut(|number| unsafe { *number += 1 });
    }
}

/// A simulator that counts its steps.
struct Counter(Watched);

/// What the counter does at its steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Plan {
    /// The first step of this rollout fails.
    fails: bool,
    /// The system has no thread in place of the one that fails.
    refused: bool,
}

impl Simulator for Counter {
    type Model = Plan;
    const SPECS: Specs = Specs {
        full_physics: 1,
        ..Specs::none()
    };
    fn state_size(_: &Plan, _: u32) -> usize {
        0
    }
    fn get_state(&self, _: &Plan, _: u32, _: &mut [f64]) {}
    fn set_state(&mut self, _: &Plan, _: u32, _: &[f64]) {}
    fn step(&mut self, plan: &Plan, _: Readings<'_>) -> Result<(), String> {
        self.0.add();
        if plan.refused {
            REFUSE.set(true);
        }
        match plan.fails {
            true => Err("as planned".to_owned()),
            false => Ok(()),
        }
    }
    fn reset(&mut self, _: &Plan) {}
}

/// A request, and what it needs.
struct Work {
    plans: Vec<Plan>,
    slots: Vec<Slot<Counter>>,
    outcomes: Vec<Outcome>,
    nstep: usize,
    retires: bool,
}

impl Work {
    /// As many rollouts as plans.
    fn new(plans: &[Plan], nstep: usize, ndata: usize) -> Self {
        Self {
            slots: (0..ndata)
                .map(|_| Slot::new(Counter(Watched::default()), &plans[0]))
                .collect(),
            outcomes: vec![Outcome::not_started(); plans.len()],
            plans: plans.to_vec(),
            nstep,
            retires: false,
        }
    }

    /// Rollouts of which none fails.
    fn good(nbatch: usize, nstep: usize, ndata: usize) -> Self {
        Self::new(&vec![Plan::default(); nbatch], nstep, ndata)
    }

    /// A thread that has seen an error must go.
    fn retiring(plans: &[Plan], ndata: usize) -> Self {
        Self {
            retires: true,
            ..Self::new(plans, 1, ndata)
        }
    }

    fn with<R>(&mut self, test: impl FnOnce(Request<'_>) -> R) -> R {
        let fixed: Vec<_> = self.plans.iter().map(Fixed::<Counter>::new).collect();
        let mut engine = Engine::of::<Counter>();
        engine.hooks.flags = if self.retires { HOOKS_RETIRE_THREAD } else { 0 };
        let models: Vec<_> = fixed.iter().map(Model::of).collect();
        let data: Vec<_> = self.slots.iter_mut().map(Data::of).collect();
        let arrays = Arrays {
            nbatch: self.plans.len(),
            nstep: self.nstep,
            outcomes: Some(Output::new(&mut self.outcomes)),
            ..Arrays::default()
        };
        // SAFETY: the table is that of these models and data, which are borrowed here.
        let simulation = unsafe { Simulation::new(&engine, models, data) };
        test(Request::new(simulation, arrays).unwrap())
    }

    /// What the outcomes say. Whoever asks must have been told that all is over: this reads
    /// what the steps have written.
    fn check(&self, result: &Result<Tally, RunError>) {
        let count = |status: OutcomeStatus| {
            let outcomes = self.outcomes.iter();
            outcomes
                .filter(|outcome| outcome.status == status as i32)
                .count()
        };
        let steps: u32 = self.slots.iter().map(|slot| slot.simulator().0.get()).sum();
        let failed = count(OutcomeStatus::EngineError);
        let valid: u32 = self
            .outcomes
            .iter()
            .map(|outcome| outcome.steps as u32)
            .sum();
        assert_eq!(steps, valid + failed as u32);
        let tally = match result {
            Ok(tally) | Err(RunError::Stopped(_, tally) | RunError::NoThread(_, tally)) => tally,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(tally.completed, count(OutcomeStatus::Completed));
        assert_eq!(tally.failed, failed);
        let stopped = count(OutcomeStatus::Cancelled) + count(OutcomeStatus::OutOfTime);
        assert_eq!(tally.stopped, stopped);
        if result.is_ok() {
            assert_eq!(tally.total(), self.plans.len());
        }
    }
}

#[test]
fn the_lock_excludes_and_leaves_no_sleeper() {
    lock("lock, two threads", None, 1);
    lock("lock, three threads", Some(4), 2);
}

fn lock(name: &str, preemptions: Option<usize>, others: u32) {
    explore(name, preemptions, move || {
        let total = Arc::new(WordLock::<Watched>::default());
        let threads: Vec<_> = (0..others)
            .map(|_| {
                let total = Arc::clone(&total);
                loom::thread::spawn(move || total.lock().add())
            })
            .collect();
        total.lock().add();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(total.lock().get(), others + 1);
    });
}

#[test]
fn tasks_are_run_and_waited_for() {
    explore("task", Some(4), || {
        let pool = Pool::new(1).unwrap();
        let ran = Arc::new(Watched::default());
        let told = Arc::clone(&ran);
        pool.schedule(move || told.add());
        pool.wait_count(1).unwrap();
        assert_eq!(ran.get(), 1);
    });
}

#[test]
fn a_worker_that_waits_in_vain_ends_with_its_pool() {
    explore("end", None, || {
        let pool = Pool::new(1).unwrap();
        let group = pool.group();
        let ran = Arc::new(Watched::default());
        let told = Arc::clone(&ran);
        group.schedule(move || told.add());
        drop(pool);
        assert_eq!(ran.get(), 1);
        assert_eq!(group.count(), 1);
    });
}

/// A call that wakes a worker, or does not.
fn call(name: &'static str, nanos: u64, preemptions: Option<usize>) {
    explore(name, preemptions, move || {
        let pool = Pool::new(1).unwrap();
        pool.know_step_time(nanos);
        let mut work = Work::good(2, 1, 2);
        let result = work.with(|mut request| pool.run(&mut request));
        work.check(&result);
        assert_eq!(result.unwrap().completed, 2);
    });
}

#[test]
fn a_worker_helps_a_caller() {
    call("call", UNKNOWN, Some(3));
}

#[test]
fn a_worker_that_is_not_woken_may_help_a_caller() {
    call("quiet call", 1, Some(3));
}

#[test]
fn two_workers_help_a_caller() {
    explore("call, two workers", Some(2), || {
        let pool = Pool::new(2).unwrap();
        let mut work = Work::good(2, 1, 2);
        let result = work.with(|mut request| pool.run(&mut request));
        work.check(&result);
        assert_eq!(result.unwrap().completed, 2);
    });
}

#[test]
fn two_callers_share_a_worker() {
    explore("two calls", Some(2), || {
        let pool = Arc::new(Pool::new(1).unwrap());
        let other = Arc::clone(&pool);
        let run = |pool: &Pool| {
            let mut work = Work::good(2, 1, 2);
            let result = work.with(|mut request| pool.run(&mut request));
            work.check(&result);
            assert_eq!(result.unwrap().completed, 2);
        };
        let thread = loom::thread::spawn(move || run(&other));
        run(&pool);
        thread.join().unwrap();
    });
}

/// Submits two rollouts and does something with the ticket before it is dropped.
fn ticket(
    name: &'static str,
    preemptions: Option<usize>,
    nstep: usize,
    start: Start,
    attend: fn(&Ticket<'_>) -> Option<Result<Tally, RunError>>,
) {
    explore(name, preemptions, move || {
        let pool = Pool::new(1).unwrap();
        let mut work = Work::good(2, nstep, 1);
        let result = work.with(|request| {
            // SAFETY: it is dropped.
            let ticket = unsafe { pool.submit(request, Terms::default(), start) }.unwrap();
            attend(&ticket)
        });
        // (A ticket that was dropped has not told.)
        if let Some(result) = &result {
            work.check(result);
        } else {
            for outcome in &work.outcomes {
                assert!(outcome.status != OutcomeStatus::EngineError as i32);
            }
        }
    });
}

#[test]
fn a_ticket_is_waited_for() {
    ticket("ticket", Some(3), 1, Start::AtOnce, |ticket| {
        let result = ticket.wait();
        assert_eq!(result.as_ref().unwrap().completed, 2);
        assert_eq!(ticket.wait(), result);
        Some(result)
    });
}

#[test]
fn a_ticket_is_done_when_it_says_so() {
    ticket("polled ticket", Some(3), 1, Start::AtOnce, |ticket| {
        while !ticket.is_done() {
            loom::thread::yield_now();
        }
        ticket.wait_timeout(Duration::ZERO)
    });
}

#[test]
fn a_ticket_is_waited_for_in_slices() {
    // Each makes a step, and leaves a rollout in its middle for whoever comes.
    ticket("sliced ticket", Some(3), 2, Start::Attended, |ticket| {
        let first = ticket.wait_timeout(Duration::ZERO);
        Some(first.unwrap_or_else(|| ticket.wait()))
    });
}

#[test]
fn a_ticket_is_cancelled() {
    ticket("cancelled ticket", Some(3), 2, Start::AtOnce, |ticket| {
        ticket.wait_timeout(Duration::ZERO);
        ticket.cancel();
        Some(ticket.wait())
    });
}

#[test]
fn a_ticket_is_dropped() {
    ticket("dropped ticket", Some(3), 1, Start::AtOnce, |_| None);
}

#[test]
fn a_ticket_that_was_left_is_dropped() {
    ticket(
        "left and dropped ticket",
        Some(3),
        2,
        Start::Attended,
        |ticket| {
            ticket.wait_timeout(Duration::ZERO);
            None
        },
    );
}

/// Uses a ticket on another thread and on this one, and returns what came of this one's.
fn together<R: 'static>(
    ticket: &Ticket<'_>,
    there: fn(&Ticket<'_>) -> R,
    here: impl FnOnce() -> Result<Tally, RunError>,
) -> Result<Tally, RunError> {
    // SAFETY: the thread has ended at the end of this.
    let shared = unsafe { mem::transmute::<&Ticket<'_>, &'static Ticket<'static>>(ticket) };
    let thread = loom::thread::spawn(move || there(shared));
    let result = here();
    thread.join().unwrap();
    result
}

#[test]
fn two_threads_wait_for_a_ticket_and_one_cancels_it() {
    explore("shared ticket", Some(2), || {
        let pool = Pool::new(1).unwrap();
        let mut work = Work::good(2, 1, 2);
        let result = work.with(|request| {
            // SAFETY: it is dropped.
            let ticket = unsafe { pool.submit(request, Terms::default(), Start::AtOnce) };
            let ticket = ticket.unwrap();
            let there = |ticket: &Ticket<'_>| {
                ticket.cancel();
                ticket.wait()
            };
            together(&ticket, there, || ticket.wait())
        });
        work.check(&result);
    });
}

#[test]
fn a_ticket_whose_time_is_up_ends_by_itself() {
    explore("late ticket", Some(3), || {
        let pool = Pool::new(1).unwrap();
        let mut work = Work::good(2, 1, 1);
        let terms = Terms {
            deadline: Some(now()),
            ..Terms::default()
        };
        let result = work.with(|request| {
            // SAFETY: it is dropped.
            let ticket = unsafe { pool.submit(request, terms, Start::AtOnce) }.unwrap();
            while !ticket.is_done() {
                loom::thread::yield_now();
            }
            ticket.wait()
        });
        work.check(&result);
        let nothing = RunError::Stopped(Ended::OutOfTime, Tally::default());
        assert_eq!(result, Err(nothing));
    });
}

#[test]
fn a_worker_moves_over_to_a_request_of_a_higher_priority() {
    explore("priorities", Some(3), || {
        let pool = Pool::new(1).unwrap();
        let (mut low, mut high) = (Work::good(2, 1, 1), Work::good(1, 1, 1));
        let (first, second) = low.with(|low| {
            high.with(|high| {
                // SAFETY: they are dropped.
                let [low, high] = [(low, 0), (high, 1)].map(|(request, priority)| unsafe {
                    let terms = Terms {
                        deadline: None,
                        priority,
                    };
                    pool.submit(request, terms, Start::AtOnce).unwrap()
                });
                let high = high.wait();
                (low.wait(), high)
            })
        });
        low.check(&first);
        high.check(&second);
        assert!(first.is_ok() && second.is_ok());
    });
}

#[test]
fn a_task_comes_between_two_rollouts() {
    explore("task among rollouts", Some(3), || {
        let pool = Pool::new(1).unwrap();
        let mut work = Work::good(2, 1, 1);
        let result = work.with(|request| {
            // SAFETY: it is dropped.
            let ticket = unsafe { pool.submit(request, Terms::default(), Start::AtOnce) };
            pool.schedule(|| {});
            pool.wait_count(1).unwrap();
            ticket.unwrap().wait()
        });
        work.check(&result);
    });
}

#[test]
fn a_pool_ends_under_its_ticket() {
    explore("pool that ends", Some(3), || {
        let pool = Pool::new(1).unwrap();
        let mut work = Work::good(2, 2, 1);
        let result = work.with(|request| {
            // SAFETY: it is dropped.
            let ticket = unsafe { pool.submit(request, Terms::default(), Start::Attended) };
            let ticket = ticket.unwrap();
            ticket.wait_timeout(Duration::ZERO);
            pool.end();
            assert!(ticket.is_done());
            ticket.wait()
        });
        work.check(&result);
    });
}

#[test]
fn two_threads_end_a_pool() {
    explore("pool that two end", Some(3), || {
        let pool = Arc::new(Pool::new(1).unwrap());
        let other = Arc::clone(&pool);
        let thread = loom::thread::spawn(move || other.end());
        pool.end();
        thread.join().unwrap();
    });
}

#[test]
fn a_task_spends_the_last_worker() {
    explore("last worker spent", Some(2), || {
        let pool = Arc::new(Pool::new(1).unwrap());
        let inner = Arc::clone(&pool);
        pool.schedule(move || {
            let mut work = Work::retiring(&[REFUSED], 1);
            let result = work.with(|mut request| inner.run(&mut request));
            work.check(&result);
        });
        // The caller cannot go on either, and finds that out before or after.
        let mut work = Work::retiring(&[REFUSED, GOOD], 2);
        let result = work.with(|mut request| pool.run(&mut request));
        work.check(&result);
        pool.end();
    });
}

#[test]
fn a_waiter_that_cannot_go_on_is_told_when_the_last_other_one_has_left() {
    explore("last waiter left", Some(2), || {
        let pool = Arc::new(Pool::new(1).unwrap());
        let inner = Arc::clone(&pool);
        pool.schedule(move || {
            let mut work = Work::retiring(&[REFUSED], 1);
            work.with(|mut request| inner.run(&mut request)).unwrap();
        });
        pool.wait_count(1).unwrap();
        let mut work = Work::retiring(&[REFUSED, GOOD], 2);
        let result = work.with(|request| {
            // SAFETY: it is dropped.
            let ticket = unsafe { pool.submit(request, Terms::default(), Start::AtOnce) };
            let ticket = ticket.unwrap();
            together(
                &ticket,
                |ticket| ticket.wait_timeout(Duration::ZERO),
                || ticket.wait(),
            )
        });
        work.check(&result);
        pool.end();
    });
}

const FAILS: Plan = Plan {
    fails: true,
    refused: false,
};
const REFUSED: Plan = Plan {
    fails: true,
    refused: true,
};
const GOOD: Plan = Plan {
    fails: false,
    refused: false,
};

#[test]
fn a_worker_is_replaced() {
    explore("worker replaced", Some(3), || {
        let pool = Pool::new(1).unwrap();
        let mut work = Work::retiring(&[FAILS, GOOD], 1);
        let result = work.with(|request| {
            // SAFETY: it is dropped.
            let ticket = unsafe { pool.submit(request, Terms::default(), Start::AtOnce) };
            let ticket = ticket.unwrap();
            while !ticket.is_done() {
                loom::thread::yield_now();
            }
            ticket.wait()
        });
        work.check(&result);
        assert_eq!(result.unwrap().completed, 1);
    });
}

#[test]
fn a_caller_has_a_thread_stand_in() {
    explore("caller replaced", Some(3), || {
        let pool = Pool::new(1).unwrap();
        let mut work = Work::retiring(&[FAILS, GOOD], 2);
        let result = work.with(|mut request| pool.run(&mut request));
        work.check(&result);
        assert_eq!(result.unwrap().completed, 1);
    });
}

#[test]
fn where_no_thread_is_to_be_had_a_request_ends_all_the_same() {
    explore("threads refused", Some(2), || {
        let pool = Pool::new(1).unwrap();
        let mut work = Work::retiring(&[REFUSED, REFUSED], 2);
        let result = work.with(|mut request| pool.run(&mut request));
        work.check(&result);
        assert!(result.is_ok() || matches!(result, Err(RunError::NoThread(..))));
    });
}
