"""Wrong arguments: what is refused, with which error, and that nothing has happened."""

from __future__ import annotations

import ctypes
import math
import re
from functools import partial
from typing import Any, Callable, Union

import mujoco
import mujoco.rollout
import numpy as np
import pytest

import rollout
import zoo
from reference import FULLPHYSICS, USER, new_data

NBATCH, NSTEP, NSTATE = 4, 2, 3

# A change of a valid call: makes the keywords that it replaces.
Change = Callable[[], dict[str, Any]]
Errors = Union[type[Exception], tuple[type[Exception], ...]]


def valid_call() -> dict[str, Any]:
    """A call of the slider on two data: 4 rollouts, 2 steps, nstate 3, nu, nv and nsensordata 1."""
    model = zoo.load("slider")
    return {
        "model": model,
        "data": new_data(model, 2),
        "initial_state": np.zeros((NBATCH, NSTATE)),
        "control": np.zeros((NBATCH, NSTEP, 1)),
        "initial_warmstart": np.zeros((NBATCH, 1)),
        "state": np.full((NBATCH, NSTEP, NSTATE), 7.0),
        "sensordata": np.full((NBATCH, NSTEP, 1), 7.0),
    }


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape)


def misaligned(*shape: int) -> np.ndarray:
    memory = np.zeros(8 * math.prod(shape) + 1, np.uint8)
    return memory[1:].view(np.float64).reshape(shape)


def without_outputs(**changes: Any) -> dict[str, Any]:
    return {"state": None, "sensordata": None, **changes}


def data_of(name: str, count: int) -> list[mujoco.MjData]:
    return new_data(zoo.load(name), count)


def with_engine_threads() -> list[mujoco.MjData]:
    """Two data, the second with threads of MuJoCo's own."""
    data = data_of("slider", 2)
    if hasattr(mujoco, "mju_threadpool"):
        mujoco.mju_threadpool(data[1], 2)
    else:
        engine = zoo.libmujoco()
        engine.mju_threadPoolCreate.restype = ctypes.c_void_p
        pool = ctypes.c_void_p(engine.mju_threadPoolCreate(ctypes.c_size_t(2)))
        engine.mju_bindThreadPool(ctypes.c_void_p(data[1]._address), pool)
    return data


def read_only_output() -> np.ndarray:
    output = np.full((NBATCH, NSTEP, 1), 7.0)
    output.flags.writeable = False
    return output


def overlapping_outputs() -> dict[str, Any]:
    memory = np.full(NBATCH * NSTEP * (NSTATE + 1) - 1, 7.0)
    state = memory[: NBATCH * NSTEP * NSTATE].reshape(NBATCH, NSTEP, NSTATE)
    sensordata = memory[-NBATCH * NSTEP :].reshape(NBATCH, NSTEP, 1)
    return {"state": state, "sensordata": sensordata}


def output_over_data() -> dict[str, Any]:
    data = data_of("slider", 1)
    sensordata = data[0].sensordata.reshape(1, 1, 1)
    initial_state = zeros(1, NSTATE)
    return {
        "data": data,
        "initial_state": initial_state,
        "control": None,
        "initial_warmstart": None,
        "state": None,
        "sensordata": sensordata,
    }


