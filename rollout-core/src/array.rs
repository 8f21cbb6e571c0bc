//! The caller's arrays: inputs with strides, and outputs.
//!
//! All numbers are `f64` (MuJoCo's `mjtNum`), counted in numbers, never in bytes.
//! Every array carries its own count, and [`Request::new`] compares it with what the
//! request needs: exactly as many numbers as will be read or written (any number
//! where there are no rollouts or no steps, and so no reads). A buffer of the wrong
//! size, or a stride that was forgotten, is therefore refused instead of giving
//! plausible nonsense.
//!
//! [`Request::new`]: crate::Request::new

use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ptr;

use crate::error::{Error, ErrorKind};

/// An array that a request reads: one row per rollout, or per rollout and step.
///
/// The row of rollout `r` at step `t` begins at number
/// `r * rollout_stride + t * step_stride`. A stride of zero lets one row serve
/// all rollouts or all steps without a copy.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    values: *const f64,
    count: usize,
    rollout_stride: usize,
    step_stride: usize,
    borrow: PhantomData<&'a [f64]>,
}

// SAFETY: an Input stands for a shared borrow of f64, which is Send and Sync.
unsafe impl Send for Input<'_> {}
// SAFETY: as above.
unsafe impl Sync for Input<'_> {}

impl<'a> Input<'a> {
    /// A contiguous (nbatch x `row`) array: one row for each rollout.
    pub fn rows(values: &'a [f64], row: usize) -> Self {
        Self::strided(values, row, 0)
    }

    /// One row for all rollouts (and all steps).
    pub fn shared(values: &'a [f64]) -> Self {
        Self::strided(values, 0, 0)
    }

    /// A contiguous (nbatch x `nstep` x `row`) array: one row for each rollout and step.
    pub fn steps(values: &'a [f64], nstep: usize, row: usize) -> Self {
        Self::strided(values, nstep.saturating_mul(row), row)
    }

    /// A contiguous (nstep x `row`) array: one sequence for all rollouts.
    pub fn shared_steps(values: &'a [f64], row: usize) -> Self {
        Self::strided(values, 0, row)
    }

    /// Rows at given distances, in numbers.
    pub fn strided(values: &'a [f64], rollout_stride: usize, step_stride: usize) -> Self {
        // SAFETY: a slice is valid for its length and lifetime.
        unsafe { Self::from_raw(values.as_ptr(), values.len(), rollout_stride, step_stride) }
    }

    /// Rows at given distances, in numbers, from a pointer that may be null or
    /// misaligned: [`Request::new`](crate::Request::new) looks.
    ///
    /// # Safety
    ///
    /// * If `values` is neither null nor misaligned, `count` numbers can be read
    ///   there for the lifetime `'a`, and nobody writes to them.
    pub unsafe fn from_raw(
        values: *const f64,
        count: usize,
        rollout_stride: usize,
        step_stride: usize,
    ) -> Self {
        Self {
            values,
            count,
            rollout_stride,
            step_stride,
            borrow: PhantomData,
        }
    }

    /// Checks the array against (nbatch x nstep x row); an input that has one
    /// row per rollout has no `nstep`.
    pub(crate) fn check(
        &self,
        name: &str,
        nbatch: usize,
        nstep: Option<usize>,
        row: usize,
    ) -> Result<Rows, Error> {
        if nstep.is_none() && self.step_stride != 0 {
            return Err(Error::new(
                ErrorKind::WrongSize,
                format_args!("{name}.step_stride"),
                format_args!("is {}, but {name} has no steps", self.step_stride),
            ));
        }
        let nstep = nstep.unwrap_or(1);
        if nbatch == 0 || nstep == 0 {
            return Ok(Rows::UNREAD);
        }
        let needed = self.extent(name, nbatch, nstep, row)?;
        check_pointer(self.values, needed, format_args!("{name}.values"))?;
        if self.count != needed {
            return Err(Error::new(
                ErrorKind::WrongSize,
                format_args!("{name}.count"),
                format_args!(
                    "is {}, but {nbatch} rollouts x {nstep} steps of rows of {row} numbers, at \
                     strides of {} and {}, read {needed}",
                    self.count, self.rollout_stride, self.step_stride
                ),
            ));
        }
        if row == 0 {
            return Ok(Rows::UNREAD);
        }
        Ok(Rows {
            values: self.values,
            rollout_stride: self.rollout_stride,
            step_stride: self.step_stride,
        })
    }

    /// Numbers from the first to the last that is read. There is at least one
    /// rollout and one step.
    fn extent(&self, name: &str, nbatch: usize, nstep: usize, row: usize) -> Result<usize, Error> {
        if row == 0 {
            return Ok(0);
        }
        let last = |n: usize, stride: usize, field: &str| {
            (n - 1)
                .checked_mul(stride)
                .and_then(addressable::<f64>)
                .ok_or_else(|| overflow(format_args!("{name}.{field}")))
        };
        let last_rollout = last(nbatch, self.rollout_stride, "rollout_stride")?;
        let last_step = last(nstep, self.step_stride, "step_stride")?;
        last_rollout
            .checked_add(last_step)
            .and_then(|first| first.checked_add(row))
            .and_then(addressable::<f64>)
            .ok_or_else(|| {
                let larger = if last_rollout >= last_step {
                    "rollout_stride"
                } else {
                    "step_stride"
                };
                overflow(format_args!("{name}.{larger}"))
            })
    }

    pub(crate) fn span(&self, name: &'static str) -> Span {
        Span::new(name, self.values, self.count)
    }
}

/// A checked [`Input`]: what the kernel reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    values: *const f64,
    rollout_stride: usize,
    step_stride: usize,
}

