//! A request: everything one call needs, checked once and trusted afterwards.

use std::borrow::Cow;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use crate::array::{Input, Output, OutputNames, Rows, Span};
use crate::engine::{Data, Kept, MODEL_HIDDEN_STATE, Model, Simulation};
use crate::error::{Error, ErrorKind};
use crate::kernel::Condition;
use crate::outcome::{Outcome, Tally};
use crate::trap::{self, Call, Ran, Trapped};

/// What the output rows of a rollout hold that are not valid: from the step on that
/// warned or failed, or before which it was cancelled or out of time.
#[repr(i32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fill {
    /// NaN: no such row can be taken for a valid one.
    #[default]
    Nan = 0,
    /// After a warning what mujoco.rollout gives: the state after the engine's
    /// automatic reset. Otherwise the last valid row; if there is none, the start
    /// state and zero sensordata.
    Hold = 1,
    /// What was there before.
    Untouched = 2,
}

/// The sizes, arrays and options of a request.
///
/// `nstate`, `ncontrol` and `nwarmstart` below are the engine's sizes of
/// `full_physics`, `control_spec` and `warmstart`.
#[derive(Debug, Default)]
pub struct Arrays<'a> {
    /// Number of rollouts; may be 0.
    pub nbatch: usize,
    /// Steps of each rollout; may be 0.
    pub nstep: usize,
    /// Which inputs `control` holds: bits of the engine's `user` spec. 0 stands
    /// for the engine's `ctrl`. Without `control` it says nothing.
    pub control_spec: u32,
    /// Start states (nbatch x nstate).
    pub initial_state: Input<'a>,
    /// Warm starts of the solver (nbatch x nwarmstart). Default: zero.
    pub initial_warmstart: Option<Input<'a>>,
    /// Inputs for each step (nbatch x nstep x ncontrol). Inputs that are not
    /// given have their defaults: zero, and for `model_inputs` the model's.
    pub control: Option<Input<'a>>,
    /// State after each step (nbatch x nstep x nstate).
    pub state: Option<Output<'a>>,
    /// Sensor values (nbatch x nstep x nsensordata). As in MuJoCo they belong to
    /// the state before the step.
    pub sensordata: Option<Output<'a>>,
    /// One outcome for each rollout.
    pub outcomes: Option<Output<'a, Outcome>>,
    /// Room for one text for each rollout (nbatch x message_size): what the engine
    /// said of the error or warning that ended it, cut to fit and ending in NUL; empty
    /// if it completed.
    pub messages: Option<Output<'a, c_char>>,
    /// Bytes of one text; at least 1 where there are messages, and otherwise nothing.
    pub message_size: usize,
    /// What the rows after the valid ones hold.
    pub fill: Fill,
    /// Rollouts that a thread claims at a time. 0 lets the scheduler choose.
    pub chunk_size: usize,
}

impl Default for Input<'_> {
    /// The array of no numbers.
    fn default() -> Self {
        Self::shared(&[])
    }
}

/// A request that has been checked: it can be run as often as wished.
#[derive(Debug)]
pub struct Request<'a> {
    pub(crate) engine: Trapped<'a>,
    pub(crate) models: Cow<'a, [Model]>,
    pub(crate) data: Cow<'a, [Data]>,
    pub(crate) nbatch: usize,
    pub(crate) nstep: usize,
    pub(crate) nstate: usize,
    pub(crate) nsensordata: usize,
    pub(crate) initial_state: Rows,
    pub(crate) initial_warmstart: Option<Rows>,
    pub(crate) control: Option<Rows>,
    pub(crate) control_spec: u32,
    pub(crate) state: Option<*mut f64>,
    pub(crate) sensordata: Option<*mut f64>,
    pub(crate) outcomes: Option<*mut Outcome>,
    pub(crate) messages: Option<(*mut c_char, usize)>,
    pub(crate) fill: Fill,
    pub(crate) defaults: Defaults,
    chunk_size: usize,
    /// What the models point to, where it is not the host's.
    _kept: Option<Box<dyn Kept + 'a>>,
}

/// Where a rollout's inputs and warm start come from that the request does not give.
#[derive(Debug)]
pub(crate) struct Defaults {
    /// Components that are set to zero.
    pub(crate) zero_spec: u32,
    pub(crate) zeros: Cow<'static, [f64]>,
    /// Components that are set to the model's values, and these values.
    /// [`Request::begin`] reads them from a data that it has reset.
    pub(crate) model_spec: u32,
    pub(crate) model_values: Vec<f64>,
    /// The data is reset before every rollout: because it has hidden state, or
    /// because each rollout has its own model and so its own `model_values`.
    /// (One reset for each request is cheaper: it takes 0.05 to 2 steps.)
    pub(crate) reset: bool,
}

