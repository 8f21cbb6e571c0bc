//! Every wrong argument is refused: with its kind, by its name, and before
//! anything is written.
//!
//! A [`World`] owns the memory of a valid request. Its description, a [`Raw`], is
//! what a C host would write: pointers and counts. [`FAULTS`] breaks one thing in
//! it, and knows how that must be refused.

use std::ffi::{c_char, c_int, c_void};
use std::{mem, ptr};

use proptest::prelude::*;
use rollout_core::engine::{DATA_ENGINE_THREADS, MODEL_UNRESETTABLE_STATE};
use rollout_core::simulator::Fixed;
use rollout_core::trap::{HOOKS_RETIRE_THREAD, Handler};
use rollout_core::{
    Arrays, Data, Engine, Error, ErrorKind, Fill, Hooks, Input, Model, Outcome, Output, Request,
    Simulation, Simulator, Slot,
};
use rollout_tests::Numbers;
use rollout_tests::toy::{self, Toy, spec};

/// Bytes of one error text.
const MESSAGE_SIZE: usize = 24;

/// Hooks that are never called: a table with all of them is refused.
fn all_hooks() -> Hooks {
    extern "C" fn exchange(_: Handler) -> Handler {
        unreachable!()
    }
    extern "C" fn get() -> Handler {
        unreachable!()
    }
    extern "C" fn set(_: Handler) {
        unreachable!()
    }
    let variable = ptr::dangling_mut();
    Hooks {
        exchange_thread_log: Some(exchange),
        get_process_log: Some(get),
        exchange_process_log: Some(exchange),
        get_thread_error: Some(get),
        set_thread_error: Some(set),
        get_thread_warning: Some(get),
        set_thread_warning: Some(set),
        process_error: variable,
        process_warning: variable,
        ..log_numbers()
    }
}

/// What MuJoCo says of its log messages.
fn log_numbers() -> Hooks {
    Hooks {
        log_level: 0,
        log_text: 8,
        log_function: 1040,
        log_error: 3,
        log_warning: 2,
        ..Hooks::none()
    }
}

/// The valid hooks of an engine with log handlers.
fn log_hooks() -> Hooks {
    let all = all_hooks();
    Hooks {
        exchange_thread_log: all.exchange_thread_log,
        get_process_log: all.get_process_log,
        exchange_process_log: all.exchange_process_log,
        ..log_numbers()
    }
}

/// The valid hooks of an engine with handlers of texts.
fn text_hooks() -> Hooks {
    Hooks {
        exchange_thread_log: None,
        get_process_log: None,
        exchange_process_log: None,
        log_level: 0,
        log_text: 0,
        log_function: 0,
        log_error: 0,
        log_warning: 0,
        ..all_hooks()
    }
}

/// The sizes of a valid request, none of them zero.
#[derive(Clone, Debug)]
struct Sizes {
    model: toy::Model,
    model_for_each: bool,
    nbatch: usize,
    nstep: usize,
    ndata: usize,
    control_spec: u32,
    /// Numbers between the rows of the inputs.
    gap: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            model: toy::Model::default(),
            model_for_each: false,
            nbatch: 4,
            nstep: 3,
            ndata: 3,
            control_spec: spec::CTRL | spec::QFRC,
            gap: 0,
        }
    }
}

fn sizes() -> impl Strategy<Value = Sizes> {
    let model = (1..4_usize, 1..4_usize, 0..3_usize, 1..4_usize, 0..3_usize);
    let control_spec = prop_oneof![
        Just(0),
        Just(spec::CTRL),
        Just(spec::CTRL | spec::QFRC | spec::MOCAP)
    ];
    (
        model,
        any::<bool>(),
        2..7_usize,
        2..6_usize,
        prop_oneof![9 => 2..6_usize, 1 => 33..40_usize],
        control_spec,
        0..3_usize,
    )
        .prop_map(
            |(model, model_for_each, nbatch, nstep, ndata, control_spec, gap)| {
                let (nq, nu, nuserdata, nsensordata, nmocap) = model;
                Sizes {
                    model: toy::Model {
                        nq,
                        nu,
                        nuserdata,
                        nsensordata,
                        mocap: vec![0.5; nmocap],
                        ..toy::Model::default()
                    },
                    model_for_each,
                    nbatch,
                    nstep,
                    ndata,
                    control_spec,
                    gap,
                }
            },
        )
}

/// The memory that a valid request names.
struct World {
    sizes: Sizes,
    models: Vec<Fixed<'static, Toy>>,
    slots: Vec<Slot<Toy>>,
    inputs: [Vec<f64>; 3],
    state: Vec<f64>,
    sensordata: Vec<f64>,
    outcomes: Vec<Outcome>,
    messages: Vec<u8>,
}

impl World {
    fn new(sizes: Sizes) -> Self {
        let Sizes {
            nbatch,
            nstep,
            ndata,
            gap,
            ref model,
            ..
        } = sizes;
        let mut numbers = Numbers::new(1);
        let [nstate, nwarmstart, ncontrol] = sizes.rows();
        let slots = (0..ndata).map(|_| {
            let mut slot = Slot::new(Toy::new(model), model);
            // A data with a history, so that a reset would be seen.
            slot.simulator_mut().set_state(
                model,
                spec::USER,
                &numbers.units(size(model, spec::USER)),
            );
            slot.step(model).unwrap();
            slot
        });
        Self {
            slots: slots.collect(),
            models: (0..if sizes.model_for_each { nbatch } else { 1 })
                .map(|_| Fixed::new(Box::leak(Box::new(model.clone()))))
                .collect(),
            inputs: [
                numbers.units((nbatch - 1) * (nstate + gap) + nstate),
                numbers.units((nbatch - 1) * (nwarmstart + gap) + nwarmstart),
                numbers.units((nbatch * nstep - 1) * (ncontrol + gap) + ncontrol),
            ],
            state: numbers.units(nbatch * nstep * nstate),
            sensordata: numbers.units(nbatch * nstep * model.nsensordata),
            outcomes: vec![
                Outcome {
                    status: 7,
                    warning: 7,
                    steps: 7,
                };
                nbatch
            ],
            messages: vec![b'7'; nbatch * MESSAGE_SIZE],
            sizes,
        }
    }

