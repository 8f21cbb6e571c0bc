"""`Rollout` and `rollout`: what `mujoco.rollout` offers, with its arguments and errors."""

from __future__ import annotations

import atexit
import math
import operator
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple, NoReturn, Optional, Union, overload

import mujoco
import numpy as np
import numpy.typing as npt

from rollout import _abi
from rollout._arrays import (
    Array,
    Inputs,
    Outputs,
    as_input,
    as_output,
    as_result,
    check_size,
    check_trailing,
    infer,
    readable,
)
from rollout._errors import OutOfTime, Overlap, first_cause
from rollout._fast import fast_rollout as _fast_rollout
from rollout._library import library
from rollout._mujoco import CTRL, FULL_PHYSICS, USER
from rollout._outcomes import Outcomes
from rollout._pool import Pool, Request, WorkerStats
from rollout._progress import Show, shown
from rollout._ticket import Flight, Ticket

Models = Union[mujoco.MjModel, Sequence[mujoco.MjModel]]
Fill = Literal["hold", "nan", "untouched"]
AllData = Union[mujoco.MjData, Sequence[mujoco.MjData]]

_state_size = mujoco.mj_stateSize
_MjModel = mujoco.MjModel
_MjData = mujoco.MjData

# Outcomes that nobody asked for only serve to list failed rollouts; a call of more
# rollouts than this does without.
_MOST_OUTCOMES = 32_768


