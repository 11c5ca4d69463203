//! Memory as a device: `submit` copies and completes. It simulates persistent memory, to measure all costs
//! except a device's. The memory is outside the budget.

use octavo_platform::ArenaBytes;

use super::device::{Device, Submitted, capacity_pages};
use super::transfer::{Direction, Transfer, Urgency};
use crate::error::{Error, Result};
use crate::units::{PAGE_BYTES, bytes_for_people};

/// Memory as a [`Device`], for tests and measurements.
#[derive(Debug)]
pub struct RamDevice {
    memory: ArenaBytes,
    capacity_pages: u32,
}

impl RamDevice {
    /// A device of `bytes`, which the kernel gives as they are written.
    ///
    /// # Errors
    /// [`crate::ErrorKind::SwapUnavailable`] for less than a page. [`crate::ErrorKind::System`] if there
    /// is no address space.
    pub(super) fn new(bytes: u64) -> Result<Self> {
        let capacity_pages = capacity_pages(bytes)?;
        let memory = ArenaBytes::new(capacity_pages as usize * PAGE_BYTES)
            .map_err(|error| Error::system("cannot reserve memory for the swap device", &error))?;
        Ok(Self { memory, capacity_pages })
    }
}

impl Device for RamDevice {
    fn capacity_pages(&self) -> u32 {
        self.capacity_pages
    }

    fn submit(&self, transfer: Transfer, _urgency: Urgency) -> Submitted {
        let (arena, mut at) = (transfer.arena(), transfer.place() as usize * PAGE_BYTES);
        for segment in transfer.segments() {
            let len = segment.end - segment.start;
            match transfer.direction() {
                Direction::Write => arena.copy_to(segment.start, &self.memory, at, len),
                Direction::Read => self.memory.copy_to(at, arena, segment.start, len),
            }
            at += len;
        }
        transfer.complete(Ok(()));
        Submitted::Accepted
    }

    fn describe(&self) -> String {
        let bytes = u64::from(self.capacity_pages) * PAGE_BYTES as u64;
        format!("the swap device in {} of memory", bytes_for_people(bytes))
    }
}
