//! The C ABI from a host's side: what the exported functions make of right and
//! wrong arguments.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::{mem, ptr};

use rollout::{
    ROLLOUT_ERROR_TEXT_SIZE, ROLLOUT_NTHREAD_DEFAULT, ROLLOUT_REQUEST_ATTENDED, RolloutError,
    RolloutGroup, RolloutInput, RolloutOutput, RolloutPool, RolloutProgress, RolloutRequest,
    RolloutStatus, RolloutTicket, RolloutWorkerStats, rollout_group_count, rollout_group_create,
    rollout_group_destroy, rollout_group_reset_count, rollout_group_schedule,
    rollout_group_wait_count, rollout_guard, rollout_pool_count, rollout_pool_cpu,
    rollout_pool_create, rollout_pool_create_on, rollout_pool_destroy, rollout_pool_num_threads,
    rollout_pool_reset_count, rollout_pool_schedule, rollout_pool_stats, rollout_pool_wait_count,
    rollout_run, rollout_submit, rollout_ticket_cancel, rollout_ticket_done,
    rollout_ticket_progress, rollout_ticket_release, rollout_ticket_wait,
};
use rollout_core::simulator::Fixed;
use rollout_core::{
    Data as RolloutData, Engine as RolloutEngine, Fill, Model as RolloutModel,
    Outcome as RolloutOutcome, OutcomeStatus, Slot,
};
use rollout_tests::toy::{self, Model, Toy, spec};
use rollout_tests::{Numbers, bits, header};

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
    _model: Box<Fixed<'static, Toy>>,
    _slots: Vec<Slot<Toy>>,
}

impl Host {
    fn new(nthread: i32) -> Self {
        let mut error = error_object();
        let mut pool = ptr::null_mut();
        // SAFETY: a place for a handle, and an error object.
        let status = unsafe { rollout_pool_create(nthread, &mut pool, &mut error) };
        assert_eq!(status, RolloutStatus::Ok);
        let toy: &'static Model = Box::leak(Box::default());
        let model = Box::new(Fixed::new(toy));
        let mut slots: Vec<_> = (0..3).map(|_| Slot::new(Toy::new(toy), toy)).collect();
        let mut numbers = Numbers::new(3);
        Self {
            pool,
            error,
            engine: RolloutEngine::of::<Toy>(),
            models: vec![RolloutModel::of(&*model)],
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
            priority: 0,
            flags: 0,
            budget_ns: 0,
            deadline_ns: 0,
        }
    }

    /// Runs a request of this host, which may have been broken.
    fn run(&mut self, request: *const RolloutRequest) -> RolloutStatus {
        // SAFETY: the pool and the error object are live; what the request names is
        // this host's, or null, misaligned, or of a size that is refused unread,
        // which is what the tests are about.
        unsafe { rollout_run(self.pool, request, &mut self.error) }
    }

    /// Submits a valid request of this host.
    fn submit(&mut self, request: &RolloutRequest) -> *mut RolloutTicket {
        let mut ticket = ptr::null_mut();
        // SAFETY: all that it names is this host's, which releases the ticket.
        let status = unsafe { rollout_submit(self.pool, request, &mut ticket, &mut self.error) };
        assert_eq!(status, RolloutStatus::Ok, "{}", self.text());
        ticket
    }

