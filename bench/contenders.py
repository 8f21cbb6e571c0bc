"""The contenders: the ways of doing one problem from Python."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from types import ModuleType

import mujoco
import mujoco.batch
import mujoco.rollout
import numpy as np

import rollout
from problem import FULL_PHYSICS, Problem

OURS = "rollout"
STEPS = "steps alone"
STEPS_AT_ONCE = 10  # of small work, where one step is too short to be timed


@dataclass(frozen=True)
class Contender:
    """One way of doing a problem, with arrays that it writes."""

    name: str
    nthread: int
    call: Callable[[], object]
    state: np.ndarray  # nbatch x nstep x nstate
    sensordata: np.ndarray  # nbatch x nstep x nsensordata

    def seconds(self, ncall: int) -> float:
        """The time of `ncall` calls back to back, as in a control loop."""
        call = self.call
        start = time.perf_counter()
        for _ in repeat(None, ncall):
            call()
        return time.perf_counter() - start


def contenders(problem: Problem, nthread: int, resources: ExitStack) -> Iterator[Contender]:
    """All ways of doing a problem on `nthread` threads, 0 being the caller's alone.

    What must be closed after use goes to `resources`.
    """
    for module in (rollout, mujoco.rollout):
        yield from _ways_of_module(module, problem, nthread, resources)
    yield from _ways_of_batch(problem, nthread)


def _ways_of_module(
    module: ModuleType, problem: Problem, nthread: int, resources: ExitStack
) -> Iterator[Contender]:
    """The same calls for ours and for `mujoco.rollout`, for which ours can be put."""
    model, start, control = problem.model, problem.start, problem.control
    data = [mujoco.MjData(model) for _ in range(max(1, nthread))]
    pool = resources.enter_context(module.Rollout(nthread=nthread))
    # What is given with `skip_checks` must have its full shape.
    models = [model] * problem.work.nbatch
    nstep = problem.work.nstep
    ways = {
        "": partial(pool.rollout, model, data, start, control),
        ", skip_checks": partial(
            pool.rollout, models, data, start, control, nstep=nstep, skip_checks=True
        ),
        ", pool per call": partial(module.rollout, model, data, start, control),
    }
    for way, call in ways.items():
        state, sensordata = _outputs(problem)
        call = partial(call, state=state, sensordata=sensordata)
        yield Contender(module.__name__ + way, nthread, call, state, sensordata)


def _ways_of_batch(problem: Problem, nthread: int) -> Iterator[Contender]:
    """MuJoCo's batches, whose threads include the caller's.

    A call leaves the last states in the batch, so each begins with the start states.
    """
    model, work, control = problem.model, problem.work, problem.control
    rows = _batch_rows(problem)

    batch = mujoco.batch.Batch(model, work.nbatch, max(1, nthread))
    state, sensordata = _outputs(problem)
    records = {FULL_PHYSICS: state}
    if model.nsensordata > 0:
        records["sensordata"] = sensordata

    def call_rollout() -> None:
        batch.state[:] = rows
        batch.rollout(work.nstep, control, record=tuple(records), out=records)

    yield Contender("mujoco.batch rollout", nthread, call_rollout, state, sensordata)

    # For a single step there is a cheaper way, without copies of the results: the
    # rows of the batch and what is bound of it are the outputs.
    if work.nstep > 1:
        return
    stepped = mujoco.batch.Batch(model, work.nbatch, max(1, nthread))
    ctrl, only_control = stepped.bind("ctrl"), control[:, 0]
    sensordata = stepped.bind("sensordata") if model.nsensordata > 0 else sensordata[:, 0]

    def call_step() -> None:
        stepped.state[:] = rows
        ctrl[:] = only_control
        stepped.step()

    state = stepped.state[:, : problem.start.shape[1]]
    yield Contender(
        "mujoco.batch step", nthread, call_step, state[:, np.newaxis], sensordata[:, np.newaxis]
    )


def _outputs(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Arrays for a contender to write. Rows that it does not write stay NaN."""
    shape = problem.control.shape[:2]
    nstate, nsensordata = problem.start.shape[1], problem.model.nsensordata
    return np.full((*shape, nstate), np.nan), np.full((*shape, nsensordata), np.nan)


def _batch_rows(problem: Problem) -> np.ndarray:
    """The start states as rows of a batch.

    A row has all that a simulation depends on: beside the start state a warm start
    and inputs, which are those of a new data, as for the other contenders.
    """
    model = problem.model
    spec = mujoco.mjtState.mjSTATE_INTEGRATION.value
    rows = np.empty((problem.work.nbatch, mujoco.mj_stateSize(model, spec)))
    data = mujoco.MjData(model)
    for start, row in zip(problem.start, rows):
        mujoco.mj_resetData(model, data)
        mujoco.mj_setState(model, data, start, FULL_PHYSICS)
        mujoco.mj_getState(model, data, row, spec)
    return rows


class Steps:
    """The floor: the steps alone, one after the other, in MuJoCo's own loop.

    `mj_step(..., nstep=n)` takes n steps within C. It cannot change the controls on
    the way, so each rollout holds its first ones: not quite the same steps, but as
    many, from the same states. In small work the rollouts of several calls are one.
    """

    name = STEPS
    nthread = 0

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._data = mujoco.MjData(problem.model)

    def seconds(self, ncall: int) -> float:
        """The time of the steps of `ncall` calls."""
        model, data = self._problem.model, self._data
        at_once = STEPS_AT_ONCE if self._problem.work.small else 1
        nstep = self._problem.work.nstep * at_once
        total = 0.0
        for _ in range(ncall // at_once):
            for state, control in zip(self._problem.start, self._problem.control):
                mujoco.mj_setState(model, data, state, FULL_PHYSICS)
                data.qacc_warmstart[:] = 0
                data.ctrl[:] = control[0]
                start = time.perf_counter()
                mujoco.mj_step(model, data, nstep=nstep)
                total += time.perf_counter() - start
        return total