    /// The request that names all of it, and is valid.
    fn raw(&mut self) -> Raw {
        let Sizes { nstep, gap, .. } = self.sizes;
        let [nstate, nwarmstart, ncontrol] = self.sizes.rows().map(|row| row + gap);
        let strides = [(nstate, 0), (nwarmstart, 0), (nstep * ncontrol, ncontrol)];
        let mut inputs = self.inputs.iter().zip(strides);
        let inputs = ["initial_state", "initial_warmstart", "control"].map(|name| {
            let (values, (rollout_stride, step_stride)) = inputs.next().unwrap();
            RawInput {
                name,
                values: values.as_ptr(),
                count: values.len(),
                rollout_stride,
                step_stride,
            }
        });
        Raw {
            engine: Engine::of::<Toy>(),
            models: self.models.iter().map(Model::of).collect(),
            data: self.slots.iter_mut().map(Data::of).collect(),
            nbatch: self.sizes.nbatch,
            nstep,
            control_spec: self.sizes.control_spec,
            inputs,
            outputs: [
                RawOutput::of("state", &mut self.state),
                RawOutput::of("sensordata", &mut self.sensordata),
                RawOutput::of("outcomes", &mut self.outcomes),
                RawOutput::of("messages", &mut self.messages),
            ],
            message_size: MESSAGE_SIZE,
            chunk_size: 0,
        }
    }

    /// All that a request could write, as bits.
    fn snapshot(&self) -> Vec<u64> {
        let mut all = rollout_tests::bits(&self.state);
        all.extend(rollout_tests::bits(&self.sensordata));
        for outcome in &self.outcomes {
            all.extend([outcome.status as u64, outcome.warning as u64, outcome.steps]);
        }
        all.extend(self.messages.iter().map(|&byte| u64::from(byte)));
        let model = &self.sizes.model;
        let everything = spec::ALL.iter().fold(0, |set, bit| set | bit);
        let mut state = vec![0.0; size(model, everything)];
        for slot in &self.slots {
            slot.simulator().get_state(model, everything, &mut state);
            all.extend(rollout_tests::bits(&state));
            all.extend(rollout_tests::bits(slot.sensordata()));
            all.extend(slot.warnings().iter().map(|&number| number as u64));
            all.push(u64::from(slot.simulator().steps_since_reset()));
        }
        all
    }

    /// Checks a description of this world: how it is refused, or `None`. Nothing
    /// may have changed.
    fn check(&self, raw: &Raw) -> Option<Error> {
        let before = self.snapshot();
        // SAFETY: the description was made from this world, which outlives the
        // call. What was broken in it is null, misaligned, or memory that a refused
        // request does not touch, and that is what is tested; an accepted request
        // is not run.
        let refused = unsafe { raw.request() }.err();
        assert!(self.snapshot() == before, "a request was not run and wrote");
        refused
    }
}

impl Sizes {
    /// Numbers in a row of each input.
    fn rows(&self) -> [usize; 3] {
        let control_spec = match self.control_spec {
            0 => spec::CTRL,
            spec => spec,
        };
        [Toy::SPECS.full_physics, spec::WARMSTART, control_spec].map(|set| size(&self.model, set))
    }
}

fn size(model: &toy::Model, set: u32) -> usize {
    Toy::state_size(model, set)
}

/// A request as a C host would write it.
#[derive(Clone)]
struct Raw {
    engine: Engine,
    models: Vec<Model>,
    data: Vec<Data>,
    nbatch: usize,
    nstep: usize,
    control_spec: u32,
    inputs: [RawInput; 3],
    outputs: [RawOutput; 4],
    message_size: usize,
    chunk_size: usize,
}

/// An input; the optional ones are not given if null with count 0.
#[derive(Clone)]
struct RawInput {
    name: &'static str,
    values: *const f64,
    count: usize,
    rollout_stride: usize,
    step_stride: usize,
}

/// An output; not wanted if null with count 0.
#[derive(Clone)]
struct RawOutput {
    name: &'static str,
    values: *mut u8,
    count: usize,
    /// Bytes of one element.
    element: usize,
}

impl RawInput {
    fn not_given(&mut self) {
        (self.values, self.count) = (ptr::null(), 0);
    }

    /// # Safety
    ///
    /// * As for [`Input::from_raw`].
    unsafe fn input<'a>(&self) -> Option<Input<'a>> {
        // SAFETY: the caller's promise.
        (!self.values.is_null() || self.count > 0).then(|| unsafe {
            Input::from_raw(
                self.values,
                self.count,
                self.rollout_stride,
                self.step_stride,
            )
        })
    }
}

impl RawOutput {
    fn of<T>(name: &'static str, values: &mut [T]) -> Self {
        Self {
            name,
            values: values.as_mut_ptr().cast(),
            count: values.len(),
            element: mem::size_of::<T>(),
        }
    }

    /// What C calls its pointer.
    fn pointer_name(&self) -> String {
        match self.name {
            "outcomes" | "messages" => self.name.into(),
            name => format!("{name}.values"),
        }
    }

    /// What C calls its count.
    fn count_name(&self) -> String {
        match self.name {
            "outcomes" => "noutcome".into(),
            "messages" => "nmessage".into(),
            name => format!("{name}.count"),
        }
    }

    fn not_wanted(&mut self) {
        (self.values, self.count) = (ptr::null_mut(), 0);
    }

