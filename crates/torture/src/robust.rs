//! A robust mutex of the C library, in memory of the caller's choice.

use std::mem::{MaybeUninit, size_of};

use crate::finding::insist;
use crate::memory::OwnMapping;

const ROBUST: libc::c_int = 1;

// The libc package does not declare these.
unsafe extern "C" {
    fn pthread_mutexattr_setrobust(
        attributes: *mut libc::pthread_mutexattr_t,
        robust: libc::c_int,
    ) -> libc::c_int;
    fn pthread_mutex_consistent(mutex: *mut libc::pthread_mutex_t) -> libc::c_int;
    fn pthread_mutex_timedlock(
        mutex: *mut libc::pthread_mutex_t,
        until: *const libc::timespec,
    ) -> libc::c_int;
}

/// A mutex whose owner may end without releasing it.
#[derive(Debug)]
pub struct RobustMutex<'a> {
    mapping: &'a OwnMapping,
    offset: usize,
}

impl<'a> RobustMutex<'a> {
    /// Makes a mutex from bytes of the mapping. Other code must not use these bytes while the value lives.
    pub fn new(mapping: &'a OwnMapping, offset: usize) -> Self {
        let mutex = Self { mapping, offset };
        let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        // SAFETY: the attributes are initialised by the first call. The mutex lies inside the mapping,
        // aligned, and its bytes are reached through these calls only.
        let made = unsafe {
            libc::pthread_mutexattr_init(attributes.as_mut_ptr())
                | pthread_mutexattr_setrobust(attributes.as_mut_ptr(), ROBUST)
                | libc::pthread_mutex_init(mutex.raw(), attributes.as_ptr())
        };
        insist!(made == 0, "a robust mutex could not be made.");
        mutex
    }

    fn raw(&self) -> *mut libc::pthread_mutex_t {
        assert!(self.offset.is_multiple_of(align_of::<libc::pthread_mutex_t>()));
        self.mapping.pointer(self.offset, size_of::<libc::pthread_mutex_t>()).cast()
    }

    /// Locks the mutex. If the thread ends without releasing the mutex, the next thread can take it over.
    pub fn lock(&self) {
        // SAFETY: the mutex was initialised.
        let result = unsafe { libc::pthread_mutex_lock(self.raw()) };
        insist!(result == 0, "pthread_mutex_lock at {:p} failed with error {result}.", self.raw());
    }

    /// Locks the mutex of an owner that ends, checks that the kernel has marked the mutex, and releases it.
    pub fn take_over(&self, patience_seconds: i64) {
        let mut until = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the time is ours to write, and the mutex was initialised.
        let result = unsafe {
            libc::clock_gettime(libc::CLOCK_REALTIME, &mut until);
            until.tv_sec += patience_seconds;
            pthread_mutex_timedlock(self.raw(), &until)
        };
        insist!(
            result == libc::EOWNERDEAD,
            "the lock of the robust mutex at {:p}, whose owner ended, answered {result} instead of EOWNERDEAD.",
            self.raw()
        );
        // SAFETY: this thread holds the mutex.
        let given = unsafe { pthread_mutex_consistent(self.raw()) | libc::pthread_mutex_unlock(self.raw()) };
        insist!(given == 0, "the robust mutex at {:p} could not be given up.", self.raw());
    }
}
