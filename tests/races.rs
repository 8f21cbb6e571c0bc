//! What ThreadSanitizer looks at (`cargo xtask tsan`): a program, without a harness, whose
//! threads are the pool's.
//!
//! It does not see into std as it is shipped, and takes what is handed over by a mutex, a
//! channel or a scope of std's for a race. So callers are tasks of another pool here, and
//! whoever waits does so by the pool's own means.
//!
//! With the argument `planted` two tasks share what they must not.

use std::cell::UnsafeCell;
use std::env;
use std::hint;
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rollout_core::simulator::Fixed;
use rollout_core::trap::HOOKS_RETIRE_THREAD;
use rollout_core::{
    Arrays, Data, Engine, Input, Model, Outcome, Output, Request, Simulation, Simulator, Slot,
    Tally,
};
use rollout_pool::{Pool, RunError, Start, Terms, Ticket};
use rollout_tests::toy::{self, Toy};

/// A number that nothing protects but the order of things.
struct Bare(UnsafeCell<u64>);

// SAFETY: ThreadSanitizer says so, or the test fails.
unsafe impl Sync for Bare {}

impl Bare {
    fn new() -> Arc<Self> {
        Arc::new(Self(UnsafeCell::new(0)))
    }

    fn add(&self) {
        // SAFETY: as above.
        unsafe { *self.0.get() += 1 }
    }

    fn get(&self) -> u64 {
        // SAFETY: as above.
        unsafe { *self.0.get() }
    }
}

const NBATCH: usize = 24;
const NSTEP: usize = 6;

/// Rollouts of the toy, and what comes of them.
struct Toys {
    models: Vec<toy::Model>,
    slots: Vec<Slot<Toy>>,
    control: Vec<f64>,
    state: Vec<f64>,
    outcomes: Vec<Outcome>,
    nstate: usize,
}

impl Toys {
    /// Every so many rollouts one fails.
    fn new(ndata: usize, fails: Option<usize>, retires: bool) -> Self {
        let model = toy::Model {
            retires,
            ..toy::Model::default()
        };
        let nstate = Toy::state_size(&model, Toy::SPECS.full_physics);
        let mut control = vec![0.25; NBATCH * NSTEP * model.nu];
        for rollout in (0..NBATCH).filter(|rollout| fails.is_some_and(|n| rollout % n == 0)) {
            control[(rollout * NSTEP + 2) * model.nu] = toy::FAIL;
        }
        Self {
            slots: (0..ndata)
                .map(|_| Slot::new(Toy::new(&model), &model))
                .collect(),
            models: vec![model],
            control,
            state: vec![0.0; NBATCH * NSTEP * nstate],
            outcomes: vec![Outcome::not_started(); NBATCH],
            nstate,
        }
    }

