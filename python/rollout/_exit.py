"""The end of the interpreter, which threads that run rollouts must be out of before.

Callbacks of MuJoCo that are Python functions cannot run any more when the interpreter is
being finalised: a thread that tries to is ended in the middle of the engine, and with it
the process. So at exit all that is in flight is cancelled, and waited for: it takes the
step that each thread is in. Daemon threads that were inside a call or a wait do not come
back from it.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet

from rollout._library import python_library


class Flight(Protocol):
    """What is in flight."""

    def cancel(self) -> None:
        """Ends it early, and does not wait for that."""

    def is_over(self) -> bool:
        """Whether nothing of it is in use any more."""


# A signal's handler may submit, too.
_lock = threading.RLock()
_flights: WeakSet[Flight] = WeakSet()
_ending = False


def launch(flight: Flight, begin: Callable[[], None]) -> None:
    """Begins something that is cancelled at exit.

    Raises:
        RuntimeError: it is too late to.
    """
    with _lock:
        if not _ending:
            _flights.add(flight)
            return begin()
    stay_away_if_late()
    raise RuntimeError("nothing can be submitted while the interpreter exits")


def stay_away_if_late() -> None:
    """Does not return in a thread that the interpreter does not wait for when it exits."""
    while _ending and threading.current_thread() is not threading.main_thread():
        time.sleep(3600)


def _end() -> None:
    global _ending
    with _lock:
        _ending = True
        flights = list(_flights)
    for flight in flights:
        flight.cancel()
    # Short naps, in which other threads get the interpreter's lock.
    while not all(flight.is_over() for flight in flights) or python_library.rollout_python_end():
        time.sleep(0.001)


def _begin_in_child() -> None:
    global _lock, _flights
    _lock = threading.RLock()
    _flights = WeakSet()
    python_library.rollout_python_begin(threading.get_ident())


python_library.rollout_python_begin(threading.main_thread().ident)
os.register_at_fork(after_in_child=_begin_in_child)
atexit.register(_end)
