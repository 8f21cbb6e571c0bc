//! The pool: its shared state, and what a host calls.

use std::collections::VecDeque;
use std::fmt;
use std::hint;
use std::io;
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_utils::CachePadded;
use rollout_core::simulator::panic_text;
use rollout_core::{Observer, Request, Tally};

use crate::busy::Claimed;
use crate::cpu::{self, CpusError};
use crate::job::{Job, OpenJob, Place, Seat, Work};
use crate::spawn::spawn;
use crate::sync::{AtomicU64, Event, Guard, Lock, Ordering};
use crate::worker::{self, Identity};

type Task = Box<dyn FnOnce() + Send>;

/// Why [`Pool::run`] did not give a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunError {
    /// The data of this slot is in use by another request in flight. Nothing was
    /// run or written.
    Busy {
        /// The slot.
        slot: usize,
    },
    /// A thread that has seen an engine error must be retired, and the system refused
    /// one in its place, for this reason. All rollouts were run that other threads could
    /// run; the others are "not started".
    NoThread(String),
    /// A part of this library panicked; the text is the panic's. The rollouts that
    /// it hit are "not started", though their rows may have been written; the
    /// others have been run.
    Panicked(String),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Busy { slot } => {
                write!(f, "data[{slot}]: is in use by another request in flight")
            }
            RunError::NoThread(why) => write!(
                f,
                "a thread must be retired after an engine error, and the system refused one in \
                 its place: {why}"
            ),
            RunError::Panicked(text) => write!(f, "a rollout panicked: {text}"),
        }
    }
}

impl std::error::Error for RunError {}

/// Why [`Pool::wait_count`] returned without the count, or with bad news.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitError {
    /// Waiting here could never end: the calling thread is a worker of this very
    /// pool, or the pool has no threads and the tasks that ran are too few.
    WouldDeadlock,
    /// The count was reached, but a task panicked since the last time it was
    /// told; this is the text of the first.
    TaskPanicked(String),
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitError::WouldDeadlock => f.write_str("waiting here would never end"),
            WaitError::TaskPanicked(text) => write!(f, "a task panicked: {text}"),
        }
    }
}

impl std::error::Error for WaitError {}

/// A persistent pool of threads. See the [crate](crate) for what it runs.
///
/// All methods may be called from any number of threads at once.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    nthread: usize,
    /// The CPU of each thread, or nothing.
    cpus: Box<[usize]>,
}

/// What the threads of a pool share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) state: Lock<State>,
    /// Workers without work wait here.
    pub(crate) work: CachePadded<Event>,
    /// Those who wait for a count or for their helpers wait here.
    done: CachePadded<Event>,
    /// Tasks completed since the last reset. Written under the lock.
    pub(crate) count: AtomicU64,
    /// What the first step of the last shared request took: a guess for the next
    /// one, which decides whether workers are woken and never what is computed.
    step_nanos: AtomicU64,
    pub(crate) threads: Lock<Threads>,
}

/// The threads of a pool, as whoever ends the pool must wait for them.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    pub(crate) working: Vec<JoinHandle<()>>,
    /// Those that were replaced. They have ended, or are about to.
    pub(crate) retired: Vec<JoinHandle<()>>,
}

/// What the lock protects.
#[derive(Default)]
pub(crate) struct State {
    /// Tasks that nobody has begun, oldest first.
    pub(crate) tasks: VecDeque<Task>,
    /// Requests in flight that workers may join, oldest first.
    jobs: Vec<OpenJob>,
    /// Workers that look out for work without sleeping.
    pub(crate) spinning: usize,
    /// Workers that sleep, or are about to, or have been woken but not yet run.
    pub(crate) sleeping: usize,
    /// Threads that sleep on `done`, or are about to.
    waiting: usize,
    /// The first panic of a task that no waiter has been told of.
    pub(crate) panic: Option<String>,
    /// The pool is being dropped.
    pub(crate) stopping: bool,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("tasks", &self.tasks.len())
            .field("jobs", &self.jobs)
            .finish_non_exhaustive()
    }
}

impl State {
    /// Takes a seat in the oldest request that has work and a place left.
    pub(crate) fn join(&mut self, preferred_slot: usize) -> Option<Seat> {
        self.jobs
            .iter_mut()
            .find_map(|job| job.join(preferred_slot))
    }

    /// The entry of a job that is open.
    fn job(&mut self, job: &Job<'_>) -> &mut OpenJob {
        let entry = self.jobs.iter_mut().find(|open| open.is(job));
        entry.expect("only its owner removes a job")
    }

    /// Removes it.
    fn remove(&mut self, job: &Job<'_>) -> OpenJob {
        let entry = self.jobs.iter().position(|open| open.is(job));
        self.jobs
            .remove(entry.expect("only its owner removes a job"))
    }

