//! How a thread works on one job, and waits for it, until it is done: the caller of
//! [`Pool::run`], and whoever waits for a ticket.

use std::hint;
use std::mem;
use std::panic;
use std::time::Instant;

use rollout_core::{Flow, Observer};

use crate::inside::{self, Frame};
use crate::job::{Job, Place, Stop, Watch, Work};
use crate::pool::{AbortOnUnwind, Shared, UNKNOWN};
use crate::seat::Seat;
use crate::spawn::spawn;
use crate::state::State;
use crate::sync::{Guard, Ordering, WAIT_SPINS, now};
use crate::ticket::Pausing;
use crate::worker::{self, Identity};

/// For each sleeping worker that is woken, the steps that are left must be worth this much
/// of the caller's time: five times what a call that wakes one costs (see `worker::SPIN`
/// for the measurement), so that waking never costs more than a fifth.
const WORTH_WAKING_NANOS: u64 = 50_000;

/// Whether it is that time by now.
fn is_past(until: Option<Instant>) -> bool {
    until.is_some_and(|until| now() >= until)
}

impl Shared {
    /// Works on a job, and waits for those who do, until it is done or until this time; or
    /// until a callback of a rollout has forked, in the child.
    pub(crate) fn attend<'s>(
        &'s self,
        mut state: Guard<'s, State>,
        job: &Job,
        until: Option<Instant>,
    ) {
        // The system has refused a thread in place of this one.
        let mut refused = false;
        let mut has_spun = false;
        while !job.is_done() {
            // Nobody else has the time for what is left, and nobody will.
            let last_resort =
                refused && state.open_job(job).inside() == 0 && state.has_no_worker(self.nthread);
            if last_resort {
                job.stop(Stop::NoThread);
            }
            if (!refused || last_resort) && self.may_take_part(&state) {
                let preferred = worker::preferred_slot();
                if let Some(seat) = state.open_job(job).join(preferred) {
                    drop(state);
                    let work = if last_resort {
                        // SAFETY: the seat is this thread's.
                        unsafe { give_up(&seat) }
                    } else {
                        // SAFETY: as above.
                        unsafe { self.drive(seat.job(), seat.place(), until) }
                    };
                    if self.is_of_parent() {
                        return;
                    }
                    refused |= work.is_refused();
                    state = self.leave(self.state.lock(), seat, work);
                    if is_past(until) {
                        return;
                    }
                    has_spun = false;
                    continue;
                }
            }
            if refused && state.settle(job) {
                self.tell_waiters(state);
                return;
            }
            if !has_spun {
                // A helper's last chunk is often about to end.
                drop(state);
                for _ in 0..WAIT_SPINS {
                    if job.is_done() {
                        return;
                    }
                    hint::spin_loop();
                }
                has_spun = true;
                state = self.state.lock();
                continue;
            }
            if is_past(until) {
                return;
            }
            let times = [
                until,
                job.terms().deadline.filter(|_| job.stopped() == Stop::No),
            ];
            let next = times.into_iter().flatten().min();
            state = self.sleep_until_told(state, next);
            if !job.is_done() {
                job.check_deadline(now());
                if state.settle(job) {
                    state = self.tell_waiters(state);
                }
            }
        }
    }

    /// Stops a job for this reason. What others have left of it is ended here.
    pub(crate) fn stop(&self, job: &Job, why: Stop) {
        let bomb = AbortOnUnwind;
        self.stop_and_settle(job, why);
        mem::forget(bomb);
    }

    fn stop_and_settle(&self, job: &Job, why: Stop) {
        if self.is_of_parent() {
            return;
        }
        job.stop(why);
        let mut state = self.state.lock();
        while !job.is_done() {
            if state.settle(job) {
                self.tell_waiters(state);
                return;
            }
            // (On a thread that is welcome, if there is one.)
            let here = job.is_welcome() || state.has_no_worker(self.nthread);
            let Some(seat) = here.then(|| state.open_job(job).adopt()).flatten() else {
                return;
            };
            drop(state);
            // SAFETY: the seat is this thread's.
            let work = unsafe { end_left(&seat) };
            if self.is_of_parent() {
                return;
            }
            state = self.leave(self.state.lock(), seat, work);
        }
    }

    /// Stops a job whose time is up.
    pub(crate) fn check_deadline(&self, job: &Job) {
        if job.terms().deadline.is_some_and(|d| now() >= d) {
            self.stop(job, Stop::OutOfTime);
        }
    }

    /// Whether the calling thread may work on a request that it waits for.
    fn may_take_part(&self, state: &State) -> bool {
        // (Threads of a list of CPUs do all the work, as long as there are any.)
        !self.is_pinned() || worker::is_worker_of(self) || state.has_no_worker(self.nthread)
    }

    /// Gives a seat back. Whoever waits is told when the job is done, or when there is
    /// something left that they could take, and so are workers.
    pub(crate) fn leave<'s>(
        &'s self,
        mut state: Guard<'s, State>,
        seat: Seat,
        work: Work,
    ) -> Guard<'s, State> {
        let left = state.leave(seat, work);
        if left.unfinished {
            // (Not told to those who are at work if a worker has left for other work: they
            // would all leave in turn. It looks again by itself.)
            match worker::is_worker_of(self) {
                true => self.work.advance(),
                false => self.announce(),
            }
            self.wake_workers(state, 1);
            state = self.state.lock();
        }
        if left.unfinished || left.done {
            state = self.tell_waiters(state);
        }
        state
    }

    /// Runs a job that nobody else can join, on this thread. Returns what has come of it.
    ///
    /// # Safety
    ///
    /// * The job was not opened, and nobody else knows of it.
    pub(crate) unsafe fn run_alone(&self, job: &Job, pausing: &mut Pausing<'_>) -> Work {
        let slot = worker::preferred_slot();
        let slot = if slot < job.request().ndata() {
            slot
        } else {
            0
        };
        let mut place = Place::new(slot);
        let mut work = Work::default();
        loop {
            let until = pausing.next();
            // SAFETY: the place is new or as it was left, and nobody else has one.
            work.merge(unsafe { self.drive(job, place, until) });
            let rest = match work.take_rest() {
                Some(rest) => rest,
                None if job.exhausted() => break,
                // It has paused between two claims.
                None => Place::new(slot),
            };
            if self.is_of_parent() {
                break;
            }
            if work.is_refused() {
                job.stop(Stop::NoThread);
                // SAFETY: as it was left, by this thread.
                work.merge(unsafe { job.give_up(rest) });
                break;
            }
            if !pausing.pause(job) {
                job.stop(Stop::Cancelled);
            }
            place = rest;
        }
        work
    }

    /// Works on a job: in this thread, and once an engine error forbids that, in others,
    /// one after the other, in its place.
    ///
    /// # Safety
    ///
    /// * The place is of this job, and this thread's alone; the thread counts as inside.
    unsafe fn drive(&self, job: &Job, place: Place, until: Option<Instant>) -> Work {
        worker::remember_slot(place.slot);
        let mut work = if job.is_welcome() {
            // SAFETY: the caller's promise.
            unsafe { self.take_part(job, place, until) }
        } else {
            // To start a thread takes longer than to wake one.
            if job.threads() > 1 && job.invite() {
                self.invite(job, u64::MAX);
            }
            Work::left(place)
        };
        while !job.is_welcome()
            && !self.is_of_parent()
            && let Some(rest) = work.take_rest()
        {
            let place = rest.clone();
            let caller = Caller::new();
            let stand_in = move || {
                caller.assume();
                worker::remember_slot(place.slot);
                let mut watch = Watch::new(job, place.slot).until(until);
                // SAFETY: the caller's promise, and this thread waits.
                unsafe { job.participate(place, &mut watch) }
            };
            // SAFETY: what the thread borrows outlives it, as it is waited for here.
            match unsafe { spawn("rollout-caller".to_owned(), stand_in) } {
                Ok(thread) => match thread.join() {
                    Ok(more) => work.merge(more),
                    Err(payload) => panic::resume_unwind(payload),
                },
                Err(why) => {
                    work.refuse(&why);
                    work.leave(rest);
                    break;
                }
            }
            // However little time there is, each call makes a step.
            if is_past(until) {
                break;
            }
        }
        work
    }

    /// Wakes as many workers as can join a job, which this thread is inside of, but at most
    /// so many.
    fn invite(&self, job: &Job, most: u64) {
        if self.is_of_parent() {
            return;
        }
        let mut state = self.state.lock();
        let inside = state.open_job(job).inside();
        let wanted = job.threads().saturating_sub(inside);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        self.wake_workers(state, wanted.min(most));
    }

    /// Works on a job in this thread. The first to do so decides whether to wake workers.
    ///
    /// # Safety
    ///
    /// * The place is of this job, and this thread's alone; the thread counts as inside.
    unsafe fn take_part(&self, job: &Job, place: Place, until: Option<Instant>) -> Work {
        let watch = Watch::new(job, place.slot).until(until);
        let alone = self.nthread == 0 || job.threads() == 1;
        if alone || !job.invite() {
            let mut watch = watch;
            // SAFETY: the caller's promise.
            return unsafe { job.participate(place, &mut watch) };
        }
        // What a step took the last time is a first guess; the first step corrects it. A
        // pool that knows nothing yet wakes its workers.
        let guess = self.step_nanos.load(Ordering::Relaxed);
        let invited = guess.saturating_mul(job.steps()) / WORTH_WAKING_NANOS;
        if invited > 0 {
            self.invite(job, invited);
        }
        let mut invitation = Invitation {
            shared: self,
            watch,
            job,
            invited,
            // What it takes to wake somebody is not part of the step.
            start: now(),
            first: true,
        };
        // SAFETY: the caller's promise.
        let work = unsafe { job.participate(place, &mut invitation) };
        if invitation.first && guess == UNKNOWN {
            // The others were faster. The next time they are woken later.
            self.step_nanos.store(0, Ordering::Relaxed);
        }
        work
    }
}

