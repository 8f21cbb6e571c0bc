//! The C ABI, from both sides: what the exported functions make of wrong
//! arguments, and whether `include/rollout.h` says what the library does.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::{env, fs, mem, ptr};

use rollout::{
    ROLLOUT_ABI_VERSION, ROLLOUT_ERROR_TEXT_SIZE, ROLLOUT_NTHREAD_DEFAULT, RolloutError,
    RolloutInput, RolloutOutput, RolloutPool, RolloutRequest, RolloutStatus, rollout_abi_version,
    rollout_pool_count, rollout_pool_create, rollout_pool_destroy, rollout_pool_num_threads,
    rollout_pool_reset_count, rollout_pool_schedule, rollout_pool_wait_count, rollout_run,
    rollout_status_name, rollout_version, rollout_worker_id,
};
use rollout_core::engine::{
    DATA_ENGINE_THREADS, ENGINE_VERSION, MODEL_HIDDEN_STATE, MODEL_UNRESETTABLE_STATE,
};
use rollout_core::{
    Data as RolloutData, Engine as RolloutEngine, Fill, Model as RolloutModel,
    Outcome as RolloutOutcome, OutcomeStatus, Slot,
};
use rollout_tests::toy::{self, Model, Toy, spec};
use rollout_tests::{Numbers, bits};

const NBATCH: usize = 5;
const NSTEP: usize = 4;
const MESSAGE_SIZE: usize = 64;
const NSTATE: usize = 7;
const NCONTROL: usize = 2;
const NSENSORDATA: usize = 4;

/// A C host: a pool, an error object, and all that a request names.
struct Host {
    pool: *mut RolloutPool,
    error: RolloutError,
    engine: RolloutEngine,
    models: Vec<RolloutModel>,
    data: Vec<RolloutData>,
    start: Vec<f64>,
    control: Vec<f64>,
    state: Vec<f64>,
    sensordata: Vec<f64>,
    outcomes: Vec<RolloutOutcome>,
    messages: Vec<u8>,
    // Pointed to by `models` and `data`.
    _model: Box<Model>,
    _slots: Vec<Slot<Toy>>,
}

impl Host {
    fn new(nthread: i32) -> Self {
        let mut error = error_object();
        let mut pool = ptr::null_mut();
        // SAFETY: a place for a handle, and an error object.
        let status = unsafe { rollout_pool_create(nthread, &mut pool, &mut error) };
        assert_eq!(status, RolloutStatus::Ok);
        let model = Box::new(Model::default());
        let mut slots: Vec<_> = (0..3)
            .map(|_| Slot::new(Toy::new(&model), &model))
            .collect();
        let mut numbers = Numbers::new(3);
        Self {
            pool,
            error,
            engine: RolloutEngine::of::<Toy>(),
            models: vec![RolloutModel::of::<Toy>(&model)],
            data: slots.iter_mut().map(RolloutData::of).collect(),
            start: numbers.units(NBATCH * NSTATE),
            control: numbers.units(NBATCH * NSTEP * NCONTROL),
            state: vec![7.0; NBATCH * NSTEP * NSTATE],
            sensordata: vec![7.0; NBATCH * NSTEP * NSENSORDATA],
            outcomes: vec![RolloutOutcome::not_started(); NBATCH],
            messages: vec![b'7'; NBATCH * MESSAGE_SIZE],
            _model: model,
            _slots: slots,
        }
    }

    /// A valid request, as C would write it.
    fn request(&mut self) -> RolloutRequest {
        let not_given = RolloutInput {
            values: ptr::null(),
            count: 0,
            rollout_stride: 0,
            step_stride: 0,
        };
        RolloutRequest {
            size: mem::size_of::<RolloutRequest>(),
            engine: &self.engine,
            models: self.models.as_ptr(),
            nmodel: self.models.len(),
            data: self.data.as_ptr(),
            ndata: self.data.len(),
            nbatch: NBATCH,
            nstep: NSTEP,
            control_spec: 0,
            fill: Fill::Hold as i32,
            initial_state: RolloutInput {
                values: self.start.as_ptr(),
                count: self.start.len(),
                rollout_stride: NSTATE,
                step_stride: 0,
            },
            initial_warmstart: not_given,
            control: RolloutInput {
                values: self.control.as_ptr(),
                count: self.control.len(),
                rollout_stride: NSTEP * NCONTROL,
                step_stride: NCONTROL,
            },
            state: RolloutOutput {
                values: self.state.as_mut_ptr(),
                count: self.state.len(),
            },
            sensordata: RolloutOutput {
                values: self.sensordata.as_mut_ptr(),
                count: self.sensordata.len(),
            },
            outcomes: self.outcomes.as_mut_ptr(),
            noutcome: self.outcomes.len(),
            messages: self.messages.as_mut_ptr().cast(),
            nmessage: self.messages.len(),
            message_size: MESSAGE_SIZE,
            chunk_size: 0,
        }
    }

    /// Runs a request of this host, which may have been broken.
    fn run(&mut self, request: *const RolloutRequest) -> RolloutStatus {
        // SAFETY: the pool and the error object are live; what the request names is
        // this host's, or null, misaligned, or of a size that is refused unread,
        // which is what the tests are about.
        unsafe { rollout_run(self.pool, request, &mut self.error) }
    }

    /// What the last call said.
    fn text(&self) -> String {
        text(&self.error)
    }

    /// All that a request could write.
    fn outputs(&self) -> (Vec<u64>, Vec<u64>, Vec<RolloutOutcome>, Vec<u8>) {
        (
            bits(&self.state),
            bits(&self.sensordata),
            self.outcomes.clone(),
            self.messages.clone(),
        )
    }