// SAFETY: the pointers come from a Simulation and from Inputs and Outputs, which
// are Send; nothing in a request is tied to a thread.
unsafe impl Send for Request<'_> {}
// SAFETY: what a shared request does, in lanes, is unsafe; its caller promises that
// threads use different slots and rollouts.
unsafe impl Sync for Request<'_> {}

impl<'a> Request<'a> {
    /// Checks everything and makes a request of it, or refuses and names what is
    /// wrong. Calls nothing of the engine but `state_size`, and writes nothing.
    ///
    /// # Errors
    ///
    /// Every kind of [`ErrorKind`]; the text names the argument.
    pub fn new(simulation: Simulation<'a>, arrays: Arrays<'a>) -> Result<Self, Error> {
        let Arrays { nbatch, nstep, .. } = arrays;
        let engine = simulation.check(nbatch)?;
        let control_spec = match arrays.control_spec {
            0 => engine.ctrl,
            spec => spec,
        };
        if control_spec & !engine.user != 0 {
            return Err(Error::new(
                ErrorKind::BadSpec,
                "control_spec",
                format_args!(
                    "is {control_spec:#x}, but only bits of the engine's user spec {:#x} are inputs",
                    engine.user
                ),
            ));
        }
        if engine.warmstart == 0 && arrays.initial_warmstart.is_some() {
            return Err(Error::new(
                ErrorKind::BadSpec,
                "initial_warmstart",
                "is given, but the engine has no warm start",
            ));
        }

        // What the request does not give.
        let given = match arrays.control {
            Some(_) => control_spec,
            None => 0,
        };
        let rest = engine.user & !given;
        let model_spec = rest & engine.model_inputs;
        let given_warmstart = match arrays.initial_warmstart {
            Some(_) => engine.warmstart,
            None => 0,
        };
        let zero_spec = (rest & !model_spec) | (engine.warmstart & !given_warmstart);

        let specs = [
            engine.full_physics,
            zero_spec,
            model_spec,
            given_warmstart,
            given,
        ];
        let sizes = state_sizes(engine, &simulation.models, specs)?;
        let [nstate, nzero, nmodel_values, nwarmstart, ncontrol] = sizes;
        let nsensordata = simulation.models[0].nsensordata;

        let initial_state = arrays
            .initial_state
            .check("initial_state", nbatch, None, nstate)?;
        let initial_warmstart = match &arrays.initial_warmstart {
            None => None,
            Some(input) => Some(input.check("initial_warmstart", nbatch, None, nwarmstart)?),
        };
        let control = match &arrays.control {
            None => None,
            Some(input) => Some(input.check("control", nbatch, Some(nstep), ncontrol)?),
        };
        let names = |values, count| OutputNames { values, count };
        let state = check_output(
            names("state.values", "state.count"),
            &arrays.state,
            [nbatch, nstep, nstate],
        )?;
        let sensordata = check_output(
            names("sensordata.values", "sensordata.count"),
            &arrays.sensordata,
            [nbatch, nstep, nsensordata],
        )?;
        let outcomes = check_output(names("outcomes", "noutcome"), &arrays.outcomes, [nbatch])?;
        let messages = check_output(
            names("messages", "nmessage"),
            &arrays.messages,
            [nbatch, arrays.message_size],
        )?;
        if messages.is_some() && arrays.message_size == 0 {
            return Err(Error::new(
                ErrorKind::WrongSize,
                "message_size",
                "is 0, but a text needs at least the byte that ends it",
            ));
        }
        // Where there is no output whose size would tell.
        if nbatch.checked_mul(nstep).is_none() {
            return Err(Error::new(
                ErrorKind::Overflow,
                "nbatch",
                format_args!("{nbatch} rollouts x {nstep} steps are more than can be counted"),
            ));
        }
        check_overlaps(&arrays, &simulation, nsensordata)?;

        let hidden = |m: &Model| m.flags & MODEL_HIDDEN_STATE != 0;
        let own_values = simulation.models.len() > 1 && nmodel_values > 0;
        Ok(Self {
            engine,
            nbatch,
            nstep,
            nstate,
            nsensordata,
            initial_state,
            initial_warmstart,
            control,
            control_spec,
            state,
            sensordata,
            outcomes,
            messages: messages.map(|texts| (texts, arrays.message_size)),
            fill: arrays.fill,
            defaults: Defaults {
                zero_spec: if nzero > 0 { zero_spec } else { 0 },
                zeros: zeros(nzero)?,
                model_spec: if nmodel_values > 0 { model_spec } else { 0 },
                model_values: zeros(nmodel_values)?.into_owned(),
                reset: own_values || simulation.models.iter().any(hidden),
            },
            chunk_size: arrays.chunk_size,
            models: simulation.models,
            data: simulation.data,
            _kept: simulation.kept,
        })
    }

