//! A request in flight: who may join it, and which rollouts are left.

use std::panic::{self, AssertUnwindSafe};
use std::ptr::NonNull;

use crossbeam_utils::CachePadded;
use rollout_core::simulator::panic_text;
use rollout_core::{Observer, Request, Tally};

use crate::sync::{AtomicUsize, Ordering};

/// A request in flight. It lives on the stack of the thread that called
/// [`Pool::run`](crate::Pool::run), which returns only after the pool's state no
/// longer names it and nobody is inside.
#[derive(Debug)]
pub(crate) struct Job<'r> {
    request: &'r Request<'r>,
    /// Threads that can take part, the caller included.
    threads: usize,
    /// The first rollout that nobody has claimed. Alone on its cache line, since
    /// all threads write it.
    next: CachePadded<AtomicUsize>,
    /// Workers inside; changed under the pool's lock, read by the caller without.
    pub(crate) inside: AtomicUsize,
}

/// With the scheduler's own choice of chunks, a claim takes one in so many parts of
/// an equal share of what is left: large chunks first, so that the cursor is touched
/// seldom; single rollouts from the last eight of each thread on, so that threads
/// finish together. Not a tuned number.
const SHARE_PARTS: usize = 4;

impl<'r> Job<'r> {
    pub(crate) fn new(request: &'r Request<'r>, threads: usize) -> Self {
        Self {
            request,
            threads,
            next: CachePadded::new(AtomicUsize::new(0)),
            inside: AtomicUsize::new(0),
        }
    }

    /// Whether all rollouts have been claimed.
    pub(crate) fn exhausted(&self) -> bool {
        self.next.load(Ordering::Relaxed) == self.request.nbatch()
    }

    /// Claims the next chunk of rollouts.
    fn claim(&self) -> Option<std::ops::Range<usize>> {
        // Relaxed: a claim carries nothing but the numbers themselves. What the
        // threads write is published by the pool's lock when they leave.
        let mut start = self.next.load(Ordering::Relaxed);
        loop {
            let left = self.request.nbatch() - start;
            if left == 0 {
                return None;
            }
            let size = match self.request.chunk_size() {
                0 => (left / (SHARE_PARTS * self.threads)).max(1),
                fixed => fixed.min(left),
            };
            match self.next.compare_exchange_weak(
                start,
                start + size,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(start..start + size),
                Err(now) => start = now,
            }
        }
    }

    /// Claims and runs chunks until none are left. A panic costs the rollouts of
    /// its chunk, which stay "not started", and its text is returned; the other
    /// chunks are run.
    ///
    /// # Safety
    ///
    /// * `slot` is one of the request's and this thread's alone.
    /// * The request was begun for this job.
    pub(crate) unsafe fn participate(
        &self,
        slot: usize,
        observer: &mut impl Observer,
    ) -> (Tally, Option<String>) {
        let mut tally = Tally::default();
        let mut first_panic = None;
        while let Some(range) = self.claim() {
            let run = AssertUnwindSafe(|| {
                // SAFETY: a claimed range is nobody else's and is in range; the
                // rest is the caller's promise.
                unsafe { self.request.run_range(slot, range, observer) }
            });
            match panic::catch_unwind(run) {
                Ok(ran) => tally.merge(ran),
                Err(payload) => {
                    first_panic.get_or_insert_with(|| panic_text(&*payload).to_owned());
                }
            }
        }
        (tally, first_panic)
    }
}

/// What the pool's state keeps of a job, under the lock.
#[derive(Debug)]
pub(crate) struct OpenJob {
    job: NonNull<Job<'static>>,
    /// Which slots are taken.
    taken: Vec<bool>,
    pub(crate) tally: Tally,
    pub(crate) panic: Option<String>,
}

// SAFETY: the job is shared between threads by design: it is Sync (a request is,
// and so are atomics), and outlives this entry, which its owner removes.
unsafe impl Send for OpenJob {}

/// A worker's place in a job.
#[derive(Debug)]
pub(crate) struct Seat {
    job: NonNull<Job<'static>>,
    slot: usize,
}

impl OpenJob {
    /// An entry for `job`, whose owner has `slot`.
    pub(crate) fn new(job: &Job<'_>, slot: usize) -> Self {
        let mut taken = vec![false; job.request.ndata()];
        taken[slot] = true;
        Self {
            job: NonNull::from(job).cast(),
            taken,
            tally: Tally::default(),
            panic: None,
        }
    }

    pub(crate) fn is(&self, job: &Job<'_>) -> bool {
        self.job == NonNull::from(job).cast()
    }