    fn with<R>(&mut self, test: impl FnOnce(Request<'_>) -> R) -> R {
        let fixed = Fixed::<Toy>::new(&self.models[0]);
        let mut engine = Engine::of::<Toy>();
        engine.hooks.flags = match self.models[0].retires {
            true => HOOKS_RETIRE_THREAD,
            false => 0,
        };
        let start = vec![0.5; self.nstate];
        let arrays = Arrays {
            nbatch: NBATCH,
            nstep: NSTEP,
            initial_state: Input::shared(&start),
            control_spec: toy::spec::CTRL,
            control: Some(Input::steps(&self.control, NSTEP, 2)),
            state: Some(Output::new(&mut self.state)),
            outcomes: Some(Output::new(&mut self.outcomes)),
            ..Arrays::default()
        };
        let data: Vec<_> = self.slots.iter_mut().map(Data::of).collect();
        // SAFETY: the table is that of this model and these data, which are borrowed here.
        let simulation = unsafe { Simulation::new(&engine, vec![Model::of(&fixed)], data) };
        test(Request::new(simulation, arrays).unwrap())
    }

    /// Reads all that the rollouts have written.
    fn check(&self, result: &Result<Tally, RunError>) {
        let tally = match result {
            Ok(tally) | Err(RunError::Stopped(_, tally)) => tally,
            Err(error) => panic!("{error}"),
        };
        let mut valid = 0;
        for (rollout, outcome) in self.outcomes.iter().enumerate() {
            let rows = &self.state[rollout * NSTEP * self.nstate..];
            for step in 0..outcome.steps as usize {
                assert!(rows[step * self.nstate] > 0.0);
            }
            valid += usize::from(outcome.steps as usize == NSTEP);
        }
        assert_eq!(valid, tally.completed);
        for slot in &self.slots {
            hint::black_box(slot.simulator().steps_since_reset());
        }
    }
}

/// Runs this on each thread of another pool, so many times.
fn callers(nthread: usize, times: u64, call: impl Fn(u64) + Send + Sync + 'static) {
    let pool = Pool::new(nthread).unwrap();
    let call = Arc::new(call);
    for i in 0..times {
        let call = Arc::clone(&call);
        pool.schedule(move || call(i));
    }
    pool.wait_count(times).unwrap();
}

fn tasks() {
    let pool = Arc::new(Pool::new(3).unwrap());
    for round in 1..=20 {
        let numbers: Vec<_> = (0..10).map(|_| Bare::new()).collect();
        for number in &numbers {
            let number = Arc::clone(number);
            pool.schedule(move || number.add());
        }
        pool.wait_count(10 * round).unwrap();
        assert!(numbers.iter().all(|number| number.get() == 1));
    }
    pool.reset_count();
    assert_eq!(pool.count(), 0);
    callers(3, 12, move |_| {
        let group = pool.group();
        for round in 1..=10 {
            let number = Bare::new();
            let told = Arc::clone(&number);
            group.schedule(move || told.add());
            group.wait_count(round).unwrap();
            assert_eq!(number.get(), 1);
        }
        group.schedule(|| panic::resume_unwind(Box::new("a task fails")));
        assert!(group.wait_count(11).is_err());
    });
}

fn requests() {
    let pool = Arc::new(Pool::new(2).unwrap());
    callers(3, 60, move |i| {
        let mut toys = Toys::new(1 + i as usize % 3, (i % 4 == 0).then_some(5), false);
        let result = toys.with(|mut request| pool.run(&mut request));
        toys.check(&result);
    });
}

/// Uses a ticket in one of many ways; `None` if it is to be dropped in flight.
fn attend(ticket: &Ticket<'_>, way: u64) -> Option<Result<Tally, RunError>> {
    match way % 6 {
        0 => Some(ticket.wait()),
        1 => {
            // Without the pool's lock.
            while !ticket.is_done() {
                hint::spin_loop();
            }
            ticket.wait_timeout(Duration::ZERO)
        }
        2 => loop {
            if let Some(result) = ticket.wait_timeout(Duration::from_micros(20)) {
                return Some(result);
            }
            hint::black_box(ticket.progress());
        },
        3 => {
            ticket.wait_timeout(Duration::ZERO);
            ticket.cancel();
            Some(ticket.wait())
        }
        4 => {
            ticket.wait_timeout(Duration::ZERO);
            None
        }
        _ => {
            ticket.end().unwrap();
            Some(ticket.wait())
        }
    }
}

fn tickets(retires: bool) {
    let pool = Arc::new(Pool::new(2).unwrap());
    callers(3, 120, move |i| {
        let mut toys = Toys::new(1 + i as usize % 3, (i % 5 < 2).then_some(7), retires);
        let terms = Terms {
            deadline: (i % 7 == 3).then(|| Instant::now() + Duration::from_micros(50)),
            priority: (i % 3) as i32,
        };
        // (Nobody wakes a worker for one that is only looked at.)
        let start = match i % 4 {
            2 => Start::Attended,
            _ => Start::AtOnce,
        };
        let result = toys.with(|request| {
            // SAFETY: the ticket is dropped.
            let ticket = unsafe { pool.submit(request, terms, start) }.unwrap();
            attend(&ticket, i)
        });
        if let Some(result) = result {
            toys.check(&result);
        }
        hint::black_box(pool.stats());
    });
}

/// Threads end, and whoever has waited for them reads what they have written.
fn ends() {
    callers(2, 10, |i| {
        let pool = Pool::new(2).unwrap();
        let number = Bare::new();
        let told = Arc::clone(&number);
        pool.schedule(move || told.add());
        let mut toys = Toys::new(2, None, false);
        let result = toys.with(|request| {
            // SAFETY: the ticket is dropped.
            let ticket = unsafe { pool.submit(request, Terms::default(), Start::AtOnce) };
            let ticket = ticket.unwrap();
            if i % 2 == 0 {
                pool.end();
                assert!(ticket.is_done());
            }
            ticket.wait()
        });
        toys.check(&result);
        drop(pool);
        assert_eq!(number.get(), 1);
    });
}

/// Two tasks write one number, in no order: they have met in a way that settles none. Not in
/// the same moment, in which the sanitizer can miss it.
fn planted() {
    let pool = Pool::new(2).unwrap();
    let number = Bare::new();
    let arrived = Arc::new(AtomicU32::new(0));
    for _ in 0..2 {
        let (number, arrived) = (Arc::clone(&number), Arc::clone(&arrived));
        pool.schedule(move || {
            let before = arrived.fetch_add(1, Ordering::Relaxed);
            while arrived.load(Ordering::Relaxed) < 2 {
                hint::spin_loop();
            }
            thread::sleep(Duration::from_millis(20) * before);
            number.add();
        });
    }
    pool.wait_count(2).unwrap();
}

fn main() {
    if env::args().any(|argument| argument == "planted") {
        planted();
        return;
    }
    let cases: [(&str, fn()); 5] = [
        ("tasks", tasks),
        ("requests", requests),
        ("tickets", || tickets(false)),
        ("tickets_of_an_engine_that_retires_threads", || {
            tickets(true)
        }),
        ("ends", ends),
    ];
    for (name, case) in cases {
        case();
        println!("ok {name}");
    }
}
