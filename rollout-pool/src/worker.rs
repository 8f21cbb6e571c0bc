//! A thread of the pool: it looks for work, does it, and sleeps when there is none.

use std::cell::Cell;
use std::hint;
use std::io;
use std::mem;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use rollout_core::trap::is_spent;

use crate::job::Watch;
use crate::pool::{AbortOnUnwind, Shared};
use crate::spawn::spawn;
use crate::state::State;
#[cfg(loom)]
use crate::sync::LocalCell;
use crate::sync::{Gauge, Guard, JoinHandle, Ordering, is_current, now, per_thread};

per_thread! {
    /// What this thread is.
    static IDENTITY: Cell<Identity> = Cell::new(Identity::NONE);
    /// The slot this thread had last, of whichever request: its caches know that data.
    static LAST_SLOT: Cell<usize> = Cell::new(0);
}

/// What a thread is in its pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    /// The address of what the pool's threads share, for comparison only.
    pool: usize,
    id: i32,
}

impl Identity {
    const NONE: Self = Self { pool: 0, id: -1 };

    /// The calling thread's.
    pub(crate) fn get() -> Self {
        IDENTITY.get()
    }

    /// Makes it the calling thread's, which stands in for another one.
    pub(crate) fn assume(self) {
        IDENTITY.set(self);
    }
}

/// The id of the calling worker in its pool, 0 .. nthread-1, or -1 on a thread
/// that is no pool's.
pub fn worker_id() -> i32 {
    IDENTITY.get().id
}

/// Whether the calling thread is a worker of this pool.
pub(crate) fn is_worker_of(shared: &Shared) -> bool {
    IDENTITY.get().pool == ptr::from_ref(shared).addr()
}

/// In a forked child there are no workers of the parent's pools, this thread included.
pub(crate) fn after_fork() {
    IDENTITY.set(Identity::NONE);
}

/// The slot that suits the calling thread best.
pub(crate) fn preferred_slot() -> usize {
    LAST_SLOT.get()
}

/// Remembers which slot the calling thread had.
pub(crate) fn remember_slot(slot: usize) {
    LAST_SLOT.set(slot);
}

/// How long a worker that has just worked looks out for more before it sleeps:
/// long enough to catch a caller that comes back at once, as a control loop
/// does, too short to be felt by whoever else wants the CPU. It is what five calls
/// that wake a sleeper cost: 10 microseconds each, and the sleeper runs after 7
/// (futex ping-pong between two threads, AMD EPYC, 2 CPUs, KVM, 2026-11-30).
const SPIN: Duration = Duration::from_micros(if cfg!(loom) { 0 } else { 50 });

/// Starts worker `id`, which prefers this slot.
///
/// # Errors
///
/// When the system refuses.
pub(crate) fn start(shared: &Arc<Shared>, id: usize, slot: usize) -> io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    let body = move || {
        let pool = Arc::as_ptr(&shared).addr();
        Identity {
            pool,
            id: id as i32,
        }
        .assume();
        remember_slot(slot);
        work(&shared, id);
        if shared.is_of_parent() {
            mem::forget(shared);
        }
    };
    // SAFETY: nothing is borrowed.
    unsafe { spawn(format!("rollout-{id}"), body) }
}

/// Starts a thread in place of the calling worker, which ends then, after it has joined
/// those that are returned.
///
/// # Errors
///
/// When the system refuses.
fn replace(shared: &Arc<Shared>, id: usize) -> io::Result<Retired> {
    let mut threads = shared.threads.lock();
    let thread = start(shared, id, preferred_slot())?;
    // (Whoever ends the pool may have taken the list already, and waits.)
    let place = threads.working.iter().position(is_current);
    let me = place.map(|place| threads.working.swap_remove(place));
    threads.working.push(thread);
    Ok(Retired(match me {
        Some(me) => mem::replace(&mut threads.retired, vec![me]),
        None => Vec::new(),
    }))
}

/// Threads that were replaced, and are joined when this is dropped: when nobody waits for
/// the one that does it.
struct Retired(Vec<JoinHandle<()>>);

impl Drop for Retired {
    fn drop(&mut self) {
        for thread in self.0.drain(..) {
            // Its panics were caught (`Pool::end`).
            let _ = thread.join();
        }
    }
}

