//! A request in flight: who may join it, and which rollouts are left.

use std::io;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::ptr::NonNull;

use crossbeam_utils::CachePadded;
use rollout_core::simulator::panic_text;
use rollout_core::{Observer, Request, Tally, Undefined};

use crate::pool::RunError;
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
    fn claim(&self) -> Option<Range<usize>> {
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

    /// Whether the calling thread may work on this job.
    pub(crate) fn is_welcome(&self) -> bool {
        self.request.is_welcome()
    }

    /// Claims and runs chunks until none are left, or until an engine error forbids this
    /// thread to go on. A panic costs the rollout that it hits, which stays "not
    /// started", and its text is returned; the others are run.
    ///
    /// # Safety
    ///
    /// * The place is of this job, and this thread's alone.
    /// * The request was begun for this job.
    pub(crate) unsafe fn participate(&self, place: Place, observer: &mut impl Observer) -> Work {
        let Place {
            slot,
            undefined,
            mut range,
        } = place;
        // SAFETY: the caller's promises.
        let mut lane = unsafe { self.request.lane(slot, undefined) };
        let mut panic = None;
        while self.is_welcome() {
            if range.is_empty() {
                match self.claim() {
                    Some(claimed) => range = claimed,
                    None => break,
                }
            }
            let run = AssertUnwindSafe(|| {
                // SAFETY: a claimed range is nobody else's and is in range.
                unsafe { lane.run(&mut range, observer) }
            });
            if let Err(payload) = panic::catch_unwind(run) {
                panic.get_or_insert_with(|| panic_text(&*payload).to_owned());
            }
        }
        // Before the lane is left, which may try a reset: a data that even this does not
        // help is left as it is.
        let spent = !self.is_welcome();
        let (tally, undefined) = lane.leave();
        let place = Place {
            slot,
            undefined,
            range,
        };
        Work {
            tally,
            panic,
            refused: None,
            rest: spent.then_some(place),
        }
    }
    /// Resets the data of a place that there is no thread for.
    ///
    /// # Safety
    ///
    /// * As for [`participate`](Job::participate).
    pub(crate) unsafe fn give_up(&self, place: &mut Place) {
        // SAFETY: the caller's promises.
        let lane = unsafe { self.request.lane(place.slot, place.undefined.take()) };
        lane.give_up();
    }
}

/// A slot, as one thread leaves it to the next.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    slot: usize,
    undefined: Option<Undefined>,
    /// What was claimed there and not run.
    range: Range<usize>,
}

impl Place {
    /// A slot that nobody has used.
    pub(crate) fn new(slot: usize) -> Self {
        Self {
            slot,
            undefined: None,
            range: 0..0,
        }
    }
}

/// What came of a thread's part in a job.
#[derive(Debug, Default)]
pub(crate) struct Work {
    tally: Tally,
    /// The text of the first panic.
    panic: Option<String>,
    /// Why a thread that must not go on has nobody in its place.
    refused: Option<String>,
    /// What such a thread has left.
    rest: Option<Place>,
}

impl Work {
    /// Nothing is done yet, and this thread must not do it.
    pub(crate) fn left(place: Place) -> Self {
        let mut work = Self::default();
        work.leave(place);
        work
    }

    /// Leaves a place for another thread.
    pub(crate) fn leave(&mut self, place: Place) {
        self.rest = Some(place);
    }

    /// Takes what is left.
    pub(crate) fn take_rest(&mut self) -> Option<Place> {
        self.rest.take()
    }

    /// Whether something is left.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.rest.is_some()
    }

    /// There is no thread for what is left.
    pub(crate) fn refuse(&mut self, why: &io::Error) {
        self.refused.get_or_insert_with(|| why.to_string());
    }

    /// Adds what came of another part.
    pub(crate) fn merge(&mut self, other: Work) {
        self.tally.merge(other.tally);
        self.panic = self.panic.take().or(other.panic);
        self.refused = self.refused.take().or(other.refused);
        self.rest = self.rest.take().or(other.rest);
    }

    /// How the rollouts ended, of which there are so many.
    pub(crate) fn result(self, nbatch: usize) -> Result<Tally, RunError> {
        match (self.panic, self.refused) {
            (Some(text), _) => Err(RunError::Panicked(text)),
            // (Another thread may have had the time for what was left.)
            (None, Some(why)) if self.tally.total() < nbatch => Err(RunError::NoThread(why)),
            _ => Ok(self.tally),
        }
    }
}

