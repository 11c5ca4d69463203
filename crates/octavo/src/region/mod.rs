//! Regions: which ranges of a space are mapped, with what permissions and backing.

mod list;

pub(crate) use list::{RegionList, RegionWriter};

use crate::table::Protection;
use crate::units::PageNumber;

/// How a region behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionOptions {
    pub(crate) protection: Protection,
    pub(crate) huge: bool,
}

impl Default for RegionOptions {
    /// Readable, writable, base pages.
    fn default() -> Self {
        Self { protection: Protection::READ_WRITE, huge: false }
    }
}

impl RegionOptions {
    /// Readable, writable, base pages.
    pub fn new() -> Self {
        Self::default()
    }

    /// What may be done with the region's pages.
    #[must_use]
    pub fn protection(mut self, protection: Protection) -> Self {
        self.protection = protection.normal();
        self
    }

    /// Asks for 2 MiB blocks on write faults, where [`crate::HugePolicy::Advised`] is in force.
    #[must_use]
    pub fn huge(mut self, huge: bool) -> Self {
        self.huge = huge;
        self
    }
}

/// A range of pages with one backing and one set of permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) start: PageNumber,
    pub(crate) end: PageNumber,
    pub(crate) options: RegionOptions,
}

impl Region {
    #[inline]
    pub(crate) fn contains(&self, page: PageNumber) -> bool {
        self.start <= page && page < self.end
    }

    /// Whether the aligned 2 MiB around `page` lies in this region.
    #[inline]
    pub(crate) fn contains_huge(&self, page: PageNumber) -> bool {
        let start = page.huge_start();
        self.start <= start && start.plus(u64::from(crate::units::CHUNK_FRAMES)) <= self.end
    }
}
