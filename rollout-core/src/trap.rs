//! The trap: engine calls that end in a jump end here, as a result.
//!
//! All calls of an engine's functions go through `Trapped::run`, a list of them at a
//! time, into `trap.c` (those that the host wants to make itself through [`guard`]). It sets handlers of its own for errors and warnings ([`Hooks`]),
//! calls, and puts back what was there. A jump crosses the engine's frames only.
//!
//! Around the calls the thread has the floating-point mode of the host that has asked for
//! them, whichever thread that is (`Mode`). Rust code never runs in it: a host that
//! comes from C leaves it at the library's boundary ([`from_host`]).

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ops::Deref;
use std::ptr;

use crate::array::check_pointer;
use crate::engine::{Data, Engine};
use crate::error::{Error, ErrorKind};

/// A function that an engine calls with an error or a warning. What it is given is up
/// to the engine: a text (`const char*`, MuJoCo to 3.9.0) or a struct (mjLogMessage).
pub type Handler = Option<unsafe extern "C" fn(message: *const c_void)>;

/// Flag of the hooks: a thread that saw an error must not use any data any more, since
/// the engine has left something behind in its thread-local memory (MuJoCo 3.9.0 to
/// 3.13.0). A pool's thread is then replaced by a new one; for a thread of the host's a
/// new one does the work, in this and in each later request, which takes some tens of
/// microseconds.
pub const HOOKS_RETIRE_THREAD: u32 = 1 << 0;

/// The places where an engine looks for the handlers of its errors and warnings, so
/// that an error ends a rollout and not the process, and a warning is told in the
/// outcome and not in a log file. For MuJoCo from rollout_mujoco_engine(). All zero for
/// an engine that never fails or that reports errors by `take_error`; MuJoCo without
/// hooks ends the process at an error, and prints its warnings, as it does without this
/// library: no outcome tells of it then.
///
/// There are two kinds of handlers, those that take a text (MuJoCo to 3.9.0) and those
/// that take a log message (from 3.10.0), and for each kind the handlers of a thread,
/// which the engine asks first, and those of the process. An engine has one kind, and
/// all functions of a group or none. With the thread's handlers those of the process
/// are not touched. An error handler leaves by a jump (longjmp) over the engine's
/// frames, so these must be such that nothing is to be done when they are left, as C's
/// are; a warning handler returns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Hooks {
    /// Sets the calling thread's log handler and returns the one before; NULL stands
    /// for none (_mjPRIVATE_setTlsLogHandler).
    pub exchange_thread_log: Option<unsafe extern "C" fn(handler: Handler) -> Handler>,
    /// The process's log handler, never NULL (_mjPRIVATE_getGlobalLogHandler). It gets
    /// the messages that are neither errors nor warnings. Given together with
    /// `exchange_thread_log`.
    pub get_process_log: Option<unsafe extern "C" fn() -> Handler>,
    /// Sets the process's log handler and returns the one before, never NULL
    /// (mju_setLogHandler).
    pub exchange_process_log: Option<unsafe extern "C" fn(handler: Handler) -> Handler>,
    /// The calling thread's error handler (_mjPRIVATE__get_tls_error_fn). Given
    /// together with the next three.
    pub get_thread_error: Option<unsafe extern "C" fn() -> Handler>,
    /// Sets it (_mjPRIVATE__set_tls_error_fn).
    pub set_thread_error: Option<unsafe extern "C" fn(handler: Handler)>,
    /// The calling thread's warning handler (_mjPRIVATE__get_tls_warning_fn).
    pub get_thread_warning: Option<unsafe extern "C" fn() -> Handler>,
    /// Sets it (_mjPRIVATE__set_tls_warning_fn).
    pub set_thread_warning: Option<unsafe extern "C" fn(handler: Handler)>,
    /// The variable with the process's error handler (&mju_user_error). Given together
    /// with `process_warning`.
    pub process_error: *mut Handler,
    /// The variable with the process's warning handler (&mju_user_warning).
    pub process_warning: *mut Handler,
    /// Where in a log message its level is, an int, in bytes. This and the next four are
    /// 0 without log handlers.
    pub log_level: u32,
    /// Where its text begins, which ends in NUL.
    pub log_text: u32,
    /// Where the pointer to the name of the function is that it comes from, or NULL.
    pub log_function: u32,
    /// The level of an error (mjLOG_ERROR).
    pub log_error: i32,
    /// The level of a warning (mjLOG_WARNING).
    pub log_warning: i32,
    /// ROLLOUT_HOOKS_RETIRE_THREAD, or 0.
    pub flags: u32,
}

