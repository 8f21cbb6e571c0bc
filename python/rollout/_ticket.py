"""Requests that were submitted, and come back later."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, Generic, NamedTuple, NoReturn, Optional, TypeVar

from rollout import _abi, _exit
from rollout._errors import first_cause, raise_error
from rollout._library import library
from rollout._outcomes import Outcomes
from rollout._pool import Pool, Request

# How long a wait is in the library before it comes back for Python to handle signals.
_SLICE = 0.05

# How long a ticket that nobody has any more is waited for: longer than most steps take, and
# no longer than somebody who drops one inside of its own callback can wait.
_PATIENCE = 1.0


class Progress(NamedTuple):
    """How far a request has come."""

    rollouts: int
    """Rollouts that have ended, however they did."""
    steps: int
    """Steps that were made."""
    nbatch: int
    """Rollouts of the request."""
    nstep: int
    """Steps of each of them, if nothing ends it early."""


class Flight:
    """A ticket of the library, and all that it needs to be there.

    Nothing is in flight before `launch`, so that whoever has it to `leave` it can have it
    before.
    """

    # One whose making was interrupted.
    _process = -1

    def __init__(self) -> None:
        self._handle = ctypes.c_void_p()
        self._release: Callable[..., int] = library.rollout_ticket_release
        self._keep: Any = None
        self._process = os.getpid()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Whoever lets it go has left it, so that it is over.
        if not is_finalizing() and self.is_here():
            self._release(self._handle, None)

    def launch(self, pool: Pool, request: Request) -> None:
        """Submits a request.

        Raises:
            Overlap: an array that is written shares memory with another one.
            ValueError: the library refuses an argument.
            RuntimeError: everything else.
        """
        _sweep()
        self._keep = (pool, request.keep)

        def begin() -> None:
            error = _abi.Error()
            if library.rollout_submit(pool.handle(), request.filled, self._handle, error):
                raise_error(error.status, error.text.decode(errors="replace"), [])

        _exit.launch(self, begin)

    def cancel(self) -> None:
        library.rollout_ticket_cancel(self._handle, None)

    def is_over(self) -> bool:
        if not self._handle:
            return True
        done = ctypes.c_int32()
        library.rollout_ticket_done(self._handle, done, None)
        return bool(done.value)

    def is_here(self) -> bool:
        """Whether this is the process that it was submitted in."""
        return self._process == os.getpid()

    def progress(self) -> Progress:
        found = _abi.Progress()
        library.rollout_ticket_progress(self._handle, found, None)
        return Progress(found.rollouts, found.steps, found.nbatch, found.nstep)

    def wait(self, timeout: float) -> _abi.Error:
        """Waits, or works, for so many seconds. The error says what has come of it."""
        error = _abi.Error()
        library.rollout_ticket_wait(self._handle, int(timeout * 1e9), error)
        return error

    def leave(self) -> None:
        """Cancels and ends what nobody asks for any more.

        Whoever has dropped it may be anywhere, as the garbage collector is: in a callback of
        its own rollouts even, which cannot wait for themselves. So if it does not end soon,
        it is kept until it has.
        """
        if not self.is_here():
            # Its threads are not in this process, and never end it.
            return
        self.cancel()
        self.wait(_PATIENCE)
        if not self.is_over():
            _left.add(self)


# Without a lock, as the garbage collector may come here from everywhere.
_left: set[Flight] = set()


def _sweep() -> None:
    """Lets go of those that have ended after they were left."""
    for flight in list(_left):
        if flight.is_over():
            _left.discard(flight)


os.register_at_fork(after_in_child=_left.clear)


Result = TypeVar("Result")


class Ticket(Generic[Result]):
    """A request that was submitted: `Rollout.submit` makes it.

    The threads of its `Rollout` work on it, and so does whoever waits for it. It keeps all
    that it needs alive: arrays, models, data, and the threads, also when its `Rollout` is
    closed. A ticket that nobody has any more is cancelled, and so is one that is in flight
    when the interpreter exits.

    Its methods may be called from any number of threads at once. It can be awaited, too, in
    a coroutine of asyncio; a thread of the loop's executor then waits. If the task that
    awaits it is cancelled, it is cancelled.

    As a context manager it is closed at the end. In a forked process the tickets of its
    parent cannot be used: their methods raise a RuntimeError.
    """

    def __init__(
        self,
        flight: Optional[Flight],
        result: Result,
        outcomes: Optional[Outcomes],
        tells: bool,
        size: tuple[int, int],
    ) -> None:
        """For `Rollout.submit`.

        Args:
            flight: what was submitted; None if there was nothing to do.
            result: what comes of it.
            outcomes: what becomes of each rollout.
            tells: whether the result has the outcomes in it.
            size: nbatch and nstep.
        """
        self._flight = flight
        self._result = result
        self._outcomes = outcomes
        self._tells = tells
        self._size = size

    def __enter__(self) -> Ticket[Result]:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # (When the interpreter is being finalised, all is over: `_exit.py`.)
        if self._flight is not None and not is_finalizing():
            self._flight.leave()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a ticket can be neither copied nor pickled")

    def __repr__(self) -> str:
        if self._flight is not None and not self._flight.is_here():
            return "<Ticket: of another process>"
        done = self.progress()
        state = "done" if self.done() else "in flight"
        return f"<Ticket: {state}, {done.rollouts} of {done.nbatch} rollouts>"

    def done(self) -> bool:
        """Whether it is done: all rollouts have ended, or it was ended early."""
        flight = self._here()
        return flight is None or flight.is_over()

    def progress(self) -> Progress:
        """How far it has come."""
        flight = self._here()
        return Progress(0, 0, *self._size) if flight is None else flight.progress()

    def cancel(self) -> None:
        """Ends it early: each thread ends its rollout after the step that it is in.

        Returns at once; `wait` waits for the end. Does nothing if it is done.
        """
        flight = self._here()
        if flight is not None:
            flight.cancel()

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits until it is done, and works on it meanwhile.

        Ctrl-C, or what else a handler of a signal raises, ends the wait and not the request.

        Args:
            timeout: seconds to wait at most; None for as long as it takes. 0 only looks.

        Returns:
            Whether it is done.

        Raises:
            RuntimeError: a callback of MuJoCo that runs on this pool waits for it.

        What a callback raises in a rollout that this thread works on is passed on, too.
        """
        flight = self._here()
        if flight is None:
            return True
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _SLICE if until is None else max(until - time.monotonic(), 0)
            error = _wait(flight, min(left, _SLICE))
            _exit.stay_away_if_late()
            if error.status == _abi.STATUS_WOULD_DEADLOCK:
                raise RuntimeError(error.text.decode())
            if error.status != _abi.STATUS_TIMEOUT:
                return True
            if left <= _SLICE and until is not None and time.monotonic() >= until:
                return False

    def result(self, timeout: Optional[float] = None) -> Result:
        """Waits until it is done, and gives what `Rollout.rollout` would return or raise.

        Args:
            timeout: seconds to wait at most; None for as long as it takes.

        Raises:
            TimeoutError: it is not done in time. It goes on.
            OutOfTime: its own time, the `timeout` of `Rollout.submit`, was up before all of
                its rollouts had ended. Not raised with `outcomes`, which tell.
            concurrent.futures.CancelledError: it was cancelled before all had ended.
            mujoco.FatalError: MuJoCo reported an error. Not raised with `outcomes`.
            RuntimeError: everything else; see `wait`, too.
        """
        if not self.wait(timeout):
            raise TimeoutError("the request is not done yet")
        if self._flight is None:
            return self._result
        error = self._flight.wait(0)
        if not error.status or (self._tells and error.status in _abi.STATUS_TOLD):
            return self._result
        text = error.text.decode(errors="replace")
        if error.status == _abi.STATUS_CANCELLED:
            raise CancelledError(text)
        failed = [error.index] if self._outcomes is None else self._outcomes.failed()
        raise_error(error.status, text, failed)

    def close(self) -> None:
        """Cancels it, and waits for its end. Then nothing uses its data and arrays any more."""
        self.cancel()
        self.wait()

    def __await__(self) -> Generator[Any, None, Result]:
        return self._awaited().__await__()

    async def _awaited(self) -> Result:
        try:
            await asyncio.get_running_loop().run_in_executor(None, self.wait)
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self.result()

    def _here(self) -> Optional[Flight]:
        flight = self._flight
        if flight is not None and not flight.is_here():
            raise RuntimeError("a ticket does not follow into a forked process")
        return flight


def _wait(flight: Flight, seconds: float) -> _abi.Error:
    try:
        return flight.wait(seconds)
    except SystemError as error:
        cause = first_cause(error)
    try:
        raise cause
    finally:
        # Or this frame and the traceback would keep each other alive.
        del cause
