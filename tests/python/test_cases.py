"""Cases that users of this field have reported; the number stays with the case."""

from __future__ import annotations

import copy
import ctypes
import hashlib
import inspect
import os
import re
import subprocess
import tracemalloc
from pathlib import Path

import mujoco
import numpy as np
import pytest

import rollout
import zoo
from reference import (
    EQ_ACTIVE,
    FULLPHYSICS,
    INPUTS,
    Batch,
    assert_right,
    assert_same_bits,
    batch,
    dirty_data,
    new_data,
    plain_loop,
)
from rollout import _abi
from rollout._library import library

HEADER = zoo.ROOT / "include" / "rollout.h"


def header_code() -> str:
    """The header without its comments."""
    return re.sub(r"//.*", "", HEADER.read_text())


def test_r04_no_model_too_many_rollouts_and_wrong_sizes_are_errors():
    model = zoo.load("slider")
    (data,) = new_data(model, 1)
    nstate = mujoco.mj_stateSize(model, FULLPHYSICS)
    with pytest.raises(TypeError):
        rollout.rollout(None, data, np.zeros(nstate))
    for nbatch in (1 << 30, 1 << 40, 1 << 58):
        many = np.broadcast_to(np.zeros(nstate), (nbatch, nstate))
        with pytest.raises((MemoryError, ValueError)):
            rollout.rollout(model, data, many, nstep=1 << 20)
        with pytest.raises(ValueError, match="state"):
            rollout.rollout(model, data, many, state=np.zeros((1, 1, nstate)))
    for size in (0, nstate - 1, nstate + 1, 1 << 20):
        text = f"trailing dimension of initial_state must be {nstate}, got {size}"
        with pytest.raises(ValueError, match=text):
            rollout.rollout(model, data, np.zeros(size))


def with_extra(world: str = "", sections: str = "") -> mujoco.MjModel:
    """A model of a slider, two hinges in a row, and something more."""
    return mujoco.MjModel.from_xml_string(f"""
        <mujoco>
          <worldbody>
            <body name="a">
              <joint name="a" type="slide"/><geom name="a" size=".1"/>
              <body name="b"><joint name="b"/><geom name="b" size=".1" pos="1 0 0"/></body>
              <body name="c"><joint name="c"/><geom name="c" size=".1" pos="1 0 1"/></body>
            </body>
            {world}
          </worldbody>
          {sections}
        </mujoco>""")


# Models that differ from the plain one in one size each, enough to be told apart: arrays of
# a data begin at multiples of 64 bytes.
DIFFERENT = {
    "joints": lambda: with_extra("<body><joint/><joint/><geom size='.1'/></body>"),
    "bodies": lambda: with_extra("<body/>" * 4),
    "geoms": lambda: with_extra("<geom size='.1'/>" * 8),
    "sites": lambda: with_extra("<site/>" * 8),
    "cameras": lambda: with_extra("<camera/>" * 8),
    "lights": lambda: with_extra("<light/>" * 8),
    "mocap bodies": lambda: with_extra("<body mocap='true'/>" * 4),
    "free bodies": lambda: with_extra("<body><freejoint/><geom size='.1'/></body>"),
    "actuators": lambda: with_extra(sections="<actuator><motor joint='a'/></actuator>" * 9),
    "activations": lambda: with_extra(
        sections="<actuator><intvelocity joint='a' actrange='-1 1'/></actuator>" * 9
    ),
    "sensors": lambda: with_extra(sections="<sensor><jointpos joint='a'/></sensor>" * 9),
    "constraints": lambda: with_extra(
        sections="<equality><joint joint1='a' joint2='b'/></equality>" * 65
    ),
    "tendons": lambda: with_extra(
        sections="<tendon><fixed><joint joint='a' coef='1'/></fixed></tendon>" * 9
    ),
    "user data": lambda: with_extra(sections="<size nuserdata='9'/>"),
    "memory": lambda: with_extra(sections="<size memory='1M'/>"),
}


def test_r09_the_same_data_twice_is_refused():
    rollouts = batch("slider")
    one, two = dirty_data(rollouts.model, 2)
    for data, second in (([one, one], 1), ([one, two, one], 2), ([two, one, one], 2)):
        for call in (rollouts.arguments(data), rollouts.skip_checks_arguments(data)):
            with pytest.raises(ValueError, match=rf"data\[{second}\]"):
                rollout.rollout(**call)


