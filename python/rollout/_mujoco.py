"""What the library needs to know of MuJoCo, from the release that Python has imported.

The counterpart of `include/rollout_mujoco.h`. Nothing here depends on where a release keeps
its fields: the functions are those of the very libmujoco that `import mujoco` loaded, the
numbers come from its enums, and the addresses from its arrays.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any, Optional

import mujoco
import numpy as np

from rollout import _abi

FULL_PHYSICS: int = mujoco.mjtState.mjSTATE_FULLPHYSICS.value
USER: int = mujoco.mjtState.mjSTATE_USER.value
CTRL: int = mujoco.mjtState.mjSTATE_CTRL.value

# The flag of models whose trees may sleep, from 3.4.0 on.
SLEEP: int = getattr(getattr(mujoco.mjtEnableBit, "mjENBL_SLEEP", None), "value", 0)

# The sizes that decide where the arrays of a data lie, each with an array of that length.
# Those of all releases; a release has those that it needs.
_SIZES = {
    "nq": "qpos",
    "nv": "qvel",
    "na": "act",
    "nu": "ctrl",
    "nbody": "xpos",
    "neq": "eq_active",
    "nmocap": "mocap_pos",
    "nuserdata": "userdata",
    "nsensordata": "sensordata",
    "nplugin": "plugin",
    "npluginstate": "plugin_state",
    "njnt": "xanchor",
    "ngeom": "geom_xpos",
    "nsite": "site_xpos",
    "ncam": "cam_xpos",
    "nlight": "light_xpos",
    "nflex": "flex_hessian_valid",
    "nflexvert": "flexvert_xpos",
    "nflexelem": "flexelem_aabb",
    "nflexedge": "flexedge_length",
    "nflexstiffness": "flexelem_krot",
    "ntendon": "ten_length",
    "nwrap": "wrap_obj",
    "nbvh": "bvh_active",
    "nbvhdynamic": "bvh_aabb_dyn",
    "nactuator": "actuator_force",
    "nout": "actuator_length",
    "nhistory": "history",
    "nplastic": "plastic",
    "ntree": "tree_asleep",
    "nM": "qM",
    "nB": "B_colind",
    "nC": "C_colind",
    "nD": "D_colind",
    "nJmom": "moment_colind",
    "nJten": "ten_J",
    "nJfe": "flexedge_J",
    "nJfv": "flexvert_J",
}


def _loaded_libmujoco() -> ctypes.CDLL:
    """The libmujoco that `import mujoco` loaded; never a second copy."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        paths = {
            path
            for path in (line.rstrip("\n").partition("/")[2] for line in maps)
            if os.path.basename(path).startswith("libmujoco.so")
        }
    found = sorted("/" + path for path in paths)
    if len(found) > 1:
        # Some other package has brought its own.
        folders = tuple(os.path.realpath(folder) + os.sep for folder in mujoco.__path__)
        found = [path for path in found if os.path.realpath(path).startswith(folders)]
    if len(found) != 1:
        raise ImportError(
            "it is not clear which libmujoco `import mujoco` has loaded; found: "
            + (", ".join(found) or "none")
        )
    try:
        library = ctypes.CDLL(found[0], mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError as error:
        raise ImportError(f"{found[0]} is mapped, yet cannot be opened: {error}") from error
    library.mj_version.restype = ctypes.c_int
    if library.mj_version() != mujoco.mj_version():
        raise ImportError(
            f"{found[0]} is release {library.mj_version()}, but `import mujoco` says "
            f"{mujoco.mj_version()}"
        )
    return library


def _address(library: ctypes.CDLL, name: str) -> Optional[int]:
    """The address of a function; None where the release does not export it."""
    function = getattr(library, name, None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


def _hooks(library: ctypes.CDLL) -> _abi.Hooks:
    """Where this release lets a thread catch the errors and warnings of its own calls.

    Most of it is not in MuJoCo's headers. All wheels from 3.0.0 to 4.0.0 export it, the
    second set of functions up to 3.9.0.
    """
    # A jump leaves something behind in the thread's memory there.
    retire = 3_009_000 <= mujoco.mj_version() < 3_014_000
    flags = _abi.HOOKS_RETIRE_THREAD if retire else 0
    if hasattr(library, "_mjPRIVATE_setTlsLogHandler"):
        return _abi.Hooks(
            exchange_thread_log=_address(library, "_mjPRIVATE_setTlsLogHandler"),
            get_process_log=_address(library, "_mjPRIVATE_getGlobalLogHandler"),
            exchange_process_log=_address(library, "mju_setLogHandler"),
            # Of mjLogMessage and mjtLogLevel.
            log_level=0,
            log_text=8,
            log_function=1040,
            log_error=3,
            log_warning=2,
            flags=flags,
        )
    return _abi.Hooks(
        get_thread_error=_address(library, "_mjPRIVATE__get_tls_error_fn"),
        set_thread_error=_address(library, "_mjPRIVATE__set_tls_error_fn"),
        get_thread_warning=_address(library, "_mjPRIVATE__get_tls_warning_fn"),
        set_thread_warning=_address(library, "_mjPRIVATE__set_tls_warning_fn"),
        flags=flags,
    )


def _engine(library: ctypes.CDLL) -> _abi.Engine:
    """The table of MuJoCo's functions and of the numbers of this release."""
    state = mujoco.mjtState
    warning = mujoco.mjtWarning
    diverged = (warning.mjWARN_BADQPOS, warning.mjWARN_BADQVEL, warning.mjWARN_BADQACC)

    return _abi.Engine(
        size=ctypes.sizeof(_abi.Engine),
        version=_abi.ENGINE_VERSION,
        number_size=np.dtype(getattr(mujoco, "MJTNUM_DTYPE", np.float64)).itemsize,
        # No addresses are taken from headers here.
        header_release=mujoco.mj_version(),
        library_release=library.mj_version(),
        step=_address(library, "mj_step"),
        state_size=_address(library, "mj_stateSize"),
        get_state=_address(library, "mj_getState"),
        set_state=_address(library, "mj_setState"),
        reset=_address(library, "mj_resetData"),
        full_physics=FULL_PHYSICS,
        user=USER,
        warmstart=state.mjSTATE_WARMSTART.value,
        ctrl=CTRL,
        model_inputs=state.mjSTATE_EQ_ACTIVE.value
        | state.mjSTATE_MOCAP_POS.value
        | state.mjSTATE_MOCAP_QUAT.value,
        diverged_warnings=sum(1 << kind.value for kind in diverged),
        warning_text=_address(library, "mju_warningText"),
        hooks=_hooks(library),
    )


_table = _engine(_loaded_libmujoco())
ENGINE = ctypes.addressof(_table)


def _warning_counters() -> tuple[int, int]:
    """Where in an mjData the warning counters begin, and how many there are.

    They are a part of the struct itself, so the distance is the same for every data.
    """
    data = mujoco.MjData(mujoco.MjModel.from_xml_string("<mujoco/>"))
    number = data.warning.number
    return number.ctypes.data - data._address, len(number)


WARNING_OFFSET, NWARNING = _warning_counters()

# MjData.model came with 3.1.0; before, a data shows its sizes by its arrays alone.
_DATA_KNOWS_MODEL = hasattr(mujoco.MjData, "model")
_MODEL_SIZES = [
    size
    for size, array in _SIZES.items()
    if hasattr(mujoco.MjModel, size) and (_DATA_KNOWS_MODEL or hasattr(mujoco.MjData, array))
]
_HAS_SIGNATURE = hasattr(mujoco.MjModel, "signature")

_Signature = tuple[int, int]
_ANY: _Signature = (0, 0)
_UNSIGNED = (1 << 64) - 1


def _hash(values: tuple[Any, ...]) -> int:
    return hash(values) & _UNSIGNED


def _structure(model: mujoco.MjModel) -> int:
    """A signature of what a data is made for besides its sizes; 0 if it is not known."""
    # A data carries the settings of its plugins.
    plugins = (model.plugin.tobytes(), bytes(model.plugin_attr)) if model.nplugin else None
    if _HAS_SIGNATURE:
        # Zero where the model was loaded from MJB.
        tree = model.signature
        return _hash((tree, plugins)) if tree or plugins else 0
    return _hash((model.body_parentid.tobytes(), model.body_dofnum.tobytes(), plugins))


def _model_signature(model: mujoco.MjModel) -> _Signature:
    sizes = tuple(getattr(model, size) for size in _MODEL_SIZES)
    return _hash((model.narena, sizes)), _structure(model)


def _data_signature(data: mujoco.MjData) -> _Signature:
    if _DATA_KNOWS_MODEL:
        return _model_signature(data.model)
    sizes = tuple(len(getattr(data, _SIZES[size])) for size in _MODEL_SIZES)
    return _hash((data.narena, sizes)), 0


def describe(
    models: Sequence[mujoco.MjModel], data: Sequence[mujoco.MjData]
) -> tuple[ctypes.Array[_abi.Model], ctypes.Array[_abi.Data]]:
    """What the library needs to know of models and data.

    Every address is asked for anew: an object that is freed gives its identity, and its
    memory, to another one.

    Args:
        models: models of one size signature.
        data: one data for each thread that may take part.

    Raises:
        ValueError: MuJoCo's own threads would run on a data.
    """
    first = models[0]
    # A data that was made from the one model of the request fits it, which is nearly
    # always so and needs no signature.
    plain = len(models) == 1 and _DATA_KNOWS_MODEL and all(one.model is first for one in data)
    described = (_model(model, _ANY if plain else _model_signature(model)) for model in models)
    of_data = (_data(i, one, _ANY if plain else _data_signature(one)) for i, one in enumerate(data))
    return (_abi.Model * len(models))(*described), (_abi.Data * len(data))(*of_data)


def _model(model: mujoco.MjModel, signature: _Signature) -> _abi.Model:
    # Plugins may keep state of their own, and which trees sleep is not in the state.
    hidden = model.nplugin or (SLEEP and model.opt.enableflags & SLEEP)
    layout, structure = signature
    return _abi.Model(
        model=model._address,
        layout=layout,
        structure=structure,
        nsensordata=model.nsensordata,
        nplugin=model.nplugin,
        flags=_abi.MODEL_HIDDEN_STATE if hidden else 0,
    )


def _data(i: int, data: mujoco.MjData, signature: _Signature) -> _abi.Data:
    if data.threadpool:
        raise ValueError(
            f"data[{i}] has a thread pool installed (mju_threadpool); "
            "rollout parallelizes across simulations and cannot use it"
        )
    layout, structure = signature
    return _abi.Data(
        data=data._address,
        sensordata=data.sensordata.ctypes.data,
        warning_number=data._address + WARNING_OFFSET,
        nwarning=NWARNING,
        layout=layout,
        structure=structure,
        nplugin=data.nplugin,
    )