    /// # Safety
    ///
    /// * As for [`Output::from_raw`].
    unsafe fn output<'a, T>(&self) -> Option<Output<'a, T>> {
        // SAFETY: the caller's promise.
        (!self.values.is_null() || self.count > 0)
            .then(|| unsafe { Output::from_raw(self.values.cast(), self.count) })
    }
}

impl Raw {
    /// # Safety
    ///
    /// * As for [`Simulation::new`], [`Input::from_raw`] and [`Output::from_raw`].
    unsafe fn request(&self) -> Result<Request<'_>, Error> {
        let [initial_state, initial_warmstart, control] = &self.inputs;
        let [state, sensordata, outcomes, messages] = &self.outputs;
        // SAFETY: the caller's promises.
        unsafe {
            let simulation = Simulation::new(&self.engine, self.models.clone(), self.data.clone());
            let arrays = Arrays {
                nbatch: self.nbatch,
                nstep: self.nstep,
                control_spec: self.control_spec,
                initial_state: initial_state.input().unwrap_or_default(),
                initial_warmstart: initial_warmstart.input(),
                control: control.input(),
                state: state.output(),
                sensordata: sensordata.output(),
                outcomes: outcomes.output(),
                messages: messages.output::<c_char>(),
                message_size: self.message_size,
                fill: Fill::Nan,
                chunk_size: self.chunk_size,
            };
            Request::new(simulation, arrays)
        }
    }

    /// One model for each rollout, and the number of one that is not the first.
    fn another_model(&mut self, n: usize) -> usize {
        if self.models.len() == 1 {
            self.models = vec![self.models[0]; self.nbatch];
        }
        1 + n % (self.models.len() - 1)
    }

    fn output(&mut self, n: usize) -> &mut RawOutput {
        &mut self.outputs[n % 4]
    }

    /// Of the inputs, the `n`th.
    fn input(&mut self, n: usize) -> &mut RawInput {
        &mut self.inputs[n % 3]
    }
}

/// An engine that cannot tell its sizes.
unsafe extern "C" fn no_size(_: *const c_void, _: u32) -> c_int {
    -1
}

/// Breaks one thing of a valid request, which one of several is chosen by the
/// number, and returns the name of what is now wrong.
type Break = fn(&mut Raw, usize) -> String;

