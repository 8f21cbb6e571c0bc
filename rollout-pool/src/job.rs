//! A request in flight: which rollouts are left, how it is stopped, and a thread's part in
//! it.

use std::io;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::ptr::{self, NonNull};
use std::time::Instant;

use crossbeam_utils::CachePadded;
use rollout_core::simulator::panic_text;
use rollout_core::{Condition, Ended, Flow, Observer, Request, Tally};

use crate::fork;
use crate::inside::Frame;
use crate::pool::{RunError, Shared};
use crate::sync::{AtomicU32, AtomicUsize, Event, Gauge, Ordering, Unlocked, now, planted};
use crate::ticket::{Progress, Terms};

/// A request in flight. It lives on the stack of the thread that called
/// [`Pool::run`](crate::Pool::run), or with its [`Ticket`](crate::Ticket). Either keeps it,
/// and the request, until it is done.
#[derive(Debug)]
pub(crate) struct Job {
    /// Alive until the job is done, and claimed and begun for this job.
    request: NonNull<Request<'static>>,
    /// The pool's shared state, which whoever runs the job holds.
    pool: *const Shared,
    /// Its caller runs it, and the pool's state does not name it.
    is_alone: bool,
    /// The most threads that can take part at once.
    threads: usize,
    terms: Terms,
    /// A task of the pool's runs it, and with the task it outlives the pool's end.
    of_task: bool,
    /// That of the process in which its threads are.
    generation: u32,
    /// The first rollout that nobody has claimed. Alone on its cache line, since
    /// all threads write it.
    next: CachePadded<AtomicUsize>,
    /// A `Stop` as a number. Read at each step, and written once at most.
    stop: AtomicU32,
    /// 1 once somebody has decided whether to wake workers for it.
    invited: AtomicU32,
    /// How far each slot has come; empty where nobody will ask.
    meters: Box<[CachePadded<Meter>]>,
    /// 1 when all is over and the result is there.
    done: AtomicU32,
    /// Read by whoever uses the request, and written at the end of the job's life, so that
    /// loom can tell whether the one comes before the other.
    alive: Unlocked<()>,
    /// Written before `done`, and only read after it.
    result: Unlocked<Option<Result<Tally, RunError>>>,
}

// SAFETY: a request may be shared and sent, and what threads do with it is in lanes; the
// result is written by one thread before `done`, with Release, and read after it, with
// Acquire.
unsafe impl Sync for Job {}
// SAFETY: as above; nothing in a job is tied to a thread.
unsafe impl Send for Job {}

/// How a job came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It was submitted, and can be asked how far it has come.
    Ticket,
    /// By a call that waits for it, perhaps in a task of the pool's.
    Call {
        of_task: bool,
        /// Whether the caller will ask how far it has come.
        counted: bool,
    },
}

/// Whether a job goes on.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It does.
    No = 0,
    /// It was cancelled.
    Cancelled = 1,
    /// Its time is up.
    OutOfTime = 2,
    /// No thread is left that could go on.
    NoThread = 3,
    /// This is a forked child, where nobody works on it: what the thread that forked is
    /// inside of ends as soon as it comes back. (Never written: everybody sees it by
    /// himself.)
    Forked = 4,
}

impl Stop {
    /// What its rollouts are told.
    #[inline]
    fn ended(self) -> Option<Ended> {
        match self {
            Stop::No => None,
            Stop::OutOfTime => Some(Ended::OutOfTime),
            Stop::Cancelled | Stop::NoThread | Stop::Forked => Some(Ended::Cancelled),
        }
    }
}

/// How far one slot has come: written by the thread that has it, read by anybody.
#[derive(Debug, Default)]
struct Meter {
    rollouts: Gauge,
    steps: Gauge,
}

