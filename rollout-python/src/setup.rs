//! What every call needs and no call changes, and the one symbol that Python looks up.

use std::ffi::{CStr, c_char, c_void};
use std::panic;

use rollout_core::Engine;

use crate::call;
use crate::python::{
    METH_FASTCALL, Object, Owned, PyCFunction_NewEx, PyCapsule_GetPointer, PyCapsule_New,
    PyMethodDef, Usual,
};

/// The general path's constants, and the names of attributes as Python's own strings.
pub(crate) struct Setup {
    pub(crate) engine: *const Engine,
    /// From the address of a data to its first warning counter.
    pub(crate) warning_offset: usize,
    pub(crate) nwarning: u32,
    /// The spec of all inputs.
    pub(crate) user: u32,
    /// The bits of `model.opt.enableflags` with which the data have hidden state.
    pub(crate) hiding_flags: i64,

    pub(crate) none: Owned,
    pub(crate) int: Owned,
    pub(crate) list: Owned,
    pub(crate) ndarray: Owned,
    pub(crate) mjmodel: Owned,
    pub(crate) mjdata: Owned,
    /// `numpy.empty`.
    pub(crate) empty: Owned,
    /// Raises the exception for a status, a text and a list of rollouts.
    pub(crate) raise: Owned,

    pub(crate) address: Owned,
    pub(crate) base: Owned,
    pub(crate) enableflags: Owned,
    pub(crate) flags: Owned,
    pub(crate) model: Owned,
    pub(crate) nplugin: Owned,
    pub(crate) opt: Owned,
    pub(crate) owndata: Owned,
    pub(crate) sensordata: Owned,
    pub(crate) threadpool: Owned,
}

const NAME: &CStr = c"rollout.setup";

static METHOD: PyMethodDef = PyMethodDef {
    name: c"fast_rollout".as_ptr(),
    function: call::fast_rollout,
    flags: METH_FASTCALL,
    doc: std::ptr::null::<c_char>(),
};

/// Makes the function of the fast path, as `_fast.py` describes it. `constants` is the
/// tuple that is taken apart below. NULL, without an exception, if it is another one.
///
/// # Safety
///
/// The calling thread holds the interpreter's lock, and `constants` is NULL or a living
/// object. The addresses among the constants are those of MuJoCo's table and struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rollout_python_function(constants: *mut c_void) -> *mut c_void {
    panic::catch_unwind(|| {
        // SAFETY: the caller's promise.
        let setup = Setup::new(unsafe { Object::from_raw(constants.cast())? })?;
        function(setup)
    })
    .ok()
    .and_then(Result::ok)
    .map_or(std::ptr::null_mut(), |function| function.into_raw().cast())
}

impl Setup {
    fn new(constants: &Object) -> Usual<Self> {
        let integer = |index| constants.item(index)?.integer();
        Ok(Self {
            engine: integer(0)? as *const Engine,
            warning_offset: integer(1)? as usize,
            nwarning: integer(2)? as u32,
            user: integer(3)? as u32,
            hiding_flags: integer(4)?,
            none: constants.item(5)?,
            int: constants.item(6)?,
            list: constants.item(7)?,
            ndarray: constants.item(8)?,
            mjmodel: constants.item(9)?,
            mjdata: constants.item(10)?,
            empty: constants.item(11)?,
            raise: constants.item(12)?,
            address: Owned::name(c"_address")?,
            base: Owned::name(c"base")?,
            enableflags: Owned::name(c"enableflags")?,
            flags: Owned::name(c"flags")?,
            model: Owned::name(c"model")?,
            nplugin: Owned::name(c"nplugin")?,
            opt: Owned::name(c"opt")?,
            owndata: Owned::name(c"owndata")?,
            sensordata: Owned::name(c"sensordata")?,
            threadpool: Owned::name(c"threadpool")?,
        })
    }

    /// The setup of a function that [`function`] has made.
    ///
    /// # Safety
    ///
    /// * `this` is the first argument of such a function, for `'a`.
    pub(crate) unsafe fn of<'a>(this: *mut Object) -> &'a Self {
        // SAFETY: it is the capsule that `function` has made, which holds a setup for as
        // long as it lives.
        unsafe { &*PyCapsule_GetPointer(this, NAME.as_ptr()).cast() }
    }
}

/// The function, which keeps its setup in a capsule.
fn function(setup: Setup) -> Usual<Owned> {
    unsafe extern "C" fn drop_setup(capsule: *mut Object) {
        // SAFETY: the capsule was made below, and is destroyed once.
        drop(unsafe {
            Box::from_raw(PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast::<Setup>())
        });
    }
    let setup = Box::into_raw(Box::new(setup)).cast::<c_void>();
    // SAFETY: the name is a constant and the pointer is not null; the results are ours, and
    // the function has a reference of its own to the capsule.
    unsafe {
        let capsule = Owned::from_raw(PyCapsule_New(setup, NAME.as_ptr(), drop_setup))?;
        Owned::from_raw(PyCFunction_NewEx(
            &raw const METHOD,
            capsule.as_ptr(),
            std::ptr::null_mut(),
        ))
    }
}
