//! A simulator written in Rust behind the engine table, without unsafe code on
//! its side.

use std::any::Any;
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::ptr;
use std::slice;

use crate::engine::{Data, ENGINE_VERSION, Engine, MODEL_HIDDEN_STATE, Model};
use crate::trap::Hooks;

/// The state specs of a [`Simulator`]: sets of bits of its own choosing. The
/// meaning of each is that of the field of the same name of [`Engine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Specs {
    /// The state that a rollout starts from and records.
    pub full_physics: u32,
    /// All inputs.
    pub user: u32,
    /// The solver's warm start, or 0.
    pub warmstart: u32,
    /// The controls, a part of `user`.
    pub ctrl: u32,
    /// Inputs whose defaults come from the model, a part of `user`.
    pub model_inputs: u32,
    /// Kinds of warning that mean divergence.
    pub diverged_warnings: u32,
}

impl Specs {
    /// No components at all, to be completed:
    /// `Specs { full_physics: 1, user: 2, ctrl: 2, ..Specs::none() }`.
    pub const fn none() -> Self {
        Self {
            full_physics: 0,
            user: 0,
            warmstart: 0,
            ctrl: 0,
            model_inputs: 0,
            diverged_warnings: 0,
        }
    }
}

/// A simulator written in Rust: the type is the data, [`Simulator::Model`] the
/// model.
///
/// A panic in one of its methods ends the rollout with an engine error.
pub trait Simulator: Send {
    /// What does not change during a rollout; shared by all threads.
    type Model: Sync;

    /// The state specs.
    const SPECS: Specs;

    /// How many kinds of warning there are, at most 32.
    const NWARNING: usize = 0;

    /// Numbers in the components of `spec`: the sum of those of its bits. Asked
    /// once for each bit when a request is made.
    fn state_size(model: &Self::Model, spec: u32) -> usize;

    /// Numbers in the sensor values.
    fn nsensordata(_model: &Self::Model) -> usize {
        0
    }

    /// A number that is equal for models that can share a data.
    fn layout(model: &Self::Model) -> u64 {
        let specs = Self::SPECS;
        Self::state_size(model, specs.full_physics | specs.user | specs.warmstart) as u64
    }

    /// Whether there is state outside the specs that `reset` restores.
    fn hidden_state(_model: &Self::Model) -> bool {
        false
    }

    /// Writes the components of `spec`, in the order of their bits.
    fn get_state(&self, model: &Self::Model, spec: u32, state: &mut [f64]);

    /// Sets the components of `spec`, in the order of their bits.
    fn set_state(&mut self, model: &Self::Model, spec: u32, state: &[f64]);

    /// Makes one step, writes the sensor values of the state before it, and
    /// counts warnings.
    ///
    /// # Errors
    ///
    /// A text, if the step cannot be made.
    fn step(&mut self, model: &Self::Model, readings: Readings<'_>) -> Result<(), String>;

    /// Back to the state of a new data.
    fn reset(&mut self, model: &Self::Model);
}

/// A model together with its sizes, asked for once: whatever a simulator answers
/// later, the arrays have the sizes that they were checked for.
pub struct Fixed<'a, S: Simulator> {
    model: &'a S::Model,
    /// Numbers in the component of each spec bit.
    sizes: [usize; u32::BITS as usize],
    nsensordata: usize,
}

impl<'a, S: Simulator> Fixed<'a, S> {
    /// Asks for the sizes of a model.
    pub fn new(model: &'a S::Model) -> Self {
        let specs = S::SPECS;
        let all = specs.full_physics | specs.user | specs.warmstart;
        Self {
            model,
            sizes: std::array::from_fn(|bit| match all & (1 << bit) {
                0 => 0,
                spec => S::state_size(model, spec),
            }),
            nsensordata: S::nsensordata(model),
        }
    }

    /// Numbers in the components of `spec`, or `None` if that overflows.
    fn state_size(&self, spec: u32) -> Option<usize> {
        let named = (0..u32::BITS).filter(|bit| spec & (1 << bit) != 0);
        named
            .map(|bit| self.sizes[bit as usize])
            .try_fold(0_usize, usize::checked_add)
    }
}

impl<S: Simulator> fmt::Debug for Fixed<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fixed")
            .field("sizes", &self.sizes)
            .field("nsensordata", &self.nsensordata)
            .finish_non_exhaustive()
    }
}

/// Where a step leaves what it measured.
#[derive(Debug)]
pub struct Readings<'a> {
    /// Sensor values; they keep what is not written.
    pub sensordata: &'a mut [f64],
    warnings: &'a mut [Warning],
}

