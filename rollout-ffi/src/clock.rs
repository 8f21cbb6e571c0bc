//! Time as C hosts tell it, and as the pool does.

use std::time::{Duration, Instant};

/// The time now in nanoseconds, for the `deadline_ns` of a request. It is that of
/// CLOCK_MONOTONIC, and so of std::chrono::steady_clock and Python's time.monotonic_ns().
/// Costs some 20 ns.
#[unsafe(no_mangle)]
pub extern "C" fn rollout_clock_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the clock exists on every Linux, and there is a place for its time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The earlier of two ends: so many nanoseconds from now on, and a time of
/// [`rollout_clock_ns`]. 0 stands for none.
pub(crate) fn deadline(budget_ns: u64, deadline_ns: u64) -> Option<Instant> {
    // (Most requests have neither, and need no clock.)
    let left = match (budget_ns, deadline_ns) {
        (0, 0) => return None,
        (budget, 0) => budget,
        (0, deadline) => deadline.saturating_sub(rollout_clock_ns()),
        (budget, deadline) => budget.min(deadline.saturating_sub(rollout_clock_ns())),
    };
    // A time that the clock cannot tell does not come.
    Instant::now().checked_add(Duration::from_nanos(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earlier_end_counts_and_one_that_has_passed_is_now() {
        let hour = 3_600_000_000_000;
        let left = |deadline: Option<Instant>| {
            let left = deadline?.saturating_duration_since(Instant::now());
            Some(left.as_secs().div_ceil(600) * 10)
        };
        assert_eq!(left(deadline(0, 0)), None);
        assert_eq!(left(deadline(hour, 0)), Some(60));
        let later = rollout_clock_ns() + 2 * hour;
        assert_eq!(left(deadline(0, later)), Some(120));
        assert_eq!(left(deadline(hour, later)), Some(60));
        assert_eq!(left(deadline(3 * hour, later)), Some(120));
        assert_eq!(left(deadline(0, 1)), Some(0));
        assert_eq!(left(deadline(hour, 1)), Some(0));
        assert!(deadline(0, 1) <= Some(Instant::now()));
        // Centuries from now.
        assert_ne!(left(deadline(u64::MAX, u64::MAX)), Some(0));
    }
}
