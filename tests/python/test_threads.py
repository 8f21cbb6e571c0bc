"""Many threads at once, callbacks in Python, and the end of pools and of the interpreter."""

from __future__ import annotations

import gc
import threading
from typing import Any

import mujoco
import numpy as np
import pytest

import rollout
import zoo
from held import Held, pool_threads, wait_until
from isolation import in_threads, isolated, run
from reference import INPUTS, assert_right, assert_same_bits, batch, dirty_data, plain_loop

NAMES = ["slider", "pendulum", "every_input", "heap", "activations", "exploding"]


@pytest.mark.parametrize("persistent_pool", [False, True])
def test_the_function_can_be_called_from_many_threads(persistent_pool):
    batches = [batch(name, nbatch=4, nstep=5) for name in NAMES]
    expected = [plain_loop(rollouts) for rollouts in batches]

    def work(number: int) -> None:
        # Threads that ask for different numbers of threads, too.
        data = dirty_data(batches[number].model, 1 + number % 3)
        arguments = batches[number].arguments(data)
        for _ in range(10):
            found = rollout.rollout(**arguments, persistent_pool=persistent_pool)
            assert_same_bits(found, expected[number])
            if number == 0:
                rollout.shutdown_persistent_pool()

    in_threads(len(NAMES), work)


def test_one_pool_can_be_shared_by_many_threads():
    batches = [batch(name, nbatch=4, nstep=5) for name in NAMES]
    expected = [plain_loop(rollouts) for rollouts in batches]
    with rollout.Rollout(nthread=2) as pool:

        def work(number: int) -> None:
            arguments = batches[number].arguments(dirty_data(batches[number].model, 2))
            for _ in range(10):
                found = pool.rollout(**arguments, chunk_size=1)
                assert_same_bits(found, expected[number])

        in_threads(len(NAMES), work)


def test_two_threads_with_one_data_give_right_results_or_an_error():
    rollouts = batch("heap", nbatch=2, nstep=2)
    expected = plain_loop(rollouts)
    data = dirty_data(rollouts.model, 2)
    ended = []
    with rollout.Rollout(nthread=2) as pool:

        def work(_: int) -> None:
            for _ in range(50):
                try:
                    found = pool.rollout(**rollouts.arguments(data))
                except (RuntimeError, ValueError) as error:
                    assert "data[" in str(error)
                    ended.append("refused")
                else:
                    assert_same_bits(found, expected)
                    ended.append("right")

        in_threads(3, work)
    assert len(ended) == 150
    assert "right" in ended


@pytest.mark.parametrize("nthread", [1, 2])
def test_a_data_in_use_is_refused_and_the_call_that_uses_it_is_right(nthread, control_callback):
    rollouts = batch("slider")
    data = dirty_data(rollouts.model, nthread)
    other = dirty_data(rollouts.model, nthread)
    held = Held(lambda: rollout.rollout(**rollouts.arguments(data)))
    # Two data are taken in their order, so the first is certainly in use.
    with pytest.raises((RuntimeError, ValueError), match=r"data\[0\]"):
        rollout.rollout(**rollouts.arguments(data[0]))
    assert_right(rollout.rollout(**rollouts.arguments(other)), rollouts)
    assert_right(held.let_go(), rollouts)
    assert_right(rollout.rollout(**rollouts.arguments(data)), rollouts)


@pytest.mark.parametrize("nthread", [0, 1, 2])
def test_a_pool_can_be_closed_while_a_call_is_under_way(nthread, control_callback):
    rollouts = batch("slider")
    data = dirty_data(rollouts.model, max(nthread, 1))
    before = pool_threads()
    pool = rollout.Rollout(nthread=nthread)
    held = Held(lambda: pool.rollout(**rollouts.arguments(data)))
    pool.close()
    with pytest.raises(RuntimeError, match=r"^rollout requested after thread pool shutdown$"):
        pool.rollout(**rollouts.arguments(dirty_data(rollouts.model, max(nthread, 1))))
    assert_right(held.let_go(), rollouts)
    wait_until(lambda: pool_threads() <= before)


