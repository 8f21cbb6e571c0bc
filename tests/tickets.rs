//! Tickets: requests that were handed to a pool, among others, in time.

use std::collections::HashSet;
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use rollout_core::simulator::{Readings, Specs};
use rollout_core::{
    Arrays, Ended, Input, Outcome, OutcomeStatus, Output, Request, Simulation, Simulator, Slot,
    Tally,
};
use rollout_pool::{Next, Pauses, Pool, Progress, RunError, Start, Terms, Ticket, WaitError};
use rollout_tests::thread_name;
use rollout_tests::waiting::eventually;

/// A clock, whose steps call the model first, with the time.
struct Clock(f64);

/// What is done in each step.
type Callback = Box<dyn Fn(f64) + Send + Sync>;

impl Simulator for Clock {
    type Model = Callback;

    const SPECS: Specs = Specs {
        full_physics: 1,
        ..Specs::none()
    };

    fn state_size(_: &Callback, _: u32) -> usize {
        1
    }

    fn get_state(&self, _: &Callback, _: u32, state: &mut [f64]) {
        state[0] = self.0;
    }

    fn set_state(&mut self, _: &Callback, _: u32, state: &[f64]) {
        self.0 = state[0];
    }

    fn step(&mut self, model: &Callback, _: Readings<'_>) -> Result<(), String> {
        model(self.0);
        self.0 += 1.0;
        Ok(())
    }

    fn reset(&mut self, _: &Callback) {
        self.0 = 0.0;
    }
}

/// A number that is in no output.
const UNTOUCHED: f64 = -1.0;

/// Rollouts of clocks that begin at 0, and what comes of them.
struct Clocks {
    model: [Callback; 1],
    slots: Vec<Slot<Clock>>,
    nbatch: usize,
    nstep: usize,
    chunk_size: usize,
    state: Vec<f64>,
    outcomes: Vec<Outcome>,
}

impl Clocks {
    fn new(
        [nbatch, nstep]: [usize; 2],
        ndata: usize,
        callback: impl Fn(f64) + Send + Sync + 'static,
    ) -> Self {
        let model: [Callback; 1] = [Box::new(callback)];
        Self {
            slots: (0..ndata)
                .map(|_| Slot::new(Clock(0.0), &model[0]))
                .collect(),
            model,
            nbatch,
            nstep,
            chunk_size: 0,
            state: vec![UNTOUCHED; nbatch * nstep],
            outcomes: vec![Outcome::not_started(); nbatch],
        }
    }

    fn request(&mut self) -> Request<'_> {
        self.state.fill(UNTOUCHED);
        let arrays = Arrays {
            nbatch: self.nbatch,
            nstep: self.nstep,
            chunk_size: self.chunk_size,
            initial_state: Input::shared(&[0.0]),
            state: Some(Output::new(&mut self.state)),
            outcomes: Some(Output::new(&mut self.outcomes)),
            ..Arrays::default()
        };
        let simulation = Simulation::of(&self.model, &mut self.slots).unwrap();
        Request::new(simulation, arrays).unwrap()
    }

    /// Checks that each outcome says what the rows show, and counts them.
    fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for (rollout, outcome) in self.outcomes.iter().enumerate() {
            let rows = &self.state[rollout * self.nstep..][..self.nstep];
            let (valid, rest) = rows.split_at(outcome.steps as usize);
            for (step, time) in valid.iter().enumerate() {
                assert_eq!(*time, (step + 1) as f64, "rollout {rollout}");
            }
            let status = outcome.status;
            if status == OutcomeStatus::Completed as i32 {
                assert_eq!(valid.len(), self.nstep);
                tally.completed += 1;
            } else if status == OutcomeStatus::NotStarted as i32 {
                assert!(valid.is_empty() && rest.iter().all(|time| *time == UNTOUCHED));
            } else {
                let stopped = [OutcomeStatus::Cancelled, OutcomeStatus::OutOfTime];
                assert!(stopped.iter().any(|s| *s as i32 == status));
                assert!(rest.iter().all(|time| time.is_nan()), "rollout {rollout}");
                assert!(!valid.is_empty() && !rest.is_empty());
                tally.stopped += 1;
            }
        }
        tally
    }
}