    /// Copies the lists of models and data, so that nothing of those that the request was
    /// made with is used any more.
    pub fn own_lists(&mut self) {
        self.models.to_mut();
        self.data.to_mut();
    }

    /// Number of rollouts.
    pub fn nbatch(&self) -> usize {
        self.nbatch
    }

    /// Steps of each rollout.
    pub fn nstep(&self) -> usize {
        self.nstep
    }

    /// Number of data, and so the most threads that can take part.
    pub fn ndata(&self) -> usize {
        self.data.len()
    }

    /// The data, by slot. The list stays in one place as long as the request does.
    pub fn data(&self) -> &[Data] {
        &self.data
    }

    /// Rollouts that a thread claims at a time, or 0 for the scheduler's choice.
    pub fn chunk_size(&self) -> usize {
        self.chunk_size
    }

    /// Readies the request for a run: the model's default inputs are read, outcomes
    /// say that nothing has started, messages are empty.
    ///
    /// # Safety
    ///
    /// * Until the run is over, nobody else uses any data of this request.
    pub unsafe fn begin(&mut self) {
        let defaults = &mut self.defaults;
        if !self.engine.is_welcome() {
            // This thread must not use the data, so each rollout finds its defaults.
            defaults.reset |= defaults.model_spec != 0;
        }
        if defaults.model_spec != 0 && !defaults.reset {
            let calls = [
                Call::FORGET,
                Call::RESET,
                Call::get(defaults.model_spec, defaults.model_values.as_mut_ptr()),
            ];
            let (model, data) = (self.models[0].model, self.data[0].data);
            let _entered = self.engine.enter();
            // SAFETY: model and data belong to the engine (`Simulation::new`) and fit
            // each other; the values have the size of their spec; nobody else uses the
            // data, by the caller's promise.
            let ran = unsafe { self.engine.run(model, data, &calls) };
            if ran == Ran::Failed {
                // Then each rollout finds out for itself, and its outcome says so.
                defaults.reset = true;
                if self.engine.is_welcome() {
                    // Perhaps no rollout uses this data, and the host gets it back.
                    // SAFETY: as above. (If not even this helps, nothing does.)
                    let _ = unsafe { self.engine.run(model, data, &[Call::RESET]) };
                }
            }
        }
        for rollout in 0..self.nbatch {
            if let Some(outcomes) = self.outcomes {
                // SAFETY: `new` found room for nbatch outcomes, borrowed
                // exclusively for 'a.
                unsafe { ptr::write(outcomes.add(rollout), Outcome::not_started()) };
            }
            if let Some((texts, size)) = self.messages {
                // SAFETY: as above, for nbatch texts of at least one byte.
                unsafe { *texts.add(rollout * size) = 0 };
            }
        }
    }

    /// Resets the data of a slot, which is in an undefined state, before the request is
    /// begun. Where that fails, every rollout of this run tries it again, and its outcome
    /// says what comes of it.
    ///
    /// # Safety
    ///
    /// * `slot` is below [`ndata`](Request::ndata).
    /// * Until this returns, nobody else uses the data.
    pub unsafe fn reset_data(&mut self, slot: usize) {
        let (model, data) = (self.models[0].model, self.data[slot].data);
        let _entered = self.engine.enter();
        // SAFETY: model and data belong to the engine (`Simulation::new`) and fit each other;
        // nobody else uses the data, by the caller's promise.
        let ran = unsafe { self.engine.run(model, data, &[Call::FORGET, Call::RESET]) };
        self.defaults.reset |= ran == Ran::Failed;
    }

    /// Runs all rollouts on the calling thread and the first data. (Up to the first
    /// engine error, if a thread that has seen one is to be retired: the others are not
    /// started then, as only a pool has other threads.)
    pub fn run(&mut self) -> Tally {
        // SAFETY: the request is borrowed exclusively, and by the promise of its
        // Simulation nobody else uses the data; the range is that of all rollouts.
        unsafe {
            self.begin();
            let mut lane = self.lane(0, Condition::Ready);
            lane.run(&mut (0..self.nbatch), &mut ());
            lane.leave().0
        }
    }

    /// The model of one rollout.
    pub(crate) fn model(&self, rollout: usize) -> *const c_void {
        match &*self.models {
            [one] => one.model,
            each => each[rollout].model,
        }
    }
}

