"""Rolls out a humanoid and a quadruped, a thousand times each, and draws what came out.

    python examples/demo.py --output FOLDER [--nbatch 1000] [--nthread N]

All rollouts of a robot start from one state, its keyframe `stand`, and each has
random controls of its own, as in a sampling planner. They are run in three ways,
which must give the same bits:

    plain loop      a loop over mj_step, as one writes it without a library;
    mujoco.rollout  MuJoCo's own;
    rollout         ours: the same call, and only the import differs.

The last two keep a pool of threads from call to call. A call takes a few dozen
rollouts, so that there is progress to show; the ways take turns, so that none has the
machine's good moments for itself.

Needs numpy, matplotlib, tqdm, mujoco and rollout, and no display.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import mujoco
import mujoco.rollout
import numpy as np
from tqdm import tqdm

import plot
import rollout

NSTEP = 100  # steps of each rollout
NHOLD = 20  # steps for which a random control is held
NCALL = 50  # rollouts in one call
BAR = "{desc:11} {bar} {n_fmt}/{total_fmt} rollouts, {remaining} left"
MODELS = Path(__file__).with_name("models")
FULL_PHYSICS = mujoco.mjtState.mjSTATE_FULLPHYSICS.value

# The robots, and which part of their controls' ranges is used.
ROBOTS = {"humanoid": 0.5, "quadruped": 0.8}


@dataclass
class Robot:
    """A robot, and what every way of rolling it out is given."""

    name: str
    model: mujoco.MjModel
    start: np.ndarray  # nstate, shared by all rollouts
    control: np.ndarray  # nbatch x NSTEP x nu


class Way:
    """A way of rolling a robot out, and what it gave."""

    def __init__(self, name: str, run: Callable[..., object], robot: Robot) -> None:
        self.name = name
        self._run = run
        self._robot = robot
        shape = robot.control.shape[:2]
        self.state = np.empty((*shape, robot.start.size))
        self.sensordata = np.empty((*shape, robot.model.nsensordata))
        self.seconds = 0.0

    def run(self, part: slice) -> None:
        """Runs some of the rollouts and adds up the time."""
        start = time.perf_counter()
        self._run(
            self._robot.start,
            self._robot.control[part],
            state=self.state[part],
            sensordata=self.sensordata[part],
        )
        self.seconds += time.perf_counter() - start

    @property
    def speed(self) -> float:
        """Steps per second."""
        return self.state.shape[0] * NSTEP / self.seconds

    def equals(self, other: Way) -> bool:
        """Whether both gave the same bits."""
        return (
            self.state.tobytes() == other.state.tobytes()
            and self.sensordata.tobytes() == other.sensordata.tobytes()
        )

    @property
    def valid(self) -> np.ndarray:
        """Which rows came out of a step, nbatch x NSTEP.

        A rollout ends with a warning of the engine. The rows that remain repeat the
        last state, and in them time stands still.
        """
        steps = np.diff(self.state[:, :, 0], axis=1, prepend=self._robot.start[0])
        return np.logical_and.accumulate(steps > 0, axis=1)

    @property
    def paths(self) -> np.ndarray:
        """Time and place of the root from the start on, as `plot.draw` takes them."""
        root = np.where(self.valid[:, :, np.newaxis], self.state[:, :, :4], np.nan)
        start = np.broadcast_to(self._robot.start[:4], (len(root), 1, 4))
        return np.concatenate([start, root], axis=1)


def load(name: str, nbatch: int, scale: float) -> Robot:
    """Loads a robot and draws its controls, the same in every run."""
    model = mujoco.MjModel.from_xml_path(str(MODELS / f"{name}.xml"))
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, model.key("stand").id)
    start = np.empty(mujoco.mj_stateSize(model, FULL_PHYSICS))
    mujoco.mj_getState(model, data, start, FULL_PHYSICS)

    # Zero is not always the middle of a control's range (the quadruped's controls are
    # joint angles, and zero is how it stands), so each side of zero is scaled by its
    # own end of the range.
    random = np.random.default_rng(1).uniform(-1, 1, (nbatch, NSTEP // NHOLD, model.nu))
    low, high = model.actuator_ctrlrange.T
    control = scale * np.where(random < 0, -random * low, random * high)
    return Robot(name, model, start, control.repeat(NHOLD, axis=1))


def loop(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    initial_state: np.ndarray,
    control: np.ndarray,
    *,
    state: np.ndarray,
    sensordata: np.ndarray,
) -> None:
    """The rollouts without a library.

    A rollout ends where the engine warns, which this loop leaves out: none of these
    does.
    """
    for rollout_, controls in enumerate(control):
        mujoco.mj_setState(model, data, initial_state, FULL_PHYSICS)
        # The solver begins with the last solution it knows, which is not part of the
        # state. Left as it is, a rollout would depend on the one before.
        data.qacc_warmstart[:] = 0
        for step, ctrl in enumerate(controls):
            data.ctrl[:] = ctrl
            mujoco.mj_step(model, data)
            mujoco.mj_getState(model, data, state[rollout_, step], FULL_PHYSICS)
            sensordata[rollout_, step] = data.sensordata


def run(robot: Robot, nthread: int) -> list[Way]:
    """Rolls a robot out in all ways, with a bar of progress where there is a terminal."""
    model, nbatch = robot.model, len(robot.control)
    data = [mujoco.MjData(model) for _ in range(max(1, nthread))]
    with (
        mujoco.rollout.Rollout(nthread=nthread) as theirs,
        rollout.Rollout(nthread=nthread) as ours,
    ):
        ways = [
            Way("plain loop", partial(loop, model, data[0]), robot),
            Way("mujoco.rollout", partial(theirs.rollout, model, data), robot),
            Way("rollout", partial(ours.rollout, model, data), robot),
        ]
        bar = tqdm(total=nbatch, desc=robot.name, bar_format=BAR, leave=False, disable=None)
        for first in range(0, nbatch, NCALL):
            for way in ways:
                way.run(slice(first, first + NCALL))
            bar.update(min(NCALL, nbatch - first))
        bar.close()
    return ways


def print_head(nbatch: int, nthread: int) -> None:
    print(
        f"{nbatch} rollouts of {NSTEP} steps from one state, each with random controls of its own\n"
        f"nthread {nthread}, MuJoCo {mujoco.__version__}, rollout {rollout.__version__}\n\n"
        "robot       way                 steps/s   vs. loop   vs. mujoco   bits equal   completed"
    )


def print_ways(robot: Robot, ways: list[Way]) -> None:
    plain, theirs, _ = ways
    for way in ways:
        print(
            f"{robot.name if way is plain else '':12}{way.name:14}{way.speed:13,.0f}"
            f"{way.speed / plain.speed:9.2f} x{way.speed / theirs.speed:11.2f} x"
            f"{'yes' if way.equals(plain) else 'NO':>13}"
            f"{way.valid[:, -1].sum():12}",
            flush=True,
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Rolls out two robots and draws what came out.")
    ncpu = len(os.sched_getaffinity(0))
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--nbatch", type=int, default=1000, metavar="N", help="default: 1000")
    parser.add_argument(
        "--nthread", type=int, default=ncpu, metavar="N", help=f"default: the CPUs, {ncpu}"
    )
    options = parser.parse_args()
    if options.nbatch < 1 or options.nthread < 0:
        parser.error("there must be a rollout, and no fewer than 0 threads")
    return options


def main() -> int:
    options = parse()
    options.output.mkdir(parents=True, exist_ok=True)
    print_head(options.nbatch, options.nthread)
    paths = {}
    all_equal = True
    for name, scale in ROBOTS.items():
        robot = load(name, options.nbatch, scale)
        ways = run(robot, options.nthread)
        print_ways(robot, ways)
        all_equal &= all(way.equals(ways[0]) for way in ways)
        paths[name] = ways[-1].paths
    picture = options.output / "rollouts.png"
    plot.draw(paths, picture)
    print(f"\nThe picture is {picture}")
    return 0 if all_equal else 1


if __name__ == "__main__":
    sys.exit(main())
