//! The pool: its shared state, and what a host calls.

use std::fmt;
use std::hint;
use std::io;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_utils::CachePadded;
use rollout_core::{Ended, Request, Tally};

use crate::attend::end_left;
use crate::cpu::{self, CpusError};
use crate::fork;
use crate::group::{self, Count, Task};
use crate::inside;
use crate::job::{Job, Kind, Stop};
use crate::lineage::Lineage;
use crate::state::State;
use crate::sync::{
    AtomicU32, Event, Gauge, Guard, JoinHandle, Lock, Ordering, WAIT_SPINS, now, planted,
};
use crate::ticket::{Pauses, Pausing, Start, Terms, begin};
use crate::worker::{self, WorkerMeter, WorkerStats};

/// Why a request has no result, or not the whole of it.
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
    /// The request was in flight when this process was forked, and is the parent's: nobody
    /// works on it here. Rows and outcomes are as the fork has found them. (A thread that
    /// forks in a callback of a rollout has ended that rollout after its step.)
    Forked,
    /// This is a forked child, in which the pool has had no threads yet, and the system
    /// refused them, for this reason. Nothing was run; all rollouts are "not started".
    NoThreads(String),
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
            RunError::Forked => f.write_str(
                "the request belongs to the process that this one was forked from, and ends there",
            ),
            RunError::NoThreads(why) => write!(
                f,
                "the system refused the threads that the pool needs in this forked process: {why}"
            ),
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
    /// This is a forked child, in which nothing was scheduled yet: what was scheduled before
    /// is the parent's, and the count here begins at zero.
    Forked,
    /// The count was reached, but a task panicked since the last time it was
    /// told; this is the text of the first.
    TaskPanicked(String),
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitError::WouldDeadlock => f.write_str(WOULD_DEADLOCK),
            WaitError::Forked => f.write_str(
                "the tasks were scheduled in the process that this one was forked from, and are \
                 counted there",
            ),
            WaitError::TaskPanicked(text) => write!(f, "a task panicked: {text}"),
        }
    }
}

impl std::error::Error for WaitError {}

const WOULD_DEADLOCK: &str = "waiting here would never end";

/// A persistent pool of threads. See the [crate](crate) for what it runs.
///
/// All methods may be called from any number of threads at once.
///
/// In a forked child the pool begins anew: without tasks, with a count of zero, and with as
/// many threads, which are started when the first of them is needed. What the parent's
/// threads were at stays theirs. A pool that is not used there ends without doing anything.
#[derive(Debug)]
pub struct Pool {
    inner: Arc<Inner>,
}

/// What a pool, its groups and its scopes have in common, in every process.
#[derive(Debug)]
pub(crate) struct Inner {
    nthread: usize,
    /// The CPU of each thread, or nothing.
    cpus: Box<[usize]>,
    /// 1 once the pool was ended.
    ended: AtomicU32,
    running: Lineage<Running>,
}

/// The threads of a pool in one process, which end when this is dropped.
#[derive(Debug)]
struct Running(Arc<Shared>);

/// What the threads of a pool share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) state: Lock<State>,
    /// Workers without work wait here.
    pub(crate) work: CachePadded<Event>,
    /// Changes when there may be something more urgent than what a worker is at.
    pub(crate) news: CachePadded<Event>,
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
    /// Each stays on a CPU of its own.
    pinned: bool,
    /// 1 once the pool is being ended: for jobs that the state does not name.
    ending: AtomicU32,
    /// Wake-ups of workers so far.
    #[cfg(test)]
    pub(crate) woken: Gauge,
    born: Instant,
    /// That of the process that has the threads.
    generation: u32,
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

