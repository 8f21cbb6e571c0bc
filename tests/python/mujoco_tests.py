"""A pytest plugin that has MuJoCo's own tests test our module.

    PYTHONPATH=python:tests/python pytest -p mujoco_tests --pyargs mujoco.rollout_test

Before anything is collected, our module takes the place of `mujoco.rollout`, and MuJoCo's
extension behind that is shut out, so that nobody can reach it by another way. The calls
of ours are counted; a run in which nobody called fails.

`cargo xtask pytest` runs it, with the tests that tests/mujoco-releases.txt names for each
release.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any, TypeVar

import mujoco
import pytest

import rollout

# Tests of MuJoCo's that cannot pass, and why. One that passes all the same fails the run.
EXPECTED_FAILURES: dict[str, str] = {}

Function = TypeVar("Function", bound=Callable[..., Any])


class Calls:
    """How often our module was called, and by how many tests."""

    def __init__(self) -> None:
        self.total = 0
        self.tests = 0
        self._lock = Lock()  # There are tests that call from threads.

    def counted(self, function: Function) -> Function:
        """The same function, whose calls are counted."""

        @functools.wraps(function)
        def count(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self.total += 1
            return function(*args, **kwargs)

        return count  # type: ignore[return-value]


def take_place() -> Calls:
    """Puts our module where MuJoCo's is looked for."""
    if "mujoco.rollout" in sys.modules:
        raise pytest.UsageError("mujoco.rollout was imported before ours could take its place")
    sys.modules["mujoco.rollout"] = rollout
    sys.modules["mujoco._rollout"] = None  # type: ignore[assignment]  # an import of it fails
    mujoco.rollout = rollout

    calls = Calls()
    rollout.rollout = calls.counted(rollout.rollout)
    rollout.Rollout.rollout = calls.counted(rollout.Rollout.rollout)  # type: ignore[method-assign]
    return calls


calls = take_place()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        reason = EXPECTED_FAILURES.get(item.name)
        if reason:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    before = calls.total
    try:
        return (yield)
    finally:
        calls.tests += calls.total > before


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.OK and not calls.total:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    calls_made = f"{calls.tests} tests made {calls.total} calls of {rollout.__file__}"
    terminalreporter.write_line(f"mujoco_tests: {calls_made}")
