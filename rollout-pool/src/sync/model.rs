//! The machine as loom has it, which runs threads in every order that there is.
//!
//! * The pool's lock is loom's mutex, which gives every order of sections in fewer steps
//!   than a lock made of atomics. ([`WordLock`](super::WordLock) has a model of its own.)
//! * A futex is a number, a lock that looking at it and going to sleep is one step under,
//!   and the threads that sleep.
//! * A sleep that has an end returns at once: the earliest that it can, which loses
//!   nothing that a later one would find.
//! * The clock stands still. What is due is due from the beginning, and a thread that is
//!   to pause at a time makes one step.

use std::cell::Cell;
use std::io;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use loom::sync::{Condvar, Mutex, MutexGuard};

pub(crate) use loom::cell::UnsafeCell as Unlocked;
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
pub(crate) use loom::thread::JoinHandle;

/// The time.
pub(crate) fn now() -> Instant {
    static NOW: LazyLock<Instant> = LazyLock::new(Instant::now);
    *NOW
}

/// A number that threads can sleep on.
#[derive(Debug, Default)]
pub(super) struct Word {
    number: AtomicU32,
    queue: Mutex<usize>,
    sleepers: Condvar,
}

impl Word {
    /// Sleeps until it is woken, unless the number is no longer `expected`.
    pub(super) fn wait(&self, expected: u32, time: Option<Duration>) {
        if time.is_some() {
            loom::thread::yield_now();
            return;
        }
        let mut queue = self.queue.lock().unwrap();
        // (The kernel looks with a full barrier, and so does a read-modify-write.)
        if self.number.fetch_add(0, super::Ordering::AcqRel) != expected {
            return;
        }
        *queue += 1;
        drop(self.sleepers.wait(queue).unwrap());
    }

    /// Wakes at most `count` of the threads that sleep here.
    pub(super) fn wake(&self, count: u32) {
        let mut queue = self.queue.lock().unwrap();
        for _ in 0..count {
            if *queue == 0 {
                return;
            }
            *queue -= 1;
            self.sleepers.notify_one();
        }
    }
}

impl Deref for Word {
    type Target = AtomicU32;

    fn deref(&self) -> &AtomicU32 {
        &self.number
    }
}

/// The pool's lock.
#[derive(Debug, Default)]
pub(crate) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> Guard<'_, T> {
        Guard(self.0.lock().unwrap())
    }
}

/// The right to a lock's value.
#[derive(Debug)]
pub(crate) struct Guard<'a, T>(MutexGuard<'a, T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// What std's thread-local cells can do.
pub(crate) trait LocalCell<T> {
    fn get(&'static self) -> T
    where
        T: Copy;
    fn set(&'static self, value: T);
    fn replace(&'static self, value: T) -> T;
}

impl<T: 'static> LocalCell<T> for loom::thread::LocalKey<Cell<T>> {
    fn get(&'static self) -> T
    where
        T: Copy,
    {
        self.with(Cell::get)
    }

    fn set(&'static self, value: T) {
        self.with(|cell| cell.set(value));
    }

    fn replace(&'static self, value: T) -> T {
        self.with(|cell| cell.replace(value))
    }
}

/// Whether it is the calling thread's.
pub(crate) fn is_current<T>(thread: &JoinHandle<T>) -> bool {
    thread.thread().id() == loom::thread::current().id()
}

/// Starts a thread.
///
/// # Safety
///
/// * What `body` borrows lives until the thread has ended.
pub(crate) unsafe fn spawn_unchecked<'a, T: Send + 'static>(
    _name: String,
    _stack_size: usize,
    body: impl FnOnce() -> T + Send + 'a,
) -> io::Result<JoinHandle<T>> {
    // The result goes the way of the body, so that loom need not know its lifetime.
    let body: Box<dyn FnOnce() -> T + Send + 'a> = Box::new(body);
    // SAFETY: the caller's promise.
    let body: Box<dyn FnOnce() -> T + Send + 'static> = unsafe { mem::transmute(body) };
    Ok(loom::thread::spawn(body))
}