# Calls that mujoco.rollout refuses too, with its texts as of 4.0.0, which we have on all
# releases.
TEXTS: dict[str, tuple[Change, str]] = {
    # Numbers.
    "spec outside of user": (
        lambda: {"control_spec": FULLPHYSICS},
        "control_spec can only contain bits in mjSTATE_USER",
    ),
    "negative spec": (
        lambda: {"control_spec": -1},
        "control_spec can only contain bits in mjSTATE_USER",
    ),
    "huge spec": (
        lambda: {"control_spec": 1 << 70},
        "control_spec can only contain bits in mjSTATE_USER",
    ),
    "float nstep": (lambda: {"nstep": 1.5}, "nstep must be an integer"),
    "bool nstep": (lambda: {"nstep": True}, "nstep must be an integer"),
    "text nstep": (lambda: {"nstep": "2"}, "nstep must be an integer"),
    "negative nstep": (lambda: {"nstep": -1}, "nstep must be non-negative"),
    "float chunk_size": (lambda: {"chunk_size": 1.5}, "chunk_size must be an integer"),
    "bool chunk_size": (lambda: {"chunk_size": False}, "chunk_size must be an integer"),
    "text chunk_size": (lambda: {"chunk_size": "2"}, "chunk_size must be an integer"),
    "zero chunk_size": (lambda: {"chunk_size": 0}, "chunk_size must be a positive integer"),
    "negative chunk_size": (lambda: {"chunk_size": -7}, "chunk_size must be a positive integer"),
    # Kinds of arrays.
    **{
        f"{name} is {kind}": (
            partial(dict, **{name: value}),
            f"{name} must be a numpy array or float",
        )
        for name in ("initial_state", "control", "initial_warmstart", "state", "sensordata")
        for kind, value in {"a list": [1.0], "an int": 1, "a text": "1", "a model": object}.items()
    },
    # Numbers of axes.
    **{
        f"{name} has too many axes": (
            partial(dict, **{name: zeros(*[1] * (axes + 1))}),
            f"{name} can have at most {axes} dimensions",
        )
        for name, axes in {
            "initial_state": 2,
            "initial_warmstart": 2,
            "control": 3,
            "state": 3,
            "sensordata": 3,
        }.items()
    },
    # Sizes of rows.
    "wide state": (
        lambda: {"initial_state": zeros(NBATCH, 4)},
        "trailing dimension of initial_state must be 3, got 4",
    ),
    "float state": (
        lambda: {"initial_state": 0.5},
        "trailing dimension of initial_state must be 3, got 1",
    ),
    "empty state": (
        lambda: {"initial_state": zeros(0)},
        "trailing dimension of initial_state must be 3, got 0",
    ),
    "wide warmstart": (
        lambda: {"initial_warmstart": zeros(NBATCH, 2)},
        "trailing dimension of initial_warmstart must be 1, got 2",
    ),
    "wide control": (
        lambda: {"control": zeros(NBATCH, NSTEP, 2)},
        "trailing dimension of control must be 1, got 2",
    ),
    "control for another spec": (
        lambda: {"control_spec": USER},
        "trailing dimension of control must be 14, got 1",
    ),
    "control for no inputs": (
        lambda: {"control_spec": 0},
        "trailing dimension of control must be 0, got 1",
    ),
    "wide state output": (
        lambda: {"state": zeros(NBATCH, NSTEP, 4)},
        "trailing dimension of state must be 3, got 4",
    ),
    "wide sensordata output": (
        lambda: {"sensordata": zeros(NBATCH, NSTEP, 2)},
        "trailing dimension of sensordata must be 1, got 2",
    ),
    # Numbers of rollouts.
    "few controls": (
        lambda: {"control": zeros(3, NSTEP, 1)},
        "dimension 0 inferred as 4 but control has 3",
    ),
    "few warmstarts": (
        lambda: {"initial_warmstart": zeros(3, 1)},
        "dimension 0 inferred as 4 but initial_warmstart has 3",
    ),
    "few states": (
        lambda: {"initial_state": zeros(3, NSTATE), "initial_warmstart": None},
        "dimension 0 inferred as 3 but control has 4",
    ),
    "few rows of output": (
        lambda: {"state": zeros(3, NSTEP, NSTATE)},
        "dimension 0 inferred as 4 but state has 3",
    ),
    "no rollouts, and some": (
        lambda: {"initial_state": zeros(0, NSTATE), "initial_warmstart": None},
        "dimension 0 inferred as 0 but control has 4",
    ),
    "one row of output": (
        lambda: {"state": zeros(1, NSTEP, NSTATE)},
        "state.size should be 24, got 6",
    ),
    "one row of sensordata": (
        lambda: {"sensordata": zeros(1, NSTEP, 1)},
        "sensordata.size should be 8, got 2",
    ),
    # Numbers of steps.
    "few steps of control": (
        lambda: {"control": zeros(NBATCH, 3, 1)},
        "dimension 1 inferred as 3 but state has 2",
    ),
    "more steps than controls": (
        lambda: without_outputs(nstep=3),
        "dimension 1 inferred as 3 but control has 2",
    ),
    "no steps, and some": (
        lambda: without_outputs(nstep=0),
        "dimension 1 inferred as 0 but control has 2",
    ),
    "one step of output": (
        lambda: {"state": zeros(NBATCH, 1, NSTATE)},
        "state.size should be 24, got 12",
    ),
    # Models.
    "few models": (
        lambda: {"model": [zoo.load("slider")] * 3},
        "nbatch inferred as 4 but model is length 3",
    ),
    "models of other sizes": (
        lambda: {"model": [zoo.load("slider")] * 3 + [zoo.load("pendulum")]},
        "models are not compatible",
    ),
    "models of other numbers of sensors": (
        lambda: {"model": [zoo.load("slider")] * 3 + [zoo.load("no_sensors")]},
        "models are not compatible",
    ),
    # Data.
    "no data": (lambda: {"data": []}, "The list of data instances is empty"),
}

