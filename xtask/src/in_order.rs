//! Independent pieces of work, several at a time, reported in their order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Applies `work` to every item on `threads` threads and passes the results to
/// `report` in the order of the items, each as soon as those before it are there.
/// So a log reads the same whatever finished first, and still grows as work is done.
pub(crate) fn in_order<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    work: impl Fn(&T) -> R + Sync,
    mut report: impl FnMut(R),
) {
    let (results, inbox) = mpsc::channel();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..threads {
            let (results, next, work) = (results.clone(), &next, &work);
            scope.spawn(move || {
                // Only the uniqueness of the index matters: Relaxed is enough.
                while let Some((index, item)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    items.get(index).map(|item| (index, item))
                } {
                    if results.send((index, work(item))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(results);
        let mut early = BTreeMap::new();
        let mut due = 0;
        for (index, result) in inbox {
            early.insert(index, result);
            while let Some(result) = early.remove(&due) {
                report(result);
                due += 1;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::in_order;
    use std::time::Duration;

    #[test]
    fn reports_in_the_order_of_the_items() {
        let delays = [30, 0, 10, 0, 20, 0];
        let mut seen = Vec::new();
        in_order(
            &delays,
            3,
            |&delay| {
                std::thread::sleep(Duration::from_millis(delay));
                delay
            },
            |delay| seen.push(delay),
        );
        assert_eq!(seen, delays);
    }
}
