"""The pool of threads, and the one call that runs a request on it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import NoReturn, Optional

import mujoco
import numpy as np

from rollout import _abi, _mujoco
from rollout._arrays import Inputs, Outputs, place, rows
from rollout._library import library
from rollout._outcomes import Outcomes, Status

_MOST_THREADS = _LAST_CPU = (1 << 31) - 1

_run = library.rollout_run


class Pool:
    """A pool of the library. It ends when the last reference to it goes.

    A call holds a reference, so threads are never taken from under it. Any number of
    threads may call `run` at once, each with data of its own. In a forked child it begins
    anew when it is first used.
    """

    # A pool that could not be made.
    _handle = ctypes.c_void_p()

    def __init__(self, nthread: int, cpus: Optional[Sequence[int]] = None) -> None:
        """Starts the threads.

        Args:
            nthread: the threads that a call may keep busy. The calling thread is one of
                them, so the pool itself has one less; not with `cpus`, of which there are
                as many.
            cpus: the CPU that each thread of the pool stays on.

        Raises:
            ValueError: `nthread` is negative, or no number that the library can take; or
                the library refuses the list.
            RuntimeError: the system refuses to start that many threads.
        """
        if not 0 <= nthread <= _MOST_THREADS:
            raise ValueError(f"nthread must be in 0 .. {_MOST_THREADS}, got {nthread}")
        handle = ctypes.c_void_p()
        error = _abi.Error()
        if cpus is None:
            library.rollout_pool_create(max(nthread - 1, 0), handle, error)
        else:
            for number, cpu in enumerate(cpus):
                if not 0 <= cpu <= _LAST_CPU:
                    raise ValueError(f"cpus[{number}]: is {cpu}, which is no CPU")
            listed = (ctypes.c_int32 * nthread)(*cpus)
            library.rollout_pool_create_on(listed, nthread, handle, error)
        if error.status:
            raise_error(error.status, error.text.decode(), [])
        self.nthread = nthread
        self._handle = handle
        self._address = handle.value or 0
        self._destroy: Callable[[ctypes.c_void_p], None] = library.rollout_pool_destroy

    def __del__(self) -> None:
        if self._handle:
            self._destroy(self._handle)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a pool of threads can be neither copied nor pickled")

    def address(self) -> int:
        """The library's handle, for as long as this object lives."""
        return self._address

    def cpus(self) -> Optional[tuple[int, ...]]:
        """The CPU that each thread of the pool stays on, if they do."""
        found = []
        for thread in range(self.nthread):
            cpu = ctypes.c_int32(-1)
            # (The last one may be the caller, which is no thread of the pool.)
            library.rollout_pool_cpu(self._handle, thread, cpu, None)
            found.append(cpu.value)
        return tuple(found) if found and found[0] >= 0 else None

    def run(
        self,
        models: Sequence[mujoco.MjModel],
        data: Sequence[mujoco.MjData],
        nbatch: int,
        nstep: int,
        control_spec: int,
        chunk_size: int,
        fill: int,
        outputs: Outputs,
        outcomes: Optional[Outcomes],
        inputs: Inputs,
    ) -> None:
        """Runs a request and returns when all of its rollouts are done.

        Args:
            models: one for all rollouts, or one for each.
            data: one for each thread that may take part.
            nbatch: number of rollouts, at least 1.
            nstep: number of steps.
            control_spec: which inputs the controls are.
            chunk_size: rollouts that a thread takes at a time; 0 for the library's choice.
            fill: what the rows hold that are not valid.
            outputs: states and sensor values.
            outcomes: where to say what became of each rollout.
            inputs: start states, warm starts and controls.

        Raises:
            Overlap: an array that is written shares memory with another one.
            ValueError: the library refuses an argument.
            mujoco.FatalError: a rollout ended with an error of the engine; `rollouts` of
                the exception lists all that did, or without `outcomes` the first. The
                others have been run.
            RuntimeError: everything else.
        """
        described, of_data = _mujoco.describe(models, data)
        initial_state, initial_warmstart, control = map(rows, inputs)
        state, sensordata = map(place, outputs)
        request = _abi.Request(
            size=ctypes.sizeof(_abi.Request),
            engine=_mujoco.ENGINE,
            models=ctypes.addressof(described),
            nmodel=len(described),
            data=ctypes.addressof(of_data),
            ndata=len(of_data),
            nbatch=nbatch,
            nstep=nstep,
            control_spec=control_spec,
            fill=fill,
            initial_state=initial_state,
            initial_warmstart=initial_warmstart,
            control=control,
            state=state,
            sensordata=sensordata,
            chunk_size=chunk_size,
        )
        if outcomes is not None:
            request.outcomes = outcomes.records.ctypes.data
            request.noutcome = nbatch
            if outcomes.message.size:
                request.messages = outcomes.message.ctypes.data
                request.nmessage = outcomes.message.nbytes
                request.message_size = outcomes.message.itemsize
        error = _abi.Error()
        if _run(self._handle, request, error):
            failed = [error.index]
            if outcomes is not None:
                failed = np.flatnonzero(outcomes.status == Status.ENGINE_ERROR).tolist()
            raise_error(error.status, error.text.decode(errors="replace"), failed)


class Overlap(ValueError):
    """An array that is written shares memory with another one."""


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
    if status == _abi.STATUS_OVERLAP:
        return Overlap(text)
    return (ValueError if status in _abi.STATUS_REFUSED else RuntimeError)(text)
