//! The engine: the table of C functions that steps a simulation, and what a
//! host says about the models and data that the table works on.
//!
//! The structs of this module are part of the C ABI (`RolloutEngine`,
//! `RolloutModel`, `RolloutData`). For MuJoCo the header `rollout_mujoco.h`
//! fills them from the host's own `mujoco.h`; a simulator written in Rust
//! implements [`Simulator`] instead.

use std::borrow::Cow;
use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::mem;

use crate::array::{Span, check_pointer};
use crate::error::{Error, ErrorKind};
use crate::simulator::{Fixed, Simulator, Slot};
use crate::trap::{Hooks, Trapped};

/// The version of the meaning of the engine table.
pub const ENGINE_VERSION: u32 = 1;

/// Flag of a model: its data have state outside the state vector, which a reset
/// restores (MuJoCo: sleep is enabled, or there are plugins). The data is then
/// reset before every rollout.
pub const MODEL_HIDDEN_STATE: u32 = 1 << 0;
/// Flag of a model: its data have state outside the state vector, which not even
/// a reset restores. Such a model is refused.
pub const MODEL_UNRESETTABLE_STATE: u32 = 1 << 1;
/// Flag of a data: an engine thread pool is attached to it (MuJoCo:
/// mju_bindThreadPool). Such a data is refused.
pub const DATA_ENGINE_THREADS: u32 = 1 << 0;

/// A table of functions that steps a simulation, with MuJoCo's shapes and
/// meanings: mj_step, mj_stateSize, mj_getState, mj_setState and mj_resetData fit
/// it as they are. The functions are called from several threads at once, each
/// with another data. They must return, but for a jump out of the handler of an error
/// (see `hooks`), and no exception may leave them.
///
/// A state spec is a set of bits, each for one component of the state. Their
/// values differ between engines and between releases of MuJoCo, so the host
/// states those of the release it has.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Engine {
    /// The sizeof of this struct; set by the host.
    pub size: usize,
    /// ROLLOUT_ENGINE_VERSION.
    pub version: u32,
    /// Bytes of one number: 8. A single precision engine is refused.
    pub number_size: u32,
    /// The release whose headers the host was compiled with (mjVERSION_HEADER);
    /// any number where the engine has no releases.
    pub header_release: i32,
    /// The release that is loaded (mj_version()). Must be equal to
    /// `header_release`, since addresses were taken from the headers.
    pub library_release: i32,
    /// Advances `data` by one time step of `model`, and leaves in the data's
    /// sensor values those of the state before the step (mj_step).
    pub step: Option<unsafe extern "C" fn(model: *const c_void, data: *mut c_void)>,
    /// The numbers in the components named by `spec` (mj_stateSize).
    pub state_size: Option<unsafe extern "C" fn(model: *const c_void, spec: u32) -> c_int>,
    /// Writes the components named by `spec`, in the order of their bits, to
    /// `state` (mj_getState).
    pub get_state: Option<
        unsafe extern "C" fn(model: *const c_void, data: *const c_void, state: *mut f64, spec: u32),
    >,
    /// Sets the components named by `spec`, in the order of their bits, from
    /// `state` (mj_setState).
    pub set_state: Option<
        unsafe extern "C" fn(model: *const c_void, data: *mut c_void, state: *const f64, spec: u32),
    >,
    /// Sets `data` to the initial state of `model`, as if it had just been made
    /// (mj_resetData).
    pub reset: Option<unsafe extern "C" fn(model: *const c_void, data: *mut c_void)>,
    /// How an engine that is not MuJoCo reports an error; NULL if it has no such
    /// report. Asked after each of the calls above but state_size, on the thread that
    /// made it. Returns 0 if it succeeded; otherwise another value, and then writes
    /// the reason to `text`, at most `size` bytes with the NUL that ends it, and
    /// forgets the error.
    pub take_error:
        Option<unsafe extern "C" fn(data: *mut c_void, text: *mut c_char, size: usize) -> c_int>,
    /// Spec of the state that a rollout starts from and records
    /// (mjSTATE_FULLPHYSICS).
    pub full_physics: u32,
    /// Spec of all inputs (mjSTATE_USER).
    pub user: u32,
    /// Spec of the solver's warm start (mjSTATE_WARMSTART); 0 if there is none.
    pub warmstart: u32,
    /// Spec of the controls, a part of `user` (mjSTATE_CTRL).
    pub ctrl: u32,
    /// Spec of the inputs whose defaults are not zero but come from the model, a
    /// part of `user` (mjSTATE_EQ_ACTIVE | mjSTATE_MOCAP_POS | mjSTATE_MOCAP_QUAT).
    pub model_inputs: u32,
    /// The kinds of warning that mean divergence: bit k stands for kind k
    /// (mjWARN_BADQPOS, mjWARN_BADQVEL, mjWARN_BADQACC).
    pub diverged_warnings: u32,
    /// The text of a warning, from its kind and the number that stands before its
    /// counter (mju_warningText); NULL if there are no texts. It is read before the
    /// next call on the same thread.
    pub warning_text: Option<unsafe extern "C" fn(kind: c_int, info: usize) -> *const c_char>,
    /// Where to set handlers of errors and warnings.
    pub hooks: Hooks,
}

