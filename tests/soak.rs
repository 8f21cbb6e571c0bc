//! Everything at once, for a while: four threads that use two pools in every way there is,
//! at random, and a serial loop that says what should have come of it.
//!
//! `cargo xtask soak --seconds N` runs it for longer. (`ROLLOUT_SOAK_SECONDS`.)

use std::env;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rollout_core::simulator::Fixed;
use rollout_core::trap::HOOKS_RETIRE_THREAD;
use rollout_core::{
    Arrays, Data, Ended, Engine, Fill, Input, Model, Outcome, OutcomeStatus, Output, Request,
    Simulation, Slot, Tally,
};
use rollout_pool::{Group, Pool, RunError, Start, Terms, Ticket, WaitError};
use rollout_tests::toy::{self, Toy, spec};
use rollout_tests::waiting::eventually;
use rollout_tests::{Numbers, bits, reference};

const NSTATE: usize = 7;
const NU: usize = 2;
const UNTOUCHED: f64 = 123.0;

/// What has been done, so that a soak in which nothing happens is seen.
#[derive(Default)]
struct Done {
    rollouts: AtomicU64,
    stopped: AtomicU64,
    failed: AtomicU64,
    tasks: AtomicU64,
    panics: AtomicU64,
    dropped: AtomicU64,
    refused: AtomicU64,
}

fn count(place: &AtomicU64, number: usize) {
    place.fetch_add(number as u64, Ordering::Relaxed);
}

/// A request of the toy, and what it needs.
struct Work {
    model: toy::Model,
    nbatch: usize,
    nstep: usize,
    chunk_size: usize,
    fill: Fill,
    start: Vec<f64>,
    control: Vec<f64>,
    state: Vec<f64>,
    outcomes: Vec<Outcome>,
    slots: Vec<Slot<Toy>>,
}

impl Work {
    /// At random; some rollouts fail, and if `retires`, the threads that see it must go.
    fn new(numbers: &mut Numbers, retires: bool) -> Self {
        let model = toy::Model {
            retires,
            work: numbers.below(200) as u32,
            stiffness: numbers.unit(),
            hidden_state: numbers.below(4) == 0,
            ..toy::Model::default()
        };
        let (nbatch, nstep) = (numbers.below(30), numbers.below(20));
        let mut control = numbers.units(nbatch * nstep * NU);
        // A thread costs more than a rollout.
        let fails = if retires { 20 } else { 8 };
        for rollout in 0..if nstep == 0 { 0 } else { nbatch } {
            if numbers.below(fails) == 0 {
                let step = rollout * nstep + numbers.below(nstep);
                let how = [toy::FAIL, toy::FAIL, toy::PANIC, f64::NAN][numbers.below(4)];
                control[step * NU] = how;
            }
        }
        let ndata = 1 + numbers.below(5);
        Self {
            nbatch,
            nstep,
            chunk_size: numbers.below(6),
            fill: [Fill::Untouched, Fill::Nan, Fill::Hold][numbers.below(3)],
            start: numbers.units(nbatch.max(1) * NSTATE),
            control,
            state: vec![UNTOUCHED; nbatch * nstep * NSTATE],
            outcomes: vec![Outcome::not_started(); nbatch],
            slots: (0..ndata)
                .map(|_| Slot::new(Toy::new(&model), &model))
                .collect(),
            model,
        }
    }

