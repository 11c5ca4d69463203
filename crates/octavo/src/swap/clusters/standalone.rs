//! The slots of one area alone, for measurements.

use super::{AreaShape, Clusters, SlotRequest, SlotRun};
use crate::budget::Budget;
use crate::sync::Arc;
use crate::sync::Cpus;
use crate::units::SwapSlot;

/// The slots of an area without a device. Not for programs.
#[derive(Debug)]
pub struct StandaloneSlots(Clusters);

impl StandaloneSlots {
    /// Makes `capacity_pages` free slots.
    ///
    /// # Errors
    /// The kernel's error, if the address space is exhausted.
    pub fn new(capacity_pages: u32) -> std::io::Result<Self> {
        let shape = AreaShape { capacity_pages, priority: 0 };
        let budget = Arc::new(Budget::new(u64::MAX));
        Ok(Self(Clusters::new(&[shape], budget, 0, Cpus::real())?))
    }

    /// Takes a run of up to `count` slots. Returns the first slot and the length.
    pub fn allocate(&self, count: u32) -> Option<(u32, u32)> {
        self.0
            .allocate(count, SlotRequest { may_grow: true, shunned: &[] })
            .map(|run| (run.first.0, run.count))
    }

    /// Frees a run, or a part of one.
    pub fn free(&self, first: u32, count: u32) {
        self.0.free_run(SlotRun { first: SwapSlot(first), count });
    }
}