/// Counts in a place that only one thread writes.
fn count(place: &Gauge) {
    // Relaxed: a number to look at, which publishes nothing.
    place.store(place.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// With the scheduler's own choice of chunks, a claim takes one in so many parts of
/// an equal share of what is left: large chunks first, so that the cursor is touched
/// seldom; single rollouts from the last eight of each thread on, so that threads
/// finish together. Not a tuned number.
const SHARE_PARTS: usize = 4;

impl Job {
    /// A job for a request that at most so many threads work on at once.
    ///
    /// # Safety
    ///
    /// * The request was claimed and begun for this job.
    /// * Until the job is done, it stays where it is, and nobody changes it.
    pub(crate) unsafe fn new(
        request: &Request<'_>,
        pool: &Shared,
        threads: usize,
        terms: Terms,
        kind: Kind,
    ) -> Self {
        let meters = match kind {
            Kind::Ticket | Kind::Call { counted: true, .. } => request.ndata(),
            Kind::Call { .. } => 0,
        };
        Self {
            request: NonNull::from(request).cast(),
            pool: ptr::from_ref(pool),
            is_alone: matches!(kind, Kind::Call { .. }) && threads == 1 && !pool.is_pinned(),
            threads,
            terms,
            of_task: matches!(kind, Kind::Call { of_task: true, .. }),
            generation: fork::generation(),
            next: CachePadded::new(AtomicUsize::new(0)),
            stop: AtomicU32::new(Stop::No as u32),
            invited: AtomicU32::new(0),
            meters: (0..meters).map(|_| CachePadded::default()).collect(),
            done: AtomicU32::new(0),
            alive: Unlocked::new(()),
            result: Unlocked::new(None),
        }
    }

    /// The request. Only for those who know that the job is not done.
    pub(crate) fn request(&self) -> &Request<'_> {
        self.alive.with(|_| ());
        // SAFETY: alive until the job is done, by the promise of `new`, and its threads
        // ask before that: those inside, and those that settle it.
        unsafe { self.request.as_ref() }
    }

    /// The most threads that can take part at once.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Whether its caller runs it without the pool's state naming it.
    pub(crate) fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// Whether it ends with the pool.
    pub(crate) fn ends_with_pool(&self) -> bool {
        !self.of_task
    }

    pub(crate) fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Stops the job for this reason, unless it was stopped for another one.
    pub(crate) fn stop(&self, why: Stop) {
        // Relaxed: what the threads find is a number, and what they do then is published
        // as always.
        let _ = self.stop.compare_exchange(
            Stop::No as u32,
            why as u32,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }

    /// Whether it was stopped, and why.
    #[inline]
    pub(crate) fn stopped(&self) -> Stop {
        if self.is_of_parent() {
            return Stop::Forked;
        }
        match self.stop.load(Ordering::Relaxed) {
            0 if self.is_alone && self.pool_ends() => Stop::Cancelled,
            0 => Stop::No,
            1 => Stop::Cancelled,
            2 => Stop::OutOfTime,
            _ => Stop::NoThread,
        }
    }

    /// Whether its threads are in the process that this one was forked from.
    pub(crate) fn is_of_parent(&self) -> bool {
        self.generation != fork::generation()
    }

    /// Whether the pool is being ended, for a job that it does not know of.
    fn pool_ends(&self) -> bool {
        // SAFETY: whoever runs a job holds the pool's state.
        !self.of_task && unsafe { &*self.pool }.ends()
    }

    /// Stops the job if its time is up by now.
    pub(crate) fn check_deadline(&self, now: Instant) {
        if self.terms.deadline.is_some_and(|deadline| now >= deadline) {
            self.stop(Stop::OutOfTime);
        }
    }

    /// Steps of all rollouts together.
    pub(crate) fn steps(&self) -> u64 {
        let request = self.request();
        (request.nbatch() as u64).saturating_mul(request.nstep() as u64)
    }

    /// Whether the calling thread is the first to ask: it decides whom to wake.
    pub(crate) fn invite(&self) -> bool {
        self.invited.load(Ordering::Relaxed) == 0 && self.invited.swap(1, Ordering::Relaxed) == 0
    }

    /// Whether no rollouts are left to be claimed.
    pub(crate) fn exhausted(&self) -> bool {
        self.stopped() != Stop::No || self.next.load(Ordering::Relaxed) == self.request().nbatch()
    }

    /// Whether all is over. What the job's threads wrote is visible then.
    pub(crate) fn is_done(&self) -> bool {
        // Acquire, with the Release of `finish`.
        let order = match planted("relaxed-done") {
            true => Ordering::Relaxed,
            false => Ordering::Acquire,
        };
        self.done.load(order) != 0
    }

    /// Ends the job with this result. Whoever owns it may free it at once, so this is the
    /// last that other threads do with it.
    ///
    /// # Safety
    ///
    /// * Called once, under the pool's lock, when nobody is inside.
    pub(crate) unsafe fn finish(&self, result: Result<Tally, RunError>) {
        if planted("done-before-result") {
            self.done.store(1, Ordering::Release);
        }
        // SAFETY: nobody reads it before `done`, and there is one call.
        self.result
            .with_mut(|place| unsafe { *place = Some(result) });
        self.done.store(1, Ordering::Release);
    }

    /// What has come of it, when it is done.
    pub(crate) fn result(&self) -> Option<Result<Tally, RunError>> {
        if !self.is_done() {
            return None;
        }
        // SAFETY: written before `done`, and never again.
        self.result.with(|result| unsafe { (*result).clone() })
    }

    /// How far it has come.
    pub(crate) fn progress(&self) -> Progress {
        let sum = |count: fn(&Meter) -> &Gauge| {
            let counts = self.meters.iter().map(|meter| count(meter));
            counts.map(|count| count.load(Ordering::Relaxed)).sum()
        };
        Progress {
            rollouts: sum(|meter| &meter.rollouts),
            steps: sum(|meter| &meter.steps),
        }
    }

    /// Claims the next chunk of rollouts.
    fn claim(&self) -> Option<Range<usize>> {
        let nbatch = self.request().nbatch();
        // Relaxed: a claim carries nothing but the numbers themselves. What the
        // threads write is published by the pool's lock when they leave.
        let mut start = self.next.load(Ordering::Relaxed);
        loop {
            let left = nbatch - start;
            if left == 0 || self.stopped() != Stop::No {
                return None;
            }
            let size = match self.request().chunk_size() {
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
        self.request().is_welcome()
    }

    /// Claims and runs chunks until none are left, the observer says otherwise, or an
    /// engine error forbids this thread to go on. A panic costs the rollout that it hits,
    /// which stays "not started", and its text is returned; the others are run.
    ///
    /// # Safety
    ///
    /// * The place is of this job, and this thread's alone.
    /// * The job is not done before this returns.
    pub(crate) unsafe fn participate(&self, place: Place, observer: &mut impl Observer) -> Work {
        let Place {
            slot,
            condition,
            mut range,
        } = place;
        let frame = Frame::new(self.pool, self);
        let _inside = frame.enter();
        // The time can be up while nobody is at it, or before it was opened.
        if self.terms.deadline.is_some() {
            self.check_deadline(now());
        }
        // SAFETY: the place is as it was left, and this thread's.
        let mut lane = unsafe { self.request().lane(slot, condition) };
        let mut panic = None;
        let mut paused = false;
        while self.is_welcome() && !paused {
            if let Some(why) = self.stopped().ended() {
                if lane.is_paused() {
                    // SAFETY: what is paused on this slot is this thread's.
                    unsafe { lane.end_paused(why) };
                    observer.finished();
                }
                range = 0..0;
                break;
            }
            if range.is_empty() && !lane.is_paused() {
                match self.claim() {
                    Some(claimed) => range = claimed,
                    None => break,
                }
            }
            let run = AssertUnwindSafe(|| {
                // SAFETY: a claimed range is nobody else's and is in range.
                unsafe { lane.run(&mut range, observer) }
            });
            match panic::catch_unwind(run) {
                Ok(flow) => paused = flow == Flow::Pause,
                Err(payload) => {
                    panic.get_or_insert_with(|| panic_text(&*payload).to_owned());
                }
            }
        }
        // Before the lane is left, which may try a reset: a data that even this does not
        // help is left as it is.
        let spent = !self.is_welcome();
        let (tally, condition) = lane.leave();
        let unfinished = matches!(condition, Condition::Paused { .. }) || !range.is_empty();
        let place = Place {
            slot,
            condition,
            range,
        };
        Work {
            tally,
            panic,
            refused: None,
            rest: (spent || unfinished).then_some(place),
        }
    }

    /// Ends what a place was left with, where there is no thread that could go on: resets
    /// its data, on whatever thread.
    ///
    /// # Safety
    ///
    /// * As for [`participate`](Job::participate).
    pub(crate) unsafe fn give_up(&self, place: Place) -> Work {
        // SAFETY: the caller's promises.
        let mut lane = unsafe { self.request().lane(place.slot, place.condition) };
        // SAFETY: as above.
        unsafe { lane.end_paused(self.stopped().ended().unwrap_or(Ended::Cancelled)) };
        Work {
            tally: lane.give_up(),
            ..Work::default()
        }
    }
}

#[cfg(loom)]
impl Drop for Job {
    fn drop(&mut self) {
        self.alive.with_mut(|_| ());
    }
}

/// What a thread that takes part looks at after each step and each rollout.
#[derive(Debug)]
pub(crate) struct Watch<'j> {
    job: &'j Job,
    meter: Option<&'j Meter>,
    /// When this thread is to pause.
    until: Option<Instant>,
    /// A number that changes when other work has come, and what it was: then the thread
    /// pauses between two rollouts.
    others: Option<(&'j Event, u32)>,
    /// Whether there is anything to do after a step but to count it.
    looks: bool,
    /// What the last step came to. It stays: where the kernel has no use for it, as the
    /// rollout has ended by itself, it is told again between rollouts.
    flow: Flow,
    /// Rollouts and steps, for the worker's own count.
    rollouts: u64,
    steps: u64,
    /// Steps when the last rollout had ended.
    steps_before: u64,
}

impl<'j> Watch<'j> {
    /// For the thread that has this slot.
    pub(crate) fn new(job: &'j Job, slot: usize) -> Self {
        let meter = job.meters.get(slot).map(|meter| &**meter);
        Self {
            job,
            looks: meter.is_some() || job.terms.deadline.is_some(),
            meter,
            until: None,
            others: None,
            flow: Flow::GoOn,
            rollouts: 0,
            steps: 0,
            steps_before: 0,
        }
    }

    /// Pauses at this time.
    pub(crate) fn until(self, until: Option<Instant>) -> Self {
        Self {
            until,
            looks: self.looks || until.is_some(),
            ..self
        }
    }

    /// Pauses between two rollouts when the event is no longer at this number.
    pub(crate) fn unless_others(self, event: &'j Event, epoch: u32) -> Self {
        Self {
            others: Some((event, epoch)),
            ..self
        }
    }

    pub(crate) fn rollouts(&self) -> u64 {
        self.rollouts
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// Counts a step where anybody will ask, and looks at the clock, once, where there is
    /// a time to heed.
    fn look(&mut self) {
        if let Some(meter) = self.meter {
            count(&meter.steps);
        }
        self.check_time();
    }

    fn check_time(&mut self) {
        if self.until.is_some() || self.job.terms.deadline.is_some() {
            let now = now();
            self.job.check_deadline(now);
            if self.until.is_some_and(|until| now >= until) {
                self.flow = Flow::Pause;
            }
        }
    }

    #[inline]
    fn check_stop(&mut self) -> Flow {
        if let Some(why) = self.job.stopped().ended() {
            self.flow = Flow::End(why);
        }
        self.flow
    }
}

impl Observer for Watch<'_> {
    #[inline]
    fn stepped(&mut self) -> Flow {
        self.steps += 1;
        if self.looks {
            self.look();
        }
        self.check_stop()
    }

    #[inline]
    fn finished(&mut self) -> Flow {
        self.rollouts += 1;
        if self.looks && self.steps == self.steps_before {
            // No step has looked at the clock.
            self.check_time();
        }
        self.steps_before = self.steps;
        if let Some(meter) = self.meter {
            count(&meter.rollouts);
        }
        if let Some((event, epoch)) = self.others
            && event.epoch() != epoch
        {
            self.flow = Flow::Pause;
        }
        self.check_stop()
    }
}

/// A slot, as one thread leaves it to the next.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) slot: usize,
    condition: Condition,
    /// What was claimed there and not run.
    range: Range<usize>,
}

impl Place {
    /// A slot that nobody has used.
    pub(crate) fn new(slot: usize) -> Self {
        Self {
            slot,
            condition: Condition::Ready,
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
    /// What is left for another thread, or for later.
    rest: Option<Place>,
}

impl Work {
    /// Nothing is done yet.
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

    /// Whether there was no thread for what is left.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// Adds what came of another part.
    pub(crate) fn merge(&mut self, other: Work) {
        self.tally.merge(other.tally);
        self.panic = self.panic.take().or(other.panic);
        self.refused = self.refused.take().or(other.refused);
        self.rest = self.rest.take().or(other.rest);
    }

    /// What has come of a job of so many rollouts.
    pub(crate) fn result(self, nbatch: usize, stopped: Stop) -> Result<Tally, RunError> {
        let tally = self.tally;
        let whole = tally.total() == nbatch && tally.stopped == 0;
        if let Some(text) = self.panic {
            return Err(RunError::Panicked(text));
        }
        // Whatever happened has come too late to matter.
        if whole {
            return Ok(tally);
        }
        match (self.refused, stopped) {
            (_, Stop::Cancelled) => Err(RunError::Stopped(Ended::Cancelled, tally)),
            (_, Stop::OutOfTime) => Err(RunError::Stopped(Ended::OutOfTime, tally)),
            (Some(why), _) => Err(RunError::NoThread(why, tally)),
            (None, _) => Ok(tally),
        }
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{shared, with_request};

    #[test]
    fn a_panic_costs_its_rollout_and_is_told() {
        struct Panics(usize);
        impl Observer for Panics {
            fn stepped(&mut self) -> Flow {
                self.0 += 1;
                assert!(self.0 != 3, "the third step");
                Flow::GoOn
            }
            fn finished(&mut self) -> Flow {
                Flow::GoOn
            }
        }
        with_request(|request| {
            // SAFETY: the data are used here alone, and the slot too.
            let work = unsafe {
                request.begin();
                let job = Job::new(request, &shared(), 1, Terms::default(), Kind::Ticket);
                job.participate(Place::new(0), &mut Panics(0))
            };
            assert!(work.panic.unwrap().contains("the third step"));
            // It was in the first chunk, of two rollouts; the second one was run.
            assert_eq!(work.tally.completed, 7);
        });
    }
}
