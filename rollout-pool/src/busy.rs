//! Which data are in use by a request in flight, in any pool of this library.
//!
//! Two requests that step the same data at once would corrupt it. The registry
//! is global because a host may have several pools. It holds an address only
//! while a request with that data runs, so a freed data's address can return.

use std::ops::{Deref, DerefMut};

use rollout_core::Request;
use rustc_hash::{FxBuildHasher, FxHashSet};

use crate::sync::Lock;

static BUSY: Lock<FxHashSet<usize>> = Lock::new(FxHashSet::with_hasher(FxBuildHasher));

/// A request whose data are marked as in use until this is dropped.
#[derive(Debug)]
pub(crate) struct Claimed<'r, 'a>(&'r mut Request<'a>);

impl<'r, 'a> Claimed<'r, 'a> {
    /// Marks all data of the request as in use, or returns the slot of the first
    /// that already is.
    pub(crate) fn new(request: &'r mut Request<'a>) -> Result<Self, usize> {
        let mut busy = BUSY.lock();
        for (slot, address) in request.data_addresses().enumerate() {
            if !busy.insert(address) {
                // A request names no data twice, so those before are its own marks.
                for mine in request.data_addresses().take(slot) {
                    busy.remove(&mine);
                }
                return Err(slot);
            }
        }
        drop(busy);
        Ok(Self(request))
    }
}

impl Drop for Claimed<'_, '_> {
    fn drop(&mut self) {
        let mut busy = BUSY.lock();
        for address in self.0.data_addresses() {
            busy.remove(&address);
        }
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