    /// Gives a seat back. Returns whether it has left a place for somebody else.
    pub(crate) fn leave(&mut self, seat: &Seat, work: Work) -> bool {
        let job = self.jobs.iter_mut().find(|job| job.owns(seat));
        // The owner removes the entry only when nobody is inside.
        job.expect("a job outlives its seats").leave(seat, work)
    }
}

impl Shared {
    /// Runs a task and counts it. The lock is not held meanwhile.
    pub(crate) fn run_task(&self, task: impl FnOnce()) -> Guard<'_, State> {
        let panic = panic::catch_unwind(AssertUnwindSafe(task))
            .err()
            .map(|payload| panic_text(&*payload).to_owned());
        let mut state = self.state.lock();
        if state.panic.is_none() {
            state.panic = panic;
        }
        // Release, with the Acquire of `Pool::count`: who sees the count sees what
        // the task did.
        self.count.fetch_add(1, Ordering::Release);
        self.tell_waiters(state)
    }

    /// Wakes those who wait on `done`, if any.
    pub(crate) fn tell_waiters<'s>(&'s self, state: Guard<'s, State>) -> Guard<'s, State> {
        if state.waiting == 0 {
            return state;
        }
        self.done.advance();
        drop(state);
        self.done.wake(u32::MAX);
        self.state.lock()
    }

    /// Waits until `ready` says so, and returns with the lock held and `ready` still
    /// true: it is asked under the lock whenever a task or a helper has ended.
    fn wait_until(&self, ready: impl Fn() -> bool) -> Guard<'_, State> {
        // A helper's last chunk or a last task is often about to end. This is only
        // a hint: without the lock nothing is decided.
        for _ in 0..WAIT_SPINS {
            if ready() {
                break;
            }
            hint::spin_loop();
        }
        let mut state = self.state.lock();
        while !ready() {
            state.waiting += 1;
            let epoch = self.done.epoch();
            drop(state);
            self.done.sleep(epoch);
            state = self.state.lock();
            state.waiting -= 1;
        }
        state
    }

    /// Wakes sleeping workers, so that `wanted` of them are awake together with
    /// those that spin.
    pub(crate) fn wake_workers(&self, state: Guard<'_, State>, wanted: usize) {
        let count = wanted.saturating_sub(state.spinning).min(state.sleeping);
        drop(state);
        self.work.wake(count as u32);
    }
}

/// How often a waiter looks before it sleeps: a few microseconds, less than the call
/// that would wake it costs the thread it waits for (`worker::SPIN`).
const WAIT_SPINS: usize = 500;

/// Steps that are left must be worth this much of the caller's time before sleeping
/// workers are woken for them: five times what a call that wakes one costs (see
/// `worker::SPIN` for the measurement), so that waking never costs more than a fifth.
const WORTH_WAKING_NANOS: u64 = 50_000;

/// A step time that is not known yet: so long that any request is worth sharing.
const UNKNOWN: u64 = u64::MAX;

impl Pool {
    #[cfg(test)]
    pub(crate) fn forget_step_time(&self) {
        self.shared.step_nanos.store(UNKNOWN, Ordering::Relaxed);
    }

    /// Starts a pool of `nthread` threads. With 0 threads, tasks run inside
    /// [`schedule`](Pool::schedule) and requests inside [`run`](Pool::run).
    ///
    /// The threads are named `rollout-0`, `rollout-1`, ..., have stacks of 8 MiB
    /// and block all asynchronous signals.
    ///
    /// # Errors
    ///
    /// When the system refuses a thread; those already started have ended then.
    pub fn new(nthread: usize) -> io::Result<Self> {
        Self::start(nthread, &[])
    }

    /// Starts a pool of one thread for each of these CPUs, on which it stays: thread i on
    /// `cpus[i]`, and so a thread that takes its place.
    ///
    /// # Errors
    ///
    /// [`CpusError`]; but for [`Refused`](CpusError::Refused), no thread was started then.
    pub fn with_cpus(cpus: &[usize]) -> Result<Self, CpusError> {
        cpu::check(cpus)?;
        Self::start(cpus.len(), cpus).map_err(CpusError::Refused)
    }

