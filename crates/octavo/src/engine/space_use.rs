//! How much each space uses: pages in memory, pages that came in, and pages that went out.
//!
//! Like counters, each figure of a space has a cell per CPU. An addition writes a line that only this CPU
//! writes. A read sums over the CPUs. So no frequent path reads figures, except under a quota.

use crate::sync::percpu::PerCpuCells;
use crate::sync::{AtomicU64, Ordering};
use crate::table::SpaceId;
use crate::units::PageNumber;

/// A figure kept for each space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    /// Pages that entries of the space show now.
    Resident,
    /// Pages that came back from swap.
    SwapIn,
    /// Pages that were sent on their way out.
    SwapOut,
    /// Pages that were sent out because of the space's quota.
    QuotaOut,
}

const FIGURES: usize = 4;

/// The figures of all spaces.
#[derive(Debug)]
pub(crate) struct SpaceUse {
    cells: PerCpuCells,
}

impl SpaceUse {
    pub(crate) fn new(max_spaces: usize) -> std::io::Result<Self> {
        Ok(Self { cells: PerCpuCells::new(FIGURES * max_spaces)? })
    }

    #[inline]
    pub(crate) fn add(&self, space: SpaceId, figure: Figure, n: u64) {
        self.cells.add(Self::index(space, figure), n);
    }

    #[inline]
    pub(crate) fn subtract(&self, space: SpaceId, figure: Figure, n: u64) {
        self.add(space, figure, n.wrapping_neg());
    }

    /// Returns the approximate figure: other threads may be changing it.
    pub(crate) fn get(&self, space: SpaceId, figure: Figure) -> u64 {
        // A page may be added on one CPU and subtracted on another, so the sum may be below zero for a
        // moment.
        (self.cells.sum(Self::index(space, figure)) as i64).max(0) as u64
    }

    /// Clears the totals, all figures but Resident, of a space number that is about to be reused.
    pub(crate) fn forget(&self, space: SpaceId) {
        for figure in [Figure::SwapIn, Figure::SwapOut, Figure::QuotaOut] {
            self.subtract(space, figure, self.cells.sum(Self::index(space, figure)));
        }
    }

    fn index(space: SpaceId, figure: Figure) -> usize {
        space.0 as usize * FIGURES + figure as usize
    }
}

/// A space's quota, and the position of its clock's hand.
#[derive(Debug)]
pub(crate) struct Quota {
    pages: AtomicU64,
    hand: AtomicU64,
}

impl Default for Quota {
    fn default() -> Self {
        Self { pages: AtomicU64::new(u64::MAX), hand: AtomicU64::new(0) }
    }
}

impl Quota {
    /// Returns how many pages the space may have in memory. `None` means as many as the budget allows.
    #[inline]
    pub(crate) fn pages(&self) -> Option<u64> {
        Some(self.pages.load(Ordering::Relaxed)).filter(|pages| *pages != u64::MAX)
    }

    pub(crate) fn set_pages(&self, pages: Option<u64>) {
        self.pages.store(pages.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn hand(&self) -> PageNumber {
        PageNumber(self.hand.load(Ordering::Relaxed))
    }

    /// Moves the hand. If two threads move it at once, some pages are only looked at twice.
    pub(crate) fn set_hand(&self, page: PageNumber) {
        self.hand.store(page.0, Ordering::Relaxed);
    }
}