@pytest.mark.parametrize("what", DIFFERENT)
def test_r09_data_of_a_model_with_other_sizes_are_refused(what):
    plain, other = with_extra(), DIFFERENT[what]()
    for model, wrong in ((plain, other), (other, plain)):
        start = np.zeros(mujoco.mj_stateSize(model, FULLPHYSICS))
        good = mujoco.MjData(model)
        with pytest.raises(ValueError, match=r"data\[0\]"):
            rollout.rollout(model, mujoco.MjData(wrong), start)
        with pytest.raises(ValueError, match=r"data\[1\]"):
            rollout.rollout(model, [good, mujoco.MjData(wrong)], start)


@pytest.mark.parametrize("what", DIFFERENT)
def test_r09_models_of_unequal_sizes_are_refused(what):
    models = [with_extra(), DIFFERENT[what]()]
    start = np.zeros(mujoco.mj_stateSize(models[0], FULLPHYSICS))
    with pytest.raises(ValueError, match="model"):
        rollout.rollout(models, new_data(models, 2), start)


def test_r09_data_of_a_copy_of_the_model_are_accepted():
    rollouts = batch("hopper")
    copies = [zoo.load("hopper") for _ in range(3)]
    # Numbers may differ, sizes may not.
    copies[1].opt.gravity[2] = 1
    copies[2].body_mass[:] *= 3
    data = [mujoco.MjData(model) for model in copies]
    data.append(copy.copy(data[0]))
    del copies
    assert_right(rollout.rollout(**rollouts.arguments(data)), rollouts)


def test_r09_models_of_equal_sizes_and_another_tree_are_refused_or_right():
    """b and c hang side by side; here one hangs on the other."""
    side_by_side = with_extra()
    in_a_row = mujoco.MjModel.from_xml_string("""
        <mujoco>
          <worldbody>
            <body name="a">
              <joint name="a" type="slide"/><geom name="a" size=".1"/>
              <body name="b">
                <joint name="b"/><geom name="b" size=".1" pos="1 0 0"/>
                <body name="c"><joint name="c"/><geom name="c" size=".1" pos="1 0 1"/></body>
              </body>
            </body>
          </worldbody>
        </mujoco>""")
    rollouts = batch(side_by_side)
    try:
        found = rollout.rollout(**rollouts.arguments(new_data(in_a_row, 2)))
    except ValueError as error:
        assert re.search(r"data\[0\]", str(error))
    else:
        assert_right(found, rollouts)


def test_r10_none_is_refused_or_means_not_given():
    rollouts = batch("slider", nbatch=2, nstep=2)
    (data,) = dirty_data(rollouts.model, 1)
    arguments = rollouts.arguments(data)
    optional = {"control", "nstep", "initial_warmstart", "state", "sensordata", "chunk_size"}
    optional |= {"timeout"}
    named = set(inspect.signature(rollout.rollout).parameters)
    assert optional < named
    for name in named - {"skip_checks", "persistent_pool", "outcomes"}:
        call = {**arguments, name: None}
        if name in optional:
            rollout.rollout(**call)
        else:
            with pytest.raises((TypeError, ValueError)):
                rollout.rollout(**call)


def test_r10_every_c_entry_survives_null():
    declared = re.findall(r"^(\w[\w *]*?)(rollout_\w+)\(([^)]*)\);", header_code(), re.MULTILINE)
    assert {name for _, name, _ in declared} > {"rollout_run", "rollout_pool_create"}
    for result, name, parameters in declared:
        # A function object of our own, since the package has declared types for its own.
        function = ctypes.CFUNCTYPE(ctypes.c_int32)((name, library))
        nothing = [ctypes.c_void_p()] * (parameters.count(",") + 1)
        found = function() if parameters.strip() == "void" else function(*nothing)
        if name == "rollout_ticket_release":
            assert found == 0
        elif "RolloutStatus" in result:
            assert 100 <= found < 200, name


def test_r12_controls_that_are_absent_are_zero_whatever_the_data_hold():
    model = zoo.load("slider")
    data = new_data(model, 3)
    for i, one in enumerate(data):
        one.ctrl[:] = 1 + i
    start = np.zeros((32, mujoco.mj_stateSize(model, FULLPHYSICS)))
    state, sensordata = rollout.rollout(model, data, start, nstep=5)
    assert (state == state[0]).all()
    assert (sensordata == sensordata[0]).all()
    assert_right((state, sensordata), Batch(model, start, 5))


