//! The single-threaded heart of `rollout`: an engine table, a request that is
//! checked once, and the kernel that runs a range of its rollouts on one data.
//!
//! Read in this order:
//!
//! * [`engine`]: the table of C functions that steps a simulation, and the
//!   descriptions of models and data that go with it. MuJoCo's own functions
//!   fit the table without wrappers.
//! * [`simulator`]: the same table made from a Rust type, without unsafe code.
//! * [`array`](mod@array): the caller's input and output arrays, with strides.
//! * [`request`]: everything one call needs. [`Request::new`] checks it all and
//!   refuses it whole; what it returns is trusted from then on.
//! * [`kernel`]: the loop over rollouts and steps.
//! * [`trap`]: engine calls, and errors that end them by a jump; `trap.c`.
//! * [`outcome`]: what became of each rollout.
//! * [`error`]: why a request was refused.
//!
//! # Invariants
//!
//! * This crate starts no thread, and takes no lock but for a moment in `trap.c`, where
//!   the process's handlers are changed. Whoever runs one request on
//!   several threads promises that each slot and each rollout has one thread at
//!   a time ([`Request::lane`]).
//! * The kernel allocates nothing, but for the text of an error.
//! * What is written for a rollout depends on the request and on the rollout's
//!   index alone: never on the slot, on the order, or on what the data was used
//!   for before.
//! * No struct of the engine is read. The few addresses without an accessor
//!   come from the host ([`engine::Data`]), as do the numeric state specs.
//! * A refused request has changed nothing.

pub mod array;
pub mod engine;
pub mod error;
pub mod kernel;
pub mod outcome;
pub mod request;
pub mod simulator;
pub mod trap;

pub use array::{Input, Output};
pub use engine::{Data, Engine, Model, Simulation};
pub use error::{Error, ErrorKind};
pub use kernel::{Condition, Ended, Flow, Lane, Observer};
pub use outcome::{FirstFailed, Outcome, OutcomeStatus, Tally};
pub use request::{Arrays, Fill, Request};
pub use simulator::{Simulator, Slot};
pub use trap::Hooks;
