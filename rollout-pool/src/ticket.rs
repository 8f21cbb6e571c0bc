//! A request that was handed to a pool.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rollout_core::{Request, Tally};

use crate::busy::Claim;
use crate::inside;
use crate::job::{Job, Kind, Stop};
use crate::pool::{AbortOnUnwind, Inner, Pool, RunError, Shared};
use crate::sync::now;

/// When a request is to be done, and before which others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// The request ends at this time: each thread ends its rollout after the step that it
    /// is in, and begins no other one.
    pub deadline: Option<Instant>,
    /// Threads take requests of a higher priority first, and leave others for them when
    /// they have ended a rollout. Among equals they go where the fewest are.
    pub priority: i32,
}

/// Who begins with a request that is submitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// The pool's threads, at once.
    #[default]
    AtOnce,
    /// The caller, who attends to the ticket next ([`Ticket::wait`], [`Ticket::wait_timeout`]):
    /// threads are woken when that is worth it.
    Attended,
}

/// What a caller does who comes back from its request now and then
/// ([`Pool::run_with_pauses`]).
pub struct Pauses<'a> {
    /// How long it works, or waits, at a time.
    pub every: Duration,
    /// Whether it wants to know how far the request has come. Otherwise it is told zeros,
    /// which saves some memory.
    pub counted: bool,
    /// Called in each pause, with nothing locked; others go on meanwhile. If `counted`, also
    /// when all is over, unless that was by its doing. If it panics the request is
    /// cancelled, and the panic goes on when it has ended.
    pub pause: &'a mut dyn FnMut(Progress) -> Next,
}

/// What comes after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The request goes on.
    GoOn,
    /// It is cancelled. There are no more pauses.
    Cancel,
}

/// The pauses of a call, up to one that has ended it.
pub(crate) struct Pausing<'a> {
    pauses: Option<Pauses<'a>>,
    /// What the last one has panicked with.
    panic: Option<Box<dyn Any + Send>>,
}

impl<'a> Pausing<'a> {
    pub(crate) fn new(pauses: Option<Pauses<'a>>) -> Self {
        Self {
            pauses,
            panic: None,
        }
    }

    /// Whether the caller will ask how far the request has come.
    pub(crate) fn counts(&self) -> bool {
        self.pauses.as_ref().is_some_and(|pauses| pauses.counted)
    }

    /// When the next one is due. (A time that the clock cannot tell does not come.)
    pub(crate) fn next(&self) -> Option<Instant> {
        now().checked_add(self.pauses.as_ref()?.every)
    }

    /// Whether the request goes on after a pause. A panic of the caller's cancels it, and
    /// goes on when it has ended.
    pub(crate) fn pause(&mut self, job: &Job) -> bool {
        let Some(pauses) = &mut self.pauses else {
            return true;
        };
        let pause = AssertUnwindSafe(|| (pauses.pause)(job.progress()));
        match panic::catch_unwind(pause) {
            Ok(Next::GoOn) => return true,
            Ok(Next::Cancel) => {}
            Err(payload) => self.panic = Some(payload),
        }
        self.pauses = None;
        false
    }

    /// All is over.
    pub(crate) fn finish(self, job: &Job) {
        if let Some(payload) = self.panic {
            panic::resume_unwind(payload);
        }
        if let Some(pauses) = self.pauses
            && pauses.counted
        {
            (pauses.pause)(job.progress());
        }
    }
}

impl fmt::Debug for Pauses<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pauses")
            .field("every", &self.every)
            .field("counted", &self.counted)
            .finish_non_exhaustive()
    }
}

/// How far a request has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Rollouts that were begun and have ended. (Of a request that was cancelled or out of
    /// time these are not all.)
    pub rollouts: u64,
    /// Steps that were made, those that failed included.
    pub steps: u64,
}

/// A request in flight.
///
/// The pool's threads work on it until it is done; its result stays here. Any number of
/// threads may use the ticket at once. Dropping it cancels the request and waits for its
/// end; in a callback of its own rollouts it cannot wait, and the request is leaked.
pub struct Ticket<'r> {
    flight: Arc<Flight<'r>>,
}

/// What a ticket shares with its scope.
struct Flight<'r> {
    shared: Arc<Shared>,
    job: Job,
    /// What the job runs, from a box.
    request: NonNull<Request<'r>>,
}

// SAFETY: a job and a request may be shared and sent.
unsafe impl Send for Flight<'_> {}
// SAFETY: as above.
unsafe impl Sync for Flight<'_> {}

/// Claims a request's data and readies it for a run.
///
/// # Safety
///
/// * The request stays where it is, and nobody else uses it, until the claim has ended.
pub(crate) unsafe fn begin(request: &mut Request<'_>) -> Result<Claim, RunError> {
    // SAFETY: the caller's promise.
    let claim = unsafe { Claim::new(request) }.map_err(|slot| RunError::Busy { slot })?;
    for &slot in claim.torn() {
        // SAFETY: the data are claimed: no other request uses them, and by the promise of the
        // request's Simulation nobody else does.
        unsafe { request.reset_data(slot) };
    }
    // SAFETY: as above.
    unsafe { request.begin() };
    // (Both call the engine, and so the host.)
    if !claim.is_current() {
        return Err(RunError::Forked);
    }
    Ok(claim)
}

