"""The fast path gives what the general path gives, or does nothing."""

from __future__ import annotations

import sys
import threading

import mujoco
import numpy as np
import pytest

import rollout
from isolation import run
from rollout import _rollout
from rollout._fast import fast_rollout
from rollout._mujoco import CTRL
from rollout._pool import Pool

XML = """
<mujoco>
  <worldbody>
    <body mocap="true" name="target"><geom size=".1" contype="0" conaffinity="0"/></body>
    <body pos="0 0 .2">
      <joint name="x" type="slide" axis="1 0 0"/>
      <joint name="z" type="slide" axis="0 0 1"/>
      <geom size=".1"/>
    </body>
    <geom type="plane" size="2 2 .1"/>
  </worldbody>
  <actuator><motor joint="x"/><motor joint="z"/></actuator>
  <sensor><jointpos joint="x"/><jointvel joint="z"/></sensor>
</mujoco>
"""
SPEC = mujoco.mjtState
NSTEP = 5
NBATCH = 6

# Before 3.1.0 a data does not know its model, so that no call is usual.
knows_model = pytest.mark.skipif(
    not hasattr(mujoco.MjData, "model"), reason="MjData.model came with 3.1.0"
)


class Scene:
    """A model, its data, and arrays of the usual kind."""

    def __init__(self, nthread=1, xml=XML):
        self.model = mujoco.MjModel.from_xml_string(xml)
        self.data = [mujoco.MjData(self.model) for _ in range(max(nthread, 1))]
        self.nstate = mujoco.mj_stateSize(self.model, SPEC.mjSTATE_FULLPHYSICS.value)
        random = np.random.default_rng(1)
        self.start = random.normal(scale=0.01, size=(NBATCH, self.nstate))
        self.warmstart = random.normal(size=(NBATCH, self.model.nv))
        self.control = random.normal(size=(NBATCH, NSTEP, self.model.nu))
        self.state = np.empty((NBATCH, NSTEP, self.nstate))
        self.sensordata = np.empty((NBATCH, NSTEP, self.model.nsensordata))


@pytest.fixture
def taken(monkeypatch):
    """Whether each call was taken by the fast path, in their order."""
    taken = []
    fast = fast_rollout

    def record(*arguments):
        result = fast(*arguments)
        taken.append(result is not None)
        return result

    monkeypatch.setattr(_rollout, "_fast_rollout", record)
    return taken


def call(scene, pool, arguments):
    """What a call returns or raises, without the difference between the two paths."""
    arguments = dict(arguments)
    positional = [
        arguments.pop("model", scene.model),
        arguments.pop("data", scene.data),
        arguments.pop("initial_state", scene.start),
        arguments.pop("control", None),
    ]
    try:
        state, sensordata = pool.rollout(*positional, **arguments)
    except Exception as error:
        return type(error), str(error), getattr(error, "rollouts", None)
    return tuple(None if one is None else (one.shape, one.tobytes()) for one in (state, sensordata))


def by_both(scene, arguments, monkeypatch):
    """The outcome of a call on each path, with the identity of given outputs checked."""
    with rollout.Rollout(nthread=len(scene.data) if len(scene.data) > 1 else 0) as pool:
        first = call(scene, pool, arguments)
        with monkeypatch.context() as patch:
            patch.setattr(_rollout, "_fast_rollout", lambda *_: None)
            second = call(scene, pool, arguments)
    return first, second


def strided(array):
    return np.repeat(array, 2, axis=1)[:, ::2]


