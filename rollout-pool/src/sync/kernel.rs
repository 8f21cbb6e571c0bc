//! The machine as it is: std's atomics and clock, the kernel's futex and threads.

use std::cell::UnsafeCell;
use std::ops::Deref;
use std::ptr;
use std::time::Duration;

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

pub(crate) use super::thread::{JoinHandle, is_current, spawn_unchecked};
pub(crate) use super::{WordGuard as Guard, WordLock as Lock};

/// The time.
pub(crate) fn now() -> std::time::Instant {
    std::time::Instant::now()
}

/// A number that threads can sleep on.
#[derive(Debug, Default)]
pub(super) struct Word(AtomicU32);

impl Word {
    pub(super) const fn new(value: u32) -> Self {
        Self(AtomicU32::new(value))
    }

    /// Sleeps until the number is no longer `expected`, for this time if one is given, or
    /// for no reason at all.
    pub(super) fn wait(&self, expected: u32, time: Option<Duration>) {
        let time = time.map(|time| libc::timespec {
            // (A second or so more or less in half an eternity.)
            tv_sec: time.as_secs().min(1 << 40) as libc::time_t,
            tv_nsec: time.subsec_nanos().into(),
        });
        let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the word is a valid, aligned u32 for the duration of the call, and so is
        // the time, if there is one.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                expected,
                time,
            );
        }
    }

    /// Wakes at most `count` of the threads that sleep here.
    pub(super) fn wake(&self, count: u32) {
        let count = count.min(i32::MAX as u32);
        // SAFETY: the word is a valid, aligned u32; the kernel reads only its address.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                count,
            );
        }
    }
}

impl Deref for Word {
    type Target = AtomicU32;

    fn deref(&self) -> &AtomicU32 {
        &self.0
    }
}

/// A value that no lock protects: whoever reads or writes it says why nobody else does.
#[derive(Debug, Default)]
pub(crate) struct Unlocked<T>(UnsafeCell<T>);

impl<T> Unlocked<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// For a read.
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// For a write.
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}
