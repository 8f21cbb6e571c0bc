//! A persistent pool of threads for rollouts.
//!
//! One set of threads serves two kinds of work:
//!
//! * **Tasks**, counted: [`Pool::schedule`], [`Pool::count`],
//!   [`Pool::reset_count`], [`Pool::wait_count`], with the meaning of MJPC's
//!   `ThreadPool`.
//! * **Requests**, shared: [`Pool::run`] runs the rollouts of a
//!   [`Request`](rollout_core::Request). The calling thread works too, and as
//!   many workers join as there are data left.
//!
//! This crate never names MuJoCo, and steps nothing itself: rollouts are run by
//! the kernel of `rollout-core`. It uses no lock, condition variable or queue of
//! std (see `sync.rs`).
//!
//! # The protocol
#![doc = include_str!("../README.md")]

mod busy;
mod cpu;
mod job;
mod pool;
mod spawn;
mod sync;
mod worker;

pub use cpu::{CpusError, default_nthread};
pub use pool::{Pool, RunError, WaitError};
pub use worker::worker_id;
