"""The C ABI of the library, as `include/rollout.h` declares it.

Nothing but declarations: structures, numbers and prototypes, each under the name that it
has in the header, which is the manual. A test compiles the header and compares.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
    py_object,
)
from typing import Any

ABI_VERSION = 1
ENGINE_VERSION = 1
ERROR_TEXT_SIZE = 488

FILL_NAN = 0
FILL_HOLD = 1
FILL_UNTOUCHED = 2

MODEL_HIDDEN_STATE = 1 << 0
HOOKS_RETIRE_THREAD = 1 << 0
REQUEST_ATTENDED = 1 << 0

STATUS_OK = 0
STATUS_ROLLOUTS_FAILED = 1
STATUS_CANCELLED = 2
STATUS_OUT_OF_TIME = 3
# All that could be run was run, and the outcomes tell what came of it.
STATUS_TOLD = (STATUS_ROLLOUTS_FAILED, STATUS_OUT_OF_TIME)
STATUS_OVERLAP = 109
STATUS_REFUSED = range(100, 200)
STATUS_BUSY = 200
STATUS_WOULD_DEADLOCK = 201
STATUS_TIMEOUT = 202

OUTCOME_COMPLETED = 0
OUTCOME_WARNED = 1
OUTCOME_DIVERGED = 2
OUTCOME_ENGINE_ERROR = 10
OUTCOME_NOT_STARTED = 30
OUTCOME_CANCELLED = 31
OUTCOME_OUT_OF_TIME = 32


class Hooks(Structure):
    """RolloutHooks."""

    _fields_ = [
        ("exchange_thread_log", c_void_p),
        ("get_process_log", c_void_p),
        ("exchange_process_log", c_void_p),
        ("get_thread_error", c_void_p),
        ("set_thread_error", c_void_p),
        ("get_thread_warning", c_void_p),
        ("set_thread_warning", c_void_p),
        ("process_error", c_void_p),
        ("process_warning", c_void_p),
        ("log_level", c_uint32),
        ("log_text", c_uint32),
        ("log_function", c_uint32),
        ("log_error", c_int32),
        ("log_warning", c_int32),
        ("flags", c_uint32),
    ]


class Engine(Structure):
    """RolloutEngine."""

    _fields_ = [
        ("size", c_size_t),
        ("version", c_uint32),
        ("number_size", c_uint32),
        ("header_release", c_int32),
        ("library_release", c_int32),
        ("step", c_void_p),
        ("state_size", c_void_p),
        ("get_state", c_void_p),
        ("set_state", c_void_p),
        ("reset", c_void_p),
        ("take_error", c_void_p),
        ("full_physics", c_uint32),
        ("user", c_uint32),
        ("warmstart", c_uint32),
        ("ctrl", c_uint32),
        ("model_inputs", c_uint32),
        ("diverged_warnings", c_uint32),
        ("warning_text", c_void_p),
        ("hooks", Hooks),
    ]


class Model(Structure):
    """RolloutModel."""

    _fields_ = [
        ("model", c_void_p),
        ("layout", c_uint64),
        ("structure", c_uint64),
        ("nsensordata", c_size_t),
        ("nplugin", c_size_t),
        ("flags", c_uint32),
    ]


class Data(Structure):
    """RolloutData."""

    _fields_ = [
        ("data", c_void_p),
        ("sensordata", c_void_p),
        ("warning_number", c_void_p),
        ("nwarning", c_uint32),
        ("flags", c_uint32),
        ("layout", c_uint64),
        ("structure", c_uint64),
        ("nplugin", c_size_t),
    ]


class Input(Structure):
    """RolloutInput."""

    _fields_ = [
        ("values", c_void_p),
        ("count", c_size_t),
        ("rollout_stride", c_size_t),
        ("step_stride", c_size_t),
    ]


class Output(Structure):
    """RolloutOutput."""

    _fields_ = [("values", c_void_p), ("count", c_size_t)]


class Outcome(Structure):
    """RolloutOutcome."""

    _fields_ = [("status", c_int32), ("warning", c_int32), ("steps", c_uint64)]


class Request(Structure):
    """RolloutRequest."""

    _fields_ = [
        ("size", c_size_t),
        ("engine", c_void_p),
        ("models", c_void_p),
        ("nmodel", c_size_t),
        ("data", c_void_p),
        ("ndata", c_size_t),
        ("nbatch", c_size_t),
        ("nstep", c_size_t),
        ("control_spec", c_uint32),
        ("fill", c_int32),
        ("initial_state", Input),
        ("initial_warmstart", Input),
        ("control", Input),
        ("state", Output),
        ("sensordata", Output),
        ("outcomes", c_void_p),
        ("noutcome", c_size_t),
        ("messages", c_void_p),
        ("nmessage", c_size_t),
        ("message_size", c_size_t),
        ("chunk_size", c_size_t),
        ("priority", c_int32),
        ("flags", c_uint32),
        ("budget_ns", c_uint64),
        ("deadline_ns", c_uint64),
    ]


class Progress(Structure):
    """RolloutProgress."""

    _fields_ = [
        ("rollouts", c_uint64),
        ("steps", c_uint64),
        ("nbatch", c_uint64),
        ("nstep", c_uint64),
    ]


class WorkerStats(Structure):
    """RolloutWorkerStats."""

    _fields_ = [
        ("busy_ns", c_uint64),
        ("idle_ns", c_uint64),
        ("tasks", c_uint64),
        ("rollouts", c_uint64),
        ("steps", c_uint64),
    ]


class Error(Structure):
    """RolloutError."""

    _fields_ = [
        ("size", c_size_t),
        ("status", c_int32),
        ("nfailed", c_int32),
        ("index", c_int64),
        ("text", c_char * ERROR_TEXT_SIZE),
    ]

    def __init__(self) -> None:
        super().__init__(size=ctypes.sizeof(type(self)), index=-1)


# What each function returns and takes.
PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "rollout_version": (c_char_p, []),
    "rollout_default_nthread": (c_int32, []),
    "rollout_pool_create_on": (
        c_int32,
        [POINTER(c_int32), c_size_t, POINTER(c_void_p), POINTER(Error)],
    ),
    "rollout_pool_cpu": (c_int32, [c_void_p, c_int32, POINTER(c_int32), POINTER(Error)]),
    "rollout_pool_create": (c_int32, [c_int32, POINTER(c_void_p), POINTER(Error)]),
    "rollout_pool_destroy": (None, [c_void_p]),
    "rollout_pool_num_threads": (c_int32, [c_void_p, POINTER(c_int32), POINTER(Error)]),
    "rollout_pool_stats": (
        c_int32,
        [c_void_p, POINTER(WorkerStats), c_size_t, POINTER(Error)],
    ),
    "rollout_run": (c_int32, [c_void_p, POINTER(Request), POINTER(Error)]),
    "rollout_submit": (
        c_int32,
        [c_void_p, POINTER(Request), POINTER(c_void_p), POINTER(Error)],
    ),
    "rollout_ticket_wait": (c_int32, [c_void_p, c_int64, POINTER(Error)]),
    "rollout_ticket_cancel": (c_int32, [c_void_p, POINTER(Error)]),
    "rollout_ticket_done": (c_int32, [c_void_p, POINTER(c_int32), POINTER(Error)]),
    "rollout_ticket_progress": (c_int32, [c_void_p, POINTER(Progress), POINTER(Error)]),
    "rollout_ticket_release": (c_int32, [c_void_p, POINTER(Error)]),
    "rollout_clock_ns": (c_uint64, []),
}

# The same for what is called with the interpreter's lock held, for Python alone.
PYTHON_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "rollout_python_function": (py_object, [py_object]),
    "rollout_python_run": (c_int32, [c_void_p, POINTER(Request), POINTER(Error), c_void_p]),
    "rollout_python_begin": (None, [c_uint64]),
    "rollout_python_end": (c_size_t, []),
}
