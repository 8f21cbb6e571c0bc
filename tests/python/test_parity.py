"""Rollouts give what a plain loop over ``mj_step`` gives, and ``mujoco.rollout``, to the bit."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

import rollout
import zoo
from reference import (
    CTRL,
    INPUTS,
    USER,
    Batch,
    assert_right,
    assert_same_bits,
    batch,
    dirty_data,
    new_data,
    plain_loop,
    random_control,
    variants,
)


@pytest.mark.parametrize("name", zoo.ALL)
@pytest.mark.parametrize("warmstart", [False, True], ids=["cold", "warm"])
def test_every_model_gives_what_the_references_give(name, warmstart):
    rollouts = batch(name, warmstart=warmstart)
    found = rollout.rollout(**rollouts.arguments(dirty_data(rollouts.model, 3)))
    assert_right(found, rollouts)


@pytest.mark.parametrize("name", zoo.ALL)
def test_every_model_takes_all_inputs_at_once(name):
    rollouts = batch(name, spec=USER)
    found = rollout.rollout(**rollouts.arguments(dirty_data(rollouts.model, 2)))
    assert_right(found, rollouts)


@pytest.mark.parametrize("name", zoo.HIDDEN_STATE)
@pytest.mark.parametrize("nthread", [1, 3])
def test_what_data_remember_outside_of_the_state_does_not_matter(name, nthread):
    rollouts = batch(name, nbatch=6)
    expected = plain_loop(rollouts)
    data = dirty_data(rollouts.model, nthread)
    for one in data:
        # So long that bodies come to rest.
        mujoco.mj_resetData(rollouts.model, one)
        mujoco.mj_step(rollouts.model, one, 2000)
    for _ in range(2):
        assert_same_bits(rollout.rollout(**rollouts.arguments(data)), expected)
    models = variants(rollouts.first_model, rollouts.nbatch)
    several = rollouts.but(model=models)
    try:
        found = rollout.rollout(**several.arguments(new_data(models, nthread)))
    except ValueError as error:
        # A data carries its model's plugins, so it cannot serve another one.
        assert "plugin" in str(error)
    else:
        assert_same_bits(found, plain_loop(several))


@pytest.mark.parametrize("name", ["every_input", "quadruped", "hopper"])
@pytest.mark.parametrize("bit", INPUTS.values(), ids=INPUTS.keys())
def test_each_input_can_be_given_alone(name, bit):
    rollouts = batch(name, spec=bit)
    found = rollout.rollout(**rollouts.arguments(dirty_data(rollouts.model, 2)))
    assert_right(found, rollouts)


def test_every_combination_of_inputs_can_be_given():
    full = batch("every_input", nbatch=2, nstep=4)
    data = dirty_data(full.model, 2)
    random = np.random.default_rng(1)
    for spec in range(0, USER + 1, min(INPUTS.values())):
        control = random_control(random, full.first_model, (2, 4), spec)
        rollouts = full.but(control=control, control_spec=spec)
        found = rollout.rollout(**rollouts.arguments(data))
        assert_right(found, rollouts)


@pytest.mark.parametrize("name", ["every_input", "quaternion_control", "cheetah", "heap"])
def test_inputs_that_are_absent_have_their_defaults_whatever_the_data_hold(name):
    if name not in zoo.ALL:
        pytest.skip("this MuJoCo has no such model")
    rollouts = batch(name).but(control=None)
    found = rollout.rollout(**rollouts.arguments(dirty_data(rollouts.model, 3)))
    assert_right(found, rollouts)
    for spec in (0, *INPUTS.values()):
        same = rollouts.but(control_spec=spec)
        assert_same_bits(rollout.rollout(**same.arguments(dirty_data(same.model, 3))), found)


@pytest.mark.parametrize("name", ["slider", "pendulum", "every_input", "cheetah", "humanoid"])
@pytest.mark.parametrize("spec", [CTRL, USER], ids=["ctrl", "user"])
def test_each_rollout_can_have_a_model_of_its_own(name, spec):
    one = batch(name, spec=spec, warmstart=True)
    rollouts = one.but(model=variants(one.first_model, one.nbatch))
    found = rollout.rollout(**rollouts.arguments(dirty_data(rollouts.model, 2)))
    assert_right(found, rollouts)
    # The models do make a difference, or nothing is shown.
    assert not np.array_equal(found[0], plain_loop(one)[0])


@pytest.mark.parametrize("integrator", ["EULER", "RK4", "IMPLICIT", "IMPLICITFAST"])
@pytest.mark.parametrize("solver", ["PGS", "CG", "NEWTON"])
def test_every_integrator_and_solver(integrator, solver):
    model = zoo.load("pendulum")
    model.opt.integrator = getattr(mujoco.mjtIntegrator, f"mjINT_{integrator}")
    model.opt.solver = getattr(mujoco.mjtSolver, f"mjSOL_{solver}")
    rollouts = batch(model, warmstart=True)
    found = rollout.rollout(**rollouts.arguments(dirty_data(model, 2)))
    assert_right(found, rollouts)


@pytest.mark.parametrize("nthread", [1, 2, 3, 8])
@pytest.mark.parametrize("chunk_size", [1, 7, 64, None])
def test_neither_threads_nor_chunks_change_a_bit(nthread, chunk_size):
    rollouts = batch("heap", nbatch=20)
    arguments = rollouts.arguments(dirty_data(rollouts.model, nthread))
    expected = plain_loop(rollouts)
    for persistent_pool in (False, True):
        found = rollout.rollout(**arguments, chunk_size=chunk_size, persistent_pool=persistent_pool)
        assert_same_bits(found, expected)
    with rollout.Rollout(nthread=nthread) as pool:
        assert_same_bits(pool.rollout(**arguments, chunk_size=chunk_size), expected)
    rollout.shutdown_persistent_pool()


def test_one_pool_serves_requests_of_all_models_in_turn():
    with rollout.Rollout(nthread=3) as pool:
        for name in [*zoo.OURS, *reversed(zoo.OURS)]:
            rollouts = batch(name, nbatch=4, nstep=3)
            found = pool.rollout(**rollouts.arguments(dirty_data(rollouts.model, 3)))
            assert_right(found, rollouts)


def test_the_persistent_pool_follows_the_number_of_data():
    rollouts = batch("slider")
    expected = plain_loop(rollouts)
    for nthread in (2, 2, 1, 4, 2):
        data = dirty_data(rollouts.model, nthread)
        found = rollout.rollout(**rollouts.arguments(data), persistent_pool=True)
        assert_same_bits(found, expected)
    rollout.shutdown_persistent_pool()
    rollout.shutdown_persistent_pool()
    found = rollout.rollout(**rollouts.arguments(data), persistent_pool=True)
    assert_same_bits(found, expected)


@pytest.mark.parametrize("name", ["every_input", "hopper"])
@pytest.mark.parametrize("nthread", [0, 1, 3])
def test_skip_checks_gives_the_same(name, nthread):
    one = batch(name, spec=USER, warmstart=True)
    for rollouts in (one, one.but(model=variants(one.first_model, one.nbatch))):
        data = dirty_data(rollouts.model, max(nthread, 1))
        arguments = rollouts.skip_checks_arguments(data)
        with rollout.Rollout(nthread=nthread) as pool:
            found = pool.rollout(**arguments, chunk_size=2)
        assert found[0] is arguments["state"]
        assert found[1] is arguments["sensordata"]
        assert_right(found, rollouts)


def test_skip_checks_without_outputs_returns_none():
    rollouts = batch("slider")
    arguments = rollouts.skip_checks_arguments(dirty_data(rollouts.model, 1))
    arguments.update(state=None, sensordata=None)
    assert all(one is None for one in rollout.rollout(**arguments))
    state = rollouts.new_outputs()[0]
    found = rollout.rollout(**{**arguments, "state": state})
    assert found[0] is state
    assert found[1] is None
    np.testing.assert_array_equal(state, plain_loop(rollouts)[0])


def test_outputs_are_written_in_place_and_returned():
    rollouts = batch("pendulum")
    expected = plain_loop(rollouts)
    state, sensordata = rollouts.new_outputs()
    arguments = rollouts.arguments(dirty_data(rollouts.model, 2))
    found = rollout.rollout(**arguments, state=state, sensordata=sensordata)
    assert found[0] is state
    assert found[1] is sensordata
    assert_same_bits(found, expected)
    # Written over, not added to.
    found = rollout.rollout(**arguments, state=state)
    assert found[0] is state
    assert_same_bits(found, expected)


def test_an_output_of_one_rollout_may_lack_the_first_axis():
    rollouts = batch("pendulum", nbatch=1)
    state, sensordata = rollouts.new_outputs()
    found = rollout.rollout(
        **rollouts.arguments(dirty_data(rollouts.model, 1)),
        state=state[0],
        sensordata=sensordata[0],
    )
    expected = plain_loop(rollouts)
    assert_same_bits(found, expected)
    assert_same_bits((state, sensordata), expected)


def test_inputs_may_lie_in_the_outputs():
    """They are read before anything is written, as if they had been copied."""
    rollouts = batch("pendulum", nstep=5)
    (data,) = dirty_data(rollouts.model, 1)
    state, _ = rollout.rollout(**rollouts.arguments(data))
    onward = rollouts.but(initial_state=state[:, -1].copy())
    for skip_checks in (False, True):
        state[:, -1] = onward.initial_state
        arguments = (
            onward.skip_checks_arguments([data]) if skip_checks else onward.arguments([data])
        )
        arguments.update(initial_state=state[:, -1], state=state)
        found = rollout.rollout(**arguments)
        assert found[0] is state
        assert_right(found, onward)


def test_a_part_of_a_larger_output_is_written_and_nothing_around_it():
    rollouts = batch("pendulum")
    whole = np.full((9, *rollouts.new_outputs()[0].shape[1:]), 7.0)
    state = whole[2:7]
    rollout.rollout(**rollouts.arguments(dirty_data(rollouts.model, 2)), state=state)
    np.testing.assert_array_equal(state, plain_loop(rollouts)[0])
    assert (whole[:2] == 7).all()
    assert (whole[7:] == 7).all()


def _with_nan_state(rollouts):
    initial_state = rollouts.initial_state.copy()
    initial_state[1, 1] = np.nan
    initial_state[3, -1] = np.inf
    return rollouts.but(initial_state=initial_state)


def _with_huge_state(rollouts):
    initial_state = rollouts.initial_state.copy()
    initial_state[1, 1:] = 1e200
    initial_state[3, 1] = -1e11
    return rollouts.but(initial_state=initial_state)


def _with_nan_control(rollouts):
    control = rollouts.control.copy()
    control[1, 3] = np.nan
    control[2, 0] = np.inf
    control[4, -1] = -np.inf
    return rollouts.but(control=control)


def _with_nan_warmstart(rollouts):
    initial_warmstart = np.zeros((rollouts.nbatch, rollouts.first_model.nv))
    initial_warmstart[2] = np.nan
    return rollouts.but(initial_warmstart=initial_warmstart)


@pytest.mark.parametrize("name", ["pendulum", "heap", "every_input", "activations", "hopper"])
@pytest.mark.parametrize("autoreset", [True, False], ids=["autoreset", "no_autoreset"])
@pytest.mark.parametrize(
    "sick", [_with_nan_state, _with_huge_state, _with_nan_control, _with_nan_warmstart]
)
def test_rollouts_that_diverge_hold_what_the_references_hold(name, autoreset, sick):
    model = zoo.load(name)
    if not autoreset:
        if not hasattr(mujoco.mjtDisableBit, "mjDSBL_AUTORESET"):
            pytest.skip("this MuJoCo always resets")
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
    rollouts = sick(batch(model))
    found = rollout.rollout(**rollouts.arguments(dirty_data(model, 2)))
    assert_right(found, rollouts)


def test_rollouts_that_diverge_on_the_way_hold_what_the_references_hold():
    model = zoo.load("exploding")
    # Time, position and velocity; the third stays at rest.
    initial_state = np.array([[0, 0, 1.0], [0, 0, 1e-9], [0, 0, 0], [0, 0, 1e3]])
    rollouts = Batch(model, initial_state, nstep=30)
    found = rollout.rollout(**rollouts.arguments(dirty_data(model, 2)))
    assert_right(found, rollouts)
    # Time stands still where a rollout has ended.
    steps = np.count_nonzero(np.diff(found[0][:, :, 0], axis=1), axis=1)
    assert steps[3] < steps[0] < steps[1] < steps[2] == 29, steps


def test_no_steps_give_empty_results():
    rollouts = batch("pendulum", nstep=0)
    for data in (dirty_data(rollouts.model, 1), dirty_data(rollouts.model, 2)):
        state, sensordata = rollout.rollout(rollouts.model, data, rollouts.initial_state, nstep=0)
        assert state.shape == (5, 0, rollouts.initial_state.shape[1])
        assert sensordata.shape == (5, 0, rollouts.first_model.nsensordata)
        control = np.zeros(rollouts.first_model.nu)
        again = rollout.rollout(rollouts.model, data, rollouts.initial_state, control, nstep=0)
        assert again[0].shape == state.shape