/// Everything that can be wrong.
#[rustfmt::skip]
const FAULTS: &[(&str, ErrorKind, Break)] = &[
    // The engine.
    ("no step", ErrorKind::NullPointer, |r, _| { r.engine.step = None; "engine.step".into() }),
    ("no state_size", ErrorKind::NullPointer, |r, _| { r.engine.state_size = None; "engine.state_size".into() }),
    ("no get_state", ErrorKind::NullPointer, |r, _| { r.engine.get_state = None; "engine.get_state".into() }),
    ("no set_state", ErrorKind::NullPointer, |r, _| { r.engine.set_state = None; "engine.set_state".into() }),
    ("no reset", ErrorKind::NullPointer, |r, _| { r.engine.reset = None; "engine.reset".into() }),
    ("the version of another library", ErrorKind::BadEngine, |r, n| {
        r.engine.version = [0, 2, u32::MAX][n % 3];
        "engine.version".into()
    }),
    ("other numbers than double", ErrorKind::BadEngine, |r, n| {
        r.engine.number_size = [0, 4, 16][n % 3];
        "engine.number_size".into()
    }),
    ("headers of another release", ErrorKind::BadEngine, |r, n| {
        r.engine.header_release = 337;
        r.engine.library_release = [0, 336, 4000000, -337][n % 4];
        "engine.library_release".into()
    }),
    ("no state", ErrorKind::BadEngine, |r, _| { r.engine.full_physics = 0; "engine.full_physics".into() }),
    ("an input that is state", ErrorKind::BadEngine, |r, n| {
        r.engine.user |= [spec::TIME, spec::QPOS, spec::QVEL][n % 3];
        "engine.user".into()
    }),
    ("a warm start that is state or input", ErrorKind::BadEngine, |r, n| {
        r.engine.warmstart |= [spec::TIME, spec::CTRL, spec::MOCAP][n % 3];
        "engine.warmstart".into()
    }),
    ("a control that is no input", ErrorKind::BadEngine, |r, n| {
        r.engine.ctrl |= [spec::TIME, spec::WARMSTART, 1 << 31][n % 3];
        "engine.ctrl".into()
    }),
    ("a model's input that is no input", ErrorKind::BadEngine, |r, n| {
        r.engine.model_inputs |= [spec::TIME, spec::WARMSTART, 1 << 31][n % 3];
        "engine.model_inputs".into()
    }),
    ("a control whose default is the model's", ErrorKind::BadEngine, |r, _| {
        r.engine.model_inputs |= spec::CTRL;
        "engine.model_inputs".into()
    }),
    ("a hook that lacks its companions", ErrorKind::BadEngine, |r, n| {
        let all = all_hooks();
        let none = Hooks::none();
        let (hooks, missing) = [
            (Hooks { exchange_thread_log: all.exchange_thread_log, ..none }, "get_process_log"),
            (Hooks { get_process_log: all.get_process_log, ..none }, "exchange_thread_log"),
            (Hooks { get_thread_error: all.get_thread_error, ..none }, "set_thread_error"),
            (Hooks { set_thread_error: all.set_thread_error, ..none }, "get_thread_error"),
            (Hooks { get_thread_warning: all.get_thread_warning, ..none }, "get_thread_error"),
            (Hooks { set_thread_warning: all.set_thread_warning, ..none }, "get_thread_error"),
            (Hooks { process_error: all.process_error, ..none }, "process_warning"),
            (Hooks { process_warning: all.process_warning, ..none }, "process_error"),
            (Hooks { get_process_log: None, ..log_hooks() }, "get_process_log"),
            (Hooks { set_thread_warning: None, ..text_hooks() }, "set_thread_warning"),
            (Hooks { process_error: ptr::null_mut(), ..text_hooks() }, "process_error"),
        ][n % 11];
        r.engine.hooks = hooks;
        format!("engine.hooks.{missing}")
    }),
    ("hooks of two kinds", ErrorKind::BadEngine, |r, n| {
        let all = all_hooks();
        let (hooks, field) = [
            (all, "exchange_thread_log"),
            (Hooks { exchange_process_log: None, ..all }, "exchange_thread_log"),
            (Hooks { exchange_process_log: all.exchange_process_log, ..text_hooks() }, "exchange_process_log"),
        ][n % 3];
        r.engine.hooks = hooks;
        format!("engine.hooks.{field}")
    }),
    ("hooks at misaligned addresses", ErrorKind::Misaligned, |r, n| {
        let mut hooks = text_hooks();
        let (variable, field) = match n % 2 {
            0 => (&mut hooks.process_error, "process_error"),
            _ => (&mut hooks.process_warning, "process_warning"),
        };
        *variable = variable.wrapping_byte_add(1 + n % 7);
        r.engine.hooks = hooks;
        format!("engine.hooks.{field}")
    }),
    ("a log message that cannot be", ErrorKind::BadEngine, |r, n| {
        let log = log_hooks();
        let (hooks, field) = [
            (Hooks { log_level: 2, ..log }, "log_level"),
            (Hooks { log_level: 1 << 20, ..log }, "log_level"),
            (Hooks { log_text: 0, ..log }, "log_text"),
            (Hooks { log_text: u32::MAX, ..log }, "log_text"),
            (Hooks { log_function: 0, ..log }, "log_function"),
            (Hooks { log_function: 1036, ..log }, "log_function"),
            (Hooks { log_warning: log.log_error, ..log }, "log_warning"),
        ][n % 7];
        r.engine.hooks = hooks;
        format!("engine.hooks.{field}")
    }),
    ("a log message without a log handler", ErrorKind::BadEngine, |r, n| {
        let base = [Hooks::none(), text_hooks()][n / 5 % 2];
        let (hooks, field) = [
            (Hooks { log_level: 4, ..base }, "log_level"),
            (Hooks { log_text: 8, ..base }, "log_text"),
            (Hooks { log_function: 8, ..base }, "log_function"),
            (Hooks { log_error: 3, ..base }, "log_error"),
            (Hooks { log_warning: -1, ..base }, "log_warning"),
        ][n % 5];
        r.engine.hooks = hooks;
        format!("engine.hooks.{field}")
    }),
    ("unknown flags of hooks", ErrorKind::BadEngine, |r, n| {
        let (hooks, flags) = [(log_hooks(), 2), (text_hooks(), 1 << 31), (Hooks::none(), 2)][n % 3];
        r.engine.hooks = Hooks { flags, ..hooks };
        "engine.hooks.flags".into()
    }),
    ("threads to retire after errors that nobody sees", ErrorKind::BadEngine, |r, _| {
        r.engine.take_error = None;
        r.engine.hooks = Hooks { flags: HOOKS_RETIRE_THREAD, ..Hooks::none() };
        "engine.hooks.flags".into()
    }),
    ("a size below zero", ErrorKind::BadEngine, |r, _| {
        r.engine.state_size = Some(no_size);
        "engine.state_size".into()
    }),

    // The models.
    ("no models", ErrorKind::EmptyList, |r, _| { r.models.clear(); "models".into() }),
    ("neither one model nor one for each", ErrorKind::WrongSize, |r, n| {
        let nmodel = [r.nbatch + 1, 2 * r.nbatch, r.nbatch + 7][n % 3];
        r.models = vec![r.models[0]; nmodel];
        "nmodel".into()
    }),
    ("a null model", ErrorKind::NullPointer, |r, n| {
        let i = n % r.models.len();
        r.models[i].model = ptr::null();
        format!("models[{i}].model")
    }),
    ("a flag of a model that has no meaning", ErrorKind::BadOption, |r, n| {
        let i = n % r.models.len();
        r.models[i].flags |= [1 << 2, 1 << 31][n % 2];
        format!("models[{i}].flags")
    }),
    ("state that no reset restores", ErrorKind::Unsupported, |r, n| {
        let i = n % r.models.len();
        r.models[i].flags |= MODEL_UNRESETTABLE_STATE;
        format!("models[{i}]")
    }),
    ("models of different layouts", ErrorKind::LayoutMismatch, |r, n| {
        let i = r.another_model(n);
        r.models[i].layout ^= 1 << (n % 64);
        format!("models[{i}]")
    }),
    ("models with different numbers of sensors", ErrorKind::LayoutMismatch, |r, n| {
        let i = r.another_model(n);
        r.models[i].nsensordata += 1;
        format!("models[{i}]")
    }),
    ("a first model with plugins", ErrorKind::LayoutMismatch, |r, n| {
        r.another_model(n);
        r.models[0].nplugin = 1;
        "models[1]".into()
    }),
    ("different models with plugins", ErrorKind::Unsupported, |r, n| {
        let i = r.another_model(n);
        for model in &mut r.models {
            model.nplugin = 1;
        }
        for data in &mut r.data {
            data.nplugin = 1;
        }
        // Only its address is looked at.
        r.models[i].model = r.models[i].model.wrapping_byte_add(1);
        for j in 1..i {
            r.models[j].model = r.models[0].model;
        }
        format!("models[{i}]")
    }),

    // The data.
    ("no data", ErrorKind::EmptyList, |r, _| { r.data.clear(); "data".into() }),
    ("a null data", ErrorKind::NullPointer, |r, n| {
        let i = n % r.data.len();
        r.data[i].data = ptr::null_mut();
        format!("data[{i}].data")
    }),
    ("a data of another layout", ErrorKind::LayoutMismatch, |r, n| {
        let i = n % r.data.len();
        r.data[i].layout ^= 1 << (n % 64);
        format!("data[{i}]")
    }),
    ("a data of a model with plugins", ErrorKind::LayoutMismatch, |r, n| {
        let i = n % r.data.len();
        r.data[i].nplugin += 1;
        format!("data[{i}]")
    }),
    ("null sensor values", ErrorKind::NullPointer, |r, n| {
        let i = n % r.data.len();
        r.data[i].sensordata = ptr::null_mut();
        format!("data[{i}].sensordata")
    }),
    ("misaligned sensor values", ErrorKind::Misaligned, |r, n| {
        let i = n % r.data.len();
        r.data[i].sensordata = r.data[i].sensordata.wrapping_byte_add(1 + n % 7);
        format!("data[{i}].sensordata")
    }),
    ("null warning counters", ErrorKind::NullPointer, |r, n| {
        let i = n % r.data.len();
        r.data[i].warning_number = ptr::null_mut();
        format!("data[{i}].warning_number")
    }),
    ("misaligned warning counters", ErrorKind::Misaligned, |r, n| {
        let i = n % r.data.len();
        r.data[i].warning_number = r.data[i].warning_number.wrapping_byte_add(1 + n % 3);
        format!("data[{i}].warning_number")
    }),
    ("more kinds of warning than bits", ErrorKind::WrongSize, |r, n| {
        let i = n % r.data.len();
        r.data[i].nwarning = [33, 64, u32::MAX][n % 3];
        format!("data[{i}].nwarning")
    }),
    ("a flag of a data that has no meaning", ErrorKind::BadOption, |r, n| {
        let i = n % r.data.len();
        r.data[i].flags |= [1 << 1, 1 << 31][n % 2];
        format!("data[{i}].flags")
    }),
    ("a data with an engine thread pool", ErrorKind::Unsupported, |r, n| {
        let i = n % r.data.len();
        r.data[i].flags |= DATA_ENGINE_THREADS;
        format!("data[{i}]")
    }),
    ("the same data twice", ErrorKind::DuplicateData, |r, n| {
        let i = n % (r.data.len() - 1);
        let j = i + 1 + n % (r.data.len() - 1 - i);
        // All of it, or only what the library writes.
        match n % 3 {
            0 => r.data[j] = r.data[i],
            1 => r.data[j].sensordata = r.data[i].sensordata,
            _ => r.data[j].warning_number = r.data[i].warning_number,
        }
        format!("data[{j}]")
    }),

    // The specs.
    ("a control that is no input of the engine", ErrorKind::BadSpec, |r, n| {
        r.control_spec |= [spec::TIME, spec::QPOS, spec::WARMSTART, 1 << 20, 1 << 31][n % 5];
        "control_spec".into()
    }),
    ("a warm start for an engine without", ErrorKind::BadSpec, |r, _| {
        r.engine.warmstart = 0;
        "initial_warmstart".into()
    }),

    // The inputs.
    ("a null input", ErrorKind::NullPointer, |r, n| {
        let input = r.input(n);
        input.values = ptr::null();
        format!("{}.values", input.name)
    }),
    ("no start states", ErrorKind::NullPointer, |r, _| {
        r.inputs[0].values = ptr::null();
        "initial_state.values".into()
    }),
    ("a misaligned input", ErrorKind::Misaligned, |r, n| {
        let input = r.input(n);
        input.values = input.values.wrapping_byte_add(1 + n % 7);
        format!("{}.values", input.name)
    }),
    ("the wrong number of numbers", ErrorKind::WrongSize, |r, n| {
        let input = r.input(n);
        input.count = [input.count - 1, input.count + 1, 0, 2 * input.count, usize::MAX][n % 5];
        format!("{}.count", input.name)
    }),
    ("a forgotten rollout stride", ErrorKind::WrongSize, |r, n| {
        let input = r.input(n);
        input.rollout_stride = 0;
        format!("{}.count", input.name)
    }),
    ("a forgotten step stride", ErrorKind::WrongSize, |r, _| {
        r.inputs[2].step_stride = 0;
        "control.count".into()
    }),
    ("a stride in bytes", ErrorKind::WrongSize, |r, n| {
        let input = r.input(n);
        input.rollout_stride *= 8;
        format!("{}.count", input.name)
    }),
    ("one row too few for the strides", ErrorKind::WrongSize, |r, n| {
        let input = r.input(n);
        input.count -= input.rollout_stride;
        format!("{}.count", input.name)
    }),
    ("a step stride without steps", ErrorKind::WrongSize, |r, n| {
        let input = r.input(n % 2);
        input.step_stride = [1, input.rollout_stride, usize::MAX][n % 3];
        format!("{}.step_stride", input.name)
    }),
    ("a rollout stride beyond the address space", ErrorKind::Overflow, |r, n| {
        let input = r.input(n);
        input.rollout_stride = [usize::MAX, usize::MAX / 2, usize::MAX / 8, isize::MAX as usize / 8][n % 4];
        format!("{}.rollout_stride", input.name)
    }),
    ("a rollout stride that reaches around the address space", ErrorKind::Overflow, |r, n| {
        let others = r.nbatch - 1;
        let input = r.input(n);
        let last = |stride: usize| others.wrapping_mul(stride);
        let before = last(input.rollout_stride);
        input.rollout_stride = (usize::MAX / others).saturating_add(1);
        // The count that a product without a check for overflow would ask for.
        input.count = (input.count - before).wrapping_add(last(input.rollout_stride));
        format!("{}.rollout_stride", input.name)
    }),

    ("a data of another structure", ErrorKind::LayoutMismatch, |r, n| {
        let i = n % r.data.len();
        (r.models.iter_mut()).for_each(|model| model.structure = 5);
        r.data[i].structure = 6;
        format!("data[{i}]")
    }),
    ("a model of another structure", ErrorKind::LayoutMismatch, |r, n| {
        let i = r.another_model(n);
        r.models[0].structure = 5;
        r.models[i].structure = 6;
        format!("models[{i}]")
    }),

    // The outputs.
    ("a null output", ErrorKind::NullPointer, |r, n| {
        let output = r.output(n);
        output.values = ptr::null_mut();
        output.pointer_name()
    }),
    ("a misaligned output", ErrorKind::Misaligned, |r, n| {
        let output = r.output(n % 3);
        output.values = output.values.wrapping_byte_add(1 + n % 7);
        output.pointer_name()
    }),
    ("the wrong number of elements", ErrorKind::WrongSize, |r, n| {
        let output = r.output(n);
        output.count = [output.count - 1, output.count + 1, 0, 2 * output.count, usize::MAX][n % 5];
        output.count_name()
    }),
    ("texts without room", ErrorKind::WrongSize, |r, _| {
        r.message_size = 0;
        r.outputs[3].count = 0;
        "message_size".into()
    }),
    ("texts of another size", ErrorKind::WrongSize, |r, n| {
        r.message_size = [1, r.message_size + 1, r.message_size - 1][n % 3];
        "nmessage".into()
    }),
    ("texts beyond the address space", ErrorKind::Overflow, |r, n| {
        r.message_size = [usize::MAX, isize::MAX as usize][n % 2];
        "nmessage".into()
    }),
    ("more rollouts than any output has room for", ErrorKind::Overflow, |r, n| {
        one_row_for_all(r);
        r.nbatch = [usize::MAX, usize::MAX / 2, isize::MAX as usize][n / 4 % 3];
        only_output(r, n)
    }),
    ("more steps than any output has room for", ErrorKind::Overflow, |r, n| {
        one_row_for_all(r);
        r.nstep = [usize::MAX, usize::MAX / 2, isize::MAX as usize][n / 4 % 3];
        // Outcomes and texts have no steps.
        only_output(r, n % 2)
    }),
    ("sizes of which only the product is too large", ErrorKind::Overflow, |r, n| {
        one_row_for_all(r);
        (r.nbatch, r.nstep) = (1 << 32, 1 << 32);
        only_output(r, n % 2)
    }),

    // Overlaps.
    ("an output over an input", ErrorKind::Overlap, |r, n| {
        let input = r.inputs[n % 3].clone();
        let output = r.output(n / 3);
        share_memory(output, input.values.cast(), 8 * input.count, n);
        output.name.into()
    }),
    ("an output over another", ErrorKind::Overlap, |r, n| {
        let (i, j) = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)][n % 6];
        let under = r.outputs[i].clone();
        let output = r.output(j);
        share_memory(output, under.values, under.element * under.count, n);
        output.name.into()
    }),
];

