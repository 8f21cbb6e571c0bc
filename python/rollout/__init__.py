"""Thousands of simulator rollouts on a persistent pool of threads.

`rollout` and `Rollout` take what those of `mujoco.rollout` take and give the same numbers:

    import mujoco
    import numpy as np
    import rollout

    model = mujoco.MjModel.from_xml_path("model.xml")
    data = [mujoco.MjData(model) for _ in range(8)]
    nstate = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    start = np.empty(nstate)
    mujoco.mj_getState(model, data[0], start, mujoco.mjtState.mjSTATE_FULLPHYSICS)

    with rollout.Rollout(nthread=len(data)) as pool:
        control = np.random.normal(size=(1000, 100, model.nu))
        state, sensordata = pool.rollout(model, data, start, control)

What became of each rollout, where it matters:

    state, sensordata, outcomes = pool.rollout(..., outcomes=True, fill="nan")
    valid = outcomes.completed

Rollouts beside other work, and within a time:

    ticket = pool.submit(..., timeout=0.005, outcomes=True)
    ...
    state, sensordata, outcomes = ticket.result()

In place of `from mujoco import rollout` write `import rollout`; the rest of a program stays
as it is.
"""

from rollout._errors import OutOfTime
from rollout._library import version as __version__
from rollout._outcomes import Outcomes, Status
from rollout._pool import WorkerStats
from rollout._rollout import Rollout, default_nthread, rollout, shutdown_persistent_pool
from rollout._ticket import Progress, Ticket

__all__ = [
    "OutOfTime",
    "Outcomes",
    "Progress",
    "Rollout",
    "Status",
    "Ticket",
    "WorkerStats",
    "__version__",
    "default_nthread",
    "rollout",
    "shutdown_persistent_pool",
]