/// A place where steps wait to be let go.
#[derive(Clone, Default)]
struct Hold(Arc<HoldState>);

#[derive(Default)]
struct HoldState {
    arrived: AtomicUsize,
    open: AtomicUsize,
}

impl Hold {
    /// In a step: says that it is there, and waits.
    fn here(&self) {
        self.0.arrived.fetch_add(1, Ordering::AcqRel);
        eventually("a step is let go", || {
            self.0.open.load(Ordering::Acquire) == 1
        });
    }

    /// Waits until so many have arrived.
    fn reach(&self, count: usize) {
        eventually("a step begins", || {
            self.0.arrived.load(Ordering::Acquire) >= count
        });
    }

    fn open(&self) {
        self.0.open.store(1, Ordering::Release);
    }
}

/// What happened, in its order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<&'static str>>>);

impl Log {
    fn note(&self, what: &'static str) {
        self.0.lock().unwrap().push(what);
    }

    fn take(&self) -> Vec<&'static str> {
        mem::take(&mut *self.0.lock().unwrap())
    }
}

/// Pools of 0, 1, 2 and 8 threads, one after the other.
fn each_pool(test: impl Fn(&Pool)) {
    for nthread in [0, 1, 2, 8] {
        test(&Pool::new(nthread).unwrap());
    }
}

fn within(time: Duration) -> Terms {
    Terms {
        deadline: Some(Instant::now() + time),
        ..Terms::default()
    }
}

fn of_priority(priority: i32) -> Terms {
    Terms {
        priority,
        ..Terms::default()
    }
}

