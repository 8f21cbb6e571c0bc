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
//! What a call adds to the engine's steps, in instructions (callgrind, a model of one
//! joint, one rollout of one step, no threads) and in microseconds (the best of 60 rounds
//! in turn, dm_control's cartpole, whose step takes 8.3; 2 shared CPUs), with Python 3.11
//! and MuJoCo 4.0.0 on x86-64, 2026-11-30:
//!
//! |                    | instructions |   us | with skip_checks |   us |
//! |--------------------|-------------:|-----:|-----------------:|-----:|
//! | the general path   |      108,000 | 26.7 |          128,000 | 30.7 |
//! | the fast path      |       35,000 |  6.5 |           30,000 |  4.3 |
//! | `mujoco.rollout`   |      140,000 | 28.4 |           21,000 |  2.9 |
//!
//! Most of what is left are the attributes of MuJoCo's objects, some 1,000 instructions
//! each and 4,000 for `model.opt`, and `rollout_run`'s own 4,700.
//!
//! The interpreter that loads the library brings Python's functions: no headers, no build
//! for each version of Python, and C hosts link `rollout-ffi`, which knows nothing of it.

mod arguments;
mod array;
mod call;
mod mujoco;
mod python;
mod run;
mod setup;

pub use run::{rollout_python_begin, rollout_python_end, rollout_python_run};
pub use setup::rollout_python_function;
