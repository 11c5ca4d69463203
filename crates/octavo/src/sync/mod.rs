//! The one facade over atomics, locks, threads, per-CPU sections, the clock, the CPUs and randomness.
//!
//! The same code runs under several **faces**, chosen when it is compiled. Each face is a folder:
//!
//! | folder | chosen by | contents |
//! |---|---|---|
//! | `real/` | default | the machine's atomics, the standard library's locks and threads, restartable sequences |
//! | `loom/` | `--cfg loom` | loom's types, so that a model explores every order that the memory model allows |
//! | `sim/` | `--cfg octavo_sim`, which the package `octavo-simulated` sets | the types of `octavo-sim`: a machine with any number of CPUs, on a virtual clock |
//!
//! A face defines the names in the list below, the storage behind [`percpu`], and the five functions behind
//! [`machine`]. To add a face, add a folder with the same names, and a line here. The modules above a face
//! are written once: [`machine`], [`percpu`], [`park`], [`timer`], [`wait`].
//!
//! Code outside `sync/` names no atomic, lock, thread, clock or source of random bytes by another path.

#[cfg(loom)]
mod loom;
pub(crate) mod machine;
pub(crate) mod park;
pub(crate) mod percpu;
#[cfg(not(any(loom, octavo_sim)))]
mod real;
#[cfg(octavo_sim)]
mod sim;
pub(crate) mod timer;
pub(crate) mod wait;

#[cfg(loom)]
use self::loom as face;
#[cfg(octavo_sim)]
use self::sim as face;
#[cfg(not(any(loom, octavo_sim)))]
use real as face;

pub(crate) use std::time::Duration;

/// A reference-counted pointer whose count orders nothing else. It is the same type in every face. Public
/// signatures call it `Arc`, the name that users know.
pub(crate) use std::sync::{Arc as Shared, Weak as WeakShared};

// Storage of atomic words.
pub(crate) use face::{Arc, AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, WordArray, fence};
// Locks.
pub(crate) use face::{Condvar, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};
// Threads.
pub(crate) use face::{catch_panic, park_for, pause, spin_hint, thread, with_own_words};
// Called before each access to the bytes of pages, which are not atomic words: a face that explores threads
// may let another thread run first.
pub(crate) use face::reach_bytes;
// The machine: the face's clock, CPUs, memory and random bytes.
pub(crate) use machine::{Clock, Cpus, Instant, Machine, Random};

#[cfg(all(test, loom))]
pub(crate) use face::bounded;

/// Returns whether this thread is unwinding. Values that it drops meanwhile do not count as leaks.
pub(crate) fn is_panicking() -> bool {
    std::thread::panicking()
}
