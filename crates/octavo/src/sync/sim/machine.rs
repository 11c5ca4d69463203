//! The simulated machine: its clock, its CPUs, more memory than any budget, and random bytes that follow from
//! the seed.

use crate::sync::machine::MachineMemory;

pub(crate) use octavo_sim::{current_cpu, now as time, possible_cpus, reach_bytes, stable_address};

pub(crate) fn memory() -> MachineMemory {
    MachineMemory { bytes: 1 << 42, usable_bytes: 1 << 42 }
}

pub(crate) fn fill_random(bytes: &mut [u8]) -> std::io::Result<()> {
    octavo_sim::fill_random(bytes);
    Ok(())
}
