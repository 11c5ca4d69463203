//! The face of simulated CPUs and simulated time.

use std::io;
use std::time::Duration;

pub(crate) use octavo_sim::atomic::AtomicU64;
pub(crate) use octavo_sim::{now, thread, work};
pub(crate) use octavo_simulated as octavo;

pub(crate) use octavo_sim::Report as Profile;
pub(crate) use octavo_sim::{profile as end, restart_profile as begin};

/// Starts a thread on a CPU.
pub(crate) fn spawn_on<T: Send + 'static>(
    cpu: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<thread::JoinHandle<T>> {
    thread::Builder::new().cpu(cpu).spawn(work)
}

/// Lets other threads get ready.
pub(crate) fn rest() {
    thread::sleep(Duration::from_micros(1));
}

#[path = "../workloads/mod.rs"]
pub(crate) mod workloads;