    fn with<R>(&mut self, test: impl FnOnce(Request<'_>) -> R) -> R {
        let fixed = Fixed::<Toy>::new(&self.model);
        let mut engine = Engine::of::<Toy>();
        engine.hooks.flags = match self.model.retires {
            true => HOOKS_RETIRE_THREAD,
            false => 0,
        };
        let arrays = Arrays {
            nbatch: self.nbatch,
            nstep: self.nstep,
            chunk_size: self.chunk_size,
            fill: self.fill,
            initial_state: Input::rows(&self.start, NSTATE),
            control_spec: spec::CTRL,
            control: Some(Input::steps(&self.control, self.nstep, NU)),
            state: Some(Output::new(&mut self.state)),
            outcomes: Some(Output::new(&mut self.outcomes)),
            ..Arrays::default()
        };
        let data: Vec<_> = self.slots.iter_mut().map(Data::of).collect();
        // SAFETY: the table is that of this model and these data, which are borrowed here.
        let simulation = unsafe { Simulation::new(&engine, vec![Model::of(&fixed)], data) };
        test(Request::new(simulation, arrays).unwrap())
    }

    /// Compares all that the rollouts have written with what a plain loop says. A rollout
    /// that was stopped has the first of its rows.
    fn check(&self, result: Option<&Result<Tally, RunError>>, done: &Done) {
        let mut seen = Tally::default();
        for (rollout, outcome) in self.outcomes.iter().enumerate() {
            let rows = |values: &[f64]| bits(values);
            let state = &self.state[rollout * self.nstep * NSTATE..][..self.nstep * NSTATE];
            let status = outcome.status;
            if status == OutcomeStatus::NotStarted as i32 {
                assert!(state.iter().all(|value| *value == UNTOUCHED));
                continue;
            }
            let control: Vec<&[f64]> = (0..self.nstep)
                .map(|step| &self.control[(rollout * self.nstep + step) * NU..][..NU])
                .collect();
            let start = &self.start[rollout * NSTATE..][..NSTATE];
            let expected = reference::rollout(
                &self.model,
                start,
                None,
                spec::CTRL,
                Some(&control),
                self.nstep,
                self.fill,
                UNTOUCHED,
            );
            let ended = [OutcomeStatus::Cancelled, OutcomeStatus::OutOfTime];
            let valid = outcome.steps as usize;
            if ended.iter().any(|ended| *ended as i32 == status) {
                seen.stopped += 1;
                assert!(valid <= expected.steps);
                assert_eq!(
                    rows(&state[..valid * NSTATE]),
                    rows(&expected.state[..valid * NSTATE])
                );
                continue;
            }
            assert_eq!((status, valid), (expected.status as i32, expected.steps));
            assert_eq!(rows(state), rows(&expected.state), "rollout {rollout}");
            match expected.status {
                OutcomeStatus::Completed => seen.completed += 1,
                OutcomeStatus::EngineError => seen.failed += 1,
                _ => {}
            }
        }
        count(&done.rollouts, seen.completed);
        count(&done.failed, seen.failed);
        count(&done.stopped, seen.stopped);
        let tally = match result {
            None => return,
            Some(Ok(tally)) => {
                assert_eq!((tally.total(), tally.stopped), (self.nbatch, 0));
                tally
            }
            Some(Err(RunError::Stopped(_, tally))) => tally,
            Some(Err(error)) => panic!("{error}"),
        };
        assert_eq!(
            (tally.completed, tally.failed, tally.stopped),
            (seen.completed, seen.failed, seen.stopped)
        );
    }
}

/// Uses a ticket at random. Returns its result, or nothing if it is to be dropped.
fn attend(ticket: &Ticket<'_>, numbers: &mut Numbers) -> Option<Result<Tally, RunError>> {
    let mut cancelled = false;
    loop {
        let progress = ticket.progress();
        assert!(progress.rollouts <= ticket.nbatch() as u64);
        let ready = match numbers.below(12) {
            0..4 => return Some(ticket.wait()),
            4 => return None,
            5 => {
                ticket.cancel();
                cancelled = true;
                None
            }
            6 => {
                ticket.end().unwrap();
                assert!(ticket.is_done());
                None
            }
            7 => ticket.is_done().then(|| ticket.wait()),
            8 => ticket.wait_timeout(Duration::ZERO),
            _ => ticket.wait_timeout(Duration::from_micros(numbers.below(100) as u64)),
        };
        if let Some(result) = ready {
            assert_eq!(ticket.wait_timeout(Duration::ZERO), Some(result.clone()));
            if let Err(RunError::Stopped(Ended::Cancelled, _)) = result {
                // `end` cancels too, and is not the last thing that is done with a ticket.
                assert!(cancelled || ticket.is_done());
            }
            return Some(result);
        }
    }
}

/// One request, in one of the ways that there are.
fn request(pool: &Pool, numbers: &mut Numbers, retires: bool, done: &Done) {
    let mut work = Work::new(numbers, retires);
    let terms = Terms {
        deadline: (numbers.below(4) == 0)
            .then(|| Instant::now() + Duration::from_micros(numbers.below(300) as u64)),
        priority: numbers.below(3) as i32 - 1,
    };
    let start = [Start::AtOnce, Start::Attended][numbers.below(2)];
    match numbers.below(3) {
        0 => {
            let result = work.with(|mut request| pool.run_on_terms(&mut request, terms));
            work.check(Some(&result), done);
        }
        1 => {
            let result = work.with(|request| {
                // SAFETY: the ticket is dropped.
                let ticket = unsafe { pool.submit(request, terms, start) }.unwrap();
                attend(&ticket, numbers)
            });
            count(&done.dropped, usize::from(result.is_none()));
            work.check(result.as_ref(), done);
        }
        _ => {
            // Another one beside it, and a call with data that are in use.
            let mut other = Work::new(numbers, retires);
            let results = work.with(|request| {
                other.with(|other| {
                    pool.scope(|scope| {
                        let first = scope.submit(request, terms, start).unwrap();
                        let second = scope
                            .submit(other, Terms::default(), Start::AtOnce)
                            .unwrap();
                        (attend(&second, numbers), attend(&first, numbers))
                    })
                })
            });
            other.check(results.0.as_ref(), done);
            work.check(results.1.as_ref(), done);
        }
    }
}

/// Tasks of a group, some of which panic, and some of which run requests.
fn tasks(pool: &Arc<Pool>, group: &Group, numbers: &mut Numbers, done: &Arc<Done>) {
    let before = group.count();
    let number = 1 + numbers.below(8);
    let mut panics = 0;
    for _ in 0..number {
        match numbers.below(8) {
            0 => {
                panics += 1;
                group.schedule(|| std::panic::resume_unwind(Box::new("as planned")));
            }
            1 => {
                let (pool, done) = (Arc::clone(pool), Arc::clone(done));
                let mut inner = Numbers::new(numbers.bits());
                group.schedule(move || {
                    let mut work = Work::new(&mut inner, false);
                    let result = work.with(|mut request| pool.run(&mut request));
                    work.check(Some(&result), &done);
                    if group_would_deadlock(&pool) {
                        count(&done.refused, 1);
                    }
                });
            }
            _ => {
                let done = Arc::clone(done);
                group.schedule(move || count(&done.tasks, 1));
            }
        }
    }
    let told = group.wait_count(before + number as u64);
    match told {
        Ok(()) => assert_eq!(panics, 0),
        Err(WaitError::TaskPanicked(text)) => {
            assert!(panics > 0, "{text}");
            assert_eq!(text, "as planned");
        }
        Err(error) => panic!("{error}"),
    }
    count(&done.panics, panics);
}

/// A wait for more tasks than there are, in a task.
fn group_would_deadlock(pool: &Pool) -> bool {
    pool.wait_count(u64::MAX) == Err(WaitError::WouldDeadlock)
}

/// Threads of this process.
fn nthread() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Lets four threads loose on two pools until this time.
fn soak(pools: &[Arc<Pool>; 2], seed: u64, until: Instant, done: &Arc<Done>) {
    // A thread that must go is gone for good, so each caller has threads of its own for
    // such errors, and the first that fails ends all.
    let failed = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..4)
        .map(|id| {
            let (pools, done, failed) = (pools.clone(), Arc::clone(done), Arc::clone(&failed));
            thread::spawn(move || {
                let guard = Fails(failed);
                let groups = [pools[0].group(), pools[1].group()];
                let mut numbers = Numbers::new(seed * 4 + id);
                while Instant::now() < until && !guard.0.load(Ordering::Relaxed) {
                    let which = numbers.below(2);
                    let (pool, group) = (&pools[which], &groups[which]);
                    match numbers.below(10) {
                        0 | 1 => tasks(pool, group, &mut numbers, &done),
                        2 => {
                            // Spent for good, which this thread shall not be.
                            let pool = Arc::clone(pool);
                            let mut inner = Numbers::new(numbers.bits());
                            let done = Arc::clone(&done);
                            let thread = thread::spawn(move || {
                                request(&pool, &mut inner, true, &done);
                            });
                            thread.join().unwrap();
                        }
                        3 => {
                            // A pool that comes and goes with what is in it.
                            let pool = Pool::new(numbers.below(3)).unwrap();
                            let inner = Arc::clone(&done);
                            pool.schedule(move || count(&inner.tasks, 1));
                            request(&pool, &mut numbers, false, &done);
                        }
                        _ => request(pool, &mut numbers, false, &done),
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Tells the other threads when its own fails.
struct Fails(Arc<AtomicBool>);

impl Drop for Fails {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

#[test]
fn two_pools_are_soaked_by_four_threads() {
    let seconds: f64 = match env::var("ROLLOUT_SOAK_SECONDS") {
        Ok(seconds) => seconds.parse().unwrap(),
        Err(_) => 2.5,
    };
    let time = Duration::from_secs_f64(seconds);
    // Panics that are planned are many.
    let print = std::panic::take_hook();
    let printed = Mutex::new(print);
    std::panic::set_hook(Box::new(move |info| {
        let text = info.payload_as_str().unwrap_or_default();
        if !text.contains("asks to panic") {
            printed.lock().unwrap()(info);
        }
    }));
    let threads = nthread();
    let pools = [3, 1].map(|nthread| Arc::new(Pool::new(nthread).unwrap()));
    let done = Arc::new(Done::default());
    soak(&pools, 1, Instant::now() + time / 4, &done);
    let warm = resident();
    soak(&pools, 2, Instant::now() + time * 3 / 4, &done);
    let grown = resident().saturating_sub(warm);
    let number = |place: &AtomicU64| place.load(Ordering::Relaxed);
    println!(
        "{seconds} s: {} rollouts completed, {} failed, {} stopped, {} tickets dropped; {} tasks, \
         {} panics; {} KiB more than after a quarter of the time",
        number(&done.rollouts),
        number(&done.failed),
        number(&done.stopped),
        number(&done.dropped),
        number(&done.tasks),
        number(&done.panics),
        grown >> 10
    );
    for place in [
        &done.rollouts,
        &done.failed,
        &done.stopped,
        &done.dropped,
        &done.tasks,
        &done.panics,
        &done.refused,
    ] {
        assert!(number(place) > 0);
    }
    // The allocator keeps some for each thread that there was.
    assert!(grown < 16 << 20, "{grown} bytes more");
    // One that was replaced may be about to end.
    eventually("the pools' threads are as many as they were", || {
        nthread() == threads + 4
    });
    let [first, second] = pools;
    drop(Arc::into_inner(first).unwrap());
    drop(Arc::into_inner(second).unwrap());
    eventually("their threads have ended", || nthread() == threads);
}