impl<'r> Flight<'r> {
    fn start(
        pool: &Inner,
        request: Request<'r>,
        terms: Terms,
        start: Start,
    ) -> Result<Arc<Self>, RunError> {
        let mut request = Box::new(request);
        // SAFETY: the box keeps the request where it is; where this fails, the claim ends
        // before the box goes. Later the flight keeps it until the job is done.
        let claim = unsafe { begin(&mut request)? };
        let shared = pool.threads()?;
        let threads = shared.threads_for(&request);
        let request = NonNull::from(Box::leak(request));
        // SAFETY: the request was just leaked, and is claimed and begun; the flight keeps it
        // until the job is done.
        let job = unsafe { Job::new(request.as_ref(), shared, threads, terms, Kind::Ticket) };
        let flight = Arc::new(Self {
            shared: Arc::clone(shared),
            job,
            request,
        });
        let bomb = AbortOnUnwind;
        claim.keep();
        drop(shared.open(&flight.job, start));
        mem::forget(bomb);
        Ok(flight)
    }

    /// Whether the job is the parent's, who was at it when this process was forked.
    fn is_of_parent(&self) -> bool {
        self.shared.is_of_parent() && !self.job.is_done()
    }

    /// Cancels the job and waits for its end. In a forked child, where the flight stays as
    /// it is for ever, there is nothing to be done.
    fn end(self: &Arc<Self>) {
        if self.shared.is_of_parent() {
            mem::forget(Arc::clone(self));
            return;
        }
        let bomb = AbortOnUnwind;
        self.shared.stop(&self.job, Stop::Cancelled);
        self.shared
            .attend(self.shared.state.lock(), &self.job, None);
        mem::forget(bomb);
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        // SAFETY: leaked in `start`; the job is done, as whoever drops the last reference
        // has called `end`.
        drop(unsafe { Box::from_raw(self.request.as_ptr()) });
    }
}

impl Pool {
    /// Hands a request to the pool and returns. Its threads begin at once; with 0 threads
    /// the rollouts run inside [`Ticket::wait`] and [`Ticket::wait_timeout`].
    ///
    /// # Errors
    ///
    /// [`RunError::Busy`]; in a forked child also [`RunError::NoThreads`] and
    /// [`RunError::Forked`].
    ///
    /// # Safety
    ///
    /// * The ticket is dropped, and not leaked, before `'r` ends, and not in a callback of
    ///   its own rollouts, where it cannot wait for them. ([`Pool::scope`] sees to that by
    ///   itself.)
    pub unsafe fn submit<'r>(
        &self,
        request: Request<'r>,
        terms: Terms,
        start: Start,
    ) -> Result<Ticket<'r>, RunError> {
        let flight = Flight::start(self.inner(), request, terms, start)?;
        Ok(Ticket { flight })
    }

    /// Runs `body`, which can submit requests through the scope. Those that are still in
    /// flight at its end are cancelled and waited for, so that a request may borrow
    /// anything that outlives this call.
    pub fn scope<'env, R>(
        &self,
        body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
    ) -> R {
        // Dropped last, also when `body` panics.
        let flights = Flights::default();
        let scope = Scope {
            pool: Arc::clone(self.inner()),
            flights: Rc::clone(&flights.0),
            _scope: PhantomData,
            _env: PhantomData,
        };
        body(&scope)
    }
}

/// The flights of a scope whose tickets may have been leaked. Ends them when dropped, which
/// is before the scope's lifetime ends; it is not part of their type, which would then have
/// to outlive itself.
#[derive(Default)]
struct Flights(Rc<RefCell<Vec<Arc<Flight<'static>>>>>);

impl Drop for Flights {
    fn drop(&mut self) {
        for flight in self.0.take() {
            flight.end();
        }
    }
}

/// See [`Pool::scope`].
pub struct Scope<'scope, 'env: 'scope> {
    pool: Arc<Inner>,
    flights: Rc<RefCell<Vec<Arc<Flight<'static>>>>>,
    _scope: PhantomData<&'scope mut &'scope ()>,
    _env: PhantomData<&'env mut &'env ()>,
}