/// What a host says about one model; for MuJoCo from rollout_mujoco_model(). The
/// layout of this struct is fixed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// The model (const mjModel*). Only read, by all threads at once; it must not
    /// change while a request uses it.
    pub model: *const c_void,
    /// Signature of the layout of the data that belong to this model. Models of
    /// one request have equal signatures.
    pub layout: u64,
    /// Signature of the structure that its data are made for besides their layout
    /// (which body is whose child, and so on), or 0 if it is not known. Signatures
    /// of one request that are known are equal.
    pub structure: u64,
    /// Numbers in the data's sensor values (mjModel.nsensordata).
    pub nsensordata: usize,
    /// Number of plugin instances (mjModel.nplugin).
    pub nplugin: usize,
    /// ROLLOUT_MODEL_HIDDEN_STATE, ROLLOUT_MODEL_UNRESETTABLE_STATE, or 0.
    pub flags: u32,
}

/// What a host says about one data; for MuJoCo from rollout_mujoco_data(). The
/// addresses must belong to this data as long as a request uses it. The layout of
/// this struct is fixed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Data {
    /// The data (mjData*). During a request one thread at a time uses it, and
    /// nobody else may.
    pub data: *mut c_void,
    /// The sensor values (mjData.sensordata); may be NULL if there are none.
    pub sensordata: *mut f64,
    /// The first warning counter (the `number` of the first mjData.warning). The
    /// counters are 8 bytes apart, and before each there are 4 bytes for the number
    /// that `warning_text` takes. May be NULL if `nwarning` is 0.
    pub warning_number: *mut i32,
    /// Number of warning kinds (mjNWARNING), at most 32.
    pub nwarning: u32,
    /// ROLLOUT_DATA_ENGINE_THREADS, or 0.
    pub flags: u32,
    /// Signature of the layout of this data; equal to that of its model.
    pub layout: u64,
    /// Signature of the structure that this data was made for, or 0 if it is not
    /// known.
    pub structure: u64,
    /// Number of plugin instances (mjData.nplugin).
    pub nplugin: usize,
}

/// Distance between two warning counters, in counters: `sizeof(mjWarningStat)`
/// is 8 in every release.
pub(crate) const WARNING_STRIDE: usize = 2;

