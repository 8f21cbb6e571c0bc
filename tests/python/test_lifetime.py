"""How long pools live: as long as somebody uses them, in the process that made them."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import weakref

import mujoco
import pytest

import rollout
from isolation import isolated
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


@isolated
def test_a_forked_child_ends_without_its_parent_s_pools_and_can_make_its_own():
    rollouts = batch("slider")
    expected = plain_loop(rollouts)
    pool = rollout.Rollout(nthread=3)
    data = dirty_data(rollouts.model, 3)
    pool.rollout(**rollouts.arguments(data))
    rollout.rollout(**rollouts.arguments(data), persistent_pool=True)
    child = os.fork()
    if not child:
        try:
            with pytest.raises(RuntimeError, match="fork"):
                pool.rollout(**rollouts.arguments(data))
            # Ended here, it would wait for threads that are not in this process.
            del pool
            gc.collect()
            found = rollout.rollout(**rollouts.arguments(data), persistent_pool=True)
            assert_same_bits(found, expected)
            rollout.shutdown_persistent_pool()
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert_same_bits(pool.rollout(**rollouts.arguments(data)), expected)
