//! Which data are in use by a request in flight, in any pool of this library.
//!
//! Two requests that step the same data at once would corrupt it. The list of
//! requests in flight is global because a host may have several pools. It is the
//! one piece of global state, and empty when nothing runs: no address outlives
//! its request, so a freed data's address can return.

use std::mem;
use std::ptr;

use rollout_core::{Data, Request};

use crate::sync::Lock;

/// The data of each request in flight.
#[cfg(not(loom))]
static IN_FLIGHT: Lock<Vec<DataList>> = Lock::new(Vec::new());
#[cfg(loom)]
loom::lazy_static! { static ref IN_FLIGHT: Lock<Vec<DataList>> = Lock::new(Vec::new()); }

/// The data of a request that is claimed: it stays where it is, unchanged, until it is
/// released, which removes this from the list.
#[derive(Clone, Copy, Debug)]
struct DataList(*const [Data]);

// SAFETY: a list of descriptions that nobody changes; it may be read anywhere.
unsafe impl Send for DataList {}

/// All data of a request are in use by it alone, until this is dropped or, if it was
/// kept, until [`release`].
#[derive(Debug)]
pub(crate) struct Claim(DataList);

impl Claim {
    /// Claims all data of the request, or returns the slot of one that another request in
    /// flight has.
    ///
    /// # Safety
    ///
    /// * The request's data stay where they are until the claim has ended.
    pub(crate) unsafe fn new(request: &Request<'_>) -> Result<Self, usize> {
        let mine = request.data();
        let mut in_flight = IN_FLIGHT.lock();
        for theirs in &*in_flight {
            // SAFETY: still in the list, so its claim has not ended.
            let theirs = unsafe { &*theirs.0 };
            let taken = |mine: &Data| theirs.iter().any(|theirs| theirs.data == mine.data);
            if let Some(slot) = mine.iter().position(taken) {
                return Err(slot);
            }
        }
        in_flight.push(DataList(mine));
        Ok(Self(DataList(mine)))
    }

    /// Lets the claim last until [`release`].
    pub(crate) fn keep(self) {
        mem::forget(self);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        remove(self.0);
    }
}

/// Ends the claim of a request, which was kept.
pub(crate) fn release(request: &Request<'_>) {
    remove(DataList(request.data()));
}

fn remove(mine: DataList) {
    // No two claims have the same list, since they would have the same data.
    IN_FLIGHT.lock().retain(|list| !ptr::eq(list.0, mine.0));
}