fn cancelled(result: Result<Tally, RunError>) -> Tally {
    match result {
        Err(RunError::Stopped(Ended::Cancelled, tally)) => tally,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_ticket_tells_how_its_request_ends_as_often_as_it_is_asked() {
    each_pool(|pool| {
        let mut clocks = Clocks::new([40, 5], 3, |_| {});
        pool.scope(|scope| {
            let ticket = scope
                .submit(clocks.request(), Terms::default(), Start::AtOnce)
                .unwrap();
            let tally = ticket.wait().unwrap();
            assert!(ticket.is_done());
            assert_eq!(tally.completed, 40);
            assert_eq!(ticket.wait_timeout(Duration::ZERO), Some(Ok(tally)));
            let progress = Progress {
                rollouts: 40,
                steps: 200,
            };
            assert_eq!(ticket.progress(), progress);
            // What is over cannot be cancelled.
            ticket.cancel();
            assert_eq!(ticket.wait().unwrap().completed, 40);
        });
        assert_eq!(clocks.tally().completed, 40);
    });
}

#[test]
fn a_ticket_of_nothing_is_done_at_once() {
    each_pool(|pool| {
        for size in [[0, 5], [0, 0]] {
            let mut clocks = Clocks::new(size, 2, |_| {});
            pool.scope(|scope| {
                let request = clocks.request();
                let ticket = scope.submit(request, Terms::default(), Start::AtOnce);
                assert!(ticket.unwrap().is_done());
            });
        }
    });
}

#[test]
fn r41_a_request_ends_in_time_and_tells_which_steps_are_valid() {
    for nthread in [0, 1, 2, 8] {
        let pool = Pool::new(nthread).unwrap();
        for round in 0..5 {
            let begun = Arc::new(Mutex::new(Vec::<(Instant, ThreadId)>::new()));
            let told = Arc::clone(&begun);
            let mut clocks = Clocks::new([128, 100], nthread + 1, move |_| {
                let now = Instant::now();
                told.lock().unwrap().push((now, thread::current().id()));
                while now.elapsed() < Duration::from_micros(100) {}
            });
            let terms = within(Duration::from_millis(5));
            let result = pool.run_on_terms(&mut clocks.request(), terms);
            let Err(RunError::Stopped(Ended::OutOfTime, tally)) = result else {
                // A machine of 1000 CPUs; or there was no time to begin anything.
                panic!("round {round}: {result:?}");
            };
            let seen = clocks.tally();
            assert_eq!(
                (seen.completed, seen.stopped),
                (tally.completed, tally.stopped)
            );
            // A thread begins one step at most when the time is up: the one that it has
            // just looked at the clock for.
            let deadline = terms.deadline.unwrap();
            let begun = begun.lock().unwrap();
            let late: Vec<_> = begun.iter().filter(|(time, _)| *time > deadline).collect();
            let threads: HashSet<_> = late.iter().map(|(_, thread)| thread).collect();
            assert_eq!(threads.len(), late.len(), "round {round}");
        }
    }
}

#[test]
fn a_request_whose_time_is_up_begins_nothing() {
    each_pool(|pool| {
        let mut clocks = Clocks::new([8, 3], 2, |_| panic!("a step"));
        let late = within(Duration::ZERO);
        let result = pool.run_on_terms(&mut clocks.request(), late);
        let nothing = Err(RunError::Stopped(Ended::OutOfTime, Tally::default()));
        assert_eq!(result, nothing);
        pool.scope(|scope| {
            let request = clocks.request();
            let ticket = scope.submit(request, late, Start::AtOnce).unwrap();
            // Nobody waits, and it is over all the same.
            eventually("the deadline is seen", || ticket.is_done());
            assert_eq!(ticket.wait(), nothing);
        });
        assert_eq!(clocks.tally(), Tally::default());
        // Time enough.
        let hour = within(Duration::from_secs(3600));
        clocks.model = [Box::new(|_| {})];
        let result = pool.run_on_terms(&mut clocks.request(), hour);
        assert_eq!(result.unwrap().completed, 8);
    });
}

#[test]
fn a_request_that_nobody_has_time_for_ends_in_time() {
    let pool = Pool::new(1).unwrap();
    let hold = Hold::default();
    let held = hold.clone();
    let mut long = Clocks::new([1, 1], 1, move |_| held.here());
    let mut short = Clocks::new([4, 1], 1, |_| {});
    pool.scope(|scope| {
        let request = long.request();
        let long = scope
            .submit(request, Terms::default(), Start::AtOnce)
            .unwrap();
        hold.reach(1);
        let terms = within(Duration::from_millis(20));
        let request = short.request();
        let short = scope.submit(request, terms, Start::AtOnce).unwrap();
        eventually("the deadline is seen", || short.is_done());
        let nothing = Err(RunError::Stopped(Ended::OutOfTime, Tally::default()));
        assert_eq!(short.wait(), nothing);
        hold.open();
        assert_eq!(long.wait().unwrap().completed, 1);
    });
}

#[test]
fn a_cancelled_request_ends_at_its_next_step() {
    for nthread in [1, 2, 8] {
        let pool = Pool::new(nthread).unwrap();
        let hold = Hold::default();
        let held = hold.clone();
        let mut clocks = Clocks::new([100, 10], nthread, move |time| {
            if time == 3.0 {
                held.here();
            }
        });
        clocks.chunk_size = 7;
        pool.scope(|scope| {
            let request = clocks.request();
            let ticket = scope
                .submit(request, Terms::default(), Start::AtOnce)
                .unwrap();
            hold.reach(nthread);
            assert_eq!(ticket.wait_timeout(Duration::ZERO), None);
            ticket.cancel();
            assert!(!ticket.is_done());
            hold.open();
            let tally = cancelled(ticket.wait());
            assert_eq!((tally.completed, tally.stopped), (0, nthread));
        });
        assert_eq!(clocks.tally().stopped, nthread);
        let began: Vec<_> = clocks.outcomes.iter().filter(|o| o.steps > 0).collect();
        assert!(began.iter().all(|outcome| outcome.steps == 4));
        // The pool lives, and so do the data.
        clocks.model = [Box::new(|_| {})];
        assert_eq!(pool.run(&mut clocks.request()).unwrap().completed, 100);
    }
}

#[test]
fn what_a_caller_has_left_unfinished_can_be_cancelled() {
    // No thread but this one.
    let pool = Pool::new(0).unwrap();
    let mut clocks = Clocks::new([3, 10], 2, |_| {});
    pool.scope(|scope| {
        let request = clocks.request();
        let ticket = scope
            .submit(request, Terms::default(), Start::AtOnce)
            .unwrap();
        for step in 1..14 {
            assert_eq!(ticket.wait_timeout(Duration::ZERO), None);
            assert_eq!(ticket.progress().steps, step);
        }
        ticket.cancel();
        assert!(ticket.is_done());
        let tally = cancelled(ticket.wait());
        assert_eq!((tally.completed, tally.stopped), (1, 1));
    });
    assert_eq!(clocks.tally().completed, 1);
    assert_eq!(clocks.outcomes[1].steps, 3);
}

#[test]
fn r79_a_wait_that_is_too_short_loses_nothing() {
    let pool = Pool::new(2).unwrap();
    let hold = Hold::default();
    let held = hold.clone();
    let mut clocks = Clocks::new([2, 2], 2, move |_| held.here());
    pool.scope(|scope| {
        let request = clocks.request();
        let ticket = scope
            .submit(request, Terms::default(), Start::AtOnce)
            .unwrap();
        hold.reach(2);
        for _ in 0..3 {
            assert_eq!(ticket.wait_timeout(Duration::from_millis(10)), None);
        }
        hold.open();
        assert_eq!(ticket.wait().unwrap().completed, 2);
    });
    assert_eq!(clocks.tally().completed, 2);
}

#[test]
fn r88_requests_of_different_lengths_each_end_on_their_own() {
    each_pool(|pool| {
        let mut all: Vec<_> = (0..12)
            .map(|i| Clocks::new([1 + i % 5, 3 * i], 1 + i % 3, |_| {}))
            .collect();
        pool.scope(|scope| {
            let tickets: Vec<_> = all
                .iter_mut()
                .map(|clocks| {
                    let nbatch = clocks.nbatch;
                    let request = clocks.request();
                    let terms = of_priority((nbatch % 2) as i32);
                    (scope.submit(request, terms, Start::AtOnce).unwrap(), nbatch)
                })
                .collect();
            for (ticket, nbatch) in tickets.iter().rev() {
                assert_eq!(ticket.wait().unwrap().completed, *nbatch);
            }
        });
        for clocks in &all {
            assert_eq!(clocks.tally().completed, clocks.nbatch);
        }
    });
}

/// Submits a large request, and when all threads are in a rollout of it, a small one.
/// Returns the order in which their rollouts have begun after that.
fn begun_after(nthread: usize, large: Terms, small: Terms) -> Vec<&'static str> {
    let pool = Pool::new(nthread).unwrap();
    let (hold, log) = (Hold::default(), Log::default());
    let (held, told) = (hold.clone(), log.clone());
    let mut many = Clocks::new([20, 1], nthread, move |_| {
        told.note("large");
        held.here();
    });
    // What a thread has claimed is not in the way either.
    many.chunk_size = 5;
    let told = log.clone();
    let mut few = Clocks::new([nthread, 1], nthread, move |_| told.note("small"));
    pool.scope(|scope| {
        let request = many.request();
        let many = scope.submit(request, large, Start::AtOnce).unwrap();
        hold.reach(nthread);
        log.take();
        let request = few.request();
        let few = scope.submit(request, small, Start::AtOnce).unwrap();
        hold.open();
        // (Without taking part.)
        eventually("the small one ends", || few.is_done());
        eventually("the large one ends", || many.is_done());
    });
    assert_eq!(many.tally().completed, 20);
    assert_eq!(few.tally().completed, nthread);
    log.take()
}

#[test]
fn a_request_of_a_higher_priority_is_next() {
    let order = begun_after(1, of_priority(0), of_priority(1));
    assert_eq!(order[0], "small");
    for _ in 0..20 {
        let order = begun_after(2, of_priority(-3), of_priority(2));
        // One of them may have taken both.
        assert!(order[..3].contains(&"small"), "{order:?}");
    }
}

#[test]
fn a_request_of_a_lower_priority_waits() {
    let order = begun_after(1, of_priority(1), of_priority(0));
    assert_eq!(order.last(), Some(&"small"));
}

#[test]
fn equal_requests_share_the_threads() {
    for _ in 0..20 {
        let order = begun_after(2, of_priority(5), of_priority(5));
        let first = order.iter().position(|what| *what == "small").unwrap();
        // Each thread has ended its rollout, and one of them has gone over.
        assert!(first <= 2, "{order:?}");
    }
}

#[test]
fn tasks_come_between_rollouts() {
    let pool = Pool::new(1).unwrap();
    let (hold, log) = (Hold::default(), Log::default());
    let (held, told) = (hold.clone(), log.clone());
    let mut clocks = Clocks::new([10, 1], 1, move |_| {
        told.note("rollout");
        held.here();
    });
    pool.scope(|scope| {
        let request = clocks.request();
        let ticket = scope
            .submit(request, Terms::default(), Start::AtOnce)
            .unwrap();
        hold.reach(1);
        let told = log.clone();
        pool.schedule(move || told.note("task"));
        hold.open();
        pool.wait_count(1).unwrap();
        eventually("the request ends", || ticket.is_done());
    });
    assert_eq!(log.take()[..2], ["rollout", "task"]);
}

#[test]
fn r76_waiting_inside_the_pool_is_refused() {
    let pool = Arc::new(Pool::new(1).unwrap());
    let other = Arc::new(Pool::new(1).unwrap());
    let group = Arc::new(pool.group());
    let refused = Arc::new(AtomicUsize::new(0));
    let asked = {
        let (pool, other, group) = (Arc::clone(&pool), Arc::clone(&other), Arc::clone(&group));
        let refused = Arc::clone(&refused);
        move || {
            let never = pool.count() + 1;
            assert_eq!(pool.wait_count(never), Err(WaitError::WouldDeadlock));
            assert_eq!(group.wait_count(1), Err(WaitError::WouldDeadlock));
            let mut clocks = Clocks::new([2, 1], 1, |_| {});
            pool.scope(|scope| {
                let request = clocks.request();
                let ticket = scope
                    .submit(request, Terms::default(), Start::AtOnce)
                    .unwrap();
                if !ticket.is_done() {
                    let result = ticket.wait();
                    assert!(result == Err(RunError::WouldDeadlock) || ticket.is_done());
                }
            });
            // Another pool is another matter, and a call that works itself is none.
            let before = other.count();
            other.schedule(|| {});
            other.wait_count(before + 1).unwrap();
            other.scope(|scope| {
                let request = clocks.request();
                let ticket = scope
                    .submit(request, Terms::default(), Start::AtOnce)
                    .unwrap();
                assert_eq!(ticket.wait().unwrap().completed, 2);
            });
            assert_eq!(pool.run(&mut clocks.request()).unwrap().completed, 2);
            refused.fetch_add(1, Ordering::Relaxed);
        }
    };
    // In a task.
    let task = asked.clone();
    pool.schedule(task);
    pool.wait_count(1).unwrap();
    pool.reset_count();
    // In a callback, of the caller and of a worker.
    let mut outer = Clocks::new([6, 1], 2, move |_| asked());
    assert_eq!(pool.run(&mut outer.request()).unwrap().completed, 6);
    assert_eq!(refused.load(Ordering::Relaxed), 7);
    // Here it is not.
    group.schedule(|| {});
    group.wait_count(1).unwrap();
}

#[test]
fn a_ticket_that_is_dropped_in_flight_leaves_nothing_behind() {
    each_pool(|pool| {
        for start in [Start::AtOnce, Start::Attended] {
            let mut clocks = Clocks::new([50, 20], 3, |_| thread::yield_now());
            for round in 0..20 {
                pool.scope(|scope| {
                    let request = clocks.request();
                    let ticket = scope.submit(request, Terms::default(), start).unwrap();
                    for _ in 0..round {
                        ticket.wait_timeout(Duration::ZERO);
                    }
                });
                clocks.tally();
            }
            assert_eq!(pool.run(&mut clocks.request()).unwrap().completed, 50);
        }
    });
}

#[test]
fn a_scope_ends_what_was_leaked_in_it() {
    each_pool(|pool| {
        let mut clocks = Clocks::new([50, 20], 3, |_| thread::yield_now());
        let mut other = Clocks::new([50, 20], 3, |_| thread::yield_now());
        let fails = AssertUnwindSafe(|| {
            pool.scope(|scope| {
                let request = clocks.request();
                mem::forget(scope.submit(request, Terms::default(), Start::AtOnce));
                let request = other.request();
                let _ticket = scope.submit(request, Terms::default(), Start::AtOnce);
                panic::resume_unwind(Box::new("the body fails"));
            });
        });
        assert!(panic::catch_unwind(fails).is_err());
        for clocks in [&mut clocks, &mut other] {
            clocks.tally();
            assert_eq!(pool.run(&mut clocks.request()).unwrap().completed, 50);
        }
    });
}

#[test]
fn a_pool_that_ends_runs_its_tasks_and_cancels_its_requests() {
    for nthread in [0, 1, 2, 8] {
        let pool = Pool::new(nthread).unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        let mut clocks = Clocks::new([1000, 1000], nthread.max(1), |_| {
            thread::sleep(Duration::from_micros(50));
        });
        let ran_before = Arc::clone(&ran);
        pool.scope(|scope| {
            let request = clocks.request();
            let ticket = scope
                .submit(request, Terms::default(), Start::AtOnce)
                .unwrap();
            ticket.wait_timeout(Duration::from_millis(1));
            let inner = ran_before.clone();
            pool.schedule(move || {
                inner.fetch_add(1, Ordering::Relaxed);
            });
            pool.end();
            assert!(ticket.is_done());
            cancelled(ticket.wait());
        });
        clocks.tally();
        assert_eq!(ran.load(Ordering::Relaxed), 1);
        // Nobody is left; what comes late is cancelled at once.
        pool.scope(|scope| {
            let request = clocks.request();
            let ticket = scope
                .submit(request, Terms::default(), Start::AtOnce)
                .unwrap();
            assert_eq!(cancelled(ticket.wait()), Tally::default());
        });
    }
}

#[test]
fn a_ticket_can_be_dropped_by_its_own_rollouts() {
    let pool = Pool::new(1).unwrap();
    let mine: Arc<Mutex<Option<Ticket<'static>>>> = Arc::default();
    let dropped = Arc::new(AtomicUsize::new(0));
    let (taken, told) = (Arc::clone(&mine), Arc::clone(&dropped));
    let clocks = Clocks::new([5, 5], 1, move |_| {
        if let Some(ticket) = taken.lock().unwrap().take() {
            drop(ticket);
            told.store(1, Ordering::Release);
        }
    });
    // It is never known when it has ended, so this must live for ever.
    let request = Box::leak(Box::new(clocks)).request();
    let mut place = mine.lock().unwrap();
    // SAFETY: what the request borrows is never freed.
    let ticket = unsafe { pool.submit(request, Terms::default(), Start::AtOnce) };
    *place = Some(ticket.unwrap());
    drop(place);
    eventually("the ticket is dropped", || {
        dropped.load(Ordering::Acquire) == 1
    });
}

#[test]
fn groups_have_counts_of_their_own() {
    each_pool(|pool| {
        let groups = [pool.group(), pool.group()];
        thread::scope(|scope| {
            for group in &groups {
                scope.spawn(|| {
                    for round in 1..=50 {
                        group.schedule(|| {});
                        group.schedule(|| {});
                        if pool.num_threads() > 0 {
                            group.wait_count(2 * round).unwrap();
                        }
                        assert_eq!(group.count(), 2 * round);
                    }
                });
            }
        });
        assert_eq!(pool.count(), 0);
        groups[0].reset_count();
        assert_eq!((groups[0].count(), groups[1].count()), (0, 100));
        groups[1].schedule(|| panic!("a task fails"));
        let told = groups[1].wait_count(101);
        if pool.num_threads() > 0 {
            assert_eq!(
                told,
                Err(WaitError::TaskPanicked("a task fails".to_owned()))
            );
        }
        assert_eq!(pool.wait_count(0), Ok(()));
    });
}

#[test]
fn workers_count_what_they_do() {
    let pool = Pool::new(2).unwrap();
    for _ in 0..10 {
        pool.schedule(|| thread::sleep(Duration::from_millis(1)));
    }
    pool.wait_count(10).unwrap();
    let mut clocks = Clocks::new([30, 4], 2, |_| {});
    pool.scope(|scope| {
        let request = clocks.request();
        let ticket = scope
            .submit(request, Terms::default(), Start::AtOnce)
            .unwrap();
        eventually("the request ends", || ticket.is_done());
    });
    let total = |stats: &[rollout_pool::WorkerStats]| {
        let sum = |part: fn(&rollout_pool::WorkerStats) -> u64| stats.iter().map(part).sum::<u64>();
        [sum(|s| s.tasks), sum(|s| s.rollouts), sum(|s| s.steps)]
    };
    // (A worker counts when it has let go.)
    eventually("all is counted", || total(&pool.stats()) == [10, 30, 120]);
    let stats = pool.stats();
    let busy: Duration = stats.iter().map(|stats| stats.busy).sum();
    assert!(busy >= Duration::from_millis(10), "{stats:?}");
    let idle: Duration = stats.iter().map(|stats| stats.idle).sum();
    assert!(idle > Duration::ZERO);
}

#[test]
fn callers_take_no_part_in_the_rollouts_of_threads_on_cpus() {
    // Whichever the process may use.
    let pool = (0..4096).find_map(|cpu| Pool::with_cpus(&[cpu]).ok());
    let pool = pool.expect("there is a CPU to run on");
    let threads: Arc<Mutex<HashSet<String>>> = Arc::default();
    let seen = Arc::clone(&threads);
    let mut clocks = Clocks::new([10, 3], 2, move |_| {
        seen.lock().unwrap().insert(thread_name());
    });
    for _ in 0..10 {
        assert_eq!(pool.run(&mut clocks.request()).unwrap().completed, 10);
        for start in [Start::AtOnce, Start::Attended] {
            pool.scope(|scope| {
                let request = clocks.request();
                let ticket = scope.submit(request, Terms::default(), start).unwrap();
                assert_eq!(ticket.wait().unwrap().completed, 10);
            });
        }
    }
    let only = HashSet::from(["rollout-0".to_owned()]);
    assert_eq!(*threads.lock().unwrap(), only);
    // But a task of the pool's own that runs a request can only do it itself.
    let pool = Arc::new(pool);
    let inner = Arc::clone(&pool);
    pool.schedule(move || {
        assert_eq!(inner.run(&mut clocks.request()).unwrap().completed, 10);
    });
    pool.wait_count(1).unwrap();
    pool.end();
}

/// Pauses of a caller after each step.
fn pauses(pause: &mut dyn FnMut(Progress) -> Next) -> Pauses<'_> {
    Pauses {
        every: Duration::ZERO,
        counted: true,
        pause,
    }
}