impl Engine {
    /// Checks that the table is complete and does not contradict itself.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let bad = |field: &str, reason: String| {
            Error::new(ErrorKind::BadEngine, format_args!("engine.{field}"), reason)
        };
        let missing = |field: &str| {
            Error::new(
                ErrorKind::NullPointer,
                format_args!("engine.{field}"),
                "is null",
            )
        };
        if self.version != ENGINE_VERSION {
            return Err(bad(
                "version",
                format!("is {}, this library knows {ENGINE_VERSION}", self.version),
            ));
        }
        if self.number_size as usize != mem::size_of::<f64>() {
            return Err(bad(
                "number_size",
                format!(
                    "is {}, only engines with numbers of 8 bytes are supported",
                    self.number_size
                ),
            ));
        }
        if self.header_release != self.library_release {
            return Err(bad(
                "library_release",
                format!(
                    "is {}, but the host was compiled with the headers of {}",
                    self.library_release, self.header_release
                ),
            ));
        }
        if self.full_physics == 0 {
            return Err(bad("full_physics", "is empty".into()));
        }
        if self.full_physics & self.user != 0 {
            return Err(bad("user", "shares bits with full_physics".into()));
        }
        if self.warmstart & (self.full_physics | self.user) != 0 {
            return Err(bad(
                "warmstart",
                "shares bits with full_physics or user".into(),
            ));
        }
        for (field, spec) in [("ctrl", self.ctrl), ("model_inputs", self.model_inputs)] {
            if spec & !self.user != 0 {
                return Err(bad(field, "has bits outside user".into()));
            }
        }
        if self.ctrl & self.model_inputs != 0 {
            return Err(bad("model_inputs", "shares bits with ctrl".into()));
        }
        let functions = [
            ("step", self.step.is_some()),
            ("state_size", self.state_size.is_some()),
            ("get_state", self.get_state.is_some()),
            ("set_state", self.set_state.is_some()),
            ("reset", self.reset.is_some()),
        ];
        match functions.iter().find(|(_, given)| !given) {
            Some((field, _)) => Err(missing(field)),
            None => Ok(()),
        }
    }
}

impl Data {
    /// The memory that the library itself writes in a data.
    pub(crate) fn spans(&self, nsensordata: usize) -> [Span; 2] {
        [
            Span::new("a data's sensordata", self.sensordata, nsensordata),
            Span::new(
                "a data's warnings",
                self.warning_number,
                self.nwarning as usize * WARNING_STRIDE,
            ),
        ]
    }

    /// Sets all warning counters to zero.
    ///
    /// # Safety
    ///
    /// * The description was checked, and this thread is the only one to use the data.
    pub(crate) unsafe fn clear_warnings(&self) {
        for kind in 0..self.nwarning as usize {
            // SAFETY: the host states `nwarning` counters at this distance, and
            // nobody else uses the data.
            unsafe { *self.warning_number.add(kind * WARNING_STRIDE) = 0 };
        }
    }

    /// A kind of warning that has been counted: the lowest of those in `first` or else
    /// the lowest of all. And the number that the engine has kept with it.
    ///
    /// # Safety
    ///
    /// * The description was checked, and this thread is the only one to use the data.
    pub(crate) unsafe fn first_warning(&self, first: u32) -> Option<(u32, i32)> {
        let mut counted: u32 = 0;
        for kind in 0..self.nwarning {
            // SAFETY: as in `clear_warnings`.
            let number = unsafe { *self.warning_number.add(kind as usize * WARNING_STRIDE) };
            counted |= u32::from(number != 0) << kind;
        }
        let chosen = if counted & first != 0 {
            counted & first
        } else {
            counted
        };
        (chosen != 0).then(|| {
            let kind = chosen.trailing_zeros();
            // SAFETY: the host states that this number stands before the counter.
            let info = unsafe {
                *self
                    .warning_number
                    .add(kind as usize * WARNING_STRIDE)
                    .sub(1)
            };
            (kind, info)
        })
    }
}

/// What is stepped: an engine, one model for all rollouts or one for each, and
/// one data per slot.
///
/// To construct one is to promise that the pointers in it are what they are
/// said to be; everything that can be looked at is looked at when a request is
/// made of it.
#[derive(Debug)]
pub struct Simulation<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) models: Cow<'a, [Model]>,
    pub(crate) data: Cow<'a, [Data]>,
    /// What `models` points to, where it is not the host's.
    pub(crate) kept: Option<Box<dyn Kept + 'a>>,
    borrow: PhantomData<&'a mut ()>,
}

/// Something that is only kept alive.
pub(crate) trait Kept: fmt::Debug + Send + Sync {}

impl<T: fmt::Debug + Send + Sync> Kept for T {}

// SAFETY: the pointers are used as `Simulation::new` promises: models are read
// by all threads, and a data is used by one thread at a time, any thread.
unsafe impl Send for Simulation<'_> {}
// SAFETY: as above; a shared Simulation gives no access to what it points to.
unsafe impl Sync for Simulation<'_> {}