/// `count` zeros. Most models need few, and allocating them took 600 of the 4200
/// instructions that a request of one short rollout adds to the engine's (callgrind,
/// cartpole, 2026-11-30).
fn zeros(count: usize) -> Result<Cow<'static, [f64]>, Error> {
    static FEW: [f64; 1024] = [0.0; 1024];
    if let Some(few) = FEW.get(..count) {
        return Ok(few.into());
    }
    let mut many = Vec::new();
    // An engine can name any size; a size that memory does not hold is refused.
    many.try_reserve_exact(count).map_err(|_| {
        Error::new(
            ErrorKind::BadEngine,
            "engine.state_size",
            format_args!("asks for {count} numbers, for which there is no memory"),
        )
    })?;
    many.resize(count, 0.0);
    Ok(many.into())
}

/// The address of an output that is wanted.
fn check_output<T, const N: usize>(
    names: OutputNames,
    output: &Option<Output<'_, T>>,
    dimensions: [usize; N],
) -> Result<Option<*mut T>, Error> {
    match output {
        None => Ok(None),
        Some(output) => output.check(names, dimensions).map(Some),
    }
}

/// The sizes of some specs, which must be the same for all models.
fn state_sizes<const N: usize>(
    engine: Trapped<'_>,
    models: &[Model],
    specs: [u32; N],
) -> Result<[usize; N], Error> {
    let sizes_of = |model: &Model| {
        let mut sizes: [c_int; N] = [0; N];
        let mut calls = [Call::FORGET; N];
        let mut count = 0;
        for (spec, size) in specs.iter().zip(&mut sizes) {
            if *spec != 0 {
                calls[count] = Call::size(*spec, size);
                count += 1;
            }
        }
        let bad = |reason| Error::new(ErrorKind::BadEngine, "engine.state_size", reason);
        let _entered = engine.enter();
        // SAFETY: the table and its models belong together (`Simulation::new`), and the
        // models were found to be non-null; sizes need no data.
        let ran = unsafe { engine.run(model.model, ptr::null_mut(), &calls[..count]) };
        if ran == Ran::Failed {
            return Err(bad(trap::reason()));
        }
        let mut known = [0; N];
        for ((known, &size), spec) in known.iter_mut().zip(&sizes).zip(specs) {
            *known = usize::try_from(size)
                .map_err(|_| bad(format!("gave {size} for the spec {spec:#x}")))?;
        }
        Ok(known)
    };
    let first = sizes_of(&models[0])?;
    for (i, model) in models.iter().enumerate().skip(1) {
        let sizes = sizes_of(model)?;
        if let Some(k) = (0..N).find(|&k| sizes[k] != first[k]) {
            let spec = specs[k];
            return Err(Error::new(
                ErrorKind::LayoutMismatch,
                format_args!("models[{i}]"),
                format_args!("has another state size than models[0] for the spec {spec:#x}"),
            ));
        }
    }
    Ok(first)
}

/// Refuses outputs that share memory with an input, with each other, with the lists
/// of models and data, or with what the library writes in a data: its sensor values
/// and warning counters.
fn check_overlaps(
    arrays: &Arrays<'_>,
    simulation: &Simulation<'_>,
    nsensordata: usize,
) -> Result<(), Error> {
    let (models, data) = (&*simulation.models, &*simulation.data);
    const INPUTS: usize = 6;
    let arrays = [
        Span::new("engine", simulation.engine, 1),
        Span::new("models", models.as_ptr(), models.len()),
        Span::new("data", data.as_ptr(), data.len()),
        arrays.initial_state.span("initial_state"),
        arrays
            .initial_warmstart
            .map_or(Span::NONE, |i| i.span("initial_warmstart")),
        arrays.control.map_or(Span::NONE, |i| i.span("control")),
        output_span(&arrays.state, "state"),
        output_span(&arrays.sensordata, "sensordata"),
        output_span(&arrays.outcomes, "outcomes"),
        output_span(&arrays.messages, "messages"),
    ];
    let mut hull = Span::NONE;
    for (i, array) in arrays.iter().enumerate() {
        if array.is_empty() {
            continue;
        }
        // What a request writes is behind what it reads.
        if i >= INPUTS
            && let Some(before) = arrays[..i].iter().find(|before| array.overlaps(before))
        {
            return Err(array.overlap(before));
        }
        hull = hull.hull(array);
    }
    for data in data {
        for written in data.spans(nsensordata) {
            // An engine's memory is seldom among the host's arrays.
            if written.overlaps(&hull)
                && let Some(array) = arrays.iter().find(|array| array.overlaps(&written))
            {
                return Err(array.overlap(&written));
            }
        }
    }
    Ok(())
}

fn output_span<T>(output: &Option<Output<'_, T>>, name: &'static str) -> Span {
    output
        .as_ref()
        .map_or(Span::NONE, |output| output.span(name))
}
