//! Status codes, the error object, and the boundary.

use std::any::Any;
use std::ffi::c_char;
use std::panic::{self, AssertUnwindSafe};
use std::ptr;

use rollout_core::simulator::panic_text;
use rollout_core::trap;
use rollout_core::{Ended, Error, ErrorKind, FirstFailed, Tally};
use rollout_pool::{CpusError, RunError, WaitError};

use crate::sized::{self, Growable};

/// What a call came to. The numbers are grouped and are never used again for
/// something else: 0 success; 1 to 99 the request was run, but look at the
/// outcomes; 100 to 199 an argument was refused and nothing has happened; 200 to
/// 299 not now or not here; 300 to 399 the system refused; 400 to 499 something
/// panicked; 500 to 599 the engine failed.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RolloutStatus {
    /// Success.
    Ok = 0,
    /// All rollouts were run; at least one ended with an engine error. In the error
    /// object `index` is the first of them, `text` the engine's reason for it in the
    /// engine's own words, and `nfailed` their number.
    RolloutsFailed = 1,
    /// The request was cancelled, by rollout_ticket_cancel or by the end of its pool,
    /// before all of its rollouts had ended; the outcomes say what was done. `nfailed` and
    /// `index` as for ROLLOUTS_FAILED.
    Cancelled = 2,
    /// The request's time was up before all of its rollouts had ended; the outcomes say
    /// what was done. `nfailed` and `index` as for ROLLOUTS_FAILED.
    OutOfTime = 3,
    /// A pointer is NULL where something must be read or written.
    NullPointer = 100,
    /// A pointer is not aligned for what it points to.
    Misaligned = 101,
    /// A count, length or size is not the one that the request needs, or the size
    /// field of a struct is not its sizeof.
    WrongSize = 102,
    /// A product of sizes does not fit the address space.
    Overflow = 103,
    /// A list that needs at least one element is empty.
    EmptyList = 104,
    /// A state spec has bits that are unknown or not allowed there.
    BadSpec = 105,
    /// The engine table is incomplete or contradicts itself.
    BadEngine = 106,
    /// A model and a data, or two models, do not belong together.
    LayoutMismatch = 107,
    /// The same data stands twice in one request.
    DuplicateData = 108,
    /// Two arrays of which one is written share memory.
    Overlap = 109,
    /// An option or flag has a value without a meaning.
    BadOption = 110,
    /// A model or data that the library cannot run with its promises kept.
    Unsupported = 111,
    /// A data is in use by another request in flight, in any pool of this library
    /// (of this copy of it, should a process have loaded two).
    Busy = 200,
    /// The wait could never end: it was asked for inside the same pool, by one of its
    /// tasks or in a callback of one of its rollouts, or no thread is left or was ever
    /// there to do what is waited for.
    WouldDeadlock = 201,
    /// The request is not done yet. Nothing is lost: it goes on, and can be waited for
    /// again.
    Timeout = 202,
    /// It belongs to the process that this one was forked from: a request that was in
    /// flight then, or tasks. Nobody works on it here.
    Forked = 203,
    /// The system refused to start a thread. From rollout_run and rollout_ticket_wait: one
    /// that was needed after an engine error (ROLLOUT_HOOKS_RETIRE_THREAD), or in a forked
    /// child one of the pool's. The rollouts that nobody could run are "not started" in
    /// their outcomes, or "cancelled" if they had begun; the others have been run.
    NoThread = 300,
    /// A part of the library panicked: a fault of the library. Rollouts that it
    /// hit are "not started" in their outcomes, though rows may have been written;
    /// the others have been run.
    Panic = 400,
    /// A scheduled task panicked (a Rust host's; a C task cannot).
    TaskPanicked = 401,
    /// An error inside the engine, from rollout_guard; `text` in the error object is the
    /// engine's reason.
    EngineError = 500,
}

/// Bytes of the text in a `RolloutError`, its end included.
pub const ROLLOUT_ERROR_TEXT_SIZE: usize = 488;

/// What went wrong, in words. The host owns it, on the stack or elsewhere, sets
/// `size` once (`rollout_error()` does) and passes it to any number of calls, one
/// after the other; each call sets the other fields. One thread at a time may use
/// it. Every function accepts NULL instead.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RolloutError {
    /// sizeof(RolloutError); set by the host.
    pub size: usize,
    /// The status that the call returned.
    pub status: i32,
    /// Rollouts that ended with an engine error.
    pub nfailed: i32,
    /// The rollout or slot that the error is about, or -1.
    pub index: i64,
    /// The reason: for a refusal it names the argument at fault, for ROLLOUTS_FAILED it
    /// is what the engine said. Ends in NUL, empty on success.
    pub text: [c_char; ROLLOUT_ERROR_TEXT_SIZE],
}