class Rollout:
    """A pool of threads that lives as long as its user wants, and runs rollouts.

    Any number of Python threads may use one object at once, each with data of its own.

    In a process that was forked (`os.fork`, `multiprocessing`) it works too, with threads
    that are started there when they are first needed, whatever other threads were at.
    """

    nthread: int
    """Number of threads that work on a call, the calling thread included; 0 is as good as 1.
    With `cpus` their number: the threads of the pool alone."""

    cpus: Optional[tuple[int, ...]]
    """The CPU that each thread stays on, or None if they do not."""

    def __init__(
        self, *, nthread: Optional[int] = None, cpus: Optional[Sequence[int]] = None
    ) -> None:
        """Starts the threads.

        Args:
            nthread: number of threads; the calling thread of `rollout` is one of them. With
                0, 1 or None everything runs on the calling thread. `default_nthread()` is
                as many as can be kept busy.
            cpus: instead of `nthread`, the numbers of CPUs (from 0, as in `os.sched_setaffinity`),
                on each of which one thread is started and stays. The calling thread is none
                of them: there are as many data as CPUs.

        Raises:
            ValueError: `nthread` is negative; or `cpus` is empty, or has a CPU twice, or one
                that this thread may not use (`os.sched_getaffinity(0)`); or both are given.
            RuntimeError: the system refuses to start that many threads.
        """
        if cpus is None:
            self.nthread = 0 if nthread is None else operator.index(nthread)
            pool = Pool(self.nthread)
        else:
            if nthread is not None:
                raise ValueError("nthread and cpus are both given: a pool has a thread on each CPU")
            listed = [operator.index(cpu) for cpu in cpus]
            self.nthread = len(listed)
            pool = Pool(self.nthread, listed)
        self.cpus = pool.cpus()
        self._pool: Optional[Pool] = pool

    def __enter__(self) -> Rollout:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a pool of threads can be neither copied nor pickled")

    def close(self) -> None:
        """Ends the threads, as soon as no call uses them any more. Can be called again."""
        self._pool = None

    @overload
    def rollout(
        self,
        model: Models,
        data: AllData,
        initial_state: npt.ArrayLike,
        control: Optional[npt.ArrayLike] = None,
        *,
        control_spec: int = CTRL,
        skip_checks: bool = False,
        nstep: Optional[int] = None,
        initial_warmstart: Optional[npt.ArrayLike] = None,
        state: Optional[Array] = None,
        sensordata: Optional[Array] = None,
        chunk_size: Optional[int] = None,
        fill: Fill = "hold",
        outcomes: Literal[False] = False,
        timeout: Optional[float] = None,
        priority: int = 0,
        progress: Show = False,
    ) -> tuple[Array, Array]: ...

    @overload
    def rollout(
        self,
        model: Models,
        data: AllData,
        initial_state: npt.ArrayLike,
        control: Optional[npt.ArrayLike] = None,
        *,
        control_spec: int = CTRL,
        skip_checks: bool = False,
        nstep: Optional[int] = None,
        initial_warmstart: Optional[npt.ArrayLike] = None,
        state: Optional[Array] = None,
        sensordata: Optional[Array] = None,
        chunk_size: Optional[int] = None,
        fill: Fill = "hold",
        outcomes: Literal[True],
        timeout: Optional[float] = None,
        priority: int = 0,
        progress: Show = False,
    ) -> tuple[Array, Array, Outcomes]: ...

    def rollout(
        self,
        model: Models,
        data: AllData,
        initial_state: npt.ArrayLike,
        control: Optional[npt.ArrayLike] = None,
        *,
        control_spec: int = CTRL,
        skip_checks: bool = False,
        nstep: Optional[int] = None,
        initial_warmstart: Optional[npt.ArrayLike] = None,
        state: Optional[Array] = None,
        sensordata: Optional[Array] = None,
        chunk_size: Optional[int] = None,
        fill: Fill = "hold",
        outcomes: bool = False,
        timeout: Optional[float] = None,
        priority: int = 0,
        progress: Show = False,
    ) -> Union[tuple[Array, Array], tuple[Array, Array, Outcomes]]:
        """Steps the simulation from each start state through its controls.

        What is not an argument has its default in every rollout: controls and applied
        forces are zero, mocap poses and the activity of equality constraints those of the
        model. Nothing that a data did before changes a result.

        A rollout in which MuJoCo warns (it diverged, say) or reports an error ends there.
        The rows from there on are as `fill` says, and only `outcomes` tells how many are
        valid.

        Args:
            model: one model for all rollouts, or a sequence of nbatch models of equal
                sizes.
            data: one data for each thread: `nthread`, or one for each of `cpus`. What they
                hold afterwards is not defined.
            initial_state: start states as `mj_getState` gives them for
                `mjSTATE_FULLPHYSICS`, ([nbatch or 1] x nstate).
            control: inputs of each step in the units of the model,
                ([nbatch or 1] x [nstep or 1] x ncontrol).
            control_spec: which inputs `control` holds, bits of `mjSTATE_USER`; ncontrol is
                their `mj_stateSize`.
            skip_checks: shapes are not inferred and outputs not made: `model` and `data`
                are lists, `nstep` is given, all arrays have nbatch rows.
            nstep: number of steps, where no array tells it.
            initial_warmstart: `qacc_warmstart` of each start, ([nbatch or 1] x nv). Zero if
                it is not given.
            state: where to write the states, (nbatch x nstep x nstate), float64 and
                contiguous.
            sensordata: where to write the sensor values, (nbatch x nstep x nsensordata),
                float64 and contiguous.
            chunk_size: rollouts that a thread takes at a time. Does not change results.
            fill: what the rows hold that are not valid. "hold": after a warning the state
                after MuJoCo's automatic reset, as in `mujoco.rollout`; after an error the
                last valid row. "nan": NaN. "untouched": what was there before.
            outcomes: whether to return what became of each rollout, too. An error of MuJoCo
                is then told there and not raised, and neither is the end of the `timeout`.
            timeout: seconds that the call may take, from its beginning on. When they are up,
                each thread ends its rollout after the step that it is in, and begins no other
                one. Rows that were not reached are as `fill` says; those of rollouts that
                were not begun are NaN, or untouched in an array that was given.
            priority: calls and tickets of a higher one get the threads first, and between
                rollouts those of lower ones. 0 is the usual one.
            progress: True shows a bar, which needs `tqdm`. A function is called with the
                `Progress` every 50 milliseconds or so, and at the end.

        Returns:
            The states after each step, and the sensor values, which as in MuJoCo belong to
            the state before the step; with `outcomes` also the `Outcomes`.

        Raises:
            ValueError: an argument has a wrong shape, size or value. Nothing was changed.
            TypeError: an argument is of a wrong type. Nothing was changed.
            mujoco.FatalError: MuJoCo reported an error in at least one rollout. The others
                have been run; the attribute `rollouts` lists those that failed (of more
                than 32,768 rollouts only the first).
            OutOfTime: the `timeout` was up before all rollouts had ended.
            RuntimeError: the object is closed, or a data is in use by another call.

        Ctrl-C, or whatever a handler of a signal raises in the main thread, ends the call
        within 0.1 seconds and a step of each thread. All is usable afterwards.

        What a callback (`mujoco.set_mjcb_control` and the like) raises on the calling thread
        is passed on; on another thread it becomes a `mujoco.FatalError`.
        """
        return _call(
            self._open_pool(),
            fill,
            outcomes,
            _terms(timeout, priority, progress),
            skip_checks,
            model,
            data,
            initial_state,
            control,
            control_spec,
            nstep,
            initial_warmstart,
            state,
            sensordata,
            chunk_size,
        )

    @overload
    def submit(
        self,
        model: Models,
        data: AllData,
        initial_state: npt.ArrayLike,
        control: Optional[npt.ArrayLike] = None,
        *,
        control_spec: int = CTRL,
        skip_checks: bool = False,
        nstep: Optional[int] = None,
        initial_warmstart: Optional[npt.ArrayLike] = None,
        state: Optional[Array] = None,
        sensordata: Optional[Array] = None,
        chunk_size: Optional[int] = None,
        fill: Fill = "nan",
        outcomes: Literal[False] = False,
        timeout: Optional[float] = None,
        priority: int = 0,
    ) -> Ticket[tuple[Array, Array]]: ...

    @overload
    def submit(
        self,
        model: Models,
        data: AllData,
        initial_state: npt.ArrayLike,
        control: Optional[npt.ArrayLike] = None,
        *,
        control_spec: int = CTRL,
        skip_checks: bool = False,
        nstep: Optional[int] = None,
        initial_warmstart: Optional[npt.ArrayLike] = None,
        state: Optional[Array] = None,
        sensordata: Optional[Array] = None,
        chunk_size: Optional[int] = None,
        fill: Fill = "nan",
        outcomes: Literal[True],
        timeout: Optional[float] = None,
        priority: int = 0,
    ) -> Ticket[tuple[Array, Array, Outcomes]]: ...

    def submit(
        self,
        model: Models,
        data: AllData,
        initial_state: npt.ArrayLike,
        control: Optional[npt.ArrayLike] = None,
        *,
        control_spec: int = CTRL,
        skip_checks: bool = False,
        nstep: Optional[int] = None,
        initial_warmstart: Optional[npt.ArrayLike] = None,
        state: Optional[Array] = None,
        sensordata: Optional[Array] = None,
        chunk_size: Optional[int] = None,
        fill: Fill = "nan",
        outcomes: bool = False,
        timeout: Optional[float] = None,
        priority: int = 0,
    ) -> Union[Ticket[tuple[Array, Array]], Ticket[tuple[Array, Array, Outcomes]]]:
        """Begins what `rollout` does, and returns a `Ticket` to come back for it with.

        The threads work on it, one less than `nthread`, and whoever waits for the ticket
        does; with `nthread` 0 or 1 only the latter. Any number of tickets can be in flight,
        each with data of its own. Until a ticket is done, nobody may use its data, write to
        its inputs or outputs, or change its models.

        Args:
            model: see `rollout`, as for all other arguments but those below.
            data: see there.
            initial_state: see there.
            control: see there.
            control_spec: see there.
            skip_checks: see there.
            nstep: see there.
            initial_warmstart: see there.
            state: see there.
            sensordata: see there.
            chunk_size: see there.
            fill: what the rows hold that are not valid; see there. Rows of rollouts that were
                not begun, as the ticket was cancelled or out of time, are NaN, or untouched in
                an array that was given.
            outcomes: see there.
            timeout: seconds that the ticket has, from this call on; see there.
            priority: see there.

        Raises:
            ValueError: an argument has a wrong shape, size or value. Nothing was changed.
            TypeError: an argument is of a wrong type. Nothing was changed.
            RuntimeError: the object is closed, a data is in use by another call, or the
                interpreter exits.
        """
        pool = self._open_pool()
        terms = (_terms(timeout, priority, False) or _USUAL)._replace(is_submitted=True)
        return _call(
            pool,
            fill,
            outcomes,
            terms,
            skip_checks,
            model,
            data,
            initial_state,
            control,
            control_spec,
            nstep,
            initial_warmstart,
            state,
            sensordata,
            chunk_size,
        )

    def stats(self) -> list[WorkerStats]:
        """What each of its threads has done: `nthread` - 1 of them, as the calling thread is
        the other one. What callers have done, in calls and waits, is not in it.

        Raises:
            RuntimeError: the object is closed.
        """
        return self._open_pool().stats()

    def _open_pool(self) -> Pool:
        pool = self._pool
        if pool is None:
            raise RuntimeError("rollout requested after thread pool shutdown")
        return pool


