"""Loads the shared library that lies beside this file."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from rollout import _abi

_PATH = Path(__file__).with_name("librollout.so")


def _load() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(_PATH))
    except OSError as error:
        raise ImportError(
            f"{_PATH} cannot be loaded: {error}. It is built by `pip install .` in the "
            "project's folder."
        ) from error
    library.rollout_abi_version.restype = ctypes.c_uint32
    found = library.rollout_abi_version()
    if found != _abi.ABI_VERSION:
        raise ImportError(
            f"{_PATH} has version {found} of the ABI, this package needs {_abi.ABI_VERSION}: "
            "the two are of different builds"
        )
    _declare(library, _abi.PROTOTYPES)
    return library


def _declare(library: ctypes.CDLL, prototypes: dict[str, tuple[Any, list[Any]]]) -> None:
    for name, (result, arguments) in prototypes.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments


library = _load()

# The same library, for calls that hold the interpreter's lock.
python_library = ctypes.PyDLL(str(_PATH))
_declare(python_library, _abi.PYTHON_PROTOTYPES)

# The version of the library and, since both are built together, of the package.
version: str = library.rollout_version().decode()
