"""What is run: the workloads, and their start states and controls.

All numbers are those of `problem.h`, so that a line of this benchmark can be put
beside one of the C benchmark.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np

NSETTLE = 200  # steps from a model's first state to where its rollouts start
FULL_PHYSICS = mujoco.mjtState.mjSTATE_FULLPHYSICS.value


@dataclass(frozen=True)
class Workload:
    """What a contender is asked to do."""

    model: str
    nbatch: int
    nstep: int
    ncall: int  # calls that are timed together, 1 or a multiple of 10

    @property
    def small(self) -> bool:
        """Whether a call is so short that what it costs beside its steps matters."""
        return self.ncall > 1

    @property
    def title(self) -> str:
        return f"{self.model} {self.nbatch} x {self.nstep}"


# Long rollouts, one step of many, something in between, and calls so small that
# only what they cost beside the steps matters.
WORKLOADS = (
    Workload("hopper", 50, 1000, 1),
    Workload("quadruped", 3000, 1, 1),
    Workload("humanoid", 100, 50, 1),
    Workload("cartpole", 8, 1, 100),
    Workload("cartpole", 1, 1, 250),
)


@dataclass(frozen=True)
class Problem:
    """A workload with its inputs, the same for every contender."""

    work: Workload
    model: mujoco.MjModel
    start: np.ndarray  # nbatch x nstate
    control: np.ndarray  # nbatch x nstep x nu


class Uniform:
    """A sequence of numbers that is the same in every run, and in C."""

    def __init__(self) -> None:
        self._seed = 1

    def __call__(self, low: float, high: float) -> float:
        self._seed = (self._seed * 6364136223846793005 + 1442695040888963407) % 2**64
        return low + (high - low) * ((self._seed >> 11) * 2.0**-53)


def load(suite: Path, work: Workload) -> Problem:
    """The model of a workload from the folder `suite`, its start states and controls."""
    model = mujoco.MjModel.from_xml_path(str(suite / f"{work.model}.xml"))
    limited = model.actuator_ctrllimited[:, np.newaxis].astype(bool)
    ranges = np.where(limited, model.actuator_ctrlrange, (-1, 1)).tolist()
    uniform = Uniform()

    def random_control() -> list[float]:
        return [uniform(low, high) for low, high in ranges]

    # Start states where things happen: the model has come down to the floor and
    # moves, and each rollout finds it a little different.
    data = mujoco.MjData(model)
    for _ in range(NSETTLE):
        data.ctrl[:] = random_control()
        mujoco.mj_step(model, data)
    settled = np.empty(mujoco.mj_stateSize(model, FULL_PHYSICS))
    mujoco.mj_getState(model, data, settled, FULL_PHYSICS)
    start = np.empty((work.nbatch, settled.size))
    for row in start:
        push = np.array([uniform(-0.2, 0.2) for _ in range(model.nv)])
        mujoco.mj_setState(model, data, settled, FULL_PHYSICS)
        data.qvel += push
        mujoco.mj_integratePos(model, data.qpos, push, 0.01)
        mujoco.mj_getState(model, data, row, FULL_PHYSICS)

    control = [random_control() for _ in range(work.nbatch * work.nstep)]
    shape = (work.nbatch, work.nstep, model.nu)
    return Problem(work, model, start, np.array(control).reshape(shape))
