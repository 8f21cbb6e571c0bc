//! Which data are in use by a request in flight, in any pool of this library.
//!
//! Two requests that step the same data at once would corrupt it. The list of
//! requests in flight is global because a host may have several pools, and empty when
//! nothing runs: no address outlives its request, so a freed data's address can return.
//!
//! In a forked child nothing is in flight, but the data that were in use at the fork may
//! have been left in the middle of a step, as an engine error leaves them. Their addresses
//! are kept until a request has such a data: it is reset then, before anything else. (If
//! another data has come to that address meanwhile, that costs it a reset, and nothing
//! else: no rollout depends on what its data has done before.)

use std::ffi::c_void;
use std::mem;
use std::ptr;

use rollout_core::{Data, Request};

use crate::fork;
#[cfg(not(loom))]
use crate::sync::Guard;
use crate::sync::Lock;

#[cfg(not(loom))]
static IN_FLIGHT: Lock<InFlight> = Lock::new(InFlight::new());
#[cfg(loom)]
loom::lazy_static! { static ref IN_FLIGHT: Lock<InFlight> = Lock::new(InFlight::new()); }

// The loader calls it when it unloads the library, or the process ends.
#[cfg(not(loom))]
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_UNLOAD: extern "C" fn() = free;

/// Gives back the list's memory, which nobody else would if the library is unloaded. (At the
/// process's end there can be requests in flight, and a thread that was stopped while it
/// held the list.)
#[cfg(not(loom))]
extern "C" fn free() {
    if let Some(mut in_flight) = IN_FLIGHT.try_lock()
        && in_flight.lists.is_empty()
    {
        *in_flight = InFlight::new();
    }
}

#[derive(Debug)]
struct InFlight {
    /// The data of each request in flight.
    lists: Vec<DataList>,
    /// Data that a thread of the parent process may have been in the middle of.
    torn: Vec<Torn>,
    /// Those that will be torn in the child of the fork that is under way.
    at_fork: Vec<Torn>,
}

/// The address of a data, for comparison only.
type Torn = usize;

fn address(data: *mut c_void) -> Torn {
    data.addr()
}

/// The data of a request that is claimed: it stays where it is, unchanged, until it is
/// released, which removes this from the list.
#[derive(Clone, Copy, Debug)]
struct DataList(*const [Data]);

// SAFETY: a list of descriptions that nobody changes; it may be read anywhere.
unsafe impl Send for DataList {}

/// All data of a request are in use by it alone, until this is dropped or, if it was
/// kept, until [`release`]. (In a child of the process that claimed them, until the fork.)
#[derive(Debug)]
pub(crate) struct Claim {
    list: DataList,
    generation: u32,
    /// Slots whose data must be reset before they are used.
    torn: Vec<usize>,
}

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
        for theirs in &in_flight.lists {
            // SAFETY: still in the list, so its claim has not ended.
            let theirs = unsafe { &*theirs.0 };
            let taken = |mine: &Data| theirs.iter().any(|theirs| theirs.data == mine.data);
            if let Some(slot) = mine.iter().position(taken) {
                return Err(slot);
            }
        }
        let list = DataList(mine);
        in_flight.lists.push(list);
        Ok(Self {
            list,
            generation: fork::generation(),
            torn: in_flight.take_torn(mine),
        })
    }

    /// The slots whose data a thread of the parent process may have been in the middle of.
    /// They are not told again.
    pub(crate) fn torn(&self) -> &[usize] {
        &self.torn
    }

    /// Whether it is a claim of this process.
    pub(crate) fn is_current(&self) -> bool {
        self.generation == fork::generation()
    }

    /// Lets the claim last until [`release`].
    pub(crate) fn keep(self) {
        mem::forget(self);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        remove(self.list);
    }
}

/// Ends the claim of a request, which was kept.
pub(crate) fn release(request: &Request<'_>) {
    remove(DataList(request.data()));
}

fn remove(mine: DataList) {
    // No two claims have the same list, since they would have the same data.
    let mut in_flight = IN_FLIGHT.lock();
    in_flight.lists.retain(|list| !ptr::eq(list.0, mine.0));
}

impl InFlight {
    const fn new() -> Self {
        Self {
            lists: Vec::new(),
            torn: Vec::new(),
            at_fork: Vec::new(),
        }
    }

    /// Takes the slots of these data that are torn.
    fn take_torn(&mut self, data: &[Data]) -> Vec<usize> {
        if self.torn.is_empty() {
            return Vec::new();
        }
        let is_torn = |slot: &usize| self.torn.contains(&address(data[*slot].data));
        let slots: Vec<usize> = (0..data.len()).filter(is_torn).collect();
        self.torn
            .retain(|torn| data.iter().all(|data| address(data.data) != *torn));
        slots
    }
}

/// Holds the list until one of the next two is called, so that it is whole in the child.
#[cfg(not(loom))]
pub(crate) fn before_fork() {
    let mut in_flight = IN_FLIGHT.lock();
    // Now, as a list may be on a stack that the child gives to another thread.
    let mut torn = mem::take(&mut in_flight.at_fork);
    for list in &in_flight.lists {
        // SAFETY: in the list, so its claim has not ended.
        let data = unsafe { &*list.0 };
        torn.extend(data.iter().map(|data| address(data.data)));
    }
    in_flight.at_fork = torn;
    mem::forget(in_flight);
}

/// # Safety
///
/// * This thread has called [`before_fork`], and this is called once.
#[cfg(not(loom))]
pub(crate) unsafe fn after_fork_in_parent() {
    // SAFETY: held since then, and the guard was forgotten.
    let mut in_flight = unsafe { IN_FLIGHT.held() };
    in_flight.at_fork.clear();
}

/// # Safety
///
/// * As for [`after_fork_in_parent`]; the calling thread was forked meanwhile.
#[cfg(not(loom))]
pub(crate) unsafe fn after_fork_in_child() {
    // SAFETY: as there. This thread is the one that held it, and there is no other one.
    let mut in_flight: Guard<'_, InFlight> = unsafe { IN_FLIGHT.held() };
    let InFlight {
        lists,
        torn,
        at_fork,
    } = &mut *in_flight;
    // The requests are the parent's.
    lists.clear();
    torn.append(at_fork);
    torn.sort_unstable();
    torn.dedup();
}
