//! The part of CPython's C API that is used here, and guards for what it hands out.
//!
//! All of it is in every CPython from 3.9 on, and with one binary layout: most in its
//! stable ABI, the buffer protocol by never having changed. The symbols are those of the
//! interpreter that loads the library.
//!
//! # Invariant
//!
//! Whoever holds an `&`[`Object`] or an [`Owned`] is on a thread that holds the interpreter's
//! lock (is attached to the interpreter, where there is no such lock). Neither can be sent
//! to another thread, and no value of theirs is touched while `call.rs` has let the lock
//! go. This is what makes the safe functions below safe.

use std::ffi::{CStr, c_char, c_int, c_longlong, c_ulong, c_void};
use std::marker::{PhantomData, PhantomPinned};
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr::{self, NonNull};

/// An object of Python's. A reference `&Object` is one that somebody keeps alive.
#[repr(C)]
pub(crate) struct Object {
    _opaque: [u8; 0],
    // What C keeps there changes, and stays on this thread and in its place.
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

/// `Py_buffer`.
#[repr(C)]
pub(crate) struct Buffer {
    pub(crate) address: *mut c_void,
    object: *mut Object,
    len: isize,
    itemsize: isize,
    readonly: c_int,
    ndim: c_int,
    format: *const c_char,
    shape: *const isize,
    strides: *const isize,
    suboffsets: *const isize,
    internal: *mut c_void,
}

impl Buffer {
    pub(crate) fn ndim(&self) -> usize {
        self.ndim as usize
    }

    /// The kind of its items, in the words of Python's module `struct`.
    pub(crate) fn format(&self) -> Option<&CStr> {
        // SAFETY: a buffer's format is null or a text, for as long as the buffer is there.
        (!self.format.is_null()).then(|| unsafe { CStr::from_ptr(self.format) })
    }

