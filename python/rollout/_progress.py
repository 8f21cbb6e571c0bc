"""How a call shows how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Optional, Union

from rollout._ticket import Progress

Show = Union[bool, Callable[[Progress], object]]


@contextmanager
def shown(show: Show, nbatch: int, nstep: int) -> Iterator[Optional[Callable[[int, int], object]]]:
    """What a call of this size is to call with its rollouts and steps that are done."""
    if show is False:
        yield None
    elif show is True:
        try:
            from tqdm.auto import tqdm
        except ImportError as error:
            raise ImportError(
                "progress=True needs tqdm: `pip install rollout-mujoco[progress]`, or pass a "
                "function"
            ) from error
        with tqdm(total=nbatch, unit="rollout") as bar:

            def move(rollouts: int, steps: int) -> None:
                bar.set_postfix(steps=steps, refresh=False)
                bar.update(rollouts - bar.n)

            yield move
    else:
        yield lambda rollouts, steps: show(Progress(rollouts, steps, nbatch, nstep))