// SAFETY: functions, and addresses of variables of the engine, which only the trap
// touches, one thread at a time.
unsafe impl Send for Hooks {}
// SAFETY: as above.
unsafe impl Sync for Hooks {}

impl Hooks {
    /// No hooks at all.
    pub const fn none() -> Self {
        Self {
            exchange_thread_log: None,
            get_process_log: None,
            exchange_process_log: None,
            get_thread_error: None,
            set_thread_error: None,
            get_thread_warning: None,
            set_thread_warning: None,
            process_error: ptr::null_mut(),
            process_warning: ptr::null_mut(),
            log_level: 0,
            log_text: 0,
            log_function: 0,
            log_error: 0,
            log_warning: 0,
            flags: 0,
        }
    }

    /// Checks that each group is whole, and that there is one kind of handlers.
    fn check(&self, reports: bool) -> Result<(), Error> {
        let bad = |field: &str, reason: &str| {
            Error::new(
                ErrorKind::BadEngine,
                format_args!("engine.hooks.{field}"),
                reason,
            )
        };
        let groups: [&[(&str, bool)]; 3] = [
            &[
                ("exchange_thread_log", self.exchange_thread_log.is_some()),
                ("get_process_log", self.get_process_log.is_some()),
            ],
            &[
                ("get_thread_error", self.get_thread_error.is_some()),
                ("set_thread_error", self.set_thread_error.is_some()),
                ("get_thread_warning", self.get_thread_warning.is_some()),
                ("set_thread_warning", self.set_thread_warning.is_some()),
            ],
            &[
                ("process_error", !self.process_error.is_null()),
                ("process_warning", !self.process_warning.is_null()),
            ],
        ];
        for group in groups {
            let given = group.iter().find(|(_, given)| *given);
            let missing = group.iter().find(|(_, given)| !given);
            if let (Some((given, _)), Some((missing, _))) = (given, missing) {
                return Err(bad(missing, &format!("is null, but {given} is given")));
            }
        }
        let texts = self.get_thread_error.is_some() || !self.process_error.is_null();
        let logs = [
            ("exchange_thread_log", self.exchange_thread_log.is_some()),
            ("exchange_process_log", self.exchange_process_log.is_some()),
        ];
        let log = logs.iter().find(|(_, given)| *given);
        if let (true, Some((field, _))) = (texts, log) {
            let reason = "is given beside handlers of texts, but an engine has one kind";
            return Err(bad(field, reason));
        }
        for (field, variable) in [
            ("process_error", self.process_error),
            ("process_warning", self.process_warning),
        ] {
            check_pointer(variable, 0, format_args!("engine.hooks.{field}"))?;
        }

        let numbers = [
            ("log_level", self.log_level as i32),
            ("log_text", self.log_text as i32),
            ("log_function", self.log_function as i32),
            ("log_error", self.log_error),
            ("log_warning", self.log_warning),
        ];
        match (log, numbers.iter().find(|(_, number)| *number != 0)) {
            (None, Some((field, _))) => {
                return Err(bad(field, "is given without a log handler"));
            }
            (Some(_), _) => self.check_message(bad)?,
            (None, None) => {}
        }
        if self.flags & !HOOKS_RETIRE_THREAD != 0 {
            return Err(bad("flags", "has unknown bits"));
        }
        if self.flags != 0 && !texts && log.is_none() && !reports {
            return Err(bad("flags", "is given, but no error would be seen"));
        }
        Ok(())
    }

    /// Checks what is said of a log message.
    fn check_message(&self, bad: impl Fn(&str, &str) -> Error) -> Result<(), Error> {
        // No message is larger; a larger offset is garbage.
        const LARGEST: u32 = 1 << 16;
        let fields = [
            ("log_level", self.log_level, mem::align_of::<c_int>()),
            ("log_text", self.log_text, 1),
            (
                "log_function",
                self.log_function,
                mem::align_of::<*const c_char>(),
            ),
        ];
        for (i, (field, offset, alignment)) in fields.into_iter().enumerate() {
            if offset > LARGEST || !(offset as usize).is_multiple_of(alignment) {
                return Err(bad(field, &format!("is {offset}, where nothing can be")));
            }
            if fields[..i].iter().any(|(_, before, _)| *before == offset) {
                return Err(bad(field, &format!("is {offset}, as another field's")));
            }
        }
        if self.log_error == self.log_warning {
            return Err(bad("log_warning", "is that of an error too"));
        }
        Ok(())
    }
}

