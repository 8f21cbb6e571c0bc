//! Which data are in use by a request in flight, in any pool of this library.
//!
//! Two requests that step the same data at once would corrupt it. The list of
//! requests in flight is global because a host may have several pools. It is the
//! one piece of global state, and empty when nothing runs: no address outlives
//! its request, so a freed data's address can return.

use std::ops::{Deref, DerefMut};
use std::ptr;

use rollout_core::{Data, Request};

use crate::sync::Lock;

/// The data of each request in flight.
static IN_FLIGHT: Lock<Vec<DataList>> = Lock::new(Vec::new());

/// The data of a request that is claimed: it stays where it is, unchanged, until
/// the claim is dropped, which removes this from the list first.
#[derive(Clone, Copy, Debug)]
struct DataList(*const [Data]);

// SAFETY: a list of descriptions that nobody changes; it may be read anywhere.
unsafe impl Send for DataList {}

/// A request whose data are in use by it alone, until this is dropped.
#[derive(Debug)]
pub(crate) struct Claimed<'r, 'a>(&'r mut Request<'a>);

impl<'r, 'a> Claimed<'r, 'a> {
    /// Claims all data of the request, or returns the slot of one that another
    /// request in flight has.
    pub(crate) fn new(request: &'r mut Request<'a>) -> Result<Self, usize> {
        let mine = request.data();
        let mut in_flight = IN_FLIGHT.lock();
        for theirs in &*in_flight {
            // SAFETY: still in the list, so its claim and its request are alive.
            let theirs = unsafe { &*theirs.0 };
            let taken = |mine: &Data| theirs.iter().any(|theirs| theirs.data == mine.data);
            if let Some(slot) = mine.iter().position(taken) {
                return Err(slot);
            }
        }
        in_flight.push(DataList(mine));
        drop(in_flight);
        Ok(Self(request))
    }
}

impl Drop for Claimed<'_, '_> {
    fn drop(&mut self) {
        let mine: *const [Data] = self.0.data();
        // No two claims have the same list, since they would have the same data.
        IN_FLIGHT.lock().retain(|list| !ptr::eq(list.0, mine));
    }
}

impl<'a> Deref for Claimed<'_, 'a> {
    type Target = Request<'a>;

    fn deref(&self) -> &Request<'a> {
        self.0
    }
}

impl DerefMut for Claimed<'_, '_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.0
    }
}
