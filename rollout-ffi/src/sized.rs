//! Structs of the host that begin with their own size.
//!
//! The host sets `size` to the `sizeof` that it was compiled with, so the struct
//! can grow at its end. An older host's smaller struct will be read as if the
//! new fields were zero, once there is an older layout. A newer host's larger
//! struct is accepted while the part that this library does not know is zero.

use std::mem;
use std::slice;

use rollout_core::array::check_pointer;
use rollout_core::{Error, ErrorKind};

/// A struct that begins with its size in bytes.
///
/// # Safety
///
/// * `repr(C)`, its first field is a `usize` that holds the size, and every bit
///   pattern is valid for every field.
pub(crate) unsafe trait Growable: Copy {}

/// Checks a pointer to such a struct, without reading more than its size field.
///
/// # Safety
///
/// * If `pointer` is neither null nor misaligned, as many bytes can be read there
///   as its first field says, and at least that field.
pub(crate) unsafe fn check<T: Growable>(pointer: *const T, name: &str) -> Result<usize, Error> {
    // No struct of any version comes near this; a larger size is garbage.
    const LARGEST: usize = 4096;
    check_pointer(pointer, 1, format_args!("{name}"))?;
    // SAFETY: not null and aligned; the first field can be read.
    let size = unsafe { *pointer.cast::<usize>() };
    let known = mem::size_of::<T>();
    if size < known || size > LARGEST {
        return Err(Error::new(
            ErrorKind::WrongSize,
            format_args!("{name}.size"),
            format_args!("is {size}, but must be the sizeof of the struct, here {known}"),
        ));
    }
    Ok(size)
}

/// Such a struct, in its place.
///
/// # Safety
///
/// * As for [`check`]; and nobody writes to it for the lifetime `'a`.
pub(crate) unsafe fn borrow<'a, T: Growable>(
    pointer: *const T,
    name: &str,
) -> Result<&'a T, Error> {
    // SAFETY: the caller's promise.
    let size = unsafe { check(pointer, name)? };
    let known = mem::size_of::<T>();
    // SAFETY: `size` bytes can be read there, and `size` is at least `known`.
    let unknown = unsafe { slice::from_raw_parts(pointer.cast::<u8>().add(known), size - known) };
    if unknown.iter().any(|&byte| byte != 0) {
        return Err(Error::new(
            ErrorKind::WrongSize,
            format_args!("{name}.size"),
            format_args!("is {size}, and fields are set that this library does not know"),
        ));
    }
    // SAFETY: not null, aligned, and large enough; every bit pattern is valid, and
    // nobody writes.
    Ok(unsafe { &*pointer })
}
