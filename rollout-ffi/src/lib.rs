//! The C ABI of `rollout`: opaque handles, fixed-width status codes, an error
//! object, and a boundary that no panic crosses.
//!
//! This crate holds no loop over steps and no lock: it checks what C passes,
//! makes it a request of `rollout-core`, and hands that to `rollout-pool`. The
//! header `include/rollout.h` is generated from it (`cargo xtask header`), so the
//! documentation of its items is written for the reader of that header.
//!
//! Rules that tests keep: every exported function goes through `error::boundary`,
//! except those that cannot fail (`tests/tidy.rs`); exported and declared symbols are
//! the same (`tests/header.rs`).

mod clock;
mod error;
mod group;
mod guard;
mod pool;
mod request;
mod sized;
mod ticket;
mod version;

pub use clock::rollout_clock_ns;
pub use error::{ROLLOUT_ERROR_TEXT_SIZE, RolloutError, RolloutStatus, rollout_status_name};
pub use group::{
    RolloutGroup, rollout_group_count, rollout_group_create, rollout_group_destroy,
    rollout_group_reset_count, rollout_group_schedule, rollout_group_wait_count,
};
pub use guard::rollout_guard;
pub use pool::{
    ROLLOUT_NTHREAD_DEFAULT, RolloutPool, RolloutTask, RolloutWorkerStats, rollout_default_nthread,
    rollout_pool_count, rollout_pool_cpu, rollout_pool_create, rollout_pool_create_on,
    rollout_pool_destroy, rollout_pool_num_threads, rollout_pool_reset_count,
    rollout_pool_schedule, rollout_pool_stats, rollout_pool_wait_count, rollout_worker_id,
};
pub use request::{
    ROLLOUT_REQUEST_ATTENDED, RolloutInput, RolloutOutput, RolloutRequest, rollout_run,
    run_with_pauses,
};
pub use ticket::{
    RolloutProgress, RolloutTicket, rollout_submit, rollout_ticket_cancel, rollout_ticket_done,
    rollout_ticket_progress, rollout_ticket_release, rollout_ticket_wait,
};
pub use version::{ROLLOUT_ABI_VERSION, rollout_abi_version, rollout_version};
