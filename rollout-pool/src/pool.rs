//! The pool: its shared state, and what a host calls.

use std::fmt;
use std::hint;
use std::io;
use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use crossbeam_utils::CachePadded;
use rollout_core::{Ended, Request, Tally};

use crate::group::{self, Count, Task};
use crate::inside;
use crate::job::{Job, Kind, Watch};
use crate::state::State;
use crate::sync::{Event, Gauge, Guard, JoinHandle, Lock, WAIT_SPINS, now, planted};
use crate::ticket::{Terms, begin};
use crate::worker::{self, WorkerMeter, WorkerStats};

/// Why [`Pool::run`] did not give a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunError {
    /// The data of this slot is in use by another request in flight. Nothing was
    /// run or written.
    Busy {
        /// The slot.
        slot: usize,
    },
    /// Waiting here could never end: the calling thread is inside the pool, in one of its
    /// tasks or in a callback of a rollout.
    WouldDeadlock,
    /// The request was ended before all of its rollouts had, for this reason. The tally is
    /// that of the rollouts that were begun.
    Stopped(Ended, Tally),
    /// A thread that has seen an engine error must be retired, and the system refused
    /// one in its place, for this reason. All rollouts were run that other threads could
    /// run, which the tally counts; the others are "not started".
    NoThread(String, Tally),
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
            RunError::WouldDeadlock => f.write_str(WOULD_DEADLOCK),
            RunError::Stopped(why, tally) => {
                let why = match why {
                    Ended::Cancelled => "the request was cancelled",
                    Ended::OutOfTime => "the request's time was up",
                };
                write!(f, "{why}, with {} rollouts completed", tally.completed)
            }
            RunError::NoThread(why, _) => write!(
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
    /// Waiting here could never end: the calling thread is inside the pool, in one of its
    /// tasks or in a callback of a rollout, or the pool has no threads, or none any more,
    /// and the tasks that ran are too few.
    WouldDeadlock,
    /// The count was reached, but a task panicked since the last time it was
    /// told; this is the text of the first.
    TaskPanicked(String),
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitError::WouldDeadlock => f.write_str(WOULD_DEADLOCK),
            WaitError::TaskPanicked(text) => write!(f, "a task panicked: {text}"),
        }
    }
}

impl std::error::Error for WaitError {}

const WOULD_DEADLOCK: &str = "waiting here would never end";

/// The number of threads that this process may keep busy: what its CPU affinity
/// mask and its cgroup's CPU quota allow.
pub fn default_nthread() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// A persistent pool of threads. See the [crate](crate) for what it runs.
///
/// All methods may be called from any number of threads at once.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
}

/// What the threads of a pool share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) state: Lock<State>,
    /// Workers without work wait here.
    pub(crate) work: CachePadded<Event>,
    /// Those who wait for a count or for a request wait here.
    done: CachePadded<Event>,
    /// Tasks that were scheduled by nobody in particular.
    count: Arc<Count>,
    /// What the first step of the last shared request took: a guess for the next
    /// one, which decides whether workers are woken and never what is computed.
    pub(crate) step_nanos: Gauge,
    pub(crate) threads: Lock<Threads>,
    /// What each worker has done.
    pub(crate) meters: Box<[CachePadded<WorkerMeter>]>,
    /// The number of workers.
    pub(crate) nthread: usize,
    born: Instant,
}

/// The threads of a pool, as whoever ends the pool must wait for them.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    pub(crate) working: Vec<JoinHandle<()>>,
    /// Those that were replaced. They have ended, or are about to.
    pub(crate) retired: Vec<JoinHandle<()>>,
}

/// A step time that is not known yet: so long that any request is worth sharing.
pub(crate) const UNKNOWN: u64 = u64::MAX;