    /// Expects a request to be refused with this status, by this name, with
    /// nothing written.
    fn refuses(&mut self, request: *const RolloutRequest, status: RolloutStatus, name: &str) {
        let before = self.outputs();
        assert_eq!(self.run(request), status, "{name}: {}", self.text());
        assert_eq!(self.error.status, status as i32);
        assert_eq!(self.error.index, -1);
        let text = self.text();
        assert!(
            text.starts_with(&format!("{name}: ")),
            "{text:?} does not name {name}"
        );
        assert!(self.outputs() == before, "{name}: refused, but wrote");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: made by this host, and not used by anybody any more.
        unsafe { rollout_pool_destroy(self.pool) };
    }
}

/// What `rollout_error()` of the header gives.
fn error_object() -> RolloutError {
    RolloutError {
        size: mem::size_of::<RolloutError>(),
        status: 0,
        reserved: 0,
        index: -1,
        text: [0; ROLLOUT_ERROR_TEXT_SIZE],
    }
}

fn text(error: &RolloutError) -> String {
    assert!(error.text.contains(&0), "the text has no end");
    // SAFETY: it ends in NUL, as was just seen.
    let text = unsafe { CStr::from_ptr(error.text.as_ptr()) };
    text.to_str().unwrap().to_owned()
}

/// A struct of a host that was compiled with a later header.
#[repr(C)]
struct Later<T> {
    known: T,
    unknown: [u8; 64],
}

fn later<T>(known: T) -> Later<T> {
    Later {
        known,
        unknown: [0; 64],
    }
}

/// Breaks one thing of a valid request.
type Fault = fn(&mut RolloutRequest);

extern "C" fn nothing(_user: *mut c_void) {}