USUAL = {
    "nothing but starts": lambda s: {"nstep": NSTEP},
    "control": lambda s: {"control": s.control},
    "one data alone": lambda s: {"control": s.control, "data": s.data[0]},
    "warmstart": lambda s: {"control": s.control, "initial_warmstart": s.warmstart},
    "outputs": lambda s: {"control": s.control, "state": s.state, "sensordata": s.sensordata},
    "one output": lambda s: {"control": s.control, "state": s.state},
    "one start": lambda s: {"control": s.control, "initial_state": s.start[:1].copy()},
    "one start without axis": lambda s: {"control": s.control, "initial_state": s.start[0]},
    "one control": lambda s: {"control": s.control[:1, :1].copy(), "nstep": NSTEP},
    "controls of one rollout": lambda s: {"control": s.control[0]},
    "a view": lambda s: {"control": s.control[:, 1:4]},
    "a view of views": lambda s: {
        "control": s.control[1:][:, 1:4][:, ::2],
        "nstep": 2,
        "initial_state": s.start[1:],
    },
    "reshaped": lambda s: {"control": s.control.ravel().reshape(s.control.shape)},
    "every other": lambda s: {"control": strided(s.control)},
    "broadcast": lambda s: {"control": np.broadcast_to(s.control[:1], s.control.shape)},
    "read-only inputs": lambda s: {"control": read_only(s.control.copy())},
    "spec": lambda s: {
        "control": np.ones((1, 1, 7)),
        "nstep": NSTEP,
        "control_spec": SPEC.mjSTATE_MOCAP_POS.value | SPEC.mjSTATE_MOCAP_QUAT.value,
    },
    "chunks": lambda s: {"control": s.control, "chunk_size": 2},
    "models": lambda s: {"control": s.control, "model": [s.model] * NBATCH},
    "models tell nbatch": lambda s: {"initial_state": s.start[:1], "model": [s.model] * 4},
    "unchecked": lambda s: {
        "control": s.control,
        "model": [s.model] * NBATCH,
        "nstep": NSTEP,
        "state": s.state,
        "sensordata": s.sensordata,
        "skip_checks": True,
    },
    "unchecked, no outputs": lambda s: {
        "model": [s.model] * NBATCH,
        "nstep": NSTEP,
        "skip_checks": True,
    },
    "unchecked, more models": lambda s: {
        "model": [s.model] * 20,
        "nstep": NSTEP,
        "state": s.state,
        "skip_checks": True,
    },
    "unchecked, flat outputs": lambda s: {
        "model": [s.model] * NBATCH,
        "nstep": NSTEP,
        "state": s.state.reshape(-1),
        "skip_checks": True,
    },
}


@knows_model
@pytest.mark.parametrize("nthread", [0, 3])
@pytest.mark.parametrize("name", USUAL)
def test_usual_calls_give_the_same_on_both_paths(name, nthread, taken, monkeypatch):
    scene = Scene(nthread)
    if "alone" in name and nthread:
        pytest.skip("one data for one thread")
    first, second = by_both(scene, USUAL[name](scene), monkeypatch)
    assert taken == [True]
    assert first == second
    assert not isinstance(first[0], type), first


@knows_model
def test_given_outputs_are_returned_themselves(taken):
    scene = Scene()
    with rollout.Rollout() as pool:
        state, sensordata = pool.rollout(
            scene.model, scene.data, scene.start, state=scene.state, sensordata=scene.sensordata
        )
    assert taken == [True]
    assert state is scene.state and sensordata is scene.sensordata


class Array(np.ndarray):
    """An array of another class."""


class Model(mujoco.MjModel):  # type: ignore[misc]
    """A model of another class."""


def read_only(array):
    array.flags.writeable = False
    return array


def misaligned(array):
    room = np.empty(array.nbytes + 1, dtype=np.uint8)[1:]
    room = room.view(np.float64).reshape(array.shape)
    room[:] = array
    return room