impl Readings<'_> {
    /// Counts a warning of this kind.
    pub fn warn(&mut self, kind: usize) {
        self.warnings[kind].number += 1;
    }
}

/// One warning counter, laid out as MuJoCo's `mjWarningStat`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Warning {
    lastinfo: i32,
    number: i32,
}

/// A simulator together with its sensor values and warning counters: one data.
#[derive(Debug)]
pub struct Slot<S> {
    simulator: S,
    // Vectors, not boxes: the kernel uses the addresses from `Data::of` while the
    // slot is borrowed here and there, and a box claims its contents for itself.
    sensordata: Vec<f64>,
    warnings: Vec<Warning>,
    layout: u64,
}

impl<S: Simulator> Slot<S> {
    /// Whether the sensor values have room for those of this model.
    pub(crate) fn suits(&self, model: &Fixed<'_, S>) -> bool {
        self.sensordata.len() == model.nsensordata
    }

    /// A data that belongs to `model` and the models of the same layout.
    pub fn new(simulator: S, model: &S::Model) -> Self {
        Self {
            simulator,
            sensordata: vec![0.0; S::nsensordata(model)],
            warnings: vec![Warning::default(); S::NWARNING],
            layout: S::layout(model),
        }
    }

    /// The simulator.
    pub fn simulator(&self) -> &S {
        &self.simulator
    }

    /// The simulator, for the host's own use between requests.
    pub fn simulator_mut(&mut self) -> &mut S {
        &mut self.simulator
    }

    /// The sensor values.
    pub fn sensordata(&self) -> &[f64] {
        &self.sensordata
    }

    /// The sensor values, for the host's own use between requests.
    pub fn sensordata_mut(&mut self) -> &mut [f64] {
        &mut self.sensordata
    }

    /// How often each kind of warning was counted.
    pub fn warnings(&self) -> Vec<i32> {
        self.warnings.iter().map(|warning| warning.number).collect()
    }

    /// Makes one step outside any request.
    ///
    /// # Errors
    ///
    /// The simulator's text, if the step cannot be made.
    pub fn step(&mut self, model: &S::Model) -> Result<(), String> {
        let readings = Readings {
            sensordata: &mut self.sensordata,
            warnings: &mut self.warnings,
        };
        self.simulator.step(model, readings)
    }
}

impl Engine {
    /// The table of a simulator written in Rust: its models are `Fixed<S>`, its
    /// data `Slot<S>`.
    pub const fn of<S: Simulator>() -> Self {
        let specs = S::SPECS;
        Self {
            size: mem::size_of::<Engine>(),
            version: ENGINE_VERSION,
            number_size: mem::size_of::<f64>() as u32,
            header_release: 0,
            library_release: 0,
            step: Some(step::<S>),
            state_size: Some(state_size::<S>),
            get_state: Some(get_state::<S>),
            set_state: Some(set_state::<S>),
            reset: Some(reset::<S>),
            take_error: Some(take_error),
            full_physics: specs.full_physics,
            user: specs.user,
            warmstart: specs.warmstart,
            ctrl: specs.ctrl,
            model_inputs: specs.model_inputs,
            diverged_warnings: specs.diverged_warnings,
            warning_text: None,
            hooks: Hooks::none(),
        }
    }
}

impl Model {
    /// What there is to say about a model of a Rust simulator.
    pub fn of<S: Simulator>(model: &Fixed<'_, S>) -> Self {
        Self {
            model: ptr::from_ref(model).cast(),
            layout: S::layout(model.model),
            structure: 0,
            nsensordata: model.nsensordata,
            nplugin: 0,
            flags: if S::hidden_state(model.model) {
                MODEL_HIDDEN_STATE
            } else {
                0
            },
        }
    }
}

impl Data {
    /// What there is to say about a data of a Rust simulator.
    pub fn of<S: Simulator>(slot: &mut Slot<S>) -> Self {
        let warning = slot.warnings.as_mut_ptr();
        Self {
            data: ptr::from_mut(slot).cast(),
            sensordata: slot.sensordata.as_mut_ptr(),
            warning_number: if slot.warnings.is_empty() {
                ptr::null_mut()
            } else {
                // SAFETY: the first of at least one counter.
                unsafe { &raw mut (*warning).number }
            },
            nwarning: slot.warnings.len() as u32,
            flags: 0,
            layout: slot.layout,
            structure: 0,
            nplugin: 0,
        }
    }
}

