//! What each process has its own of.

use std::ptr;

use crate::fork::generation;
use crate::sync::{ForkPtr, Ordering};

/// A value that each process has its own of. A forked child leaves that of its parent
/// alone, whose locks may be held for ever, and makes another one when it needs it.
#[derive(Debug)]
pub(crate) struct Lineage<T> {
    /// Never null. From a box; the older ones stay where they are.
    newest: ForkPtr<OfProcess<T>>,
}

#[derive(Debug)]
struct OfProcess<T> {
    generation: u32,
    value: T,
}

impl<T> OfProcess<T> {
    fn new(value: T) -> *mut Self {
        let generation = generation();
        Box::into_raw(Box::new(Self { generation, value }))
    }

    fn is_current(&self) -> bool {
        self.generation == generation()
    }
}

// SAFETY: gives out shared references to its values on any thread, and drops the newest on
// any thread; the older ones are never touched again.
unsafe impl<T: Send + Sync> Send for Lineage<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Lineage<T> {}

impl<T> Lineage<T> {
    /// With the value of this process.
    pub(crate) fn new(value: T) -> Self {
        Self {
            newest: ForkPtr::new(OfProcess::new(value)),
        }
    }

    fn newest(&self) -> &OfProcess<T> {
        // Acquire, with the Release of `get_or_make`.
        let newest = self.newest.load(Ordering::Acquire);
        // SAFETY: from a box. What is replaced is kept, and the newest is dropped with this.
        unsafe { &*newest }
    }

    /// The value of this process, if it has one.
    pub(crate) fn get(&self) -> Option<&T> {
        let newest = self.newest();
        newest.is_current().then_some(&newest.value)
    }

    /// The value of this process, made now if it has none. Several threads may make one at
    /// once: that of the first to be done stays, and the others' are dropped. (A lock
    /// around this could be held for ever in a child of the child.)
    pub(crate) fn get_or_make<E>(&self, make: impl Fn() -> Result<T, E>) -> Result<&T, E> {
        loop {
            let newest = self.newest();
            if newest.is_current() {
                return Ok(&newest.value);
            }
            let made = OfProcess::new(make()?);
            // Release: who finds it finds it whole.
            let replaced = self.newest.compare_exchange(
                ptr::from_ref(newest).cast_mut(),
                made,
                Ordering::Release,
                Ordering::Relaxed,
            );
            if replaced.is_err() {
                // SAFETY: from a box, and nobody else has seen it.
                drop(unsafe { Box::from_raw(made) });
            }
        }
    }
}

impl<T> Drop for Lineage<T> {
    fn drop(&mut self) {
        if self.get().is_some() {
            // SAFETY: from a box, and nobody else uses it any more.
            drop(unsafe { Box::from_raw(self.newest.load(Ordering::Relaxed)) });
        }
    }
}
