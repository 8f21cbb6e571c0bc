//! The pool's handle, and count-and-wait.

use std::ffi::c_void;
use std::ptr;

use rollout_core::array::check_pointer;
use rollout_core::{Error, ErrorKind};
use rollout_pool::{Pool, default_nthread, worker_id};

use crate::error::{Failure, RolloutError, RolloutStatus, boundary};

/// A pool of threads. The host owns it: made by `rollout_pool_create`, ended by
/// `rollout_pool_destroy`. Between the two, any number of threads may use it at
/// once.
#[derive(Debug)]
pub struct RolloutPool(Pool);

/// A task: `function(user)` runs on one of the pool's threads. It must return:
/// neither a C++ exception nor a longjmp may leave it.
pub type RolloutTask = Option<unsafe extern "C" fn(user: *mut c_void)>;

/// For rollout_pool_create: as many threads as the process may keep busy, by
/// its CPU affinity mask and its cgroup's CPU quota.
pub const ROLLOUT_NTHREAD_DEFAULT: i32 = -1;

/// The number of threads that the process may keep busy: what
/// `ROLLOUT_NTHREAD_DEFAULT` stands for.
#[unsafe(no_mangle)]
pub extern "C" fn rollout_default_nthread() -> i32 {
    default_nthread() as i32
}

/// Makes a pool of `nthread` threads, or of `ROLLOUT_NTHREAD_DEFAULT`, and writes
/// its handle to `*pool`. The threads sleep until there is work; they are named
/// rollout-0, rollout-1, ..., have stacks of 8 MiB and block all signals but those
/// that report a fault of their own. With 0 threads everything runs inside the
/// calls that ask for it. Starting a thread takes some tens of microseconds: make a
/// pool once and keep it. (With ROLLOUT_HOOKS_RETIRE_THREAD a thread is replaced after
/// an engine error, by one of its id and name.)
///
/// `rollout_run` works on the calling thread too, so a host that calls it from
/// one thread keeps n CPUs busy with n - 1 threads and n data; more threads do no
/// harm.
///
/// Errors: NULL_POINTER, MISALIGNED, BAD_OPTION, NO_THREAD. `*pool` is written
/// only on success.
///
/// # Safety
///
/// `pool` points to a place for a handle, `error` is NULL or an error object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rollout_pool_create(
    nthread: i32,
    pool: *mut *mut RolloutPool,
    error: *mut RolloutError,
) -> RolloutStatus {
    // A larger number is a mistake.
    const MOST_THREADS: i32 = 4096;
    let body = || {
        check_out(pool, "pool")?;
        let nthread = match nthread {
            ROLLOUT_NTHREAD_DEFAULT => default_nthread(),
            0..=MOST_THREADS => nthread as usize,
            _ => {
                let reason = format!(
                    "nthread: is {nthread}, but must be 0 to {MOST_THREADS}, or \
                     ROLLOUT_NTHREAD_DEFAULT"
                );
                return Err(Failure::new(RolloutStatus::BadOption, reason));
            }
        };
        let made = Pool::new(nthread).map_err(|refused| {
            let reason = format!("the system refused one of {nthread} threads: {refused}");
            Failure::new(RolloutStatus::NoThread, reason)
        })?;
        // SAFETY: checked to be non-null and aligned; the host can write it.
        unsafe { *pool = Box::into_raw(Box::new(RolloutPool(made))) };
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { boundary(error, body) }
}

/// Ends a pool: runs the tasks that were scheduled, and those that they schedule,
/// then ends its threads and waits for them. Does nothing for NULL. But for those
/// tasks, nobody may use the pool any more. Called by a task of this very pool it
/// cannot wait: then no other task may use the handle any more either. When it has
/// returned on another thread, no thread of the pool's is left, and the library can be
/// unloaded. (The system keeps it in memory as long as a thread lives that has made a pool
/// with threads.)
///
/// The destructor of a static object may call this when the process ends, also where a
/// task or a callback of a rollout has asked for that (exit()).
///
/// # Safety
///
/// `pool` is NULL or a handle that has not been destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rollout_pool_destroy(pool: *mut RolloutPool) {
    let body = || {
        if !pool.is_null() {
            // Tasks that still run may use the handle, so they end first.
            // SAFETY: the handle is alive, by the caller's promise.
            unsafe { &*pool }.0.end();
            // SAFETY: a handle comes from Box::into_raw, and is destroyed once.
            drop(unsafe { Box::from_raw(pool) });
        }
        Ok(())
    };
    // SAFETY: there is no error object.
    unsafe { boundary(ptr::null_mut(), body) };
}

