//! Tasks and their counts.

use std::convert::Infallible;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use rollout_core::simulator::panic_text;

use crate::lineage::Lineage;
use crate::pool::{Inner, Pool, RunError, Shared, WaitError};
use crate::sync::{AtomicU64, Lock, Ordering};

/// A task that nobody has begun.
pub(crate) struct Task {
    body: Box<dyn FnOnce() + Send>,
    /// Where it is counted.
    count: Arc<Count>,
}

/// Tasks completed since the last reset.
#[derive(Debug, Default)]
pub(crate) struct Count {
    /// Changed under the pool's lock.
    completed: AtomicU64,
    /// The first panic of a task that no waiter has been told of.
    panic: Lock<Option<String>>,
}

impl Task {
    pub(crate) fn new(body: impl FnOnce() + Send + 'static, count: &Arc<Count>) -> Self {
        Self {
            body: Box::new(body),
            count: Arc::clone(count),
        }
    }

    /// Runs it and counts it.
    pub(crate) fn run(self, shared: &Shared) {
        let Self { body, count } = self;
        run(body, &count, shared);
    }
}

/// Runs a task and counts it. The pool's lock is not held meanwhile.
pub(crate) fn run(body: impl FnOnce(), count: &Count, shared: &Shared) {
    let panic = panic::catch_unwind(AssertUnwindSafe(body));
    if shared.is_of_parent() {
        // The task has forked, and this is the child, where it is not counted.
        return;
    }
    if let Err(payload) = panic {
        let text = panic_text(&*payload).to_owned();
        count.panic.lock().get_or_insert(text);
    }
    let state = shared.state.lock();
    // Release, with the Acquire of `Count::get`: who sees the count sees what the task did.
    count.completed.fetch_add(1, Ordering::Release);
    shared.tell_waiters(state);
}

impl Count {
    pub(crate) fn get(&self) -> u64 {
        // Acquire: who sees the count sees what the tasks did.
        self.completed.load(Ordering::Acquire)
    }

    pub(crate) fn reset(&self, shared: &Shared) {
        let _state = shared.state.lock();
        self.completed.store(0, Ordering::Release);
    }

    /// Waits until the count is at least `value`.
    pub(crate) fn wait(&self, shared: &Shared, value: u64) -> Result<(), WaitError> {
        if shared.would_deadlock() && self.get() < value {
            return Err(WaitError::WouldDeadlock);
        }
        if !shared.wait_until(|| self.get() >= value) {
            return Err(WaitError::WouldDeadlock);
        }
        match self.panic.lock().take() {
            None => Ok(()),
            Some(text) => Err(WaitError::TaskPanicked(text)),
        }
    }
}

/// Waits for a count, if it is of this process.
pub(crate) fn wait(current: Option<(&Shared, &Count)>, value: u64) -> Result<(), WaitError> {
    match current {
        Some((shared, count)) => count.wait(shared, value),
        None if value == 0 => Ok(()),
        None => Err(WaitError::Forked),
    }
}

/// Tasks of one caller on a pool that others use too, with a count of their own. What is
/// scheduled here is not in the pool's count.
///
/// All methods may be called from any number of threads at once.
pub struct Group {
    pool: Arc<Inner>,
    count: Lineage<Arc<Count>>,
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("count", &self.count())
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// Makes a group of tasks. It may outlive its pool; what is scheduled then never runs.
    pub fn group(&self) -> Group {
        Group {
            pool: Arc::clone(self.inner()),
            count: Lineage::new(Arc::default()),
        }
    }
}

impl Group {
    /// As [`Pool::start`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn start(&self) -> Result<(), RunError> {
        self.pool.threads().map(|_| ())
    }

    /// As [`Pool::schedule`].
    ///
    /// # Panics
    ///
    /// As there.
    pub fn schedule(&self, task: impl FnOnce() + Send + 'static) {
        let shared = Arc::clone(self.pool.threads_to_schedule());
        let Ok(count) = self
            .count
            .get_or_make(|| Ok::<_, Infallible>(Arc::default()));
        shared.schedule(task, count);
    }

    /// What the pool's threads share, and the count, if they are of this process.
    fn current(&self) -> Option<(&Shared, &Count)> {
        Some((self.pool.current()?, self.count.get()?))
    }

    /// The number of the group's tasks completed since its last reset, panicked ones
    /// included.
    pub fn count(&self) -> u64 {
        self.count.get().map_or(0, |count| count.get())
    }

    /// Sets the count to zero.
    pub fn reset_count(&self) {
        if let Some((shared, count)) = self.current() {
            count.reset(shared);
        }
    }

    /// As [`Pool::wait_count`], for the group's count.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn wait_count(&self, value: u64) -> Result<(), WaitError> {
        wait(self.current(), value)
    }
}