/// Why this thread's last list of calls has failed, in the engine's words.
pub(crate) fn reason() -> String {
    // SAFETY: never null, and ends in NUL; only this thread changes it.
    let text = unsafe { CStr::from_ptr(rollout_trap_reason()) };
    match text.to_string_lossy() {
        Cow::Borrowed("") => "the engine reported an error without a reason".to_owned(),
        text => text.into_owned(),
    }
}

/// What `trap.c` can do, by the numbers that it knows it by.
#[repr(u32)]
#[derive(Clone, Copy, Debug)]
enum Operation {
    Forget = 0,
    Size = 1,
    Reset = 2,
    Set = 3,
    Get = 4,
    Step = 5,
    Healthy = 6,
    Text = 7,
}

/// One call of an engine's function.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    operation: u32,
    spec: u32,
    values: *mut c_void,
}

impl Call {
    const fn new(operation: Operation, spec: u32, values: *mut c_void) -> Self {
        Self {
            operation: operation as u32,
            spec,
            values,
        }
    }

    /// Forgets an error that calls of the host have left behind.
    pub(crate) const FORGET: Self = Self::new(Operation::Forget, 0, ptr::null_mut());
    /// `reset`
    pub(crate) const RESET: Self = Self::new(Operation::Reset, 0, ptr::null_mut());
    /// `step`
    pub(crate) const STEP: Self = Self::new(Operation::Step, 0, ptr::null_mut());

    /// `state_size`
    pub(crate) fn size(spec: u32, size: *mut c_int) -> Self {
        Self::new(Operation::Size, spec, size.cast())
    }

    /// `set_state`
    pub(crate) fn set(spec: u32, state: *const f64) -> Self {
        Self::new(Operation::Set, spec, state.cast_mut().cast())
    }

    /// `get_state`
    pub(crate) fn get(spec: u32, state: *mut f64) -> Self {
        Self::new(Operation::Get, spec, state.cast())
    }

    /// Ends the list with [`Ran::Warned`] if one of the data's warnings was counted.
    pub(crate) fn healthy(data: &Data) -> Self {
        Self::new(
            Operation::Healthy,
            data.nwarning,
            data.warning_number.cast(),
        )
    }

    /// `warning_text`, which the table must have
    pub(crate) fn text(kind: u32, text: &mut WarningText) -> Self {
        Self::new(Operation::Text, kind, ptr::from_mut(text).cast())
    }
}

/// Asks for the text of a warning, and holds it until the next call on this thread.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct WarningText {
    info: usize,
    text: *const c_char,
}

impl WarningText {
    /// For a warning that the engine has kept this number with.
    pub(crate) fn of(info: i32) -> Self {
        Self {
            info: info as usize,
            text: ptr::null(),
        }
    }

    /// The text, if it was asked for and there is one.
    ///
    /// # Safety
    ///
    /// * Since the engine gave it nobody has called the engine on this thread.
    pub(crate) unsafe fn get(&self) -> Option<Cow<'_, str>> {
        // SAFETY: the engine gives null, or a text that lives until the next call on this
        // thread (`Engine::warning_text`).
        (!self.text.is_null()).then(|| unsafe { CStr::from_ptr(self.text) }.to_string_lossy())
    }
}

/// A list that grows to the few calls that start a rollout.
pub(crate) struct CallList {
    calls: [Call; 6],
    count: usize,
}

impl CallList {
    /// No calls yet.
    pub(crate) fn new() -> Self {
        Self {
            calls: [Call::FORGET; 6],
            count: 0,
        }
    }

    /// Adds a call.
    pub(crate) fn push(&mut self, call: Call) {
        self.calls[self.count] = call;
        self.count += 1;
    }

    /// The calls so far.
    pub(crate) fn as_slice(&self) -> &[Call] {
        &self.calls[..self.count]
    }
}

/// What `trap.c` returns.
const DONE: c_int = 0;
const WARNED: c_int = 2;

/// What a list of calls came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ran {
    /// All were made.
    Done,
    /// One failed ([`reason`] says why), and those after it were not made.
    Failed,
    /// A warning was found, and the calls after that look were not made.
    Warned,
}

/// How a thread computes with floating-point numbers, as `trap.c` writes it down: the
/// direction of rounding, subnormal numbers, traps, the precision of the x87.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mode(u64);

impl Mode {
    /// That of the host on this thread: in which it has called the library, or, if it has
    /// not come by [`from_host`], the thread's own.
    fn of_host() -> Self {
        // SAFETY: a look at registers and memory of this thread.
        Self(unsafe { rollout_trap_mode() })
    }
}

/// An engine table that has been checked, and the mode that its calls are made in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trapped<'a> {
    engine: &'a Engine,
    mode: Mode,
}

