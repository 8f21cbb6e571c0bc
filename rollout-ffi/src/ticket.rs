//! Tickets: requests that a host hands to a pool and comes back to.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use rollout_core::Engine;
use rollout_core::array::check_pointer;
use rollout_pool::{RunError, Ticket};

use crate::error::{Failure, RolloutError, RolloutStatus, boundary};
use crate::pool::{RolloutPool, check_out, handle};
use crate::request::{RolloutRequest, checked, terms};
use crate::sized;

/// A request in flight, and later its result. The host owns it: made by `rollout_submit`,
/// ended by `rollout_ticket_release`. Between the two, any number of threads may use it at
/// once, also when its pool has been destroyed.
///
/// The request is done when all of its rollouts have ended, or when it was ended early and
/// each thread has ended the step that it was in. From then on the library does not use
/// its arrays, models and data.
// Each call keeps the ticket for itself, so that it may be released meanwhile.
#[derive(Debug)]
pub struct RolloutTicket(Arc<Flight>);

/// What a ticket's handle stands for.
#[derive(Debug)]
struct Flight {
    /// Before `_engine`, since fields are dropped in this order: dropped, it uses the table
    /// no more.
    ticket: Ticket<'static>,
    _engine: Table,
}

/// A copy of an engine table, in a place of its own: others keep its address.
#[derive(Debug)]
struct Table(NonNull<Engine>);

// SAFETY: a table is only read, and its functions may be called from any thread, as its
// host has promised.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    fn new(engine: &Engine) -> Self {
        let engine = Engine {
            // What a later host has beyond it is zero, and is not copied.
            size: size_of::<Engine>(),
            ..*engine
        };
        Self(NonNull::from(Box::leak(Box::new(engine))))
    }

    /// The copy.
    ///
    /// # Safety
    ///
    /// * This is not dropped before `'a` ends.
    unsafe fn get<'a>(&self) -> &'a Engine {
        // SAFETY: leaked in `new`, and there until this is dropped; nobody writes to it.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: from a box that was leaked in `new`; whoever used it is gone, by the
        // promise of `get`.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// How far a request has come. The layout of this struct is fixed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutProgress {
    /// Rollouts that have ended, however they did.
    pub rollouts: u64,
    /// Steps that were made, those that failed included.
    pub steps: u64,
    /// Rollouts of the request.
    pub nbatch: u64,
    /// Steps of each of its rollouts, if nothing ends it early.
    pub nstep: u64,
}

