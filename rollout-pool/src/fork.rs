//! What becomes of the library in a forked child.
//!
//! A child has one thread, the one that forked, and a copy of all memory, in which the
//! others may have been in the middle of anything. So it touches nothing that they could
//! have held or been changing: each [`Lineage`] begins anew there, when it is first used.
//! What the parent's threads shared is never freed in the child, nor locked.
//!
//! How often the processes from the first one to this one have forked is counted. Whatever
//! belongs to one process keeps that number, its **generation**, and is the parent's where
//! it is not [`generation`]: a thread that comes back from the host's code (a task, a step)
//! looks whether it is in the same process as before.
//!
//! The handlers of forks are registered when the library is loaded. Whoever did that later
//! could be waited for by a thread of a child that does not have him. They end with the
//! library: `pthread_atfork` is linked into each library, and tells glibc whose handlers
//! they are. (They are not called by `vfork` and `posix_spawn`, whose children execute
//! another program, nor by the bare system call.)

#[cfg(not(loom))]
use std::ffi::c_int;
use std::io;

#[cfg(not(loom))]
use crate::busy;
#[cfg(not(loom))]
use crate::inside;
use crate::sync::{ForkNumber, Ordering};
#[cfg(not(loom))]
use crate::worker;

static GENERATION: ForkNumber = ForkNumber::new(0);

/// What the registration of the handlers came to; before it, what it comes to without
/// memory.
static REGISTERED: ForkNumber = ForkNumber::new(if cfg!(loom) { 0 } else { libc::ENOMEM as u32 });

/// The generation of this process.
pub(crate) fn generation() -> u32 {
    // Relaxed: it changes only in a child that has no other thread yet.
    GENERATION.load(Ordering::Relaxed)
}

/// Whether forks are seen.
///
/// # Errors
///
/// When the system has refused that.
pub(crate) fn check() -> io::Result<()> {
    match REGISTERED.load(Ordering::Relaxed) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error as i32)),
    }
}

// (As in trap.c: the loader calls it when it has loaded the library or the program.)
#[cfg(not(loom))]
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = register;

#[cfg(not(loom))]
extern "C" fn register() {
    // SAFETY: three functions that can be called at any time.
    let error: c_int = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    REGISTERED.store(error as u32, Ordering::Relaxed);
}

#[cfg(not(loom))]
unsafe extern "C" fn prepare() {
    busy::before_fork();
}

#[cfg(not(loom))]
unsafe extern "C" fn parent() {
    // SAFETY: glibc calls it after `prepare`, on the same thread.
    unsafe { busy::after_fork_in_parent() };
}

#[cfg(not(loom))]
unsafe extern "C" fn child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // SAFETY: as above.
    unsafe { busy::after_fork_in_child() };
    // It is a thread of no pool of this process, and waits for nobody.
    worker::after_fork();
    inside::after_fork();
}
