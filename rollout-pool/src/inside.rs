//! Which requests the calling thread is inside of: whoever waits for them in a callback
//! would wait for itself.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;

use crate::job::Job;
use crate::pool::Shared;
#[cfg(loom)]
use crate::sync::LocalCell;
use crate::sync::per_thread;

/// A thread's part in a job, on its stack.
#[derive(Debug)]
pub(crate) struct Frame {
    /// For comparison only.
    pool: *const Shared,
    job: *const Job,
    outer: Cell<*const Frame>,
}

per_thread! {
    static INNERMOST: Cell<*const Frame> = Cell::new(ptr::null());
}

impl Frame {
    pub(crate) fn new(pool: *const Shared, job: *const Job) -> Self {
        Self {
            pool,
            job,
            outer: Cell::new(ptr::null()),
        }
    }

    /// The calling thread is in this frame until the result is dropped.
    pub(crate) fn enter(&self) -> Entered<'_> {
        self.outer.set(INNERMOST.replace(self));
        Entered {
            outer: self.outer.get(),
            _frame: PhantomData,
        }
    }
}

/// See [`Frame::enter`].
pub(crate) struct Entered<'f> {
    outer: *const Frame,
    _frame: PhantomData<&'f Frame>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        INNERMOST.set(self.outer);
    }
}

/// The calling thread's innermost frame, for a thread that stands in for it.
pub(crate) fn innermost() -> *const Frame {
    INNERMOST.get()
}

/// The calling thread stands in for another one, which waits in this frame meanwhile.
pub(crate) fn assume(frame: *const Frame) {
    INNERMOST.set(frame);
}

/// Forgets the frames in a forked child: they are of requests that are the parent's, and
/// those of a thread that this one stands in for are on a stack that the child may use for
/// another one.
pub(crate) fn after_fork() {
    INNERMOST.set(ptr::null());
}

fn any(is: impl Fn(&Frame) -> bool) -> bool {
    let mut frame = INNERMOST.get();
    // SAFETY: a frame in this list is entered, by this thread or by one that waits for it,
    // and so borrowed.
    while let Some(entered) = unsafe { frame.as_ref() } {
        if is(entered) {
            return true;
        }
        frame = entered.outer.get();
    }
    false
}

/// Whether the calling thread is inside a request of this pool.
pub(crate) fn is_inside(pool: &Shared) -> bool {
    any(|frame| ptr::eq(frame.pool, pool))
}

/// Whether the calling thread is inside this job.
pub(crate) fn is_inside_job(job: &Job) -> bool {
    any(|frame| ptr::eq(frame.job, job))
}