/// Hands a request to the pool, writes its ticket to `*ticket`, and returns. The pool's
/// threads begin with it at once, as many as it has data. With a pool of 0 threads, and
/// where all threads have other work, it runs in those that wait for it
/// (rollout_ticket_wait). Any number of threads may submit at once, and any number of
/// requests may be in flight, of different engines, models and sizes, each with data of
/// its own: the threads spread over them evenly (`priority`), and each ends on its own.
///
/// The struct `request`, the engine table and the lists of models and data are copied: they
/// may go away after the call. The arrays that it names (inputs, outputs, outcomes,
/// messages), and the models and data themselves, must stay until the request is done, and
/// nobody else may use the data and the outputs or change the inputs and models.
///
/// Everything is checked as by rollout_run, at once: a request that is refused has changed
/// nothing, and there is no ticket to release. The results are those of rollout_run, bit
/// for bit. Costs a microsecond or so, and a wake-up of each thread that sleeps and can
/// take part (some 10 microseconds each; ROLLOUT_REQUEST_ATTENDED).
///
/// Errors: all statuses from 100 to 199; BUSY; in a child after fork() also NO_THREAD.
/// `*ticket` is written only on success. What
/// comes of the rollouts is told by rollout_ticket_wait.
///
/// # Safety
///
/// As for `rollout_run`, but until the request is done, but for what is copied: that does
/// not change during the call. `ticket` is NULL or points to a place for a handle. The
/// engine's functions can be called as long as the ticket has not been released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rollout_submit(
    pool: *mut RolloutPool,
    request: *const RolloutRequest,
    ticket: *mut *mut RolloutTicket,
    error: *mut RolloutError,
) -> RolloutStatus {
    let body = || {
        // SAFETY: the caller's promises.
        let (pool, request) = unsafe { (handle(pool)?, sized::borrow(request, "request")?) };
        check_out(ticket, "ticket")?;
        let (terms, start) = terms(request)?;
        // SAFETY: the caller's promise.
        let engine = Table::new(unsafe { sized::borrow(request.engine, "engine")? });
        // SAFETY: the table is declared before the request, and stays with it in a flight,
        // where it is dropped after it. The arrays, models and data stay as they are until
        // the request is done, by the caller's promise, and are not used after that. The
        // lists stay during the call, and are copied in it.
        let mut checked = unsafe { checked(request, engine.get())? };
        checked.own_lists();
        // SAFETY: the ticket is dropped when the flight is, before all that the request
        // borrows goes away: the host releases it, which waits for its end, and each call
        // that still keeps it has then seen that it is done.
        let made = unsafe { pool.submit(checked, terms, start)? };
        let flight = Arc::new(Flight {
            ticket: made,
            _engine: engine,
        });
        // SAFETY: checked to be non-null and aligned; the host can write it.
        unsafe { *ticket = Box::into_raw(Box::new(RolloutTicket(flight))) };
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { boundary(error, body) }
}

/// Waits until a request is done, at most for `timeout_ns` nanoseconds, and tells what came
/// of it. A negative timeout waits for ever, 0 only looks. What the rollouts wrote is
/// visible afterwards.
///
/// The waiting thread works on the rollouts too while one of the request's data is free, so
/// with a pool of 0 threads this is where they run. It returns within a step after the time:
/// a rollout that it was in the middle of goes on where it was, on whichever thread comes
/// next, with the same bits. So a thread that has other things to do, such as signals to
/// handle, calls this again and again with a timeout of some milliseconds. (A timeout of 0
/// makes no step: with a pool of 0 threads a request that is only looked at does not go on.)
///
/// Any number of threads may wait at once, and may ask again when it is done: the status and
/// the error object are the same each time.
///
/// Errors: TIMEOUT if it is not done in time; else what rollout_run would give:
/// ROLLOUTS_FAILED, CANCELLED, OUT_OF_TIME, NO_THREAD, PANIC. NULL_POINTER, MISALIGNED.
/// WOULD_DEADLOCK at once, if it is not done and the calling thread is inside the same pool
/// (in one of its tasks, or in a callback of a rollout) and would wait. FORKED at once, in a
/// child that was forked while the request was in flight.
///
/// # Safety
///
/// `ticket` is NULL or a live handle, `error` is NULL or an error object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rollout_ticket_wait(
    ticket: *mut RolloutTicket,
    timeout_ns: i64,
    error: *mut RolloutError,
) -> RolloutStatus {
    let body = || {
        // SAFETY: the caller's promise.
        let flight = unsafe { flight(ticket)? };
        let ticket = &flight.ticket;
        let result = match u64::try_from(timeout_ns) {
            Ok(0) => ticket.is_done().then(|| ticket.wait()),
            Ok(nanos) => ticket.wait_timeout(Duration::from_nanos(nanos)),
            Err(_) => Some(ticket.wait()),
        };
        let not_done = || Failure::new(RolloutStatus::Timeout, "the request is not done yet");
        Failure::check_run(result.ok_or_else(not_done)?)
    };
    // SAFETY: the caller's promise.
    unsafe { boundary(error, body) }
}

