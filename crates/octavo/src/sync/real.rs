//! The real face: the machine's atomics, parking_lot's locks, the system's threads.

pub(crate) use std::time::{Duration, Instant};

/// A reference count that orders nothing else: the same in every face.
pub(crate) use std::sync::{Arc as Shared, Weak as WeakShared};

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
pub(crate) use std::sync::{Arc, OnceLock};
pub(crate) use std::thread;

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A large array of atomic words, zero at first, committed by the kernel as it is touched, at one address
/// for life.
pub(crate) type WordArray<T> = octavo_platform::ZeroedArray<T>;

/// Sleeps until it is unparked, or for so long.
pub(crate) fn park_for(time: Duration) {
    thread::park_timeout(time);
}

/// Lets time pass.
pub(crate) fn pause(time: Duration) {
    thread::sleep(time);
}

/// Hint that this thread spins.
#[inline]
pub(crate) fn spin_hint() {
    std::hint::spin_loop();
}
