"""How arrays become rollouts: broadcasting, inference of sizes, conversion of inputs."""

from __future__ import annotations

import itertools
from typing import Any

import mujoco
import numpy as np
import pytest

import rollout
import zoo
from reference import (
    FULLPHYSICS,
    Batch,
    assert_right,
    assert_same_bits,
    batch,
    dirty_data,
    new_data,
    plain_loop,
    variants,
)

NBATCH, NSTEP = 2, 3

# Each array in all the shapes in which it can be given: as much of it as is kept, and the
# number of rollouts and steps that this tells; 1 tells nothing.
STATES = [
    (lambda full: full, NBATCH, 1),
    (lambda full: full[:1], 1, 1),
    (lambda full: full[0], 1, 1),
]
CONTROLS = [
    (lambda full: full, NBATCH, NSTEP),
    (lambda full: full[:1], 1, NSTEP),
    (lambda full: full[:, :1], NBATCH, 1),
    (lambda full: full[:1, :1], 1, 1),
    (lambda full: full[0], 1, NSTEP),
    (lambda full: full[0, :1], 1, 1),
    (lambda full: full[0, 0], 1, 1),
    (lambda full: None, 1, 1),
]
WARMSTARTS = [*STATES, (lambda full: None, 1, 1)]


def _full(array: Any, shape: tuple[int, ...]) -> Any:
    """An array in its full shape, as the references take it."""
    return None if array is None else np.broadcast_to(array, shape).copy()


def test_every_way_to_leave_out_an_axis():
    """All combinations of shapes, with the ways to tell nbatch and nstep besides in turn."""
    full = batch("pendulum", NBATCH, NSTEP, warmstart=True)
    models = variants(full.first_model, NBATCH)
    nstate, nu, nv = full.initial_state.shape[1], full.first_model.nu, full.first_model.nv
    data = dirty_data(full.model, 2)
    (clean,) = new_data(full.model, 1)
    all_models = [(full.model, 1), ([full.model], 1), (models, NBATCH)]
    shapes = itertools.product(STATES, CONTROLS, WARMSTARTS, all_models)
    # Whether there is an output, and nstep. Five ways, so that each meets all shapes.
    besides = itertools.cycle([(0, None), (0, NSTEP), (1, None), (NBATCH, None), (NBATCH, NSTEP)])
    for (of_state, of_control, of_warmstart, of_model), (rows, nstep) in zip(shapes, besides):
        nbatch = max(of_state[1], of_control[1], of_warmstart[1], of_model[1], rows)
        steps = max(of_control[2], nstep or 1)
        given = {
            "model": of_model[0],
            "initial_state": of_state[0](full.initial_state),
            "control": of_control[0](full.control),
            "initial_warmstart": of_warmstart[0](full.initial_warmstart),
            "nstep": nstep,
            "state": np.full((nbatch, steps, nstate), 7.0) if rows else None,
        }
        found = rollout.rollout(data=data, **given)
        assert not rows or found[0] is given["state"]
        expected = Batch(
            models if of_model[1] == NBATCH else full.model,
            _full(given["initial_state"], (nbatch, nstate)),
            steps,
            _full(given["control"], (nbatch, steps, nu)),
            initial_warmstart=_full(given["initial_warmstart"], (nbatch, nv)),
        )
        assert_right(found, expected)
        if zoo.RELEASE >= (4, 0):
            # The very same call.
            found = found[0].copy(), found[1]
            clean.ctrl[:] = 0
            assert_same_bits(found, mujoco.rollout.rollout(data=clean, **given))


def test_an_output_of_sensordata_tells_both_sizes():
    rollouts = batch("pendulum", NBATCH, NSTEP)
    one = rollouts.but(
        initial_state=np.tile(rollouts.initial_state[:1], (NBATCH, 1)),
        control=np.tile(rollouts.control[:1, :1], (NBATCH, NSTEP, 1)),
    )
    sensordata = rollouts.new_outputs()[1]
    found = rollout.rollout(
        rollouts.model,
        dirty_data(rollouts.model, 2),
        rollouts.initial_state[0],
        rollouts.control[0, 0],
        sensordata=sensordata,
    )
    assert found[1] is sensordata
    assert_right(found, one)


