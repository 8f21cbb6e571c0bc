"""What the package takes for granted about a release, against the release's own headers."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import mujoco

from rollout import _mujoco

HEADERS = Path(mujoco.__path__[0], "include")


def test_all_sizes_that_shape_a_data_are_in_its_signature():
    macros = HEADERS.joinpath("mujoco/mjxmacro.h").read_text()
    (fields,) = re.findall(r"#define MJDATA_POINTERS\s(.*?)\n\n", macros, re.DOTALL)
    sizes = set(re.findall(r"\bn[a-zA-Z]\w*(?=\s*[,)])", fields)) - {"nv_awake"}
    shaping = {size for size in sizes if hasattr(mujoco.MjModel, size)}
    # The pattern does find them.
    assert {"nq", "nv", "nbody", "nsensordata", "nuserdata"} <= shaping
    assert shaping <= set(_mujoco._MODEL_SIZES)


def test_a_log_message_is_laid_out_as_the_hooks_say(tmp_path: Path):
    hooks = _mujoco._table.hooks
    if mujoco.mj_version() < 3_010_000:
        assert hooks.exchange_thread_log is None and hooks.set_thread_error
        return
    program = tmp_path / "offsets.c"
    program.write_text(
        """
        #include <stddef.h>
        #include <stdio.h>
        #include <mujoco/mujoco.h>

        int main(void) {
          printf("%zu %zu %zu %d %d", offsetof(mjLogMessage, level),
                 offsetof(mjLogMessage, subject), offsetof(mjLogMessage, func), mjLOG_ERROR,
                 mjLOG_WARNING);
        }
        """
    )
    binary = tmp_path / "offsets"
    options = ["-x", "c++", "-std=c++17", "-I", str(HEADERS), "-o", str(binary)]
    subprocess.run(["c++", *options, str(program)], check=True)
    printed = subprocess.run([binary], check=True, capture_output=True, text=True).stdout
    expected = [int(number) for number in printed.split()]
    found = [
        hooks.log_level,
        hooks.log_text,
        hooks.log_function,
        hooks.log_error,
        hooks.log_warning,
    ]
    assert found == expected
    assert hooks.exchange_thread_log and hooks.get_process_log


def test_a_second_libmujoco_is_not_taken_for_the_one_in_use(tmp_path: Path):
    """Another package may have brought one of its own."""
    library = next(Path(mujoco.__path__[0]).glob("libmujoco.so.*"))
    copy = tmp_path / library.name
    shutil.copy(library, copy)
    second = ctypes.CDLL(str(copy))
    found = _mujoco._loaded_libmujoco()
    address = ctypes.cast(found.mj_step, ctypes.c_void_p).value
    assert address == _mujoco._table.step
    assert address != ctypes.cast(second.mj_step, ctypes.c_void_p).value