extern "C" fn add_one(number: *mut c_void) {
    // SAFETY: scheduled with an AtomicI32 that outlives the task.
    unsafe { &*number.cast::<AtomicI32>() }.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn r10_every_entry_refuses_null_at_once() {
    let mut host = Host::new(1);
    let request = host.request();
    let (pool, null) = (host.pool, ptr::null_mut());
    let (mut nthread, mut count) = (7, 7);
    type Call<'a> = &'a mut dyn FnMut(*mut RolloutError) -> RolloutStatus;
    // SAFETY: here and in the other lines, each pointer is null or valid.
    let calls: [(&str, &str, Call<'_>); 11] = unsafe {
        [
            ("rollout_pool_create", "pool", &mut |e| {
                rollout_pool_create(1, ptr::null_mut(), e)
            }),
            ("rollout_pool_num_threads", "pool", &mut |e| {
                rollout_pool_num_threads(null, &mut nthread, e)
            }),
            ("rollout_pool_num_threads", "nthread", &mut |e| {
                rollout_pool_num_threads(pool, ptr::null_mut(), e)
            }),
            ("rollout_pool_schedule", "pool", &mut |e| {
                rollout_pool_schedule(null, Some(nothing), ptr::null_mut(), e)
            }),
            ("rollout_pool_schedule", "task", &mut |e| {
                rollout_pool_schedule(pool, None, ptr::null_mut(), e)
            }),
            ("rollout_pool_count", "pool", &mut |e| {
                rollout_pool_count(null, &mut count, e)
            }),
            ("rollout_pool_count", "count", &mut |e| {
                rollout_pool_count(pool, ptr::null_mut(), e)
            }),
            ("rollout_pool_reset_count", "pool", &mut |e| {
                rollout_pool_reset_count(null, e)
            }),
            ("rollout_pool_wait_count", "pool", &mut |e| {
                rollout_pool_wait_count(null, 0, e)
            }),
            ("rollout_run", "pool", &mut |e| {
                rollout_run(null, &request, e)
            }),
            ("rollout_run", "request", &mut |e| {
                rollout_run(pool, ptr::null(), e)
            }),
        ]
    };
    let mut called = BTreeSet::new();
    for (function, argument, call) in calls {
        let mut error = error_object();
        assert_eq!(call(&mut error), RolloutStatus::NullPointer, "{function}");
        assert_eq!(text(&error), format!("{argument}: is null"), "{function}");
        // And without an error object.
        assert_eq!(
            call(ptr::null_mut()),
            RolloutStatus::NullPointer,
            "{function}"
        );
        called.insert(function.to_owned());
    }
    assert_eq!((nthread, count), (7, 7));

    // The one entry that does nothing with NULL, and those that take no pointer.
    // SAFETY: nothing is destroyed.
    unsafe { rollout_pool_destroy(ptr::null_mut()) };
    let rest = [
        "rollout_pool_destroy",
        "rollout_worker_id",
        "rollout_abi_version",
        "rollout_version",
        "rollout_status_name",
    ];
    called.extend(rest.map(str::to_owned));
    assert_eq!(called, header::functions(), "an entry without a line here");

    // What the request points to.
    let nulls: [(&str, Fault); 8] = [
        ("engine", |r| r.engine = ptr::null()),
        ("models", |r| r.models = ptr::null()),
        ("data", |r| r.data = ptr::null()),
        ("initial_state.values", |r| {
            r.initial_state.values = ptr::null()
        }),
        ("control.values", |r| r.control.values = ptr::null()),
        ("state.values", |r| r.state.values = ptr::null_mut()),
        ("outcomes", |r| r.outcomes = ptr::null_mut()),
        ("messages", |r| r.messages = ptr::null_mut()),
    ];
    for (name, forget) in nulls {
        let mut request = request;
        forget(&mut request);
        host.refuses(&request, RolloutStatus::NullPointer, name);
    }
    host.models[0].model = ptr::null();
    host.refuses(&request, RolloutStatus::NullPointer, "models[0].model");
    assert_eq!(text(&host.error), "models[0].model: is null");
}

#[test]
fn r04_wrong_sizes_and_options_are_refused() {
    use RolloutStatus as S;
    const MAX: usize = usize::MAX;
    let cases: &[(S, &str, Fault)] = &[
        (S::EmptyList, "models", |r| r.nmodel = 0),
        (S::EmptyList, "models", |r| {
            (r.models, r.nmodel) = (ptr::null(), 0)
        }),
        (S::EmptyList, "data", |r| r.ndata = 0),
        (S::Overflow, "nmodel", |r| r.nmodel = MAX),
        (S::Overflow, "ndata", |r| r.ndata = MAX),
        (S::Overflow, "initial_state.rollout_stride", |r| {
            r.nbatch = MAX
        }),
        (S::Overflow, "state.count", |r| {
            r.nbatch = MAX;
            (r.initial_state.rollout_stride, r.initial_state.count) = (0, NSTATE);
            (r.control.values, r.control.count) = (ptr::null(), 0);
        }),
        (S::Overflow, "noutcome", |r| {
            (r.nbatch, r.nstep) = (MAX, 0);
            (r.initial_state.rollout_stride, r.initial_state.count) = (0, NSTATE);
            r.state.count = 0;
            r.sensordata.count = 0;
            r.control.count = 0;
        }),
        (S::Overflow, "control.rollout_stride", |r| {
            r.control.rollout_stride = MAX
        }),
        (S::Overflow, "nmessage", |r| r.message_size = MAX),
        (S::WrongSize, "initial_state.count", |r| r.nbatch += 1),
        (S::WrongSize, "initial_state.count", |r| r.nbatch -= 1),
        (S::WrongSize, "control.count", |r| r.nstep += 1),
        (S::WrongSize, "control.count", |r| r.nstep -= 1),
        (S::WrongSize, "initial_state.count", |r| {
            r.initial_state.count -= 1
        }),
        (S::WrongSize, "initial_state.step_stride", |r| {
            r.initial_state.step_stride = 1
        }),
        (S::WrongSize, "control.count", |r| r.control.count = MAX),
        (S::WrongSize, "state.count", |r| r.state.count += 1),
        (S::WrongSize, "sensordata.count", |r| {
            r.sensordata.count -= 1
        }),
        (S::WrongSize, "noutcome", |r| r.noutcome -= 1),
        (S::WrongSize, "nmessage", |r| r.nmessage = MAX),
        (S::WrongSize, "message_size", |r| {
            (r.message_size, r.nmessage) = (0, 0)
        }),
        (S::BadSpec, "control_spec", |r| r.control_spec = 1 << 31),
        (S::BadSpec, "control_spec", |r| r.control_spec = spec::QPOS),
        (S::BadOption, "fill", |r| r.fill = 3),
        (S::BadOption, "fill", |r| r.fill = -1),
        (S::BadOption, "fill", |r| r.fill = i32::MIN),
        (S::BadOption, "fill", |r| r.fill = i32::MAX),
        (S::Misaligned, "engine", |r| {
            r.engine = r.engine.wrapping_byte_add(4)
        }),
        (S::Misaligned, "models", |r| {
            r.models = r.models.wrapping_byte_add(1)
        }),
        (S::Misaligned, "data", |r| {
            r.data = r.data.wrapping_byte_add(2)
        }),
        (S::Misaligned, "control.values", |r| {
            r.control.values = r.control.values.wrapping_byte_add(4)
        }),
        (S::Misaligned, "state.values", |r| {
            r.state.values = r.state.values.wrapping_byte_add(4)
        }),
        (S::Misaligned, "outcomes", |r| {
            r.outcomes = r.outcomes.wrapping_byte_add(4)
        }),
        (S::Overlap, "sensordata", |r| {
            r.sensordata.values = r.state.values
        }),
    ];
    let mut host = Host::new(1);
    let valid = host.request();
    for (status, name, fault) in cases {
        let mut request = valid;
        fault(&mut request);
        host.refuses(&request, *status, name);
    }
    let misaligned = ptr::from_ref(&valid).wrapping_byte_add(4);
    host.refuses(misaligned, RolloutStatus::Misaligned, "request");

    host.data[2] = host.data[0];
    host.refuses(&valid, RolloutStatus::DuplicateData, "data[2]");
}

#[test]
fn a_pool_of_an_odd_number_of_threads_is_refused() {
    for nthread in [-2, 4097, i32::MIN, i32::MAX] {
        let mut error = error_object();
        let mut pool = ptr::dangling_mut();
        // SAFETY: a place for a handle, and an error object.
        let status = unsafe { rollout_pool_create(nthread, &mut pool, &mut error) };
        assert_eq!(status, RolloutStatus::BadOption);
        assert!(text(&error).starts_with("nthread: "), "{}", text(&error));
        assert_eq!(pool, ptr::dangling_mut(), "written in spite of the error");
    }
    // SAFETY: refused before it is written.
    let status = unsafe {
        let nowhere = ptr::dangling_mut::<*mut RolloutPool>().wrapping_byte_add(1);
        rollout_pool_create(0, nowhere, ptr::null_mut())
    };
    assert_eq!(status, RolloutStatus::Misaligned);
}

#[test]
fn pools_have_the_threads_that_were_asked_for() {
    for nthread in [ROLLOUT_NTHREAD_DEFAULT, 0, 1, 3] {
        let host = Host::new(nthread);
        let mut made = -7;
        // SAFETY: a live pool, and a place for a number.
        let status = unsafe { rollout_pool_num_threads(host.pool, &mut made, ptr::null_mut()) };
        assert_eq!(status, RolloutStatus::Ok);
        let wanted = match nthread {
            ROLLOUT_NTHREAD_DEFAULT => rollout_pool::default_nthread() as i32,
            given => given,
        };
        assert_eq!(made, wanted);
    }
}

#[test]
fn an_error_object_is_used_again_and_again() {
    let mut host = Host::new(1);
    let valid = host.request();
    let wrong = RolloutRequest { fill: 9, ..valid };
    for _ in 0..3 {
        host.error.reserved = 77;
        host.refuses(&wrong, RolloutStatus::BadOption, "fill");
        assert_eq!(host.error.reserved, 0);
        assert_eq!(host.run(&valid), RolloutStatus::Ok);
        let error = &host.error;
        assert_eq!((error.status, error.reserved, error.index), (0, 0, -1));
        assert_eq!(text(error), "");
        assert_eq!(error.size, mem::size_of::<RolloutError>());
    }
}

#[test]
fn an_error_object_that_cannot_be_written_is_refused() {
    let known = mem::size_of::<RolloutError>();
    for size in [0, 1, 8, known - 8, known - 1, 4097, usize::MAX] {
        let mut host = Host::new(0);
        host.error.size = size;
        host.error.text.fill(b'7' as c_char);
        let (before, outputs) = (host.error, host.outputs());
        let request = host.request();
        assert_eq!(host.run(&request), RolloutStatus::WrongSize, "{size}");
        assert!(host.outputs() == outputs, "{size}: ran all the same");
        assert_eq!(host.error.text, before.text, "{size}: written");
        assert_eq!(host.error.size, size);

        // The other functions look at it first, too.
        let mut pool = ptr::null_mut();
        let ran = AtomicI32::new(0);
        let user = ptr::from_ref(&ran).cast_mut().cast();
        // SAFETY: the error object has a wrong size, and is at least as large as a
        // size field; the others are valid.
        let statuses = unsafe {
            [
                rollout_pool_create(0, &mut pool, &mut host.error),
                rollout_pool_schedule(host.pool, Some(add_one), user, &mut host.error),
                rollout_pool_wait_count(host.pool, 0, &mut host.error),
                rollout_pool_reset_count(host.pool, &mut host.error),
            ]
        };
        assert_eq!(statuses, [RolloutStatus::WrongSize; 4]);
        assert!(pool.is_null(), "made all the same");
        assert_eq!(ran.into_inner(), 0, "ran all the same");
    }

    // A misaligned one is not even read.
    let host = Host::new(0);
    let mut memory = [0x77_u64; 80];
    let misaligned: *mut RolloutError = memory.as_mut_ptr().wrapping_byte_add(4).cast();
    // SAFETY: a live pool; the error object is misaligned.
    let status = unsafe { rollout_pool_reset_count(host.pool, misaligned) };
    assert_eq!(status, RolloutStatus::Misaligned);
    assert_eq!(memory, [0x77; 80]);
}

#[test]
fn a_later_hosts_larger_error_object_is_written_as_far_as_it_is_known() {
    let mut host = Host::new(0);
    let mut error = later(error_object());
    error.known.size = mem::size_of::<Later<RolloutError>>();
    error.unknown = [7; 64];
    let object = ptr::from_mut(&mut error).cast::<RolloutError>();
    let request = RolloutRequest {
        fill: 9,
        ..host.request()
    };
    // SAFETY: the pool is live; the error object is as large as it says.
    let status = unsafe { rollout_run(host.pool, &request, object) };
    assert_eq!(status, RolloutStatus::BadOption);
    assert!(text(&error.known).starts_with("fill: "));
    assert_eq!(error.unknown, [7; 64]);
    assert_eq!(error.known.size, mem::size_of::<Later<RolloutError>>());
}

#[test]
fn a_request_and_an_engine_of_another_size_are_refused() {
    let mut host = Host::new(0);
    let known = mem::size_of::<RolloutRequest>();
    for size in [0, 1, 8, known - 8, known - 1, 4097, usize::MAX] {
        let request = RolloutRequest {
            size,
            ..host.request()
        };
        host.refuses(&request, RolloutStatus::WrongSize, "request.size");
    }
    let known = mem::size_of::<RolloutEngine>();
    for size in [0, 1, 8, known - 8, known - 1, 4097, usize::MAX] {
        host.engine.size = size;
        let request = host.request();
        host.refuses(&request, RolloutStatus::WrongSize, "engine.size");
    }
}

#[test]
fn a_later_hosts_larger_structs_are_accepted_while_the_unknown_part_is_zero() {
    let mut host = Host::new(0);
    let mut expected = None;
    for more in [0, 1, 8, 64] {
        let mut engine = later(host.engine);
        engine.known.size += more;
        let mut request = later(host.request());
        request.known.size += more;
        request.known.engine = ptr::from_ref(&engine).cast();
        // What lies behind the struct is not looked at.
        request.unknown[more..].fill(7);
        engine.unknown[more..].fill(7);
        let pointer = ptr::from_ref(&request).cast();
        host.state.fill(7.0);
        assert_eq!(host.run(pointer), RolloutStatus::Ok, "{}", host.text());
        let expected = expected.get_or_insert_with(|| host.outputs());
        assert!(*expected == host.outputs());

        for byte in 0..more {
            request.unknown[byte] = 1;
            host.refuses(
                ptr::from_ref(&request).cast(),
                RolloutStatus::WrongSize,
                "request.size",
            );
            request.unknown[byte] = 0;
            engine.unknown[byte] = 1;
            host.refuses(
                ptr::from_ref(&request).cast(),
                RolloutStatus::WrongSize,
                "engine.size",
            );
            engine.unknown[byte] = 0;
        }
    }
}

#[test]
fn a_request_through_the_abi_has_the_bits_of_one_through_the_crates() {
    use rollout_core::{Arrays, Input, Output, Request, Simulation};
    let mut host = Host::new(2);
    let model = [Model::default()];
    let mut slots = [Slot::new(Toy::new(&model[0]), &model[0])];
    let mut state = vec![0.0; NBATCH * NSTEP * NSTATE];
    let mut sensordata = vec![0.0; NBATCH * NSTEP * NSENSORDATA];
    let arrays = Arrays {
        nbatch: NBATCH,
        nstep: NSTEP,
        initial_state: Input::rows(&host.start, NSTATE),
        control: Some(Input::steps(&host.control, NSTEP, NCONTROL)),
        state: Some(Output::new(&mut state)),
        sensordata: Some(Output::new(&mut sensordata)),
        ..Arrays::default()
    };
    let mut request = Request::new(Simulation::of::<Toy>(&model, &mut slots), arrays).unwrap();
    assert_eq!(request.run().completed, NBATCH);
    drop(request);

    for chunk_size in [0, 1, 2, 7, NBATCH, usize::MAX] {
        host.state.fill(7.0);
        host.sensordata.fill(7.0);
        let request = RolloutRequest {
            chunk_size,
            ..host.request()
        };
        assert_eq!(host.run(&request), RolloutStatus::Ok, "{}", host.text());
        assert_eq!(bits(&host.state), bits(&state));
        assert_eq!(bits(&host.sensordata), bits(&sensordata));
        assert!(host.outcomes.iter().all(RolloutOutcome::completed));
        assert!(host.messages.chunks(MESSAGE_SIZE).all(|text| text[0] == 0));
    }
}

#[test]
fn failed_rollouts_are_told_by_status_index_and_message() {
    let mut host = Host::new(1);
    for (rollout, step) in [(3, 2), (1, 0), (4, 1)] {
        host.control[(rollout * NSTEP + step) * NCONTROL] = toy::FAIL;
    }
    let request = host.request();
    assert_eq!(host.run(&request), RolloutStatus::RolloutsFailed);
    assert_eq!(host.error.status, RolloutStatus::RolloutsFailed as i32);
    assert_eq!(host.error.index, 1);
    assert_eq!(
        host.text(),
        "3 of 5 rollouts ended with an engine error, the first is 1"
    );
    let steps: Vec<_> = host.outcomes.iter().map(|o| (o.status, o.steps)).collect();
    let (ok, failed) = (
        OutcomeStatus::Completed as i32,
        OutcomeStatus::EngineError as i32,
    );
    assert_eq!(
        steps,
        [(ok, 4), (failed, 0), (ok, 4), (failed, 2), (failed, 1)]
    );
    for (rollout, message) in host.messages.chunks(MESSAGE_SIZE).enumerate() {
        let message = CStr::from_bytes_until_nul(message)
            .unwrap()
            .to_str()
            .unwrap();
        let asked = message.starts_with("control 0 at time ");
        assert_eq!(
            asked,
            [1, 3, 4].contains(&rollout),
            "{rollout}: {message:?}"
        );
    }
}

/// What `run_again` runs, and the error object that it was told by.
static AGAIN: AtomicPtr<RolloutRequest> = AtomicPtr::new(ptr::null_mut());
static AGAIN_POOL: AtomicPtr<RolloutPool> = AtomicPtr::new(ptr::null_mut());
static AGAIN_ERROR: AtomicPtr<RolloutError> = AtomicPtr::new(ptr::null_mut());

/// A step that asks for another request with the data it is stepping.
unsafe extern "C" fn run_again(_model: *const c_void, _data: *mut c_void) {
    let request = AGAIN.swap(ptr::null_mut(), Ordering::Relaxed);
    if !request.is_null() {
        // SAFETY: all three are live in the test that runs this engine.
        unsafe {
            rollout_run(
                AGAIN_POOL.load(Ordering::Relaxed),
                request,
                AGAIN_ERROR.load(Ordering::Relaxed),
            )
        };
    }
}

#[test]
fn a_data_in_use_is_refused_by_name() {
    let mut host = Host::new(0);
    let mut other = Host::new(0);
    let mut error = error_object();
    // The data of the second request: two of its own, and one of the first's.
    other.data[2] = host.data[0];
    let before = other.outputs();
    host.engine.step = Some(run_again);
    host.data.truncate(1);
    let mut second = other.request();
    AGAIN.store(&mut second, Ordering::Relaxed);
    AGAIN_POOL.store(other.pool, Ordering::Relaxed);
    AGAIN_ERROR.store(&mut error, Ordering::Relaxed);

    let first = host.request();
    assert_eq!(host.run(&first), RolloutStatus::Ok, "{}", host.text());
    assert!(AGAIN.load(Ordering::Relaxed).is_null(), "not asked");
    assert_eq!(error.status, RolloutStatus::Busy as i32);
    assert_eq!(error.index, 2);
    assert!(text(&error).starts_with("data[2]: "), "{}", text(&error));
    assert!(other.outputs() == before, "refused, but wrote");

    // Both are free again.
    assert_eq!(other.run(&second), RolloutStatus::Ok, "{}", other.text());
    assert_eq!(host.run(&first), RolloutStatus::Ok, "{}", host.text());
}

#[test]
fn waits_that_could_never_end_are_refused() {
    struct Waiter(*mut RolloutPool, AtomicI32);
    unsafe extern "C" fn wait(user: *mut c_void) {
        // SAFETY: scheduled with a Waiter that outlives the task.
        let Waiter(pool, status) = unsafe { &*user.cast::<Waiter>() };
        // SAFETY: a live pool.
        let said = unsafe { rollout_pool_wait_count(*pool, 1, ptr::null_mut()) };
        status.store(said as i32, Ordering::Relaxed);
    }
    for nthread in [0, 1] {
        let mut host = Host::new(nthread);
        let waiter = Waiter(host.pool, AtomicI32::new(-1));
        let user = ptr::from_ref(&waiter).cast_mut().cast();
        // SAFETY: the pool is live; the waiter outlives the task, which is waited for.
        unsafe {
            if nthread == 0 {
                let status = rollout_pool_wait_count(host.pool, 1, &mut host.error);
                assert_eq!(status, RolloutStatus::WouldDeadlock);
                assert_eq!(host.text(), "waiting here would never end");
            }
            rollout_pool_schedule(host.pool, Some(wait), user, ptr::null_mut());
            let status = rollout_pool_wait_count(host.pool, 1, &mut host.error);
            assert_eq!(status, RolloutStatus::Ok);
        }
        let status = waiter.1.into_inner();
        assert_eq!(status, RolloutStatus::WouldDeadlock as i32);
    }
}

#[test]
fn versions_and_names() {
    assert_eq!(rollout_abi_version(), ROLLOUT_ABI_VERSION);
    assert_eq!(rollout_worker_id(), -1);
    // SAFETY: texts that live as long as the library.
    let version = unsafe { CStr::from_ptr(rollout_version()) };
    assert_eq!(version.to_str(), Ok(env!("CARGO_PKG_VERSION")));

    // SAFETY: as above.
    let name = |status| unsafe { CStr::from_ptr(rollout_status_name(status)) };
    let known: BTreeSet<i32> = statuses().into_iter().map(|(_, number)| number).collect();
    let names: BTreeSet<_> = known.iter().map(|&status| name(status)).collect();
    assert_eq!(names.len(), known.len(), "two statuses of one name");
    for status in (-10..1000).chain([i32::MIN, i32::MAX]) {
        let unknown = name(status) == c"unknown status";
        assert_eq!(unknown, !known.contains(&status), "{status}");
    }
}

// What the header says, and what the library does.

/// Lists an enum of the header: the constants' names and the numbers that they
/// have for ever. Does not compile if a variant is missing.
macro_rules! numbers {
    ($type:ident: $($variant:ident, $name:literal, $number:literal;)*) => {{
        let _complete = |value: $type| match value { $($type::$variant => (),)* };
        vec![$({
            assert_eq!($type::$variant as i64, $number, $name);
            ($name, $number)
        },)*]
    }};
}

#[rustfmt::skip]
fn statuses() -> Vec<(&'static str, i32)> {
    numbers! { RolloutStatus:
        Ok, "ROLLOUT_STATUS_OK", 0;
        RolloutsFailed, "ROLLOUT_STATUS_ROLLOUTS_FAILED", 1;
        NullPointer, "ROLLOUT_STATUS_NULL_POINTER", 100;
        Misaligned, "ROLLOUT_STATUS_MISALIGNED", 101;
        WrongSize, "ROLLOUT_STATUS_WRONG_SIZE", 102;
        Overflow, "ROLLOUT_STATUS_OVERFLOW", 103;
        EmptyList, "ROLLOUT_STATUS_EMPTY_LIST", 104;
        BadSpec, "ROLLOUT_STATUS_BAD_SPEC", 105;
        BadEngine, "ROLLOUT_STATUS_BAD_ENGINE", 106;
        LayoutMismatch, "ROLLOUT_STATUS_LAYOUT_MISMATCH", 107;
        DuplicateData, "ROLLOUT_STATUS_DUPLICATE_DATA", 108;
        Overlap, "ROLLOUT_STATUS_OVERLAP", 109;
        BadOption, "ROLLOUT_STATUS_BAD_OPTION", 110;
        Unsupported, "ROLLOUT_STATUS_UNSUPPORTED", 111;
        Busy, "ROLLOUT_STATUS_BUSY", 200;
        WouldDeadlock, "ROLLOUT_STATUS_WOULD_DEADLOCK", 201;
        NoThread, "ROLLOUT_STATUS_NO_THREAD", 300;
        Panic, "ROLLOUT_STATUS_PANIC", 400;
        TaskPanicked, "ROLLOUT_STATUS_TASK_PANICKED", 401;
    }
}

/// The constants of the library, as the lines that the C program prints.
#[rustfmt::skip]
fn constants() -> BTreeSet<String> {
    let mut all = statuses();
    all.extend(numbers! { OutcomeStatus:
        Completed, "ROLLOUT_OUTCOME_STATUS_COMPLETED", 0;
        Warned, "ROLLOUT_OUTCOME_STATUS_WARNED", 1;
        Diverged, "ROLLOUT_OUTCOME_STATUS_DIVERGED", 2;
        EngineError, "ROLLOUT_OUTCOME_STATUS_ENGINE_ERROR", 10;
        NotStarted, "ROLLOUT_OUTCOME_STATUS_NOT_STARTED", 30;
    });
    all.extend(numbers! { Fill:
        Nan, "ROLLOUT_FILL_NAN", 0;
        Hold, "ROLLOUT_FILL_HOLD", 1;
        Untouched, "ROLLOUT_FILL_UNTOUCHED", 2;
    });
    all.extend([
        ("ROLLOUT_ERROR_TEXT_SIZE", ROLLOUT_ERROR_TEXT_SIZE as i32),
        ("ROLLOUT_NTHREAD_DEFAULT", ROLLOUT_NTHREAD_DEFAULT),
        ("ROLLOUT_ABI_VERSION", ROLLOUT_ABI_VERSION as i32),
        ("ROLLOUT_ENGINE_VERSION", ENGINE_VERSION as i32),
        ("ROLLOUT_MODEL_HIDDEN_STATE", MODEL_HIDDEN_STATE as i32),
        ("ROLLOUT_MODEL_UNRESETTABLE_STATE", MODEL_UNRESETTABLE_STATE as i32),
        ("ROLLOUT_DATA_ENGINE_THREADS", DATA_ENGINE_THREADS as i32),
    ]);
    all.into_iter().map(|(name, number)| format!("{name} = {number}")).collect()
}

fn field_size<T, F>(_field: impl Fn(&T) -> &F) -> usize {
    mem::size_of::<F>()
}

/// Lists structs of the header, in the lines that the C program prints. Does not
/// compile if a field is missing.
macro_rules! layouts {
    ($($type:ident { $($field:ident),* })*) => {{
        let mut lines = BTreeSet::new();
        $({
            let _complete = |value: $type| { let $type { $($field: _),* } = value; };
            lines.insert(format!(
                "{}: size {}, alignment {}",
                stringify!($type),
                mem::size_of::<$type>(),
                mem::align_of::<$type>(),
            ));
            $(lines.insert(format!(
                "{}.{}: at {}, size {}",
                stringify!($type),
                stringify!($field),
                mem::offset_of!($type, $field),
                field_size(|value: &$type| &value.$field),
            ));)*
        })*
        lines
    }};
}

/// The structs of the library.
fn layouts() -> BTreeSet<String> {
    layouts! {
        RolloutError { size, status, reserved, index, text }
        RolloutEngine {
            size, version, number_size, header_release, library_release, step, state_size,
            get_state, set_state, reset, take_error, full_physics, user, warmstart, ctrl,
            model_inputs, diverged_warnings
        }
        RolloutModel { model, layout, nsensordata, nplugin, flags }
        RolloutData { data, sensordata, warning_number, nwarning, flags, layout, nplugin }
        RolloutInput { values, count, rollout_stride, step_stride }
        RolloutOutput { values, count }
        RolloutOutcome { status, warning, steps }
        RolloutRequest {
            size, engine, models, nmodel, data, ndata, nbatch, nstep, control_spec, fill,
            initial_state, initial_warmstart, control, state, sensordata, outcomes, noutcome,
            messages, nmessage, message_size, chunk_size
        }
    }
}

/// Compiles a C program against the header in both languages, runs it, and
/// returns the lines that it prints in either.
fn lines_of_c(name: &str, statements: &str) -> [BTreeSet<String>; 2] {
    let folder = scratch(name);
    let source = folder.join("program.c");
    let program = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include \"rollout.h\"\n\n\
         int main(void) {{\n{statements}  return 0;\n}}\n"
    );
    fs::write(&source, program).unwrap();
    let languages = [
        ("CC", "cc", ["-std=c99", "-x", "c"]),
        ("CXX", "c++", ["-std=c++11", "-x", "c++"]),
    ];
    languages.map(|(variable, default, flags)| {
        let compiler = env::var(variable).unwrap_or_else(|_| default.to_owned());
        let mut words = compiler.split_whitespace();
        let binary = folder.join(default);
        let mut compile = Command::new(words.next().unwrap());
        compile
            .args(words)
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror"])
            .arg("-I")
            .arg(root().join("include"))
            .args(flags)
            .arg(&source)
            .arg("-o")
            .arg(&binary);
        output_of(&mut compile);
        output_of(&mut Command::new(&binary))
            .lines()
            .map(str::to_owned)
            .collect()
    })
}

#[test]
fn r73_structs_have_one_layout_in_c_cxx_and_rust() {
    let mut statements = String::new();
    for (name, fields) in header::structs() {
        statements += &format!(
            "  {{\n    struct align {{ char c; {name} value; }};\n    \
             printf(\"{name}: size %zu, alignment %zu\\n\", sizeof({name}), \
             offsetof(struct align, value));\n  }}\n"
        );
        for field in fields {
            statements += &format!(
                "  printf(\"{name}.{field}: at %zu, size %zu\\n\", offsetof({name}, {field}), \
                 sizeof((({name}*)0)->{field}));\n"
            );
        }
    }
    for lines in lines_of_c("layouts", &statements) {
        assert_eq!(lines, layouts());
    }
}

#[test]
fn constants_have_one_value_in_c_cxx_and_rust() {
    let mut statements = String::new();
    for name in header::constants() {
        statements += &format!("  printf(\"{name} = %lld\\n\", (long long){name});\n");
    }
    for lines in lines_of_c("constants", &statements) {
        assert_eq!(lines, constants());
    }
}

/// A C host has one namespace for everything.
#[test]
fn all_names_of_the_header_are_ours() {
    let types = header::types();
    assert!(
        types.contains("RolloutPool") && types.contains("RolloutFill"),
        "{types:?}"
    );
    for name in types {
        assert!(
            name.starts_with("Rollout"),
            "the header names a type {name}"
        );
    }
    for name in header::constants() {
        assert!(
            name.starts_with("ROLLOUT_"),
            "the header has a constant {name}"
        );
    }
    for name in header::functions() {
        assert!(
            name.starts_with("rollout_"),
            "the header has a function {name}"
        );
    }
}

#[test]
fn statuses_and_fills_are_32_bits_wide_in_c() {
    let types = ["RolloutStatus", "RolloutOutcomeStatus", "RolloutFill"];
    let statements: String = types
        .iter()
        .map(|name| format!("  printf(\"{name} %zu\\n\", sizeof({name}));\n"))
        .collect();
    let expected = types.map(|name| format!("{name} 4")).into();
    for lines in lines_of_c("widths", &statements) {
        assert_eq!(lines, expected);
    }
}

/// The library exports what the header declares, and needs nothing but libc.
#[test]
fn r39_the_shared_library_exports_the_headers_functions_and_needs_only_libc() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("shared-library");
    let mut build = Command::new(env!("CARGO"));
    build
        .args([
            "build",
            "--quiet",
            "--locked",
            "--offline",
            "--package",
            "rollout-ffi",
        ])
        .arg("--target-dir")
        .arg(&folder)
        .current_dir(root());
    // As a host gets it, whatever flags the tests are built with.
    for variable in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET"] {
        build.env_remove(variable);
    }
    output_of(&mut build);
    let library = folder.join("debug/librollout.so");

    let symbols = output_of(
        Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(&library),
    );
    let exported = symbols
        .lines()
        .map(|line| line.split_whitespace().last().unwrap().to_owned());
    assert_eq!(exported.collect::<BTreeSet<_>>(), header::functions());

    let symbols = output_of(
        Command::new("nm")
            .args(["-D", "--undefined-only"])
            .arg(&library),
    );
    for line in symbols.lines() {
        let symbol = line.split_whitespace().last().unwrap();
        let graphics = symbol
            .strip_prefix("gl")
            .is_some_and(|rest| rest.starts_with(char::is_uppercase));
        let foreign = ["mj", "_mj", "GL", "egl", "EGL", "Py", "_Py"]
            .iter()
            .any(|prefix| symbol.starts_with(prefix));
        assert!(!graphics && !foreign, "the library needs {symbol}");
    }

    let dynamic = output_of(
        Command::new("readelf")
            .args(["--dynamic", "--wide"])
            .arg(&library),
    );
    let allowed = ["libc", "libgcc_s", "libm", "libpthread", "libdl"];
    for line in dynamic.lines().filter(|line| line.contains("(NEEDED)")) {
        let name = line.split(['[', ']']).nth(1).unwrap();
        let stem = name.split('.').next().unwrap();
        let loader = stem.starts_with("ld-linux");
        assert!(
            loader || allowed.contains(&stem),
            "the library needs {name}"
        );
    }
    assert!(
        dynamic.contains("[libc.so.6]"),
        "no NEEDED was read:\n{dynamic}"
    );
}

