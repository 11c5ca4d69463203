//! Regions: which ranges of a space are mapped, with what permissions and backing.

mod list;

pub(crate) use list::{RegionList, RegionWriter};

use crate::table::Protection;
use crate::units::PageNumber;

/// In which order the pages of a region are going to be accessed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessPattern {
    /// It will be seen: runs of faults at one stride are read ahead in windows that grow.
    #[default]
    Normal,
    /// One after the other: windows are as large as may be from the start.
    Sequential,
    /// In no order: nothing is read ahead.
    Random,
}

/// How a region behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionOptions {
    pub(crate) protection: Protection,
    pub(crate) huge: bool,
    pub(crate) pattern: AccessPattern,
    pub(crate) compress: bool,
}

impl Default for RegionOptions {
    /// Readable, writable, base pages, accessed in any order, compressed where that pays.
    fn default() -> Self {
        let pattern = AccessPattern::Normal;
        Self { protection: Protection::READ_WRITE, huge: false, pattern, compress: true }
    }
}

impl RegionOptions {
    /// As the default.
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

impl RegionOptions {
    /// In which order the pages are going to be accessed.
    #[must_use]
    pub fn pattern(mut self, pattern: AccessPattern) -> Self {
        self.pattern = pattern;
        self
    }

    /// Whether pages may be compressed on their way out (the default). For data known not to shrink, `false` saves the
    /// attempt.
    #[must_use]
    pub fn compress(mut self, compress: bool) -> Self {
        self.compress = compress;
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
