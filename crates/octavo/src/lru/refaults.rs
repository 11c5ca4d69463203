//! How much more memory would have kept the pages that came back in memory.
//!
//! If a page returns after `d` pages have gone out, it would have stayed with room for `d` more pages. For an
//! LRU, this is exact (Mattson, Gecsei, Slutz and Traiger, *Evaluation techniques for storage hierarchies*,
//! 1970). For other policies, it is an estimate, which Linux uses too (`mm/workingset.c`). Cost: one addition
//! on a line of this CPU for each page that returns.

use hdrhistogram::Histogram;

use crate::latency::{BUCKETS, bucket_of, histogram_of};
use crate::policy::{Arrival, Shadow};
use crate::sync::percpu::PerCpuCells;
use crate::units::PAGE_SHIFT;

/// For each page that returned, how many pages had gone out meanwhile.
#[derive(Debug)]
pub(crate) struct Refaults {
    cells: PerCpuCells,
}

impl Refaults {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { cells: PerCpuCells::new(BUCKETS)? })
    }

    /// Counts a page that arrives at the time `now`, if it returns.
    #[inline]
    pub(crate) fn note(&self, arrival: Arrival, now: Shadow) {
        if let Some(shadow) = arrival.shadow() {
            self.cells.add(bucket_of(shadow.until(now)), 1);
        }
    }

    pub(crate) fn snapshot(&self) -> RefaultSnapshot {
        RefaultSnapshot { counts: (0..BUCKETS).map(|bucket| self.cells.sum(bucket)).collect() }
    }
}

/// How much more memory would have kept in memory the pages that came back since the manager was built, from
/// [`Manager::refaults`](crate::Manager::refaults). The figures are accurate to some percent, as long as the
/// program's use of memory stays the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefaultSnapshot {
    counts: Vec<u64>,
}

impl RefaultSnapshot {
    /// Returns how many pages came back.
    pub fn pages(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns how many more bytes of memory would have kept this share (0 to 1) of the pages in memory.
    /// Returns `None` if no page came back.
    pub fn bytes_to_keep(&self, share: f64) -> Option<u64> {
        let histogram = self.histogram();
        (!histogram.is_empty()).then(|| histogram.value_at_quantile(share) << PAGE_SHIFT)
    }

    /// Returns the histogram of how many more pages of memory each page would have needed to stay.
    pub fn histogram(&self) -> Histogram<u64> {
        histogram_of(self.counts.iter().copied())
    }

    /// Returns the figures for the pages that came back since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let counts = self.counts.iter().zip(&earlier.counts).map(|(now, then)| now.wrapping_sub(*then));
        Self { counts: counts.collect() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_page_would_have_stayed_with_as_much_more_memory_as_went_out_meanwhile() {
        let refaults = Refaults::new().unwrap();
        let shadow = Shadow::at(1000);
        refaults.note(Arrival::Fresh, shadow);
        let before = refaults.snapshot();
        assert_eq!((before.pages(), before.bytes_to_keep(0.5)), (0, None));
        for went_out in [1600, 1600, 16_000, 160_000] {
            refaults.note(Arrival::Back(shadow), Shadow::at(1000 + went_out));
        }
        let near = |share, pages: u64| {
            let found = refaults.snapshot().bytes_to_keep(share).unwrap() >> PAGE_SHIFT;
            assert!(found.abs_diff(pages) <= pages / 12, "{found} for {pages}");
        };
        near(0.5, 1600);
        near(0.75, 16_000);
        near(1.0, 160_000);
        assert_eq!(refaults.snapshot().since(&before).pages(), 4);
    }
}