def default_nthread() -> int:
    """The number of threads that this process may keep busy.

    That is the number of CPUs that the calling thread may use (`taskset`,
    `os.sched_setaffinity`), or the number of whole CPUs in the CPU quota of its cgroup
    (containers), if that is less, and at least 1.
    """
    return int(library.rollout_default_nthread())


@overload
def rollout(
    model: Models,
    data: AllData,
    initial_state: npt.ArrayLike,
    control: Optional[npt.ArrayLike] = None,
    *,
    control_spec: int = CTRL,
    skip_checks: bool = False,
    nstep: Optional[int] = None,
    initial_warmstart: Optional[npt.ArrayLike] = None,
    state: Optional[Array] = None,
    sensordata: Optional[Array] = None,
    chunk_size: Optional[int] = None,
    persistent_pool: bool = False,
    fill: Fill = "hold",
    outcomes: Literal[False] = False,
    timeout: Optional[float] = None,
    priority: int = 0,
    progress: Show = False,
) -> tuple[Array, Array]: ...


@overload
def rollout(
    model: Models,
    data: AllData,
    initial_state: npt.ArrayLike,
    control: Optional[npt.ArrayLike] = None,
    *,
    control_spec: int = CTRL,
    skip_checks: bool = False,
    nstep: Optional[int] = None,
    initial_warmstart: Optional[npt.ArrayLike] = None,
    state: Optional[Array] = None,
    sensordata: Optional[Array] = None,
    chunk_size: Optional[int] = None,
    persistent_pool: bool = False,
    fill: Fill = "hold",
    outcomes: Literal[True],
    timeout: Optional[float] = None,
    priority: int = 0,
    progress: Show = False,
) -> tuple[Array, Array, Outcomes]: ...