impl<'a> Simulation<'a> {
    /// An engine with its models and data.
    ///
    /// # Safety
    ///
    /// For the lifetime `'a`:
    ///
    /// * The functions of `engine` behave as documented at [`Engine`], on any
    ///   thread, for the models and data given here.
    /// * Each non-null model points to a model of that engine with at least
    ///   `nsensordata` sensor numbers, and nobody changes it.
    /// * Each non-null data points to a data of that engine, made for a model of
    ///   the layout that is stated, and its addresses, where they are neither null
    ///   nor misaligned, are those of its sensor numbers and warning counters.
    /// * While a request made of this simulation runs, nobody else uses the data.
    ///   Another request may name them if both run on pools, which refuse the
    ///   second.
    pub unsafe fn new(
        engine: &'a Engine,
        models: impl Into<Cow<'a, [Model]>>,
        data: impl Into<Cow<'a, [Data]>>,
    ) -> Self {
        Self {
            engine,
            models: models.into(),
            data: data.into(),
            kept: None,
            borrow: PhantomData,
        }
    }

    /// A simulator written in Rust, with one model for all rollouts or one for
    /// each, and one slot for each thread that may take part.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LayoutMismatch`] if a slot was made for a model with another
    /// number of sensor values.
    pub fn of<S: Simulator + 'a>(
        models: &'a [S::Model],
        slots: &'a mut [Slot<S>],
    ) -> Result<Self, Error> {
        let fixed: Vec<Fixed<'a, S>> = models.iter().map(Fixed::new).collect();
        for (m, model) in fixed.iter().enumerate() {
            if let Some(i) = slots.iter().position(|slot| !slot.suits(model)) {
                return Err(Error::new(
                    ErrorKind::LayoutMismatch,
                    format_args!("data[{i}]"),
                    format_args!("has not as many sensor values as models[{m}]"),
                ));
            }
        }
        let models: Vec<Model> = fixed.iter().map(Model::of).collect();
        let data: Vec<Data> = slots.iter_mut().map(Data::of).collect();
        // SAFETY: the table is made for the types of these models and slots. The
        // models are kept below, in their place on the heap, and what they point to
        // is borrowed for 'a, as are the slots, exclusively. Each slot has room for
        // the sensor values of every model, as was just checked, and its counters.
        let simulation = unsafe { Self::new(const { &Engine::of::<S>() }, models, data) };
        Ok(Self {
            kept: Some(Box::new(fixed)),
            ..simulation
        })
    }

    /// Checks all that can be seen without calling the engine.
    pub(crate) fn check(&self, nbatch: usize) -> Result<Trapped<'a>, Error> {
        let engine = Trapped::new(self.engine)?;
        self.check_models(nbatch)?;
        self.check_data()?;
        check_distinct(&self.data, self.models[0].nsensordata)?;
        Ok(engine)
    }

    fn check_models(&self, nbatch: usize) -> Result<(), Error> {
        let first = self.models.first().ok_or_else(|| empty("models"))?;
        if self.models.len() != 1 && self.models.len() != nbatch {
            return Err(Error::new(
                ErrorKind::WrongSize,
                "nmodel",
                format_args!(
                    "is {}, but must be 1 or the number of rollouts, {nbatch}",
                    self.models.len()
                ),
            ));
        }
        for (i, model) in self.models.iter().enumerate() {
            if model.model.is_null() {
                return Err(Error::new(
                    ErrorKind::NullPointer,
                    format_args!("models[{i}].model"),
                    "is null",
                ));
            }
            if model.flags & !(MODEL_HIDDEN_STATE | MODEL_UNRESETTABLE_STATE) != 0 {
                return Err(Error::new(
                    ErrorKind::BadOption,
                    format_args!("models[{i}].flags"),
                    "has unknown bits",
                ));
            }
            if model.flags & MODEL_UNRESETTABLE_STATE != 0 {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format_args!("models[{i}]"),
                    "has state that no reset restores, so its rollouts would depend on each other",
                ));
            }
            if model.nplugin > 0 && model.model != first.model {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format_args!("models[{i}]"),
                    "has plugins: a data carries the settings of one model's plugins, so all \
                     rollouts of a request must share that model",
                ));
            }
            if differ(model.structure, first.structure) {
                return Err(Error::new(
                    ErrorKind::LayoutMismatch,
                    format_args!("models[{i}]"),
                    "has another structure than models[0]",
                ));
            }
            if (model.layout, model.nsensordata, model.nplugin)
                != (first.layout, first.nsensordata, first.nplugin)
            {
                return Err(Error::new(
                    ErrorKind::LayoutMismatch,
                    format_args!("models[{i}]"),
                    "has other sizes than models[0]",
                ));
            }
        }
        Ok(())
    }

    fn check_data(&self) -> Result<(), Error> {
        if self.data.is_empty() {
            return Err(empty("data"));
        }
        let model = &self.models[0];
        for (i, data) in self.data.iter().enumerate() {
            if data.data.is_null() {
                return Err(Error::new(
                    ErrorKind::NullPointer,
                    format_args!("data[{i}].data"),
                    "is null",
                ));
            }
            if (data.layout, data.nplugin) != (model.layout, model.nplugin) {
                return Err(Error::new(
                    ErrorKind::LayoutMismatch,
                    format_args!("data[{i}]"),
                    "was made for a model of other sizes",
                ));
            }
            if differ(data.structure, model.structure) {
                return Err(Error::new(
                    ErrorKind::LayoutMismatch,
                    format_args!("data[{i}]"),
                    "was made for a model of another structure",
                ));
            }
            check_pointer(
                data.sensordata,
                model.nsensordata,
                format_args!("data[{i}].sensordata"),
            )?;
            check_pointer(
                data.warning_number,
                data.nwarning as usize,
                format_args!("data[{i}].warning_number"),
            )?;
            if data.nwarning > u32::BITS {
                return Err(Error::new(
                    ErrorKind::WrongSize,
                    format_args!("data[{i}].nwarning"),
                    format_args!("is {}, but there are at most 32 kinds", data.nwarning),
                ));
            }
            if data.flags & !DATA_ENGINE_THREADS != 0 {
                return Err(Error::new(
                    ErrorKind::BadOption,
                    format_args!("data[{i}].flags"),
                    "has unknown bits",
                ));
            }
            if data.flags & DATA_ENGINE_THREADS != 0 {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format_args!("data[{i}]"),
                    "has an engine thread pool attached",
                ));
            }
        }
        Ok(())
    }
}