// SAFETY: repr(C), begins with its size, all fields are numbers.
unsafe impl Growable for RolloutError {}

/// The name of a status, such as "null pointer"; "unknown status" for a number
/// that is none. Never NULL, and valid for as long as the library is loaded.
#[unsafe(no_mangle)]
pub extern "C" fn rollout_status_name(status: i32) -> *const c_char {
    use RolloutStatus as S;
    let name = match status {
        s if s == S::Ok as i32 => c"ok",
        s if s == S::RolloutsFailed as i32 => c"rollouts failed",
        s if s == S::Cancelled as i32 => c"cancelled",
        s if s == S::OutOfTime as i32 => c"out of time",
        s if s == S::NullPointer as i32 => c"null pointer",
        s if s == S::Misaligned as i32 => c"misaligned pointer",
        s if s == S::WrongSize as i32 => c"wrong size",
        s if s == S::Overflow as i32 => c"overflow",
        s if s == S::EmptyList as i32 => c"empty list",
        s if s == S::BadSpec as i32 => c"bad spec",
        s if s == S::BadEngine as i32 => c"bad engine",
        s if s == S::LayoutMismatch as i32 => c"layout mismatch",
        s if s == S::DuplicateData as i32 => c"duplicate data",
        s if s == S::Overlap as i32 => c"overlap",
        s if s == S::BadOption as i32 => c"bad option",
        s if s == S::Unsupported as i32 => c"unsupported",
        s if s == S::Busy as i32 => c"busy",
        s if s == S::WouldDeadlock as i32 => c"would deadlock",
        s if s == S::Timeout as i32 => c"timeout",
        s if s == S::Forked as i32 => c"of the parent process",
        s if s == S::NoThread as i32 => c"no thread",
        s if s == S::Panic as i32 => c"panic",
        s if s == S::TaskPanicked as i32 => c"task panicked",
        s if s == S::EngineError as i32 => c"engine error",
        _ => c"unknown status",
    };
    name.as_ptr()
}

/// A call that did not succeed.
#[derive(Debug)]
pub(crate) struct Failure {
    status: RolloutStatus,
    index: i64,
    nfailed: i32,
    text: String,
}

impl Failure {
    pub(crate) fn new(status: RolloutStatus, text: impl Into<String>) -> Self {
        Self {
            status,
            index: -1,
            nfailed: 0,
            text: text.into(),
        }
    }

    pub(crate) fn at(self, index: usize) -> Self {
        Self {
            index: index as i64,
            ..self
        }
    }

    /// And these rollouts have failed meanwhile.
    fn with_failed(self, tally: &Tally) -> Self {
        let first = tally.first_failed.as_ref();
        Self {
            nfailed: i32::try_from(tally.failed).unwrap_or(i32::MAX),
            index: first.map_or(self.index, |first| first.rollout as i64),
            ..self
        }
    }

    /// Rollouts of a request that was run have failed.
    fn of_rollouts(first: FirstFailed, nfailed: usize) -> Self {
        Self {
            nfailed: i32::try_from(nfailed).unwrap_or(i32::MAX),
            ..Self::new(RolloutStatus::RolloutsFailed, first.reason).at(first.rollout)
        }
    }

    /// What a host is told of a request that is done.
    pub(crate) fn check_run(result: Result<Tally, RunError>) -> Result<(), Self> {
        let tally = result?;
        match tally.first_failed {
            None => Ok(()),
            Some(first) => Err(Self::of_rollouts(first, tally.failed)),
        }
    }

    fn of_panic(payload: &(dyn Any + Send)) -> Self {
        let text = format!("rollout panicked: {}", panic_text(payload));
        Self::new(RolloutStatus::Panic, text)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::NullPointer => RolloutStatus::NullPointer,
            ErrorKind::Misaligned => RolloutStatus::Misaligned,
            ErrorKind::WrongSize => RolloutStatus::WrongSize,
            ErrorKind::Overflow => RolloutStatus::Overflow,
            ErrorKind::EmptyList => RolloutStatus::EmptyList,
            ErrorKind::BadSpec => RolloutStatus::BadSpec,
            ErrorKind::BadEngine => RolloutStatus::BadEngine,
            ErrorKind::LayoutMismatch => RolloutStatus::LayoutMismatch,
            ErrorKind::DuplicateData => RolloutStatus::DuplicateData,
            ErrorKind::Overlap => RolloutStatus::Overlap,
            ErrorKind::BadOption => RolloutStatus::BadOption,
            ErrorKind::Unsupported => RolloutStatus::Unsupported,
        };
        Self::new(status, error.to_string())
    }
}

