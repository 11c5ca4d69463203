//! The real face: the machine's atomics, the standard library's locks, the system's threads.

mod locks;
mod machine;
pub(super) mod percpu;
mod threads;

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
pub(crate) use std::sync::{Arc, OnceLock};

pub(crate) use locks::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub(crate) use machine::reach_bytes;
pub(super) use machine::{current_cpu, fill_random, memory, possible_cpus, stable_address, time};
pub(super) use threads::with_kept_waker;
pub(crate) use threads::{catch_panic, park_for, pause, spin_hint, thread, with_own_words};

/// A large array of atomic words, which are zero at first. The kernel commits its pages when they are
/// touched, and the array never moves.
pub(crate) type WordArray<T> = octavo_platform::ZeroedArray<T>;
