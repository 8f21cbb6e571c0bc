"""What became of each rollout, and of its rows that are not valid."""

from __future__ import annotations

import os
from typing import Any

import mujoco
import numpy as np
import pytest

import rollout
import zoo
from isolation import isolated
from reference import FULLPHYSICS, assert_same_bits, batch, dirty_data, new_data
from rollout import Status

NAN = float("nan")


def bad_control() -> tuple[mujoco.MjModel, np.ndarray, np.ndarray]:
    """Four rollouts of six steps; the one in the middle gets NaN at its fourth step."""
    model = zoo.load("slider")
    start = np.zeros((4, mujoco.mj_stateSize(model, FULLPHYSICS)))
    control = np.linspace(-1, 1, 4 * 6 * model.nu).reshape(4, 6, model.nu)
    control[2, 3] = NAN
    return model, start, control


@pytest.mark.parametrize("nthread", [0, 1, 2, 8])
def test_r06_a_rollout_with_a_bad_control_is_warned_at_its_step(nthread, capfd):
    model, start, control = bad_control()
    data = new_data(model, max(nthread, 1))
    with rollout.Rollout(nthread=nthread) as pool:
        state, sensordata, outcomes = pool.rollout(model, data, start, control, outcomes=True)
    assert outcomes.status.tolist() == [Status.COMPLETED, 0, Status.WARNED, 0]
    assert outcomes.warning.tolist() == [-1, -1, mujoco.mjtWarning.mjWARN_BADCTRL.value, -1]
    assert outcomes.steps.tolist() == [6, 6, 3, 6]
    assert outcomes.completed.tolist() == [True, True, False, True]
    assert b"CTRL" in outcomes.message[2] and not any(outcomes.message[[0, 1, 3]])
    assert repr(outcomes) == "<Outcomes: 3 completed, 1 warned>"
    assert len(outcomes) == 4
    others = [0, 1, 3]
    expected = rollout.rollout(model, data[0], start[others], control[others])
    assert_same_bits((state[others], sensordata[others]), expected)
    assert capfd.readouterr() == ("", "")
    assert not os.path.exists("MUJOCO_LOG.TXT")


def test_a_warning_is_no_error_of_a_call():
    model, start, control = bad_control()
    rollout.rollout(model, mujoco.MjData(model), start, control)


@pytest.mark.parametrize("skip_checks", [False, True])
def test_rows_that_are_not_valid_are_as_fill_says(skip_checks):
    model, start, control = bad_control()
    calls: dict[str, Any] = {}
    for fill in ("hold", "nan", "untouched"):
        state = np.full((4, 6, start.shape[1]), 7.0)
        sensordata = np.full((4, 6, model.nsensordata), 7.0)
        _, _, outcomes = rollout.rollout(
            [model] * 4,
            [mujoco.MjData(model)],
            start,
            control,
            nstep=6,
            skip_checks=skip_checks,
            state=state,
            sensordata=sensordata,
            fill=fill,
            outcomes=True,
        )
        assert outcomes.steps[2] == 3
        calls[fill] = state, sensordata
    plain = rollout.rollout(model, mujoco.MjData(model), start, control)
    assert_same_bits(calls["hold"], plain)
    for of_fill, value in (("nan", NAN), ("untouched", 7.0)):
        for found, held in zip(calls[of_fill], plain):
            np.testing.assert_array_equal(found[2, 3:], value)
            found[2, 3:] = held[2, 3:]
        assert_same_bits(calls[of_fill], plain)


def test_a_fill_that_is_none_is_refused():
    model, start, _ = bad_control()
    wrong: list[Any] = ["zero", "", None, 1]
    for fill in wrong:
        with pytest.raises(ValueError, match="fill must be one of hold, nan, untouched"):
            rollout.rollout(model, mujoco.MjData(model), start, fill=fill)


def test_a_diverged_rollout_says_so():
    rollouts = batch("exploding")
    _, _, outcomes = rollout.rollout(
        **rollouts.arguments(dirty_data(rollouts.model, 2)), outcomes=True
    )
    diverged = outcomes.status == Status.DIVERGED
    assert diverged.any()
    assert (outcomes.steps[diverged] < rollouts.nstep).all()
    assert (outcomes.warning[diverged] >= 0).all()


@isolated
def test_an_engine_s_error_is_an_outcome_and_not_an_exception():
    healthy = batch("heap", nbatch=8, nstep=4)
    models = [zoo.load("heap") for _ in range(8)]
    models[5].opt.solver = 10
    for ndata in (1, 2, 8):
        data = dirty_data(healthy.model, ndata)
        arguments = {**healthy.arguments(data), "model": models}
        with pytest.raises(mujoco.FatalError) as caught:
            rollout.rollout(**arguments)
        state, _, outcomes = rollout.rollout(**arguments, fill="nan", outcomes=True)
        assert outcomes.status.tolist() == [0] * 5 + [Status.ENGINE_ERROR] + [0] * 2
        assert outcomes.message[5].decode() == str(caught.value)
        assert caught.value.rollouts == [5]
        assert np.isnan(state[5, int(outcomes.steps[5]) :]).all()
        assert not np.isnan(state[[0, 1, 2, 3, 4, 6, 7]]).any()


def test_no_rollouts_have_no_outcomes():
    model, start, _ = bad_control()
    _, _, outcomes = rollout.rollout(model, mujoco.MjData(model), start[:0], outcomes=True)
    assert len(outcomes) == 0 and repr(outcomes) == "<Outcomes: none>"


def test_outcomes_of_more_rollouts_than_are_listed_otherwise():
    model, start, _ = bad_control()
    many = np.broadcast_to(start[:1], (40_000, start.shape[1]))
    _, _, outcomes = rollout.rollout(model, mujoco.MjData(model), many, outcomes=True)
    assert outcomes.completed.all() and len(outcomes) == 40_000