    fn group(&mut self) -> *mut RolloutGroup {
        let mut group = ptr::null_mut();
        // SAFETY: a live pool, and a place for a handle.
        let status = unsafe { rollout_group_create(self.pool, &mut group, &mut self.error) };
        assert_eq!(status, RolloutStatus::Ok, "{}", self.text());
        group
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
    /// nothing written, whether it is run or submitted.
    fn refuses(&mut self, request: *const RolloutRequest, status: RolloutStatus, name: &str) {
        let before = self.outputs();
        for submitted in [false, true] {
            let said = match submitted {
                false => self.run(request),
                true => {
                    let mut ticket = ptr::null_mut();
                    // SAFETY: as in `run`; and a place for a handle.
                    let said =
                        unsafe { rollout_submit(self.pool, request, &mut ticket, &mut self.error) };
                    assert!(ticket.is_null(), "{name}: refused, with a ticket");
                    said
                }
            };
            assert_eq!(said, status, "{name}: {}", self.text());
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
        nfailed: 0,
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

/// What no call writes.
const NO_PROGRESS: RolloutProgress = RolloutProgress {
    rollouts: 7,
    steps: 7,
    nbatch: 7,
    nstep: 7,
};
const NO_STATS: RolloutWorkerStats = RolloutWorkerStats {
    busy_ns: 7,
    idle_ns: 7,
    tasks: 7,
    rollouts: 7,
    steps: 7,
};

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
    let (no_ticket, no_group) = (ptr::null_mut(), ptr::null_mut());
    let ticket = host.submit(&request);
    let group = host.group();
    let (mut nthread, mut count, mut done, mut cpu) = (7, 7, 7, 7);
    let (mut progress, mut stats) = (NO_PROGRESS, NO_STATS);
    let (mut new_ticket, mut new_group) = (ptr::null_mut(), ptr::null_mut());
    // For several closures.
    let (to_count, to_ticket) = (&raw mut count, &raw mut new_ticket);
    type Call<'a> = &'a mut dyn FnMut(*mut RolloutError) -> RolloutStatus;
    // SAFETY: here and in the other lines, each pointer is null or valid.
    let calls: [(&str, &str, Call<'_>); 36] = unsafe {
        [
            ("rollout_pool_create", "pool", &mut |e| {
                rollout_pool_create(1, ptr::null_mut(), e)
            }),
            ("rollout_pool_create_on", "cpus", &mut |e| {
                let mut pool = ptr::null_mut();
                rollout_pool_create_on(ptr::null(), 1, &mut pool, e)
            }),
            ("rollout_pool_create_on", "pool", &mut |e| {
                rollout_pool_create_on(&0, 1, ptr::null_mut(), e)
            }),
            ("rollout_pool_cpu", "pool", &mut |e| {
                rollout_pool_cpu(null, 0, &mut cpu, e)
            }),
            ("rollout_pool_cpu", "cpu", &mut |e| {
                rollout_pool_cpu(pool, 0, ptr::null_mut(), e)
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
                rollout_pool_count(null, to_count, e)
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
            ("rollout_pool_stats", "pool", &mut |e| {
                rollout_pool_stats(null, &mut stats, 1, e)
            }),
            ("rollout_pool_stats", "stats", &mut |e| {
                rollout_pool_stats(pool, ptr::null_mut(), 1, e)
            }),
            ("rollout_submit", "pool", &mut |e| {
                rollout_submit(null, &request, to_ticket, e)
            }),
            ("rollout_submit", "request", &mut |e| {
                rollout_submit(pool, ptr::null(), to_ticket, e)
            }),
            ("rollout_submit", "ticket", &mut |e| {
                rollout_submit(pool, &request, ptr::null_mut(), e)
            }),
            ("rollout_ticket_wait", "ticket", &mut |e| {
                rollout_ticket_wait(no_ticket, 0, e)
            }),
            ("rollout_ticket_cancel", "ticket", &mut |e| {
                rollout_ticket_cancel(no_ticket, e)
            }),
            ("rollout_ticket_done", "ticket", &mut |e| {
                rollout_ticket_done(no_ticket, &mut done, e)
            }),
            ("rollout_ticket_done", "done", &mut |e| {
                rollout_ticket_done(ticket, ptr::null_mut(), e)
            }),
            ("rollout_ticket_progress", "ticket", &mut |e| {
                rollout_ticket_progress(no_ticket, &mut progress, e)
            }),
            ("rollout_ticket_progress", "progress", &mut |e| {
                rollout_ticket_progress(ticket, ptr::null_mut(), e)
            }),
            ("rollout_group_create", "pool", &mut |e| {
                rollout_group_create(null, &mut new_group, e)
            }),
            ("rollout_group_create", "group", &mut |e| {
                rollout_group_create(pool, ptr::null_mut(), e)
            }),
            ("rollout_group_schedule", "group", &mut |e| {
                rollout_group_schedule(no_group, Some(nothing), ptr::null_mut(), e)
            }),
            ("rollout_group_schedule", "task", &mut |e| {
                rollout_group_schedule(group, None, ptr::null_mut(), e)
            }),
            ("rollout_group_count", "group", &mut |e| {
                rollout_group_count(no_group, to_count, e)
            }),
            ("rollout_group_count", "count", &mut |e| {
                rollout_group_count(group, ptr::null_mut(), e)
            }),
            ("rollout_group_reset_count", "group", &mut |e| {
                rollout_group_reset_count(no_group, e)
            }),
            ("rollout_group_wait_count", "group", &mut |e| {
                rollout_group_wait_count(no_group, 0, e)
            }),
            ("rollout_guard", "engine", &mut |e| {
                rollout_guard(ptr::null(), Some(nothing), ptr::null_mut(), e)
            }),
            ("rollout_guard", "call", &mut |e| {
                rollout_guard(request.engine, None, ptr::null_mut(), e)
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
    assert_eq!((nthread, count, done, cpu), (7, 7, 7, 7));
    assert_eq!((progress, stats), (NO_PROGRESS, NO_STATS));
    assert!(new_ticket.is_null() && new_group.is_null());
    // SAFETY: both are live, and not used any more.
    unsafe {
        let status = rollout_ticket_release(ticket, ptr::null_mut());
        assert_eq!(status, RolloutStatus::Ok);
        rollout_group_destroy(group);
    }

    // The entries that do nothing with NULL, and those that take no pointer.
    // SAFETY: nothing is destroyed.
    unsafe {
        rollout_pool_destroy(ptr::null_mut());
        rollout_group_destroy(ptr::null_mut());
        let mut error = error_object();
        let status = rollout_ticket_release(ptr::null_mut(), &mut error);
        assert_eq!((status, error.status), (RolloutStatus::Ok, 0));
    }
    let rest = [
        "rollout_pool_destroy",
        "rollout_group_destroy",
        "rollout_ticket_release",
        "rollout_clock_ns",
        "rollout_default_nthread",
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
fn handles_and_outputs_that_are_misaligned_are_refused() {
    /// A pointer that is neither null nor aligned, and that nobody may read.
    fn odd<T>() -> *mut T {
        ptr::dangling_mut::<T>().wrapping_byte_add(1)
    }
    let mut host = Host::new(1);
    let request = host.request();
    let pool = host.pool;
    let (ticket, group) = (host.submit(&request), host.group());
    let (mut new_ticket, mut new_group) = (ptr::null_mut(), ptr::null_mut());
    let (mut count, mut done) = (7, 7);
    let (mut progress, mut stats) = (NO_PROGRESS, NO_STATS);
    let mut error = error_object();
    let e = &raw mut error;
    let user = ptr::null_mut();
    let refused = |name: &str, status: RolloutStatus| {
        assert_eq!(status, RolloutStatus::Misaligned, "{name}");
        // SAFETY: the error object is there, and no call uses it now.
        let said = text(unsafe { &*e });
        assert!(said.starts_with(&format!("{name}: ")), "{name}: {said}");
    };
    // SAFETY: each pointer is valid or misaligned.
    unsafe {
        refused("pool", rollout_submit(odd(), &request, &mut new_ticket, e));
        refused("request", rollout_submit(pool, odd(), &mut new_ticket, e));
        refused("ticket", rollout_submit(pool, &request, odd(), e));
        refused("ticket", rollout_ticket_wait(odd(), 0, e));
        refused("ticket", rollout_ticket_cancel(odd(), e));
        refused("ticket", rollout_ticket_done(odd(), &mut done, e));
        refused("done", rollout_ticket_done(ticket, odd(), e));
        refused("ticket", rollout_ticket_progress(odd(), &mut progress, e));
        refused("progress", rollout_ticket_progress(ticket, odd(), e));
        refused("ticket", rollout_ticket_release(odd(), e));
        refused("pool", rollout_group_create(odd(), &mut new_group, e));
        refused("group", rollout_group_create(pool, odd(), e));
        refused(
            "group",
            rollout_group_schedule(odd(), Some(nothing), user, e),
        );
        refused("group", rollout_group_count(odd(), &mut count, e));
        refused("count", rollout_group_count(group, odd(), e));
        refused("group", rollout_group_reset_count(odd(), e));
        refused("group", rollout_group_wait_count(odd(), 0, e));
        refused("pool", rollout_pool_stats(odd(), &mut stats, 1, e));
        refused("stats", rollout_pool_stats(pool, odd(), 1, e));
        assert_eq!(rollout_ticket_release(ticket, e), RolloutStatus::Ok);
        rollout_group_destroy(group);
    }
    assert!(new_ticket.is_null() && new_group.is_null());
    assert_eq!((count, done), (7, 7));
    assert_eq!((progress, stats), (NO_PROGRESS, NO_STATS));
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
        (S::BadOption, "flags", |r| r.flags = 2),
        (S::BadOption, "flags", |r| r.flags = u32::MAX),
        (S::BadOption, "flags", |r| {
            r.flags = 1 << 31 | ROLLOUT_REQUEST_ATTENDED
        }),
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
fn a_list_of_cpus_that_makes_no_sense_is_refused() {
    use RolloutStatus as S;
    let (many, odd) = ([0; 4097], [0, 1]);
    let far = i32::MAX;
    let cases: [(&[i32], RolloutStatus, &str); 6] = [
        (&[], S::EmptyList, "cpus: is empty"),
        (&many, S::BadOption, "cpus: has 4097 CPUs"),
        (&[-1], S::BadOption, "cpus[0]: is -1, which is no CPU"),
        (&[i32::MIN], S::BadOption, "cpus[0]: is -2147483648"),
        (
            &[far],
            S::BadOption,
            "cpus[0]: is 2147483647, but this thread may use only",
        ),
        (&[far, far], S::BadOption, "cpus[0]: is 2147483647"),
    ];
    for (cpus, expected, begin) in cases {
        let mut error = error_object();
        let mut pool = ptr::dangling_mut();
        // SAFETY: a list of so many numbers, a place for a handle, and an error object.
        let status =
            unsafe { rollout_pool_create_on(cpus.as_ptr(), cpus.len(), &mut pool, &mut error) };
        assert_eq!(status, expected);
        assert!(text(&error).starts_with(begin), "{}", text(&error));
        assert_eq!(pool, ptr::dangling_mut(), "written in spite of the error");
    }
    let odd = odd.as_ptr().wrapping_byte_add(1);
    let mut pool = ptr::null_mut();
    // SAFETY: refused before anything is read.
    let statuses = unsafe {
        [
            rollout_pool_create_on(odd, 1, &mut pool, ptr::null_mut()),
            rollout_pool_create_on(ptr::null(), 0, &mut pool, ptr::null_mut()),
            rollout_pool_create_on(ptr::dangling(), usize::MAX, &mut pool, ptr::null_mut()),
        ]
    };
    assert_eq!(statuses, [S::Misaligned, S::EmptyList, S::BadOption]);

    // A pool without a list, and threads that it does not have.
    let host = Host::new(2);
    for (thread, expected) in [
        (-1, S::BadOption),
        (0, S::Ok),
        (1, S::Ok),
        (2, S::BadOption),
        (i32::MAX, S::BadOption),
    ] {
        let mut cpu = 7;
        // SAFETY: a live pool, and a place for a number.
        let status = unsafe { rollout_pool_cpu(host.pool, thread, &mut cpu, ptr::null_mut()) };
        assert_eq!(status, expected);
        assert_eq!(cpu, if status == S::Ok { -1 } else { 7 });
    }
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
        host.error.nfailed = 77;
        host.refuses(&wrong, RolloutStatus::BadOption, "fill");
        assert_eq!(host.error.nfailed, 0);
        assert_eq!(host.run(&valid), RolloutStatus::Ok);
        let error = &host.error;
        assert_eq!((error.status, error.nfailed, error.index), (0, 0, -1));
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
    let mut request =
        Request::new(Simulation::of::<Toy>(&model, &mut slots).unwrap(), arrays).unwrap();
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
    assert_eq!((host.error.index, host.error.nfailed), (1, 3));
    assert_eq!(
        host.text(),
        format!("control 0 at time {} asks to fail", host.start[NSTATE])
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