def test_r13_a_rollout_leaves_nothing_for_the_next():
    first, second = batch("humanoid", nbatch=2), batch("humanoid", nbatch=2, warmstart=True)
    second.initial_state = second.initial_state[::-1].copy()
    alone = rollout.rollout(**second.arguments(new_data(second.model, 1)))
    data = new_data(first.model, 1)
    rollout.rollout(**first.arguments(data))
    assert_same_bits(rollout.rollout(**second.arguments(data)), alone)


def test_r13_with_its_warmstart_a_rollout_continues_a_loop():
    model = zoo.load("hopper")
    data = mujoco.MjData(model)
    nstate = mujoco.mj_stateSize(model, FULLPHYSICS)
    states, warmstarts = np.empty((20, nstate)), np.empty((20, model.nv))
    for state, warmstart in zip(states, warmstarts):
        mujoco.mj_step(model, data)
        mujoco.mj_getState(model, data, state, FULLPHYSICS)
        warmstart[:] = data.qacc_warmstart
    found, _ = rollout.rollout(
        model, dirty_data(model, 2), states[:-1], initial_warmstart=warmstarts[:-1]
    )
    np.testing.assert_array_equal(found[:, 0], states[1:])


def test_r16_a_constraint_switched_on_in_one_call_is_as_in_the_model_in_the_next():
    rollouts = batch("every_input", nbatch=2, nstep=8, spec=EQ_ACTIVE)
    rollouts.control[:, :5], rollouts.control[:, 5:] = 0, 1
    data = new_data(rollouts.model, 1)
    rollout.rollout(**rollouts.arguments(data))
    silent = rollouts.but(control=None)
    assert_right(rollout.rollout(**silent.arguments(data)), silent)


def pid_with_gain(gain: int) -> mujoco.MjModel:
    path = Path(__file__).parent / "models" / "plugins.xml"
    text = path.read_text().replace('key="kp" value="40"', f'key="kp" value="{gain}"')
    return mujoco.MjModel.from_xml_string(text)


@pytest.mark.skipif("plugins" not in zoo.ALL, reason="this MuJoCo has no such model")
def test_r19_models_that_differ_in_a_plugin_s_settings_are_right_or_refused():
    weak, strong = pid_with_gain(10), pid_with_gain(90)
    rollouts = batch(weak, nbatch=2)
    assert not np.array_equal(plain_loop(rollouts)[0], plain_loop(rollouts.but(model=strong))[0])
    mixed = rollouts.but(model=[weak, strong])
    for call, data in ((mixed, weak), (mixed, strong), (rollouts, strong)):
        try:
            found = rollout.rollout(**call.arguments(new_data(data, 1)))
        except ValueError as error:
            assert re.search("model|data", str(error))
        else:
            assert_same_bits(found, plain_loop(call))
    same = rollouts.but(model=[weak, weak])
    assert_right(rollout.rollout(**same.arguments(new_data(weak, 1))), rollouts)


def test_r27_one_start_state_and_one_control_serve_100000_rollouts_without_copies():
    model = zoo.load("slider")
    nbatch, nstep = 100_000, 1
    nstate = mujoco.mj_stateSize(model, FULLPHYSICS)
    data = new_data(model, 2)
    state, sensordata = np.zeros((nbatch, nstep, nstate)), np.zeros((nbatch, nstep, 1))
    start, control, warmstart = np.zeros((1, nstate)), np.full((1, 1, 1), 0.5), np.zeros((1, 1))
    with rollout.Rollout(nthread=2) as pool:
        tracemalloc.start()
        pool.rollout(
            model,
            data,
            start,
            control,
            initial_warmstart=warmstart,
            state=state,
            sensordata=sensordata,
        )
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    # A single number for each rollout would be 800 kB.
    assert peak < 1_000_000
    one = Batch(model, start, nstep, control, initial_warmstart=warmstart)
    expected = plain_loop(one)
    assert (state == expected[0]).all()
    assert (sensordata == expected[1]).all()


def test_r27_one_row_serves_all_steps_without_copies():
    model = zoo.load("every_input")
    nstep, spec = 10_000, sum(INPUTS.values())
    nstate = mujoco.mj_stateSize(model, FULLPHYSICS)
    state = np.zeros((1, nstep, nstate))
    sensordata = np.zeros((1, nstep, model.nsensordata))
    control = np.zeros(mujoco.mj_stateSize(model, spec))
    data = new_data(model, 1)
    with rollout.Rollout() as pool:
        tracemalloc.start()
        pool.rollout(
            model,
            data,
            np.zeros(nstate),
            control,
            control_spec=spec,
            state=state,
            sensordata=sensordata,
        )
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    # Copied for each step the controls would take 80 kB for each of their numbers.
    assert peak < 80_000
    assert state.any()


