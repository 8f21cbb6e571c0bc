"""What is going on in other threads, and how to hold it there."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

import mujoco

from isolation import PATIENCE


def pool_threads() -> int:
    """The threads of this process that belong to a pool."""
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as comm:
                names.append(comm.read())
        except OSError:
            # It has just ended.
            pass
    return sum(name.startswith("rollout-") for name in names)


def wait_until(condition: Callable[[], bool]) -> None:
    """Waits for what another thread, or the system, is about to do."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)


class Gate:
    """MuJoCo's control callback, in which the first thread that comes to it stays.

    It stays set until the end of the test: it must not change while rollouts run.
    """

    def __init__(self) -> None:
        self._first = threading.Lock()
        self._entered, self._go = threading.Event(), threading.Event()
        mujoco.set_mjcb_control(self._hold)

    def _hold(self, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        if self._first.acquire(blocking=False):
            self._entered.set()
            self._go.wait(PATIENCE)

    def wait_for_somebody(self) -> None:
        """Waits until a thread is in it."""
        assert self._entered.wait(PATIENCE)

    def open(self) -> None:
        """Lets that thread go."""
        self._go.set()


class Held:
    """A call that another thread is in, at its first step, until it is let go."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._executor = ThreadPoolExecutor(1)
        self._gate = Gate()
        self._future = self._executor.submit(call)
        self._gate.wait_for_somebody()

    def let_go(self) -> Any:
        """What the call returns."""
        self._gate.open()
        with self._executor:
            return self._future.result(PATIENCE)
