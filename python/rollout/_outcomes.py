"""What became of each rollout."""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

from rollout import _abi


class Status(enum.IntEnum):
    """How a rollout ended."""

    COMPLETED = _abi.OUTCOME_COMPLETED
    """All steps were made without a warning."""
    WARNED = _abi.OUTCOME_WARNED
    """MuJoCo warned during a step; the rollout ended there."""
    DIVERGED = _abi.OUTCOME_DIVERGED
    """MuJoCo warned of a bad position, velocity or acceleration."""
    ENGINE_ERROR = _abi.OUTCOME_ENGINE_ERROR
    """MuJoCo reported an error."""
    NOT_STARTED = _abi.OUTCOME_NOT_STARTED
    """The rollout was not run, and nothing of it was written."""
    CANCELLED = _abi.OUTCOME_CANCELLED
    """The call was cancelled in the middle of the rollout."""
    OUT_OF_TIME = _abi.OUTCOME_OUT_OF_TIME
    """The call's time was up in the middle of the rollout."""


class Outcomes:
    """What became of each rollout of a call, as arrays of nbatch elements."""

    status: npt.NDArray[np.int32]
    """A `Status` for each rollout."""
    warning: npt.NDArray[np.int32]
    """The kind of the warning that ended it (`mujoco.mjtWarning`), or -1."""
    steps: npt.NDArray[np.uint64]
    """Its valid steps: those before the one that warned or failed, or before the call's end."""
    message: npt.NDArray[np.bytes_]
    """MuJoCo's words for the warning or error, empty where there is none."""

    def __init__(self, nbatch: int, message_size: int = 256) -> None:
        """Room for the outcomes of so many rollouts, none of which has started.

        Args:
            nbatch: number of rollouts.
            message_size: bytes of a message; longer ones are cut. With 0 none are kept.
        """
        self.records = np.zeros(nbatch, _RECORD)
        self.status = self.records["status"]
        self.warning = self.records["warning"]
        self.steps = self.records["steps"]
        self.message = np.zeros(nbatch if message_size else 0, f"S{max(message_size, 1)}")
        self.status[:] = Status.NOT_STARTED
        self.warning[:] = -1

    @property
    def completed(self) -> npt.NDArray[np.bool_]:
        """Which rollouts made all of their steps."""
        return self.status == Status.COMPLETED

    def failed(self) -> list[int]:
        """The rollouts that ended with an error of the engine."""
        return np.flatnonzero(self.status == Status.ENGINE_ERROR).tolist()

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        counts = {status.name.lower(): int((self.status == status).sum()) for status in Status}
        counted = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        return f"<Outcomes: {counted or 'none'}>"


# RolloutOutcome.
_RECORD = np.dtype([("status", np.int32), ("warning", np.int32), ("steps", np.uint64)])