    /// Takes a place if there is work and a free slot, the preferred one if it
    /// is free. Called under the pool's lock.
    pub(crate) fn join(&mut self, preferred: usize) -> Option<Seat> {
        // SAFETY: the entry is still in the pool's state, so its owner has not
        // returned and the job is alive.
        let job = unsafe { self.job.as_ref() };
        // (The rollouts may be claimed by others before this worker gets to it:
        // then it leaves again. The owner removes the entry only under this lock
        // and with nobody inside.)
        if job.exhausted() || job.inside.load(Ordering::Relaxed) + 1 >= job.threads {
            return None;
        }
        #[cfg(test)]
        tests::dawdle();
        let slot = match self.taken.get(preferred) {
            Some(false) => preferred,
            _ => self.taken.iter().position(|taken| !taken)?,
        };
        self.taken[slot] = true;
        // Relaxed: under the lock, under which the owner decides that it may go.
        job.inside.fetch_add(1, Ordering::Relaxed);
        Some(Seat {
            job: self.job,
            slot,
        })
    }

    /// Gives the place back, with what was counted there. Called under the
    /// pool's lock.
    pub(crate) fn leave(&mut self, seat: Seat, tally: Tally, panic: Option<String>) {
        self.taken[seat.slot] = false;
        self.tally.merge(tally);
        if self.panic.is_none() {
            self.panic = panic;
        }
        // SAFETY: the entry is still in the pool's state, so the job is alive.
        // Release, with the Acquire of the owner, who looks without the lock first.
        // It takes the lock, and so waits for this section to end, before it
        // removes the entry and frees the job.
        unsafe { self.job.as_ref() }
            .inside
            .fetch_sub(1, Ordering::Release);
    }

    /// Whether `seat` is a place in this job.
    pub(crate) fn owns(&self, seat: &Seat) -> bool {
        self.job == seat.job
    }
}

impl Seat {
    /// The slot of this place.
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// Works on the job until no rollouts are left.
    pub(crate) fn work(&self) -> (Tally, Option<String>) {
        // SAFETY: the seat counts in `inside`, which the owner waits for, so the
        // job is alive; the slot was free and is taken; the owner began the
        // request before it opened the job.
        unsafe { self.job.as_ref().participate(self.slot, &mut ()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;
    use rollout_core::simulator::{Readings, Specs};
    use rollout_core::{Arrays, Simulation, Simulator, Slot};
    use std::hint;
    use std::thread;
    use std::time::Duration;

    /// Widens the gap between a worker's look at a job and its step inside, in which
    /// the caller can claim the last rollouts.
    pub(super) fn dawdle() {
        thread::sleep(Duration::from_micros(20));
    }

    /// A simulator whose step takes a few microseconds.
    struct Idle;

    impl Simulator for Idle {
        type Model = ();
        const SPECS: Specs = Specs {
            full_physics: 1,
            ..Specs::none()
        };
        fn state_size(_: &(), _: u32) -> usize {
            0
        }
        fn get_state(&self, _: &(), _: u32, _: &mut [f64]) {}
        fn set_state(&mut self, _: &(), _: u32, _: &[f64]) {}
        fn step(&mut self, _: &(), _: Readings<'_>) -> Result<(), String> {
            for turn in 0..2000 {
                hint::black_box(turn);
            }
            Ok(())
        }
        fn reset(&mut self, _: &()) {}
    }

    fn with_request<R>(test: impl FnOnce(&mut Request<'_>) -> R) -> R {
        let mut slots = [(); 3].map(|()| Slot::new(Idle, &()));
        let arrays = Arrays {
            nbatch: 8,
            nstep: 1,
            ..Arrays::default()
        };
        let simulation = Simulation::of(&[()], &mut slots).unwrap();
        test(&mut Request::new(simulation, arrays).unwrap())
    }

    #[test]
    fn a_worker_that_is_slow_to_step_inside_does_not_find_a_removed_job() {
        let pool = Pool::new(2).unwrap();
        with_request(|request| {
            for _ in 0..3000 {
                // So that workers are woken though there is little to do.
                pool.forget_step_time();
                assert_eq!(pool.run(request).unwrap().completed, 8);
            }
        });
    }

    #[test]
    fn a_panic_costs_its_chunk_and_is_told() {
        struct Panics(usize);
        impl Observer for Panics {
            fn stepped(&mut self) {
                self.0 += 1;
                assert!(self.0 != 3, "the third step");
            }
        }
        with_request(|request| {
            // SAFETY: the data are used here alone, and the slot too.
            let (tally, panic) = unsafe {
                request.begin();
                Job::new(request, 2).participate(0, &mut Panics(0))
            };
            assert!(panic.unwrap().contains("the third step"));
            // The first chunks are of one rollout each, a quarter of a half.
            assert_eq!(tally.completed, 7);
        });
    }
}