/// Ends a request early: each thread ends its rollout after the step that it is in, and
/// begins no other one. Returns at once; rollout_ticket_wait waits for the end, and says
/// CANCELLED, unless all rollouts had ended by themselves. May be called from any thread
/// and in any callback, and does nothing when the request is done.
///
/// Errors: NULL_POINTER, MISALIGNED; FORKED.
///
/// # Safety
///
/// `ticket` is NULL or a live handle, `error` is NULL or an error object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rollout_ticket_cancel(
    ticket: *mut RolloutTicket,
    error: *mut RolloutError,
) -> RolloutStatus {
    let body = || {
        // SAFETY: the caller's promise.
        let flight = unsafe { flight(ticket)? };
        of_this_process(&flight)?;
        flight.ticket.cancel();
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { boundary(error, body) }
}

/// Writes 1 to `*done` if the request is done, and 0 if it is not. If it is, what the
/// rollouts wrote is visible to the caller. Returns at once, but that what others have left
/// of a request whose time is up is ended here: rows are filled, and a data may be reset.
///
/// Errors: NULL_POINTER, MISALIGNED; FORKED.
///
/// # Safety
///
/// `ticket` is NULL or a live handle; the other pointers are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rollout_ticket_done(
    ticket: *const RolloutTicket,
    done: *mut i32,
    error: *mut RolloutError,
) -> RolloutStatus {
    let body = || {
        // SAFETY: the caller's promise.
        let flight = unsafe { flight(ticket)? };
        check_out(done, "done")?;
        of_this_process(&flight)?;
        // SAFETY: checked to be non-null and aligned; the host can write it.
        unsafe { *done = flight.ticket.is_done().into() };
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { boundary(error, body) }
}

/// Writes how far the request has come to `*progress`. The numbers grow while it is in
/// flight, and publish nothing of what the rollouts have written. Returns at once; costs
/// some nanoseconds for each of the request's data.
///
/// Errors: NULL_POINTER, MISALIGNED; FORKED.
///
/// # Safety
///
/// `ticket` is NULL or a live handle; the other pointers are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rollout_ticket_progress(
    ticket: *const RolloutTicket,
    progress: *mut RolloutProgress,
    error: *mut RolloutError,
) -> RolloutStatus {
    let body = || {
        // SAFETY: the caller's promise.
        let flight = unsafe { flight(ticket)? };
        check_out(progress, "progress")?;
        of_this_process(&flight)?;
        let ticket = &flight.ticket;
        let done = ticket.progress();
        let made = RolloutProgress {
            rollouts: done.rollouts,
            steps: done.steps,
            nbatch: ticket.nbatch() as u64,
            nstep: ticket.nstep() as u64,
        };
        // SAFETY: checked to be non-null and aligned; the host can write it.
        unsafe { *progress = made };
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { boundary(error, body) }
}

/// Ends a ticket: cancels the request if it is in flight, waits until it is done, which
/// takes at most the step that each thread is in, and frees it. Afterwards the request's
/// arrays, models and data may go away. Does nothing for NULL. Threads that wait for the
/// ticket meanwhile are told CANCELLED; but for calls that have begun, nobody may use the
/// handle any more.
///
/// It may be called inside the pool, but not in a callback of the ticket's own rollouts,
/// which would wait for itself: there it is WOULD_DEADLOCK, and nothing has happened. (Two
/// callbacks that release each other's tickets do wait for ever.) In a child that was forked
/// while the request was in flight it returns at once.
///
/// Errors: MISALIGNED; WOULD_DEADLOCK.
///
/// # Safety
///
/// `ticket` is NULL or a handle that has not been released, `error` is NULL or an error
/// object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rollout_ticket_release(
    ticket: *mut RolloutTicket,
    error: *mut RolloutError,
) -> RolloutStatus {
    let body = || {
        if ticket.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        let flight = unsafe { flight(ticket)? };
        flight.ticket.end()?;
        // SAFETY: a handle comes from Box::into_raw, and is released once.
        drop(unsafe { Box::from_raw(ticket) });
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { boundary(error, body) }
}

/// Refuses a ticket of the process that this one was forked from, which was in flight then.
fn of_this_process(flight: &Flight) -> Result<(), Failure> {
    match flight.ticket.is_of_parent() {
        true => Err(RunError::Forked.into()),
        false => Ok(()),
    }
}

/// The flight behind a handle. It stays as long as the result, even if the handle is
/// released meanwhile.
///
/// # Safety
///
/// * `ticket` is null, misaligned, or a live handle until this returns.
unsafe fn flight(ticket: *const RolloutTicket) -> Result<Arc<Flight>, Failure> {
    check_pointer(ticket, 1, format_args!("ticket"))?;
    // SAFETY: neither null nor misaligned, so it is live, by the caller's promise.
    Ok(unsafe { Arc::clone(&(*ticket).0) })
}
