"""The pool of threads, and the one call that runs a request on it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

import mujoco

from rollout import _abi, _mujoco
from rollout._arrays import Place, Rows
from rollout._library import library

# What a request has in full; a request packs all of it at once.
_pack_request = _abi.packer(_abi.Request).pack_into
_REQUEST_SIZE = ctypes.sizeof(_abi.Request)
_run = library.rollout_run

# Counts the forks between the first process and this one.
_process = 0


def _count_fork() -> None:
    global _process
    _process += 1


os.register_at_fork(after_in_child=_count_fork)


class Pool:
    """A pool of the library. It ends when the last reference to it goes.

    A call holds a reference, so threads are never taken from under it. Any number of
    threads may call `run` at once, each with data of its own.
    """

    # A pool that could not be made.
    _handle = ctypes.c_void_p()

    def __init__(self, nthread: int) -> None:
        """Starts the threads.

        Args:
            nthread: the threads that a call may keep busy. The calling thread is one of
                them, so the pool itself has one less.

        Raises:
            ValueError: `nthread` is negative.
            RuntimeError: the system refuses to start that many threads.
        """
        if nthread < 0:
            raise ValueError(f"nthread must be non-negative, got {nthread}")
        handle = ctypes.c_void_p()
        error = _abi.Error()
        if library.rollout_pool_create(
            max(nthread - 1, 0), ctypes.byref(handle), ctypes.byref(error)
        ):
            raise RuntimeError(error.text.decode())
        self.nthread = nthread
        self._handle = handle
        self._address = handle.value or 0
        # Kept here for an interpreter that ends, where the globals may be gone already.
        self._destroy: Callable[[ctypes.c_void_p], None] = library.rollout_pool_destroy
        self._process = _process
        self._idle: list[_Call] = []

    def __del__(self) -> None:
        # Threads do not follow into a forked child: there is nothing to end there.
        if self._handle and self.is_alive():
            self._destroy(self._handle)

    def address(self) -> int:
        """The library's handle, for as long as this object lives; 0 in a forked child."""
        return self._address if self._process == _process else 0

    def is_alive(self) -> bool:
        """Whether this is the process that made the pool, and not a forked child of it."""
        return self._process == _process

    def run(
        self,
        models: Sequence[mujoco.MjModel],
        data: Sequence[mujoco.MjData],
        nbatch: int,
        nstep: int,
        control_spec: int,
        chunk_size: int,
        initial_state: Rows,
        initial_warmstart: Rows,
        control: Rows,
        state: Place,
        sensordata: Place,
    ) -> None:
        """Runs a request and returns when all of its rollouts are done.

        Args:
            models: one for all rollouts, or one for each.
            data: one for each thread that may take part.
            nbatch: number of rollouts, at least 1.
            nstep: number of steps.
            control_spec: which inputs `control` holds.
            chunk_size: rollouts that a thread takes at a time; 0 for the library's choice.
            initial_state: nbatch x nstate.
            initial_warmstart: nbatch x nv.
            control: nbatch x nstep x ncontrol.
            state: output, nbatch x nstep x nstate.
            sensordata: output, nbatch x nstep x nsensordata.

        Raises:
            Overlap: an array that is written shares memory with another one.
            ValueError: the library refuses an argument.
            mujoco.FatalError: a rollout ended with an error of the engine; `rollouts` of
                the exception lists all that did. The others have been run.
            RuntimeError: everything else.
        """
        if not self.is_alive():
            raise RuntimeError("a pool of threads does not follow into a forked process")
        try:
            call = self._idle.pop()
        except IndexError:
            call = _Call()
        call.reserve(len(models), len(data), nbatch)
        _mujoco.describe(models, data, call.models, call.data)
        _pack_request(
            call.request,
            0,
            _REQUEST_SIZE,
            _mujoco.ENGINE,
            call.models_address,
            len(models),
            call.data_address,
            len(data),
            nbatch,
            nstep,
            control_spec,
            _abi.FILL_HOLD,
            *initial_state,
            *initial_warmstart,
            *control,
            *state,
            *sensordata,
            call.outcomes_address,
            nbatch,
            0,
            0,
            0,
            chunk_size,
        )
        if _run(self._handle, call.request_pointer, call.error_pointer):
            failed = (
                rollout
                for rollout in range(nbatch)
                if call.outcomes[rollout].status == _abi.OUTCOME_ENGINE_ERROR
            )
            raise_error(call.error.status, call.error.text.decode(errors="replace"), failed)
        self._idle.append(call)


class _Call:
    """The memory that a call needs beside its arrays, kept from one call to the next."""

    def __init__(self) -> None:
        self.request = ctypes.create_string_buffer(_REQUEST_SIZE)
        self.request_pointer = ctypes.c_void_p(ctypes.addressof(self.request))
        self.error = _abi.Error()
        self.error_pointer = ctypes.c_void_p(ctypes.addressof(self.error))
        self._room = (0, 0, 0)

    def reserve(self, nmodel: int, ndata: int, nbatch: int) -> None:
        """Makes room for a request of these sizes."""
        room = (nmodel, ndata, nbatch)
        if room == self._room:
            return
        self.models = ctypes.create_string_buffer(nmodel * ctypes.sizeof(_abi.Model))
        self.data = ctypes.create_string_buffer(ndata * ctypes.sizeof(_abi.Data))
        self.outcomes = (_abi.Outcome * nbatch)()
        self.models_address = ctypes.addressof(self.models)
        self.data_address = ctypes.addressof(self.data)
        self.outcomes_address = ctypes.addressof(self.outcomes)
        self._room = room


class Overlap(ValueError):
    """An array that is written shares memory with another one."""


def raise_error(status: int, text: str, failed: Iterable[int]) -> NoReturn:
    """Raises the exception for a status of the library and the rollouts that failed."""
    if status == _abi.STATUS_ROLLOUTS_FAILED:
        error = mujoco.FatalError(text)
        error.rollouts = list(failed)
        try:
            raise error
        finally:
            # The exception knows this frame; knowing it in turn would keep both, and all
            # arguments, until the garbage collector comes by.
            del error
    if status == _abi.STATUS_OVERLAP:
        raise Overlap(text)
    raise (ValueError if status in _abi.STATUS_REFUSED else RuntimeError)(text)