def test_the_persistent_pool_can_be_shut_down_while_a_call_is_under_way(control_callback):
    rollouts = batch("slider")
    data = dirty_data(rollouts.model, 2)
    held = Held(lambda: rollout.rollout(**rollouts.arguments(data), persistent_pool=True))
    rollout.shutdown_persistent_pool()
    other = dirty_data(rollouts.model, 2)
    found = rollout.rollout(**rollouts.arguments(other), persistent_pool=True)
    assert_right(found, rollouts)
    assert_right(held.let_go(), rollouts)
    rollout.shutdown_persistent_pool()


def test_a_pool_that_nobody_closes_ends_with_its_last_reference():
    before = pool_threads()
    rollouts = batch("slider")
    for _ in range(3):
        pool = rollout.Rollout(nthread=4)
        pool.rollout(**rollouts.arguments(dirty_data(rollouts.model, 4)))
        # A thread takes its name when it runs for the first time.
        wait_until(lambda: pool_threads() > before)
        # In a cycle, which only the collector finds.
        cycle: list[Any] = [pool]
        cycle.append(cycle)
        del pool, cycle
        gc.collect()
        wait_until(lambda: pool_threads() <= before)


def test_a_pool_per_call_leaves_no_threads():
    before = pool_threads()
    rollouts = batch("slider")
    for _ in range(20):
        rollout.rollout(**rollouts.arguments(dirty_data(rollouts.model, 3)))
    wait_until(lambda: pool_threads() <= before)


def feedback(model: mujoco.MjModel, data: mujoco.MjData) -> None:
    """A controller that leaves marks of all that it reads."""
    data.ctrl[:] += 0.5 * np.sin(data.qpos[: model.nu] + data.time)
    if model.nuserdata:
        data.ctrl[:] += data.userdata[: model.nu]


@pytest.mark.parametrize("name", ["slider", "pendulum", "every_input", "hopper"])
@pytest.mark.parametrize("nthread", [1, 2, 4])
def test_python_callbacks_run_on_all_threads(name, nthread, control_callback):
    rollouts = batch(name, nbatch=6, nstep=5)
    quiet = plain_loop(rollouts)
    control_callback(feedback)
    found = rollout.rollout(**rollouts.arguments(dirty_data(rollouts.model, nthread)))
    assert_right(found, rollouts)
    assert not np.array_equal(found[0], quiet[0])


def test_user_data_reach_callbacks_and_are_zero_where_they_are_not_given(control_callback):
    """mujoco.rollout leaves those of the data, and lets changed controls leak, so it is no
    reference here."""
    silent = batch("every_input").but(control=None)
    given = batch("every_input", spec=INPUTS["userdata"])
    control_callback(feedback)
    found = rollout.rollout(**silent.arguments(dirty_data(silent.model, 2)))
    assert_same_bits(found, plain_loop(silent))
    found = rollout.rollout(**given.arguments(dirty_data(given.model, 2)))
    assert_same_bits(found, plain_loop(given))
    zero = given.but(control=np.zeros_like(given.control))
    assert not np.array_equal(found[0], plain_loop(zero)[0])


def test_a_callback_can_roll_out_on_the_pool_that_it_runs_on(control_callback):
    rollouts, inner = batch("slider", nbatch=3, nstep=3), batch("pendulum", nbatch=3, nstep=3)
    expected = plain_loop(inner)
    spare = dirty_data(inner.model, 2)
    lock = threading.Lock()
    results = []
    with rollout.Rollout(nthread=2) as pool:

        def nested(model: mujoco.MjModel, data: mujoco.MjData) -> None:
            if model.nq == 1 and lock.acquire(blocking=False):
                results.append(pool.rollout(**inner.arguments(spare)))
                lock.release()

        control_callback(nested)
        found = pool.rollout(**rollouts.arguments(dirty_data(rollouts.model, 2)))
    mujoco.set_mjcb_control(None)
    assert_right(found, rollouts)
    assert results
    for result in results:
        assert_same_bits(result, expected)


