"""Ctrl-C and other signals in the middle of a call, and the end of the interpreter."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
import pytest

import rollout
import zoo
from isolation import isolated, run
from reference import FULLPHYSICS, assert_same_bits, batch, dirty_data, new_data, plain_loop

# The ways to wait for rollouts, on a pool.
WAYS: dict[str, Callable[[rollout.Rollout, dict[str, Any]], Any]] = {
    "fast": lambda pool, call: pool.rollout(**call),
    "general": lambda pool, call: pool.rollout(**call, outcomes=True),
    "function": lambda pool, call: rollout.rollout(**call),
    "result": lambda pool, call: pool.submit(**call).result(),
    "wait": lambda pool, call: pool.submit(**call).wait(),
    "progress": lambda pool, call: pool.rollout(**call, progress=lambda progress: None),
    "timeout": lambda pool, call: pool.rollout(**call, timeout=3600),
}


def for_ever(nthread: int, nbatch: int) -> dict[str, Any]:
    """A call that would take years."""
    model = zoo.load("slider")
    return {
        "model": [model] * nbatch,
        "data": new_data(model, max(nthread, 1)),
        "initial_state": np.zeros((nbatch, mujoco.mj_stateSize(model, FULLPHYSICS))),
        "nstep": 1_000_000_000_000,
        "skip_checks": True,
    }


def feedback(model: mujoco.MjModel, data: mujoco.MjData) -> None:
    """A controller that takes its time."""
    data.ctrl[:] += 0.5 * np.sin(data.qpos[: model.nu])
    time.sleep(0.001)


@pytest.mark.parametrize("nthread", [0, 1, 2])
@pytest.mark.parametrize("with_callback", [False, True])
@isolated
def test_r74_ctrl_c_ends_a_call_and_nothing_else(nthread, with_callback):
    rollouts = batch("slider", nbatch=6, nstep=4)
    if with_callback:
        mujoco.set_mjcb_control(feedback)
    expected = plain_loop(rollouts)
    with rollout.Rollout(nthread=nthread) as pool:
        for nth, wait in enumerate(WAYS.values()):
            # One long rollout; or some, for all threads.
            call = for_ever(nthread, nbatch=1 + nth % 2 * 4)
            sent: list[float] = []

            def send(sent: list[float] = sent) -> None:
                sent.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGINT)

            timer = threading.Timer(0.5, send)
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                wait(pool, call)
            # Ten times as long as it should take.
            assert time.monotonic() - sent[0] < 2
            timer.join()
            # Nothing uses the data any more, and no engine's error is left in them.
            data = dirty_data(rollouts.model, max(nthread, 1))
            assert_same_bits(pool.rollout(**rollouts.arguments(data)), expected)
            used = {**rollouts.arguments(call["data"]), "model": call["model"][0]}
            assert_same_bits(pool.rollout(**used), expected)


class Alarm(Exception):
    """What a handler raises."""


@isolated
def test_any_exception_of_any_handler_ends_a_call():
    rung: list[threading.Thread] = []

    def ring(*_: object) -> None:
        rung.append(threading.current_thread())
        if len(rung) % 3 == 0:
            raise Alarm

    signal.signal(signal.SIGALRM, ring)
    with rollout.Rollout(nthread=2) as pool:
        for wait in WAYS.values():
            # Two handlers raise nothing, and the call goes on.
            with pytest.raises(Alarm):
                signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
                try:
                    wait(pool, for_ever(2, nbatch=2))
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
    assert set(rung) == {threading.main_thread()}


@pytest.mark.parametrize("nthread", [0, 2])
@isolated
def test_a_call_that_is_interrupted_often_gives_the_same_bits(nthread):
    """Handlers that roll out themselves included."""
    rollouts, inner = batch("humanoid", nbatch=8, nstep=200), batch("slider", nbatch=3, nstep=5)
    expected, right = plain_loop(rollouts), plain_loop(inner)
    spare = dirty_data(inner.model, max(nthread, 1))
    with rollout.Rollout(nthread=nthread) as pool:

        def handle(*_: object) -> None:
            assert_same_bits(pool.rollout(**inner.arguments(spare)), right)

        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.1)
        data = dirty_data(rollouts.model, max(nthread, 1))
        for _ in range(3):
            assert_same_bits(pool.rollout(**rollouts.arguments(data)), expected)
            assert_same_bits(pool.submit(**rollouts.arguments(data)).result(), expected)
        signal.setitimer(signal.ITIMER_REAL, 0)


@isolated
def test_a_call_in_another_thread_goes_on():
    rollouts = batch("humanoid", nbatch=4, nstep=200)
    found = []
    with rollout.Rollout(nthread=2) as pool:
        arguments = rollouts.arguments(dirty_data(rollouts.model, 2))
        begun = threading.Event()

        def work() -> None:
            begun.set()
            found.append(pool.rollout(**arguments))

        other = threading.Thread(target=work)
        with pytest.raises(KeyboardInterrupt):
            other.start()
            begun.wait()
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
        other.join()
    assert_same_bits(found[0], plain_loop(rollouts))


AT_EXIT = """
    import threading
    import time

    import mujoco
    import rollout
    from test_interrupt import WAYS, feedback, for_ever

    def begin(way, nthread, call):
        pool = rollout.Rollout(nthread=nthread)
        WAYS[way](pool, call)
        print("came back")

    def again_and_again(way, nthread, call):
        pool = rollout.Rollout(nthread=nthread)
        while True:
            WAYS[way](pool, {{**call, "nstep": 3}})

    arguments = [
        (way, nthread, for_ever(nthread, nbatch=4)) for way in {ways} for nthread in (0, 2)
    ]
    if {with_callback}:
        mujoco.set_mjcb_control(feedback)
    for one in arguments:
        threading.Thread(target={work}, args=one, daemon=True).start()
        while not any(data.time for data in one[2]["data"]):
            time.sleep(0.001)
    print("done")
