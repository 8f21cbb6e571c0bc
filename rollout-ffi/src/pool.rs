//! The pool's handle, and count-and-wait.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use rollout_core::array::check_pointer;
use rollout_core::{Error, ErrorKind, trap};
use rollout_pool::{CpusError, Pool, WorkerStats, default_nthread, worker_id};

use crate::error::{Failure, RolloutError, RolloutStatus, boundary};
use crate::request::list;

/// A pool of threads. The host owns it: made by `rollout_pool_create`, ended by
/// `rollout_pool_destroy`. Between the two, any number of threads may use it at
/// once.
// Each call keeps the pool for itself, so that it may be destroyed meanwhile.
#[derive(Debug)]
pub struct RolloutPool(Arc<Pool>);

/// A task: `function(user)` runs on one of the pool's threads. It must return:
/// neither a C++ exception nor a longjmp may leave it.
pub type RolloutTask = Option<unsafe extern "C" fn(user: *mut c_void)>;

/// For rollout_pool_create: as many threads as the process may keep busy
/// (rollout_default_nthread).
pub const ROLLOUT_NTHREAD_DEFAULT: i32 = -1;

/// The number of threads that the process may keep busy: what
/// `ROLLOUT_NTHREAD_DEFAULT` stands for. The least of the number of CPUs in the calling
/// thread's affinity mask (taskset, sched_setaffinity) and of the whole CPUs in the CPU
/// quotas of the process's cgroups, v1 or v2 (containers), but at least 1. Of a quota of
/// 1.5 CPUs two threads would use up what there is for a period before its end, and all
/// threads would be stopped until then, so that is 1. Reads a few small files each time.
#[unsafe(no_mangle)]
pub extern "C" fn rollout_default_nthread() -> i32 {
    default_nthread() as i32
}

/// A larger number is a mistake.
const MOST_THREADS: i32 = 4096;

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
        unsafe { *pool = Box::into_raw(Box::new(RolloutPool(Arc::new(made)))) };
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { boundary(error, body) }
}

