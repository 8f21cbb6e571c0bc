"""What rollouts should give: that of a plain loop over ``mj_step``, and ``mujoco.rollout``'s.

A ``Batch`` is everything that a call of ``rollout`` takes, in full shape. The library is
given data that have been used for something else (``dirty_data``), the references data
that nobody used before, and all must agree to the bit (``assert_right``).
"""

from __future__ import annotations

import copy
import zlib
from dataclasses import dataclass, replace
from typing import Any, Union

import mujoco
import mujoco.rollout
import numpy as np

import zoo

State = mujoco.mjtState
FULLPHYSICS: int = State.mjSTATE_FULLPHYSICS.value
WARMSTART: int = State.mjSTATE_WARMSTART.value
USER: int = State.mjSTATE_USER.value
CTRL: int = State.mjSTATE_CTRL.value
EQ_ACTIVE: int = State.mjSTATE_EQ_ACTIVE.value

# The bits of USER, in the order in which they lie in a row of controls.
INPUTS: dict[str, int] = {
    name[len("mjSTATE_") :].lower(): bit
    for name, bit in sorted(
        ((name, value.value) for name, value in State.__members__.items()),
        key=lambda member: member[1],
    )
    if bit & USER and bit & (bit - 1) == 0
}

# Before 3.2.7 mujoco.rollout took other arguments.
HAS_PEER = zoo.RELEASE >= (3, 2, 7)

Model = Union[mujoco.MjModel, list[mujoco.MjModel]]
Results = tuple[np.ndarray, np.ndarray]


@dataclass
class Batch:
    """Rollouts of one model, or of one for each, and all that they start from."""

    model: Model
    initial_state: np.ndarray  # nbatch x nstate
    nstep: int
    control: Any = None  # nbatch x nstep x ncontrol, or None
    control_spec: int = CTRL
    initial_warmstart: Any = None  # nbatch x nv, or None

    @property
    def nbatch(self) -> int:
        return len(self.initial_state)

    @property
    def first_model(self) -> mujoco.MjModel:
        return self.model[0] if isinstance(self.model, list) else self.model

    def model_of(self, rollout: int) -> mujoco.MjModel:
        return self.model[rollout] if isinstance(self.model, list) else self.model

    def but(self, **changes: Any) -> Batch:
        return replace(self, **changes)

    def arguments(self, data: Any) -> dict[str, Any]:
        """The call of this batch, as keywords."""
        return {
            "model": self.model,
            "data": data,
            "initial_state": self.initial_state,
            "control": self.control,
            "control_spec": self.control_spec,
            "initial_warmstart": self.initial_warmstart,
            "nstep": self.nstep,
        }

    def new_outputs(self) -> Results:
        """Outputs that can be recognised where nothing was written."""
        model = self.first_model
        nstate = mujoco.mj_stateSize(model, FULLPHYSICS)
        shape = (self.nbatch, self.nstep)
        return np.full((*shape, nstate), 7.0), np.full((*shape, model.nsensordata), 7.0)

    def skip_checks_arguments(self, data: list[mujoco.MjData]) -> dict[str, Any]:
        """The call with ``skip_checks``, which wants everything in full."""
        state, sensordata = self.new_outputs()
        models = self.model if isinstance(self.model, list) else [self.model] * self.nbatch
        arguments = {**self.arguments(data), "model": models, "skip_checks": True}
        return {**arguments, "state": state, "sensordata": sensordata}


def batch(
    name_or_model: Union[str, mujoco.MjModel],
    nbatch: int = 5,
    nstep: int = 12,
    spec: int = CTRL,
    warmstart: bool = False,
) -> Batch:
    """A batch with start states from a simulation under way, and random controls."""
    if isinstance(name_or_model, str):
        model, seed = zoo.load(name_or_model), zlib.crc32(name_or_model.encode())
    else:
        model, seed = name_or_model, 1
    random = np.random.default_rng(seed)
    data = mujoco.MjData(model)
    if model.nkey:
        mujoco.mj_resetDataKeyframe(model, data, 0)
    nstate = mujoco.mj_stateSize(model, FULLPHYSICS)
    initial_state = np.empty((nbatch, nstate))
    for row in initial_state:
        for _ in range(15):
            data.ctrl[:] = random.uniform(-1, 1, model.nu)
            mujoco.mj_step(model, data)
        mujoco.mj_getState(model, data, row, FULLPHYSICS)
    initial_warmstart = random.uniform(-10, 10, (nbatch, model.nv)) if warmstart else None
    control = random_control(random, model, (nbatch, nstep), spec)
    return Batch(model, initial_state, nstep, control, spec, initial_warmstart)