impl Shared {
    /// How long the pool has lived, in nanoseconds.
    pub(crate) fn nanos(&self) -> u64 {
        u64::try_from((now() - self.born).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Hands a task to the workers, or runs it where there are none.
    pub(crate) fn schedule(&self, task: impl FnOnce() + Send + 'static, count: &Arc<Count>) {
        if self.nthread == 0 {
            group::run(task, count, self);
            return;
        }
        let task = Task::new(task, count);
        if planted("advance-before-lock") {
            self.work.advance();
        }
        let mut state = self.state.lock();
        state.tasks.push_back(task);
        if !planted("advance-before-lock") {
            self.work.advance();
        }
        let wanted = state.tasks.len();
        self.wake_workers(state, wanted);
    }

    /// Adds a job that was begun, and leaves the lock held.
    pub(crate) fn open(&self, job: &Job) -> Guard<'_, State> {
        let mut state = self.state.lock();
        state.open(job);
        self.work.advance();
        state
    }

    /// The most threads that can take part in a request.
    pub(crate) fn threads_for(&self, request: &Request<'_>) -> usize {
        let callers = usize::from(!self.is_pinned());
        let threads = (self.nthread + callers).min(request.ndata());
        threads.min(request.nbatch()).max(1)
    }

    /// Whether the pool's own threads alone run rollouts.
    pub(crate) fn is_pinned(&self) -> bool {
        false
    }

    /// Whether a wait of the calling thread for this pool could be one for itself.
    pub(crate) fn would_deadlock(&self) -> bool {
        self.nthread == 0 || self.is_inside()
    }

    /// Whether the calling thread is inside the pool: in a task, or in a rollout.
    pub(crate) fn is_inside(&self) -> bool {
        worker::is_worker_of(self) || inside::is_inside(self)
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

    /// Waits until `ready` says so, which is asked under the lock whenever somebody who
    /// waits is told something. Returns false if the pool has ended without that.
    pub(crate) fn wait_until(&self, ready: impl Fn() -> bool) -> bool {
        // A last task is often about to end. This is only a hint: without the lock nothing
        // is decided.
        for _ in 0..WAIT_SPINS {
            if ready() {
                break;
            }
            hint::spin_loop();
        }
        let mut state = self.state.lock();
        while !ready() {
            if state.gone == self.nthread {
                return false;
            }
            state = self.sleep_until_told(state, None);
        }
        true
    }

    /// Sleeps until those who wait are told something, until this time, or for no reason.
    pub(crate) fn sleep_until_told<'s>(
        &'s self,
        mut state: Guard<'s, State>,
        until: Option<Instant>,
    ) -> Guard<'s, State> {
        state.waiting += 1;
        let epoch = self.done.epoch();
        drop(state);
        self.done.sleep(epoch, until);
        let mut state = self.state.lock();
        state.waiting -= 1;
        state
    }

    /// Wakes sleeping workers, so that `wanted` of them are awake together with
    /// those that spin.
    pub(crate) fn wake_workers(&self, state: Guard<'_, State>, wanted: usize) {
        let mut count = wanted.saturating_sub(state.spinning).min(state.sleeping);
        if state.spent > 0 {
            // One that sleeps may be of no use.
            count = state.sleeping;
        }
        drop(state);
        self.work.wake(count as u32);
    }
}