/// Writes the number of threads of the pool to `*nthread`.
///
/// Errors: NULL_POINTER, MISALIGNED.
///
/// # Safety
///
/// `pool` is NULL or a live handle; the other pointers are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rollout_pool_num_threads(
    pool: *const RolloutPool,
    nthread: *mut i32,
    error: *mut RolloutError,
) -> RolloutStatus {
    let body = || {
        // SAFETY: the caller's promise.
        let pool = unsafe { handle(pool)? };
        check_out(nthread, "nthread")?;
        // SAFETY: checked to be non-null and aligned; the host can write it.
        unsafe { *nthread = pool.num_threads() as i32 };
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { boundary(error, body) }
}

/// The id of the calling thread in its pool, 0 .. nthread-1, or -1 if it is not
/// a pool's thread.
#[unsafe(no_mangle)]
pub extern "C" fn rollout_worker_id() -> i32 {
    worker_id()
}

/// Hands a task to the pool and returns. The task runs as soon as a thread is
/// free, whether or not anybody waits, after the tasks scheduled before it have
/// begun. Tasks may schedule tasks. In a pool of 0 threads the task runs before
/// this call returns.
///
/// Errors: NULL_POINTER; NO_THREAD in a child after fork().
///
/// # Safety
///
/// `pool` is NULL or a live handle; `task(user)` can be called from any thread,
/// until it has run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rollout_pool_schedule(
    pool: *mut RolloutPool,
    task: RolloutTask,
    user: *mut c_void,
    error: *mut RolloutError,
) -> RolloutStatus {
    /// The host's pointer, on its way to another thread.
    struct User(*mut c_void);
    // SAFETY: the host promises that its task can be called from any thread.
    unsafe impl Send for User {}

    let body = || {
        // SAFETY: the caller's promise.
        let pool = unsafe { handle(pool)? };
        let task = task.ok_or_else(|| Error::new(ErrorKind::NullPointer, "task", "is null"))?;
        let user = User(user);
        pool.start()?;
        pool.schedule(move || {
            let User(user) = { user };
            // SAFETY: the host promises that its task can be called.
            unsafe { task(user) };
        });
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { boundary(error, body) }
}

/// Writes the number of tasks completed since the last reset to `*count`. What
/// the counted tasks wrote is visible to the caller.
///
/// Errors: NULL_POINTER, MISALIGNED.
///
/// # Safety
///
/// `pool` is NULL or a live handle; the other pointers are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rollout_pool_count(
    pool: *const RolloutPool,
    count: *mut u64,
    error: *mut RolloutError,
) -> RolloutStatus {
    let body = || {
        // SAFETY: the caller's promise.
        let pool = unsafe { handle(pool)? };
        check_out(count, "count")?;
        // SAFETY: checked to be non-null and aligned; the host can write it.
        unsafe { *count = pool.count() };
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { boundary(error, body) }
}

/// Sets the count of completed tasks to zero. There is one count for the pool:
/// threads that share a pool must agree on who resets it.
///
/// Errors: NULL_POINTER.
///
/// # Safety
///
/// `pool` is NULL or a live handle, `error` is NULL or an error object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rollout_pool_reset_count(
    pool: *mut RolloutPool,
    error: *mut RolloutError,
) -> RolloutStatus {
    let body = || {
        // SAFETY: the caller's promise.
        unsafe { handle(pool)? }.reset_count();
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { boundary(error, body) }
}

/// Waits until the count of completed tasks is at least `value`. What the counted
/// tasks wrote is visible afterwards. Any number of threads may wait at once.
///
/// Errors: NULL_POINTER; WOULD_DEADLOCK at once, from a task of the same pool or
/// where a pool without threads has run too few tasks; FORKED at once, in a child after
/// fork() that has not scheduled anything; TASK_PANICKED after the wait.
///
/// # Safety
///
/// `pool` is NULL or a live handle, `error` is NULL or an error object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rollout_pool_wait_count(
    pool: *mut RolloutPool,
    value: u64,
    error: *mut RolloutError,
) -> RolloutStatus {
    let body = || {
        // SAFETY: the caller's promise.
        unsafe { handle(pool)? }.wait_count(value)?;
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { boundary(error, body) }
}

/// The pool behind a handle.
///
/// # Safety
///
/// * `pool` is null, misaligned, or a live handle that stays alive during the call.
pub(crate) unsafe fn handle<'a>(pool: *const RolloutPool) -> Result<&'a Pool, Failure> {
    check_pointer(pool, 1, format_args!("pool"))?;
    // SAFETY: neither null nor misaligned, so it is live, by the caller's promise.
    Ok(unsafe { &(*pool).0 })
}

/// Refuses an output pointer that is null or misaligned.
fn check_out<T>(pointer: *mut T, name: &str) -> Result<(), Failure> {
    Ok(check_pointer(pointer, 1, format_args!("{name}"))?)
}