/// Makes a pool as `rollout_pool_create` does, of one thread for each CPU of a list, on
/// which it stays: thread i on CPU `cpus[i]`, numbered as the system does (from 0). For
/// hosts that divide a machine between pools, or keep rollouts away from a CPU on which
/// something else must not wait. The list is read during the call only.
///
/// The calling thread itself is not moved. The memory of the threads (stacks) is first
/// touched by themselves, and so is near their CPUs on machines where memory is; the data
/// that they use are the host's, who may let each thread touch its own in a task.
///
/// Errors: NULL_POINTER, MISALIGNED; EMPTY_LIST; BAD_OPTION for more than 4096 CPUs, for
/// one that stands twice in the list, and for one that the calling thread's affinity mask
/// does not have (sched_getaffinity); NO_THREAD. `*pool` is written only on success.
///
/// # Safety
///
/// `cpus` is NULL or points to `ncpu` numbers. `pool` points to a place for a handle,
/// `error` is NULL or an error object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rollout_pool_create_on(
    cpus: *const i32,
    ncpu: usize,
    pool: *mut *mut RolloutPool,
    error: *mut RolloutError,
) -> RolloutStatus {
    let body = || {
        check_out(pool, "pool")?;
        if ncpu > MOST_THREADS as usize {
            return Err(CpusError::TooMany(ncpu).into());
        }
        // SAFETY: the caller's promise.
        let listed = unsafe { list(cpus, ncpu, "cpus", "ncpu")? };
        let mut cpus = Vec::with_capacity(ncpu);
        for (i, &cpu) in listed.iter().enumerate() {
            cpus.push(usize::try_from(cpu).map_err(|_| {
                let reason = format!("cpus[{i}]: is {cpu}, which is no CPU");
                Failure::new(RolloutStatus::BadOption, reason)
            })?);
        }
        let made = Pool::with_cpus(&cpus)?;
        // SAFETY: checked to be non-null and aligned; the host can write it.
        unsafe { *pool = Box::into_raw(Box::new(RolloutPool(Arc::new(made)))) };
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { boundary(error, body) }
}

/// Writes the CPU that a thread of the pool stays on to `*cpu`: what
/// `rollout_pool_create_on` was told, or -1 in a pool that it has not made. `thread` is
/// 0 .. nthread-1, the `rollout_worker_id` of that thread.
///
/// Errors: NULL_POINTER, MISALIGNED; BAD_OPTION where the pool has no such thread.
///
/// # Safety
///
/// `pool` is NULL or a live handle; the other pointers are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rollout_pool_cpu(
    pool: *const RolloutPool,
    thread: i32,
    cpu: *mut i32,
    error: *mut RolloutError,
) -> RolloutStatus {
    let body = || {
        // SAFETY: the caller's promise.
        let pool = unsafe { handle(pool)? };
        check_out(cpu, "cpu")?;
        let nthread = pool.num_threads();
        let id = usize::try_from(thread).ok().filter(|&id| id < nthread);
        let id = id.ok_or_else(|| {
            let reason = format!("thread: is {thread}, but the pool has {nthread} threads");
            Failure::new(RolloutStatus::BadOption, reason)
        })?;
        let pinned = pool.cpus().get(id).map_or(-1, |&cpu| cpu as i32);
        // SAFETY: checked to be non-null and aligned; the host can write it.
        unsafe { *cpu = pinned };
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { boundary(error, body) }
}

/// Ends a pool. Does nothing for NULL. What is in flight has a defined end:
///
/// * Tasks that were scheduled are run, those of groups and those that they schedule
///   included. They may use the pool, and run requests on it, to their end.
/// * Requests are cancelled: those of tickets that were submitted, and those of
///   rollout_run in other threads than tasks. Each ends after the step that its threads
///   are in, and who waits for it is told CANCELLED.
/// * The pool's threads are ended and waited for.
///
/// But for those tasks, nobody may begin another call with the handle. Calls that have
/// begun (rollout_run, rollout_pool_wait_count, rollout_ticket_wait) end as described.
/// Tickets and groups outlive the pool, and are still to be released and destroyed.
///
/// Called inside this very pool, by one of its tasks or in a callback of a rollout, it
/// cannot wait: the pool ends by itself then, and no task may use the handle any more.
/// When it has returned elsewhere, no thread of the pool's is left, and the library can be
/// unloaded.
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
            let ended = unsafe { Arc::clone(&(*pool).0) };
            ended.end();
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
/// this call returns. On whichever thread, it has the default floating-point mode.
///
/// Errors: NULL_POINTER, MISALIGNED; NO_THREAD in a child after fork().
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
    let body = || {
        // SAFETY: the caller's promises.
        let (pool, task) = unsafe { (handle(pool)?, runnable(task, user)?) };
        pool.start()?;
        pool.schedule(task);
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { boundary(error, body) }
}

/// Writes the number of tasks completed since the last reset to `*count`. What
/// the counted tasks wrote is visible to the caller. There is one count for the pool,
/// which all who schedule on it share; a RolloutGroup has one of its own, and its tasks
/// are counted there only. Requests are not counted.
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
/// threads that share a pool must agree on who resets it, or have a RolloutGroup each.
///
/// Errors: NULL_POINTER, MISALIGNED.
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
/// Errors: NULL_POINTER, MISALIGNED; WOULD_DEADLOCK at once, inside the same pool (in one of its
/// tasks, or in a callback of a rollout) or where a pool without threads has run too few
/// tasks, and when a pool ends that has run too few; FORKED at once, in a child after
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

/// What one of the pool's threads has done since the pool was made. The layout of this
/// struct is fixed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutWorkerStats {
    /// Nanoseconds that it has worked, on tasks and on rollouts.
    pub busy_ns: u64,
    /// Nanoseconds that it has not. The two add up to the age of the pool, in a child after
    /// fork() since its threads were started there.
    pub idle_ns: u64,
    /// Tasks that it has run to their end.
    pub tasks: u64,
    /// Rollouts that have ended on it.
    pub rollouts: u64,
    /// Steps that it has made, those that failed included.
    pub steps: u64,
}

