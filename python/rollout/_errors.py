"""The exceptions of calls."""

from __future__ import annotations

from typing import NoReturn

import mujoco

from rollout import _abi


class Overlap(ValueError):
    """An array that is written shares memory with another one."""


class OutOfTime(TimeoutError):
    """The time that a call or a ticket was given was up before all of its rollouts had ended."""


def raise_error(status: int, text: str, failed: list[int]) -> NoReturn:
    """Raises the exception for a status of the library and the rollouts that failed."""
    # Not under a name: an exception that a frame of its own traceback names keeps all that
    # is in its frames alive, the pool among it.
    raise _exception(status, text, failed)


def _exception(status: int, text: str, failed: list[int]) -> Exception:
    if status == _abi.STATUS_ROLLOUTS_FAILED:
        error: Exception = mujoco.FatalError(text)
        error.rollouts = failed  # type: ignore[attr-defined]
        return error
    if status == _abi.STATUS_OUT_OF_TIME:
        return OutOfTime(text)
    if status == _abi.STATUS_OVERLAP:
        return Overlap(text)
    return (ValueError if status in _abi.STATUS_REFUSED else RuntimeError)(text)


def first_cause(error: BaseException) -> BaseException:
    """What a callback of MuJoCo that is a Python function has raised on this thread.

    It ends its rollout by an error of the engine, and is still set when the call returns.
    Python wraps it then, and each time that a callback was called meanwhile.
    """
    while isinstance(error, SystemError) and error.__cause__ is not None:
        error = error.__cause__
    return error