/// Inputs of one row, which fit any number of rollouts and steps.
fn one_row_for_all(raw: &mut Raw) {
    raw.models.truncate(1);
    raw.inputs[0].count = full_physics_size(raw);
    raw.inputs[0].rollout_stride = 0;
    raw.inputs[1].not_given();
    raw.inputs[2].not_given();
}

/// Of the outputs, leaves only the `n`th.
fn only_output(raw: &mut Raw, n: usize) -> String {
    for (i, output) in raw.outputs.iter_mut().enumerate() {
        if i != n % 4 {
            output.not_wanted();
        }
    }
    raw.output(n).count_name()
}

fn full_physics_size(raw: &Raw) -> usize {
    // SAFETY: the functions and models of a `World`.
    (unsafe { raw.engine.state_size.unwrap()(raw.models[0].model, raw.engine.full_physics) })
        as usize
}

/// Moves an output to where it shares the first, the last, or all elements with
/// other memory. All arrays but the texts consist of multiples of 8 bytes, so
/// that the output stays aligned.
fn share_memory(output: &mut RawOutput, start: *const u8, bytes: usize, n: usize) {
    let length = output.count * output.element;
    let start = start.cast_mut();
    output.values = match n % 3 {
        0 => start,
        1 => start.wrapping_add(bytes).wrapping_sub(output.element),
        _ => start.wrapping_sub(length).wrapping_add(8),
    };
}

