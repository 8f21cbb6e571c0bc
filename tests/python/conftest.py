"""What all tests of the Python package share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import mujoco
import pytest


@pytest.fixture(autouse=True)
def scratch_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own to run in: MuJoCo writes its log to where it runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def control_callback() -> Iterator[Callable[[Any], None]]:
    """Sets MuJoCo's control callback, and clears it after the test."""
    yield mujoco.set_mjcb_control
    mujoco.set_mjcb_control(None)