def test_a_float_serves_where_rows_have_one_number():
    model = zoo.load("slider")
    nstate = mujoco.mj_stateSize(model, FULLPHYSICS)
    found = rollout.rollout(
        model, new_data(model, 1), np.zeros(nstate), 0.5, initial_warmstart=0.25, nstep=NSTEP
    )
    ones = np.ones((1, NSTEP, 1))
    expected = Batch(
        model, np.zeros((1, nstate)), NSTEP, 0.5 * ones, initial_warmstart=0.25 * ones[:, 0]
    )
    assert_right(found, expected)
    # The state of a model of nothing is the time.
    empty = zoo.load("empty")
    found = rollout.rollout(empty, new_data(empty, 1), np.float64(1.5), nstep=2)
    assert_same_bits(found, plain_loop(Batch(empty, np.array([[1.5]]), 2)))


def test_models_can_come_from_any_iterable():
    rollouts = batch("slider", NBATCH, NSTEP)
    models = variants(rollouts.first_model, NBATCH)
    expected = plain_loop(rollouts.but(model=models))
    for given in (models, tuple(models), iter(models), (model for model in models)):
        arguments = rollouts.arguments(dirty_data(models, 2))
        assert_same_bits(rollout.rollout(**{**arguments, "model": given}), expected)


def test_the_same_model_can_stand_in_a_list_many_times():
    rollouts = batch("slider", NBATCH, NSTEP)
    arguments = rollouts.arguments(dirty_data(rollouts.model, 2))
    found = rollout.rollout(**{**arguments, "model": [rollouts.model] * NBATCH})
    assert_right(found, rollouts)


def test_a_single_data_needs_no_list():
    rollouts = batch("pendulum")
    (data,) = dirty_data(rollouts.model, 1)
    assert_right(rollout.rollout(**rollouts.arguments(data)), rollouts)
    for nthread in (0, 1):
        with rollout.Rollout(nthread=nthread) as pool:
            assert_right(pool.rollout(**rollouts.arguments(data)), rollouts)


def test_positional_arguments_are_those_of_mujoco_rollout():
    rollouts = batch("pendulum")
    data = dirty_data(rollouts.model, 1)
    four = (rollouts.model, data, rollouts.initial_state, rollouts.control)
    expected = plain_loop(rollouts)
    assert_same_bits(rollout.rollout(*four), expected)
    with rollout.Rollout() as pool:
        assert_same_bits(pool.rollout(*four), expected)
        for call in (rollout.rollout, pool.rollout):
            with pytest.raises(TypeError):
                call(*four, 1)  # type: ignore[call-overload]


def _strided(array: np.ndarray) -> np.ndarray:
    whole = np.full((*array.shape[:-1], 2 * array.shape[-1]), np.nan)
    whole[..., ::2] = array
    return whole[..., ::2]


def _misaligned(array: np.ndarray) -> np.ndarray:
    memory = np.zeros(array.nbytes + 1, np.uint8)
    shifted = memory[1:].view(np.float64).reshape(array.shape)
    shifted[...] = array
    return shifted


def _read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


def _subclass(array: np.ndarray) -> np.ndarray:
    class Named(np.ndarray):
        pass

    return array.view(Named)