/// What the pool's state keeps of a job, under the lock.
#[derive(Debug)]
pub(crate) struct OpenJob {
    job: NonNull<Job<'static>>,
    /// Which slots are taken.
    taken: Vec<bool>,
    /// Places of threads that must not go on. Their slots are taken.
    orphans: Vec<Place>,
    /// What came of the parts of those who have left.
    work: Work,
}

// SAFETY: the job is shared between threads by design: it is Sync (a request is,
// and so are atomics), and outlives this entry, which its owner removes.
unsafe impl Send for OpenJob {}

/// A worker's part in a job.
#[derive(Debug)]
pub(crate) struct Seat {
    job: NonNull<Job<'static>>,
    place: Place,
}

impl OpenJob {
    /// An entry for `job`, whose owner has `slot`.
    pub(crate) fn new(job: &Job<'_>, slot: usize) -> Self {
        let mut taken = vec![false; job.request.ndata()];
        taken[slot] = true;
        Self {
            job: NonNull::from(job).cast(),
            taken,
            orphans: Vec::new(),
            work: Work::default(),
        }
    }

    pub(crate) fn is(&self, job: &Job<'_>) -> bool {
        self.job == NonNull::from(job).cast()
    }

    /// Takes a place: one that another thread had to leave, or, if there is work, a free
    /// slot, the preferred one if it is free. Called under the pool's lock.
    pub(crate) fn join(&mut self, preferred: usize) -> Option<Seat> {
        // SAFETY: the entry is still in the pool's state, so its owner has not
        // returned and the job is alive.
        let job = unsafe { self.job.as_ref() };
        if !job.is_welcome() {
            return None;
        }
        let place = match self.orphans.pop() {
            Some(orphan) => orphan,
            None => self.free_place(job, preferred)?,
        };
        // Relaxed: under the lock, under which the owner decides that it may go.
        job.inside.fetch_add(1, Ordering::Relaxed);
        Some(Seat {
            job: self.job,
            place,
        })
    }

    fn free_place(&mut self, job: &Job<'_>, preferred: usize) -> Option<Place> {
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
        Some(Place::new(slot))
    }

    /// Gives the seat back, with what came of it. Called under the pool's lock.
    /// Returns whether it has left a place for somebody else.
    pub(crate) fn leave(&mut self, seat: &Seat, mut work: Work) -> bool {
        let rest = work.take_rest();
        let orphaned = rest.is_some();
        match rest {
            Some(place) => self.orphans.push(place),
            None => self.taken[seat.place.slot] = false,
        }
        self.work.merge(work);
        // SAFETY: the entry is still in the pool's state, so the job is alive.
        // Release, with the Acquire of the owner, who looks without the lock first.
        // It takes the lock, and so waits for this section to end, before it
        // removes the entry and frees the job.
        unsafe { self.job.as_ref() }
            .inside
            .fetch_sub(1, Ordering::Release);
        orphaned
    }

    /// Leaves a place for somebody else. Called by the owner, under the pool's lock.
    pub(crate) fn orphan(&mut self, place: Place) {
        self.orphans.push(place);
    }

    /// Takes a place that a thread had to leave. Called by the owner, under the pool's
    /// lock.
    pub(crate) fn adopt(&mut self) -> Option<Place> {
        self.orphans.pop()
    }

    /// What came of the parts of those who have left.
    pub(crate) fn into_work(self) -> Work {
        self.work
    }

    /// Whether `seat` is a part in this job.
    pub(crate) fn owns(&self, seat: &Seat) -> bool {
        self.job == seat.job
    }
}

impl Seat {
    /// The slot of this seat.
    pub(crate) fn slot(&self) -> usize {
        self.place.slot
    }

    /// Works on the job until no rollouts are left, or this thread must not go on.
    pub(crate) fn work(&self) -> Work {
        let place = self.place.clone();
        // SAFETY: the seat counts in `inside`, which the owner waits for, so the
        // job is alive; the slot was free and is taken, and the place is taken up once,
        // here; the owner began the request before it opened the job.
        unsafe { self.job.as_ref().participate(place, &mut ()) }
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
    fn a_panic_costs_its_rollout_and_is_told() {
        struct Panics(usize);
        impl Observer for Panics {
            fn stepped(&mut self) {
                self.0 += 1;
                assert!(self.0 != 3, "the third step");
            }
        }
        with_request(|request| {
            // SAFETY: the data are used here alone, and the slot too.
            let work = unsafe {
                request.begin();
                Job::new(request, 1).participate(Place::new(0), &mut Panics(0))
            };
            assert!(work.panic.unwrap().contains("the third step"));
            // It was in the first chunk, of two rollouts; the second one was run.
            assert_eq!(work.tally.completed, 7);
        });
    }
}
