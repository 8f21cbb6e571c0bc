//! How the pool starts a thread.

use std::io;
use std::mem;

#[cfg(all(test, loom))]
use crate::sync::LocalCell;
use crate::sync::{JoinHandle, spawn_unchecked};

/// Bytes of a thread's stack, as many as the main thread usually has: a step runs deep,
/// and callbacks of the host have the rest.
const STACK_SIZE: usize = 8 << 20;

/// Starts a thread with this name, which asynchronous signals leave alone.
///
/// # Errors
///
/// When the system refuses.
///
/// # Safety
///
/// * What `body` borrows lives until the thread has ended.
pub(crate) unsafe fn spawn<T: Send + 'static>(
    name: String,
    body: impl FnOnce() -> T + Send,
) -> io::Result<JoinHandle<T>> {
    #[cfg(test)]
    if tests::REFUSE.get() {
        return Err(io::Error::other("a test refuses threads"));
    }
    let _signals = BlockedSignals::new();
    // SAFETY: the caller's promise.
    unsafe { spawn_unchecked(name, STACK_SIZE, body) }
}

/// Blocks the signals that are sent to a process (not those that a thread's own
/// fault raises) for the calling thread, until dropped. Threads started
/// meanwhile inherit the mask and keep it, so that a host's signals arrive on the
/// host's threads.
struct BlockedSignals {
    before: libc::sigset_t,
}

impl BlockedSignals {
    fn new() -> Self {
        const FAULTS: [libc::c_int; 7] = [
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGFPE,
            libc::SIGILL,
            libc::SIGTRAP,
            libc::SIGSYS,
            libc::SIGABRT,
        ];
        // SAFETY: plain calls on two signal sets that live here; a zeroed set is
        // a valid one.
        unsafe {
            let mut block: libc::sigset_t = mem::zeroed();
            let mut before: libc::sigset_t = mem::zeroed();
            libc::sigfillset(&mut block);
            for signal in FAULTS {
                libc::sigdelset(&mut block, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &block, &mut before);
            Self { before }
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set was filled by `new`.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut());
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::cell::Cell;

    crate::sync::per_thread! {
        /// The system refuses the threads that this one asks for.
        pub(crate) static REFUSE: Cell<bool> = Cell::new(false);
    }

    /// Bytes of the calling thread's stack.
    fn stack_size() -> usize {
        let mut size = 0;
        // SAFETY: a zeroed set of attributes has room for those of this thread, which are
        // asked for, read and given back.
        unsafe {
            let mut attributes: libc::pthread_attr_t = mem::zeroed();
            assert_eq!(
                libc::pthread_getattr_np(libc::pthread_self(), &mut attributes),
                0
            );
            libc::pthread_attr_getstacksize(&attributes, &mut size);
            libc::pthread_attr_destroy(&mut attributes);
        }
        size
    }

    #[cfg(not(loom))]
    #[test]
    fn threads_have_stacks_of_8_mib() {
        // SAFETY: nothing is borrowed.
        let thread = unsafe { spawn("rollout-test".to_owned(), stack_size) };
        assert!(thread.unwrap().join().unwrap() >= 8 << 20);
    }
}