impl<'scope> Scope<'scope, '_> {
    /// As [`Pool::submit`], with nothing to promise.
    ///
    /// # Errors
    ///
    /// [`RunError::Busy`]; in a forked child also [`RunError::NoThreads`] and
    /// [`RunError::Forked`].
    pub fn submit(
        &'scope self,
        request: Request<'scope>,
        terms: Terms,
        start: Start,
    ) -> Result<Ticket<'scope>, RunError> {
        let flight = Flight::start(&self.pool, request, terms, start)?;
        // SAFETY: the scope ends the flight, and drops this, before 'scope ends.
        let kept = unsafe {
            mem::transmute::<Arc<Flight<'scope>>, Arc<Flight<'static>>>(Arc::clone(&flight))
        };
        let mut flights = self.flights.borrow_mut();
        flights.retain(|flight| !flight.job.is_done() || flight.shared.is_of_parent());
        flights.push(kept);
        Ok(Ticket { flight })
    }
}

impl Ticket<'_> {
    /// Whether the request is done. Then nobody uses its data and arrays any more, and
    /// what was written is visible to the caller.
    pub fn is_done(&self) -> bool {
        let Flight { shared, job, .. } = &*self.flight;
        if self.is_of_parent() {
            return true;
        }
        if job.terms().deadline.is_some() && !job.is_done() {
            shared.check_deadline(job);
        }
        job.is_done()
    }

    /// Whether the ticket belongs to the process that this one was forked from, in which the
    /// request was in flight then. Nobody works on it here, and nothing that is done with
    /// the ticket here has an effect there: [`wait`](Ticket::wait) returns
    /// [`RunError::Forked`], [`progress`](Ticket::progress) is what it was, and nothing is
    /// waited for, and nothing freed, where the ticket is dropped. (A request that was done
    /// before is done here too.)
    pub fn is_of_parent(&self) -> bool {
        self.flight.is_of_parent()
    }

    /// How far the request has come.
    pub fn progress(&self) -> Progress {
        self.flight.job.progress()
    }

    /// Number of rollouts of the request.
    pub fn nbatch(&self) -> usize {
        self.request().nbatch()
    }

    /// Steps of each rollout of the request.
    pub fn nstep(&self) -> usize {
        self.request().nstep()
    }

    fn request(&self) -> &Request<'_> {
        // SAFETY: leaked in `start`, and there until the flight is dropped; nobody borrows
        // it exclusively any more.
        unsafe { self.flight.request.as_ref() }
    }

    /// Ends the request: each thread ends its rollout after the step that it is in, and
    /// begins no other one. Returns at once. Whether there was anything left to end is in
    /// the result.
    pub fn cancel(&self) {
        self.flight.shared.stop(&self.flight.job, Stop::Cancelled);
    }

    /// Waits until the request is done, and works on it meanwhile if one of its data is
    /// free. (In a pool with a list of CPUs only its threads work.) Returns how the
    /// rollouts ended, every time that it is called.
    ///
    /// # Errors
    ///
    /// [`RunError`].
    pub fn wait(&self) -> Result<Tally, RunError> {
        self.attend(None)?
            .expect("without a time to return at, it returns when it is done")
    }

    /// As [`wait`](Ticket::wait), but returns `None` if the request is not done in time. It
    /// goes on then, except that with 0 threads it only goes on in the next such call.
    ///
    /// # Errors
    ///
    /// [`RunError`].
    pub fn wait_timeout(&self, timeout: Duration) -> Option<Result<Tally, RunError>> {
        // A time that the clock cannot tell does not come.
        match self.attend(now().checked_add(timeout)) {
            Ok(result) => result,
            Err(error) => Some(Err(error)),
        }
    }

    /// Cancels the request and waits for its end, which dropping the ticket does too. Then
    /// nobody uses its data and arrays any more.
    ///
    /// # Errors
    ///
    /// [`RunError::WouldDeadlock`] in a callback of the request's own rollouts; then nothing
    /// has happened.
    pub fn end(&self) -> Result<(), RunError> {
        if inside::is_inside_job(&self.flight.job) {
            return Err(RunError::WouldDeadlock);
        }
        self.flight.end();
        Ok(())
    }

    fn attend(&self, until: Option<Instant>) -> Result<Option<Result<Tally, RunError>>, RunError> {
        let Flight { shared, job, .. } = &*self.flight;
        if let Some(result) = job.result() {
            return Ok(Some(result));
        }
        if self.is_of_parent() {
            return Err(RunError::Forked);
        }
        if shared.is_inside() {
            return Err(RunError::WouldDeadlock);
        }
        let bomb = AbortOnUnwind;
        shared.attend(shared.state.lock(), job, until);
        mem::forget(bomb);
        if self.is_of_parent() {
            return Err(RunError::Forked);
        }
        Ok(job.result())
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let flight = &self.flight;
        if inside::is_inside_job(&flight.job) {
            // A callback of its own rollouts drops it: nobody can wait for those here. They
            // end, and then nothing uses the request, but who has it cannot be told.
            flight.shared.stop(&flight.job, Stop::Cancelled);
            mem::forget(Arc::clone(flight));
            return;
        }
        flight.end();
    }
}

impl fmt::Debug for Ticket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("done", &self.flight.job.is_done())
            .field("progress", &self.progress())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").finish_non_exhaustive()
    }
}
