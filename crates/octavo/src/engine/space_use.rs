//! How much each space uses: pages in memory, pages that came in, and pages that went out.
//!
//! Each CPU, space and figure has a cell, as counters have. An addition writes a line that only this CPU
//! writes. A reading sums over the CPUs. So only threads under a quota, and users who ask, read figures.

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
    /// Of the pages sent out, those that went because of the space's quota.
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

    /// Returns about the present figure. Other threads may be adding.
    pub(crate) fn get(&self, space: SpaceId, figure: Figure) -> u64 {
        // While a page's count moves from CPU to CPU, the sum may be one below zero.
        (self.cells.sum(Self::index(space, figure)) as i64).max(0) as u64
    }

    /// Clears the figures of a space number that is about to be used anew.
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
    /// Returns the pages that the space may have in memory. `None` means as many as the budget allows.
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

    /// Moves the hand. Two threads at once only look at some pages twice.
    pub(crate) fn set_hand(&self, page: PageNumber) {
        self.hand.store(page.0, Ordering::Relaxed);
    }
}