def random_control(
    random: np.random.Generator, model: mujoco.MjModel, shape: tuple[int, ...], spec: int
) -> np.ndarray:
    """Controls under which a model stays healthy, and equality constraints on or off."""
    parts = []
    for bit in INPUTS.values():
        if spec & bit:
            size = mujoco.mj_stateSize(model, bit)
            scale = 1.0 if bit == CTRL else 0.01
            values = scale * random.uniform(-1, 1, (*shape, size))
            parts.append((values > 0).astype(float) if bit == EQ_ACTIVE else values)
    return np.concatenate(parts, axis=-1) if parts else np.empty((*shape, 0))


def variants(model: mujoco.MjModel, count: int) -> list[mujoco.MjModel]:
    """Models of equal sizes and different numbers."""
    models = [copy.copy(model) for _ in range(count)]
    for i, variant in enumerate(models):
        variant.opt.gravity[2] = -9.81 + i
        variant.body_mass[:] *= 1 + 0.1 * i
        variant.actuator_gainprm[:, 0] *= 1 - 0.05 * i
        variant.body_pos[variant.body_mocapid >= 0] += i
        variant.eq_active0[:] = [(i + j) % 2 for j in range(model.neq)]
    return models


def new_data(model: Model, count: int) -> list[mujoco.MjData]:
    first = model[0] if isinstance(model, list) else model
    return [mujoco.MjData(first) for _ in range(count)]


def dirty_data(model: Model, count: int) -> list[mujoco.MjData]:
    """Data that hold whatever can be left in them."""
    first = model[0] if isinstance(model, list) else model
    random = np.random.default_rng(count)
    data = new_data(first, count)
    for d in data:
        spec = USER | WARMSTART
        inputs = random.uniform(-1, 1, mujoco.mj_stateSize(first, spec))
        mujoco.mj_setState(first, d, inputs, spec)
        for _ in range(random.integers(1, 6)):
            mujoco.mj_step(first, d)
        mujoco.mj_setState(first, d, inputs, spec)
        d.sensordata[:] = 1e6
        d.warning.number[:] = 1
    return data


def plain_loop(batch: Batch) -> Results:
    """The rollouts of a batch, one after the other, each on a data that is new."""
    state, sensordata = batch.new_outputs()
    for r in range(batch.nbatch):
        model = batch.model_of(r)
        data = mujoco.MjData(model)
        # Since 3.11 a control can have another default; that of a rollout is zero.
        data.ctrl[:] = 0
        mujoco.mj_setState(model, data, batch.initial_state[r], FULLPHYSICS)
        if batch.initial_warmstart is not None:
            mujoco.mj_setState(model, data, batch.initial_warmstart[r], WARMSTART)
        for t in range(batch.nstep):
            # Whatever comes after a warning is not worth a step.
            if not data.warning.number.any():
                if batch.control is not None:
                    mujoco.mj_setState(model, data, batch.control[r, t], batch.control_spec)
                mujoco.mj_step(model, data)
            mujoco.mj_getState(model, data, state[r, t], FULLPHYSICS)
            sensordata[r, t] = data.sensordata
    return state, sensordata


def mujoco_rollout(batch: Batch) -> Results:
    """The rollouts of a batch by ``mujoco.rollout``.

    On one data that is new, since what a data holds leaks into them there: the controls
    where none are given, and whatever a rollout leaves outside the state.
    """
    (data,) = new_data(batch.model, 1)
    data.ctrl[:] = 0
    state, sensordata = mujoco.rollout.rollout(**batch.arguments(data))
    return state, sensordata


def assert_right(found: Results, batch: Batch) -> None:
    """That results equal those of the plain loop and of ``mujoco.rollout``."""
    assert_same_bits(found, plain_loop(batch))
    if HAS_PEER:
        assert_same_bits(found, mujoco_rollout(batch))


def assert_same_bits(found: Results, expected: Results) -> None:
    """That state and sensordata are those expected, to the last bit and sign of a NaN."""
    for name, ours, theirs in zip(("state", "sensordata"), found, expected):
        assert ours.shape == theirs.shape, name
        assert ours.dtype == theirs.dtype == np.float64, name
        bits = [np.ascontiguousarray(array).view(np.uint64) for array in (ours, theirs)]
        different = np.argwhere(bits[0] != bits[1])
        if len(different):
            where = tuple(int(i) for i in different[0])
            raise AssertionError(
                f"{name}{list(where)} is {ours[where]!r}, expected {theirs[where]!r}; "
                f"{len(different)} of {ours.size} numbers differ"
            )