# Calls on a pool of its own size.
POOL_TEXTS: dict[str, tuple[int, int, str]] = {
    "no data and no threads": (0, 0, "The list of data instances is empty"),
    "no data and one thread": (1, 0, "The list of data instances is empty"),
    "no data and two threads": (2, 0, "The list of data instances is empty"),
    "few data": (2, 1, "Length of data: 1 not equal to nthread: 2"),
    "many data": (2, 3, "Length of data: 3 not equal to nthread: 2"),
    "many data and one thread": (1, 2, "Length of data: 2 not equal to nthread: 1"),
    "many data and no threads": (
        0,
        2,
        "More than one data instance passed but rollout is configured to run on main thread",
    ),
}

# Calls that mujoco.rollout does not refuse, though it crashes, or writes somewhere else, or
# gives wrong numbers; or that it refuses in words that do not help. What our error must
# name, and its type if it is not a ValueError.
OURS: dict[str, tuple[Change, str, Errors]] = {
    "no model": (lambda: {"model": None}, "model|iterable", TypeError),
    "a number as model": (lambda: {"model": 3}, "model|iterable", TypeError),
    "a data as model": (lambda: {"model": data_of("slider", 1)[0]}, "model|iterable", TypeError),
    "a number among models": (
        lambda: {"model": [zoo.load("slider")] * 3 + [3]},
        r"model\[3\]",
        TypeError,
    ),
    "nothing among models": (
        lambda: {"model": [None, *[zoo.load("slider")] * 3]},
        r"model\[0\]",
        TypeError,
    ),
    "an empty list of models": (lambda: {"model": []}, "model", ValueError),
    "data that is nothing": (lambda: {"data": None}, "data|NoneType", TypeError),
    "nothing among data": (lambda: {"data": [None]}, r"data\[0\]", TypeError),
    "nothing among many data": (
        lambda: {"data": [*data_of("slider", 1), None]},
        r"data\[1\]",
        TypeError,
    ),
    "a number as data": (lambda: {"data": 3}, "data|int", TypeError),
    "a model as data": (lambda: {"data": [zoo.load("slider")]}, r"data\[0\]", TypeError),
    "the same data twice": (lambda: {"data": data_of("slider", 1) * 2}, r"data\[1\]", ValueError),
    "data of a smaller model": (lambda: {"data": data_of("empty", 2)}, r"data\[0\]", ValueError),
    "data of a larger model": (lambda: {"data": data_of("humanoid", 1)}, r"data\[0\]", ValueError),
    "one data of another model": (
        lambda: {"data": [*data_of("slider", 1), *data_of("pendulum", 1)]},
        r"data\[1\]",
        ValueError,
    ),
    "data with the engine's threads": (
        lambda: {"data": with_engine_threads()},
        r"data\[1\] has a thread pool",
        ValueError,
    ),
    "no start states": (lambda: {"initial_state": None}, "initial_state", ValueError),
    "a spec that is a float": (lambda: {"control_spec": 1.0}, "control_spec|float", TypeError),
    "no spec": (lambda: {"control_spec": None}, "control_spec|NoneType", TypeError),
    "texts as control": (
        lambda: {"control": np.full((NBATCH, NSTEP, 1), "a")},
        "control|float",
        ValueError,
    ),
    "structures as control": (
        lambda: {"control": np.zeros((NBATCH, NSTEP, 1), "f8,f8")},
        ".",
        TypeError,
    ),
    # Outputs that would need a copy.
    **{
        f"an output of {kind}": (partial(dict, state=output), "^state", ValueError)
        for kind, output in {
            "float32": np.zeros((NBATCH, NSTEP, NSTATE), np.float32),
            "integers": np.zeros((NBATCH, NSTEP, NSTATE), int),
            "other byte order": np.zeros((NBATCH, NSTEP, NSTATE), ">f8"),
            "every second number": zeros(NBATCH, NSTEP, 2 * NSTATE)[..., ::2],
            "every second row": zeros(2 * NBATCH, NSTEP, NSTATE)[::2],
            "fortran order": np.zeros((NBATCH, NSTEP, NSTATE), order="F"),
            "rows backwards": zeros(NBATCH, NSTEP, NSTATE)[::-1],
            "shared rows": np.broadcast_to(zeros(NSTATE), (NBATCH, NSTEP, NSTATE)),
            "one float": 1.0,
            "misaligned memory": misaligned(NBATCH, NSTEP, NSTATE),
        }.items()
    },
    "read-only output": (lambda: {"sensordata": read_only_output()}, "^sensordata", ValueError),
    "outputs that overlap": (overlapping_outputs, "state|sensordata", ValueError),
    "output over the data": (output_over_data, "sensordata", ValueError),
    # More than there can be.
    "more steps than memory": (
        lambda: without_outputs(control=None, nstep=1 << 62),
        ".",
        (ValueError, MemoryError),
    ),
    "more steps than an integer": (
        lambda: without_outputs(control=None, nstep=1 << 70),
        ".",
        (ValueError, OverflowError, MemoryError),
    ),
}