    /// Starts threads, on these CPUs if there are any.
    fn start(nthread: usize, cpus: &[usize]) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Lock::new(State::default()),
            work: CachePadded::default(),
            done: CachePadded::default(),
            count: AtomicU64::new(0),
            step_nanos: AtomicU64::new(UNKNOWN),
            threads: Lock::default(),
        });
        let pool = Pool {
            shared,
            nthread,
            cpus: cpus.into(),
        };
        let mut threads = pool.shared.threads.lock();
        for id in 0..nthread {
            // The caller of a request usually has slot 0.
            threads
                .working
                .push(worker::start(&pool.shared, id, id + 1)?);
            if let Some(&cpu) = cpus.get(id) {
                cpu::pin(&threads.working[id], cpu)?;
            }
        }
        drop(threads);
        Ok(pool)
    }

    /// The number of threads of the pool.
    pub fn num_threads(&self) -> usize {
        self.nthread
    }

    /// The CPU that each thread stays on, for a pool that was started so
    /// ([`with_cpus`](Pool::with_cpus)); otherwise nothing.
    pub fn cpus(&self) -> &[usize] {
        &self.cpus
    }

    /// Hands a task to the workers. It runs as soon as one is free, whether or
    /// not anybody waits, after the tasks scheduled before it have begun.
    pub fn schedule(&self, task: impl FnOnce() + Send + 'static) {
        if self.nthread == 0 {
            // The task may end the pool; its shared state outlives that.
            Arc::clone(&self.shared).run_task(task);
            return;
        }
        let task = Box::new(task);
        let mut state = self.shared.state.lock();
        state.tasks.push_back(task);
        self.shared.work.advance();
        let wanted = state.tasks.len();
        self.shared.wake_workers(state, wanted);
    }

    /// The number of tasks completed since the last reset, panicked ones included.
    pub fn count(&self) -> u64 {
        // Acquire: who sees the count sees what the tasks did.
        self.shared.count.load(Ordering::Acquire)
    }

    /// Sets the count to zero. The count is one for the whole pool: callers that
    /// share a pool must agree on who resets it.
    pub fn reset_count(&self) {
        let _state = self.shared.state.lock();
        self.shared.count.store(0, Ordering::Release);
    }

    /// Waits until the count is at least `value`. What the counted tasks wrote is
    /// visible afterwards.
    ///
    /// # Errors
    ///
    /// [`WaitError::WouldDeadlock`] at once, where the wait could never end;
    /// [`WaitError::TaskPanicked`] after the wait.
    pub fn wait_count(&self, value: u64) -> Result<(), WaitError> {
        let nobody_else = self.nthread == 0 || worker::is_worker_of(&self.shared);
        if nobody_else && self.count() < value {
            return Err(WaitError::WouldDeadlock);
        }
        let mut state = self.shared.wait_until(|| self.count() >= value);
        match state.panic.take() {
            None => Ok(()),
            Some(text) => Err(WaitError::TaskPanicked(text)),
        }
    }

    /// Runs all rollouts of a request and returns how they ended. The calling
    /// thread takes one of the request's data and works; workers take the others
    /// as they come free. With one data, or little to do, the caller does it all.
    ///
    /// Any number of threads may call this at once, each with data of its own. It
    /// may also be called from inside a task.
    ///
    /// # Errors
    ///
    /// [`RunError`].
    pub fn run(&self, request: &mut Request<'_>) -> Result<Tally, RunError> {
        let mut request = Claimed::new(request).map_err(|slot| RunError::Busy { slot })?;
        // SAFETY: the data are claimed: no other request uses them, and by the
        // promise of the request's Simulation nobody else does.
        unsafe { request.begin() };
        let request: &Request<'_> = &request;

        let helpers = self
            .num_threads()
            .min(request.ndata() - 1)
            .min(request.nbatch().saturating_sub(1));
        let job: &Job<'_> = &Job::new(request, helpers + 1);
        let slot = Some(worker::preferred_slot())
            .filter(|&slot| slot < request.ndata())
            .unwrap_or(0);
        worker::remember_slot(slot);
        let work = if helpers == 0 {
            // SAFETY: the job is not shared, and the request was begun.
            unsafe { drive(job, Place::new(slot), &mut ()) }
        } else {
            self.share(job, slot, helpers, request.nbatch() * request.nstep())
        };
        work.result(request.nbatch())
    }

    /// Ends the pool: runs the tasks that were scheduled, and those that they
    /// schedule, then ends the threads and waits for them. From inside a task of
    /// this very pool it does not wait. Dropping the pool does the same; a host
    /// whose tasks still hold the pool calls this first and drops it afterwards.
    /// Whatever is scheduled once the threads have ended never runs.
    pub fn end(&self) {
        let mut state = self.shared.state.lock();
        state.stopping = true;
        self.shared.work.advance();
        drop(state);
        self.shared.work.wake(u32::MAX);
        if worker::is_worker_of(&self.shared) {
            return;
        }
        loop {
            // Until the end a thread may be replaced by another one.
            let Threads { working, retired } = mem::take(&mut *self.shared.threads.lock());
            if working.is_empty() && retired.is_empty() {
                return;
            }
            for thread in retired.into_iter().chain(working) {
                // A worker catches the panics of tasks; one of its own has already
                // been printed, and there is nobody to tell.
                let _ = thread.join();
            }
        }
    }

    /// Runs a job on this thread and at most `helpers` workers.
    fn share<'s>(&'s self, job: &'s Job<'s>, slot: usize, helpers: usize, steps: usize) -> Work {
        let shared = &*self.shared;
        let open = OpenJob::new(job, slot);
        let mut state = shared.state.lock();
        state.jobs.push(open);
        shared.work.advance();
        // What a step took the last time is a first guess; the first step corrects
        // it. A pool that knows nothing yet wakes its workers.
        let guess = shared.step_nanos.load(Ordering::Relaxed);
        let invited = guess.saturating_mul(steps as u64) > WORTH_WAKING_NANOS;
        if invited {
            shared.wake_workers(state, helpers);
        } else {
            drop(state);
        }
        // From here to the removal below nothing may unwind: a worker may be
        // using the job. `participate` catches panics; should anything else fail,
        // the guard ends the process rather than leave workers with a dangling job.
        let bomb = AbortOnUnwind;

        let mut invitation = Invitation {
            shared,
            job,
            helpers,
            steps,
            invited,
            start: Instant::now(),
            first: true,
        };
        // SAFETY: the slot was taken when the job was opened; the request was begun.
        let mut work = unsafe { drive(job, Place::new(slot), &mut invitation) };
        if let Some(rest) = work.take_rest() {
            // There is no thread for it, but perhaps a helper that is still inside has time.
            shared.state.lock().job(job).orphan(rest);
        }
        loop {
            // Acquire, with the Release in `leave`: the helpers' rows are visible. That
            // nobody is inside and that the job is removed is one section: in between
            // a worker could still come in, which has found rollouts left before the
            // last of them was claimed.
            let mut state = shared.wait_until(|| job.inside.load(Ordering::Acquire) == 0);
            let Some(orphan) = state.job(job).adopt() else {
                let entry = state.remove(job);
                drop(state);
                mem::forget(bomb);
                work.merge(entry.into_work());
                return work;
            };
            drop(state);
            // A place that a thread had to leave, and that no other one has come for.
            // SAFETY: it was taken out of the state; the request was begun.
            work.merge(unsafe { drive(job, orphan, &mut ()) });
            // What is left even now is left for good.
            work.take_rest();
        }
    }
}

