//! How a thread of Python's is in the library: without the interpreter's lock, coming back
//! for it now and then, and out of it before the interpreter ends.
//!
//! A request may take hours, and only Python's main thread handles signals. So a call works
//! for [`SLICE`] at a time; in the pauses the main thread takes the lock and lets Python
//! handle what has come. If a handler raises an exception, as that of Ctrl-C does, the
//! request is cancelled, has ended when the call returns, and the exception is the call's.
//! Other threads do not take the lock, unless they have progress to tell.
//!
//! When the interpreter exits, threads that are in here must be out before it is finalised:
//! callbacks of MuJoCo that are Python functions ask for the lock on any thread, and to ask
//! for it later ends the thread by unwinding it, and with frames of C++ or Rust on its stack
//! the process. Only daemon threads still run then. So the package's function that runs at
//! exit calls [`rollout_python_end`] until no thread is in here: their requests are
//! cancelled, and the threads do not return to Python, which would not let them go on
//! anyway.

use std::ffi::c_void;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rollout::{RolloutError, RolloutPool, RolloutRequest, RolloutStatus, run_with_pauses};
use rollout_core::trap;
use rollout_pool::{Next, Pauses, Progress};

use crate::python::{
    Object, PyEval_RestoreThread, PyEval_SaveThread, PyThread_get_thread_ident, handle_signals,
};

/// How long a thread works before it looks for signals. Python handles them in
/// milliseconds, so that Ctrl-C takes less than 0.1 s, which people take for at once. The
/// lock may take 5 ms where another thread computes.
const SLICE: Duration = Duration::from_millis(50);

/// Python's main thread.
static MAIN: AtomicU64 = AtomicU64::new(0);

/// Whether the interpreter exits, so that no other thread than the main one may be in here.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Other threads than the main one that are in here.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// In a new process: says which thread is the main one. None is in here.
#[unsafe(no_mangle)]
pub extern "C" fn rollout_python_begin(main: u64) {
    MAIN.store(main, Ordering::SeqCst);
    INSIDE.store(0, Ordering::SeqCst);
    ENDING.store(false, Ordering::SeqCst);
}

/// Has other threads than the main one leave, and begins no calls of theirs any more.
/// Returns how many have still to leave: to be called again, with the interpreter's lock
/// free in between, until there are none.
#[unsafe(no_mangle)]
pub extern "C" fn rollout_python_end() -> usize {
    ENDING.store(true, Ordering::SeqCst);
    INSIDE.load(Ordering::SeqCst)
}

/// Runs a request, as the general path of a call needs it. Returns what the library does,
/// unless an exception is set. `progress` is NULL or a function, which is called with the
/// rollouts and steps that are done.
///
/// # Safety
///
/// As for `rollout_run`. The calling thread holds the interpreter's lock, and `progress` is
/// NULL or a living object.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rollout_python_run(
    pool: *mut RolloutPool,
    request: *const RolloutRequest,
    error: *mut RolloutError,
    progress: *mut c_void,
) -> RolloutStatus {
    // SAFETY: the caller's promise.
    let progress = unsafe { Object::from_raw(progress.cast()) };
    // SAFETY: the caller's promise, and nothing in this frame is to be dropped.
    unsafe { run(pool, request, error, progress.ok()) }
}

fn is_main() -> bool {
    // SAFETY: it only tells a number of this thread.
    let this = unsafe { PyThread_get_thread_ident() };
    this == MAIN.load(Ordering::Relaxed)
}

/// Runs a request. Returns what the library does. An exception may be set afterwards, by a
/// signal's handler, by a callback of MuJoCo, or by `progress`, which is called with the
/// rollouts and steps that are done.
///
/// The thread may be ended in here where it takes the lock back, with nothing to be dropped
/// in this frame; so let there be nothing in the caller's.
///
/// # Safety
///
/// * As for `rollout_run`.
/// * This thread holds the interpreter's lock. It does not use what only that makes safe to
///   use, while it has let the lock go.
pub(crate) unsafe fn run(
    pool: *mut RolloutPool,
    request: *const RolloutRequest,
    error: *mut RolloutError,
    progress: Option<&Object>,
) -> RolloutStatus {
    let is_main = is_main();
    // SAFETY: the lock is held, and is taken back below before any object is touched.
    let mut thread = unsafe { PyEval_SaveThread() };
    if !is_main {
        INSIDE.fetch_add(1, Ordering::SeqCst);
    }
    let must_leave = || !is_main && ENDING.load(Ordering::SeqCst);
    let mut look = |done: Progress| {
        if must_leave() {
            return Next::Cancel;
        }
        if !is_main && progress.is_none() {
            return Next::GoOn;
        }
        // SAFETY: this is the thread that gave the lock away, and gives it away again. The
        // interpreter is not finalised while this thread is in here.
        unsafe { PyEval_RestoreThread(thread) };
        let go_on = || handle_signals() && tell(progress, done);
        let go_on = panic::catch_unwind(AssertUnwindSafe(go_on)).unwrap_or(false);
        // SAFETY: as above.
        thread = unsafe { PyEval_SaveThread() };
        // (Whatever a signal's handler or `progress` has left.)
        trap::after_host();
        if go_on { Next::GoOn } else { Next::Cancel }
    };
    let status = if must_leave() {
        RolloutStatus::Cancelled
    } else {
        let pauses = Pauses {
            every: SLICE,
            counted: progress.is_some(),
            pause: &mut look,
        };
        // SAFETY: the caller's promises.
        unsafe { run_with_pauses(pool, request, error, pauses) }
    };
    if must_leave() {
        leave();
        stay_away();
    }
    // SAFETY: this is the thread that gave the lock away.
    unsafe { PyEval_RestoreThread(thread) };
    if !is_main {
        leave();
    }
    status
}

fn tell(progress: Option<&Object>, done: Progress) -> bool {
    progress.is_none_or(|progress| progress.tell(done.rollouts, done.steps))
}

/// Counts a thread out. (A thread that forks in a callback comes back in the child, where
/// nobody was counted.)
fn leave() {
    let less = |inside: usize| Some(inside.saturating_sub(1));
    let _ = INSIDE.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
}

/// What Python itself does, from 3.14 on, with a thread that asks for its lock too late.
fn stay_away() -> ! {
    loop {
        thread::park();
    }
}
