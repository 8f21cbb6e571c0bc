//! Tickets, groups and scopes of a process in its forked children. (`tests/c/fork.c` has
//! what C can see.)

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rollout_core::simulator::{Readings, Specs};
use rollout_core::{Arrays, Request, Simulation, Simulator, Slot};
use rollout_pool::{Pool, RunError, Start, Terms, WaitError};

/// Far more than anything here takes, even on a machine that is very busy.
const LONG: Duration = Duration::from_secs(60);

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LONG, "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs this in a forked child, which it must end in time and without a panic.
fn in_child(body: impl FnOnce()) {
    // SAFETY: the child does what the library promises to work there, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let panicked = panic::catch_unwind(AssertUnwindSafe(body)).is_err();
        // SAFETY: ends the process, without what the test harness would do at its end.
        unsafe { libc::_exit(panicked.into()) };
    }
    ends_well(child);
}

fn ends_well(child: libc::pid_t) {
    let start = Instant::now();
    let mut status = 0;
    // SAFETY: of a child that nobody else waits for.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
        if start.elapsed() > LONG {
            // SAFETY: the same child.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(status, 0, "the child does not end well");
}

/// A simulator whose steps wait at its model, the gate.
struct Waiting;

#[derive(Default)]
struct Gate {
    arrived: AtomicUsize,
    open: AtomicUsize,
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
        eventually("the gate opens", || gate.open.load(Ordering::Acquire) != 0);
        Ok(())
    }
    fn reset(&mut self, _: &Gate) {}
}

fn one_step_each(nbatch: usize) -> Arrays<'static> {
    Arrays {
        nbatch,
        nstep: 1,
        ..Arrays::default()
    }
}

/// Runs a request that does not wait.
fn runs(pool: &Pool) {
    let gate = [Gate::default()];
    gate[0].open.store(1, Ordering::Release);
    let mut slots = [(); 3].map(|()| Slot::new(Waiting, &gate[0]));
    let simulation = Simulation::of(&gate, &mut slots).unwrap();
    let mut request = Request::new(simulation, one_step_each(8)).unwrap();
    assert_eq!(pool.run(&mut request).unwrap().completed, 8);
}

#[test]
fn a_ticket_belongs_to_the_process_that_submitted_it() {
    for nthread in 0..=2 {
        let pool = Pool::new(nthread).unwrap();
        let gate = [Gate::default()];
        let mut slots = [(); 3].map(|()| Slot::new(Waiting, &gate[0]));
        let simulation = Simulation::of(&gate, &mut slots).unwrap();
        let request = Request::new(simulation, one_step_each(8)).unwrap();
        // SAFETY: dropped below, before what it borrows.
        let ticket = unsafe { pool.submit(request, Terms::default(), Start::AtOnce) }.unwrap();
        eventually("the workers' steps", || {
            gate[0].arrived.load(Ordering::Acquire) == nthread
        });
        assert!(!ticket.is_of_parent() && !ticket.is_done());
        let mut ticket = Some(ticket);
        in_child(|| {
            let ticket = ticket.take().unwrap();
            assert!(ticket.is_of_parent() && ticket.is_done());
            assert_eq!(ticket.wait(), Err(RunError::Forked));
            let timeout = ticket.wait_timeout(Duration::from_millis(1));
            assert_eq!(timeout, Some(Err(RunError::Forked)));
            assert_eq!(ticket.progress().rollouts, 0);
            ticket.cancel();
            drop(ticket);
            runs(&pool);
            pool.end();
        });
        gate[0].open.store(1, Ordering::Release);
        let ticket = ticket.unwrap();
        assert_eq!(ticket.wait().unwrap().completed, 8);
        in_child(|| {
            // It was done before.
            assert!(!ticket.is_of_parent() && ticket.is_done());
            assert_eq!(ticket.wait().unwrap().completed, 8);
        });
    }
}

