"""Work in threads, and in processes of its own for what could end ours."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

# How long to wait for what must happen, before a test fails instead of hanging.
PATIENCE = 60

HERE = str(Path(__file__).parent)


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Does ``work(0)`` to ``work(count - 1)`` in threads that start together."""
    start = threading.Barrier(count)

    def one(number: int) -> None:
        start.wait(PATIENCE)
        work(number)

    with ThreadPoolExecutor(count) as executor:
        for future in [executor.submit(one, number) for number in range(count)]:
            future.result(timeout=PATIENCE)


def run(program: str, timeout: float = 2 * PATIENCE) -> str:
    """Runs a Python program that may import the tests' modules, and returns what it printed.

    Fails where the program ends with another status than 0, or not at all.

    Args:
        program: its text, which may be indented.
        timeout: seconds after which it is taken to hang; far more than it needs.
    """
    try:
        result = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(program)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([HERE, *filter(None, sys.path)])},
            # MuJoCo up to 3.3.2 waits for a key after an error.
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as error:
        printed = error.stdout or b""
        raise AssertionError(f"the program hangs; it printed\n{printed.decode()}") from None
    if result.returncode:
        code = result.returncode
        how = signal.Signals(-code).name if code < 0 else f"status {code}"
        raise AssertionError(f"the program ended with {how}; it printed\n{result.stdout[-9000:]}")
    return result.stdout


def isolated(test: Callable[..., None]) -> Callable[..., None]:
    """A test that runs in a process of its own, in silence.

    Its arguments must be plain values, which are passed by what ``repr`` makes of them.
    """
    call = f"import {test.__module__} as tests; tests.{test.__name__}.__wrapped__"

    @functools.wraps(test)
    def in_a_process(**arguments: Any) -> None:
        printed = run(f"{call}(**{arguments!r})")
        assert printed == "", f"the test printed\n{printed}"

    return in_a_process