def rollout(
    model: Models,
    data: AllData,
    initial_state: npt.ArrayLike,
    control: Optional[npt.ArrayLike] = None,
    *,
    control_spec: int = CTRL,
    skip_checks: bool = False,
    nstep: Optional[int] = None,
    initial_warmstart: Optional[npt.ArrayLike] = None,
    state: Optional[Array] = None,
    sensordata: Optional[Array] = None,
    chunk_size: Optional[int] = None,
    persistent_pool: bool = False,
    fill: Fill = "hold",
    outcomes: bool = False,
    timeout: Optional[float] = None,
    priority: int = 0,
    progress: Show = False,
) -> Union[tuple[Array, Array], tuple[Array, Array, Outcomes]]:
    """Does what `Rollout.rollout` does, on as many threads as there are data.

    Args:
        model: see `Rollout.rollout`, as for all arguments but `persistent_pool`.
        data: see there.
        initial_state: see there.
        control: see there.
        control_spec: see there.
        skip_checks: see there.
        nstep: see there.
        initial_warmstart: see there.
        state: see there.
        sensordata: see there.
        chunk_size: see there.
        persistent_pool: whether to keep the threads for the next call. Otherwise they are
            started and ended by each call of several data, which costs some 50
            microseconds for each.
        fill: see there.
        outcomes: see there.
        timeout: see there.
        priority: see there.
        progress: see there.

    Returns:
        See `Rollout.rollout`.
    """
    # Before the threads are started, which counts.
    terms = _terms(timeout, priority, progress)
    data = _list_of(_MjData, "data", data)
    nthread = len(data) if len(data) > 1 else 0
    if persistent_pool:
        pool = _persistent(nthread)
    else:
        pool = Pool(nthread) if nthread else _without_threads()
    return _call(
        pool,
        fill,
        outcomes,
        terms,
        skip_checks,
        model,
        data,
        initial_state,
        control,
        control_spec,
        nstep,
        initial_warmstart,
        state,
        sensordata,
        chunk_size,
    )


_no_threads: Optional[Pool] = None


def _without_threads() -> Pool:
    """A pool of no threads: there is nothing in it that calls could not share."""
    global _no_threads
    pool = _no_threads
    if pool is None:
        pool = _no_threads = Pool(0)
    return pool


_persistent_pool: Optional[Pool] = None
_persistent_lock = threading.Lock()


def _free_persistent_lock() -> None:
    """In a forked child nobody holds the lock, whoever did when it was forked."""
    global _persistent_lock
    _persistent_lock = threading.Lock()


os.register_at_fork(after_in_child=_free_persistent_lock)


