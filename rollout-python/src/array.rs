//! Arrays of NumPy's: those that are read and those that are written.
//!
//! The rules are those of `_arrays.py`, which says why.

use std::ptr;

use rollout::{RolloutInput, RolloutOutput};

use crate::python::{BUFFER_INPUT, BUFFER_OUTPUT, Buffer, Object, Owned, Unusual, Usual, usual};
use crate::setup::Setup;

/// An array that is read: a row for each rollout and step.
pub(crate) struct Rows {
    pub(crate) input: RolloutInput,
    /// Rollouts, steps, numbers in a row; none is 0, and 1 where the array lacks the axis.
    pub(crate) shape: [usize; 3],
    /// Whether it lacks none.
    pub(crate) has_all_axes: bool,
}

/// What the library is told of an array that is not given.
pub(crate) const NOT_GIVEN: RolloutInput = RolloutInput {
    values: ptr::null(),
    count: 0,
    rollout_stride: 0,
    step_stride: 0,
};

impl Rows {
    /// The rows of an array of up to `ndim` axes: 3, or 2 where there are no steps.
    pub(crate) fn of(setup: &Setup, array: &Object, ndim: usize) -> Usual<Self> {
        usual(array.is_exactly(&setup.ndarray))?;
        let rows = array.with_buffer(BUFFER_INPUT, |buffer| Self::read(buffer, ndim))?;
        usual(is_numpys(setup, array)?)?;
        Ok(rows)
    }

    fn read(buffer: &Buffer, ndim: usize) -> Usual<Self> {
        let values = numbers(buffer)?;
        // Where the last, the last but one, ... axis of the array belongs.
        let places: &[usize] = if ndim == 2 { &[2, 0] } else { &[2, 1, 0] };
        usual((1..=ndim).contains(&buffer.ndim()))?;
        let (mut shape, mut strides) = ([1; 3], [0; 3]);
        for (&place, (length, stride)) in places.iter().zip(buffer.axes().rev()) {
            usual(length > 0)?;
            if length > 1 {
                usual(stride >= 0 && stride % 8 == 0)?;
                (shape[place], strides[place]) = (length, stride as usize / 8);
            }
        }
        usual(shape[2] == 1 || strides[2] == 1)?;
        // From the first number to the last, which no array in memory can overflow.
        let distance = |axis: usize| strides[axis].checked_mul(shape[axis] - 1);
        let count = distance(0).zip(distance(1));
        let count = count.and_then(|(a, b)| a.checked_add(b)?.checked_add(shape[2]));
        Ok(Self {
            input: RolloutInput {
                values,
                count: count.ok_or(Unusual)?,
                rollout_stride: strides[0],
                step_stride: strides[1],
            },
            shape,
            has_all_axes: buffer.ndim() == ndim,
        })
    }
}

/// Whether the memory of an array is NumPy's own. Others' may be MuJoCo's.
fn is_numpys(setup: &Setup, array: &Object) -> Usual<bool> {
    let owns = |array: &Object| {
        let flags = array.attribute(&setup.flags)?;
        flags.attribute(&setup.owndata)?.truth()
    };
    if owns(array)? {
        return Ok(true);
    }
    let mut base = array.attribute(&setup.base)?;
    while base.is_instance(&setup.ndarray)? {
        let next = base.attribute(&setup.base)?;
        if next.is(&setup.none) {
            return owns(&base);
        }
        base = next;
    }
    Ok(false)
}

/// An array that is written, and returned.
pub(crate) struct Written {
    pub(crate) array: Owned,
    /// The lengths of its axes, if there are three.
    pub(crate) shape: Option<[usize; 3]>,
    pub(crate) output: RolloutOutput,
}

impl Written {
    pub(crate) fn of(setup: &Setup, array: &Object) -> Usual<Self> {
        usual(array.is_exactly(&setup.ndarray))?;
        usual(is_numpys(setup, array)?)?;
        Self::read(array)
    }

    fn read(array: &Object) -> Usual<Self> {
        array.with_buffer(BUFFER_OUTPUT, |buffer| {
            let values = numbers(buffer)?;
            let count = buffer.axes().map(|(length, _)| length).product();
            let mut shape = [0; 3];
            for (length, axis) in shape.iter_mut().zip(buffer.axes()) {
                *length = axis.0;
            }
            Ok(Self {
                array: array.own(),
                shape: (buffer.ndim() == 3).then_some(shape),
                output: RolloutOutput {
                    values: if count == 0 { ptr::null_mut() } else { values },
                    count,
                },
            })
        })
    }

    /// A new array.
    pub(crate) fn empty(setup: &Setup, shape: [usize; 3]) -> Usual<Self> {
        let made = setup.empty.call(&*Owned::shape(shape)?)?;
        Self::read(&made)
    }

    /// No array.
    pub(crate) fn nothing(setup: &Setup) -> Self {
        Self {
            array: setup.none.own(),
            shape: None,
            output: RolloutOutput {
                values: ptr::null_mut(),
                count: 0,
            },
        }
    }

    /// The array, if it has as many numbers as this shape.
    pub(crate) fn of_size(self, [nbatch, nstep, size]: [usize; 3]) -> Usual<Self> {
        let count = nbatch
            .checked_mul(nstep)
            .and_then(|rows| rows.checked_mul(size));
        usual(count == Some(self.output.count))?;
        Ok(self)
    }
}

/// The address of a buffer's numbers, if they are float64, native and aligned.
pub(crate) fn numbers(buffer: &Buffer) -> Usual<*mut f64> {
    let values: *mut f64 = buffer.address.cast();
    usual(buffer.format() == Some(c"d") && values.is_aligned())?;
    Ok(values)
}