thread_local! {
    /// The error of the calls that this thread has made since it last asked.
    static PENDING: Cell<Option<String>> = const { Cell::new(None) };
}

/// Runs a simulator's method; keeps the first error or panic for `take_error`.
fn guard(call: impl FnOnce() -> Result<(), String>) {
    let error = match panic::catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error,
        Err(payload) => format!("the simulator panicked: {}", panic_text(&*payload)),
    };
    let first = PENDING.take().unwrap_or(error);
    PENDING.set(Some(first));
}

/// The text of a caught panic.
pub fn panic_text(payload: &(dyn Any + Send)) -> &str {
    if let Some(text) = payload.downcast_ref::<&str>() {
        text
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text
    } else {
        "a value that is no text"
    }
}

// The functions of the table `Engine::of::<S>()`. Whoever calls them promises that
// the models are of type `Fixed<S>` and the data of type `Slot<S>`, the latter this
// thread's alone: `Simulation::of` has borrowed them so, and `Simulation::new` has
// its caller promise it.

unsafe extern "C" fn step<S: Simulator>(model: *const c_void, data: *mut c_void) {
    // SAFETY: of these types, and the slot is this thread's, as said above.
    let (model, slot) = unsafe { (&*model.cast::<Fixed<'_, S>>(), &mut *data.cast::<Slot<S>>()) };
    guard(|| slot.step(model.model));
}

unsafe extern "C" fn state_size<S: Simulator>(model: *const c_void, spec: u32) -> c_int {
    // SAFETY: of this type, as said above.
    let model = unsafe { &*model.cast::<Fixed<'_, S>>() };
    // A size that is negative is refused.
    model
        .state_size(spec)
        .and_then(|size| c_int::try_from(size).ok())
        .unwrap_or(-1)
}

unsafe extern "C" fn get_state<S: Simulator>(
    model: *const c_void,
    data: *const c_void,
    state: *mut f64,
    spec: u32,
) {
    // SAFETY: of these types, and the slot is this thread's, as said above.
    let (model, slot) = unsafe { (&*model.cast::<Fixed<'_, S>>(), &*data.cast::<Slot<S>>()) };
    guard(|| {
        let state = match model.state_size(spec).unwrap_or(0) {
            // A row of no numbers may have a null pointer.
            0 => &mut [],
            // SAFETY: the kernel passes a row of the size of its spec, which it
            // knows from `state_size`. A host's row may be uninitialised memory, so
            // it is set before it becomes a slice.
            size => unsafe {
                ptr::write_bytes(state, 0, size);
                slice::from_raw_parts_mut(state, size)
            },
        };
        slot.simulator.get_state(model.model, spec, state);
        Ok(())
    });
}

unsafe extern "C" fn set_state<S: Simulator>(
    model: *const c_void,
    data: *mut c_void,
    state: *const f64,
    spec: u32,
) {
    // SAFETY: of these types, and the slot is this thread's, as said above.
    let (model, slot) = unsafe { (&*model.cast::<Fixed<'_, S>>(), &mut *data.cast::<Slot<S>>()) };
    guard(|| {
        let state = match model.state_size(spec).unwrap_or(0) {
            // A row of no numbers may have a null pointer.
            0 => &[],
            // SAFETY: the kernel passes a row of the size of its spec, which it
            // knows from `state_size`.
            size => unsafe { slice::from_raw_parts(state, size) },
        };
        slot.simulator.set_state(model.model, spec, state);
        Ok(())
    });
}

unsafe extern "C" fn reset<S: Simulator>(model: *const c_void, data: *mut c_void) {
    // SAFETY: of these types, and the slot is this thread's, as said above.
    let (model, slot) = unsafe { (&*model.cast::<Fixed<'_, S>>(), &mut *data.cast::<Slot<S>>()) };
    guard(|| {
        slot.simulator.reset(model.model);
        slot.sensordata.fill(0.0);
        slot.warnings.fill(Warning::default());
        Ok(())
    });
}

unsafe extern "C" fn take_error(_data: *mut c_void, text: *mut c_char, size: usize) -> c_int {
    let Some(error) = PENDING.take() else {
        return 0;
    };
    let length = error.floor_char_boundary(size.saturating_sub(1));
    // SAFETY: the kernel passes room for `size` bytes, at least one.
    unsafe {
        ptr::copy_nonoverlapping(error.as_ptr().cast(), text, length);
        *text.add(length) = 0;
    }
    1
}