#[test]
fn a_caller_that_pauses_gets_the_same_and_is_told_how_far_it_has_come() {
    each_pool(|pool| {
        for ndata in [1, 3] {
            let mut plain = Clocks::new([8, 5], ndata, |_| {});
            let expected = pool.run(&mut plain.request());
            let mut clocks = Clocks::new([8, 5], ndata, |_| {});
            let mut told = Vec::new();
            let mut pause = |done: Progress| {
                told.push((done.rollouts, done.steps));
                Next::GoOn
            };
            let terms = Terms::default();
            let result = pool.run_with_pauses(&mut clocks.request(), terms, pauses(&mut pause));
            assert_eq!(result, expected);
            assert_eq!(clocks.state, plain.state);
            assert_eq!(clocks.outcomes, plain.outcomes);
            assert!(told.is_sorted());
            assert_eq!(told.last(), Some(&(8, 40)));
        }
    });
}

#[test]
fn a_caller_can_cancel_in_a_pause() {
    each_pool(|pool| {
        for ndata in [1, 3] {
            // Without an end, if it were not cancelled.
            let mut clocks = Clocks::new([ndata, 1_000_000], ndata, |_| {
                thread::sleep(Duration::from_micros(1));
            });
            let mut count = 0;
            let mut pause = |_| {
                count += 1;
                if count < 3 { Next::GoOn } else { Next::Cancel }
            };
            let terms = Terms::default();
            let result = pool.run_with_pauses(&mut clocks.request(), terms, pauses(&mut pause));
            let Err(RunError::Stopped(Ended::Cancelled, tally)) = result else {
                panic!("{result:?}");
            };
            assert_eq!(tally.completed, 0);
            assert_eq!(count, 3);
            assert_eq!(clocks.tally().stopped, tally.stopped);
        }
    });
}

