"""The arrays of a request: conversion, inference of their sizes, and their addresses.

The rules, and the texts of the errors, are those of `mujoco.rollout`, with two differences.
An input that has one row for all rollouts or all steps is not tiled, its stride is 0. And
an output that cannot be written in place is refused, where `mujoco.rollout` writes to a
copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

from rollout import _abi

FLOAT64 = np.dtype(np.float64)

Array = npt.NDArray[np.float64]
# Start states, warm starts and controls; and states and sensor values.
Inputs = tuple[Optional[Array], Optional[Array], Optional[Array]]
Outputs = tuple[Optional[Array], Optional[Array]]


def with_axes(array: Array, ndim: int) -> Array:
    """The array with leading axes of length 1 where it has fewer than `ndim`."""
    return array[(np.newaxis,) * (ndim - array.ndim)] if array.ndim < ndim else array


def as_input(name: str, value: object, ndim: int) -> Array:
    """What an input becomes: float64, and read in place wherever two strides can say how.

    Args:
        name: the argument.
        value: an array or a float.
        ndim: 2 or 3; axes are added in front.

    Returns:
        A view of the array, which nobody else can change the shape of, or a copy.

    Raises:
        ValueError: it is neither, or has too many axes.
    """
    check_kind(name, value, ndim)
    return readable(with_axes(np.asarray(value), ndim))


def check_kind(name: str, value: object, ndim: int) -> None:
    """Refuses what is neither an array nor a float, and too many axes."""
    if not isinstance(value, (np.ndarray, float)):
        raise ValueError(f"{name} must be a numpy array or float")
    if np.ndim(value) > ndim:
        raise ValueError(f"{name} can have at most {ndim} dimensions")


def readable(array: npt.NDArray[Any]) -> Array:
    """A view of the array, or a copy where the library could not read it in place."""
    # A view of a field of an MjData or MjModel changes while the rollouts run.
    if array.dtype == FLOAT64 and _has_rows(array) and not _is_foreign(array):
        return array[...]
    return np.array(array, dtype=FLOAT64, order="C")


def _has_rows(array: Array) -> bool:
    """Whether an address and two strides describe the array."""
    *strides, item = array.strides
    return (
        array.flags.aligned
        and (item == 8 or array.shape[-1] <= 1)
        and all(stride >= 0 and stride % 8 == 0 for stride in strides)
    )


def _is_foreign(array: Array) -> bool:
    """Whether the memory belongs to neither NumPy nor another Python object.

    MuJoCo's arrays hang on a capsule, or on nothing at all.
    """
    owner: Any = array
    while True:
        if isinstance(owner, np.ndarray):
            if owner.base is None:
                return not owner.flags.owndata
            owner = owner.base
        elif isinstance(owner, memoryview):
            owner = owner.obj
        elif hasattr(owner, "base"):
            # What as_strided puts between an array and its view.
            owner = owner.base
        else:
            return owner is None or type(owner).__name__ == "PyCapsule"


def as_output(name: str, value: object) -> Array:
    """What an output becomes: a view of it, with axes added in front.

    Raises:
        ValueError: it cannot be written in place.
    """
    check_kind(name, value, 3)
    if not isinstance(value, np.ndarray):
        raise ValueError(f"{name} must be an array, since results are written to it")
    # Of NumPy's own class, and of a shape that nobody else can change.
    array: Array = value.view(np.ndarray)
    flags = array.flags
    if array.dtype != FLOAT64:
        raise ValueError(f"{name} must be of float64 to be written in place, not {array.dtype}")
    if not flags.c_contiguous:
        raise ValueError(f"{name} must be contiguous in C order to be written in place")
    if not flags.writeable:
        raise ValueError(f"{name} must be writeable, but it is read-only")
    if not flags.aligned:
        raise ValueError(f"{name} must be aligned to be written in place")
    if _is_foreign(array):
        raise ValueError(f"{name} must not be a view of what an MjData or MjModel holds")
    return with_axes(array, 3)


def as_result(given: Optional[Array], array: Array) -> Array:
    """What is returned for an output: the very array that was given, if it has all axes."""
    return given if type(given) is np.ndarray and given.ndim == 3 else array


def infer(axis: int, value: int, arrays: Iterable[tuple[str, Optional[Array]]]) -> int:
    """The length that the arrays have in common along an axis.

    Args:
        axis: 0 for rollouts, 1 for steps.
        value: what is known already; 1 means nothing.
        arrays: by name; None for those that are not given.

    Raises:
        ValueError: two of them have different lengths, neither of which is 1.
    """
    for name, array in arrays:
        if array is not None:
            length = array.shape[axis]
            if length != value:
                if value == 1:
                    value = length
                elif length != 1:
                    raise ValueError(
                        f"dimension {axis} inferred as {value} but {name} has {length}"
                    )
    return value


def check_trailing(name: str, array: Optional[Array], size: int) -> None:
    """Refuses an array whose rows have another size."""
    if array is not None and array.shape[-1] != size:
        raise ValueError(f"trailing dimension of {name} must be {size}, got {array.shape[-1]}")


def check_size(name: str, array: Optional[Array], size: int) -> None:
    """Refuses an array of another size as a whole."""
    if array is not None and array.size != size:
        raise ValueError(f"{name}.size should be {size}, got {array.size}")


def rows(array: Optional[Array]) -> _abi.Input:
    """Where the library finds the rows of an input of two or three axes.

    An axis of length 1 serves any number of rollouts or steps.
    """
    if array is None or not array.size:
        # Rows of no numbers say nothing.
        return _abi.Input()
    shape = array.shape
    strides = array.strides
    count = shape[-1]
    rollout_stride = step_stride = 0
    if shape[0] > 1:
        rollout_stride = strides[0] // 8
        count += (shape[0] - 1) * rollout_stride
    if len(shape) == 3 and shape[1] > 1:
        step_stride = strides[1] // 8
        count += (shape[1] - 1) * step_stride
    return _abi.Input(array.ctypes.data, count, rollout_stride, step_stride)


def place(array: Optional[Array]) -> _abi.Output:
    """Where the library writes an output."""
    if array is None or not array.size:
        return _abi.Output()
    return _abi.Output(array.ctypes.data, array.size)
