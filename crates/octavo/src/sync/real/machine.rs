//! The machine that this process runs on.

use std::sync::LazyLock;
use std::time::Instant;

use octavo_platform::usage;

use crate::sync::Duration;
use crate::sync::machine::MachineMemory;

pub(crate) use octavo_platform::rseq::current_cpu;
pub(crate) use octavo_platform::usage::possible_cpus;

/// The moment from which times are counted.
static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

pub(crate) fn time() -> Duration {
    let beginning = *BEGINNING;
    Instant::now().saturating_duration_since(beginning)
}

pub(crate) fn memory() -> MachineMemory {
    MachineMemory { bytes: usage::machine_memory_bytes(), usable_bytes: usage::usable_memory_bytes() }
}

pub(crate) fn fill_random(bytes: &mut [u8]) -> std::io::Result<()> {
    Ok(getrandom::fill(bytes)?)
}

/// Returns an address for a hash. Runs on a real machine differ in any case, so every address is suitable.
#[inline]
pub(crate) fn stable_address(address: usize) -> usize {
    address
}

/// Does nothing: only a simulation needs to know of accesses to the bytes of pages.
#[inline(always)]
pub(crate) fn reach_bytes() {}