/// How many choices each fault is tried with: more than any of them has.
const CHOICES: usize = 60;

#[test]
fn every_fault_is_refused_by_name() {
    let models = [false, true];
    for sizes in models.map(|model_for_each| Sizes {
        model_for_each,
        ..Sizes::default()
    }) {
        let mut world = World::new(sizes);
        let valid = world.raw();
        assert_eq!(world.check(&valid), None);
        for (what, kind, fault) in FAULTS {
            for choice in 0..CHOICES {
                let mut raw = valid.clone();
                let name = fault(&mut raw, choice);
                let Some(refused) = world.check(&raw) else {
                    panic!("{what} ({choice}, {name}) was accepted");
                };
                assert_eq!(
                    (refused.kind(), refused.argument()),
                    (*kind, name.as_str()),
                    "{what} ({choice}): {refused}"
                );
                let text = refused.to_string();
                assert!(text.starts_with(&format!("{name}: ")), "{what}: {text}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    /// One thing is broken in a random request; the refusal names it.
    #[test]
    fn one_fault_in_a_random_request_is_refused_by_name(
        sizes in sizes(),
        fault in 0..FAULTS.len(),
        choice in 0..10_000_usize,
        chunk_size in any::<usize>(),
    ) {
        let mut world = World::new(sizes);
        let mut raw = world.raw();
        raw.chunk_size = chunk_size;
        prop_assert_eq!(world.check(&raw), None);

        let (what, kind, fault) = FAULTS[fault];
        let name = fault(&mut raw, choice);
        match world.check(&raw) {
            None => prop_assert!(false, "{} ({}) was accepted", what, name),
            Some(refused) => prop_assert_eq!(
                (refused.kind(), refused.argument()),
                (kind, name.as_str()),
                "{}: {}", what, refused
            ),
        }
    }
}

/// Changes a valid request to another one.
type Change = fn(&mut Raw);

/// Each of these looks odd and is in order.
#[rustfmt::skip]
const ODD: &[(&str, Change)] = &[
    ("no rollouts", |r| {
        r.models.truncate(1);
        r.nbatch = 0;
        for output in &mut r.outputs {
            output.count = 0;
        }
    }),
    ("no rollouts, and null everywhere", |r| {
        r.models.truncate(1);
        r.nbatch = 0;
        r.inputs.iter_mut().for_each(RawInput::not_given);
        r.outputs.iter_mut().for_each(RawOutput::not_wanted);
    }),
    ("no steps", |r| {
        r.nstep = 0;
        r.inputs[2].not_given();
        r.outputs[0].count = 0;
        r.outputs[1].count = 0;
    }),
    ("nothing but the start states", |r| {
        r.inputs[1].not_given();
        r.inputs[2].not_given();
        r.outputs.iter_mut().for_each(RawOutput::not_wanted);
    }),
    ("no sensors, and null for their values", |r| {
        for model in &mut r.models {
            model.nsensordata = 0;
        }
        for data in &mut r.data {
            data.sensordata = ptr::null_mut();
        }
        (r.outputs[1].values, r.outputs[1].count) = (ptr::null_mut(), 0);
    }),
    ("no kinds of warning, and null for their counters", |r| {
        for data in &mut r.data {
            (data.warning_number, data.nwarning) = (ptr::null_mut(), 0);
        }
    }),
    ("releases that are equal and unknown", |r| {
        (r.engine.header_release, r.engine.library_release) = (-3, -3);
    }),
    ("an engine without errors", |r| r.engine.take_error = None),
    ("an engine without a warm start", |r| {
        r.engine.warmstart = 0;
        r.inputs[1].not_given();
    }),
    ("one row for all rollouts", |r| {
        r.inputs[0].rollout_stride = 0;
        r.inputs[0].count = full_physics_size(r);
    }),
    ("inputs that share memory", |r| {
        let r = &mut r.inputs;
        (r[0].rollout_stride, r[1].rollout_stride) = (0, 0);
        (r[0].count, r[1].count) = (7, 3);
        r[1].values = r[0].values;
    }),
    ("texts of one byte", |r| {
        r.message_size = 1;
        r.outputs[3].count = r.nbatch;
    }),
    ("chunks of any size", |r| r.chunk_size = usize::MAX),
];

#[test]
fn what_only_looks_odd_is_accepted() {
    let mut world = World::new(Sizes::default());
    let valid = world.raw();
    for (what, odd) in ODD {
        let mut raw = valid.clone();
        odd(&mut raw);
        assert_eq!(world.check(&raw), None, "{what}");
    }
}

#[test]
fn many_data_are_accepted_if_distinct() {
    for ndata in [1, 2, 31, 32, 33, 100] {
        let mut world = World::new(Sizes {
            ndata,
            ..Sizes::default()
        });
        let valid = world.raw();
        assert_eq!(world.check(&valid), None);
        for (first, second) in [(0, 1), (0, ndata - 1), (ndata / 2, ndata - 1)] {
            if first >= second || second >= ndata {
                continue;
            }
            let mut raw = valid.clone();
            raw.data[second].data = raw.data[first].data;
            let refused = world.check(&raw).unwrap();
            assert_eq!(refused.kind(), ErrorKind::DuplicateData);
            assert_eq!(refused.argument(), format!("data[{second}]"));
        }
    }
}

/// One block of memory, in which each array begins where the one before it ends.
#[test]
fn arrays_that_touch_are_accepted() {
    let mut world = World::new(Sizes::default());
    let valid = world.raw();
    let numbers: usize = valid.inputs.iter().map(|input| input.count).sum();
    let bytes: usize = valid.outputs.iter().map(|o| o.element * o.count).sum();
    let mut memory = vec![0.0_f64; numbers + bytes / 8];
    for backwards in [false, true] {
        let mut raw = valid.clone();
        let mut places: Vec<(&mut *mut u8, usize)> = Vec::new();
        let mut inputs = raw
            .inputs
            .each_ref()
            .map(|input| input.values.cast_mut().cast());
        for (place, input) in inputs.iter_mut().zip(&valid.inputs) {
            places.push((place, 8 * input.count));
        }
        for output in &mut raw.outputs {
            places.push((&mut output.values, output.element * output.count));
        }
        if backwards {
            places.reverse();
        }
        let mut next = memory.as_mut_ptr().cast::<u8>();
        for (place, length) in places {
            *place = next;
            next = next.wrapping_add(length);
        }
        for (input, place) in raw.inputs.iter_mut().zip(inputs) {
            input.values = place.cast();
        }
        assert_eq!(world.check(&raw), None);

        // The texts, at one of the ends, can move by single bytes.
        let texts = &mut raw.outputs[3].values;
        *texts = texts.wrapping_offset(if backwards { 1 } else { -1 });
        let refused = world.check(&raw).unwrap();
        assert_eq!(
            (refused.kind(), refused.argument()),
            (ErrorKind::Overlap, "messages")
        );
    }
}

/// Models can say that they have one layout and still differ.
#[test]
fn models_whose_state_sizes_differ_are_refused_whatever_they_say() {
    let mut world = World::new(Sizes {
        model_for_each: true,
        ..Sizes::default()
    });
    let mut raw = world.raw();
    let larger = toy::Model {
        nq: 4,
        ..toy::Model::default()
    };
    let larger = Fixed::<Toy>::new(&larger);
    raw.models[2].model = ptr::from_ref(&larger).cast();
    let refused = world.check(&raw).unwrap();
    assert_eq!(refused.kind(), ErrorKind::LayoutMismatch);
    assert_eq!(refused.argument(), "models[2]");
}

/// Inputs that nobody will read do not have to exist.
#[test]
fn requests_of_no_rollouts_no_steps_or_no_controls_run() {
    for (nbatch, nstep, nu) in [(0, 3, 2), (3, 0, 2), (0, 0, 2), (3, 2, 0)] {
        let model = [toy::Model {
            nu,
            ..toy::Model::default()
        }];
        let nstate = size(&model[0], Toy::SPECS.full_physics);
        let mut slots = [Slot::new(Toy::new(&model[0]), &model[0])];
        let start = vec![0.0; nstate];
        let mut state = vec![7.0; nbatch * nstep * nstate];
        let mut outcomes = vec![Outcome::not_started(); nbatch];
        let arrays = Arrays {
            nbatch,
            nstep,
            initial_state: Input::shared(if nbatch == 0 { &[] } else { &start }),
            control: Some(Input::default()),
            state: Some(Output::new(&mut state)),
            outcomes: Some(Output::new(&mut outcomes)),
            ..Arrays::default()
        };
        let mut request =
            Request::new(Simulation::of::<Toy>(&model, &mut slots).unwrap(), arrays).unwrap();
        assert_eq!(request.run().completed, nbatch);
        drop(request);
        assert!(outcomes.iter().all(Outcome::completed));
        assert!(state.iter().all(|&number| number != 7.0));
    }
}

#[test]
fn a_step_stride_beyond_the_address_space_is_refused_by_name() {
    let mut world = World::new(Sizes::default());
    let valid = world.raw();
    for stride in [usize::MAX, usize::MAX / 2, isize::MAX as usize / 8] {
        let mut raw = valid.clone();
        raw.inputs[2].step_stride = stride;
        let refused = world.check(&raw).unwrap();
        assert_eq!(
            (refused.kind(), refused.argument()),
            (ErrorKind::Overflow, "control.step_stride")
        );
    }
}

#[test]
fn strides_between_rows_of_no_numbers_do_not_matter() {
    let model = [toy::Model {
        nu: 0,
        ..toy::Model::default()
    }];
    let mut slots = [Slot::new(Toy::new(&model[0]), &model[0])];
    let start = vec![0.0; size(&model[0], Toy::SPECS.full_physics)];
    let arrays = Arrays {
        nbatch: 3,
        nstep: 2,
        initial_state: Input::shared(&start),
        control: Some(Input::strided(&[], usize::MAX, usize::MAX)),
        ..Arrays::default()
    };
    let mut request =
        Request::new(Simulation::of::<Toy>(&model, &mut slots).unwrap(), arrays).unwrap();
    assert_eq!(request.run().completed, 3);
}

#[test]
fn more_rollouts_and_steps_than_can_be_counted_are_refused_without_outputs_too() {
    let mut world = World::new(Sizes::default());
    let mut raw = world.raw();
    one_row_for_all(&mut raw);
    raw.outputs.iter_mut().for_each(RawOutput::not_wanted);
    (raw.nbatch, raw.nstep) = (usize::MAX, 2);
    let refused = world.check(&raw).expect("a refusal");
    assert_eq!(
        (refused.kind(), refused.argument()),
        (ErrorKind::Overflow, "nbatch")
    );
}

#[test]
fn an_output_over_the_data_is_refused() {
    let mut world = World::new(Sizes::default());
    let mut raw = world.raw();
    (raw.nbatch, raw.nstep) = (1, 1);
    one_row_for_all(&mut raw);
    only_output(&mut raw, 1);
    raw.outputs[1].values = raw.data[0].sensordata.cast();
    raw.outputs[1].count = raw.models[0].nsensordata;
    let refused = world.check(&raw).expect("a refusal");
    assert_eq!(
        (refused.kind(), refused.argument()),
        (ErrorKind::Overlap, "sensordata")
    );
}

#[test]
fn controls_for_a_model_without_controls_are_refused() {
    let mut world = World::new(Sizes {
        control_spec: 0,
        model: toy::Model {
            nu: 0,
            ..toy::Model::default()
        },
        ..Sizes::default()
    });
    let mut raw = world.raw();
    raw.inputs[2] = RawInput {
        name: "control",
        values: raw.inputs[0].values,
        count: 6,
        rollout_stride: 0,
        step_stride: 2,
    };
    let refused = world.check(&raw).expect("a refusal");
    assert_eq!(
        (refused.kind(), refused.argument()),
        (ErrorKind::WrongSize, "control.count")
    );
}

#[test]
fn slots_for_another_number_of_sensors_are_refused() {
    let few = toy::Model::default();
    let many = [toy::Model {
        nsensordata: few.nsensordata + 10,
        ..few.clone()
    }];
    let mut slots = [Slot::new(Toy::new(&few), &few)];
    let refused = Simulation::of(&many, &mut slots).unwrap_err();
    assert_eq!(
        (refused.kind(), refused.argument()),
        (ErrorKind::LayoutMismatch, "data[0]")
    );
}

#[test]
fn outputs_over_the_lists_of_the_request_are_refused() {
    let mut world = World::new(Sizes::default());
    let mut raw = world.raw();
    (raw.nbatch, raw.nstep) = (1, 1);
    one_row_for_all(&mut raw);
    only_output(&mut raw, 2);
    let lists: [*mut c_void; 3] = [
        ptr::from_mut(&mut raw.engine).cast(),
        raw.models.as_mut_ptr().cast(),
        raw.data.as_mut_ptr().cast(),
    ];
    for list in lists {
        // SAFETY: the request is refused before anything is used.
        let refused = unsafe {
            let simulation =
                Simulation::new(&raw.engine, raw.models.as_slice(), raw.data.as_slice());
            let arrays = Arrays {
                nbatch: 1,
                nstep: 1,
                initial_state: raw.inputs[0].input().unwrap(),
                outcomes: Some(Output::from_raw(list.cast(), 1)),
                ..Arrays::default()
            };
            Request::new(simulation, arrays).unwrap_err()
        };
        assert_eq!(
            (refused.kind(), refused.argument()),
            (ErrorKind::Overlap, "outcomes")
        );
    }
}