    /// The length of each axis, and its stride in bytes.
    pub(crate) fn axes(&self) -> impl DoubleEndedIterator<Item = (usize, isize)> {
        (0..self.ndim()).map(|axis| {
            // SAFETY: buffers are asked for with strides (`BUFFER_INPUT`), and then have
            // `ndim` lengths and strides.
            unsafe { (*self.shape.add(axis) as usize, *self.strides.add(axis)) }
        })
    }
}

/// Asks for a buffer with its format, shape and strides (`PyBUF_FORMAT | PyBUF_STRIDES`).
pub(crate) const BUFFER_INPUT: c_int = 0x4 | 0x18;
/// The same of one that is contiguous in C order and can be written
/// (`PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE`).
pub(crate) const BUFFER_OUTPUT: c_int = BUFFER_INPUT | 0x20 | 0x1;

/// `PyMethodDef`.
#[repr(C)]
pub(crate) struct PyMethodDef {
    pub(crate) name: *const c_char,
    pub(crate) function: FastFunction,
    pub(crate) flags: c_int,
    pub(crate) doc: *const c_char,
}

// SAFETY: a method is only read, and its texts are constants.
unsafe impl Sync for PyMethodDef {}

/// `METH_FASTCALL`: the arguments come as an array.
pub(crate) const METH_FASTCALL: c_int = 0x80;
/// A function of that kind. The thread may be ended in it (`PyEval_RestoreThread`).
pub(crate) type FastFunction =
    unsafe extern "C-unwind" fn(*mut Object, *const *mut Object, isize) -> *mut Object;

unsafe extern "C" {
    fn Py_IncRef(object: *mut Object);
    fn Py_DecRef(object: *mut Object);
    fn PyErr_Clear();
    fn PyErr_Occurred() -> *mut Object;
    fn PyObject_Type(object: *mut Object) -> *mut Object;
    fn PyObject_IsInstance(object: *mut Object, class: *mut Object) -> c_int;
    fn PyObject_IsTrue(object: *mut Object) -> c_int;
    fn PyObject_GetAttr(object: *mut Object, name: *mut Object) -> *mut Object;
    fn PyObject_CallFunctionObjArgs(callable: *mut Object, ...) -> *mut Object;
    fn PyObject_CallFunction(callable: *mut Object, format: *const c_char, ...) -> *mut Object;
    fn PyObject_GetBuffer(object: *mut Object, buffer: *mut Buffer, flags: c_int) -> c_int;
    fn PyBuffer_Release(buffer: *mut Buffer);
    fn PyLong_FromLongLong(value: c_longlong) -> *mut Object;
    fn PyLong_AsLongLong(object: *mut Object) -> c_longlong;
    fn PySequence_Size(object: *mut Object) -> isize;
    fn PySequence_GetItem(object: *mut Object, index: isize) -> *mut Object;
    fn PyUnicode_InternFromString(text: *const c_char) -> *mut Object;
    fn PyUnicode_DecodeUTF8(
        text: *const c_char,
        length: isize,
        errors: *const c_char,
    ) -> *mut Object;
    fn Py_BuildValue(format: *const c_char, ...) -> *mut Object;
    fn PyList_New(length: isize) -> *mut Object;
    fn PyList_Append(list: *mut Object, item: *mut Object) -> c_int;
    fn PyTuple_Pack(count: isize, ...) -> *mut Object;
    pub(crate) fn PyCapsule_New(
        pointer: *mut c_void,
        name: *const c_char,
        destructor: unsafe extern "C" fn(*mut Object),
    ) -> *mut Object;
    pub(crate) fn PyCapsule_GetPointer(capsule: *mut Object, name: *const c_char) -> *mut c_void;
    pub(crate) fn PyCFunction_NewEx(
        method: *const PyMethodDef,
        this: *mut Object,
        module: *mut Object,
    ) -> *mut Object;
    pub(crate) fn PyEval_SaveThread() -> *mut c_void;
    pub(crate) fn PyThread_get_thread_ident() -> c_ulong;
    fn PyErr_CheckSignals() -> c_int;
}

unsafe extern "C-unwind" {
    /// Up to Python 3.13 this ends the thread, by unwinding it, where the interpreter has
    /// ended meanwhile.
    pub(crate) fn PyEval_RestoreThread(state: *mut c_void);
}

/// What is not as it usually is. No exception is set: the general path finds it again, and
/// says what is wrong with it if anything is.
#[derive(Debug)]
pub(crate) struct Unusual;

pub(crate) type Usual<T> = Result<T, Unusual>;

/// Goes on if something is as usual.
pub(crate) fn usual(yes: bool) -> Usual<()> {
    if yes { Ok(()) } else { Err(Unusual) }
}

/// Whether an exception is set.
pub(crate) fn raised() -> bool {
    // SAFETY: by the module's invariant.
    !unsafe { PyErr_Occurred() }.is_null()
}

/// Lets Python handle the signals that have come, which it does in its main thread alone.
/// Whether no exception is set afterwards: a handler may raise one (`KeyboardInterrupt`).
pub(crate) fn handle_signals() -> bool {
    // SAFETY: by the module's invariant.
    !raised() && unsafe { PyErr_CheckSignals() } == 0
}

/// Forgets the exception of the call that has just failed.
#[cold]
fn failed() -> Unusual {
    // SAFETY: by the module's invariant.
    unsafe { PyErr_Clear() };
    Unusual
}

impl Object {
    /// # Safety
    ///
    /// * If `object` is not null, it is alive for `'a`.
    /// * This thread holds the interpreter's lock for `'a`, but as the module says.
    pub(crate) unsafe fn from_raw<'a>(object: *mut Object) -> Usual<&'a Self> {
        // SAFETY: the caller's promise; an opaque object is read by nobody here.
        unsafe { object.as_ref() }.ok_or(Unusual)
    }

    pub(crate) fn as_ptr(&self) -> *mut Object {
        ptr::from_ref(self).cast_mut()
    }

