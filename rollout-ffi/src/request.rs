//! A request as C writes it, and `rollout_run`.

use std::ffi::c_char;
use std::slice;

use rollout_core::array::check_pointer;
use rollout_core::{
    Arrays, Data, Engine, Error, ErrorKind, Fill, Input, Model, Outcome, Output, Request,
    Simulation, Tally,
};

use rollout_pool::{Pauses, Pool, RunError, Start, Terms};

use crate::clock;
use crate::error::{Failure, RolloutError, RolloutStatus, boundary};
use crate::pool::{RolloutPool, handle};
use crate::sized::{self, Growable};

/// An array that a request reads. The row of rollout r at step t begins at
/// `values[r * rollout_stride + t * step_stride]`. A stride of 0 lets one row
/// serve all rollouts or all steps without a copy.
///
/// `rollout_rows`, `rollout_shared`, `rollout_steps` and `rollout_shared_steps`
/// make one for each usual case. An array with NULL and count 0 is not given.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RolloutInput {
    /// The numbers; only read, and not to change during the call.
    pub values: *const f64,
    /// Numbers from the first to the last that will be read, exactly: a count
    /// that does not fit the sizes and strides is refused. (Where nbatch or nstep
    /// is 0 nothing is read, and any count will do.)
    pub count: usize,
    /// Numbers from one rollout's row to the next one's.
    pub rollout_stride: usize,
    /// Numbers from one step's row to the next one's; 0 for arrays without steps.
    pub step_stride: usize,
}

/// An array that a request writes, contiguous in C order. It need not be
/// initialised, and must not overlap any other array of the request.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RolloutOutput {
    /// Where to write; NULL (with count 0) if the output is not wanted.
    pub values: *mut f64,
    /// Numbers in the array, exactly: nbatch x nstep x size of a row.
    pub count: usize,
}

/// Flag of a request that is submitted: the thread that submits it waits for the ticket
/// next (rollout_ticket_wait) and works itself. The pool's threads are then woken only if
/// there is enough to do for them, as in rollout_run, which saves a small request the
/// microseconds of a wake-up. If nobody waits, it may never begin.
pub const ROLLOUT_REQUEST_ATTENDED: u32 = 1 << 0;

/// Everything that one call needs. Zero all of it first and set `size`
/// (`rollout_request()` does), then the fields that are wanted. The library reads
/// it during the call only, that of rollout_submit too; what it points to stays the
/// host's.
///
/// To run a part of larger arrays, point to its first row: rows lie one behind the
/// other. One request can be passed again and again.
///
/// In this documentation nstate, ncontrol and nwarmstart are the engine's sizes
/// (`mj_stateSize`) of `engine->full_physics`, `control_spec` and
/// `engine->warmstart`; nsensordata is the model's.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RolloutRequest {
    /// sizeof(RolloutRequest); set by the host.
    pub size: usize,
    /// The engine's functions; for MuJoCo from `rollout_mujoco_engine()`. Any number of
    /// requests may name the same table and the same models at once.
    pub engine: *const Engine,
    /// One model for all rollouts, or one for each.
    pub models: *const Model,
    /// 1 or nbatch.
    pub nmodel: usize,
    /// The data that the rollouts run on: as many threads take part as there are
    /// data. Which data a rollout ran on, and what it held before, never changes
    /// the result; what it holds afterwards is not defined.
    pub data: *const Data,
    /// At least 1.
    pub ndata: usize,
    /// Number of rollouts.
    pub nbatch: usize,
    /// Steps of each rollout.
    pub nstep: usize,
    /// Which inputs `control` holds: bits of `engine->user`. 0 for `engine->ctrl`.
    /// Without `control` it says nothing.
    pub control_spec: u32,
    /// What output rows hold from the step on that warned or failed, or that was not made
    /// because the request was cancelled or out of time: ROLLOUT_FILL_NAN (0),
    /// ROLLOUT_FILL_HOLD or ROLLOUT_FILL_UNTOUCHED. Rows of a rollout that was not started
    /// are untouched in any case.
    pub fill: i32,
    /// Start states (nbatch x nstate).
    pub initial_state: RolloutInput,
    /// Warm starts of the solver (nbatch x nwarmstart). Not given: zero.
    pub initial_warmstart: RolloutInput,
    /// Inputs of each step (nbatch x nstep x ncontrol). Inputs that are not given
    /// have their defaults: mocap poses and the activity of equality constraints
    /// those of the model, all others zero.
    pub control: RolloutInput,
    /// State after each step (nbatch x nstep x nstate).
    pub state: RolloutOutput,
    /// Sensor values (nbatch x nstep x nsensordata). As in MuJoCo they belong to
    /// the state before the step.
    pub sensordata: RolloutOutput,
    /// One outcome for each rollout, or NULL.
    pub outcomes: *mut Outcome,
    /// nbatch, or 0 if `outcomes` is NULL.
    pub noutcome: usize,
    /// nbatch texts of `message_size` bytes, one behind the other, or NULL. What the
    /// engine said of the error or warning that ended a rollout, cut to fit and ending
    /// in NUL; empty for those that completed.
    pub messages: *mut c_char,
    /// nbatch x message_size, or 0 if `messages` is NULL.
    pub nmessage: usize,
    /// Bytes of one text.
    pub message_size: usize,
    /// Rollouts that a thread takes at a time; 0 for the library's choice. The
    /// results do not depend on it.
    pub chunk_size: usize,
    /// Requests of a higher priority are taken up first, and the pool's threads leave
    /// others for them when they have ended a rollout. Among equals they go where the
    /// fewest threads are. 0 is the usual one.
    pub priority: i32,
    /// ROLLOUT_REQUEST_ATTENDED, or 0. For rollout_run it says nothing: the caller of that
    /// works in any case.
    pub flags: u32,
    /// The time that the request has, in nanoseconds from the call on; 0 for no limit. When
    /// it is up, each thread ends its rollout after the step that it is in, and begins no
    /// other one: the outcomes say which steps are valid, and which rollouts were not
    /// started. Costs one reading of the clock for each step (some 20 ns).
    pub budget_ns: u64,
    /// The same as a time of rollout_clock_ns(); 0 for none. The earlier of the two counts.
    /// If it has passed already, no step is made.
    pub deadline_ns: u64,
}