# Arrays of the same numbers that an input can be, besides those of float64 in C order.
LAYOUTS = {
    "fortran order": np.asfortranarray,
    "every second number": _strided,
    "rows backwards": lambda array: array[::-1].copy()[::-1],
    "numbers backwards": lambda array: array[..., ::-1].copy()[..., ::-1],
    "rows apart": lambda array: np.repeat(array, 3, axis=0)[::3],
    "transposed": lambda array: np.ascontiguousarray(array.T).T,
    "misaligned": _misaligned,
    "read-only": _read_only,
    "other byte order": lambda array: array.astype(">f8"),
    "subclass": _subclass,
    "long double": lambda array: array.astype(np.longdouble),
    "objects": lambda array: array.astype(object),
}
# Types that hold whole numbers only.
WHOLE = ["f4", "f2", "i8", "i4", "u1", "?"]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_inputs_of_any_layout_are_read_right(layout):
    rollouts = batch("hopper", NBATCH, NSTEP, warmstart=True)
    expected = plain_loop(rollouts)
    arguments = rollouts.arguments(dirty_data(rollouts.model, 2))
    for name in ("initial_state", "control", "initial_warmstart"):
        given = layout(arguments[name])
        before = given.copy()
        assert_same_bits(rollout.rollout(**{**arguments, name: given}), expected)
        np.testing.assert_array_equal(given, before)


@pytest.mark.parametrize("kind", WHOLE)
def test_inputs_of_other_types_are_converted(kind):
    random = np.random.default_rng(0)
    rollouts = batch("pendulum", NBATCH, NSTEP, warmstart=True)
    arguments = rollouts.arguments(dirty_data(rollouts.model, 2))
    for name in ("initial_state", "control", "initial_warmstart"):
        whole = random.integers(0, 2, arguments[name].shape)
        expected = plain_loop(rollouts.but(**{name: whole.astype(float)}))
        found = rollout.rollout(**{**arguments, name: whole.astype(kind)})
        assert_same_bits(found, expected)


def test_inputs_can_be_views_without_memory_of_their_own():
    """Strides of zero, as np.broadcast_to makes them."""
    rollouts = batch("pendulum", NBATCH, NSTEP)
    one = rollouts.but(
        initial_state=np.tile(rollouts.initial_state[:1], (NBATCH, 1)),
        control=np.tile(rollouts.control[:1, :1], (NBATCH, NSTEP, 1)),
    )
    arguments = one.arguments(dirty_data(one.model, 2))
    arguments["initial_state"] = np.broadcast_to(one.initial_state[0], one.initial_state.shape)
    arguments["control"] = np.broadcast_to(one.control[0, 0], one.control.shape)
    assert_right(rollout.rollout(**arguments), one)


def test_inputs_can_be_windows_that_overlap_each_other():
    """Each rollout's controls begin one step later in one long sequence."""
    rollouts = batch("pendulum", NBATCH, NSTEP)
    sequence = np.random.default_rng(2).uniform(-1, 1, (NBATCH + NSTEP - 1, 2))
    windows = np.lib.stride_tricks.sliding_window_view(sequence, NSTEP, axis=0)
    windows = windows.transpose(0, 2, 1)
    arguments = rollouts.arguments(dirty_data(rollouts.model, 2))
    found = rollout.rollout(**{**arguments, "control": windows})
    assert_right(found, rollouts.but(control=windows.copy()))


def test_the_data_s_own_arrays_can_be_inputs():
    """They change during the rollouts, so the values before must be taken."""
    rollouts = batch("pendulum", nbatch=3, nstep=NSTEP, warmstart=True)
    (data,) = dirty_data(rollouts.model, 1)
    taken = rollouts.but(
        control=_full(data.ctrl, rollouts.control.shape),
        initial_warmstart=_full(data.qacc_warmstart, rollouts.initial_warmstart.shape),
    )
    arguments = rollouts.arguments(data)
    arguments.update(control=data.ctrl, initial_warmstart=data.qacc_warmstart)
    assert_right(rollout.rollout(**arguments), taken)


def test_inputs_can_share_memory():
    model = zoo.load("no_actuators")
    rollouts = batch(model, 2, 3, warmstart=True)
    shared = np.linspace(0, 1, 3)
    found = rollout.rollout(
        model, dirty_data(model, 1), shared, initial_warmstart=shared[1:2], nstep=3
    )
    expected = rollouts.but(
        initial_state=shared[None], control=None, initial_warmstart=shared[None, 1:2]
    )
    assert_right(found, expected)