impl From<CpusError> for Failure {
    fn from(error: CpusError) -> Self {
        let status = match error {
            CpusError::Empty => RolloutStatus::EmptyList,
            CpusError::Refused(_) => RolloutStatus::NoThread,
            _ => RolloutStatus::BadOption,
        };
        Self::new(status, error.to_string())
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        let text = error.to_string();
        match error {
            RunError::Busy { slot } => Self::new(RolloutStatus::Busy, text).at(slot),
            RunError::WouldDeadlock => Self::new(RolloutStatus::WouldDeadlock, text),
            RunError::Stopped(why, tally) => {
                let status = match why {
                    Ended::Cancelled => RolloutStatus::Cancelled,
                    Ended::OutOfTime => RolloutStatus::OutOfTime,
                };
                Self::new(status, text).with_failed(&tally)
            }
            RunError::NoThread(_, tally) => {
                Self::new(RolloutStatus::NoThread, text).with_failed(&tally)
            }
            RunError::Forked => Self::new(RolloutStatus::Forked, text),
            RunError::NoThreads(_) => Self::new(RolloutStatus::NoThread, text),
            RunError::Panicked(_) => Self::new(RolloutStatus::Panic, text),
        }
    }
}

impl From<WaitError> for Failure {
    fn from(error: WaitError) -> Self {
        let status = match error {
            WaitError::WouldDeadlock => RolloutStatus::WouldDeadlock,
            WaitError::Forked => RolloutStatus::Forked,
            WaitError::TaskPanicked(_) => RolloutStatus::TaskPanicked,
        };
        Self::new(status, error.to_string())
    }
}

/// Runs the body of an exported function: no panic leaves it, no jump of an engine
/// whose callback called it crosses it, the floating-point mode is Rust's until it
/// returns, and what went wrong goes to the error object. An error object that is unusable
/// is itself a refused argument, found before the body runs.
///
/// # Safety
///
/// * `error` is null, or points to a `RolloutError` as its documentation says.
pub(crate) unsafe fn boundary(
    error: *mut RolloutError,
    body: impl FnOnce() -> Result<(), Failure>,
) -> RolloutStatus {
    let _host = trap::from_host();
    if !error.is_null() {
        // SAFETY: the caller's promise.
        if let Err(refused) = unsafe { sized::check(error, "error") } {
            return Failure::from(refused).status;
        }
    }
    let outside = trap::outside();
    let result = panic::catch_unwind(AssertUnwindSafe(body));
    drop(outside);
    let failure = match result {
        Ok(Ok(())) => None,
        Ok(Err(failure)) => Some(failure),
        Err(payload) => Some(Failure::of_panic(&*payload)),
    };
    let status = failure.as_ref().map_or(RolloutStatus::Ok, |f| f.status);
    if !error.is_null() {
        // SAFETY: checked above to be aligned and large enough; the host passes
        // an object that is its own for the duration of the call.
        unsafe {
            (*error).status = status as i32;
            (*error).nfailed = failure.as_ref().map_or(0, |f| f.nfailed);
            (*error).index = failure.as_ref().map_or(-1, |f| f.index);
            let text = failure.as_ref().map_or("", |f| f.text.as_str());
            write_text(&raw mut (*error).text, text);
        }
    }
    status
}

/// Writes a text, cut to fit at a character's boundary, and its end.
///
/// # Safety
///
/// * `to` can be written.
unsafe fn write_text(to: *mut [c_char; ROLLOUT_ERROR_TEXT_SIZE], text: &str) {
    let length = text.floor_char_boundary(ROLLOUT_ERROR_TEXT_SIZE - 1);
    // SAFETY: `length` is below the size of the array.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr().cast(), to.cast::<c_char>(), length);
        *to.cast::<c_char>().add(length) = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_at_a_character_and_ended() {
        // Three bytes each, so that the room is no multiple of a character.
        let text = "\u{20ac}".repeat(ROLLOUT_ERROR_TEXT_SIZE);
        let mut room = [0x55; ROLLOUT_ERROR_TEXT_SIZE];
        // SAFETY: the array is there.
        unsafe { write_text(&mut room, &text) };
        let length = room.iter().position(|&c| c == 0).unwrap();
        assert_eq!(length, (ROLLOUT_ERROR_TEXT_SIZE - 1) / 3 * 3);
    }
}
