"""Errors inside MuJoCo, and exceptions of Python callbacks: the call fails, nothing else does.

Each test has a process of its own, since an error that nobody catches ends the process.
"""

from __future__ import annotations

import copy
import os

import mujoco
import numpy as np
import pytest

import rollout
import zoo
from isolation import in_threads, isolated
from reference import (
    FULLPHYSICS,
    Batch,
    Results,
    assert_same_bits,
    batch,
    dirty_data,
    plain_loop,
)

NDATA = (1, 2, 8)


def with_unknown_solver(model: mujoco.MjModel) -> mujoco.MjModel:
    """A copy of a model that raises an error as soon as there are constraints to solve."""
    broken = copy.copy(model)
    broken.opt.solver = 10
    return broken


def error_of_a_step(model: mujoco.MjModel, initial_state: np.ndarray) -> str:
    """What MuJoCo itself says, some steps from here."""
    data = mujoco.MjData(model)
    mujoco.mj_setState(model, data, initial_state, FULLPHYSICS)
    try:
        mujoco.mj_step(model, data, 100)
    except mujoco.FatalError as error:
        return str(error)
    raise AssertionError("there is no error")


def falls(nbatch: int, nstep: int = 30) -> Batch:
    """Rollouts that touch the ground one after the other: the last at once, the first not
    within these steps."""
    rollouts = batch("falling", nbatch, nstep)
    height = np.linspace(0.02, 0.0, nbatch)
    rollouts.initial_state[:] = np.stack([0 * height, height - 0.005, 0 * height], axis=1)
    return rollouts


def held_after_an_error(rollouts: Batch) -> tuple[Results, list[int]]:
    """What a plain loop gives when errors end rollouts, and the valid steps of each.

    From the error on rows repeat the last valid one; the start state if there is none.
    """
    state, sensordata = rollouts.new_outputs()
    valid = []
    for r in range(rollouts.nbatch):
        model = rollouts.model_of(r)
        data = mujoco.MjData(model)
        mujoco.mj_setState(model, data, rollouts.initial_state[r], FULLPHYSICS)
        state[r], sensordata[r] = rollouts.initial_state[r], 0
        steps = 0
        try:
            for t in range(rollouts.nstep):
                if rollouts.control is not None:
                    data.ctrl[:] = rollouts.control[r, t]
                mujoco.mj_step(model, data)
                mujoco.mj_getState(model, data, state[r, t], FULLPHYSICS)
                sensordata[r, t] = data.sensordata
                state[r, t:], sensordata[r, t:] = state[r, t], sensordata[r, t]
                steps += 1
        except mujoco.FatalError:
            pass
        valid.append(steps)
    return (state, sensordata), valid


@isolated
def test_an_error_of_every_rollout_is_a_fatal_error_with_the_engine_s_text():
    healthy = batch("heap")
    broken = healthy.but(model=with_unknown_solver(healthy.first_model))
    text = error_of_a_step(broken.first_model, broken.initial_state[0])
    if zoo.RELEASE == (4, 0, 0):
        assert text == "mj_fwdConstraint: unknown solver type 10"
    for ndata in NDATA:
        data = dirty_data(healthy.model, ndata)
        for _ in range(2):
            with pytest.raises(mujoco.FatalError) as caught:
                rollout.rollout(**broken.arguments(data))
            assert str(caught.value) == text
            with pytest.raises(mujoco.FatalError):
                rollout.rollout(**broken.skip_checks_arguments(data))
            assert_same_bits(rollout.rollout(**healthy.arguments(data)), plain_loop(healthy))


@isolated
def test_r01_r03_an_error_in_one_rollout_leaves_the_others_right():
    healthy = batch("heap", nbatch=8, nstep=20)
    models = [copy.copy(healthy.first_model) for _ in range(8)]
    models[5] = with_unknown_solver(models[5])
    broken = healthy.but(model=models)
    expected = plain_loop(healthy)
    text = error_of_a_step(models[5], broken.initial_state[5])
    others = [0, 1, 2, 3, 4, 6, 7]
    for ndata in NDATA:
        data = dirty_data(healthy.model, ndata)
        with rollout.Rollout(nthread=ndata) as pool:
            for chunk_size in (None, 1, 8):
                state, sensordata = broken.new_outputs()
                with pytest.raises(mujoco.FatalError) as caught:
                    pool.rollout(
                        **broken.arguments(data),
                        state=state,
                        sensordata=sensordata,
                        chunk_size=chunk_size,
                    )
                assert text in str(caught.value)
                assert caught.value.rollouts == [5]
                assert_same_bits(
                    (state[others], sensordata[others]),
                    (expected[0][others], expected[1][others]),
                )
                # The pool, and all of its data, then run a clean request.
                assert_same_bits(pool.rollout(**healthy.arguments(data)), expected)
    assert not os.path.exists("MUJOCO_LOG.TXT")