def _persistent(nthread: int) -> Pool:
    """The pool that outlives a call, made anew for another number of threads."""
    global _persistent_pool
    with _persistent_lock:
        pool = _persistent_pool
        if pool is None or pool.nthread != nthread:
            pool = _persistent_pool = Pool(nthread)
        return pool


def shutdown_persistent_pool() -> None:
    """Ends the threads that `rollout` kept for `persistent_pool`, if there are any.

    Python calls this when it exits.
    """
    global _persistent_pool
    with _persistent_lock:
        _persistent_pool = None


atexit.register(shutdown_persistent_pool)


def _call(
    pool: Pool,
    fill: Fill,
    outcomes: bool,
    terms: Optional[_Terms],
    skip_checks: bool,
    *arguments: Any,
) -> Any:
    """Runs the usual call on the fast path, and any other as it needs."""
    try:
        if fill == "hold" and not outcomes and terms is None:
            done = _fast_rollout(pool.address(), pool.nthread, skip_checks, *arguments)
            if done is not None:
                return done
        run = _run_unchecked if skip_checks else _run
        return run(_Way(pool, _fill(fill), outcomes, terms or _USUAL), *arguments)
    except SystemError as error:
        cause = first_cause(error)
    try:
        raise cause
    finally:
        # Or this frame and the traceback would keep each other alive.
        del cause


class _Terms(NamedTuple):
    """What a call wants beside its rollouts."""

    deadline_ns: int
    priority: int
    progress: Show
    is_submitted: bool = False

    def may_end_early(self) -> bool:
        return bool(self.deadline_ns) or self.is_submitted


_USUAL = _Terms(0, 0, False)


def _terms(timeout: Optional[float], priority: int, progress: Show) -> Optional[_Terms]:
    """The terms of a call that begins now; None for the usual ones."""
    if timeout is None and priority == 0 and progress is False:
        return None
    deadline_ns = 0 if timeout is None else _deadline_ns(timeout)
    priority = _integer("priority", priority)
    if not -(1 << 31) <= priority < 1 << 31:
        raise ValueError(f"priority must be a number of 32 bits, got {priority}")
    if not isinstance(progress, bool) and not callable(progress):
        raise TypeError(f"progress must be a bool or a function, not {type(progress).__name__}")
    return _Terms(deadline_ns, priority, progress)


# No deadline is later.
_CENTURY = 3.2e9


def _deadline_ns(timeout: float) -> int:
    now = time.monotonic_ns()
    if not timeout >= 0:
        raise ValueError(f"timeout must be a non-negative number of seconds, got {timeout}")
    return now + max(int(min(timeout, _CENTURY) * 1e9), 1)


class _Way(NamedTuple):
    """How to run, whatever the arrays."""

    pool: Pool
    fill: int
    outcomes: bool
    terms: _Terms

    def new_output(self, shape: tuple[int, int, int]) -> Array:
        """An array for results. What may not be written is NaN, and not just anything."""
        return np.full(shape, np.nan) if self.terms.may_end_early() else np.empty(shape)


def _fill(fill: str) -> int:
    codes = {"hold": _abi.FILL_HOLD, "nan": _abi.FILL_NAN, "untouched": _abi.FILL_UNTOUCHED}
    if fill not in codes:
        raise ValueError(f"fill must be one of {', '.join(codes)}, not {fill!r}")
    return codes[fill]