/// Writes what each of the pool's threads has done to `stats`, in the order of their ids.
/// What callers have done, inside rollout_run and rollout_ticket_wait, is not in it. The
/// times go on while a thread works; the counts are those of the work that it has left,
/// which for rollouts is when it leaves their request.
///
/// The numbers are read one after the other while the threads go on, and publish nothing
/// of what the threads have written. Costs some nanoseconds for each thread.
///
/// Errors: NULL_POINTER, MISALIGNED; WRONG_SIZE if `count` is not the number of threads.
///
/// # Safety
///
/// `pool` is NULL or a live handle; `stats` is NULL or has room for `count` structs;
/// `error` is NULL or an error object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rollout_pool_stats(
    pool: *const RolloutPool,
    stats: *mut RolloutWorkerStats,
    count: usize,
    error: *mut RolloutError,
) -> RolloutStatus {
    let body = || {
        // SAFETY: the caller's promise.
        let pool = unsafe { handle(pool)? };
        let nthread = pool.num_threads();
        if count != nthread {
            let reason = format!("count: is {count}, but the pool has {nthread} threads");
            return Err(Failure::new(RolloutStatus::WrongSize, reason));
        }
        check_pointer(stats, count, format_args!("stats"))?;
        for (id, worker) in pool.stats().into_iter().enumerate() {
            // SAFETY: checked to be non-null and aligned, with room for `count` structs,
            // one for each thread.
            unsafe { stats.add(id).write(RolloutWorkerStats::from(worker)) };
        }
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { boundary(error, body) }
}

impl From<WorkerStats> for RolloutWorkerStats {
    fn from(stats: WorkerStats) -> Self {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            busy_ns: nanos(stats.busy),
            idle_ns: nanos(stats.idle),
            tasks: stats.tasks,
            rollouts: stats.rollouts,
            steps: stats.steps,
        }
    }
}

/// The pool behind a handle. It stays as long as the result, even if the handle is
/// destroyed meanwhile.
///
/// # Safety
///
/// * `pool` is null, misaligned, or a live handle until this returns.
pub(crate) unsafe fn handle(pool: *const RolloutPool) -> Result<Arc<Pool>, Failure> {
    check_pointer(pool, 1, format_args!("pool"))?;
    // SAFETY: neither null nor misaligned, so it is live, by the caller's promise.
    Ok(unsafe { Arc::clone(&(*pool).0) })
}

/// A task of the host's, as the pool takes it.
///
/// # Safety
///
/// * If there is a task, `task(user)` can be called from any thread, until it has run.
pub(crate) unsafe fn runnable(
    task: RolloutTask,
    user: *mut c_void,
) -> Result<impl FnOnce() + Send + 'static, Failure> {
    /// The host's pointer, on its way to another thread.
    struct User(*mut c_void);
    // SAFETY: the task that gets it can be called from any thread, by the promise above.
    unsafe impl Send for User {}

    let task = task.ok_or_else(|| Error::new(ErrorKind::NullPointer, "task", "is null"))?;
    let user = User(user);
    Ok(move || {
        let User(user) = { user };
        // SAFETY: the pool calls it once, and the caller promises that it can be called.
        unsafe { task(user) };
        trap::after_host();
    })
}

/// Refuses an output pointer that is null or misaligned.
pub(crate) fn check_out<T>(pointer: *mut T, name: &str) -> Result<(), Failure> {
    Ok(check_pointer(pointer, 1, format_args!("{name}"))?)
}
