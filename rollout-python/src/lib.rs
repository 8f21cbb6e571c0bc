//! The library as the Python package loads it: the C ABI of `rollout-ffi`, and beside it a
//! function of Python's own kind, by which the usual call gets to `rollout_run` without a
//! line of Python in between.
//!
//! The package is a ctypes package, and the general way of a call through it is Python:
//! it infers, converts, checks, and says what is wrong. A request of a few steps takes the
//! engine less time than that. So `Rollout.rollout` first calls `call::fast_rollout`,
//! which reads arguments that are as they usually are, runs, and returns the outputs; and
//! which returns `None`, having done nothing, where anything is not as usual. Then the
//! general path runs from its start. Both give the same results
//! (`tests/python/test_fast_path.py`), and only the general one has texts of errors.
//!
//! What it is for, in instructions that a call adds to one step of the engine (callgrind,
//! one joint, one rollout of one step on the calling thread, Python 3.11, MuJoCo 4.0.0,
//! 2026-11-30): the general path some 90,000 and with skip_checks no less, `mujoco.rollout`
//! 140,000 and with skip_checks 21,000; this path 33,000 and with skip_checks 28,000. In
//! time, on cartpole, whose step takes 8 us: 46 and 51; 30 and 3; 6 and 5 us. Half of what
//! is left is MuJoCo's own attributes (1,000 each, 4,000 for `model.opt`).
//!
//! The interpreter that loads the library brings Python's functions: no headers, no build
//! for each version of Python, and C hosts link `rollout-ffi`, which knows nothing of it.

mod arguments;
mod array;
mod call;
mod mujoco;
mod python;
mod setup;

pub use setup::rollout_python_function;
