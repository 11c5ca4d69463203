//! Per-CPU cells and stacks.

use super::{AtomicU64, Ordering, WordArray};

/// `counters` cells for each CPU, added to by its own CPU, summed by anyone.
#[derive(Debug)]
pub(crate) struct PerCpuCells {
    cells: WordArray<AtomicU64>,
}

impl PerCpuCells {
    pub(crate) fn new(counters: usize) -> std::io::Result<Self> {
        Ok(Self { cells: WordArray::new(counters)? })
    }

    #[inline]
    pub(crate) fn add(&self, index: usize, n: u64) {
        self.cells[index].fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn sum(&self, index: usize) -> u64 {
        self.cells[index].load(Ordering::Relaxed)
    }
}
