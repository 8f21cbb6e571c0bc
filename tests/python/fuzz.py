"""Random calls of the package, of which most are wrong in one way or another.

A call is drawn as a description of plain values, which is printed if the process dies, and
then built. What the package answers must be what the plain loop gives, or an exception that
says what is wrong and leaves everything as it was.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import mujoco
import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import rollout
import zoo
from reference import (
    CTRL,
    FULLPHYSICS,
    INPUTS,
    USER,
    Batch,
    Results,
    assert_same_bits,
    dirty_data,
    plain_loop,
)

SANE = (ValueError, TypeError, OverflowError, MemoryError)

NAMES = ["slider", "pendulum", "no_sensors", "no_actuators", "empty", "every_input", "activations"]
MODELS = {name: zoo.load(name) for name in NAMES}
DATA = {name: dirty_data(model, 5) for name, model in MODELS.items()}

# So many that memory for their results cannot be had, anywhere.
TOO_MANY = [1 << 46, 1 << 62, 1 << 63, 1 << 64, 1 << 80]

LAYOUTS = ["C", "F", "strided", "backwards", "broadcast", "read-only", "misaligned", "shared"]
KINDS = ["f4", "f2", "i8", "u1", "?", "c16", "O", ">f8", "U3", "M8[s]", "V8", "f8,f8"]
FILLS = ["small", "nan", "inf", "huge"]


@dataclass
class Array:
    """An array that can be built again and again."""

    shape: tuple[int, ...]
    kind: str = "f8"
    layout: str = "C"
    fill: str = "small"

    def build(self, memory: np.ndarray) -> np.ndarray:
        """The array; one of layout ``shared`` lies at the start of the memory given."""
        random = np.random.default_rng(sum(self.shape))
        values = 0.1 * random.uniform(-1, 1, self.shape)
        if self.fill != "small":
            number = {"nan": np.nan, "inf": -np.inf, "huge": 1e300}[self.fill]
            values.flat[: (values.size + 1) // 2] = number
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self.kind == "f8,f8":
                values = np.zeros(self.shape, self.kind)
            elif self.kind in ("M8[s]", "V8"):
                values = values.astype("f8").view(self.kind) if values.size else values
            else:
                values = values.astype(self.kind)
        return self._laid_out(values, memory)

    def _laid_out(self, values: np.ndarray, memory: np.ndarray) -> np.ndarray:
        if self.layout == "F":
            return np.asfortranarray(values)
        if self.layout == "strided" and values.ndim:
            return np.repeat(values, 2, axis=-1)[..., ::2]
        if self.layout == "backwards" and values.ndim:
            return values[::-1].copy()[::-1]
        if self.layout == "broadcast" and values.size:
            return np.broadcast_to(values.reshape(-1)[0], values.shape)
        if self.layout == "read-only":
            values.flags.writeable = False
        if self.layout == "misaligned" and values.dtype == np.float64 and values.size:
            room = np.zeros(values.nbytes + 1, np.uint8)[1:].view(np.float64)
            room[:] = values.ravel()
            return room.reshape(values.shape)
        if self.layout == "shared" and values.dtype == np.float64:
            view = memory[: values.size].reshape(values.shape)
            view[...] = values
            return view
        return values


@dataclass
class Call:
    """Everything that a call is made of."""

    # None: the function; a number: an object with so many threads.
    nthread: Optional[int]
    # Name of a model, names of several, or something that is no model.
    model: Any
    # Names of models and numbers of data of each, or something else.
    data: Any
    arrays: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def build(self) -> dict[str, Any]:
        memory = np.zeros(4096)
        arguments = dict(self.options)
        for name, value in self.arrays.items():
            arguments[name] = value.build(memory) if isinstance(value, Array) else value
        arguments["model"] = (
            [MODELS.get(name, name) for name in self.model]
            if isinstance(self.model, list)
            else MODELS.get(self.model, self.model)
        )
        arguments["data"] = (
            [DATA[one[0]][one[1]] if isinstance(one, tuple) else one for one in self.data]
            if isinstance(self.data, list)
            else DATA[self.data[0]][self.data[1]]
            if isinstance(self.data, tuple) and self.data
            else self.data
        )
        return arguments


# Strategies are made once: making them costs more than drawing from them.
_NAME = st.sampled_from(NAMES)
_OTHERS = st.lists(_NAME | st.none(), max_size=4)
_FEW = st.integers(0, 4)
_NUMBERED = st.tuples(_NAME, _FEW)
_BITS = st.integers(0, 255)
_SPEC = st.sampled_from([CTRL, USER, 0, *INPUTS.values(), CTRL | max(INPUTS.values())])
_NOTHING = st.sampled_from([None, 3, "text", 1.5, [], [None], [3], ()])
_NO_SPEC = st.integers(-5, USER * 2) | st.sampled_from(
    [-1, None, 1.0, "1", 1 << 32, 1 << 40, 1 << 70, True, np.int64(CTRL)]
)
_NO_NSTEP = _FEW | st.sampled_from([-1, True, 1.5, "2", None, np.int32(2), *TOO_MANY])
_NO_CHUNK = st.sampled_from([0, -1, False, 2.5, "1", np.uint8(2), *TOO_MANY])
_NO_MODEL = _NOTHING | _NAME | _OTHERS
_NO_DATA = _NOTHING | _OTHERS | _NUMBERED | st.lists(_NUMBERED, max_size=4)
_NO_ARRAY = st.sampled_from([None, 0.5, np.float64(1), 1, "text", [1.0], np.zeros(()), object])
_KIND, _LAYOUT, _FILL = (st.sampled_from(values) for values in (KINDS, LAYOUTS, FILLS))


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """A call that is right but for some of its arguments."""
    name, nbatch, nstep, spec = draw(_NAME), draw(_FEW), draw(_FEW), draw(_SPEC)
    model = MODELS[name]
    ndata = draw(_FEW) or 1
    choices = draw(_BITS)
    skip_checks = bool(choices & 1)

    def mostly(good: Any, bad: st.SearchStrategy[Any]) -> Any:
        return draw(bad) if draw(_BITS) >= 240 else good

    def array(*shape: int, optional: bool = True) -> Any:
        return draw(arrays(shape, skip_checks, optional))

    nstate = mujoco.mj_stateSize(model, FULLPHYSICS)
    given_arrays = {
        "initial_state": array(nbatch, nstate, optional=False),
        "control": array(nbatch, nstep, mujoco.mj_stateSize(model, spec)),
        "initial_warmstart": array(nbatch, model.nv),
        "state": array(nbatch, nstep, nstate),
        "sensordata": array(nbatch, nstep, model.nsensordata),
    }
    several = skip_checks or choices & 2
    options = {
        "control_spec": mostly(spec, _NO_SPEC),
        "nstep": mostly(nstep if skip_checks or choices & 4 else None, _NO_NSTEP),
        "chunk_size": mostly(choices % 5 if choices & 8 and choices % 5 else None, _NO_CHUNK),
        "skip_checks": skip_checks,
    }
    nthread = None
    if choices & 16:
        nthread = mostly(ndata if ndata > 1 else 0, _FEW)
    else:
        options["persistent_pool"] = bool(choices & 32)
    if skip_checks and given_arrays["state"] is None and options["nstep"] in TOO_MANY:
        # That many steps could be made, without results.
        options["nstep"] = 2
    return Call(
        nthread,
        mostly([name] * max(nbatch, 1) if several else name, _NO_MODEL),
        mostly([(name, i) for i in range(ndata)], _NO_DATA),
        given_arrays,
        options,
    )


@st.composite
def arrays(draw: st.DrawFn, shape: tuple[int, ...], in_full: bool, optional: bool) -> Any:
    """An array of this shape, or of one that is taken for it, or something wrong."""
    choices, oddity = draw(_BITS), draw(_BITS)
    if optional and choices & 1:
        return None
    if not in_full:
        # Some axes of length 1, and those in front left out.
        rows = [1 if choices >> (2 * i + 1) & 3 == 3 else size for i, size in enumerate(shape[:-1])]
        dropped = choices >> 6 if all(size == 1 for size in rows) else 0
        shape = (*rows[dropped:], shape[-1])
    if oddity < 160:
        return Array(shape)
    if oddity < 170:
        axis = choices % len(shape)
        return Array((*shape[:axis], draw(_FEW), *shape[axis + 1 :]))
    if oddity < 180:
        return Array((1, *shape) if choices & 2 else shape[1:])
    if oddity < 195:
        return Array(shape, kind=draw(_KIND))
    if oddity < 230:
        return Array(shape, layout=draw(_LAYOUT))
    if oddity < 250:
        return Array(shape, fill=draw(_FILL))
    return draw(_NO_ARRAY)


def as_float64(array: Any, shape: tuple[int, ...], in_full: bool) -> Any:
    """An input in full, as the plain loop takes it."""
    if array is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = np.array(array, dtype=np.float64)
    return array.reshape(shape) if in_full else np.broadcast_to(array, shape).copy()


def expected(arguments: dict[str, Any], found: Results) -> Results:
    """What the plain loop gives for a call that returned results of these shapes."""
    model = arguments["model"]
    models = [model] if isinstance(model, mujoco.MjModel) else model
    first = models[0]
    in_full = arguments["skip_checks"]
    spec = int(arguments["control_spec"])
    if in_full:
        nbatch, nstep = len(arguments["initial_state"]), int(arguments["nstep"])
    else:
        nbatch, nstep = found[0].shape[:2]
    shapes = {
        "initial_state": (nbatch, mujoco.mj_stateSize(first, FULLPHYSICS)),
        "control": (nbatch, nstep, mujoco.mj_stateSize(first, spec)),
        "initial_warmstart": (nbatch, first.nv),
    }
    inputs = {name: as_float64(arguments[name], shape, in_full) for name, shape in shapes.items()}
    several = models[:nbatch] if len(models) > 1 and nbatch else first
    return plain_loop(Batch(several, nstep=nstep, control_spec=spec, **inputs))


def contents(arguments: dict[str, Any]) -> list[bytes]:
    """What the arrays and the data of a call hold."""
    arrays = [one for one in arguments.values() if isinstance(one, np.ndarray)]
    for one in arguments["data"] if isinstance(arguments["data"], list) else []:
        if isinstance(one, mujoco.MjData):
            arrays += [one.qpos, one.qvel, one.ctrl, one.qacc_warmstart, one.sensordata]
            arrays += [np.array(one.time), one.warning.number]
    return [np.array(array, copy=True).tobytes() for array in arrays]


def check(call: Call) -> str:
    """Makes the call and judges what comes of it."""
    arguments = call.build()
    before = contents(arguments)
    copies = {
        name: value.copy() if isinstance(value, np.ndarray) else value
        for name, value in arguments.items()
    }
    try:
        if call.nthread is None:
            found = rollout.rollout(**arguments)
        else:
            with rollout.Rollout(nthread=call.nthread) as pool:
                found = pool.rollout(**arguments)
    except SANE as error:
        assert str(error), "an error without a text"
        assert contents(arguments) == before, "a call that failed has changed something"
        return type(error).__name__
    if found[0] is not None and not found[0].size:
        # Of nothing there can be many shapes.
        return "right"
    wanted = expected(copies, found)
    for name, ours, theirs in zip(("state", "sensordata"), found, wanted):
        if ours is None:
            assert arguments["skip_checks"], name
            continue
        if arguments[name] is not None:
            assert np.shares_memory(ours, arguments[name]) or not ours.size, name
        ours = ours.reshape(theirs.shape)
        assert_same_bits((ours, ours), (theirs, theirs))
    return "right"


def main(examples: int, last: Path) -> None:
    """Makes so many calls; the file holds the one that is under way."""
    outcomes: dict[str, int] = {}

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(calls())
    def fuzz(call: Call) -> None:
        last.write_text(repr(call))
        outcome = check(call)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1

    fuzz()
    # Neither kind of call is rare, or the fuzzer has lost its way.
    assert outcomes["right"] > examples // 10, outcomes
    assert outcomes["ValueError"] > examples // 10, outcomes
    assert outcomes["TypeError"], outcomes
