"""What all tests of the Python package share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def scratch_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own to run in: MuJoCo writes its log to where it runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
