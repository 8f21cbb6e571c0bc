"""How long pools live: as long as somebody uses them, and in forked processes too."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import sys
import threading
import time
import warnings
import weakref
from typing import Callable, NoReturn

import mujoco
import pytest

import rollout
from isolation import PATIENCE, isolated, run
from reference import assert_same_bits, batch, dirty_data, plain_loop


@isolated
def test_an_engine_s_error_keeps_nothing_alive():
    gc.disable()
    rollouts = batch("heap", nbatch=2, nstep=2)
    data = dirty_data(rollouts.model, 2)
    model = copy.copy(rollouts.first_model)
    model.opt.solver = 10
    with rollout.Rollout(nthread=2) as pool:
        alive = weakref.ref(pool._pool)
        try:
            pool.rollout(**rollouts.but(model=model).arguments(data))
        except mujoco.FatalError as error:
            assert error.rollouts
        else:
            pytest.fail("no error")
    assert alive() is None


@isolated
def test_an_exception_of_a_callback_keeps_nothing_alive():
    gc.disable()
    rollouts = batch("slider", nbatch=2, nstep=2)

    def callback(model: mujoco.MjModel, data: mujoco.MjData) -> None:
        raise KeyError

    with rollout.Rollout() as pool:
        alive = weakref.ref(pool._pool)
        data = dirty_data(rollouts.model, 1)
        mujoco.set_mjcb_control(callback)
        try:
            pool.rollout(**rollouts.arguments(data))
        except KeyError as error:
            assert error.__cause__ is None and error.__context__ is None
        mujoco.set_mjcb_control(None)
    assert alive() is None


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_rollout_object_can_be_neither_copied_nor_pickled(duplicate):
    with rollout.Rollout(nthread=2) as pool, pytest.raises(TypeError, match="pool of threads"):
        duplicate(pool)


def child_of(work: Callable[[], None], leave: Callable[[int], NoReturn] = os._exit) -> int:
    """Forks, and returns the exit status of the child that does the work."""
    with warnings.catch_warnings():
        # Python from 3.12 on warns of any fork beside threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        try:
            work()
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        leave(0)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")


@pytest.mark.parametrize("nbatch", [1, 8])
@isolated
def test_r64_pools_work_in_a_forked_child(nbatch):
    rollouts = batch("slider", nbatch=nbatch)
    expected = plain_loop(rollouts)
    data = dirty_data(rollouts.model, 3)
    given = rollouts.arguments(data)
    pool, closed, unused = (rollout.Rollout(nthread=3) for _ in range(3))

    def everything() -> None:
        assert_same_bits(pool.rollout(**given), expected)
        # By the general path.
        assert_same_bits(pool.rollout(**given, fill="nan"), expected)
        assert_same_bits(rollout.rollout(**given), expected)
        assert_same_bits(rollout.rollout(**given, persistent_pool=True), expected)
        assert_same_bits(rollout.rollout(**rollouts.arguments(data[:1])), expected)
        closed.close()
        with pytest.raises(RuntimeError, match="shutdown"):
            closed.rollout(**given)

    pool.rollout(**given)
    closed.rollout(**given)
    rollout.rollout(**given, persistent_pool=True)
    assert child_of(everything) == 0
    # Those that are not used there end without their threads.
    assert child_of(lambda: None, sys.exit) == 0
    assert child_of(unused.close) == 0
    everything()


@isolated
def test_a_child_can_be_forked_while_threads_are_in_calls():
    """The children use the pools and the data that the parent's threads are using."""
    rollouts = batch("slider", nbatch=4, nstep=20)
    expected = plain_loop(rollouts)
    pool = rollout.Rollout(nthread=3)
    data = [dirty_data(rollouts.model, 3) for _ in range(3)]
    stop = False
    failures = []

    def load(number: int) -> None:
        try:
            while not stop:
                given = rollouts.arguments(data[number])
                assert_same_bits(pool.rollout(**given), expected)
                if number == 0:
                    assert_same_bits(rollout.rollout(**given, persistent_pool=True), expected)
        except BaseException as error:
            failures.append(error)

    def work() -> None:
        for others in data:
            given = rollouts.arguments(others)
            assert_same_bits(pool.rollout(**given), expected)
            assert_same_bits(rollout.rollout(**given, persistent_pool=True), expected)
        with rollout.Rollout(nthread=3) as own:
            assert_same_bits(own.rollout(**given), expected)

    threads = [threading.Thread(target=load, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(50):
            assert child_of(work) == 0
    finally:
        stop = True
        for thread in threads:
            thread.join()
    assert not failures


def test_the_interpreter_of_a_child_exits_with_pools_alive():
    """Pools that the child has used, and such as it has not; with all that runs at exit."""
    program = """
        import os
        import sys

        import rollout
        from reference import batch, dirty_data

        rollouts = batch("slider")
        arguments = rollouts.arguments(dirty_data(rollouts.model, 3))
        kept = [rollout.Rollout(nthread=3) for _ in range(2)]
        for pool in kept:
            pool.rollout(**arguments)
        rollout.rollout(**arguments, persistent_pool=True)
        sys.stdout.flush()
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            print("parent", status)
        else:
            kept[0].rollout(**arguments)
            print("child")
    """
    assert run(program).splitlines()[-2:] == ["child", "parent 0"]


def test_processes_of_multiprocessing_use_what_they_have_inherited():
    program = """
        import multiprocessing

        import numpy as np
        import rollout
        from reference import batch, dirty_data, plain_loop

        rollouts = batch("slider")
        data = dirty_data(rollouts.model, 3)
        pool = rollout.Rollout(nthread=3)
        pool.rollout(**rollouts.arguments(data))

        def work(_):
            return pool.rollout(**rollouts.arguments(data))

        context = multiprocessing.get_context("fork")
        with context.Pool(2) as processes:
            for state, sensordata in processes.map(work, range(6)):
                expected = plain_loop(rollouts)
                assert np.array_equal(state, expected[0])
                assert np.array_equal(sensordata, expected[1])
        process = context.Process(target=work, args=(0,))
        process.start()
        process.join()
        print("done", process.exitcode)
    """
    assert run(program).splitlines()[-1] == "done 0"