UNUSUAL = {
    "a subclass": lambda s: {"initial_state": s.start.view(Array)},
    "masked": lambda s: {"control": np.ma.masked_array(s.control)},
    "float32": lambda s: {"control": s.control.astype(np.float32)},
    "other byte order": lambda s: {"control": s.control.astype(">f8")},
    "integers": lambda s: {"control": np.ones(s.control.shape, dtype=np.int64)},
    "complex": lambda s: {"state": np.empty(s.state.shape, dtype=complex)},
    "a list": lambda s: {"initial_state": s.start.tolist()},
    "a float": lambda s: {"control": 1.0},
    "no axes": lambda s: {"control": np.array(1.0)},
    "too many axes": lambda s: {"control": s.control[None]},
    "misaligned": lambda s: {"control": misaligned(s.control)},
    "misaligned output": lambda s: {"state": misaligned(s.state)},
    "fortran": lambda s: {"control": np.asfortranarray(s.control)},
    "backwards": lambda s: {"control": s.control[:, ::-1]},
    "field of a data": lambda s: {"control": s.data[0].ctrl, "nstep": NSTEP},
    "read-only output": lambda s: {"control": s.control, "state": read_only(s.state)},
    "output with gaps": lambda s: {"sensordata": strided(s.sensordata)},
    "flat output": lambda s: {"control": s.control, "state": s.state.reshape(-1)},
    "wrong rows": lambda s: {"control": s.control[:2]},
    "wrong steps": lambda s: {"control": s.control, "nstep": NSTEP + 1},
    "wrong nstate": lambda s: {"initial_state": np.zeros((NBATCH, s.nstate + 1))},
    "wrong ncontrol": lambda s: {"control": np.zeros((NBATCH, NSTEP, 1))},
    "wrong nv": lambda s: {"initial_warmstart": np.zeros((NBATCH, 1))},
    "wrong output": lambda s: {"control": s.control, "state": s.state[:, :, 1:].copy()},
    "no rollouts": lambda s: {"initial_state": np.zeros((0, s.nstate))},
    "no steps": lambda s: {"nstep": 0},
    "no numbers": lambda s: {"control": np.zeros((NBATCH, NSTEP, 0))},
    "negative nstep": lambda s: {"nstep": -1},
    "huge nstep": lambda s: {"nstep": 2**62},
    "nstep beyond C": lambda s: {"nstep": 2**80},
    "bool nstep": lambda s: {"nstep": True},
    "numpy nstep": lambda s: {"nstep": np.int64(NSTEP)},
    "float nstep": lambda s: {"nstep": 2.0},
    "no chunk": lambda s: {"chunk_size": 0},
    "bool chunk": lambda s: {"chunk_size": True},
    "float chunk": lambda s: {"chunk_size": 1.5},
    "empty spec": lambda s: {"control_spec": 0},
    "foreign spec": lambda s: {"control_spec": SPEC.mjSTATE_QPOS.value},
    "negative spec": lambda s: {"control_spec": -1},
    "no spec": lambda s: {"control_spec": None},
    "tuple of data": lambda s: {"data": tuple(s.data)},
    "no data": lambda s: {"data": []},
    "too many data": lambda s: {"data": s.data * 2},
    "no data at all": lambda s: {"data": [None]},
    "data of another model": lambda s: {"data": [mujoco.MjData(Scene().model)]},
    "no models": lambda s: {"model": []},
    "two models": lambda s: {"model": [s.model, Scene().model] * (NBATCH // 2)},
    "wrong number of models": lambda s: {"model": [s.model] * 2},
    "not a model": lambda s: {"model": "model"},
    "overlap": lambda s: {"control": s.control, "initial_state": s.state[:, 0], "state": s.state},
    "unchecked without lists": lambda s: {"nstep": 1, "skip_checks": True},
    "unchecked without nstep": lambda s: {"model": [s.model] * NBATCH, "skip_checks": True},
    "unchecked, one start": lambda s: {
        "model": [s.model] * NBATCH,
        "nstep": NSTEP,
        "control": s.control,
        "skip_checks": True,
        "initial_state": s.start[:1].copy(),
    },
    "unchecked, flat control": lambda s: {
        "model": [s.model] * NBATCH,
        "nstep": NSTEP,
        "control": s.control.ravel(),
        "skip_checks": True,
    },
    "unchecked, too few models": lambda s: {
        "model": [s.model] * 2,
        "nstep": 1,
        "skip_checks": True,
    },
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_calls_are_left_to_the_general_path(name, taken, monkeypatch):
    scene = Scene()
    scene.state[:] = 0
    scene.state[:, 0] = scene.start
    first, second = by_both(scene, UNUSUAL[name](scene), monkeypatch)
    assert taken == [False]
    if name == "overlap" or name == "field of a data":
        return  # The first call has changed its own input.
    assert first == second


def test_a_closed_pool_is_no_pool():
    scene = Scene()
    pool = rollout.Rollout()
    pool.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        pool.rollout(scene.model, scene.data, scene.start)


def failing(scene):
    """Makes every step of a model end with an engine error."""
    scene.model.opt.solver = 10
    scene.start[:, 2] = -0.2


@knows_model
@pytest.mark.parametrize("nthread", [0, 2])
def test_engine_errors_come_out_of_both_paths_alike(nthread, taken, monkeypatch):
    scene = Scene(nthread)
    failing(scene)
    first, second = by_both(scene, {"nstep": 2}, monkeypatch)
    assert taken == []  # It raised.
    assert first[0] is mujoco.FatalError
    assert first == second
    assert first[2] == list(range(NBATCH))


@knows_model
@pytest.mark.parametrize("kind", ["usual", "unusual", "engine error"])
def test_no_reference_is_kept_or_lost(kind):
    scene = Scene()
    if kind == "engine error":
        failing(scene)
    models = [scene.model] * NBATCH
    control = scene.control[:, :, :1].copy() if kind == "unusual" else scene.control
    arguments = {
        "control_spec": 10**9 if kind == "unusual" else CTRL,
        "nstep": NSTEP,
        "initial_warmstart": scene.warmstart,
        "state": scene.state,
        "chunk_size": 10**6,
    }
    objects = [scene.model, models, scene.data, scene.data[0], scene.start, control]
    objects += [*arguments.values(), None, True, np.ndarray, mujoco.MjData]
    objects += [scene.data[0].sensordata]
    fast = fast_rollout
    pool = Pool(0)

    def run():
        try:
            fast(
                pool.address(),
                0,
                False,
                models,
                scene.data,
                scene.start,
                control,
                *[
                    arguments[key]
                    for key in ("control_spec", "nstep", "initial_warmstart", "state")
                ],
                None,
                arguments["chunk_size"],
            )
        except mujoco.FatalError:
            assert kind == "engine error"

    for _ in range(10):
        run()
    before = [sys.getrefcount(one) for one in objects]
    for _ in range(1000):
        run()
    after = [sys.getrefcount(one) for one in objects]
    # Others in this process use None and the like meanwhile.
    assert all(abs(a - b) < 100 for a, b in zip(before[6:], after[6:])), (before, after)
    assert before[:6] == after[:6]


@knows_model
def test_many_threads_at_once(taken):
    scenes = [Scene() for _ in range(4)]
    with rollout.Rollout() as pool:
        expected = [call(scene, pool, {"control": scene.control}) for scene in scenes]
        wrong = []

        def work(scene, right):
            for _ in range(200):
                if call(scene, pool, {"control": scene.control}) != right:
                    wrong.append(scene)

        threads = [threading.Thread(target=work, args=pair) for pair in zip(scenes, expected)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    assert all(taken)


@knows_model
def test_a_list_may_change_during_a_call():
    """Objects that another thread takes out of the lists live until the call is over."""
    scene = Scene()
    expected = None
    done = threading.Event()
    data = [mujoco.MjData(scene.model)]
    models = [scene.model] * NBATCH

    def change():
        while not done.is_set():
            data[0] = mujoco.MjData(scene.model)
            models[:] = [scene.model] * NBATCH

    changer = threading.Thread(target=change)
    changer.start()
    try:
        with rollout.Rollout() as pool:
            for _ in range(300):
                found = call(scene, pool, {"model": models, "data": data, "nstep": NSTEP})
                expected = expected or found
                assert found == expected
    finally:
        done.set()
        changer.join()


@knows_model
def test_an_attribute_that_raises_is_left_to_the_general_path(taken, monkeypatch):
    scene = Scene()

    def broken(self):
        raise KeyError("broken")

    monkeypatch.setattr(mujoco.MjData, "threadpool", property(broken))
    with rollout.Rollout() as pool, pytest.raises(KeyError, match="broken"):
        pool.rollout(scene.model, scene.data, scene.start)
    assert taken == [False]


@knows_model
def test_the_same_data_in_two_calls_is_refused():
    scene = Scene()
    data = scene.data * 2
    with rollout.Rollout(nthread=2) as pool, pytest.raises(ValueError, match="data"):
        pool.rollout(scene.model, data, scene.start)


@knows_model
def test_sleeping_models_are_reset_between_rollouts(taken, monkeypatch):
    if not hasattr(mujoco.mjtEnableBit, "mjENBL_SLEEP"):
        pytest.skip("sleep came with 3.4.0")
    scene = Scene(
        xml=XML.replace("<worldbody>", '<option><flag sleep="enable"/></option><worldbody>', 1)
    )
    first, second = by_both(scene, {"control": scene.control}, monkeypatch)
    assert taken == [True]
    assert first == second


def test_a_daemon_thread_may_be_in_a_call_when_python_ends():
    program = """
        import threading, time
        import mujoco, numpy as np, rollout
        model = mujoco.MjModel.from_xml_string("<mujoco/>")
        nstate = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS.value)
        def work():
            data = mujoco.MjData(model)
            pool = rollout.Rollout()
            start = np.zeros((100, nstate))
            while True:
                pool.rollout(model, data, start, nstep=100)
        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.3)
    """
    for _ in range(3):
        assert run(program) == ""