def _run(
    way: _Way,
    model: Models,
    data: AllData,
    initial_state: npt.ArrayLike,
    control: Optional[npt.ArrayLike],
    control_spec: int,
    nstep: Optional[int],
    initial_warmstart: Optional[npt.ArrayLike],
    state: Optional[Array],
    sensordata: Optional[Array],
    chunk_size: Optional[int],
) -> Any:
    """Checks the arguments, infers what they leave open, makes outputs, and runs."""
    control_spec = _spec(control_spec)
    steps = 1 if nstep is None else _steps(nstep)
    chunk_size = None if chunk_size is None else _chunk_size(chunk_size)
    # Before the arrays: a sequence of the caller's own kind runs the caller's code.
    models = _list_of(_MjModel, "model", model)
    alone = isinstance(model, _MjModel)
    data = _list_of(_MjData, "data", data)

    starts = as_input("initial_state", initial_state, 2)
    warmstarts = controls = None
    if initial_warmstart is not None:
        warmstarts = as_input("initial_warmstart", initial_warmstart, 2)
    if control is not None:
        controls = as_input("control", control, 3)
    states = None if state is None else as_output("state", state)
    sensors = None if sensordata is None else as_output("sensordata", sensordata)
    with_steps = (("control", controls), ("state", states), ("sensordata", sensors))
    nbatch = infer(0, 1, (("initial_state", starts), ("initial_warmstart", warmstarts)))
    nbatch = infer(0, nbatch, with_steps)
    nstep = infer(1, steps, with_steps)

    if not alone and nbatch == 1:
        nbatch = len(models)
    if len(models) > 1 and len(models) != nbatch:
        raise ValueError(f"nbatch inferred as {nbatch} but model is length {len(models)}")
    models = _distinct(models)

    first = models[0]
    nstate = _state_size(first, FULL_PHYSICS)
    nsensordata = first.nsensordata
    if len(models) > 1:
        _check_compatible(models, control_spec)
    check_trailing("initial_state", starts, nstate)
    if states is None:
        states = way.new_output((nbatch, nstep, nstate))
    else:
        check_trailing("state", states, nstate)
        check_size("state", states, nbatch * nstep * nstate)
    if controls is not None:
        check_trailing("control", controls, _state_size(first, control_spec))
    if warmstarts is not None:
        check_trailing("initial_warmstart", warmstarts, first.nv)
    if sensors is None:
        sensors = way.new_output((nbatch, nstep, nsensordata))
    else:
        check_trailing("sensordata", sensors, nsensordata)
        check_size("sensordata", sensors, nbatch * nstep * nsensordata)

    return _dispatch(
        way,
        models,
        data,
        nbatch,
        nstep,
        control_spec,
        chunk_size,
        (starts, warmstarts, controls),
        (states, sensors),
        (as_result(state, states), as_result(sensordata, sensors)),
    )


def _run_unchecked(
    way: _Way,
    model: Models,
    data: AllData,
    initial_state: npt.ArrayLike,
    control: Optional[npt.ArrayLike],
    control_spec: int,
    nstep: Optional[int],
    initial_warmstart: Optional[npt.ArrayLike],
    state: Optional[Array],
    sensordata: Optional[Array],
    chunk_size: Optional[int],
) -> Any:
    """Infers nothing and makes no outputs; sizes are checked all the same."""
    if not isinstance(model, list):
        raise TypeError(f"model must be a list with skip_checks, not {type(model).__name__}")
    if not isinstance(data, list):
        raise TypeError(f"data must be a list with skip_checks, not {type(data).__name__}")
    control_spec = _spec(control_spec)
    if nstep is None:
        raise TypeError("nstep must be given with skip_checks")
    nstep = _steps(nstep)
    chunk_size = None if chunk_size is None else _chunk_size(chunk_size)

    array = np.asarray(initial_state)
    if array.ndim != 2:
        raise ValueError(f"initial_state must have 2 dimensions, got {array.ndim}")
    starts = readable(array)
    nbatch = len(starts)
    models = _list_of(_MjModel, "model", model)
    if len(models) < nbatch:
        raise ValueError(f"nbatch is {nbatch} but model is length {len(models)}")
    models = _distinct(models[: max(nbatch, 1)])
    data = _list_of(_MjData, "data", data)
    first = models[0]
    nstate = _state_size(first, FULL_PHYSICS)

    check_size("initial_state", starts, nbatch * nstate)
    warmstarts = controls = None
    if initial_warmstart is not None:
        shape: tuple[int, ...] = (nbatch, first.nv)
        warmstarts = _of_shape("initial_warmstart", initial_warmstart, shape)
    if control is not None:
        shape = (nbatch, nstep, _state_size(first, control_spec))
        controls = _of_shape("control", control, shape)
    states = None if state is None else as_output("state", state)
    check_size("state", states, nbatch * nstep * nstate)
    sensors = None if sensordata is None else as_output("sensordata", sensordata)
    check_size("sensordata", sensors, nbatch * nstep * first.nsensordata)
    return _dispatch(
        way,
        models,
        data,
        nbatch,
        nstep,
        control_spec,
        chunk_size,
        (starts, warmstarts, controls),
        (states, sensors),
        (state, sensordata),
    )


def _of_shape(name: str, value: npt.ArrayLike, shape: tuple[int, ...]) -> Array:
    """An input that has as many numbers as the shape, in its order."""
    array = np.asarray(value)
    check_size(name, array, math.prod(shape))
    return readable(array if array.shape == shape else array.reshape(shape))