/// The life of worker `id`: until the pool stops and no task is left, or until an
/// engine error has spent this thread and another one has its place.
fn work(shared: &Arc<Shared>, id: usize) {
    // Panics of tasks and rollouts are caught where they are run. One in the
    // worker's own steps would leave its seat taken and its caller waiting.
    let bomb = AbortOnUnwind;
    let meter = &*shared.meters[id];
    // This thread must not run rollouts, and the system has refused it another one.
    let mut spent = false;
    let mut worked = false;
    let mut retired = None;
    let mut state = shared.state.lock();
    loop {
        // (A task can have done it, or the system has refused a thread before.)
        if is_spent() && !state.stopping {
            drop(state);
            let replaced = replace(shared, id);
            state = shared.state.lock();
            state.spent -= usize::from(spent);
            let was_spent = mem::replace(&mut spent, replaced.is_err());
            state.spent += usize::from(spent);
            if let Ok(before) = replaced {
                retired = Some(before);
                break;
            }
            if !was_spent && state.has_no_worker(shared.nthread) {
                // Whoever has relied on the last worker; and there may be work by now.
                state = shared.tell_waiters(state);
            }
        }
        if let Some(task) = state.tasks.pop_front() {
            shared.wake_another(state);
            meter.begin(shared.nanos());
            task.run(shared);
            if shared.is_of_parent() {
                // The task has forked, and this is the child: this thread is no worker there.
                mem::forget(bomb);
                return;
            }
            meter.end(shared.nanos(), [1, 0, 0]);
            state = shared.state.lock();
            worked = true;
        } else if let Some(seat) = state.join(preferred_slot()) {
            // Read before the lock is let go of: whatever comes later has another number.
            let epoch = shared.news.epoch();
            shared.wake_another(state);
            meter.begin(shared.nanos());
            remember_slot(seat.slot());
            let mut watch = Watch::new(seat.job(), seat.slot()).unless_others(&shared.news, epoch);
            // SAFETY: the seat is this thread's.
            let mut work = unsafe { seat.job().participate(seat.place(), &mut watch) };
            if shared.is_of_parent() {
                mem::forget(bomb);
                return;
            }
            meter.end(shared.nanos(), [0, watch.rollouts(), watch.steps()]);
            // The other thread is there before the place is free for it.
            let must_go = work.is_unfinished() && !seat.job().is_welcome();
            let replaced = must_go.then(|| replace(shared, id));
            if let Some(Err(why)) = &replaced {
                work.refuse(why);
            }
            state = shared.state.lock();
            // Counted before anybody is told what is left, who may have to do it.
            if matches!(replaced, Some(Err(_))) && !spent {
                spent = true;
                state.spent += 1;
            }
            state = shared.leave(state, seat, work);
            if let Some(Ok(before)) = replaced {
                retired = Some(before);
                break;
            }
            worked = true;
        } else if state.stopping {
            state.gone += 1;
            // (Not counted twice.)
            state.spent -= usize::from(spent);
            // For those who wait for more tasks than there were, or have relied on the last
            // worker.
            state = shared.tell_waiters(state);
            break;
        } else {
            state = if worked {
                spin(shared, state)
            } else {
                sleep(shared, state)
            };
            worked = false;
        }
    }
    drop(state);
    drop(retired);
    mem::forget(bomb);
}

/// What a worker has done, since its pool was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerStats {
    /// The time that it has worked, on tasks and rollouts.
    pub busy: Duration,
    /// The time that it has not.
    pub idle: Duration,
    /// Tasks that it has run.
    pub tasks: u64,
    /// Rollouts that have ended on it.
    pub rollouts: u64,
    /// Steps that it has made.
    pub steps: u64,
}

/// What a worker counts: written by it alone, and read by anybody. (Relaxed throughout:
/// numbers to look at, which publish nothing.)
#[derive(Debug, Default)]
pub(crate) struct WorkerMeter {
    /// In nanoseconds, without the work that it is at.
    busy: Gauge,
    /// When the work that it is at began, in nanoseconds of the pool's life, or 0.
    since: Gauge,
    /// Tasks, rollouts, steps.
    counts: [Gauge; 3],
}

impl WorkerMeter {
    fn begin(&self, now: u64) {
        self.since.store(now.max(1), Ordering::Relaxed);
    }

    fn end(&self, now: u64, counts: [u64; 3]) {
        let since = self.since.swap(0, Ordering::Relaxed);
        self.busy
            .fetch_add(now.saturating_sub(since), Ordering::Relaxed);
        for (total, count) in self.counts.iter().zip(counts) {
            total.fetch_add(count, Ordering::Relaxed);
        }
    }

    pub(crate) fn stats(&self, now: u64) -> WorkerStats {
        let busy = self.busy.load(Ordering::Relaxed);
        let busy = match self.since.load(Ordering::Relaxed) {
            0 => busy,
            since => busy + now.saturating_sub(since),
        };
        let [tasks, rollouts, steps] = [0, 1, 2].map(|i| self.counts[i].load(Ordering::Relaxed));
        WorkerStats {
            busy: Duration::from_nanos(busy),
            idle: Duration::from_nanos(now.saturating_sub(busy)),
            tasks,
            rollouts,
            steps,
        }
    }
}

/// Looks out for work for a while. Returns to look for it under the lock in any
/// case: something may have come at the very end.
fn spin<'s>(shared: &'s Shared, mut state: Guard<'s, State>) -> Guard<'s, State> {
    state.spinning += 1;
    let epoch = shared.work.epoch();
    drop(state);
    let start = now();
    while shared.work.epoch() == epoch && now() - start < SPIN {
        for _ in 0..8 {
            hint::spin_loop();
        }
    }
    let mut state = shared.state.lock();
    state.spinning -= 1;
    state
}

/// Sleeps until there may be work. Whoever adds work does so under the lock, and
/// advances the event there: either it comes before this section, and then the
/// worker has seen the work, or after, and then it finds a sleeper counted and
/// the kernel finds the epoch changed.
fn sleep<'s>(shared: &'s Shared, mut state: Guard<'s, State>) -> Guard<'s, State> {
    state.sleeping += 1;
    let epoch = shared.work.epoch();
    drop(state);
    shared.work.sleep(epoch, None);
    let mut state = shared.state.lock();
    state.sleeping -= 1;
    state
}
