//! The machine of a model: its time stands still, it has two CPUs, and its random bytes are the same each
//! time.

use crate::sync::Duration;
use crate::sync::machine::MachineMemory;

pub(crate) use super::percpu::current_cpu;

pub(crate) fn possible_cpus() -> usize {
    2
}

pub(crate) fn time() -> Duration {
    Duration::ZERO
}

pub(crate) fn memory() -> MachineMemory {
    MachineMemory { bytes: 1 << 30, usable_bytes: 1 << 30 }
}

pub(crate) fn fill_random(bytes: &mut [u8]) -> std::io::Result<()> {
    bytes.fill(4);
    Ok(())
}

/// Returns an address for a hash. Models have few words, so every address is suitable.
pub(crate) fn stable_address(address: usize) -> usize {
    address
}

/// Does nothing: a model does not explore accesses to the bytes of pages.
#[inline(always)]
pub(crate) fn reach_bytes() {}
