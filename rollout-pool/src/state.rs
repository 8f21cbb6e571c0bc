//! What the pool's lock protects.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::fmt;

use crate::group::Task;
use crate::job::{Job, Stop, Work};
use crate::seat::{OpenJob, Seat};

/// What the lock protects.
#[derive(Default)]
pub(crate) struct State {
    /// Tasks that nobody has begun, oldest first.
    pub(crate) tasks: VecDeque<Task>,
    /// Requests in flight, oldest first.
    jobs: Vec<OpenJob>,
    /// Workers that look out for work without sleeping.
    pub(crate) spinning: usize,
    /// Workers that sleep, or are about to, or have been woken but not yet run.
    pub(crate) sleeping: usize,
    /// Threads that sleep on `done`, or are about to.
    pub(crate) waiting: usize,
    /// Workers that must not run rollouts any more, and that the system has refused a
    /// thread for.
    pub(crate) spent: usize,
    /// The pool is being ended.
    pub(crate) stopping: bool,
    /// Somebody waits for the threads to end, or has.
    pub(crate) joining: bool,
    /// They have ended.
    pub(crate) ended: bool,
    /// Workers that have ended with it, and that nobody comes after.
    pub(crate) gone: usize,
}

/// What a thread has left behind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    /// Something that another thread could do now: a place, or rollouts that nobody has
    /// claimed.
    pub(crate) unfinished: bool,
    /// The job is done, and may be gone.
    pub(crate) done: bool,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("tasks", &self.tasks.len())
            .field("jobs", &self.jobs)
            .finish_non_exhaustive()
    }
}

impl State {
    /// Adds a job. (One that has nothing to do is done at once.)
    pub(crate) fn open(&mut self, job: &Job, at_once: bool) {
        if self.stopping && job.ends_with_pool() {
            job.stop(Stop::Cancelled);
        }
        self.jobs.push(OpenJob::new(job, at_once));
        self.settle_entry(self.jobs.len() - 1);
    }

    /// The entry of a job that is not done.
    pub(crate) fn open_job(&mut self, job: &Job) -> &mut OpenJob {
        let entry = self.jobs.iter_mut().find(|open| open.is(job));
        entry.expect("the entry of a job stays until it is done")
    }

    /// Takes a seat: in a request of the highest priority that has work and a place left,
    /// among these in one with the fewest threads, among these in the oldest.
    pub(crate) fn join(&mut self, preferred_slot: usize) -> Option<Seat> {
        let joinable = self.jobs.iter_mut().filter(|open| open.is_joinable());
        joinable
            .min_by_key(|open| (Reverse(open.job().terms().priority), open.inside()))?
            .join(preferred_slot)
    }

    /// Gives a seat back.
    pub(crate) fn leave(&mut self, seat: Seat, work: Work) -> Left {
        let entry = self.jobs.iter().position(|open| open.owns(&seat));
        let entry = entry.expect("a job is not done while anybody is inside");
        let unfinished = self.jobs[entry].leave(seat, work);
        let done = self.settle_entry(entry);
        Left { unfinished, done }
    }

    /// Ends a job that is not done yet, if it is over. Returns whether it was.
    pub(crate) fn settle(&mut self, job: &Job) -> bool {
        let entry = self.jobs.iter().position(|open| open.is(job));
        self.settle_entry(entry.expect("the entry of a job stays until it is done"))
    }

    fn settle_entry(&mut self, entry: usize) -> bool {
        let over = self.jobs[entry].is_over();
        if over {
            self.jobs.remove(entry).finish();
        }
        over
    }

    /// Cancels all requests, and ends those that are over by that.
    pub(crate) fn cancel_all(&mut self) {
        for entry in (0..self.jobs.len()).rev() {
            let job = self.jobs[entry].job();
            if job.ends_with_pool() {
                job.stop(Stop::Cancelled);
                self.settle_entry(entry);
            }
        }
    }

    /// Takes what was left of any request, whoever may go on with it.
    pub(crate) fn adopt(&mut self) -> Option<Seat> {
        self.jobs.iter_mut().find_map(OpenJob::adopt)
    }

    /// Whether there is something that a sleeping worker should do: a task, or a place in a
    /// request that nobody has to begin but the workers. (One that is awake may have been
    /// counted on for several.)
    pub(crate) fn wants_workers(&self) -> bool {
        !self.tasks.is_empty() || self.jobs.iter().any(OpenJob::wants_workers)
    }

    /// Whether no worker, of so many, can run rollouts, now or later.
    pub(crate) fn has_no_worker(&self, nthread: usize) -> bool {
        self.spent + self.gone >= nthread
    }

    /// Whether a thread is inside a request.
    pub(crate) fn is_busy(&self) -> bool {
        self.jobs.iter().any(|open| open.inside() > 0)
    }
}
