//! What the pool's state keeps of a job: who may join it, and what was left.

use std::ptr::NonNull;

use crate::busy;
use crate::job::{Job, Place, Work};
use crate::sync::planted;

/// An entry of the pool's state, which is removed when the job is done.
#[derive(Debug)]
pub(crate) struct OpenJob {
    /// Alive until the job is done.
    job: NonNull<Job>,
    /// The workers begin with it, and not its caller.
    at_once: bool,
    /// Threads inside.
    inside: usize,
    /// Which slots are taken.
    taken: Vec<bool>,
    /// Places that were left with something undone. Their slots are taken.
    orphans: Vec<Place>,
    /// What came of the parts of those who have left.
    work: Work,
}

// SAFETY: the job is shared between threads by design: it is Sync, and outlives this entry,
// which is removed before the job is done.
unsafe impl Send for OpenJob {}

/// A thread's part in a job. It counts as inside until it is given back.
#[derive(Debug)]
pub(crate) struct Seat {
    job: NonNull<Job>,
    place: Place,
}

impl OpenJob {
    pub(crate) fn new(job: &Job, at_once: bool) -> Self {
        Self {
            job: NonNull::from(job),
            at_once,
            inside: 0,
            taken: vec![false; job.request().ndata()],
            orphans: Vec::new(),
            work: Work::default(),
        }
    }

    pub(crate) fn is(&self, job: &Job) -> bool {
        self.job == NonNull::from(job)
    }

    pub(crate) fn owns(&self, seat: &Seat) -> bool {
        self.job == seat.job
    }

    pub(crate) fn job(&self) -> &Job {
        // SAFETY: the entry is still in the pool's state, so the job is alive.
        unsafe { self.job.as_ref() }
    }

    pub(crate) fn inside(&self) -> usize {
        self.inside
    }

    /// Whether the calling thread finds something to do here.
    pub(crate) fn is_joinable(&self) -> bool {
        let job = self.job();
        let free = !job.exhausted() && self.inside + self.orphans.len() < job.threads();
        (free || !self.orphans.is_empty()) && job.is_welcome()
    }

    /// Whether workers that sleep should come.
    pub(crate) fn wants_workers(&self) -> bool {
        self.at_once && self.is_joinable()
    }

    /// Takes a place: one that another thread has left, or, if there is work, a free slot,
    /// the preferred one if it is free. Whether the calling thread is welcome is not asked.
    pub(crate) fn join(&mut self, preferred: usize) -> Option<Seat> {
        if let Some(seat) = self.adopt() {
            return Some(seat);
        }
        let place = self.free_place(preferred)?;
        self.inside += 1;
        Some(Seat {
            job: self.job,
            place,
        })
    }

    fn free_place(&mut self, preferred: usize) -> Option<Place> {
        // (The rollouts may be claimed by others before this thread gets to it: then it
        // leaves again.)
        if self.job().exhausted() || self.inside >= self.job().threads() {
            return None;
        }
        #[cfg(all(test, not(loom)))]
        crate::tests::dawdle();
        let slot = match self.taken.get(preferred) {
            Some(false) => preferred,
            _ => self.taken.iter().position(|taken| !taken)?,
        };
        self.taken[slot] = true;
        Some(Place::new(slot))
    }

    /// Gives a seat back, with what came of it. Returns whether something is left that
    /// another thread could do, or a later one: a place, of this thread or of one before it,
    /// which may not go on and waits until nobody is inside who could (`Shared::attend`); or
    /// rollouts that nobody has claimed.
    pub(crate) fn leave(&mut self, seat: Seat, mut work: Work) -> bool {
        self.inside -= 1;
        match work.take_rest() {
            Some(place) => self.orphans.push(place),
            None => self.taken[seat.place.slot] = false,
        }
        self.work.merge(work);
        !self.orphans.is_empty() || !self.job().exhausted()
    }

    /// Takes a place that another thread has left.
    pub(crate) fn adopt(&mut self) -> Option<Seat> {
        let place = self.orphans.pop()?;
        self.inside += 1;
        Some(Seat {
            job: self.job,
            place,
        })
    }

    /// Whether nothing is left to be done and nobody does anything.
    pub(crate) fn is_over(&self) -> bool {
        self.inside == 0 && self.orphans.is_empty() && self.job().exhausted()
    }

    /// Ends the job, which may be gone afterwards.
    pub(crate) fn finish(self) {
        // SAFETY: alive until the job is done, which it is at the end of this.
        let job = unsafe { self.job.as_ref() };
        let nbatch = job.request().nbatch();
        busy::release(job.request());
        let result = self.work.result(nbatch, job.stopped());
        // SAFETY: once, as the entry is consumed, and under the pool's lock; nobody is
        // inside (`is_over`).
        unsafe { job.finish(result) };
        if planted("touch-after-done") {
            job.request();
        }
    }
}

impl Seat {
    pub(crate) fn slot(&self) -> usize {
        self.place.slot
    }

    pub(crate) fn place(&self) -> Place {
        self.place.clone()
    }

    /// The job, which is not done before the seat is given back.
    pub(crate) fn job(&self) -> &Job {
        // SAFETY: the seat counts as inside, so the job is not over.
        unsafe { self.job.as_ref() }
    }
}