"""


@pytest.mark.parametrize("with_callback", [False, True])
@pytest.mark.parametrize("work", ["begin", "again_and_again"])
def test_the_interpreter_exits_while_daemon_threads_roll_out(work, with_callback):
    # The general path calls functions of MuJoCo's bindings that give the interpreter's lock
    # away. That a daemon thread is in one of those at the end is up to them and to Python.
    ways = ["fast", "general", "result"] if work == "begin" else ["fast"]
    printed = run(AT_EXIT.format(work=work, with_callback=with_callback, ways=ways))
    assert printed == "done\n"


@pytest.mark.parametrize("with_callback", [False, True])
def test_the_interpreter_exits_with_tickets_in_flight(with_callback):
    program = """
        import mujoco
        import rollout
        from held import wait_until
        from test_interrupt import feedback, for_ever

        calls = {{nthread: for_ever(nthread, nbatch=4) for nthread in (0, 1, 2, 5)}}
        if {with_callback}:
            mujoco.set_mjcb_control(feedback)
        tickets = []
        for nthread, call in calls.items():
            tickets.append(rollout.Rollout(nthread=nthread).submit(**call))
        tickets[-1].itself = tickets[-1]
        wait_until(lambda: tickets[-1].progress().steps > 0)
        print("done")
    """
    assert run(program.format(with_callback=with_callback)) == "done\n"


def test_nothing_can_be_submitted_when_it_is_too_late():
    program = """
        import atexit

        def late():
            try:
                pool.submit(**call)
            except RuntimeError as error:
                print(error)
            print(ticket.done(), pool.rollout(**{**call, "nstep": 2}))

        atexit.register(late)
        import rollout
        from test_interrupt import for_ever

        pool = rollout.Rollout(nthread=2)
        ticket = pool.submit(**for_ever(2, nbatch=3))
        call = for_ever(2, nbatch=3)
    """
    late = "nothing can be submitted while the interpreter exits\nTrue (None, None)\n"
    assert run(program) == late


def test_the_interpreter_exits_in_a_forked_child():
    """Where the threads that were in a call are not."""
    program = """
        import os
        import threading
        import time

        import rollout
        from test_interrupt import WAYS, for_ever

        pool = rollout.Rollout(nthread=2)
        call = for_ever(2, nbatch=2)
        threading.Thread(target=WAYS["fast"], args=(pool, call), daemon=True).start()
        while not any(data.time for data in call["data"]):
            time.sleep(0.001)
        ticket = pool.submit(**for_ever(2, nbatch=2))
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            print("status", status)
    """
    assert run(program) == "status 0\n"
