"""The fast path: one function of the library that takes the usual call as it is.

It is written in Rust (`rollout-python`) and made here, for the interpreter and the release
of MuJoCo that run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import mujoco
import numpy as np

from rollout import _mujoco
from rollout._errors import raise_error
from rollout._library import python_library

# Called with the address of a pool (0 where there is none to use), its nthread,
# skip_checks, and then the arguments of `Rollout.rollout` from model to chunk_size. Does
# what that does, or returns None, and nothing has happened, where an argument is not what
# it usually is, or the library refuses. The caller keeps the pool and all arguments.
fast_rollout: Callable[..., Optional[tuple[Any, Any]]] = python_library.rollout_python_function(
    (
        _mujoco.ENGINE,
        _mujoco.WARNING_OFFSET,
        _mujoco.NWARNING,
        _mujoco.USER,
        _mujoco.SLEEP,
        None,
        int,
        list,
        np.ndarray,
        mujoco.MjModel,
        mujoco.MjData,
        np.empty,
        raise_error,
    )
)
