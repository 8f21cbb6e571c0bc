"""The pool of threads, requests for it, and the one call that runs one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn, Optional

import mujoco

from rollout import _abi, _mujoco
from rollout._arrays import Inputs, Outputs, place, rows
from rollout._errors import raise_error
from rollout._library import library, python_library
from rollout._outcomes import Outcomes

_MOST_THREADS = _LAST_CPU = (1 << 31) - 1

_run = python_library.rollout_python_run


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
        self._nworker = nthread if cpus is not None else max(nthread - 1, 0)
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

    def handle(self) -> ctypes.c_void_p:
        """What the library's functions take."""
        return self._handle

    def run(
        self,
        request: Request,
        outcomes: Optional[Outcomes],
        progress: Optional[Callable[[int, int], object]],
    ) -> None:
        """Runs a request and returns when all of its rollouts are done.

        Args:
            request: what to run.
            outcomes: those that the request names.
            progress: is called now and then with the rollouts and steps that are done.

        Raises:
            Overlap: an array that is written shares memory with another one.
            ValueError: the library refuses an argument.
            OutOfTime: the request's time was up.
            mujoco.FatalError: a rollout ended with an error of the engine; `rollouts` of
                the exception lists all that did, or without `outcomes` the first. The
                others have been run.
            RuntimeError: everything else.

        What a signal's handler, a callback of MuJoCo on this thread or `progress` raises is
        passed on; the request is cancelled then, and nothing of it goes on.
        """
        error = _abi.Error()
        progress_address = None if progress is None else id(progress)
        if _run(self.handle(), request.filled, error, progress_address):
            failed = [error.index] if outcomes is None else outcomes.failed()
            raise_error(error.status, error.text.decode(errors="replace"), failed)

    def stats(self) -> list[WorkerStats]:
        """What each of the pool's own threads has done."""
        stats = (_abi.WorkerStats * self._nworker)()
        error = _abi.Error()
        if library.rollout_pool_stats(self.handle(), stats, len(stats), error):
            raise_error(error.status, error.text.decode(), [])
        return [
            WorkerStats(one.busy_ns / 1e9, one.idle_ns / 1e9, one.tasks, one.rollouts, one.steps)
            for one in stats
        ]


class WorkerStats(NamedTuple):
    """What a thread of a `Rollout` has done since it was started."""

    busy: float
    """Seconds in which it had work."""
    idle: float
    """Seconds in which it had none."""
    tasks: int
    """Tasks that it has run, of hosts that share the pool."""
    rollouts: int
    """Rollouts that it has ended."""
    steps: int
    """Steps that it has made."""


class Request:
    """What the library is told, and what must stay for as long as it uses it."""

    def __init__(
        self,
        models: Sequence[mujoco.MjModel],
        data: Sequence[mujoco.MjData],
        nbatch: int,
        nstep: int,
        control_spec: int,
        chunk_size: int,
        fill: int,
        priority: int,
        deadline_ns: int,
        outputs: Outputs,
        outcomes: Optional[Outcomes],
        inputs: Inputs,
    ) -> None:
        """Describes a request.

        Args:
            models: one for all rollouts, or one for each.
            data: one for each thread that may take part.
            nbatch: number of rollouts, at least 1.
            nstep: number of steps.
            control_spec: which inputs the controls are.
            chunk_size: rollouts that a thread takes at a time; 0 for the library's choice.
            fill: what the rows hold that are not valid.
            priority: that of an int32.
            deadline_ns: when it ends, as a time of `time.monotonic_ns`; 0 for no time.
            outputs: states and sensor values.
            outcomes: where to say what became of each rollout.
            inputs: start states, warm starts and controls.

        Raises:
            ValueError: MuJoCo's own threads would run on a data.
        """
        described, of_data = _mujoco.describe(models, data)
        initial_state, initial_warmstart, control = map(rows, inputs)
        state, sensordata = map(place, outputs)
        self.filled = request = _abi.Request(
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
            priority=priority,
            deadline_ns=deadline_ns,
        )
        if outcomes is not None:
            request.outcomes = outcomes.records.ctypes.data
            request.noutcome = nbatch
            if outcomes.message.size:
                request.messages = outcomes.message.ctypes.data
                request.nmessage = outcomes.message.nbytes
                request.message_size = outcomes.message.itemsize
        self.keep = (models, data, described, of_data, outputs, outcomes, inputs)