/// Runs a command that must succeed, and returns what it printed.
fn output_of(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

/// A folder of one test.
fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// As much C as it takes to read our own header.
mod header {
    use std::collections::BTreeSet;

    /// The header without its comments.
    fn code() -> String {
        include_str!("../include/rollout.h")
            .lines()
            .map(|line| line.split("//").next().unwrap().trim_end())
            .filter(|line| !line.is_empty())
            .flat_map(|line| [line, "\n"])
            .collect()
    }

    fn word(text: &str) -> &str {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        &text[..text.find(|c| !is_word(c)).unwrap_or(text.len())]
    }

    fn last_word(text: &str) -> &str {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = text.rfind(is_word).map_or(0, |end| end + 1);
        &text[text[..end]
            .rfind(|c| !is_word(c))
            .map_or(0, |start| start + 1)..end]
    }

    /// The functions that it declares.
    pub(crate) fn functions() -> BTreeSet<String> {
        let code = code();
        let (_, declared) = code.split_once("extern \"C\" {").unwrap();
        let (declared, _) = declared.split_once("#ifdef __cplusplus").unwrap();
        let functions: BTreeSet<_> = declared
            .split(';')
            .filter_map(|declaration| declaration.split_once('('))
            .map(|(before, _)| last_word(before).to_owned())
            .collect();
        assert!(functions.contains("rollout_run"), "{functions:?}");
        functions
    }

    /// The structs that it defines, with their fields.
    pub(crate) fn structs() -> Vec<(String, Vec<String>)> {
        let code = code();
        let mut structs = Vec::new();
        for definition in code.split("typedef struct ").skip(1) {
            let name = word(definition);
            let Some(body) = definition[name.len()..].strip_prefix(" {") else {
                // A handle, of which the header tells no more.
                continue;
            };
            let (body, _) = body.split_once('}').unwrap();
            let fields = body
                .split(';')
                .map(str::trim)
                .filter(|line| !line.is_empty());
            let fields = fields.map(|field| match field.split_once("(*") {
                Some((_, pointer)) => word(pointer).to_owned(),
                None => last_word(field.split('[').next().unwrap()).to_owned(),
            });
            structs.push((name.to_owned(), fields.collect()));
        }
        let written = code.matches("} Rollout").count();
        assert_eq!(structs.len(), written, "a struct was not read");
        structs
    }

    /// The structs and enums that it names, and the types that it makes of them.
    pub(crate) fn types() -> BTreeSet<String> {
        let code = code();
        let tagged = ["struct ", "enum "]
            .into_iter()
            .flat_map(|tag| code.split(tag).skip(1).map(word));
        let aliases = code.split("} ").skip(1).map(word);
        let pointers = code
            .split("typedef ")
            .skip(1)
            .filter_map(|definition| definition.split(';').next()?.split_once("(*"))
            .filter(|(before, _)| !before.contains('{'))
            .map(|(_, name)| word(name));
        let all = tagged.chain(aliases).chain(pointers);
        all.filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect()
    }

    /// The enumerators and macros that it defines.
    pub(crate) fn constants() -> BTreeSet<String> {
        let code = code();
        let macros = code
            .lines()
            .filter_map(|line| line.strip_prefix("#define "))
            .filter_map(|line| line.split_once(' '))
            .map(|(name, _)| name);
        let enumerators = code
            .lines()
            .filter_map(|line| line.trim_start().split_once(" = "))
            .map(|(name, _)| name)
            .filter(|name| name.starts_with("ROLLOUT_"));
        macros.chain(enumerators).map(str::to_owned).collect()
    }
}
