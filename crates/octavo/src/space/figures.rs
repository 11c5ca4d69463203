//! The memory and swap of a space, as a whole and by region.

use crate::engine::Figure;
use crate::error::Result;
use crate::region::AccessPattern;
use crate::space::Space;
use crate::space::ranges::page_range;
use crate::table::entry::State;
use crate::table::{PageNumberRange, Protection};
use crate::units::{PAGE_SHIFT, PageNumber};

/// Reports how much memory and swap a space uses, from [`Space::stats`]. The figures are from about the
/// same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SpaceStats {
    /// Bytes of all regions.
    pub mapped_bytes: u64,
    /// Bytes that have frames now. Zero pages without frames do not count.
    pub resident_bytes: u64,
    /// The most bytes that may have frames, if a quota is set.
    pub quota_bytes: Option<u64>,
    /// Bytes that have come back from swap so far.
    pub swapped_in_bytes: u64,
    /// Bytes that have gone out so far.
    pub swapped_out_bytes: u64,
    /// The part of `swapped_out_bytes` that went out because of the quota.
    pub quota_out_bytes: u64,
}

/// Reports how much of a range is in memory and how much is out, from [`Space::range_stats`], at about one
/// moment. All other pages have not been touched, were freed, or were being changed at that moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RangeStats {
    /// Bytes that have frames.
    pub resident_bytes: u64,
    /// The part of the resident bytes in blocks of 2 MiB.
    pub huge_bytes: u64,
    /// The part of the resident bytes that is in windows and the like ([`crate::translation`]).
    pub away_bytes: u64,
    /// Bytes that are out: compressed in memory, on a device, or known to be one repeated value.
    pub swapped_bytes: u64,
    /// Bytes that were only read so far, and show zeros without memory.
    pub zero_bytes: u64,
}

/// Describes a mapped region and where its pages are, from [`Space::region_stats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RegionStats {
    /// The first address.
    pub address: u64,
    /// The length in bytes.
    pub bytes: u64,
    /// The accesses that are allowed there.
    pub protection: Protection,
    /// Whether only guards can access it.
    pub guarded: bool,
    /// The order of accesses that the program announced.
    pub pattern: AccessPattern,
    /// Where its pages are.
    pub pages: RangeStats,
}

/// # What it uses
impl Space {
    /// Returns the memory and swap that the space uses.
    ///
    /// # Errors
    /// `ForkedChild` in a forked child.
    pub fn stats(&self) -> Result<SpaceStats> {
        let _inside = self.engine.enter()?;
        let figure = |figure| self.engine.space_use.get(self.state.id, figure) << PAGE_SHIFT;
        Ok(SpaceStats {
            mapped_bytes: self.state.regions.writer().mapped_pages() << PAGE_SHIFT,
            resident_bytes: figure(Figure::Resident),
            quota_bytes: self.state.quota.pages().map(|pages| pages << PAGE_SHIFT),
            swapped_in_bytes: figure(Figure::SwapIn),
            swapped_out_bytes: figure(Figure::SwapOut),
            quota_out_bytes: figure(Figure::QuotaOut),
        })
    }

    /// Returns where the pages of a range are. Takes time for each page that was touched. Other threads
    /// may fault, map and unmap meanwhile.
    ///
    /// # Errors
    /// `InvalidRange` as [`Space::map_at`]; `ForkedChild` in a forked child.
    pub fn range_stats(&self, address: u64, len: u64) -> Result<RangeStats> {
        let _inside = self.engine.enter()?;
        Ok(self.count_pages(page_range(address, len)?))
    }

    /// Returns all regions, by address, and where their pages are, as `/proc/PID/smaps` does for a
    /// process. Neighbouring regions with the same options are reported as one. Takes as long as
    /// [`Space::range_stats`].
    ///
    /// # Errors
    /// `ForkedChild` in a forked child.
    pub fn region_stats(&self) -> Result<Vec<RegionStats>> {
        let _inside = self.engine.enter()?;
        let all = PageNumberRange::from(PageNumber(0));
        let regions = self.state.regions.writer().overlapping(all.start, all.end);
        let stats = regions.into_iter().map(|region| RegionStats {
            address: region.start.address(),
            bytes: (region.end.0 - region.start.0) << PAGE_SHIFT,
            protection: region.options.protection,
            guarded: region.options.guarded,
            pattern: region.options.pattern,
            pages: self.count_pages(PageNumberRange { start: region.start, end: region.end }),
        });
        Ok(stats.collect())
    }

    fn count_pages(&self, range: PageNumberRange) -> RangeStats {
        let mut stats = RangeStats::default();
        let mut walks = self.engine.table.walks(self.state.id, range);
        loop {
            let first = walks.page();
            let Some(walk) = walks.next() else { return stats };
            if !walk.links_hold() {
                // The node may be part of another table by now.
                walks.go_on_from(first);
                continue;
            }
            let bytes = (walks.page().min(range.end).0 - first.0) << PAGE_SHIFT;
            match walk.entry().state() {
                State::Present(_) => {
                    stats.resident_bytes += bytes;
                    stats.huge_bytes += if walk.level == 1 { bytes } else { 0 };
                    stats.away_bytes += if walk.entry().is_away() { bytes } else { 0 };
                }
                State::Swapped(_) => stats.swapped_bytes += bytes,
                State::Zero => stats.zero_bytes += bytes,
                // The place of a page that is being changed is unknown.
                State::Empty | State::Busy | State::Node(_) => {}
            }
        }
    }
}