impl Deref for Trapped<'_> {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        self.engine
    }
}

unsafe extern "C" {
    fn rollout_trap_run(
        engine: *const Engine,
        mode: u64,
        model: *const c_void,
        data: *mut c_void,
        calls: *const Call,
        ncall: usize,
    ) -> c_int;
    fn rollout_trap_reason() -> *const c_char;
    fn rollout_trap_call(
        hooks: *const Hooks,
        mode: u64,
        call: unsafe extern "C" fn(user: *mut c_void),
        user: *mut c_void,
    ) -> c_int;
    #[cfg(not(loom))]
    fn rollout_trap_spent() -> c_int;
    fn rollout_trap_outside() -> *mut c_void;
    fn rollout_trap_return(frame: *mut c_void);
    fn rollout_trap_enter(hooks: *const Hooks) -> c_int;
    fn rollout_trap_leave();
    fn rollout_trap_from_host() -> u64;
    fn rollout_trap_to_host(outer: u64);
    fn rollout_trap_mode() -> u64;
    fn rollout_trap_rusts_mode();
}

impl<'a> Trapped<'a> {
    /// The table, if it is complete and does not contradict itself. Its calls are made in
    /// the mode that the calling thread's host has now.
    pub(crate) fn new(engine: &'a Engine) -> Result<Self, Error> {
        engine.check()?;
        engine.hooks.check(engine.take_error.is_some())?;
        Ok(Self {
            engine,
            mode: Mode::of_host(),
        })
    }

    /// Makes calls, up to the first that fails.
    ///
    /// # Safety
    ///
    /// * Model and data are the engine's and fit each other, and only this thread uses
    ///   the data, which may be null for a list of `size`.
    /// * What each call reads or writes is of the size of its spec.
    /// * The functions that the calls need are in the table (of `text` only that can be
    ///   missing).
    /// * While the engine has handlers of the process only, this thread has [`entered`].
    ///
    /// [`entered`]: Trapped::enter
    #[inline]
    pub(crate) unsafe fn run(
        &self,
        model: *const c_void,
        data: *mut c_void,
        calls: &[Call],
    ) -> Ran {
        // SAFETY: the table was checked; the list is there; the rest is the caller's
        // promise.
        let ran = unsafe {
            let (first, count) = (calls.as_ptr(), calls.len());
            rollout_trap_run(self.engine, self.mode.0, model, data, first, count)
        };
        #[cfg(loom)]
        if ran != DONE && ran != WARNED && self.hooks.flags & HOOKS_RETIRE_THREAD != 0 {
            SPENT.with(|spent| spent.set(true));
        }
        match ran {
            DONE => Ran::Done,
            WARNED => Ran::Warned,
            _ => Ran::Failed,
        }
    }

    /// Whether the engine may use data on this thread.
    #[inline]
    pub(crate) fn is_welcome(&self) -> bool {
        self.hooks.flags & HOOKS_RETIRE_THREAD == 0 || !is_spent()
    }

    /// Sets handlers of the process where the engine has none of threads, until the
    /// result is dropped. And keeps errors of the host's own calls meanwhile from
    /// ending in a callback of the engine that has called the library.
    pub(crate) fn enter(&self) -> Entered {
        // SAFETY: the hooks were checked.
        let process = unsafe { rollout_trap_enter(&self.hooks) } != 0;
        Entered {
            process,
            _outside: outside(),
        }
    }
}

/// See [`Trapped::enter`].
#[derive(Debug)]
pub(crate) struct Entered {
    process: bool,
    _outside: Outside,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.process {
            // SAFETY: entered once, left once.
            unsafe { rollout_trap_leave() };
        }
    }
}

/// Whether this thread has seen an error of an engine with [`HOOKS_RETIRE_THREAD`] and
/// should end; or is in a callback of an engine, which must go on afterwards, so that
/// such an engine had better be called on another thread.
pub fn is_spent() -> bool {
    #[cfg(loom)]
    return SPENT.with(std::cell::Cell::get);
    // SAFETY: a look at memory of this thread.
    #[cfg(not(loom))]
    unsafe {
        rollout_trap_spent() != 0
    }
}

#[cfg(loom)]
loom::thread_local! {
    /// What loom runs as threads is one thread to C.
    static SPENT: std::cell::Cell<bool> = std::cell::Cell::new(false);
}

/// Says that the caller has frames of Rust, until the result is dropped. If this thread
/// is in a callback of an engine that the library has called, an error that the host's
/// own calls raise meanwhile is not the library's: it ends where it would without it.
pub fn outside() -> Outside {
    // SAFETY: a look at memory of this thread.
    Outside(unsafe { rollout_trap_outside() })
}

