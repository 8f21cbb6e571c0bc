"""How many threads there are, and on which CPUs."""

from __future__ import annotations

import os
import threading

import mujoco
import pytest

import rollout
from held import wait_until
from isolation import run
from reference import assert_same_bits, batch, dirty_data, plain_loop

ALLOWED = sorted(os.sched_getaffinity(0))


def masks_of_pool_threads() -> dict[str, set[int]]:
    """The CPUs that each thread of a pool in this process may run on, by its name."""
    masks = {}
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as comm:
                name = comm.read().strip()
            if name.startswith("rollout-"):
                masks[name] = os.sched_getaffinity(int(task))
        except OSError:
            # It has just ended.
            pass
    return masks


def test_r53_a_process_on_one_cpu_has_one_thread_unless_it_asks_for_more():
    program = """
        import os
        import rollout
        from held import pool_threads, wait_until

        print(rollout.default_nthread())
        with rollout.Rollout(nthread=rollout.default_nthread()) as pool:
            print(pool.nthread, pool_threads())
        with rollout.Rollout(nthread=3) as pool:
            # (A thread has its name a moment after it was started.)
            wait_until(lambda: pool_threads() == 2)
            print(pool.nthread)
    """
    before = os.sched_getaffinity(0)
    # (Of this thread. A process that it starts has it too.)
    os.sched_setaffinity(0, ALLOWED[-1:])
    try:
        printed = run(program)
    finally:
        os.sched_setaffinity(0, before)
    assert printed.split() == ["1", "1", "0", "3"]


def test_the_default_is_at_most_the_cpus_that_this_thread_may_use():
    assert 1 <= rollout.default_nthread() <= len(ALLOWED)


@pytest.mark.parametrize("cpus", [ALLOWED[-1:], ALLOWED, ALLOWED[::-1], tuple(ALLOWED)])
def test_threads_stay_on_the_cpus_of_the_list(cpus):
    rollouts = batch("heap", nbatch=6, nstep=5)
    with rollout.Rollout(cpus=cpus) as pool:
        assert pool.cpus == tuple(cpus)
        assert pool.nthread == len(cpus)
        expected = {f"rollout-{number}": {cpu} for number, cpu in enumerate(cpus)}
        # (A thread has its name a moment after it was started.)
        wait_until(lambda: masks_of_pool_threads() == expected)
        found = pool.rollout(**rollouts.arguments(dirty_data(rollouts.model, len(cpus))))
        assert_same_bits(found, plain_loop(rollouts))
    assert sorted(os.sched_getaffinity(0)) == ALLOWED


def test_other_pools_have_no_list():
    for nthread in (None, 0, 1, 2):
        with rollout.Rollout(nthread=nthread) as pool:
            assert pool.cpus is None


def test_r56_a_cpu_twice_is_refused():
    with pytest.raises(ValueError, match=rf"cpus\[1\]: is {ALLOWED[0]}, as cpus\[0\] is"):
        rollout.Rollout(cpus=[ALLOWED[0], ALLOWED[0]])


@pytest.mark.parametrize(
    ("cpus", "error", "text"),
    [
        ([], ValueError, "cpus: is empty"),
        ([1 << 20], ValueError, r"cpus\[0\]: is 1048576, but this thread may use only"),
        ([-1], ValueError, r"cpus\[0\]: is -1, which is no CPU"),
        ([1 << 31], ValueError, r"cpus\[0\]: is 2147483648, which is no CPU"),
        ([-1] * 5000, ValueError, "is no CPU"),
        ([1 << 20] * 5000, ValueError, "cpus: has 5000 CPUs"),
        ([0.5], TypeError, "float"),
        (1, TypeError, "iterable"),
        ("01", TypeError, "str"),
    ],
)
def test_lists_that_make_no_sense_are_refused(cpus, error, text):
    with pytest.raises(error, match=text):
        rollout.Rollout(cpus=cpus)


def test_cpus_and_nthread_exclude_each_other():
    for nthread in (0, 1):
        with pytest.raises(ValueError, match="nthread and cpus are both given"):
            rollout.Rollout(nthread=nthread, cpus=ALLOWED[:1])


def test_as_many_data_as_cpus_are_needed():
    rollouts = batch("heap", nbatch=2, nstep=2)
    with rollout.Rollout(cpus=ALLOWED[:1]) as pool:
        with pytest.raises(ValueError, match="Length of data: 2 not equal to nthread: 1"):
            pool.rollout(**rollouts.arguments(dirty_data(rollouts.model, 2)))


def test_r56_a_callback_sees_the_cpu_of_the_list():
    rollouts = batch("heap", nbatch=3, nstep=2)
    # (To make data dirty steps them, here.)
    arguments = rollouts.arguments(dirty_data(rollouts.model, 1))
    seen = set()
    mujoco.set_mjcb_control(
        lambda model, data: seen.add(frozenset(os.sched_getaffinity(threading.get_native_id())))
    )
    try:
        with rollout.Rollout(cpus=ALLOWED[-1:]) as pool:
            pool.rollout(**arguments)
    finally:
        mujoco.set_mjcb_control(None)
    assert seen == {frozenset(ALLOWED[-1:])}