/// Works on a job: in this thread, and once an engine error forbids that, in others,
/// one after the other, in its place. What is left where the system has no thread is
/// returned, its data reset.
///
/// # Safety
///
/// * As for [`Job::participate`].
unsafe fn drive(job: &Job<'_>, place: Place, observer: &mut impl Observer) -> Work {
    let mut work = match job.is_welcome() {
        // SAFETY: the caller's promises.
        true => unsafe { job.participate(place, observer) },
        false => Work::left(place),
    };
    while let Some(mut rest) = work.take_rest() {
        let place = rest.clone();
        let identity = Identity::get();
        let stand_in = move || {
            identity.assume();
            // SAFETY: the caller's promises, which the place takes along.
            unsafe { job.participate(place, &mut ()) }
        };
        // SAFETY: what the thread borrows outlives it, as it is waited for here.
        match unsafe { spawn("rollout-caller".to_owned(), stand_in) } {
            Ok(thread) => match thread.join() {
                Ok(more) => work.merge(more),
                Err(payload) => panic::resume_unwind(payload),
            },
            Err(why) => {
                work.refuse(&why);
                // SAFETY: as above.
                unsafe { job.give_up(&mut rest) };
                work.leave(rest);
                break;
            }
        }
    }
    work
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.end();
    }
}

/// Measures the caller's first step, and decides whether waking workers is worth it.
///
/// A worker that still spins joins without being asked, at no cost. To wake a
/// sleeping one costs the caller a system call, which a small request does not earn
/// back.
struct Invitation<'s> {
    shared: &'s Shared,
    job: &'s Job<'s>,
    helpers: usize,
    steps: usize,
    /// Workers have been woken already.
    invited: bool,
    start: Instant,
    /// The first step is still to come.
    first: bool,
}

impl Observer for Invitation<'_> {
    #[inline]
    fn stepped(&mut self) {
        if self.first {
            self.first = false;
            self.measured();
        }
    }
}

impl Invitation<'_> {
    #[cold]
    fn measured(&self) {
        let nanos = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.shared.step_nanos.store(nanos, Ordering::Relaxed);
        let left = nanos.saturating_mul(self.steps as u64 - 1);
        if !self.invited && left > WORTH_WAKING_NANOS {
            let state = self.shared.state.lock();
            let inside = self.job.inside.load(Ordering::Relaxed);
            self.shared
                .wake_workers(state, self.helpers.saturating_sub(inside));
        }
    }
}

/// Ends the process when dropped, which happens only while unwinding.
pub(crate) struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        eprintln!("rollout: a panic in the middle of the pool's protocol; aborting");
        std::process::abort();
    }
}