#[test]
fn who_waits_is_told_of_what_another_caller_has_left_between_two_rollouts() {
    // One step each, so that whoever pauses has ended a rollout, and leaves no place behind.
    for nthread in [0, 1] {
        let pool = Pool::new(nthread).unwrap();
        for _ in 0..50 {
            let hold = Hold::default();
            let held = hold.clone();
            let mut clocks = Clocks::new([20, 1], 1, move |_| held.here());
            clocks.chunk_size = 1;
            pool.scope(|scope| {
                let request = clocks.request();
                let terms = Terms::default();
                let ticket = scope.submit(request, terms, Start::Attended).unwrap();
                thread::scope(|threads| {
                    let ticket = &ticket;
                    // In a rollout, and out of time when that ends.
                    threads.spawn(move || ticket.wait_timeout(Duration::ZERO));
                    hold.reach(1);
                    // It has no data to work on meanwhile.
                    let waiter = threads.spawn(move || ticket.wait().unwrap().completed);
                    thread::sleep(Duration::from_millis(1));
                    hold.open();
                    assert_eq!(waiter.join().unwrap(), 20);
                });
            });
        }
    }
}

#[test]
fn a_panic_in_a_pause_ends_the_request_first() {
    each_pool(|pool| {
        for ndata in [1, 3] {
            let mut clocks = Clocks::new([ndata, 1_000_000], ndata, |_| {
                thread::sleep(Duration::from_micros(1));
            });
            let mut pause = |_| -> Next { panic::resume_unwind(Box::new("in a pause")) };
            let call = AssertUnwindSafe(|| {
                let terms = Terms::default();
                pool.run_with_pauses(&mut clocks.request(), terms, pauses(&mut pause))
            });
            let payload = panic::catch_unwind(call).unwrap_err();
            assert_eq!(payload.downcast_ref(), Some(&"in a pause"));
            assert_eq!(clocks.tally().completed, 0);
            clocks.model = [Box::new(|_| {})];
            clocks.nstep = 1;
            clocks.state.truncate(ndata);
            let result = pool.run(&mut clocks.request());
            assert_eq!(result.unwrap().completed, ndata);
        }
    });
}