@isolated
def test_r02_rows_before_an_error_are_valid_and_the_last_one_is_held_after_it():
    rollouts = falls(nbatch=6)
    broken = rollouts.but(model=with_unknown_solver(rollouts.first_model))
    expected, valid = held_after_an_error(broken)
    assert valid[-1] == 0 < valid[-2] < valid[1] < valid[0] == broken.nstep
    failed = [r for r, steps in enumerate(valid) if steps < broken.nstep]
    for ndata in NDATA:
        state, sensordata = broken.new_outputs()
        arguments = broken.arguments(dirty_data(rollouts.model, ndata))
        with pytest.raises(mujoco.FatalError) as caught:
            rollout.rollout(**arguments, state=state, sensordata=sensordata)
        assert caught.value.rollouts == failed
        assert_same_bits((state, sensordata), expected)


@isolated
def test_errors_in_several_threads_at_once_are_told_apart():
    healthy = batch("heap", nbatch=4, nstep=5)
    broken = healthy.but(model=with_unknown_solver(healthy.first_model))
    expected = plain_loop(healthy)
    with rollout.Rollout(nthread=2) as pool:

        def work(number: int) -> None:
            data = dirty_data(healthy.model, 2)
            for _ in range(5):
                if number % 2:
                    with pytest.raises(mujoco.FatalError):
                        pool.rollout(**broken.arguments(data))
                else:
                    assert_same_bits(pool.rollout(**healthy.arguments(data)), expected)

        in_threads(4, work)


@isolated
def test_mujoco_s_own_bindings_catch_errors_as_before():
    """The handlers of the calling thread are back after a call, a failed one too."""
    healthy = batch("heap", nbatch=2, nstep=2)
    broken = healthy.but(model=with_unknown_solver(healthy.first_model))
    text = error_of_a_step(broken.first_model, broken.initial_state[0])
    (data,) = dirty_data(healthy.model, 1)
    rollout.rollout(**healthy.arguments(data))
    assert error_of_a_step(broken.first_model, broken.initial_state[0]) == text
    with pytest.raises(mujoco.FatalError):
        rollout.rollout(**broken.arguments(data))
    assert error_of_a_step(broken.first_model, broken.initial_state[0]) == text


class FromCallback(Exception):
    """What a callback raises."""


@isolated
def test_an_exception_of_a_callback_is_passed_on():
    """As in mujoco.rollout with one data.

    From 3.9.0 to 3.13.0 only the first: a thread that has seen an error makes no further
    call of the engine there, another one works for it, and only the fact arrives.
    """
    retired = 3_009_000 <= mujoco.mj_version() < 3_014_000
    rollouts = batch("slider", nbatch=2, nstep=2)
    data = dirty_data(rollouts.model, 1)
    for error in (FromCallback, KeyboardInterrupt, SystemExit, GeneratorExit):

        def callback(model: mujoco.MjModel, data: mujoco.MjData) -> None:
            raise error  # noqa: B023  # The callback does not outlive the turn.

        mujoco.set_mjcb_control(callback)
        passed_on = error is FromCallback or not retired
        with pytest.raises(error if passed_on else mujoco.FatalError):
            rollout.rollout(**rollouts.arguments(data))
        mujoco.set_mjcb_control(None)
        assert_same_bits(rollout.rollout(**rollouts.arguments(data)), plain_loop(rollouts))


@isolated
def test_an_exception_of_a_callback_on_a_pool_s_thread_ends_the_call_and_not_the_process():
    """The process of mujoco.rollout ends. From another thread than the caller's only the fact
    may arrive."""
    rollouts = batch("heap", nbatch=8, nstep=4)
    calls = 0

    def callback(model: mujoco.MjModel, data: mujoco.MjData) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise FromCallback

    for ndata in (2, 8):
        calls = 0
        data = dirty_data(rollouts.model, ndata)
        mujoco.set_mjcb_control(callback)
        with pytest.raises((FromCallback, mujoco.FatalError)):
            rollout.rollout(**rollouts.arguments(data))
        found = rollout.rollout(**rollouts.arguments(data))
        mujoco.set_mjcb_control(None)
        assert_same_bits(found, plain_loop(rollouts))
