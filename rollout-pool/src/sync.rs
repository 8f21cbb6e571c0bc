//! What the pool waits with: a lock and a word to sleep on, made of atomics and
//! the kernel's futex. And whatever else loom must have in its own hands to run the pool
//! in every order: threads, thread-locals, the clock (`cfg(loom)`, `sync/model.rs`).
//!
//! Not std's `Mutex` and `Condvar`, for two reasons. ThreadSanitizer does not
//! see into std as it is shipped, and calls correct programs racy; it does see
//! these atomics. And it keeps no table of parked threads, in which a forked child
//! would find threads that it does not have.

use std::cell::UnsafeCell;
use std::hint;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::Instant;

#[cfg(not(loom))]
mod kernel;
#[cfg(loom)]
mod model;
#[cfg(not(loom))]
mod thread;

#[cfg(not(loom))]
use kernel as machine;
#[cfg(loom)]
use model as machine;

use machine::Word;
pub(crate) use machine::{
    AtomicU32, AtomicU64, AtomicUsize, Guard, JoinHandle, Lock, Unlocked, is_current, now,
    spawn_unchecked,
};
#[cfg(loom)]
pub(crate) use model::LocalCell;
/// A number that publishes nothing, and that no result depends on: no matter for loom.
pub(crate) use std::sync::atomic::AtomicU64 as Gauge;
pub(crate) use std::sync::atomic::Ordering;
/// What changes in forked children only, which loom does not have.
pub(crate) use std::sync::atomic::{AtomicPtr as ForkPtr, AtomicU32 as ForkNumber};

/// How often a waiter looks before it sleeps: a few microseconds, less than the call
/// that would wake it costs the thread it waits for (`worker::SPIN`).
pub(crate) const WAIT_SPINS: usize = if cfg!(loom) { 1 } else { 500 };

/// How often a lock is looked at before its waiter sleeps.
const LOCK_SPINS: usize = if cfg!(loom) { 1 } else { 100 };

/// Thread-local cells.
macro_rules! per_thread {
    ($($(#[$doc:meta])* $seen:vis static $name:ident: $type:ty = $value:expr;)*) => {
        #[cfg(not(loom))]
        std::thread_local! { $($(#[$doc])* $seen static $name: $type = const { $value };)* }
        #[cfg(loom)]
        loom::thread_local! { $($(#[$doc])* $seen static $name: $type = $value;)* }
    };
}
pub(crate) use per_thread;

/// Whether a tool has planted this fault, and is to find it: `cargo xtask loom` and
/// `cargo xtask tsan` prove by these that they look. Nothing else is built with them.
#[cfg(not(planted))]
pub(crate) const fn planted(_fault: &str) -> bool {
    false
}

/// As above, in a build of such a tool.
#[cfg(planted)]
pub(crate) fn planted(fault: &str) -> bool {
    static FAULT: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var("ROLLOUT_PLANTED").ok());
    FAULT.as_deref() == Some(fault)
}

/// A number that changes, and threads that sleep until it does.
#[derive(Debug, Default)]
pub(crate) struct Event {
    epoch: Word,
}

impl Event {
    /// The number as it is now. Read it before looking for what is waited for,
    /// or under the lock that [`advance`](Event::advance) is called under.
    pub(crate) fn epoch(&self) -> u32 {
        // Acquire, with the Release of `advance`: who sees the number sees what
        // was done before it.
        self.epoch.load(Ordering::Acquire)
    }

    /// Changes the number. Wakes nobody.
    pub(crate) fn advance(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Wakes at most `count` sleepers.
    pub(crate) fn wake(&self, count: u32) {
        if count > 0 {
            self.epoch.wake(count);
        }
    }

    /// Sleeps while the number is `epoch`, and until this time; may return early.
    pub(crate) fn sleep(&self, epoch: u32, until: Option<Instant>) {
        let time = until.map(|until| until.saturating_duration_since(now()));
        self.epoch.wait(epoch, time);
    }
}

/// A lock for sections of a few dozen instructions.
#[derive(Debug, Default)]
pub(crate) struct WordLock<T> {
    /// 0: free. 1: held. 2: held, and somebody may sleep.
    state: Word,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives its value to one thread at a time, which may be any.
unsafe impl<T: Send> Sync for WordLock<T> {}

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

impl<T> WordLock<T> {
    #[cfg(not(loom))]
    pub(crate) const fn new(value: T) -> Self {
        Self {
            state: Word::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    pub(crate) fn lock(&self) -> WordGuard<'_, T> {
        // Acquire, with the Release of the unlock: what the last holder wrote is
        // visible.
        if self
            .state
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            self.lock_contended();
        }
        WordGuard {
            lock: self,
            value: PhantomData,
        }
    }

    /// The guard, unless the lock is held.
    #[cfg(not(loom))]
    pub(crate) fn try_lock(&self) -> Option<WordGuard<'_, T>> {
        let locked = self
            .state
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        locked.is_ok().then_some(WordGuard {
            lock: self,
            value: PhantomData,
        })
    }

    /// The guard of a lock that is held, and whose guard was forgotten.
    ///
    /// # Safety
    ///
    /// * The calling thread holds the lock, and there is no other guard of it.
    #[cfg(not(loom))]
    pub(crate) unsafe fn held(&self) -> WordGuard<'_, T> {
        WordGuard {
            lock: self,
            value: PhantomData,
        }
    }

    #[cold]
    fn lock_contended(&self) {
        // Sections are short: the holder is usually done long before a sleep and a
        // wake-up would be (`worker::SPIN`).
        for _ in 0..LOCK_SPINS {
            if self.state.load(Ordering::Relaxed) == FREE
                && self
                    .state
                    .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return;
            }
            hint::spin_loop();
        }
        // Whoever gets the lock here cannot know whether others sleep too, so it
        // leaves the mark that makes its unlock wake one of them.
        while self.state.swap(CONTENDED, Ordering::Acquire) != FREE {
            self.state.wait(CONTENDED, None);
        }
    }
}

/// The right to a lock's value.
#[derive(Debug)]
pub(crate) struct WordGuard<'a, T> {
    lock: &'a WordLock<T>,
    /// Shared, a guard gives `&T`: it is as much for other threads as that.
    value: PhantomData<&'a mut T>,
}

impl<T> Deref for WordGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard's thread holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for WordGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard's thread holds the lock, and the guard is borrowed
        // exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for WordGuard<'_, T> {
    fn drop(&mut self) {
        // Release, with the Acquire of the next lock.
        if self.lock.state.swap(FREE, Ordering::Release) == CONTENDED {
            self.lock.state.wake(1);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn the_lock_excludes() {
        let total = Arc::new(Lock::new(0_u64));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let total = Arc::clone(&total);
                thread::spawn(move || {
                    for _ in 0..20_000 {
                        let mut total = total.lock();
                        // A read and a write that would be torn without the lock.
                        let seen = *total;
                        *total = seen + 1;
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(*total.lock(), 80_000);
    }

    #[test]
    fn an_event_that_has_advanced_does_not_put_to_sleep() {
        let event = Event::default();
        let seen = event.epoch();
        event.advance();
        event.sleep(seen, None);
        assert_ne!(event.epoch(), seen);
    }

    #[test]
    fn an_event_wakes_its_sleeper() {
        let event = Arc::new(Event::default());
        let seen = event.epoch();
        let sleeper = thread::spawn({
            let event = Arc::clone(&event);
            move || {
                while event.epoch() == seen {
                    event.sleep(seen, None);
                }
            }
        });
        event.advance();
        event.wake(1);
        sleeper.join().unwrap();
    }
}
