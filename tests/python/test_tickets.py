"""Requests that are submitted: waited for, watched, in time, cancelled, dropped."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import sys
import threading
import time
from concurrent.futures import CancelledError
from typing import Any, ClassVar

import mujoco
import numpy as np
import pytest

import rollout
import zoo
from held import Gate, pool_threads, wait_until
from isolation import PATIENCE, in_threads, isolated
from reference import FULLPHYSICS, Batch, assert_same_bits, batch, dirty_data, new_data, plain_loop
from rollout import Progress, Status

NTHREADS = [0, 1, 2, 4]


def for_ever(model: mujoco.MjModel, nthread: int, nbatch: int = 1) -> dict[str, Any]:
    """The arguments of rollouts that do not end by themselves, and write nothing."""
    return {
        "model": [model] * nbatch,
        "data": new_data(model, max(nthread, 1)),
        "initial_state": np.zeros((nbatch, mujoco.mj_stateSize(model, FULLPHYSICS))),
        "nstep": 1_000_000_000_000,
        "skip_checks": True,
    }


@pytest.mark.parametrize("nthread", NTHREADS)
@pytest.mark.parametrize("name", ["slider", "every_input", "heap", "no_sensors"])
def test_a_ticket_gives_what_a_call_gives(name, nthread):
    rollouts = batch(name, nbatch=6, nstep=4)
    expected = plain_loop(rollouts)
    with rollout.Rollout(nthread=nthread) as pool:
        data = dirty_data(rollouts.model, max(nthread, 1))
        ticket = pool.submit(**rollouts.arguments(data))
        assert ticket.wait()
        assert ticket.done()
        assert ticket.progress() == Progress(6, 24, 6, 4)
        for _ in range(2):
            assert_same_bits(ticket.result(), expected)
        state, sensordata, outcomes = pool.submit(
            **rollouts.arguments(data), outcomes=True, chunk_size=1
        ).result(timeout=PATIENCE)
        assert_same_bits((state, sensordata), expected)
        assert outcomes.completed.all()
    assert repr(ticket) == "<Ticket: done, 6 of 6 rollouts>"


def test_a_ticket_writes_to_the_arrays_that_it_is_given():
    rollouts = batch("slider", nbatch=4, nstep=3)
    expected = plain_loop(rollouts)
    state, sensordata = (np.zeros_like(array) for array in expected)
    with rollout.Rollout(nthread=2) as pool:
        arguments = rollouts.arguments(dirty_data(rollouts.model, 2))
        ticket = pool.submit(**arguments, state=state, sensordata=sensordata)
        found = ticket.result()
        assert found[0] is state and found[1] is sensordata
        assert_same_bits(found, expected)
        arguments["model"] = [rollouts.first_model] * 4
        unchecked = pool.submit(**arguments, state=state, skip_checks=True, outcomes=True).result()
        assert unchecked[0] is state and unchecked[1] is None
        assert unchecked[2].completed.all()


def test_an_input_that_is_an_output_is_read_before_it_is_written():
    rollouts = batch("slider", nbatch=4, nstep=1)
    expected = plain_loop(rollouts)
    state = rollouts.initial_state.copy()[:, np.newaxis]
    with rollout.Rollout() as pool:
        arguments = rollouts.arguments(dirty_data(rollouts.model, 1))
        arguments["initial_state"] = state[:, 0]
        assert_same_bits(pool.submit(**arguments, state=state).result(), expected)


def test_no_rollouts_are_done_at_once():
    rollouts = batch("slider", nbatch=2, nstep=3)
    with rollout.Rollout() as pool:
        arguments = rollouts.arguments(dirty_data(rollouts.model, 1))
        arguments["initial_state"] = rollouts.initial_state[:0]
        arguments["control"] = None
        ticket = pool.submit(**arguments)
        assert ticket.done() and ticket.wait(0)
        assert ticket.progress() == Progress(0, 0, 0, 3)
        ticket.cancel()
        assert ticket.result()[0].shape == (0, 3, rollouts.initial_state.shape[1])


@pytest.mark.parametrize("nthread", [1, 2])
def test_r79_what_is_waited_for_in_vain_goes_on(nthread, control_callback):
    rollouts = batch("slider", nbatch=2, nstep=3)
    arguments = rollouts.arguments(dirty_data(rollouts.model, nthread))
    gate = Gate()
    # Another thread works on it, so that this one only waits.
    with rollout.Rollout(nthread=nthread) as pool:
        ticket = pool.submit(**arguments)
        helper = threading.Thread(target=ticket.wait)
        helper.start()
        gate.wait_for_somebody()
        if nthread == 1:
            assert not ticket.wait(timeout=0.01)
            with pytest.raises(TimeoutError, match=r"^the request is not done yet$"):
                ticket.result(timeout=0.01)
        assert not ticket.wait(timeout=0)
        assert not ticket.wait(timeout=-1)
        assert not ticket.done()
        assert ticket.progress().rollouts < 2
        assert "in flight" in repr(ticket)
        gate.open()
        found = ticket.result()
        helper.join(PATIENCE)
    mujoco.set_mjcb_control(None)
    assert_same_bits(found, plain_loop(rollouts))


@pytest.mark.parametrize("nthread", NTHREADS)
def test_r41_a_ticket_ends_in_time_and_tells_which_steps_are_valid(nthread, control_callback):
    rollouts = batch("slider", nbatch=128, nstep=100)
    expected = plain_loop(rollouts)
    begun = []

    def slow(model: mujoco.MjModel, data: mujoco.MjData) -> None:
        begun.append(time.monotonic())
        time.sleep(0.001)

    control_callback(slow)
    with rollout.Rollout(nthread=nthread) as pool:
        data = new_data(rollouts.model, max(nthread, 1))
        ticket = pool.submit(**rollouts.arguments(data), timeout=0.005, outcomes=True)
        latest = time.monotonic() + 0.005
        state, sensordata, outcomes = ticket.result()
    mujoco.set_mjcb_control(None)
    # Each thread was perhaps about to begin a step.
    assert sum(start > latest for start in begun) <= max(nthread, 1)
    assert set(outcomes.status) <= {Status.COMPLETED, Status.OUT_OF_TIME, Status.NOT_STARTED}
    assert Status.NOT_STARTED in outcomes.status
    assert outcomes.steps.sum() <= len(begun)
    for row, steps in enumerate(outcomes.steps):
        for found, right in ((state, expected[0]), (sensordata, expected[1])):
            np.testing.assert_array_equal(found[row, :steps], right[row, :steps])
            assert np.isnan(found[row, steps:]).all()


@pytest.mark.parametrize("nthread", NTHREADS)
def test_a_call_ends_in_time(nthread):
    model = zoo.load("slider")
    rollouts = batch("slider", nbatch=3, nstep=2)
    with rollout.Rollout(nthread=nthread) as pool:
        endless = for_ever(model, nthread, nbatch=5)
        with pytest.raises(rollout.OutOfTime, match="time was up, with 0 rollouts completed"):
            pool.rollout(**endless, timeout=0.01)
        with pytest.raises(TimeoutError):
            pool.submit(**endless, timeout=0.01).result()
        with pytest.raises(rollout.OutOfTime):
            rollout.rollout(**endless, timeout=0.01)
        _, _, outcomes = pool.rollout(**endless, timeout=0.01, outcomes=True)
        assert not outcomes.completed.any()
        # In time, it is as if there were none.
        data = dirty_data(rollouts.model, max(nthread, 1))
        for timeout in (3600, float("inf")):
            found = pool.rollout(**rollouts.arguments(data), timeout=timeout, priority=-3)
            assert_same_bits(found, plain_loop(rollouts))


def test_where_there_is_no_time_no_step_is_made():
    rollouts = batch("slider", nbatch=3, nstep=2)
    (data,) = new_data(rollouts.model, 1)
    given = np.full((3, 2, rollouts.initial_state.shape[1]), 7.0)
    state, sensordata, outcomes = rollout.rollout(
        **rollouts.arguments(data), state=given, timeout=0, outcomes=True
    )
    assert (outcomes.status == Status.NOT_STARTED).all()
    assert state is given and (state == 7).all()
    assert np.isnan(sensordata).all()
    assert data.time == 0


def test_terms_that_are_none_are_refused():
    rollouts = batch("slider", nbatch=1, nstep=1)
    arguments = rollouts.arguments(new_data(rollouts.model, 1))
    with rollout.Rollout() as pool:
        for call in (pool.rollout, pool.submit, rollout.rollout):
            for timeout in (-1, -1e-9, float("nan")):
                with pytest.raises(ValueError, match="timeout must be a non-negative number"):
                    call(**arguments, timeout=timeout)
            priorities: list[Any] = [1 << 31, -(1 << 31) - 1, 0.5, None]
            for priority in priorities:
                with pytest.raises(ValueError, match="priority must be"):
                    call(**arguments, priority=priority)
        wrong: list[Any] = [None, 1, "yes"]
        for progress in wrong:
            with pytest.raises(TypeError, match="progress must be a bool or a function"):
                pool.rollout(**arguments, progress=progress)
    with pytest.raises(RuntimeError, match=r"^rollout requested after thread pool shutdown$"):
        pool.submit(**arguments)
    with pytest.raises(RuntimeError, match=r"^rollout requested after thread pool shutdown$"):
        pool.stats()


@pytest.mark.parametrize("nthread", NTHREADS)
def test_a_ticket_can_be_cancelled(nthread):
    rollouts = batch("slider", nbatch=3, nstep=2)
    endless = for_ever(zoo.load("slider"), nthread, nbatch=5)
    with rollout.Rollout(nthread=nthread) as pool:
        ticket = pool.submit(**endless, outcomes=True)
        ticket.cancel()
        ticket.cancel()
        assert ticket.wait()
        with pytest.raises(CancelledError, match="the request was cancelled"):
            ticket.result()
        assert ticket.done()
        arguments = {**rollouts.arguments(endless["data"]), "model": endless["model"][0]}
        assert_same_bits(pool.rollout(**arguments), plain_loop(rollouts))
        with pool.submit(**endless) as ticket:
            assert not ticket.done()
        assert ticket.done()
        ended = pool.submit(**arguments)
        assert ended.wait()
        ended.cancel()
        assert_same_bits(ended.result(), plain_loop(rollouts))


def test_rows_that_a_cancelled_ticket_has_not_reached_are_nan_or_untouched(control_callback):
    rollouts = batch("slider", nbatch=5, nstep=2)
    gate = Gate()
    given = np.full((5, 2, rollouts.initial_state.shape[1]), 7.0)
    with rollout.Rollout(nthread=2) as pool:
        arguments = rollouts.arguments(new_data(rollouts.model, 2))
        ticket = pool.submit(**arguments, state=given, chunk_size=5)
        gate.wait_for_somebody()
        ticket.cancel()
        gate.open()
        ticket.wait()
        assert np.isnan(given[0, 1]).all() and not np.isnan(given[0, 0]).any()
        assert (given[1:] == 7).all()
        sensordata = ticket._result[1]
        assert not np.isnan(sensordata[0, 0]).any()
        assert np.isnan(sensordata[0, 1]).all() and np.isnan(sensordata[1:]).all()


@pytest.mark.parametrize("nthread", NTHREADS)
def test_a_ticket_that_nobody_has_is_cancelled(nthread):
    rollouts = batch("slider", nbatch=3, nstep=2)
    endless = for_ever(zoo.load("slider"), nthread, nbatch=5)
    with rollout.Rollout(nthread=nthread) as pool:
        for _ in range(20):
            ticket = pool.submit(**endless)
            del ticket
            arguments = {**rollouts.arguments(endless["data"]), "model": endless["model"][0]}
            assert_same_bits(pool.rollout(**arguments), plain_loop(rollouts))


@isolated
def test_what_a_ticket_uses_lives_as_long_as_it_does():
    rollouts = batch("pendulum")
    expected = plain_loop(rollouts)
    before = pool_threads()
    models = [zoo.load("pendulum") for _ in range(rollouts.nbatch)]
    data = dirty_data(rollouts.model, 2)
    gate = Gate()
    pool = rollout.Rollout(nthread=2)
    ticket = pool.submit(models, data, rollouts.initial_state.copy(), rollouts.control.copy())
    gate.wait_for_somebody()
    pool.close()
    del models, data, pool
    gc.collect()
    # Something else in the memory that might have been freed.
    filler = [batch("pendulum") for _ in range(5)]
    gate.open()
    assert_same_bits(ticket.result(), expected)
    assert len(filler) == 5
    del ticket
    wait_until(lambda: pool_threads() <= before)


@isolated
def test_a_ticket_can_be_dropped_in_a_callback_of_its_own():
    """Where the garbage collector may drop it, too."""
    from rollout import _ticket

    rollouts = batch("slider", nbatch=4, nstep=3)
    submitted, dropped = threading.Event(), threading.Event()
    tickets: list[Any] = []

    def drop(model: mujoco.MjModel, data: mujoco.MjData) -> None:
        assert submitted.wait(PATIENCE)
        if tickets:
            tickets.clear()
            dropped.set()

    data = dirty_data(rollouts.model, 2)
    mujoco.set_mjcb_control(drop)
    with rollout.Rollout(nthread=2) as pool:
        tickets.append(pool.submit(**rollouts.arguments(data)))
        submitted.set()
        assert dropped.wait(PATIENCE)
        wait_until(lambda: all(flight.is_over() for flight in _ticket._left))
        mujoco.set_mjcb_control(None)
        assert_same_bits(pool.submit(**rollouts.arguments(data)).result(), plain_loop(rollouts))
    assert not _ticket._left


@isolated
def test_a_callback_cannot_wait_for_its_own_pool():
    rollouts = batch("slider", nbatch=1, nstep=1)
    submitted = threading.Event()
    tickets: list[Any] = []
    found: list[str] = []

    def wait(model: mujoco.MjModel, data: mujoco.MjData) -> None:
        assert submitted.wait(PATIENCE)
        for method in (tickets[0].wait, tickets[0].result):
            with pytest.raises(RuntimeError) as caught:
                method()
            found.append(str(caught.value))

    arguments = rollouts.arguments(dirty_data(rollouts.model, 2))
    mujoco.set_mjcb_control(wait)
    with rollout.Rollout(nthread=2) as pool:
        tickets.append(pool.submit(**arguments))
        submitted.set()
        wait_until(tickets[0].done)
    mujoco.set_mjcb_control(None)
    assert_same_bits(tickets[0].result(), plain_loop(rollouts))
    assert found == ["waiting here would never end"] * 2


def test_r88_requests_of_different_lengths_and_r83_models_end_each_on_their_own():
    batches = [
        batch(name, nbatch=5, nstep=nstep)
        for name, nstep in (("slider", 40), ("pendulum", 3), ("every_input", 11), ("heap", 1))
    ]
    expected = [plain_loop(rollouts) for rollouts in batches]
    with rollout.Rollout(nthread=3) as pool:
        endless = pool.submit(**for_ever(zoo.load("slider"), 3, nbatch=3))

        def work(number: int) -> None:
            mine = batches[number % len(batches)]
            data = [dirty_data(mine.model, 3) for _ in range(3)]
            for _ in range(5):
                tickets = [pool.submit(**mine.arguments(of_ticket)) for of_ticket in data]
                for ticket in reversed(tickets):
                    assert_same_bits(ticket.result(), expected[number % len(batches)])

        in_threads(4, work)
        assert not endless.done()


def test_many_threads_can_use_one_ticket():
    rollouts = batch("pendulum", nbatch=50, nstep=20)
    expected = plain_loop(rollouts)
    with rollout.Rollout(nthread=2) as pool:
        data = dirty_data(rollouts.model, 2)
        for nth in range(10):
            ticket = pool.submit(**rollouts.arguments(data))

            def work(number: int, ticket: Any = ticket, nth: int = nth) -> None:
                if number == 0 and nth % 2:
                    ticket.cancel()
                before = Progress(0, 0, 0, 0)
                while not ticket.wait(0.001):
                    now = ticket.progress()
                    assert now >= before
                    before = now
                assert ticket.done()
                try:
                    assert_same_bits(ticket.result(), expected)
                except CancelledError:
                    assert nth % 2

            in_threads(4, work)


def test_a_ticket_of_a_higher_priority_goes_first(control_callback):
    batches = [batch(name, nbatch=2, nstep=2) for name in ("slider", "pendulum", "every_input")]
    expected = [plain_loop(rollouts) for rollouts in batches]
    order = []
    entered, go = threading.Event(), threading.Event()

    def note(model: mujoco.MjModel, data: mujoco.MjData) -> None:
        order.append(model.nq)
        entered.set()
        go.wait(PATIENCE)

    control_callback(note)
    with rollout.Rollout(nthread=2) as pool:

        def submit(rollouts: Batch, priority: int) -> Any:
            data = new_data(rollouts.model, 2)
            return pool.submit(**rollouts.arguments(data), priority=priority)

        # Its one thread is in the first, with another rollout to come, when the others come.
        tickets = [submit(batches[0], 0)]
        assert entered.wait(PATIENCE)
        tickets += [submit(batches[1], -1), submit(batches[2], 5)]
        go.set()
        for ticket in tickets:
            wait_until(ticket.done)
    mujoco.set_mjcb_control(None)
    sizes = [rollouts.first_model.nq for rollouts in batches]
    assert len(set(sizes)) == 3
    assert order == [sizes[0]] * 2 + [sizes[2]] * 4 + [sizes[0]] * 2 + [sizes[1]] * 4
    for ticket, right in zip(tickets, expected):
        assert_same_bits(ticket.result(), right)


@isolated
def test_an_engine_s_error_is_raised_or_told():
    healthy = batch("heap", nbatch=6, nstep=2)
    models = [zoo.load("heap") for _ in range(6)]
    models[2].opt.solver = 10
    with rollout.Rollout(nthread=2) as pool:
        arguments = {**healthy.arguments(dirty_data(healthy.model, 2)), "model": models}
        ticket = pool.submit(**arguments)
        for _ in range(2):
            with pytest.raises(mujoco.FatalError) as caught:
                ticket.result()
            assert caught.value.rollouts == [2]
        state, _, outcomes = pool.submit(**arguments, outcomes=True).result()
        assert outcomes.failed() == [2]
        assert outcomes.message[2].decode() == str(caught.value)
        # Which is the fill of tickets, unless they are told otherwise.
        assert np.isnan(state[2, int(outcomes.steps[2]) :]).all()


@pytest.mark.parametrize("nthread", NTHREADS)
def test_a_ticket_can_be_awaited(nthread):
    batches = [batch(name, nbatch=5, nstep=4) for name in ("slider", "pendulum")]

    async def main(pool: rollout.Rollout) -> list[Any]:
        async def one(rollouts: Batch) -> Any:
            return await pool.submit(
                **rollouts.arguments(dirty_data(rollouts.model, max(nthread, 1)))
            )

        return await asyncio.gather(*map(one, batches))

    with rollout.Rollout(nthread=nthread) as pool:
        for found, rollouts in zip(asyncio.run(main(pool)), batches):
            assert_same_bits(found, plain_loop(rollouts))


@pytest.mark.parametrize("nthread", NTHREADS)
def test_a_task_that_is_cancelled_cancels_its_ticket(nthread):
    async def main(pool: rollout.Rollout) -> Any:
        ticket = pool.submit(**for_ever(zoo.load("slider"), nthread))

        async def wait() -> None:
            await ticket

        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(wait(), 0.01)
        return ticket

    with rollout.Rollout(nthread=nthread) as pool:
        ticket = asyncio.run(main(pool))
        assert ticket.wait(PATIENCE)
        with pytest.raises(CancelledError):
            ticket.result()


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_ticket_can_be_neither_copied_nor_pickled(duplicate):
    rollouts = batch("slider", nbatch=1, nstep=1)
    with rollout.Rollout() as pool:
        ticket = pool.submit(**rollouts.arguments(new_data(rollouts.model, 1)))
        with pytest.raises(TypeError, match="a ticket can be neither"):
            duplicate(ticket)


@isolated
def test_a_ticket_belongs_to_the_process_that_submitted_it():
    rollouts = batch("slider")
    pool = rollout.Rollout(nthread=2)
    ticket = pool.submit(**for_ever(zoo.load("slider"), 2))
    child = os.fork()
    if not child:
        try:
            for use in (ticket.wait, ticket.done, ticket.cancel, ticket.result, ticket.progress):
                with pytest.raises(RuntimeError, match="a ticket does not follow"):
                    use()
            assert repr(ticket) == "<Ticket: of another process>"
            del ticket
            gc.collect()
            with rollout.Rollout() as mine:
                own = mine.submit(**rollouts.arguments(dirty_data(rollouts.model, 1)))
                assert_same_bits(own.result(), plain_loop(rollouts))
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert not ticket.done()


@pytest.mark.parametrize("nthread", NTHREADS)
def test_progress_is_told_and_ends_with_all(nthread):
    rollouts = batch("slider", nbatch=50, nstep=10)
    told: list[Progress] = []
    with rollout.Rollout(nthread=nthread) as pool:
        data = dirty_data(rollouts.model, max(nthread, 1))
        found = pool.rollout(**rollouts.arguments(data), progress=told.append)
        assert_same_bits(found, plain_loop(rollouts))
        assert told[-1] == Progress(50, 500, 50, 10)
        told.clear()
        found = rollout.rollout(**rollouts.arguments(data), progress=told.append)
        assert_same_bits(found, plain_loop(rollouts))
    assert told == sorted(told)
    assert told[-1] == Progress(50, 500, 50, 10)


@pytest.mark.parametrize("nthread", NTHREADS)
def test_what_progress_raises_ends_the_call(nthread):
    rollouts = batch("slider", nbatch=3, nstep=2)
    told: list[Progress] = []

    def enough(progress: Progress) -> None:
        told.append(progress)
        if len(told) == 3:
            raise KeyError("enough")

    endless = for_ever(zoo.load("slider"), nthread)
    with rollout.Rollout(nthread=nthread) as pool:

        def work(_: int) -> None:
            with pytest.raises(KeyError, match="enough"):
                pool.rollout(**endless, progress=enough)

        work(0)
        assert len(told) == 3
        told.clear()
        # In another thread than the main one.
        in_threads(1, work)
        arguments = {**rollouts.arguments(endless["data"]), "model": endless["model"][0]}
        assert_same_bits(pool.rollout(**arguments), plain_loop(rollouts))


class Bar:
    """A stand-in for `tqdm.auto`, and for the bar that it makes."""

    made: ClassVar[list[Bar]] = []

    @staticmethod
    def tqdm(**arguments: Any) -> Bar:
        Bar.made.append(Bar(arguments))
        return Bar.made[-1]

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments
        self.n = 0
        self.said: dict[str, Any] = {}
        self.is_closed = False

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True

    def update(self, more: int) -> None:
        self.n += more

    def set_postfix(self, refresh: bool, **said: Any) -> None:
        self.said = said


def test_progress_can_be_a_bar(monkeypatch):
    rollouts = batch("slider", nbatch=7, nstep=3)
    arguments = rollouts.arguments(dirty_data(rollouts.model, 2))
    monkeypatch.setitem(sys.modules, "tqdm.auto", Bar)
    assert_same_bits(rollout.rollout(**arguments, progress=True), plain_loop(rollouts))
    (bar,) = Bar.made
    assert bar.arguments["total"] == bar.n == 7
    assert bar.said == {"steps": 21} and bar.is_closed
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match="progress=True needs tqdm"):
        rollout.rollout(**arguments, progress=True)


def test_what_each_thread_has_done_can_be_asked():
    rollouts = batch("slider", nbatch=20, nstep=3)
    with rollout.Rollout(nthread=3) as pool:
        ticket = pool.submit(**rollouts.arguments(dirty_data(rollouts.model, 3)))
        # Nobody waits, so that only the threads work.
        wait_until(ticket.done)
        stats = pool.stats()
    assert len(stats) == 2
    assert sum(one.rollouts for one in stats) == 20
    assert sum(one.steps for one in stats) == 60
    assert all(one.tasks == 0 and one.busy >= 0 and one.idle >= 0 for one in stats)
    for nthread in (0, 1):
        with rollout.Rollout(nthread=nthread) as pool:
            assert pool.stats() == []