impl Rows {
    /// The rows of an array of which nothing is read, whatever its pointer and
    /// strides are.
    const UNREAD: Self = Self {
        values: ptr::null(),
        rollout_stride: 0,
        step_stride: 0,
    };

    /// The first number of the row of one rollout and step.
    ///
    /// # Safety
    ///
    /// * `rollout` and `step` are below the sizes that the array was checked for.
    pub(crate) unsafe fn row(&self, rollout: usize, step: usize) -> *const f64 {
        let offset = rollout * self.rollout_stride + step * self.step_stride;
        // SAFETY: `Input::check` found the largest offset, plus a row, to be
        // within the array; this one is not larger, by the caller's promise. Where
        // nothing is read the offset is 0, which even a null pointer bears.
        unsafe { self.values.add(offset) }
    }
}

/// What the host calls the pointer and the count of an output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputNames {
    pub(crate) values: &'static str,
    pub(crate) count: &'static str,
}

/// A contiguous array that a request writes: numbers, outcomes or texts.
#[derive(Debug)]
pub struct Output<'a, T = f64> {
    values: *mut T,
    count: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: an Output stands for an exclusive borrow of T.
unsafe impl<T: Send> Send for Output<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Output<'_, T> {}

impl<'a, T> Output<'a, T> {
    /// The array to write to.
    pub fn new(values: &'a mut [T]) -> Self {
        // SAFETY: an exclusive slice is valid for its length and lifetime.
        unsafe { Self::from_raw(values.as_mut_ptr(), values.len()) }
    }

    /// The array to write to, from a pointer that may be null or misaligned:
    /// [`Request::new`](crate::Request::new) looks. The memory need not be
    /// initialised.
    ///
    /// # Safety
    ///
    /// * If `values` is neither null nor misaligned, `count` values can be
    ///   written and read there for the lifetime `'a`, and nobody else touches
    ///   them.
    pub unsafe fn from_raw(values: *mut T, count: usize) -> Self {
        Self {
            values,
            count,
            borrow: PhantomData,
        }
    }

    /// Checks the array against its dimensions and gives its address.
    pub(crate) fn check<const N: usize>(
        &self,
        names: OutputNames,
        dimensions: [usize; N],
    ) -> Result<*mut T, Error> {
        let needed = dimensions
            .iter()
            .try_fold(1_usize, |product, &n| product.checked_mul(n))
            .and_then(addressable::<T>)
            .ok_or_else(|| overflow(format_args!("{}", names.count)))?;
        check_pointer(self.values, needed, format_args!("{}", names.values))?;
        if self.count != needed {
            return Err(Error::new(
                ErrorKind::WrongSize,
                names.count,
                format_args!(
                    "is {}, but must be {needed}, the product of {dimensions:?}",
                    self.count
                ),
            ));
        }
        Ok(self.values)
    }

    pub(crate) fn span(&self, name: &'static str) -> Span {
        Span::new(name, self.values, self.count)
    }
}

/// The memory of one argument, for the search for overlaps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    name: &'static str,
    start: usize,
    end: usize,
}

impl Span {
    /// No memory: apart from everything.
    pub(crate) const NONE: Self = Self {
        name: "",
        start: 0,
        end: 0,
    };

    pub(crate) fn new<T>(name: &'static str, start: *const T, count: usize) -> Self {
        let bytes = count.saturating_mul(mem::size_of::<T>());
        if bytes == 0 {
            return Self::NONE;
        }
        let start = start as usize;
        Self {
            name,
            start,
            end: start.saturating_add(bytes),
        }
    }

    /// Whether two arguments share memory.
    #[inline]
    pub(crate) fn overlaps(&self, other: &Span) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Whether there is no memory.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.end == 0
    }

    /// The least span that contains both.
    #[inline]
    pub(crate) fn hull(&self, other: &Span) -> Span {
        if self.is_empty() {
            return *other;
        }
        if other.is_empty() {
            return *self;
        }
        Self {
            name: "",
            start: self.start.min(other.start),
            end: self.end.max(other.end),
        }
    }

    /// The refusal of an argument that shares memory with another one.
    #[cold]
    pub(crate) fn overlap(&self, other: &Span) -> Error {
        Error::new(
            ErrorKind::Overlap,
            self.name,
            format_args!("shares memory with {}", other.name),
        )
    }
}

/// `count` values, if an object of that size can exist.
fn addressable<T>(count: usize) -> Option<usize> {
    let largest = isize::MAX as usize / mem::size_of::<T>();
    (count <= largest).then_some(count)
}

fn overflow(argument: fmt::Arguments<'_>) -> Error {
    Error::new(
        ErrorKind::Overflow,
        argument,
        "the product of the sizes does not fit the address space",
    )
}

/// Refuses a pointer to `count` values that is null or misaligned. Nothing is
/// read through it, so a null pointer to nothing is fine. The name is only
/// formatted for an error: a request that passes allocates no text.
///
/// # Errors
///
/// [`ErrorKind::NullPointer`], [`ErrorKind::Misaligned`].
pub fn check_pointer<T>(
    pointer: *const T,
    count: usize,
    name: fmt::Arguments<'_>,
) -> Result<(), Error> {
    if pointer.is_null() {
        if count == 0 {
            return Ok(());
        }
        return Err(Error::new(ErrorKind::NullPointer, name, "is null"));
    }
    if !pointer.is_aligned() {
        return Err(Error::new(
            ErrorKind::Misaligned,
            name,
            format_args!("is not aligned to {} bytes", mem::align_of::<T>()),
        ));
    }
    Ok(())
}