# What a data holds, as far as a rollout could change it.
FIELDS = ("qpos", "qvel", "ctrl", "qfrc_applied", "qacc_warmstart", "sensordata")


def contents(call: dict[str, Any]) -> list[bytes]:
    """The arrays and the data of a call, as far as they are there."""
    arrays = [value for value in call.values() if isinstance(value, np.ndarray)]
    for one in call["data"] if isinstance(call["data"], list) else []:
        if isinstance(one, mujoco.MjData):
            arrays += [getattr(one, field) for field in FIELDS]
            arrays += [one.warning.number, np.array(one.time)]
    return [array.tobytes() for array in arrays]


def refused(module: Any, call: dict[str, Any], error: Errors, text: str) -> None:
    """That a call raises this error, and has written nothing."""
    before = contents(call)
    with pytest.raises(error, match=text):
        module.rollout(**call)
    assert contents(call) == before


@pytest.mark.parametrize("what", TEXTS)
def test_errors_have_the_texts_of_mujoco_rollout(what):
    change, text = TEXTS[what]
    exactly = f"^{re.escape(text)}$"
    refused(rollout, {**valid_call(), **change()}, ValueError, exactly)
    if zoo.RELEASE >= (4, 0):
        with pytest.raises(ValueError, match=exactly):
            mujoco.rollout.rollout(**{**valid_call(), **change()})


@pytest.mark.parametrize("what", POOL_TEXTS)
def test_errors_of_a_pool_have_the_texts_of_mujoco_rollout(what):
    nthread, ndata, text = POOL_TEXTS[what]
    call = {**valid_call(), "data": data_of("slider", ndata)}
    exactly = f"^{re.escape(text)}$"
    with rollout.Rollout(nthread=nthread) as pool:
        refused(pool, call, ValueError, exactly)
    if zoo.RELEASE >= (4, 0):
        with mujoco.rollout.Rollout(nthread=nthread) as theirs:
            with pytest.raises(ValueError, match=exactly):
                theirs.rollout(**call)


@pytest.mark.parametrize("what", OURS)
def test_what_mujoco_rollout_does_not_refuse_is_refused_by_name(what):
    change, text, error = OURS[what]
    refused(rollout, {**valid_call(), **change()}, error, text)


