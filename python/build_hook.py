"""Builds the shared library and puts it into the wheel, beside the package's own files.

hatchling calls this for `pip install .`, `pip install -e .` and `python -m build`. The
wheel serves every Python 3, since the package reaches the library through ctypes, and
every Linux whose glibc has what the library asks for, which is read from the library.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The profile `wheel` is `release` with the symbols stripped by the linker, in a folder of
# its own in target/: what C hosts link keeps its symbols.
CARGO = [
    "cargo",
    "build",
    "--locked",
    "--profile=wheel",
    "--package=rollout-python",
    "--message-format=json-render-diagnostics",
]

# ELF's words for a machine and those of wheels.
MACHINES = {"x64": "x86_64", "AArch64": "aarch64"}


class BuildHook(BuildHookInterface[Any]):
    """Adds the library to a wheel, or for an editable install to the sources."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        library = build(Path(self.root))
        if version == "editable":
            install(library, Path(self.root, "python/rollout/librollout.so"))
        else:
            build_data["force_include"][str(library)] = "rollout/librollout.so"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag(library)}"


def build(root: Path) -> Path:
    """Builds the library and asks cargo where it is."""
    try:
        cargo = subprocess.run(CARGO, cwd=root, stdout=subprocess.PIPE, text=True, check=False)
    except FileNotFoundError:
        raise SystemExit("cargo does not start: rollout is built with Rust") from None
    if cargo.returncode != 0:
        raise SystemExit("cargo could not build librollout.so")
    for line in cargo.stdout.splitlines():
        message = json.loads(line)
        made = message["reason"] == "compiler-artifact"
        if made and message["target"]["name"] == "rollout_python":
            for name in message["filenames"]:
                if name.endswith(".so"):
                    return Path(name)
    raise SystemExit("cargo made no shared library: rollout needs Linux")


def install(library: Path, target: Path) -> None:
    """Replaces `target`, which a running process may have loaded, in one go."""
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copyfile(library, unfinished)
    unfinished.replace(target)


def platform_tag(library: Path) -> str:
    """The oldest manylinux that the library runs on: that of its newest glibc symbol.

    Its other libraries (libgcc_s) are among those that every manylinux has.
    """
    with library.open("rb") as file:
        elf = ELFFile(file)
        needed = elf.get_section_by_name(".gnu.version_r")
        if not isinstance(needed, GNUVerNeedSection):
            raise SystemExit(f"{library} asks for no version of glibc: rollout needs Linux with it")
        names = [entry.name for _, entries in needed.iter_versions() for entry in entries]
        machine = MACHINES.get(elf.get_machine_arch())
    minors = [int(minor) for name in names for minor in re.findall(r"^GLIBC_2\.(\d+)", name)]
    if machine is None or not minors:
        raise SystemExit("rollout needs Linux with glibc, on x86-64 or aarch64")
    return f"manylinux_2_{max(minors)}_{machine}"
