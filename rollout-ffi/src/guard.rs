//! Engine calls of the host's own, under the trap.

use std::ffi::c_void;

use rollout_core::trap::{self, GuardError};
use rollout_core::{Engine, Error, ErrorKind};

use crate::error::{Failure, RolloutError, RolloutStatus, boundary};
use crate::pool::RolloutTask;
use crate::sized;

/// Runs `call(user)`, in which the host calls the engine, as the library runs the
/// engine's own functions: an error inside the engine (mju_error) ends `call` by a jump
/// (longjmp) instead of the process, and its text goes to the error object. So let there
/// be nothing in `call` that must be undone when it is left in the middle: no C++
/// destructor, no lock, no memory that only it knows of.
///
/// Whatever the engine was working on when it failed is in an undefined state: a data
/// must be reset (mj_resetData, in a call like this one) before any other use. With
/// ROLLOUT_HOOKS_RETIRE_THREAD the calling thread should end, as the engine may write to
/// that data when it steps another one. Warnings are counted in the data, as always, and
/// reach no handler.
///
/// Costs about as much as two calls of a function of another library. May be called
/// from any thread, in a task, and in a callback of an engine.
///
/// Errors: NULL_POINTER; ENGINE_ERROR, and the text is the engine's; all that
/// rollout_run finds wrong in an engine table.
///
/// # Safety
///
/// `engine` is NULL or a table as for `rollout_run`. `call(user)` can be called, and can
/// be left by a jump.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rollout_guard(
    engine: *const Engine,
    call: RolloutTask,
    user: *mut c_void,
    error: *mut RolloutError,
) -> RolloutStatus {
    let body = || {
        // SAFETY: the caller's promises.
        let guarded = unsafe {
            let engine = sized::borrow(engine, "engine")?;
            let call = call.ok_or_else(|| Error::new(ErrorKind::NullPointer, "call", "is null"))?;
            trap::guard(engine, call, user)
        };
        guarded.map_err(|failed| match failed {
            GuardError::Refused(refused) => refused.into(),
            GuardError::Failed(reason) => Failure::new(RolloutStatus::EngineError, reason),
        })
    };
    // SAFETY: the caller's promise.
    unsafe { boundary(error, body) }
}