// SAFETY: repr(C), begins with its size, all fields are numbers and raw pointers.
unsafe impl Growable for RolloutRequest {}
// SAFETY: repr(C), begins with its size; the fields are numbers, raw pointers and
// nullable function pointers, for which every bit pattern is valid until they are called.
unsafe impl Growable for Engine {}

/// Runs all rollouts of a request and returns when they are done. The calling
/// thread takes one of the request's data and works; the pool's threads take the
/// others. A request with one data, or with little to do, runs on the calling
/// thread alone. (In a pool of `rollout_pool_create_on` the pool's threads do all of it,
/// and the caller waits.) Any number of threads may call this at once, each with data of
/// its own.
///
/// Equal requests give equal bits, for every number of threads, chunk size and
/// history of the data, and up to the first warning of a rollout the same bits as a
/// plain loop over the engine's step. A rollout that warned or diverged is no
/// failure of the call: `outcomes` tells, and the rows from there on are as `fill`
/// says. An engine error ends its rollout likewise, and no other one; when all have been
/// run, the status is ROLLOUTS_FAILED. The data that it came from has been reset by then.
///
/// Whichever thread runs a rollout, the engine computes there in the floating-point mode
/// that the calling thread has when it calls (rounding, subnormal numbers, traps), as in
/// that loop. A mode that the engine or a callback leaves behind ends with the step.
///
/// What it costs: a microsecond or so beside the engine's own work; with
/// ROLLOUT_MODEL_HIDDEN_STATE, or with a model for each rollout that has mocap bodies
/// or equality constraints, a reset before each rollout (in MuJoCo as long as 0.05 to
/// 2 steps).
///
/// Everything is checked first; a request that is refused has changed nothing,
/// and the error's text names the argument.
///
/// When the request's time is up (`budget_ns`, `deadline_ns`) the call returns within a
/// step of each thread, with OUT_OF_TIME unless all rollouts had ended; so it does, with
/// CANCELLED, when the pool is destroyed meanwhile. What was done is in the outcomes, and
/// its rows are as good as ever.
///
/// Errors: ROLLOUTS_FAILED, CANCELLED and OUT_OF_TIME after the run; all statuses from 100
/// to 199; BUSY; FORKED in a child that a callback of a rollout has forked; NO_THREAD;
/// PANIC.
///
/// # Safety
///
/// `pool` is NULL or a live handle. `request` is NULL or a request whose pointers
/// are NULL or point to as much as its counts say; nobody else uses the data and
/// the outputs, or changes the inputs, during the call, except that another
/// request may name the same data (and one of the two is refused). The engine table,
/// the lists of models and data and the request itself do not change during the call
/// either.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rollout_run(
    pool: *mut RolloutPool,
    request: *const RolloutRequest,
    error: *mut RolloutError,
) -> RolloutStatus {
    // SAFETY: the caller's promises.
    let body = || unsafe { run(pool, request, Pool::run_on_terms) };
    // SAFETY: the caller's promise.
    unsafe { boundary(error, body) }
}

/// As [`rollout_run`], for a host in Rust that has other things to do now and then.
///
/// # Safety
///
/// As for [`rollout_run`].
pub unsafe fn run_with_pauses(
    pool: *mut RolloutPool,
    request: *const RolloutRequest,
    error: *mut RolloutError,
    pauses: Pauses<'_>,
) -> RolloutStatus {
    let paused = |pool: &Pool, request: &mut Request<'_>, terms| {
        pool.run_with_pauses(request, terms, pauses)
    };
    // SAFETY: the caller's promises.
    let body = || unsafe { run(pool, request, paused) };
    // SAFETY: the caller's promise.
    unsafe { boundary(error, body) }
}