def test_a_callback_cannot_use_a_data_of_its_own_call(control_callback):
    rollouts = batch("slider")
    (data,) = dirty_data(rollouts.model, 1)
    errors = []

    def nested(model: mujoco.MjModel, _: mujoco.MjData) -> None:
        try:
            rollout.rollout(**rollouts.arguments(data))
        except RuntimeError as error:
            errors.append(str(error))

    control_callback(nested)
    found = rollout.rollout(**rollouts.arguments(data))
    mujoco.set_mjcb_control(None)
    assert_right(found, rollouts)
    assert len(errors) == rollouts.nbatch * rollouts.nstep
    assert all("data[0]" in error for error in errors)


def test_data_are_not_mixed_up_when_their_memory_is_used_again():
    """A freed data's address, and its identity in Python, come again."""
    models = [zoo.load(name) for name in ("slider", "no_sensors", "activations", "slider")]
    for _ in range(30):
        for model in models:
            rollouts = batch(model, nbatch=1, nstep=1)
            found = rollout.rollout(**rollouts.arguments(mujoco.MjData(model)))
            assert_same_bits(found, plain_loop(rollouts))


@isolated
def test_what_a_call_uses_lives_as_long_as_it_needs_it():
    """Whatever the caller, or a callback, does to its lists and names meanwhile."""
    rollouts = batch("pendulum")
    expected = plain_loop(rollouts)
    models = [zoo.load("pendulum") for _ in range(rollouts.nbatch)]
    data = dirty_data(rollouts.model, 2)
    arrays = [rollouts.initial_state.copy(), rollouts.control.copy()]
    held = Held(lambda: rollout.rollout(models, data, arrays.pop(0), arrays.pop()))
    models.clear()
    data.clear()
    gc.collect()
    # Something else in the memory that might have been freed.
    filler = [batch("pendulum") for _ in range(5)]
    assert_same_bits(held.let_go(), expected)
    assert len(filler) == 5


LEAVE_A_POOL = """
    import sys

    import rollout
    from reference import batch, dirty_data

    rollouts = batch("slider")
    arguments = rollouts.arguments(dirty_data(rollouts.model, 3))
    rollout.rollout(**arguments, persistent_pool=True)
    forgotten = rollout.Rollout(nthread=3)
    forgotten.rollout(**arguments)
    forgotten.itself = forgotten
    sys.forgotten = rollout.Rollout(nthread=3)
    print("done")
"""


def test_the_interpreter_can_exit_with_pools_alive():
    assert run(LEAVE_A_POOL) == "done\n"


def test_a_pool_can_be_used_while_the_interpreter_exits():
    """In functions that run at exit, whichever side of the package's own they are on."""
    program = """
        import atexit

        def late():
            print("late", rollout.rollout(**arguments, persistent_pool=True)[0].shape)

        atexit.register(late)
        import rollout
        from reference import batch, dirty_data

        rollouts = batch("slider", nbatch=2, nstep=3)
        arguments = rollouts.arguments(dirty_data(rollouts.model, 2))

        def early():
            print("early", rollout.rollout(**arguments, persistent_pool=True)[0].shape)

        atexit.register(early)
    """
    assert run(program) == "early (2, 3, 3)\nlate (2, 3, 3)\n"


def test_the_interpreter_can_exit_while_a_daemon_thread_is_in_a_call():
    program = """
        import threading
        import time

        import mujoco
        import numpy as np
        import rollout
        import zoo
        from reference import FULLPHYSICS, new_data

        model = zoo.load("slider")
        data = new_data(model, 2)
        arguments = {
            "model": [model] * 2,
            "data": data,
            "initial_state": np.zeros((2, mujoco.mj_stateSize(model, FULLPHYSICS))),
            "nstep": 1_000_000_000,
            "skip_checks": True,
            "persistent_pool": True,
        }
        threading.Thread(target=rollout.rollout, kwargs=arguments, daemon=True).start()
        while not data[0].time:
            time.sleep(0.001)
        print("done")
    """
    assert run(program) == "done\n"