def test_the_valid_call_is_valid():
    call = valid_call()
    found = rollout.rollout(**call)
    assert not (found[0] == 7).any()
    assert found[0] is call["state"]


def skip_checks_call(**changes: Any) -> dict[str, Any]:
    call = valid_call()
    call.update(model=[call["model"]] * NBATCH, nstep=NSTEP, skip_checks=True)
    return {**call, **changes}


# With skip_checks sizes are not inferred; they are checked all the same.
UNCHECKED: dict[str, tuple[Change, str, Errors]] = {
    "negative nstep": (lambda: {"nstep": -1}, "^nstep must be non-negative$", ValueError),
    "zero chunk_size": (
        lambda: {"chunk_size": 0},
        "^chunk_size must be a positive integer$",
        ValueError,
    ),
    "small state": (
        lambda: {"state": zeros(3, NSTEP, NSTATE)},
        r"^state\.size should be 24, got 18$",
        ValueError,
    ),
    "small sensordata": (
        lambda: {"sensordata": zeros(3, NSTEP, 1)},
        r"^sensordata\.size should be 8, got 6$",
        ValueError,
    ),
    "small control": (
        lambda: {"control": zeros(NBATCH, 1, 1)},
        r"^control\.size should be 8, got 4$",
        ValueError,
    ),
    "wide initial_state": (
        lambda: {"initial_state": zeros(NBATCH, 5)},
        r"size should be 12, got 20",
        ValueError,
    ),
    "wide warmstart": (
        lambda: {"initial_warmstart": zeros(NBATCH, 2)},
        r"size should be 4, got 8",
        ValueError,
    ),
    "no nstep": (lambda: {"nstep": None}, "nstep", TypeError),
    "float nstep": (lambda: {"nstep": 2.0}, "nstep", (TypeError, ValueError)),
    "one model": (lambda: {"model": zoo.load("slider")}, "model", TypeError),
    "a tuple of models": (lambda: {"model": (zoo.load("slider"),) * NBATCH}, "model", TypeError),
    "few models": (lambda: {"model": [zoo.load("slider")] * 3}, "model", (IndexError, ValueError)),
    "no models": (lambda: {"model": []}, "model", (IndexError, ValueError)),
    "a number among models": (lambda: {"model": [3] * NBATCH}, r"model\[0\]", TypeError),
    "models of other sizes": (
        lambda: {"model": [zoo.load("slider")] * 3 + [zoo.load("pendulum")]},
        r"model",
        ValueError,
    ),
    "no start states": (lambda: {"initial_state": None}, "initial_state", (TypeError, ValueError)),
    "one row without an axis": (
        lambda: {"initial_state": zeros(NBATCH * NSTATE)},
        "initial_state",
        ValueError,
    ),
    "spec outside of user": (
        lambda: {"control_spec": FULLPHYSICS},
        "control_spec can only contain bits in mjSTATE_USER",
        ValueError,
    ),
    "no data": (lambda: {"data": []}, "^The list of data instances is empty$", ValueError),
    "nothing among data": (lambda: {"data": [None]}, r"data\[0\]", TypeError),
    "the same data twice": (lambda: {"data": data_of("slider", 1) * 2}, r"data\[1\]", ValueError),
    "data of a smaller model": (lambda: {"data": data_of("empty", 2)}, r"data\[0\]", ValueError),
    "outputs that overlap": (overlapping_outputs, "state|sensordata", ValueError),
    "output of float32": (
        lambda: {"state": np.zeros((NBATCH, NSTEP, NSTATE), np.float32)},
        "^state",
        ValueError,
    ),
    "output with gaps": (
        lambda: {"state": zeros(NBATCH, NSTEP, 2 * NSTATE)[..., ::2]},
        "^state",
        ValueError,
    ),
    "read-only output": (lambda: {"sensordata": read_only_output()}, "^sensordata", ValueError),
    "output that is a float": (lambda: {"state": 1.0}, "^state", (TypeError, ValueError)),
    "output that is a list": (lambda: {"state": [1.0]}, "^state", (TypeError, ValueError)),
}


@pytest.mark.parametrize("what", UNCHECKED)
def test_skip_checks_refuses_what_cannot_be_run(what):
    change, text, error = UNCHECKED[what]
    refused(rollout, skip_checks_call(**change()), error, text)


