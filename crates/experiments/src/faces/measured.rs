//! The face of real CPUs and real time.

use std::io;
use std::sync::LazyLock;
pub(crate) use std::sync::atomic::AtomicU64;
pub(crate) use std::thread;
use std::time::{Duration, Instant};

pub(crate) use ::octavo;

/// Nothing is profiled here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Profile;

pub(crate) fn begin() {}

pub(crate) fn end() -> Profile {
    Profile
}

pub(crate) fn now() -> Duration {
    static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGINNING.elapsed()
}

/// Does nothing: work takes real time here.
pub(crate) fn work(_time: Duration) {}

/// Starts a thread. The kernel puts it on a CPU.
pub(crate) fn spawn_on<T: Send + 'static>(
    _cpu: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<thread::JoinHandle<T>> {
    thread::Builder::new().spawn(work)
}

/// Lets other threads get ready.
pub(crate) fn rest() {
    thread::yield_now();
}

#[path = "../workloads/mod.rs"]
pub(crate) mod workloads;