/// # Safety
///
/// As for [`rollout_run`].
unsafe fn run(
    pool: *mut RolloutPool,
    request: *const RolloutRequest,
    run: impl FnOnce(&Pool, &mut Request<'_>, Terms) -> Result<Tally, RunError>,
) -> Result<(), Failure> {
    // SAFETY: the caller's promises.
    let (pool, mut request, terms) = unsafe {
        let pool = handle(pool)?;
        let request = sized::borrow(request, "request")?;
        let (terms, _) = terms(request)?;
        let engine = sized::borrow(request.engine, "engine")?;
        (pool, checked(request, engine)?, terms)
    };
    Failure::check_run(run(&pool, &mut request, terms))
}

/// When a request is to be done, counted from now on, and who begins with it.
pub(crate) fn terms(request: &RolloutRequest) -> Result<(Terms, Start), Error> {
    if request.flags & !ROLLOUT_REQUEST_ATTENDED != 0 {
        return Err(Error::new(
            ErrorKind::BadOption,
            "flags",
            format_args!("is {:#x}, which has unknown bits", request.flags),
        ));
    }
    let terms = Terms {
        deadline: clock::deadline(request.budget_ns, request.deadline_ns),
        priority: request.priority,
    };
    let start = match request.flags & ROLLOUT_REQUEST_ATTENDED {
        0 => Start::AtOnce,
        _ => Start::Attended,
    };
    Ok((terms, start))
}

/// Makes a request of core of what C wrote, with a table of engine functions that was
/// found to be one.
///
/// # Safety
///
/// * As for `request` of [`rollout_run`], for the lifetime `'a`; and the engine is the one
///   that the request names, or a copy.
pub(crate) unsafe fn checked<'a>(
    request: &RolloutRequest,
    engine: &'a Engine,
) -> Result<Request<'a>, Error> {
    // SAFETY: the caller's promises: what is neither null nor misaligned has the
    // size that is stated, and is borrowed as the types say. `list` looks at what
    // becomes a slice here, `Request::new` at the rest.
    unsafe {
        let models: &[Model] = list(request.models, request.nmodel, "models", "nmodel")?;
        let data: &[Data] = list(request.data, request.ndata, "data", "ndata")?;
        let simulation = Simulation::new(engine, models, data);
        let arrays = Arrays {
            nbatch: request.nbatch,
            nstep: request.nstep,
            control_spec: request.control_spec,
            initial_state: input(&request.initial_state),
            initial_warmstart: given(&request.initial_warmstart),
            control: given(&request.control),
            state: wanted(request.state.values, request.state.count),
            sensordata: wanted(request.sensordata.values, request.sensordata.count),
            outcomes: wanted(request.outcomes, request.noutcome),
            messages: wanted(request.messages, request.nmessage),
            message_size: request.message_size,
            fill: fill(request.fill)?,
            chunk_size: request.chunk_size,
        };
        Request::new(simulation, arrays)
    }
}

/// A list of descriptions.
///
/// # Safety
///
/// * If `first` is neither null nor misaligned, `count` elements can be read
///   there for the lifetime `'a`, and nobody writes to them.
pub(crate) unsafe fn list<'a, T>(
    first: *const T,
    count: usize,
    name: &str,
    count_name: &str,
) -> Result<&'a [T], Error> {
    if count == 0 {
        return Ok(&[]);
    }
    check_pointer(first, count, format_args!("{name}"))?;
    if count > isize::MAX as usize / size_of::<T>() {
        return Err(Error::new(
            ErrorKind::Overflow,
            count_name,
            format_args!("is {count}: no list can be that long"),
        ));
    }
    // SAFETY: neither null nor misaligned, and of a size that can exist; the rest
    // is the caller's promise.
    Ok(unsafe { slice::from_raw_parts(first, count) })
}

/// # Safety
///
/// * As for [`Input::from_raw`].
unsafe fn input<'a>(input: &RolloutInput) -> Input<'a> {
    // SAFETY: the caller's promise.
    unsafe {
        Input::from_raw(
            input.values,
            input.count,
            input.rollout_stride,
            input.step_stride,
        )
    }
}

/// An input, unless it is not given.
///
/// # Safety
///
/// * As for [`Input::from_raw`].
unsafe fn given<'a>(array: &RolloutInput) -> Option<Input<'a>> {
    // SAFETY: the caller's promise.
    (!array.values.is_null() || array.count > 0).then(|| unsafe { input(array) })
}

/// An output, unless it is not wanted.
///
/// # Safety
///
/// * As for [`Output::from_raw`].
unsafe fn wanted<'a, T>(values: *mut T, count: usize) -> Option<Output<'a, T>> {
    // SAFETY: the caller's promise.
    (!values.is_null() || count > 0).then(|| unsafe { Output::from_raw(values, count) })
}

fn fill(number: i32) -> Result<Fill, Error> {
    [Fill::Nan, Fill::Hold, Fill::Untouched]
        .into_iter()
        .find(|&fill| fill as i32 == number)
        .ok_or_else(|| {
            Error::new(
                ErrorKind::BadOption,
                "fill",
                format_args!("is {number}, which is no fill policy"),
            )
        })
}