#[test]
fn a_scope_ends_in_a_child_without_its_tickets() {
    let pool = Pool::new(1).unwrap();
    let gate = [Gate::default()];
    let mut slots = [(); 2].map(|()| Slot::new(Waiting, &gate[0]));
    let (mine, later) = slots.split_at_mut(1);
    let simulation = Simulation::of(&gate, mine).unwrap();
    let request = Request::new(simulation, one_step_each(2)).unwrap();
    let simulation = Simulation::of(&gate, later).unwrap();
    let after = Request::new(simulation, one_step_each(2)).unwrap();
    let mut child = None;
    pool.scope(|scope| {
        let _ticket = scope
            .submit(request, Terms::default(), Start::AtOnce)
            .unwrap();
        eventually("the worker's step", || {
            gate[0].arrived.load(Ordering::Acquire) == 1
        });
        // SAFETY: as in `in_child`, which this is in pieces.
        child = Some(unsafe { libc::fork() });
        gate[0].open.store(1, Ordering::Release);
        if child == Some(0) {
            let ticket = scope.submit(after, Terms::default(), Start::AtOnce);
            let tally = ticket.and_then(|ticket| ticket.wait());
            if tally.is_ok_and(|tally| tally.completed == 2) {
                return;
            }
            // SAFETY: ends the process.
            unsafe { libc::_exit(1) };
        }
    });
    let child = child.unwrap();
    if child == 0 {
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    ends_well(child);
}

#[test]
fn a_group_begins_anew_in_a_child() {
    for nthread in 0..=2 {
        let pool = Pool::new(nthread).unwrap();
        let group = pool.group();
        let ran = Arc::new(AtomicUsize::new(0));
        let schedule = || {
            let ran = Arc::clone(&ran);
            group.schedule(move || {
                ran.fetch_add(1, Ordering::AcqRel);
            });
        };
        schedule();
        group.wait_count(1).unwrap();
        in_child(|| {
            assert_eq!(group.count(), 0);
            assert_eq!(group.wait_count(1), Err(WaitError::Forked));
            group.reset_count();
            schedule();
            group.wait_count(1).unwrap();
            assert_eq!((group.count(), pool.count()), (1, 0));
            assert_eq!(ran.load(Ordering::Acquire), 2);
            assert_eq!(pool.stats().len(), nthread);
        });
        assert_eq!(group.count(), 1);
    }
}

#[test]
fn what_a_child_schedules_on_a_pool_that_it_has_ended_never_runs() {
    let pool = Pool::new(1).unwrap();
    in_child(|| {
        pool.end();
        pool.schedule(|| {});
        assert_eq!(fs::read_dir("/proc/self/task").unwrap().count(), 1);
        assert_eq!(pool.count(), 0);
    });
    pool.schedule(|| {});
    pool.wait_count(1).unwrap();
}

/// Ends the load, also where the test fails.
struct Stop<'a>(&'a AtomicUsize);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(1, Ordering::Release);
    }
}

#[test]
fn forks_under_load_of_tickets_never_hang() {
    let pools = [Pool::new(2).unwrap(), Pool::new(1).unwrap()];
    let stop = AtomicUsize::new(0);
    let gate = [Gate::default()];
    gate[0].open.store(1, Ordering::Release);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut slots = [(); 3].map(|()| Slot::new(Waiting, &gate[0]));
                let mut round = 0;
                while stop.load(Ordering::Acquire) == 0 {
                    let simulation = Simulation::of(&gate, &mut slots).unwrap();
                    let request = Request::new(simulation, one_step_each(8)).unwrap();
                    let pool = &pools[round % 2];
                    // SAFETY: dropped before what it borrows.
                    let ticket = unsafe { pool.submit(request, Terms::default(), Start::AtOnce) };
                    let ticket = ticket.unwrap();
                    match round % 3 {
                        0 => assert_eq!(ticket.wait().unwrap().completed, 8),
                        1 => ticket.cancel(),
                        _ => {}
                    }
                    round += 1;
                }
            });
        }
        let _stop = Stop(&stop);
        for _ in 0..200 {
            let mut slots = [(); 3].map(|()| Slot::new(Waiting, &gate[0]));
            let simulation = Simulation::of(&gate, &mut slots).unwrap();
            let request = Request::new(simulation, one_step_each(100)).unwrap();
            // SAFETY: dropped before what it borrows.
            let ticket = unsafe { pools[0].submit(request, Terms::default(), Start::AtOnce) };
            let mut ticket = Some(ticket.unwrap());
            in_child(|| {
                drop(ticket.take());
                for pool in &pools {
                    runs(pool);
                    pool.end();
                }
            });
            drop(ticket);
        }
    });
}
