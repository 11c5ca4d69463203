//! The simulated face: words in cache lines, locks and threads of a machine with any number of CPUs, on a
//! virtual clock.

mod machine;
pub(super) mod percpu;
mod threads;

pub(crate) use std::sync::Arc;

pub(crate) use octavo_sim::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
pub(crate) use octavo_sim::lock::{
    Condvar, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
pub(crate) use octavo_sim::{spin_hint, thread};

pub(crate) use machine::reach_bytes;
pub(super) use machine::{current_cpu, fill_random, memory, possible_cpus, stable_address, time};
pub(super) use threads::with_kept_waker;
pub(crate) use threads::{catch_panic, park_for, pause, with_own_words};

/// The array of the real face, so that words have their real places in cache lines.
pub(crate) type WordArray<T> = octavo_platform::ZeroedArray<T>;