    /// Another reference to the object.
    pub(crate) fn own(&self) -> Owned {
        // SAFETY: the object is alive.
        unsafe { Py_IncRef(self.as_ptr()) };
        Owned(NonNull::from(self))
    }

    /// Whether both are the same object.
    pub(crate) fn is(&self, other: &Object) -> bool {
        ptr::eq(self, other)
    }

    /// Whether the object is of this very class, and not of one derived from it.
    pub(crate) fn is_exactly(&self, class: &Object) -> bool {
        // SAFETY: the object is alive; the result is ours.
        let found = unsafe { Owned::from_raw(PyObject_Type(self.as_ptr())) };
        found.is_ok_and(|found| found.is(class))
    }

    pub(crate) fn is_instance(&self, class: &Object) -> Usual<bool> {
        // SAFETY: both are alive.
        match unsafe { PyObject_IsInstance(self.as_ptr(), class.as_ptr()) } {
            -1 => Err(failed()),
            answer => Ok(answer != 0),
        }
    }

    pub(crate) fn attribute(&self, name: &Object) -> Usual<Owned> {
        // SAFETY: both are alive, and the name is a string; the result is ours.
        unsafe { Owned::from_raw(PyObject_GetAttr(self.as_ptr(), name.as_ptr())) }
    }

    pub(crate) fn truth(&self) -> Usual<bool> {
        // SAFETY: the object is alive.
        match unsafe { PyObject_IsTrue(self.as_ptr()) } {
            -1 => Err(failed()),
            answer => Ok(answer != 0),
        }
    }

    /// The value of an `int`.
    pub(crate) fn integer(&self) -> Usual<i64> {
        // SAFETY: the object is alive.
        let value = unsafe { PyLong_AsLongLong(self.as_ptr()) };
        if value == -1 && raised() {
            return Err(failed());
        }
        Ok(value)
    }

    /// Calls it with two numbers. Whether it raised no exception, which stays set.
    pub(crate) fn tell(&self, a: u64, b: u64) -> bool {
        // SAFETY: the object is alive, and the format asks for two `unsigned long long`.
        let result = unsafe { PyObject_CallFunction(self.as_ptr(), c"KK".as_ptr(), a, b) };
        if result.is_null() {
            return false;
        }
        // SAFETY: the result is ours.
        unsafe { Py_DecRef(result) };
        true
    }

    /// The length of a sequence.
    pub(crate) fn len(&self) -> Usual<usize> {
        // SAFETY: the object is alive.
        let length = unsafe { PySequence_Size(self.as_ptr()) };
        usize::try_from(length).map_err(|_| failed())
    }

    /// An element of a sequence, which another thread may make shorter meanwhile.
    pub(crate) fn item(&self, index: usize) -> Usual<Owned> {
        // SAFETY: the object is alive, and the index is checked there; the result is ours.
        unsafe { Owned::from_raw(PySequence_GetItem(self.as_ptr(), index as isize)) }
    }

    pub(crate) fn call(&self, argument: &Object) -> Usual<Owned> {
        let end = ptr::null_mut::<Object>();
        // SAFETY: both are alive, and a null ends the arguments; the result is ours.
        unsafe {
            Owned::from_raw(PyObject_CallFunctionObjArgs(
                self.as_ptr(),
                argument.as_ptr(),
                end,
            ))
        }
    }

    /// Calls it with three arguments, and returns what it returns, its exception included.
    pub(crate) fn call_to_return(&self, [a, b, c]: [Owned; 3]) -> *mut Object {
        let end = ptr::null_mut::<Object>();
        // SAFETY: all are alive, and a null ends the arguments.
        unsafe {
            PyObject_CallFunctionObjArgs(self.as_ptr(), a.as_ptr(), b.as_ptr(), c.as_ptr(), end)
        }
    }