#[test]
fn time_is_heeded_where_no_steps_are_made() {
    each_pool(|pool| {
        let mut clocks = Clocks::new([1, 0], 3, |_| {});
        let terms = within(Duration::from_millis(5));
        pool.scope(|scope| {
            let arrays = Arrays {
                nbatch: 20_000_000,
                nstep: 0,
                initial_state: Input::shared(&[0.0]),
                ..Arrays::default()
            };
            let simulation = Simulation::of(&clocks.model, &mut clocks.slots).unwrap();
            let request = Request::new(simulation, arrays).unwrap();
            let ticket = scope.submit(request, terms, Start::AtOnce).unwrap();
            let Err(RunError::Stopped(Ended::OutOfTime, tally)) = ticket.wait() else {
                panic!("twenty million rollouts in 5 ms");
            };
            assert!(tally.completed < 20_000_000);
        });
    });
}

#[test]
fn a_thread_that_was_counted_on_for_two_things_wakes_another_for_one_of_them() {
    let pool = Pool::new(2).unwrap();
    for _ in 0..300 {
        // One worker looks out for more, and the other one sleeps.
        let before = pool.count();
        pool.schedule(|| {});
        pool.wait_count(before + 1).unwrap();
        let hold = Hold::default();
        let held = hold.clone();
        let mut clocks = Clocks::new([1, 3], 1, |_| {});
        pool.scope(|scope| {
            let request = clocks.request();
            let ticket = scope
                .submit(request, Terms::default(), Start::AtOnce)
                .unwrap();
            pool.schedule(move || held.here());
            // Without taking part; the task ends when this is done.
            eventually("a sleeping thread begins", || ticket.is_done());
        });
        hold.open();
        pool.wait_count(before + 2).unwrap();
    }
}

#[test]
fn a_pool_that_a_callback_ends_ends_what_others_have_left() {
    let pool = Arc::new(Pool::new(0).unwrap());
    let mut left = Clocks::new([3, 5], 1, |_| {});
    pool.scope(|scope| {
        let request = left.request();
        let ticket = scope
            .submit(request, Terms::default(), Start::AtOnce)
            .unwrap();
        assert_eq!(ticket.wait_timeout(Duration::ZERO), None);
        let inner = Arc::clone(&pool);
        let mut ends = Clocks::new([1, 1], 1, move |_| inner.end());
        pool.run(&mut ends.request()).unwrap();
        assert!(ticket.is_done());
        cancelled(ticket.wait());
    });
    left.tally();
}