impl Pool {
    #[cfg(test)]
    pub(crate) fn know_step_time(&self, nanos: u64) {
        use crate::sync::Ordering;
        self.shared.step_nanos.store(nanos, Ordering::Relaxed);
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
        let shared = Arc::new(Shared {
            state: Lock::new(State::default()),
            work: CachePadded::default(),
            done: CachePadded::default(),
            count: Arc::default(),
            step_nanos: Gauge::new(UNKNOWN),
            threads: Lock::default(),
            meters: (0..nthread).map(|_| CachePadded::default()).collect(),
            nthread,
            born: now(),
        });
        let pool = Pool { shared };
        let mut threads = pool.shared.threads.lock();
        for id in 0..nthread {
            // The caller of a request usually has slot 0.
            threads
                .working
                .push(worker::start(&pool.shared, id, id + 1)?);
        }
        drop(threads);
        Ok(pool)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The number of threads of the pool.
    pub fn num_threads(&self) -> usize {
        self.shared.nthread
    }

    /// What each worker has done since the pool was made, by its id.
    pub fn stats(&self) -> Vec<WorkerStats> {
        let now = self.shared.nanos();
        let meters = self.shared.meters.iter();
        meters.map(|meter| meter.stats(now)).collect()
    }

    /// Hands a task to the workers. It runs as soon as one is free, whether or
    /// not anybody waits, after the tasks scheduled before it have begun.
    pub fn schedule(&self, task: impl FnOnce() + Send + 'static) {
        // (The task may end the pool; its shared state outlives that.)
        let shared = Arc::clone(&self.shared);
        shared.schedule(task, &shared.count);
    }

    /// The number of tasks completed since the last reset, panicked ones included. Tasks of
    /// a [`Group`](crate::Group) are counted there.
    pub fn count(&self) -> u64 {
        self.shared.count.get()
    }

    /// Sets the count to zero. The count is one for the whole pool: callers that share a
    /// pool must agree on who resets it, or each have a [`group`](Pool::group).
    pub fn reset_count(&self) {
        self.shared.count.reset(&self.shared);
    }

    /// Waits until the count is at least `value`. What the counted tasks wrote is
    /// visible afterwards.
    ///
    /// # Errors
    ///
    /// [`WaitError::WouldDeadlock`] at once, where the wait could never end;
    /// [`WaitError::TaskPanicked`] after the wait.
    pub fn wait_count(&self, value: u64) -> Result<(), WaitError> {
        self.shared.count.wait(&self.shared, value)
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
        self.run_on_terms(request, Terms::default())
    }

    /// As [`run`](Pool::run), on these terms.
    ///
    /// # Errors
    ///
    /// [`RunError`].
    pub fn run_on_terms(&self, request: &mut Request<'_>, terms: Terms) -> Result<Tally, RunError> {
        let shared = self.shared();
        // SAFETY: the request is borrowed exclusively, and so stays as it is, until the end
        // of this call.
        let claim = unsafe { begin(request)? };
        let threads = shared.threads_for(request);
        let of_task = worker::is_worker_of(shared);
        // SAFETY: claimed and begun, and as above.
        let job = unsafe { Job::new(request, shared, threads, terms, Kind::Call { of_task }) };
        if threads == 1 && !shared.is_pinned() {
            // SAFETY: nobody else knows of the job. The claim ends with this call.
            let work = unsafe { shared.run_alone(&job) };
            return work.result(request.nbatch(), job.stopped());
        }
        // From here on other threads may use the job, which must not go away before it is
        // done. Panics of rollouts are caught where they are run; should anything else
        // fail, this ends the process rather than leave workers with a dangling job.
        let bomb = AbortOnUnwind;
        claim.keep();
        shared.attend(shared.open(&job), &job, None);
        mem::forget(bomb);
        job.result().expect("an attended job is done")
    }

    /// Ends the pool: cancels the requests in flight, runs the tasks that were scheduled,
    /// with the requests that they [`run`](Pool::run), and those that they schedule, then
    /// ends the threads and waits for them. From inside the pool, in one of its tasks or
    /// rollouts, it does not wait. Dropping the pool does
    /// the same; a host whose tasks still hold the pool calls this first and drops it
    /// afterwards. Whatever is scheduled or submitted once the threads have ended never
    /// runs.
    pub fn end(&self) {
        let shared = &*self.shared;
        let mut state = shared.state.lock();
        state.stopping = true;
        state.cancel_all();
        shared.work.advance();
        state = shared.tell_waiters(state);
        drop(state);
        shared.work.wake(u32::MAX);
        if shared.is_inside() {
            return;
        }
        let mut state = shared.state.lock();
        while mem::replace(&mut state.joining, true) {
            // Somebody else does the same.
            if state.ended {
                return;
            }
            state = shared.sleep_until_told(state, None);
        }
        drop(state);
        loop {
            // Until the end a thread may be replaced by another one.
            let Threads { working, retired } = mem::take(&mut *shared.threads.lock());
            if working.is_empty() && retired.is_empty() {
                break;
            }
            for thread in retired.into_iter().chain(working) {
                // A worker catches the panics of tasks; one of its own has already
                // been printed, and there is nobody to tell.
                let _ = thread.join();
            }
        }
        // What a caller has left and no worker has taken: nobody may come back for it.
        let mut state = shared.state.lock();
        loop {
            if let Some(seat) = state.adopt() {
                drop(state);
                let mut watch = Watch::new(seat.job(), seat.slot());
                // SAFETY: the seat is this thread's.
                let work = unsafe { seat.job().participate(seat.place(), &mut watch) };
                state = shared.leave(shared.state.lock(), seat, work);
            } else if state.is_busy() {
                // Callers, who are at their last step.
                state = shared.sleep_until_told(state, None);
            } else {
                state.ended = true;
                shared.tell_waiters(state);
                return;
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.end();
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