impl Running {
    /// Starts the threads, unless the pool has ended.
    fn start(nthread: usize, cpus: &[usize], ended: bool) -> io::Result<Self> {
        let running = Self(Arc::new(Shared {
            state: Lock::new(State::default()),
            work: CachePadded::default(),
            news: CachePadded::default(),
            done: CachePadded::default(),
            count: Arc::default(),
            step_nanos: Gauge::new(UNKNOWN),
            threads: Lock::default(),
            meters: (0..nthread).map(|_| CachePadded::default()).collect(),
            nthread,
            pinned: !cpus.is_empty(),
            ending: AtomicU32::new(0),
            #[cfg(test)]
            woken: Gauge::new(0),
            born: now(),
            generation: fork::generation(),
        }));
        let shared = &running.0;
        if ended {
            let mut state = shared.state.lock();
            state.stopping = true;
            // As if they had been there.
            state.gone = nthread;
            drop(state);
            shared.ending.store(1, Ordering::Relaxed);
            return Ok(running);
        }
        let mut threads = shared.threads.lock();
        for id in 0..nthread {
            // The caller of a request usually has slot 0.
            threads.working.push(worker::start(shared, id, id + 1)?);
            if let Some(&cpu) = cpus.get(id) {
                cpu::pin(&threads.working[id], cpu)?;
            }
        }
        drop(threads);
        Ok(running)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Inner {
    /// What the threads of this process share, if the pool has any here.
    pub(crate) fn current(&self) -> Option<&Arc<Shared>> {
        self.running.get().map(|Running(shared)| shared)
    }

    fn current_or_new(&self) -> io::Result<&Arc<Shared>> {
        let ended = self.ended.load(Ordering::Relaxed) != 0;
        let start = || Running::start(self.nthread, &self.cpus, ended);
        let Running(shared) = self.running.get_or_make(start)?;
        Ok(shared)
    }

    /// The same; in a forked child the threads are started if they have not been.
    pub(crate) fn threads(&self) -> Result<&Arc<Shared>, RunError> {
        let threads = self.current_or_new();
        threads.map_err(|refused| RunError::NoThreads(refused.to_string()))
    }

    /// The same, for a task.
    ///
    /// # Panics
    ///
    /// As [`Pool::schedule`].
    pub(crate) fn threads_to_schedule(&self) -> &Arc<Shared> {
        match self.threads() {
            Ok(shared) => shared,
            Err(refused) => panic!("{refused}"),
        }
    }
}

impl Shared {
    /// Whether the threads are those of a process that this one was forked from. Then
    /// nothing here may be waited for or locked, as they could hold it, and nothing freed.
    pub(crate) fn is_of_parent(&self) -> bool {
        self.generation != fork::generation()
    }

    /// How long the pool has lived, in nanoseconds.
    pub(crate) fn nanos(&self) -> u64 {
        u64::try_from((now() - self.born).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Hands a task to the workers, or runs it where there are none.
    pub(crate) fn schedule(&self, task: impl FnOnce() + Send + 'static, count: &Arc<Count>) {
        if self.nthread == 0 {
            if !self.ends() {
                group::run(task, count, self);
            }
            return;
        }
        let task = Task::new(task, count);
        if planted("advance-before-lock") {
            self.work.advance();
        }
        let mut state = self.state.lock();
        state.tasks.push_back(task);
        if !planted("advance-before-lock") {
            self.announce();
        }
        let wanted = state.tasks.len();
        self.wake_workers(state, wanted);
    }

    /// Adds a job that was begun, and leaves the lock held.
    pub(crate) fn open(&self, job: &Job, start: Start) -> Guard<'_, State> {
        // (Where callers do not work themselves they have no first step to measure.)
        let at_once = start == Start::AtOnce || self.is_pinned();
        let mut state = self.state.lock();
        state.open(job, at_once);
        self.announce();
        if !at_once || job.is_done() || !job.invite() {
            return state;
        }
        self.wake_workers(state, job.threads());
        self.state.lock()
    }

    /// Work was added: those who are about to sleep look again, and those who are in a
    /// request when they have ended a rollout. Called under the lock.
    pub(crate) fn announce(&self) {
        self.work.advance();
        self.news.advance();
    }

    /// The most threads that can take part in a request.
    pub(crate) fn threads_for(&self, request: &Request<'_>) -> usize {
        let callers = usize::from(!self.is_pinned());
        let threads = (self.nthread + callers).min(request.ndata());
        threads.min(request.nbatch()).max(1)
    }

    /// Whether the pool's own threads alone run rollouts.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pinned
    }

    /// Whether the pool is being ended.
    pub(crate) fn ends(&self) -> bool {
        self.ending.load(Ordering::Relaxed) != 0
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

    /// Wakes one more sleeping worker where there is still something to begin: the calling
    /// one, which is about to do something else, may have been counted on for it.
    pub(crate) fn wake_another(&self, state: Guard<'_, State>) {
        if state.sleeping > 0 && state.wants_workers() {
            let wanted = state.spinning + 1;
            self.wake_workers(state, wanted);
        }
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
        #[cfg(test)]
        self.woken.fetch_add(count as u64, Ordering::Relaxed);
        self.work.wake(count as u32);
    }
}

impl Pool {
    #[cfg(test)]
    pub(crate) fn know_step_time(&self, nanos: u64) {
        self.shared().step_nanos.store(nanos, Ordering::Relaxed);
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
        Self::on(nthread, &[])
    }

    /// Starts a pool of one thread for each of these CPUs, on which it stays: thread i on
    /// `cpus[i]`, and so a thread that takes its place.
    ///
    /// # Errors
    ///
    /// [`CpusError`]; but for [`Refused`](CpusError::Refused), no thread was started then.
    pub fn with_cpus(cpus: &[usize]) -> Result<Self, CpusError> {
        cpu::check(cpus)?;
        Self::on(cpus.len(), cpus).map_err(CpusError::Refused)
    }

    /// Starts threads, on these CPUs if there are any.
    fn on(nthread: usize, cpus: &[usize]) -> io::Result<Self> {
        fork::check()?;
        let inner = Inner {
            nthread,
            cpus: cpus.into(),
            ended: AtomicU32::new(0),
            running: Lineage::new(Running::start(nthread, cpus, false)?),
        };
        Ok(Pool {
            inner: Arc::new(inner),
        })
    }

    /// Starts the pool's threads in a forked child, where it begins without them, and does
    /// nothing otherwise. What needs them starts them by itself; this can tell that the
    /// system refuses them.
    ///
    /// # Errors
    ///
    /// When the system refuses a thread.
    pub fn start(&self) -> Result<(), RunError> {
        self.inner.threads().map(|_| ())
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        self.inner.current().expect("no test forks")
    }

    /// The number of threads of the pool.
    pub fn num_threads(&self) -> usize {
        self.inner.nthread
    }

    /// What each worker has done since the pool was made, by its id.
    pub fn stats(&self) -> Vec<WorkerStats> {
        let Some(shared) = self.inner.current() else {
            return vec![WorkerStats::default(); self.inner.nthread];
        };
        let now = shared.nanos();
        let meters = shared.meters.iter();
        meters.map(|meter| meter.stats(now)).collect()
    }

    /// The CPU that each thread stays on, for a pool that was started so
    /// ([`with_cpus`](Pool::with_cpus)); otherwise nothing.
    pub fn cpus(&self) -> &[usize] {
        &self.inner.cpus
    }

    /// Hands a task to the workers. It runs as soon as one is free, whether or
    /// not anybody waits, after the tasks scheduled before it have begun. (A task that forks
    /// should not return in the child: its thread is none of the pool's there, and ends, and
    /// with it the process, unless the child has started other threads.)
    ///
    /// # Panics
    ///
    /// In a forked child, when the system refuses the threads ([`start`](Pool::start)).
    pub fn schedule(&self, task: impl FnOnce() + Send + 'static) {
        // (The task may end the pool; its shared state outlives that.)
        let shared = Arc::clone(self.inner.threads_to_schedule());
        shared.schedule(task, &shared.count);
    }

    /// The number of tasks completed since the last reset, panicked ones included. Tasks of
    /// a [`Group`](crate::Group) are counted there.
    pub fn count(&self) -> u64 {
        self.inner.current().map_or(0, |shared| shared.count.get())
    }

    /// Sets the count to zero. The count is one for the whole pool: callers that share a
    /// pool must agree on who resets it, or each have a [`group`](Pool::group).
    pub fn reset_count(&self) {
        if let Some(shared) = self.inner.current() {
            shared.count.reset(shared);
        }
    }

    /// Waits until the count is at least `value`. What the counted tasks wrote is
    /// visible afterwards.
    ///
    /// # Errors
    ///
    /// [`WaitError::WouldDeadlock`] and [`WaitError::Forked`] at once, where the wait could
    /// never end; [`WaitError::TaskPanicked`] after the wait.
    pub fn wait_count(&self, value: u64) -> Result<(), WaitError> {
        // (A task may end the pool.)
        let current = self.inner.current().cloned();
        let current = current.as_ref();
        group::wait(current.map(|shared| (&**shared, &*shared.count)), value)
    }

    /// Runs all rollouts of a request and returns how they ended. The calling
    /// thread takes one of the request's data and works; workers take the others
    /// as they come free. With one data, or little to do, the caller does it all. Where
    /// threads have CPUs of their own ([`with_cpus`](Pool::with_cpus)) they alone work.
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
        self.run_paused(request, terms, None)
    }

    /// As [`run_on_terms`](Pool::run_on_terms), for a caller who has other things to do now
    /// and then, such as signals to handle. It comes back from the rollout that it is in
    /// the middle of, within a step of the time, and goes on with it after the pause, or
    /// whoever takes it up meanwhile does, with the same bits. Costs a reading of the clock
    /// for each of the caller's steps.
    ///
    /// # Errors
    ///
    /// [`RunError`].
    pub fn run_with_pauses(
        &self,
        request: &mut Request<'_>,
        terms: Terms,
        pauses: Pauses<'_>,
    ) -> Result<Tally, RunError> {
        self.run_paused(request, terms, Some(pauses))
    }

    fn run_paused(
        &self,
        request: &mut Request<'_>,
        terms: Terms,
        pauses: Option<Pauses<'_>>,
    ) -> Result<Tally, RunError> {
        let mut pausing = Pausing::new(pauses);
        // SAFETY: the request is borrowed exclusively, and so stays as it is, until the end
        // of this call.
        let claim = unsafe { begin(request)? };
        // (A callback may end the pool, by ending the process if in no other way.)
        let shared = &Arc::clone(self.inner.threads()?);
        let threads = shared.threads_for(request);
        let kind = Kind::Call {
            of_task: worker::is_worker_of(shared),
            counted: pausing.counts(),
        };
        // SAFETY: claimed and begun, and as above.
        let job = unsafe { Job::new(request, shared, threads, terms, kind) };
        if job.is_alone() {
            // SAFETY: nobody else knows of the job. The claim ends with this call.
            let work = unsafe { shared.run_alone(&job, &mut pausing) };
            pausing.finish(&job);
            if job.is_of_parent() {
                return Err(RunError::Forked);
            }
            return work.result(request.nbatch(), job.stopped());
        }
        // From here on other threads may use the job, which must not go away before it is
        // done. Panics of rollouts are caught where they are run; should anything else
        // fail, this ends the process rather than leave workers with a dangling job.
        let bomb = AbortOnUnwind;
        claim.keep();
        let mut state = shared.open(&job, Start::Attended);
        loop {
            shared.attend(state, &job, pausing.next());
            if job.is_done() || job.is_of_parent() {
                break;
            }
            if !pausing.pause(&job) {
                shared.stop(&job, Stop::Cancelled);
            }
            state = shared.state.lock();
        }
        mem::forget(bomb);
        pausing.finish(&job);
        match job.result() {
            Some(result) => result,
            // (A callback of a rollout has forked, and this is the child.)
            None if job.is_of_parent() => Err(RunError::Forked),
            None => unreachable!("an attended job is done"),
        }
    }

    /// Ends the pool: cancels the requests in flight, runs the tasks that were scheduled,
    /// with the requests that they [`run`](Pool::run), and those that they schedule, then
    /// ends the threads and waits for them. From inside the pool, in one of its tasks or
    /// rollouts, it does not wait. Dropping the pool does the same; a host whose tasks still
    /// hold the pool calls this first and drops it afterwards. Whatever is scheduled or
    /// submitted once the threads have ended never runs.
    pub fn end(&self) {
        self.inner.ended.store(1, Ordering::Relaxed);
        if let Some(shared) = self.inner.current() {
            shared.end();
        }
    }
}

impl Shared {
    /// See [`Pool::end`].
    fn end(&self) {
        let mut state = self.state.lock();
        state.stopping = true;
        self.ending.store(1, Ordering::Relaxed);
        state.cancel_all();
        self.work.advance();
        state = self.tell_waiters(state);
        drop(state);
        self.work.wake(u32::MAX);
        if self.is_inside() {
            // (What callers have left the workers end, if there are any.)
            if self.nthread == 0 {
                self.end_all_left();
            }
            return;
        }
        let mut state = self.state.lock();
        while mem::replace(&mut state.joining, true) {
            // Somebody else does the same.
            if state.ended {
                return;
            }
            state = self.sleep_until_told(state, None);
        }
        drop(state);
        loop {
            // Until the end a thread may be replaced by another one.
            let Threads { working, retired } = mem::take(&mut *self.threads.lock());
            if working.is_empty() && retired.is_empty() {
                break;
            }
            for thread in retired.into_iter().chain(working) {
                // A worker catches the panics of tasks; one of its own has already
                // been printed, and there is nobody to tell.
                let _ = thread.join();
            }
        }
        let mut state = self.end_all_left();
        while state.is_busy() {
            // Callers, who are at their last step.
            state = self.sleep_until_told(state, None);
            drop(state);
            state = self.end_all_left();
        }
        state.ended = true;
        self.tell_waiters(state);
    }

    /// Ends what callers have left of requests and no worker has taken: nobody may come
    /// back for it. Leaves the lock held.
    fn end_all_left(&self) -> Guard<'_, State> {
        let mut state = self.state.lock();
        while let Some(seat) = state.adopt() {
            drop(state);
            // SAFETY: the seat is this thread's.
            let work = unsafe { end_left(&seat) };
            state = self.leave(self.state.lock(), seat, work);
        }
        state
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
