"""What was measured, as a table and as JSON."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import mujoco
import numpy as np

import rollout
from contenders import OURS, STEPS
from problem import Workload

MICROSECONDS = 1e6
WIDTH = 35  # of the first column


class Key(NamedTuple):
    """Who was measured."""

    name: str
    nthread: int


class Spread(NamedTuple):
    """The median of some numbers, with the quartiles."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} .. {self.high:.2f})"


def spread(values: np.ndarray) -> Spread:
    return Spread(*np.quantile(values, (0.25, 0.5, 0.75)).tolist())


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(": ")[2]
    return platform.machine()


@dataclass(frozen=True)
class Run:
    """One run of the program: what the user asked for, and where it runs."""

    nthread: int
    nround: int
    ncpu: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    cpu: str = field(default_factory=_cpu_name)
    python: str = platform.python_version()
    numpy: str = np.__version__
    mujoco: str = mujoco.__version__
    rollout: str = rollout.__version__
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))


class Result:
    """The times of one workload.

    `seconds` has the time of each round, for all calls of the round together.
    """

    def __init__(self, work: Workload, seconds: dict[Key, list[float]]) -> None:
        self.work = work
        self.seconds = {key: np.array(times) for key, times in seconds.items()}
        self._alone = self.seconds[Key(STEPS, 0)]

    @property
    def nthreads(self) -> list[int]:
        return list(dict.fromkeys(key.nthread for key in self.seconds if key.name != STEPS))

    def steps_per_second(self, key: Key) -> float:
        steps = self.work.nbatch * self.work.nstep * self.work.ncall
        return float(steps / np.median(self.seconds[key]))

    def times_alone(self, key: Key) -> Spread:
        """Its speed, divided by that of the steps alone on one thread."""
        return spread(self._alone / self.seconds[key])

    def over_ours(self, key: Key, ours: str = OURS) -> Spread:
        """Its time, divided by that of ours with as many threads."""
        return spread(self.seconds[key] / self.seconds[Key(ours, key.nthread)])

    def call(self, key: Key) -> Spread:
        """The time of one call in seconds."""
        return spread(self.seconds[key] / self.work.ncall)

    def fixed_cost(self, key: Key) -> Spread:
        """What a call costs beside its steps, in seconds."""
        return spread((self.seconds[key] - self._alone) / self.work.ncall)

    def fixed_cost_at_best(self, key: Key) -> float:
        """The same from the fastest rounds of both, which a busy machine spoils least."""
        return float(self.seconds[key].min() - self._alone.min()) / self.work.ncall

    def best_peer(self, nthread: int) -> Key:
        """The fastest of MuJoCo's own ways."""
        peers = (k for k in self.seconds if k.nthread == nthread and k.name.startswith("mujoco."))
        return min(peers, key=lambda peer: self.over_ours(peer).median)


def print_head(run: Run) -> None:
    print(
        f"{run.cpu}, ncpu {run.ncpu}; Python {run.python}, NumPy {run.numpy}, MuJoCo {run.mujoco}, "
        f"rollout {run.rollout}; nround {run.nround}; {run.date}\n",
        flush=True,
    )


def print_result(result: Result) -> None:
    """One table for a workload, with a block for each number of threads."""
    work = result.work
    costs = f"{'us per call':>13}   {'over the steps alone':24}{'at best':>9}" if work.small else ""
    print(
        f"{work.title:{WIDTH}}{'steps/s':>9}{'x alone':>9}   {'this / rollout':20}{costs}".rstrip()
    )
    _print_row(result, Key(STEPS, 0))
    for nthread in result.nthreads:
        print(f"  nthread {nthread}")
        for key in result.seconds:
            if key.nthread == nthread and key.name != STEPS:
                _print_row(result, key)
    print(flush=True)


def _print_row(result: Result, key: Key) -> None:
    """A contender's line. The steps alone stand for all numbers of threads."""
    alone = key.name == STEPS
    name = f"{'  ' if alone else '    '}{key.name}"
    ratio = "" if alone else str(result.over_ours(key))
    line = f"{name:{WIDTH}}{result.steps_per_second(key):>9,.0f}"
    line += f"{result.times_alone(key).median:9.2f}   {ratio:20}"
    if result.work.small:
        line += f"{result.call(key).median * MICROSECONDS:13.2f}"
    if result.work.small and not alone:
        cost = Spread(*(MICROSECONDS * seconds for seconds in result.fixed_cost(key)))
        line += f"   {cost!s:24}{result.fixed_cost_at_best(key) * MICROSECONDS:9.2f}"
    print(line.rstrip())


def print_best(results: list[Result]) -> None:
    """How ours does beside the best peer."""
    print(f"{'best peer / rollout':{WIDTH}}{'':31}{'':22}with skip_checks")
    for result in results:
        for nthread in result.nthreads:
            peer = result.best_peer(nthread)
            checked, unchecked = (
                result.over_ours(peer, ours) for ours in (OURS, f"{OURS}, skip_checks")
            )
            where = f"{result.work.title}, nthread {nthread}"
            print(f"  {where:{WIDTH - 2}}{peer.name:31}{checked!s:22}{unchecked}")
    print(flush=True)


def as_json(run: Run, results: list[Result]) -> dict[str, object]:
    """All of it. Ratios can be computed anew from the times of the rounds."""
    return {**asdict(run), "workloads": [_workload_as_json(result) for result in results]}


def _workload_as_json(result: Result) -> dict[str, object]:
    contenders = []
    for key, seconds in result.seconds.items():
        contender: dict[str, object] = {
            **key._asdict(),
            "seconds": seconds.tolist(),
            "steps_per_second": result.steps_per_second(key),
            "times_steps_alone": result.times_alone(key)._asdict(),
            "call_seconds": result.call(key)._asdict(),
        }
        if key.name != STEPS:
            contender["over_rollout"] = result.over_ours(key)._asdict()
            contender["fixed_cost_seconds"] = result.fixed_cost(key)._asdict()
            contender["fixed_cost_seconds_at_best"] = result.fixed_cost_at_best(key)
        contenders.append(contender)
    return {**asdict(result.work), "contenders": contenders}
