"""The models that the tests roll out, by name.

Those in ``models/`` are there for one thing each that a rollout must get right; the
robots are those of dm_control's suite and of our examples.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import os
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import mujoco

ROOT = Path(__file__).resolve().parents[2]
RELEASE = tuple(int(part) for part in mujoco.__version__.split(".")[:3])

_HERE = Path(__file__).parent
_SUITE = ROOT / ".deps" / "dm_control" / "suite"
_PACKAGE = Path(mujoco.__file__).parent
(_LIBMUJOCO,) = _PACKAGE.glob("libmujoco.so.*")

# Models that need a feature, and the release that it came with.
_SINCE = {
    "plugins": (3, 2),
    "sleep": (3, 4),
    "delay": (3, 5),
    "quaternion_control": (3, 11),
    "plastic": (4, 0),
}

_HAVE = [
    name
    for name in sorted(path.stem for path in (_HERE / "models").glob("*.xml"))
    if RELEASE >= _SINCE.get(name, (3, 0))
]
# Models whose data remember something outside of the state, which only a reset restores.
# It leaks from rollout to rollout in mujoco.rollout.
HIDDEN_STATE = [name for name in _HAVE if name in ("sleep", "plugin_memory")]
OURS = [name for name in _HAVE if name not in HIDDEN_STATE]
ROBOTS = ["hopper", "cheetah", "humanoid", "quadruped", "swimmer", "example_humanoid"]
ALL = OURS + ROBOTS


def load(name: str) -> mujoco.MjModel:
    """A new model, which the caller may change."""
    return copy.copy(_compiled(name))


@functools.cache
def _compiled(name: str) -> mujoco.MjModel:
    if name in ("plugin_state", "plugin_memory"):
        load_test_plugins()
    if name == "swimmer":
        return _swimmer(joints=5)
    if name == "example_humanoid":
        path = ROOT / "examples" / "models" / "humanoid.xml"
    elif name in ROBOTS:
        path = _SUITE / f"{name}.xml"
    else:
        path = _HERE / "models" / f"{name}.xml"
    return mujoco.MjModel.from_xml_path(str(path))


def _swimmer(joints: int) -> mujoco.MjModel:
    """The suite's swimmer. Its file holds the head; the other links are made in code."""
    tree = ElementTree.parse(_SUITE / "swimmer.xml").getroot()
    for include in tree.findall("include"):
        include.set("file", str(_SUITE / include.get("file", "")))
    body = tree.find("worldbody/body[@name='head']")
    actuators = ElementTree.SubElement(tree, "actuator")
    assert body is not None
    for i in range(joints):
        name, limits = f"joint_{i}", f"{-360 / (joints + 1)} {360 / (joints + 1)}"
        body = ElementTree.SubElement(body, "body", name=f"segment_{i}", pos="0 .1 0")
        ElementTree.SubElement(body, "joint", name=name, range=limits)
        ElementTree.SubElement(body, "geom", {"class": "inertial"})
        ElementTree.SubElement(actuators, "motor", joint=name)
    return mujoco.MjModel.from_xml_string(ElementTree.tostring(tree, encoding="unicode"))


def libmujoco() -> ctypes.CDLL:
    """The engine that ``import mujoco`` loaded."""
    return ctypes.CDLL(str(_LIBMUJOCO))


@functools.cache
def load_test_plugins() -> None:
    """Compiles plugin.c against the headers of this MuJoCo and loads it."""
    with tempfile.TemporaryDirectory() as folder:
        plugin = Path(folder) / "libtestplugins.so"
        compiler = os.environ.get("CC", "cc").split()
        flags = ["-shared", "-fPIC", "-Wall", "-Wextra", f"-I{_PACKAGE / 'include'}"]
        source = str(_HERE / "plugin.c")
        subprocess.run([*compiler, *flags, source, str(_LIBMUJOCO), "-o", str(plugin)], check=True)
        mujoco.mj_loadPluginLibrary(str(plugin))