def _dispatch(
    way: _Way,
    models: Sequence[mujoco.MjModel],
    data: Sequence[mujoco.MjData],
    nbatch: int,
    nstep: int,
    control_spec: int,
    chunk_size: Optional[int],
    inputs: Inputs,
    outputs: Outputs,
    results: tuple[Any, Any],
) -> Any:
    """Runs what has been checked and returns the results, or submits it."""
    ndata, nthread = len(data), way.pool.nthread
    if ndata != nthread:
        if nthread:
            raise ValueError(f"Length of data: {ndata} not equal to nthread: {nthread}")
        if ndata > 1:
            raise ValueError(
                "More than one data instance passed but rollout is configured to run on main thread"
            )
    outcomes = None
    if way.outcomes:
        outcomes = Outcomes(nbatch)
    elif nbatch <= _MOST_OUTCOMES:
        # To list the rollouts that failed.
        outcomes = Outcomes(nbatch, message_size=0)
    result = (*results, outcomes) if way.outcomes else results

    chunk = min(chunk_size or 0, nbatch)
    terms = way.terms

    def request(inputs: Inputs) -> Request:
        return Request(
            models,
            data,
            nbatch,
            nstep,
            control_spec,
            chunk,
            way.fill,
            terms.priority,
            terms.deadline_ns,
            outputs,
            outcomes,
            inputs,
        )

    if terms.is_submitted:
        flight = Flight() if nbatch else None
        ticket = Ticket(flight, result, outcomes, way.outcomes, (nbatch, nstep))
        if flight is not None:
            launch = flight.launch
            _apart(lambda inputs: launch(way.pool, request(inputs)), inputs)
        return ticket
    if nbatch:
        with shown(terms.progress, nbatch, nstep) as show:
            try:
                _apart(lambda inputs: way.pool.run(request(inputs), outcomes, show), inputs)
            except (mujoco.FatalError, OutOfTime):
                if not way.outcomes:
                    raise
    return result


def _apart(run: Callable[[Inputs], None], inputs: Inputs) -> None:
    """Runs with inputs that share no memory with an output.

    One that does is read before anything is written, as if it had been copied; and so it
    is, when the library refuses it. Other overlaps are refused again.
    """
    try:
        return run(inputs)
    except Overlap:
        pass
    starts, warmstarts, controls = (None if one is None else one.copy() for one in inputs)
    return run((starts, warmstarts, controls))


def _spec(control_spec: int) -> int:
    spec = operator.index(control_spec)
    if spec & ~USER:
        raise ValueError("control_spec can only contain bits in mjSTATE_USER")
    return spec


def _steps(nstep: int) -> int:
    steps = _integer("nstep", nstep)
    if steps < 0:
        raise ValueError("nstep must be non-negative")
    if steps > sys.maxsize:
        raise ValueError(f"nstep is {steps}, which is more than any array can have")
    return steps


def _chunk_size(chunk_size: int) -> int:
    size = _integer("chunk_size", chunk_size)
    if size <= 0:
        raise ValueError("chunk_size must be a positive integer")
    return size


def _integer(name: str, value: object) -> int:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise ValueError(f"{name} must be an integer")
    return int(value)


def _list_of(kind: type, name: str, values: Any) -> list[Any]:
    """A new list of instances of a class, made of one or of a sequence."""
    if isinstance(values, kind):
        return [values]
    # A list of our own: the caller's may change before the rollouts are done.
    items = list(values)
    if not items:
        raise ValueError(f"The list of {name} instances is empty")
    for i, item in enumerate(items):
        if not isinstance(item, kind):
            raise TypeError(f"{name}[{i}] must be an {kind.__name__}, not {type(item).__name__}")
    return items


def _distinct(models: list[mujoco.MjModel]) -> list[mujoco.MjModel]:
    """The models, or one where all are the same object."""
    first = models[0]
    return models if any(one is not first for one in models) else [first]


def _check_compatible(models: Sequence[mujoco.MjModel], control_spec: int) -> None:
    def sizes(model: mujoco.MjModel) -> tuple[int, ...]:
        return (
            _state_size(model, FULL_PHYSICS),
            _state_size(model, control_spec),
            model.nv,
            model.nsensordata,
        )

    expected = sizes(models[0])
    if any(sizes(model) != expected for model in models[1:]):
        raise ValueError("models are not compatible")
