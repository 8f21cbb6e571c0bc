//! What the pool waits with: a lock and a word to sleep on, made of atomics and
//! the kernel's futex.
//!
//! Not std's `Mutex` and `Condvar`, for two reasons. ThreadSanitizer does not
//! see into std as it is shipped, and calls correct programs racy; it does see
//! these atomics. And it keeps no table of parked threads, in which a forked child
//! would find threads that it does not have.

use std::cell::UnsafeCell;
use std::hint;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::time::{Duration, Instant};

pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Sleeps until `word` is no longer `expected`, for this time if one is given, or for no
/// reason at all.
fn futex_wait(word: &AtomicU32, expected: u32, time: Option<Duration>) {
    let time = time.map(|time| libc::timespec {
        // (A second or so more or less in half an eternity.)
        tv_sec: time.as_secs().min(1 << 40) as libc::time_t,
        tv_nsec: time.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the word is a valid, aligned u32 for the duration of the call, and so is the
    // time, if there is one.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            time,
        );
    }
}

/// Wakes at most `count` of the threads that sleep on `word`.
fn futex_wake(word: &AtomicU32, count: u32) {
    let count = count.min(i32::MAX as u32);
    // SAFETY: the word is a valid, aligned u32; the kernel reads only its address.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            count,
        );
    }
}

/// A number that changes, and threads that sleep until it does.
#[derive(Debug, Default)]
pub(crate) struct Event {
    epoch: AtomicU32,
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
            futex_wake(&self.epoch, count);
        }
    }

    /// Sleeps while the number is `epoch`, and until this time; may return early.
    pub(crate) fn sleep(&self, epoch: u32, until: Option<Instant>) {
        let time = until.map(|until| until.saturating_duration_since(Instant::now()));
        futex_wait(&self.epoch, epoch, time);
    }
}

/// A lock for sections of a few dozen instructions.
#[derive(Debug, Default)]
pub(crate) struct Lock<T> {
    /// 0: free. 1: held. 2: held, and somebody may sleep.
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives its value to one thread at a time, which may be any.
unsafe impl<T: Send> Sync for Lock<T> {}

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            state: AtomicU32::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    pub(crate) fn lock(&self) -> Guard<'_, T> {
        // Acquire, with the Release of the unlock: what the last holder wrote is
        // visible.
        if self
            .state
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            self.lock_contended();
        }
        Guard {
            lock: self,
            value: PhantomData,
        }
    }

    /// The guard, unless the lock is held.
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        let locked = self
            .state
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        locked.is_ok().then_some(Guard {
            lock: self,
            value: PhantomData,
        })
    }

    /// The guard of a lock that is held, and whose guard was forgotten.
    ///
    /// # Safety
    ///
    /// * The calling thread holds the lock, and there is no other guard of it.
    pub(crate) unsafe fn held(&self) -> Guard<'_, T> {
        Guard {
            lock: self,
            value: PhantomData,
        }
    }

    #[cold]
    fn lock_contended(&self) {
        // Sections are short: the holder is usually done long before a sleep and a
        // wake-up would be (`worker::SPIN`).
        for _ in 0..100 {
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
            futex_wait(&self.state, CONTENDED, None);
        }
    }
}

/// The right to a lock's value.
#[derive(Debug)]
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// Shared, a guard gives `&T`: it is as much for other threads as that.
    value: PhantomData<&'a mut T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard's thread holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard's thread holds the lock, and the guard is borrowed
        // exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        // Release, with the Acquire of the next lock.
        if self.lock.state.swap(FREE, Ordering::Release) == CONTENDED {
            futex_wake(&self.lock.state, 1);
        }
    }
}

#[cfg(test)]
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