/// See [`outside`].
#[derive(Debug)]
pub struct Outside(*mut c_void);

impl Drop for Outside {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: from `outside` on this thread, as the pointer is not Send; the
            // frame is one of a function further down the stack.
            unsafe { rollout_trap_return(self.0) };
        }
    }
}

/// Says that a host has called that is not written in Rust, which may compute in any
/// floating-point mode: until the result is dropped the thread has Rust's. Engine calls
/// that are asked for meanwhile are made in the host's.
///
/// The flags of exceptions that have come up are left alone.
pub fn from_host() -> FromHost {
    FromHost {
        // SAFETY: changes registers to what Rust code may expect anyway.
        outer: unsafe { rollout_trap_from_host() },
        _of_this_thread: PhantomData,
    }
}

/// See [`from_host`].
#[derive(Debug)]
pub struct FromHost {
    /// What a call of the host's further down the stack has said.
    outer: u64,
    /// Not Send.
    _of_this_thread: PhantomData<*mut ()>,
}

impl Drop for FromHost {
    fn drop(&mut self) {
        // SAFETY: the host has said where it came from, on this thread, and goes back.
        unsafe { rollout_trap_to_host(self.outer) };
    }
}

/// Sets the floating-point mode that Rust needs, after a function of the host's that is
/// not written in Rust, has been called in this mode, and may have left another one.
pub fn after_host() {
    // SAFETY: as for `from_host`.
    unsafe { rollout_trap_rusts_mode() };
}

/// Why [`guard`] did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardError {
    /// The engine table was refused; nothing was called.
    Refused(Error),
    /// The engine failed, for this reason in its own words.
    Failed(String),
}

impl fmt::Display for GuardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GuardError::Refused(error) => error.fmt(f),
            GuardError::Failed(reason) => reason.fmt(f),
        }
    }
}

impl std::error::Error for GuardError {}

/// Runs `call(user)` as the library runs the engine's own functions: an error ends it,
/// and its text is returned. For calls of an engine that are made outside of requests or
/// in a hook. Warnings reach no handler. What was being used when an error came must be
/// reset before it is used again.
///
/// # Errors
///
/// [`GuardError`].
///
/// # Safety
///
/// * The hooks of `engine` are as documented at [`Hooks`].
/// * `call(user)` can be called, and there is nothing that must be undone when it, and
///   what it calls, is left in the middle: no destructors, no Rust but functions like
///   this one.
pub unsafe fn guard(
    engine: &Engine,
    call: unsafe extern "C" fn(user: *mut c_void),
    user: *mut c_void,
) -> Result<(), GuardError> {
    let engine = Trapped::new(engine).map_err(GuardError::Refused)?;
    let _entered = engine.enter();
    // SAFETY: the hooks were checked; the rest is the caller's promise.
    match unsafe { rollout_trap_call(&engine.hooks, engine.mode.0, call, user) } {
        0 => Ok(()),
        _ => Err(GuardError::Failed(reason())),
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;
    use crate::engine::WARNING_STRIDE;

    unsafe extern "C" {
        fn rollout_trap_fact(i: usize) -> usize;
    }

    #[test]
    fn c_and_rust_state_the_same_facts() {
        let operations = [
            Operation::Forget,
            Operation::Size,
            Operation::Reset,
            Operation::Set,
            Operation::Get,
            Operation::Step,
            Operation::Healthy,
            Operation::Text,
        ];
        let mut facts: Vec<usize> = operations.map(|operation| operation as usize).into();
        // (What is neither done nor warned has failed.)
        facts.extend([DONE as usize, 1, WARNED as usize, WARNING_STRIDE]);
        facts.extend([
            size_of::<Call>(),
            offset_of!(Call, spec),
            offset_of!(Call, values),
            size_of::<WarningText>(),
            offset_of!(WarningText, text),
        ]);
        // What the C has read in the header that it was compiled with.
        facts.extend([
            size_of::<Engine>(),
            offset_of!(Engine, take_error),
            offset_of!(Engine, warning_text),
            offset_of!(Engine, hooks),
            size_of::<Hooks>(),
            offset_of!(Hooks, process_error),
            offset_of!(Hooks, log_level),
            offset_of!(Hooks, flags),
            HOOKS_RETIRE_THREAD as usize,
        ]);
        let in_c: Vec<usize> = (0..)
            // SAFETY: a function of no arguments but this number.
            .map(|i| unsafe { rollout_trap_fact(i) })
            .take_while(|fact| *fact != usize::MAX)
            .collect();
        assert_eq!(facts, in_c);
    }
}