/// Whether two signatures are known and differ.
fn differ(a: u64, b: u64) -> bool {
    a != 0 && b != 0 && a != b
}

/// Refuses the same data twice, and data that share what the library writes in them.
fn check_distinct(data: &[Data], nsensordata: usize) -> Result<(), Error> {
    let same = |a: &Data, b: &Data| {
        a.data == b.data
            || (a.sensordata == b.sensordata && nsensordata > 0)
            || (a.warning_number == b.warning_number && a.nwarning > 0)
    };
    // Few data, the usual case, are compared pair by pair without allocating.
    const FEW: usize = 32;
    let duplicate = if data.len() <= FEW {
        (1..data.len()).find(|&i| data[..i].iter().any(|before| same(before, &data[i])))
    } else {
        let mut order: Vec<usize> = (0..data.len()).collect();
        let keys: [fn(&Data) -> usize; 3] = [
            |data| data.data as usize,
            |data| data.sensordata as usize,
            |data| data.warning_number as usize,
        ];
        keys.into_iter().find_map(|key| {
            order.sort_unstable_by_key(|&i| (key(&data[i]), i));
            let pair = order.windows(2).find(|w| same(&data[w[0]], &data[w[1]]));
            pair.map(|pair| pair[0].max(pair[1]))
        })
    };
    match duplicate {
        None => Ok(()),
        Some(i) => Err(Error::new(
            ErrorKind::DuplicateData,
            format_args!("data[{i}]"),
            "is, or shares its sensor values or warnings with, one before it",
        )),
    }
}

fn empty(argument: &str) -> Error {
    Error::new(ErrorKind::EmptyList, argument, "is empty")
}
