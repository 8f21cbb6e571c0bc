//! A thread of the pool: it looks for work, does it, and sleeps when there is none.

use std::cell::Cell;
use std::hint;
use std::mem;
use std::ptr;
use std::time::{Duration, Instant};

use crate::pool::{AbortOnUnwind, Shared, State};
use crate::sync::Guard;

thread_local! {
    /// The pool that this thread belongs to, for comparison only, and its id there.
    static WORKER: Cell<(*const Shared, i32)> = const { Cell::new((ptr::null(), -1)) };
    /// The slot this thread had last, of whichever request: its caches know that data.
    static LAST_SLOT: Cell<usize> = const { Cell::new(0) };
}

/// The id of the calling worker in its pool, 0 .. nthread-1, or -1 on a thread
/// that is no pool's.
pub fn worker_id() -> i32 {
    WORKER.get().1
}

/// Whether the calling thread is a worker of this pool.
pub(crate) fn is_worker_of(shared: &Shared) -> bool {
    ptr::eq(WORKER.get().0, shared)
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
const SPIN: Duration = Duration::from_micros(50);

/// The life of worker `id`: until the pool stops and no task is left.
pub(crate) fn work(shared: &Shared, id: usize) {
    WORKER.set((shared, id as i32));
    // The caller of a request usually has slot 0.
    remember_slot(id + 1);

    // Panics of tasks and rollouts are caught where they are run. One in the
    // worker's own steps would leave its seat taken and its caller waiting.
    let bomb = AbortOnUnwind;
    let mut worked = false;
    let mut state = shared.state.lock();
    loop {
        if let Some(task) = state.tasks.pop_front() {
            drop(state);
            state = shared.run_task(task);
            worked = true;
        } else if let Some(seat) = state.join(preferred_slot()) {
            drop(state);
            remember_slot(seat.slot());
            let (tally, panic) = seat.work();
            state = shared.state.lock();
            state.leave(seat, tally, panic);
            state = shared.tell_waiters(state);
            worked = true;
        } else if state.stopping {
            mem::forget(bomb);
            return;
        } else {
            state = if worked {
                spin(shared, state)
            } else {
                sleep(shared, state)
            };
            worked = false;
        }
    }
}

/// Looks out for work for a while. Returns to look for it under the lock in any
/// case: something may have come at the very end.
fn spin<'s>(shared: &'s Shared, mut state: Guard<'s, State>) -> Guard<'s, State> {
    state.spinning += 1;
    let epoch = shared.work.epoch();
    drop(state);
    let start = Instant::now();
    while shared.work.epoch() == epoch && start.elapsed() < SPIN {
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
    shared.work.sleep(epoch);
    let mut state = shared.state.lock();
    state.sleeping -= 1;
    state
}
