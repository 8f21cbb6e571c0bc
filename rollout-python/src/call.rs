//! A call: begun with the interpreter's lock, run without it, ended with it.

use std::mem::ManuallyDrop;
use std::panic::{self, AssertUnwindSafe};
use std::ptr;

use rollout::{ROLLOUT_ERROR_TEXT_SIZE, RolloutError, RolloutRequest, RolloutStatus};
use rollout_core::{Engine, Fill, Outcome, OutcomeStatus};

use crate::arguments::{Arguments, Said};
use crate::array::NOT_GIVEN;
use crate::python::{Object, Owned, Unusual, Usual, raised, usual};
use crate::run::run;
use crate::setup::Setup;

/// The function that Python calls: `_fast.py` describes it.
///
/// Nothing here computes with floating-point numbers, so that it does not matter in which
/// mode Python's thread does: that is `rollout_run`'s to know.
///
/// The interpreter may end while a thread is in here, and up to Python 3.13 the thread is
/// then ended by unwinding it from where it asks for the lock again. So nothing in this
/// frame has to be dropped. (`run.rs` says how seldom this is.)
///
/// # Safety
///
/// Python calls it: the lock is held, `this` is the function's capsule, and `first` points
/// to `count` living arguments.
pub(crate) unsafe extern "C-unwind" fn fast_rollout(
    this: *mut Object,
    first: *const *mut Object,
    count: isize,
) -> *mut Object {
    // SAFETY: `this` is alive during the call.
    let setup = unsafe { Setup::of(this) };
    let begun = guarded(|| {
        // SAFETY: the caller's promise.
        Call::begin(setup, &unsafe { Arguments::new(first, count) }?)
    });
    let mut begun = ManuallyDrop::new(begun);
    let Ok(call) = &mut *begun else {
        return setup.none.own().into_raw();
    };
    call.run();
    // SAFETY: taken once, and not used below.
    let ended = unsafe { ManuallyDrop::take(&mut begun) };
    guarded(|| ended?.end(setup)).unwrap_or_else(|Unusual| setup.none.own().into_raw())
}

/// Runs a part of a call, which no panic leaves. The general path meets its cause again,
/// unless it was a fault of this path.
fn guarded<T>(part: impl FnOnce() -> Usual<T>) -> Usual<T> {
    panic::catch_unwind(AssertUnwindSafe(part)).unwrap_or(Err(Unusual))
}

/// As in `_rollout.py`: with more rollouts than this no outcomes are asked for.
const MOST_OUTCOMES: usize = 32_768;

/// A call that can be run.
struct Call {
    engine: *const Engine,
    said: Said,
    outcomes: Vec<Outcome>,
    failure: Option<Box<RolloutError>>,
}

impl Call {
    fn begin(setup: &Setup, arguments: &Arguments) -> Usual<Self> {
        let said = arguments.read(setup)?;
        usual(said.nbatch <= MOST_OUTCOMES)?;
        let mut outcomes = Vec::new();
        let room = outcomes.try_reserve_exact(said.nbatch);
        room.map_err(|_| Unusual)?;
        outcomes.resize(said.nbatch, Outcome::not_started());
        Ok(Self {
            engine: setup.engine,
            said,
            outcomes,
            failure: None,
        })
    }

    /// Runs the request, without the interpreter's lock.
    fn run(&mut self) {
        let said = &self.said;
        let request = RolloutRequest {
            size: size_of::<RolloutRequest>(),
            engine: self.engine,
            models: &raw const said.model,
            nmodel: 1,
            data: said.data.as_ptr(),
            ndata: said.data.len(),
            nbatch: said.nbatch,
            nstep: said.nstep,
            control_spec: said.control_spec,
            fill: Fill::Hold as i32,
            initial_state: said.initial_state.input,
            initial_warmstart: said
                .initial_warmstart
                .as_ref()
                .map_or(NOT_GIVEN, |rows| rows.input),
            control: said.control.as_ref().map_or(NOT_GIVEN, |rows| rows.input),
            state: said.state.output,
            sensordata: said.sensordata.output,
            outcomes: self.outcomes.as_mut_ptr(),
            noutcome: self.outcomes.len(),
            messages: ptr::null_mut(),
            nmessage: 0,
            message_size: 0,
            chunk_size: said.chunk_size,
            priority: 0,
            flags: 0,
            budget_ns: 0,
            deadline_ns: 0,
        };
        let mut error = RolloutError {
            size: size_of::<RolloutError>(),
            status: 0,
            nfailed: 0,
            index: -1,
            text: [0; ROLLOUT_ERROR_TEXT_SIZE],
        };
        // SAFETY: the lock is held, and no object is touched without it. The pool is alive, by the promise of `_fast.py`. The engine's table is
        // MuJoCo's. The addresses of model and data are those that they just gave, and
        // their owners are kept in the list `said._owners` or by the caller; those of the arrays and
        // their counts are NumPy's, and the caller and `said` keep the arrays. That nobody
        // else uses the data and the arrays meanwhile is the promise of Python's caller.
        let status = unsafe { run(said.pool, &raw const request, &raw mut error, None) };
        if status != RolloutStatus::Ok {
            self.failure = Some(Box::new(error));
        }
    }

    /// What Python gets: the outputs, or an exception.
    fn end(self, setup: &Setup) -> Usual<*mut Object> {
        // By a signal's handler; or by a callback of MuJoCo, whose error is its rollout's.
        if raised() {
            return Ok(ptr::null_mut());
        }
        let Some(error) = self.failure else {
            return Ok(Owned::pair(
                &self.said.state.array,
                &self.said.sensordata.array,
            ));
        };
        // Refused, or not now: nothing has happened.
        if (100..300).contains(&error.status) {
            return Err(Unusual);
        }
        let failed = self
            .outcomes
            .iter()
            .enumerate()
            .filter(|(_, outcome)| outcome.status == OutcomeStatus::EngineError as i32);
        let failed = Owned::integers(failed.map(|(rollout, _)| rollout))?;
        Ok(setup.raise.call_to_return([
            Owned::integer(error.status.into())?,
            Owned::text(&error.text)?,
            failed,
        ]))
    }
}