/// Who a thread is, for another one that stands in for it while it waits.
struct Caller {
    identity: Identity,
    inside: *const Frame,
}

// SAFETY: the frames live as long as the caller waits.
unsafe impl Send for Caller {}

impl Caller {
    fn new() -> Self {
        Self {
            identity: Identity::get(),
            inside: inside::innermost(),
        }
    }

    fn assume(self) {
        self.identity.assume();
        inside::assume(self.inside);
    }
}

/// Ends what a seat was left with, where there is no thread that could go on.
///
/// # Safety
///
/// * The seat is this thread's.
unsafe fn give_up(seat: &Seat) -> Work {
    // SAFETY: the place is the seat's.
    unsafe { seat.job().give_up(seat.place()) }
}

/// Ends what a seat of a job that was stopped was left with, in this thread.
///
/// # Safety
///
/// * The seat is this thread's.
pub(crate) unsafe fn end_left(seat: &Seat) -> Work {
    let job = seat.job();
    if !job.is_welcome() {
        // SAFETY: the seat is this thread's.
        return unsafe { give_up(seat) };
    }
    let mut watch = Watch::new(job, seat.slot());
    // SAFETY: as above.
    unsafe { job.participate(seat.place(), &mut watch) }
}

/// Measures the caller's first step, and decides whether waking workers is worth it.
///
/// A worker that still spins joins without being asked, at no cost. To wake a
/// sleeping one costs the caller a system call, which a small request does not earn
/// back.
struct Invitation<'s> {
    shared: &'s Shared,
    watch: Watch<'s>,
    job: &'s Job,
    /// How many workers have been asked already.
    invited: u64,
    start: Instant,
    /// The first step is still to come.
    first: bool,
}

impl Observer for Invitation<'_> {
    #[inline]
    fn stepped(&mut self) -> Flow {
        if self.first {
            self.first = false;
            self.measured();
        }
        self.watch.stepped()
    }

    #[inline]
    fn finished(&mut self) -> Flow {
        self.watch.finished()
    }
}

impl Invitation<'_> {
    #[cold]
    fn measured(&self) {
        let nanos = u64::try_from((now() - self.start).as_nanos()).unwrap_or(u64::MAX);
        let guess = self.shared.step_nanos.load(Ordering::Relaxed);
        // Those who were woken may have taken this thread's CPU from it, and then a step
        // seems longer than it is, which would wake them the next time too.
        if self.invited == 0 || nanos < guess {
            self.shared.step_nanos.store(nanos, Ordering::Relaxed);
        }
        let worth = nanos.saturating_mul(self.job.steps() - 1) / WORTH_WAKING_NANOS;
        if worth > self.invited {
            self.shared.invite(self.job, worth - self.invited);
        }
    }
}