def test_r30_repeats_threads_and_chunks_give_one_hash():
    rollouts = batch("heap", nbatch=10, nstep=3)
    state, sensordata = rollouts.new_outputs()
    hashes = set()
    for nthread in (1, 2, 4, 8):
        arguments = rollouts.arguments(dirty_data(rollouts.model, nthread))
        with rollout.Rollout(nthread=nthread) as pool:
            for chunk_size in (1, 7, 64):
                for _ in range(20):
                    state[:] = sensordata[:] = 7
                    pool.rollout(
                        **arguments, state=state, sensordata=sensordata, chunk_size=chunk_size
                    )
                    hashes.add(hashlib.sha256(state.tobytes() + sensordata.tobytes()).digest())
    assert len(hashes) == 1


def structures() -> dict[str, type[ctypes.Structure]]:
    """The structures that the package declares, under their names in the header."""
    return {
        f"Rollout{name}": one
        for name, one in vars(_abi).items()
        if isinstance(one, type) and issubclass(one, ctypes.Structure)
        if one is not ctypes.Structure
    }


def compile_and_run(statements: str, folder: Path) -> list[str]:
    """The lines that a C program against our header prints."""
    source, program = folder / "program.c", folder / "program"
    source.write_text(
        '#include <stddef.h>\n#include <stdio.h>\n#include "rollout.h"\n\n'
        f"int main(void) {{\n{statements}  return 0;\n}}\n"
    )
    compiler = os.environ.get("CC", "cc").split()
    flags = ["-Wall", "-Wextra", "-Werror", f"-I{HEADER.parent}"]
    subprocess.run([*compiler, *flags, str(source), "-o", str(program)], check=True)
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()


def test_r73_structures_have_one_layout_in_c_and_ctypes(scratch_folder):
    statements, expected = "", []
    for name, structure in structures().items():
        statements += f'  printf("{name} %zu\\n", sizeof({name}));\n'
        expected.append(f"{name} {ctypes.sizeof(structure)}")
        for field, *_ in structure._fields_:
            declared = getattr(structure, field)
            statements += (
                f'  printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), '
                f"sizeof((({name}*)0)->{field}));\n"
            )
            expected.append(f"{name}.{field} {declared.offset} {declared.size}")
    assert compile_and_run(statements, scratch_folder) == expected


def test_r73_no_structure_and_no_field_of_the_header_is_missing():
    code = header_code()
    declared = dict(re.findall(r"typedef struct (\w+) \{([^}]*)\}", code))
    found = structures()
    assert set(found) <= set(declared)
    # Whatever a request is made of.
    assert set(found) >= {"RolloutRequest", "RolloutEngine", "RolloutModel", "RolloutData"}
    for name, structure in found.items():
        fields = [
            re.search(r"(?:\(\*(\w+)\)\(.*|(\w+)(?:\[\w+\])?)$", field.strip(), re.DOTALL)
            for field in declared[name].split(";")
            if field.strip()
        ]
        names = [match.group(1) or match.group(2) for match in fields if match]
        assert names == [field for field, *_ in structure._fields_], name


def test_r73_constants_have_one_value_in_c_and_python(scratch_folder):
    code = header_code()
    numbers = {
        f"ROLLOUT_{name}": value for name, value in vars(_abi).items() if isinstance(value, int)
    }
    # The enums carry their whole name in C.
    numbers = {
        re.sub(r"^ROLLOUT_OUTCOME_(?!STATUS)", "ROLLOUT_OUTCOME_STATUS_", name): value
        for name, value in numbers.items()
    }
    assert len(numbers) > 5
    for name in numbers:
        assert re.search(rf"\b{name}\b", code), f"{name} is not in the header"
    statements = "".join(
        f'  printf("{name} %lld\\n", (long long){name});\n' for name in sorted(numbers)
    )
    expected = [f"{name} {numbers[name]}" for name in sorted(numbers)]
    assert compile_and_run(statements, scratch_folder) == expected


def test_r73_declared_functions_are_those_of_the_header():
    code = header_code()
    for name, (_, arguments) in _abi.PROTOTYPES.items():
        match = re.search(rf"\b{name}\(([^)]*)\);", code)
        assert match, name
        parameters = [one for one in match.group(1).split(",") if one.strip() != "void"]
        assert len(parameters) == len(arguments), name
