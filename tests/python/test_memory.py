"""Whose memory an array is, and what becomes of it while a call looks at it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import mujoco
import numpy as np
import pytest

import rollout
import zoo
from isolation import isolated
from reference import FULLPHYSICS, assert_same_bits
from rollout._mujoco import CTRL

# Ways to look at an array's memory.
VIEWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "the array": lambda array: array,
    "a slice": lambda array: array[:],
    "more axes": lambda array: array[np.newaxis, np.newaxis],
    "a window": lambda array: np.lib.stride_tricks.sliding_window_view(array, array.size),
    "strides": lambda array: np.lib.stride_tricks.as_strided(array, array.shape, array.strides),
    "a memoryview": lambda array: np.asarray(memoryview(array)),
    "a buffer": lambda array: np.frombuffer(array),
    "broadcast": lambda array: np.broadcast_to(array, (3, 2, array.size)),
}


def a_start(model: mujoco.MjModel) -> np.ndarray:
    return np.zeros((3, mujoco.mj_stateSize(model, FULLPHYSICS)))


@pytest.mark.parametrize("view", VIEWS)
def test_an_input_may_be_a_view_of_a_data_that_the_rollouts_change(view):
    model = zoo.load("every_input")
    data = mujoco.MjData(model)
    data.ctrl[:] = np.linspace(0.1, 0.7, model.nu)
    control = data.ctrl.copy()
    found = rollout.rollout(model, data, a_start(model), VIEWS[view](data.ctrl), nstep=2)
    expected = rollout.rollout(model, mujoco.MjData(model), a_start(model), control, nstep=2)
    assert_same_bits(found, expected)


@pytest.mark.parametrize("view", VIEWS)
def test_an_input_may_be_any_view_of_an_array(view):
    model = zoo.load("every_input")
    control = np.linspace(0.1, 0.7, model.nu)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = rollout.rollout(
            model, mujoco.MjData(model), a_start(model), VIEWS[view](control), nstep=2
        )
    expected = rollout.rollout(model, mujoco.MjData(model), a_start(model), control, nstep=2)
    assert_same_bits(found, expected)


def test_arrays_that_are_broadcast_together_are_read_without_a_warning():
    model = zoo.load("slider")
    start, _ = np.broadcast_arrays(a_start(model)[:1], np.empty((4, a_start(model).shape[1])))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state, _ = rollout.rollout(model, mujoco.MjData(model), start)
    assert len(state) == 4


@pytest.mark.parametrize("view", [view for view in VIEWS if view != "broadcast"])
def test_an_output_must_not_be_any_view_of_a_data(view):
    model = zoo.load("slider")
    data = mujoco.MjData(model)
    start = a_start(model)[:1]
    memory = data.xfrc_applied.reshape(-1)[: start.shape[1]]
    with pytest.raises(ValueError, match="state must"):
        rollout.rollout(model, data, start, state=VIEWS[view](memory))
    assert (data.xfrc_applied == 0).all()


@isolated
def test_an_array_whose_type_changes_during_the_checks_is_written_as_it_was_checked():
    model = zoo.load("slider")
    start = a_start(model)[:1]
    nstep, nstate = 40, start.shape[1]
    for _ in range(50):
        data = mujoco.MjData(model)
        memory = np.zeros((3, nstep, nstate))
        state = memory[1:2]

        def change(state: np.ndarray = state, data: mujoco.MjData = data) -> Iterator[Any]:
            setattr(state, "dtype", np.float32)  # noqa: B010  # Its type says read-only.
            yield data

        with pytest.raises(ValueError, match="state must be of float64"):
            rollout.rollout(model, change(), start, nstep=nstep, state=state)
        assert (memory == 0).all()


@isolated
def test_a_subclass_that_says_another_shape_is_taken_at_its_memory():
    model = zoo.load("slider")
    start = a_start(model)[:1]
    nstep, nstate = 40, start.shape[1]

    class Liar(np.ndarray):
        shape = property(lambda self: (1, nstep, nstate))
        size = property(lambda self: nstep * nstate)

    small = np.zeros((1, nstep // 2, nstate)).view(Liar)
    with pytest.raises(ValueError, match="dimension 1 inferred as 40 but state has 20"):
        rollout.rollout(model, mujoco.MjData(model), start, nstep=nstep, state=small)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64, np.uint64])
def test_integers_of_numpy_are_integers(kind):
    model = zoo.load("slider")
    start = a_start(model)
    control = np.ones((3, 100, 1))
    state = np.empty((3, 100, start.shape[1]))
    expected = rollout.rollout(model, mujoco.MjData(model), start, control)
    found = rollout.rollout(
        model,
        mujoco.MjData(model),
        start,
        control,
        nstep=kind(100),
        control_spec=kind(CTRL),
        chunk_size=kind(2),
        state=state,
    )
    assert found[0] is state
    assert_same_bits(found, expected)
