//! Regions: the mapped ranges of a space, with their permissions and backing.

mod list;

pub(crate) use list::{RegionList, RegionWriter};

use crate::table::Protection;
use crate::units::{FileId, PageNumber};

/// The order in which a program will access the pages of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub enum AccessPattern {
    /// Octavo detects a sequential order, and reads further and further ahead while it lasts.
    #[default]
    Normal,
    /// One page after the other. Octavo reads far ahead from the start.
    Sequential,
    /// In no order. Octavo reads nothing ahead.
    Random,
}

/// How a range is mapped, for [`Space::map`](crate::Space::map): permissions, block size, access order,
/// compression, guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionOptions {
    pub(crate) protection: Protection,
    pub(crate) huge: bool,
    pub(crate) pattern: AccessPattern,
    pub(crate) compress: bool,
    pub(crate) guarded: bool,
    /// The part of a file that the region shows, if it shows one.
    pub(crate) file: Option<FilePart>,
}

/// The part of a file that a region shows. All pages of a region have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FilePart {
    pub(crate) file: FileId,
    /// The page of the file that page 0 of the space would show. It wraps.
    origin: u64,
    /// Pages that are written become the space's own.
    pub(crate) is_private: bool,
    /// The file was not opened for writing.
    pub(crate) is_read_only: bool,
}

impl FilePart {
    pub(crate) fn new(file: FileId, is_private: bool, is_read_only: bool) -> Self {
        Self { file, origin: 0, is_private, is_read_only }
    }

    /// The part that shows page `first` of the file at page `at` of the space.
    pub(crate) fn showing(self, first: u64, at: PageNumber) -> Self {
        Self { origin: first.wrapping_sub(at.0), ..self }
    }

    /// Returns whether the region's pages may be written.
    pub(crate) fn allows(&self, protection: Protection) -> bool {
        self.is_private || !self.is_read_only || !protection.write
    }

    /// Returns the page of the file that a page of the space shows.
    #[inline]
    pub(crate) fn page_at(&self, page: PageNumber) -> u64 {
        page.0.wrapping_add(self.origin)
    }
}

impl Default for RegionOptions {
    /// Readable and writable base pages, accessed in any order, and compressed if that pays.
    fn default() -> Self {
        let pattern = AccessPattern::Normal;
        Self {
            protection: Protection::READ_WRITE,
            huge: false,
            pattern,
            compress: true,
            guarded: false,
            file: None,
        }
    }
}

impl RegionOptions {
    /// Returns the default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets which accesses to the region's pages are allowed.
    #[must_use]
    pub fn protection(mut self, protection: Protection) -> Self {
        self.protection = protection.normal();
        self
    }

    /// Sets whether write faults take 2 MiB blocks. The default is no. For large data that is written
    /// densely, this means fewer faults, but the first byte costs 2 MiB. It needs
    /// [`crate::HugePolicy::Advised`] (the default), and 2 MiB that are aligned, empty and inside the region.
    #[must_use]
    pub fn huge(mut self, huge: bool) -> Self {
        self.huge = huge;
        self
    }

    /// Sets the order in which the program will access the pages.
    #[must_use]
    pub fn pattern(mut self, pattern: AccessPattern) -> Self {
        self.pattern = pattern;
        self
    }

    /// Sets whether pages may be compressed on their way out. The default is yes. For data that does not
    /// compress, `false` saves the attempt.
    #[must_use]
    pub fn compress(mut self, compress: bool) -> Self {
        self.compress = compress;
        self
    }

    /// Sets whether the pages can be reached only through guards, which lend their bytes:
    /// [`Space::shared`](crate::Space::shared), [`Space::exclusive`](crate::Space::exclusive),
    /// [`Space::optimistic`](crate::Space::optimistic). Any other access is then an error. Such a region is
    /// always readable and writable. Its pages take memory from the first access on, even if that is a read.
    #[must_use]
    pub fn guarded(mut self, guarded: bool) -> Self {
        self.guarded = guarded;
        self
    }

    /// Returns the protection for the entries of the region's pages.
    #[inline]
    pub(crate) fn entry_protection(&self) -> Protection {
        if self.guarded { Protection::GUARDED } else { self.protection }
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

    /// Returns whether the aligned 2 MiB around `page` lie in this region.
    #[inline]
    pub(crate) fn contains_huge(&self, page: PageNumber) -> bool {
        let start = page.huge_start();
        self.start <= start && start.plus(u64::from(crate::units::CHUNK_FRAMES)) <= self.end
    }
}
