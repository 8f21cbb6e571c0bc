"""`Rollout` and `rollout`: what `mujoco.rollout` offers, with its arguments and errors."""

from __future__ import annotations

import atexit
import math
import operator
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
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
from rollout._fast import fast_rollout as _fast_rollout
from rollout._library import library
from rollout._mujoco import CTRL, FULL_PHYSICS, USER
from rollout._outcomes import Outcomes
from rollout._pool import Overlap, Pool

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
                is then told there and not raised.

        Returns:
            The states after each step, and the sensor values, which as in MuJoCo belong to
            the state before the step; with `outcomes` also the `Outcomes`.

        Raises:
            ValueError: an argument has a wrong shape, size or value. Nothing was changed.
            TypeError: an argument is of a wrong type. Nothing was changed.
            mujoco.FatalError: MuJoCo reported an error in at least one rollout. The others
                have been run; the attribute `rollouts` lists those that failed (of more
                than 32,768 rollouts only the first).
            RuntimeError: the object is closed, or a data is in use by another call.

        What a callback (`mujoco.set_mjcb_control` and the like) raises on the calling thread
        is passed on; on another thread it becomes a `mujoco.FatalError`.
        """
        pool = self._pool
        if pool is None:
            raise RuntimeError("rollout requested after thread pool shutdown")
        return _call(
            pool,
            fill,
            outcomes,
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

    Returns:
        See `Rollout.rollout`.
    """
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
    pool: Pool, fill: Fill, outcomes: bool, skip_checks: bool, *arguments: Any
) -> Union[tuple[Array, Array], tuple[Array, Array, Outcomes]]:
    """Runs the usual call on the fast path, and any other as it needs."""
    try:
        if fill == "hold" and not outcomes:
            done = _fast_rollout(pool.address(), pool.nthread, skip_checks, *arguments)
            if done is not None:
                return done
        run = _run_unchecked if skip_checks else _run
        return run(_Way(pool, _fill(fill), outcomes), *arguments)
    except SystemError as error:
        cause = _first_cause(error)
    try:
        raise cause
    finally:
        # Or this frame and the traceback would keep each other alive.
        del cause


class _Way(NamedTuple):
    """How to run, whatever the arrays."""

    pool: Pool
    fill: int
    outcomes: bool


def _fill(fill: str) -> int:
    codes = {"hold": _abi.FILL_HOLD, "nan": _abi.FILL_NAN, "untouched": _abi.FILL_UNTOUCHED}
    if fill not in codes:
        raise ValueError(f"fill must be one of {', '.join(codes)}, not {fill!r}")
    return codes[fill]


def _first_cause(error: BaseException) -> BaseException:
    """What a callback of MuJoCo that is a Python function has raised on this thread.

    It ends its rollout by an error of the engine, and is still set when the call returns.
    Python wraps it then, and each time that a callback was called meanwhile.
    """
    while isinstance(error, SystemError) and error.__cause__ is not None:
        error = error.__cause__
    return error


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
        states = np.empty((nbatch, nstep, nstate))
    else:
        check_trailing("state", states, nstate)
        check_size("state", states, nbatch * nstep * nstate)
    if controls is not None:
        check_trailing("control", controls, _state_size(first, control_spec))
    if warmstarts is not None:
        check_trailing("initial_warmstart", warmstarts, first.nv)
    if sensors is None:
        sensors = np.empty((nbatch, nstep, nsensordata))
    else:
        check_trailing("sensordata", sensors, nsensordata)
        check_size("sensordata", sensors, nbatch * nstep * nsensordata)

    told = _dispatch(
        way,
        models,
        data,
        nbatch,
        nstep,
        control_spec,
        chunk_size,
        (starts, warmstarts, controls),
        (states, sensors),
    )
    return as_result(state, states), as_result(sensordata, sensors), *told


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
    told = _dispatch(
        way,
        models,
        data,
        nbatch,
        nstep,
        control_spec,
        chunk_size,
        (starts, warmstarts, controls),
        (states, sensors),
    )
    return state, sensordata, *told


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
) -> tuple[Outcomes, ...]:
    """Runs what has been checked. Returns the outcomes, if they are wanted."""
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

    chunk = min(chunk_size or 0, nbatch)
    run = partial(
        way.pool.run, models, data, nbatch, nstep, control_spec, chunk, way.fill, outputs, outcomes
    )
    if nbatch:
        try:
            _run_apart(run, inputs)
        except mujoco.FatalError:
            if not way.outcomes:
                raise
    return (outcomes,) if way.outcomes and outcomes is not None else ()


def _run_apart(run: Callable[[Inputs], None], inputs: Inputs) -> None:
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
