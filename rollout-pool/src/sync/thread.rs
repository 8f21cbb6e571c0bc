//! A thread of the system's, without std's.
//!
//! When a thread of std's ends, it takes a lock of the whole process. A child that was
//! forked in that moment finds it held for ever, and none of its own threads could end. And
//! std leaves a destructor with whoever starts a thread, and as long as that one lives the
//! system keeps the library in memory. Here is nothing but the system's calls, which know of
//! forks.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ffi::{CString, c_void};
use std::io;
use std::mem::{self, MaybeUninit};
use std::panic::{self, AssertUnwindSafe};
use std::ptr;
use std::sync::Arc;

/// The right to wait for a thread. Without it the thread ends by itself.
#[derive(Debug)]
pub(crate) struct JoinHandle<T> {
    thread: libc::pthread_t,
    result: Arc<Place<T>>,
}

/// What a thread has returned, or the payload of its panic.
type Returned<T> = Result<T, Box<dyn Any + Send>>;

/// Where a thread leaves what it returns: written by it alone, and read when it has ended.
#[derive(Debug)]
struct Place<T>(UnsafeCell<Option<Returned<T>>>);

// SAFETY: one thread writes, another one reads when the first has ended.
unsafe impl<T: Send> Send for Place<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Place<T> {}

/// What a new thread is given.
struct Start<T, F> {
    name: CString,
    body: F,
    result: Arc<Place<T>>,
}

/// Starts a thread with this name, of which the system keeps 15 bytes, and a stack of so
/// many bytes.
///
/// # Errors
///
/// When the system refuses.
///
/// # Safety
///
/// * What `body` borrows lives until the thread has ended.
pub(crate) unsafe fn spawn_unchecked<T, F>(
    mut name: String,
    stack_size: usize,
    body: F,
) -> io::Result<JoinHandle<T>>
where
    T: Send,
    F: FnOnce() -> T + Send,
{
    name.truncate(15);
    let result = Arc::new(Place(UnsafeCell::new(None)));
    let start = Box::into_raw(Box::new(Start {
        name: CString::new(name)?,
        body,
        result: Arc::clone(&result),
    }));
    let mut thread = 0;
    // SAFETY: the attributes are initialised, used and destroyed in this order. The new
    // thread gets the box, of the type that `run` is for; what it borrows is the caller's
    // promise.
    let error = unsafe {
        let mut attributes = MaybeUninit::uninit();
        let attributes: *mut libc::pthread_attr_t = attributes.as_mut_ptr();
        let mut error = libc::pthread_attr_init(attributes);
        if error == 0 {
            error = libc::pthread_attr_setstacksize(attributes, stack_size);
            if error == 0 {
                error = libc::pthread_create(&mut thread, attributes, run::<T, F>, start.cast());
            }
            libc::pthread_attr_destroy(attributes);
        }
        error
    };
    if error != 0 {
        // SAFETY: from a box, which no thread was given.
        drop(unsafe { Box::from_raw(start) });
        return Err(io::Error::from_raw_os_error(error));
    }
    Ok(JoinHandle { thread, result })
}

/// The life of a thread.
extern "C" fn run<T, F: FnOnce() -> T>(start: *mut c_void) -> *mut c_void {
    // SAFETY: from `spawn_unchecked`, with the same types.
    let Start { name, body, result } = *unsafe { Box::from_raw(start.cast::<Start<T, F>>()) };
    // SAFETY: a text that ends in NUL. (A name that is refused is only missed.)
    unsafe { libc::pthread_setname_np(libc::pthread_self(), name.as_ptr()) };
    let returned = panic::catch_unwind(AssertUnwindSafe(body));
    // SAFETY: nobody reads it before this thread has ended.
    unsafe { *result.0.get() = Some(returned) };
    ptr::null_mut()
}

/// Whether it is the calling thread's.
pub(crate) fn is_current<T>(thread: &JoinHandle<T>) -> bool {
    // SAFETY: plain calls; the thread has not been joined.
    unsafe { libc::pthread_equal(thread.thread, libc::pthread_self()) != 0 }
}

impl<T> JoinHandle<T> {
    /// The system's name for the thread, which has not been joined.
    pub(crate) fn pthread(&self) -> libc::pthread_t {
        self.thread
    }

    /// Waits for the thread to end, and returns what it has returned, or the payload of
    /// its panic.
    pub(crate) fn join(self) -> Returned<T> {
        let thread = self.thread;
        // SAFETY: a handle stands for a thread that is neither joined nor detached.
        let error = unsafe { libc::pthread_join(thread, ptr::null_mut()) };
        assert_eq!(error, 0, "a thread cannot be joined");
        // SAFETY: read once, and the handle is not dropped. The thread has ended.
        let result = unsafe { ptr::read(&self.result) };
        mem::forget(self);
        // SAFETY: the thread has written it and ended, and there is one handle.
        let returned = unsafe { (*result.0.get()).take() };
        returned.expect("a thread that has ended has returned")
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        // SAFETY: as in `join`.
        unsafe { libc::pthread_detach(self.thread) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const STACK_SIZE: usize = 1 << 20;

    #[test]
    fn a_thread_returns_its_value_or_its_panic() {
        let borrowed = [1, 2, 3];
        // SAFETY: both are waited for here.
        let (sum, panics) = unsafe {
            (
                spawn_unchecked("sum".to_owned(), STACK_SIZE, || {
                    borrowed.iter().sum::<i32>()
                })
                .unwrap(),
                spawn_unchecked("panics".to_owned(), STACK_SIZE, || panic!("as told")).unwrap(),
            )
        };
        assert!(!is_current(&sum));
        assert_eq!(sum.join().unwrap(), 6);
        let payload: Returned<()> = panics.join();
        assert_eq!(payload.unwrap_err().downcast_ref(), Some(&"as told"));
    }

    #[test]
    fn a_name_is_cut_to_what_the_system_keeps() {
        let name = || fs::read_to_string("/proc/thread-self/comm").unwrap();
        // SAFETY: nothing is borrowed.
        let thread = unsafe { spawn_unchecked("0123456789abcdefg".to_owned(), STACK_SIZE, name) };
        assert_eq!(thread.unwrap().join().unwrap(), "0123456789abcde\n");
    }

    #[test]
    fn a_thread_that_nobody_waits_for_drops_what_it_returns() {
        struct Counted(Arc<AtomicUsize>);
        impl Drop for Counted {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::Release);
            }
        }
        let dropped = Arc::new(AtomicUsize::new(0));
        let value = Counted(Arc::clone(&dropped));
        // SAFETY: nothing is borrowed.
        drop(unsafe { spawn_unchecked("alone".to_owned(), STACK_SIZE, move || value) }.unwrap());
        while dropped.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn an_impossible_stack_is_refused() {
        // SAFETY: nothing is borrowed.
        let refused = unsafe { spawn_unchecked("huge".to_owned(), usize::MAX / 2, || ()) };
        assert!(refused.is_err());
    }
}