    /// Lets `read` look at the object's buffer.
    pub(crate) fn with_buffer<T>(
        &self,
        flags: c_int,
        read: impl FnOnce(&Buffer) -> Usual<T>,
    ) -> Usual<T> {
        struct Released(MaybeUninit<Buffer>);
        impl Drop for Released {
            fn drop(&mut self) {
                // SAFETY: it was filled, in this place, and is released once.
                unsafe { PyBuffer_Release(self.0.as_mut_ptr()) };
            }
        }
        let mut buffer = MaybeUninit::uninit();
        // SAFETY: the object is alive, and there is room for a buffer.
        if unsafe { PyObject_GetBuffer(self.as_ptr(), buffer.as_mut_ptr(), flags) } != 0 {
            return Err(failed());
        }
        let buffer = Released(buffer);
        // SAFETY: it was filled.
        read(unsafe { buffer.0.assume_init_ref() })
    }
}

/// A reference to an object that is given back when this is dropped.
pub(crate) struct Owned(NonNull<Object>);

impl Owned {
    /// Takes the reference that a function of the C API has returned, or forgets the
    /// exception for which it returned none.
    ///
    /// # Safety
    ///
    /// * `object` is null or a reference that nobody else will give back.
    /// * This thread holds the interpreter's lock.
    pub(crate) unsafe fn from_raw(object: *mut Object) -> Usual<Self> {
        NonNull::new(object).map(Self).ok_or_else(failed)
    }

    /// A string for the names of attributes.
    pub(crate) fn name(name: &'static CStr) -> Usual<Self> {
        // SAFETY: the text ends in NUL; the result is ours.
        unsafe { Self::from_raw(PyUnicode_InternFromString(name.as_ptr())) }
    }

    /// A text as far as its NUL.
    pub(crate) fn text(text: &[c_char]) -> Usual<Self> {
        let length = text.iter().position(|&c| c == 0).unwrap_or(text.len()) as isize;
        // SAFETY: so many bytes are there; the result is ours.
        unsafe {
            Self::from_raw(PyUnicode_DecodeUTF8(
                text.as_ptr(),
                length,
                c"replace".as_ptr(),
            ))
        }
    }

    pub(crate) fn integer(value: i64) -> Usual<Self> {
        // SAFETY: the result is ours.
        unsafe { Self::from_raw(PyLong_FromLongLong(value)) }
    }

    /// A tuple of three lengths.
    pub(crate) fn shape([a, b, c]: [usize; 3]) -> Usual<Self> {
        // SAFETY: the format asks for three `Py_ssize_t`; the result is ours.
        unsafe { Self::from_raw(Py_BuildValue(c"(nnn)".as_ptr(), a, b, c)) }
    }

    /// A list of integers.
    pub(crate) fn integers(values: impl Iterator<Item = usize>) -> Usual<Self> {
        // SAFETY: the result is ours.
        let list = unsafe { Self::from_raw(PyList_New(0))? };
        for value in values {
            let value = Self::integer(value as i64)?;
            // SAFETY: both are alive.
            if unsafe { PyList_Append(list.as_ptr(), value.as_ptr()) } != 0 {
                return Err(failed());
            }
        }
        Ok(list)
    }

    /// A tuple of two, to be returned: null, with the exception set, if there is no memory.
    pub(crate) fn pair(a: &Object, b: &Object) -> *mut Object {
        // SAFETY: both are alive, and so many are named.
        unsafe { PyTuple_Pack(2, a.as_ptr(), b.as_ptr()) }
    }

    /// A reference for somebody else to give back.
    pub(crate) fn into_raw(self) -> *mut Object {
        let object = self.as_ptr();
        std::mem::forget(self);
        object
    }
}

impl Deref for Owned {
    type Target = Object;

    fn deref(&self) -> &Object {
        // SAFETY: the reference that is held here keeps the object alive.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the reference is ours, and by the module's invariant.
        unsafe { Py_DecRef(self.as_ptr()) };
    }
}