@pytest.mark.parametrize("nthread", [0, 1, 2])
def test_no_rollouts_give_empty_results(nthread):
    """mujoco.rollout crashes."""
    model = zoo.load("slider")
    with rollout.Rollout(nthread=nthread) as pool:
        state, sensordata = pool.rollout(
            model, new_data(model, max(nthread, 1)), zeros(0, NSTATE), nstep=NSTEP
        )
    assert state.shape == (0, NSTEP, NSTATE)
    assert sensordata.shape == (0, NSTEP, 1)


def test_no_rollouts_and_skip_checks_do_nothing():
    call = skip_checks_call(
        initial_state=zeros(0, NSTATE),
        control=zeros(0, NSTEP, 1),
        initial_warmstart=zeros(0, 1),
        state=zeros(0, NSTEP, NSTATE),
        sensordata=zeros(0, NSTEP, 1),
    )
    assert rollout.rollout(**call)[0].shape == (0, NSTEP, NSTATE)
    refused_or_empty = {**call, "model": []}
    try:
        rollout.rollout(**refused_or_empty)
    except ValueError as error:
        assert "model" in str(error)


def test_a_closed_pool_says_so():
    call = {**valid_call(), "data": data_of("slider", 1)}
    text = "^rollout requested after thread pool shutdown$"
    for nthread in (0, 1, 2):
        pool = rollout.Rollout(nthread=nthread)
        pool.close()
        pool.close()
        refused(pool, call, RuntimeError, text)
        with rollout.Rollout(nthread=nthread) as pool:
            pass
        refused(pool, call, RuntimeError, text)


@pytest.mark.parametrize("nthread", [1.5, "2", [], 1 << 40])
def test_a_pool_of_no_sensible_number_of_threads_is_refused(nthread):
    with pytest.raises((TypeError, ValueError, OverflowError)):
        rollout.Rollout(nthread=nthread)


def test_nthread_must_be_named():
    with pytest.raises(TypeError):
        rollout.Rollout(2)  # type: ignore[call-arg]
    with rollout.Rollout() as pool:
        assert pool.nthread == 0
    with rollout.Rollout(nthread=2) as pool:
        assert pool.nthread == 2


@pytest.mark.parametrize("chunk_size", [1 << 31, 1 << 32, 1 << 63, 1 << 64, 1 << 70])
def test_a_huge_chunk_is_all_rollouts_or_refused(chunk_size):
    call = valid_call()
    try:
        state, _ = rollout.rollout(**call, chunk_size=chunk_size)
    except (ValueError, OverflowError):
        assert (call["state"] == 7).all()
    else:
        np.testing.assert_array_equal(state[:, :, 0], [[0.002, 0.004]] * NBATCH)


def test_a_call_works_after_calls_that_were_refused():
    call = valid_call()
    with rollout.Rollout(nthread=2) as pool:
        for what in ("wide control", "no data", "few models", "zero chunk_size"):
            with pytest.raises(ValueError):
                pool.rollout(**{**call, **TEXTS[what][0]()})
        for what in ("the same data twice", "outputs that overlap", "data of a smaller model"):
            with pytest.raises(ValueError):
                pool.rollout(**{**call, **OURS[what][0]()})
        state, _ = pool.rollout(**call)
    np.testing.assert_array_equal(state[:, :, 0], [[0.002, 0.004]] * NBATCH)


@pytest.mark.parametrize("name", ["state", "sensordata"])
def test_an_output_over_the_memory_of_a_data_is_refused(name):
    model = zoo.load("slider")
    data = mujoco.MjData(model)
    nstate = mujoco.mj_stateSize(model, FULLPHYSICS)
    size = {"state": nstate, "sensordata": model.nsensordata}[name]
    inside = data.xfrc_applied.reshape(-1)[:size].reshape(1, 1, size)
    with pytest.raises(ValueError, match=f"{name} must not be a view of what an MjData"):
        rollout.rollout(model, data, np.zeros((1, nstate)), **{name: inside})
    assert (data.xfrc_applied == 0).all()
