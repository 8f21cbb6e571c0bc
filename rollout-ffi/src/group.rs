//! Groups of tasks with a count of their own.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use rollout_core::array::check_pointer;
use rollout_pool::Group;

use crate::error::{Failure, RolloutError, RolloutStatus, boundary};
use crate::pool::{RolloutPool, RolloutTask, check_out, handle, runnable};

/// Tasks of one caller on a pool that others use too, with a count of their own: what is
/// scheduled on a group is counted there, and not in the pool's count. The host owns it:
/// made by `rollout_group_create`, ended by `rollout_group_destroy`. Between the two, any
/// number of threads may use it at once.
///
/// A group may outlive its pool. A task that is scheduled then never runs, and a wait for
/// it gives WOULD_DEADLOCK.
// Each call keeps the group for itself, so that it may be destroyed meanwhile.
#[derive(Debug)]
pub struct RolloutGroup(Arc<Group>);

/// Makes a group of tasks on a pool and writes its handle to `*group`. Costs less than a
/// microsecond; starts no thread.
///
/// Errors: NULL_POINTER, MISALIGNED. `*group` is written only on success.
///
/// # Safety
///
/// `pool` is NULL or a live handle; `group` is NULL or points to a place for a handle;
/// `error` is NULL or an error object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rollout_group_create(
    pool: *mut RolloutPool,
    group: *mut *mut RolloutGroup,
    error: *mut RolloutError,
) -> RolloutStatus {
    let body = || {
        // SAFETY: the caller's promise.
        let pool = unsafe { handle(pool)? };
        check_out(group, "group")?;
        let made = RolloutGroup(Arc::new(pool.group()));
        // SAFETY: checked to be non-null and aligned; the host can write it.
        unsafe { *group = Box::into_raw(Box::new(made)) };
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { boundary(error, body) }
}

/// Ends a group. Does nothing for NULL. It waits for nothing: tasks that were scheduled
/// are run by the pool all the same. But for calls that have begun, nobody may use the
/// handle any more, its tasks included.
///
/// # Safety
///
/// `group` is NULL or a handle that has not been destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rollout_group_destroy(group: *mut RolloutGroup) {
    let body = || {
        if !group.is_null() {
            // SAFETY: a handle comes from Box::into_raw, and is destroyed once.
            drop(unsafe { Box::from_raw(group) });
        }
        Ok(())
    };
    // SAFETY: there is no error object.
    unsafe { boundary(ptr::null_mut(), body) };
}

/// As rollout_pool_schedule, counted in the group.
///
/// Errors: NULL_POINTER, MISALIGNED; NO_THREAD in a child after fork().
///
/// # Safety
///
/// `group` is NULL or a live handle; `task(user)` can be called from any thread,
/// until it has run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rollout_group_schedule(
    group: *mut RolloutGroup,
    task: RolloutTask,
    user: *mut c_void,
    error: *mut RolloutError,
) -> RolloutStatus {
    let body = || {
        // SAFETY: the caller's promises.
        let (group, task) = unsafe { (group_of(group)?, runnable(task, user)?) };
        group.start()?;
        group.schedule(task);
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { boundary(error, body) }
}

/// Writes the number of the group's tasks completed since its last reset to `*count`. What
/// the counted tasks wrote is visible to the caller.
///
/// Errors: NULL_POINTER, MISALIGNED.
///
/// # Safety
///
/// `group` is NULL or a live handle; the other pointers are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rollout_group_count(
    group: *const RolloutGroup,
    count: *mut u64,
    error: *mut RolloutError,
) -> RolloutStatus {
    let body = || {
        // SAFETY: the caller's promise.
        let group = unsafe { group_of(group)? };
        check_out(count, "count")?;
        // SAFETY: checked to be non-null and aligned; the host can write it.
        unsafe { *count = group.count() };
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { boundary(error, body) }
}

/// Sets the group's count of completed tasks to zero.
///
/// Errors: NULL_POINTER, MISALIGNED.
///
/// # Safety
///
/// `group` is NULL or a live handle, `error` is NULL or an error object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rollout_group_reset_count(
    group: *mut RolloutGroup,
    error: *mut RolloutError,
) -> RolloutStatus {
    let body = || {
        // SAFETY: the caller's promise.
        unsafe { group_of(group)? }.reset_count();
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { boundary(error, body) }
}

/// Waits until the group's count of completed tasks is at least `value`. What the counted
/// tasks wrote is visible afterwards. Any number of threads may wait at once.
///
/// Errors: NULL_POINTER, MISALIGNED; WOULD_DEADLOCK, FORKED and TASK_PANICKED as for
/// rollout_pool_wait_count, for the group's tasks.
///
/// # Safety
///
/// `group` is NULL or a live handle, `error` is NULL or an error object.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rollout_group_wait_count(
    group: *mut RolloutGroup,
    value: u64,
    error: *mut RolloutError,
) -> RolloutStatus {
    let body = || {
        // SAFETY: the caller's promise.
        unsafe { group_of(group)? }.wait_count(value)?;
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { boundary(error, body) }
}

/// The group behind a handle. It stays as long as the result, even if the handle is
/// destroyed meanwhile.
///
/// # Safety
///
/// * `group` is null, misaligned, or a live handle until this returns.
unsafe fn group_of(group: *const RolloutGroup) -> Result<Arc<Group>, Failure> {
    check_pointer(group, 1, format_args!("group"))?;
    // SAFETY: neither null nor misaligned, so it is live, by the caller's promise.
    Ok(unsafe { Arc::clone(&(*group).0) })
}
