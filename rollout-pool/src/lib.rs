//! A persistent pool of threads for rollouts.
//!
//! One set of threads serves two kinds of work:
//!
//! * **Tasks**, counted: [`Pool::schedule`], [`Pool::count`],
//!   [`Pool::reset_count`], [`Pool::wait_count`], with the meaning of MJPC's
//!   `ThreadPool`; and the same with a count for each caller ([`Pool::group`]).
//! * **Requests**, shared: [`Pool::run`] runs the rollouts of a
//!   [`Request`](rollout_core::Request). The calling thread works too, and as
//!   many workers join as there are data left. [`Pool::submit`] and [`Pool::scope`] return
//!   at once, with a [`Ticket`] to wait for, to watch and to cancel.
//!
//! This crate never names MuJoCo, and steps nothing itself: rollouts are run by
//! the kernel of `rollout-core`. It uses no lock, condition variable, queue or thread of
//! std (see `sync.rs` and `sync/thread.rs`).
//!
//! # The protocol
#![doc = include_str!("../README.md")]
// loom has neither forks nor CPUs.
#![cfg_attr(loom, allow(dead_code, unused_imports))]

mod attend;
mod busy;
mod cpu;
mod fork;
mod group;
mod inside;
mod job;
mod lineage;
mod pool;
mod seat;
mod spawn;
mod state;
mod sync;
mod ticket;
mod worker;

#[cfg(all(test, loom))]
mod models;
#[cfg(not(loom))]
#[cfg(test)]
mod tests;

pub use cpu::{CpusError, default_nthread};
pub use group::Group;
pub use pool::{Pool, RunError, WaitError};
pub use ticket::{Next, Pauses, Progress, Scope, Start, Terms, Ticket};
pub use worker::{WorkerStats, worker_id};
