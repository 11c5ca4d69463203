//! The kernel's data about each page of a process (`/proc/PID/pagemap`).
//!
//! [`Pagemap::scan`] walks a range and calls back for each run of pages with equal properties
//! (`PAGEMAP_SCAN`, Linux 6.7). [`Pagemap::entries`] reads the older words. Only these words tell whether a
//! single process maps a page.
//!
//! Neither call touches a page: a missing page stays missing, and no fault occurs. Both answers may be out of
//! date at once, since the process runs on.
//!
//! Cost: a scan takes about 5 ms per GiB of small pages.

use std::fs::File;
use std::io;
use std::ops::BitOr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use crate::PAGE_BYTES;

/// Properties of a page, joined by `|`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Categories(u64);

impl Categories {
    /// No properties.
    pub const NONE: Self = Self(0);
    /// The page may be write-protected by userfaultfd in its asynchronous mode.
    pub const PROTECTABLE: Self = Self(1);
    /// The page is not write-protected by userfaultfd. A missing page of an unprotected range has this
    /// property too.
    pub const WRITTEN: Self = Self(1 << 1);
    /// The page belongs to a file or to shared memory.
    pub const FILE: Self = Self(1 << 2);
    /// The page is in memory.
    pub const PRESENT: Self = Self(1 << 3);
    /// The page is in the kernel's swap. A marker of userfaultfd counts too.
    pub const SWAPPED: Self = Self(1 << 4);
    /// The page is the kernel's shared zero page.
    pub const ZERO: Self = Self(1 << 5);
    /// The page is part of a huge page that is mapped as a whole.
    pub const HUGE: Self = Self(1 << 6);

    /// Returns whether all of `other` are among these.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Categories {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The pages for which a scan calls back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanFilter {
    /// A page must have all of these.
    pub all_of: Categories,
    /// A page must have at least one of these, unless this is empty.
    pub any_of: Categories,
    /// A page must have none of these.
    pub none_of: Categories,
    /// The properties that a run reports. Pages that differ in any of these belong to different runs.
    pub told: Categories,
}

impl ScanFilter {
    /// Wants pages with any of these properties, and reports the same properties.
    pub const fn any(categories: Categories) -> Self {
        Self { all_of: Categories::NONE, any_of: categories, none_of: Categories::NONE, told: categories }
    }
}

/// Pages in a row with the same properties.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageRun {
    /// The address of the first page.
    pub start: u64,
    /// The end of the last page.
    pub end: u64,
    /// The properties, restricted to [`ScanFilter::told`].
    pub categories: Categories,
}

/// A bit of an [entry](Pagemap::entries): the page was stored to since such bits were last cleared
/// (`/proc/PID/clear_refs`). Few kernels have it.
pub const SOFT_DIRTY: u64 = 1 << 55;
/// A bit of an [entry](Pagemap::entries): only one process maps the page.
pub const EXCLUSIVE: u64 = 1 << 56;
/// A bit of an [entry](Pagemap::entries): the page belongs to a file or to shared memory.
pub const FILE_OR_SHARED: u64 = 1 << 61;
/// A bit of an [entry](Pagemap::entries): the page is in the kernel's swap.
pub const SWAPPED: u64 = 1 << 62;
/// A bit of an [entry](Pagemap::entries): the page is in memory.
pub const PRESENT: u64 = 1 << 63;

/// The open pagemap of one process. The open file stays with the memory that the process had when the file
/// was opened.
#[derive(Debug)]
pub struct Pagemap(File);

impl Pagemap {
    /// Opens the pagemap of a process.
    ///
    /// Fails with the kernel's error: `NotFound` if there is no such process, `PermissionDenied` for another
    /// user's.
    pub fn of(pid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/pagemap")).map(Self)
    }

    /// Calls `each` for every run of wanted pages between two addresses, in rising order. Both addresses are
    /// multiples of a page. A run may arrive in several parts.
    ///
    /// Fails with the kernel's error: `Unsupported` before Linux 6.7, `ESRCH` if the process has ended.
    pub fn scan(
        &self,
        start: u64,
        end: u64,
        wanted: ScanFilter,
        mut each: impl FnMut(PageRun),
    ) -> io::Result<()> {
        const RUNS: usize = 256;
        let mut runs = [PageRun::default(); RUNS];
        let mut from = start;
        while from < end {
            let mut request = ScanRequest {
                size: size_of::<ScanRequest>() as u64,
                start: from,
                end,
                runs: runs.as_mut_ptr() as u64,
                runs_len: RUNS as u64,
                // To ask for an absent bit, invert it and demand that it is set.
                inverted: wanted.none_of.0,
                all_of: wanted.all_of.0 | wanted.none_of.0,
                any_of: wanted.any_of.0,
                told: wanted.told.0,
                ..ScanRequest::default()
            };
            // SAFETY: the request and the array that it names are live for the call, and the array has the
            // stated length. Without flags the call changes nothing in the process.
            let found = unsafe { libc::ioctl(self.0.as_raw_fd(), SCAN, &raw mut request) };
            if found < 0 {
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::EINTR) => continue,
                    Some(libc::ENOTTY) => return Err(io::ErrorKind::Unsupported.into()),
                    _ => return Err(error),
                }
            }
            runs[..found as usize].iter().copied().for_each(&mut each);
            if request.walk_end <= from {
                return Err(io::Error::other("the kernel's scan of pages does not advance"));
            }
            from = request.walk_end;
        }
        Ok(())
    }

    /// Reads the classic words of `pages` pages from an address on. Their bits are [`EXCLUSIVE`],
    /// [`FILE_OR_SHARED`], [`SWAPPED`] and [`PRESENT`]. The answer is shorter if the address space ends
    /// before that.
    ///
    /// Fails with the kernel's error.
    pub fn entries(&self, start: u64, pages: usize) -> io::Result<Vec<u64>> {
        let mut bytes = vec![0; pages * 8];
        let mut filled = 0;
        while filled < bytes.len() {
            let offset = start / PAGE_BYTES as u64 * 8 + filled as u64;
            match self.0.read_at(&mut bytes[filled..], offset) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let words = bytes[..filled].chunks_exact(8);
        Ok(words.map(|word| u64::from_ne_bytes(word.try_into().expect("chunks of 8"))).collect())
    }
}

/// `PAGEMAP_SCAN`.
const SCAN: u64 = (3 << 30) | ((size_of::<ScanRequest>() as u64) << 16) | ((b'f' as u64) << 8) | 16;

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Debug, Default)]
struct ScanRequest {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    runs: u64,
    runs_len: u64,
    max_pages: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    told: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backing, Reservation};

    const PAGE: u64 = PAGE_BYTES as u64;

    fn range_with_pages(pages: &[usize], of: usize) -> (Reservation, u64) {
        let range = Reservation::new(of * PAGE_BYTES, 2 << 20).unwrap();
        range.advise_backing(0..of * PAGE_BYTES, Backing::BasePages);
        for page in pages {
            range.populate(page * PAGE_BYTES..(page + 1) * PAGE_BYTES).unwrap();
        }
        let start = range.base().as_ptr() as u64;
        (range, start)
    }

    #[test]
    fn a_scan_finds_the_present_pages_and_no_others() {
        let (_range, start) = range_with_pages(&[1, 2, 5], 8);
        let pagemap = Pagemap::of(std::process::id()).unwrap();
        let mut runs = Vec::new();
        pagemap
            .scan(start, start + 8 * PAGE, ScanFilter::any(Categories::PRESENT), |run| runs.push(run))
            .unwrap();
        let run = |from: u64, to: u64| PageRun {
            start: start + from * PAGE,
            end: start + to * PAGE,
            categories: Categories::PRESENT,
        };
        assert_eq!(runs, [run(1, 3), run(5, 6)]);
    }

    #[test]
    fn a_scan_of_more_runs_than_one_call_returns_is_complete() {
        let pages: Vec<usize> = (0..1000).map(|page| 2 * page).collect();
        let (_range, start) = range_with_pages(&pages, 2000);
        let pagemap = Pagemap::of(std::process::id()).unwrap();
        let mut found = Vec::new();
        pagemap
            .scan(start, start + 2000 * PAGE, ScanFilter::any(Categories::PRESENT), |run| {
                found.extend((run.start..run.end).step_by(PAGE_BYTES).map(|a| ((a - start) / PAGE) as usize));
            })
            .unwrap();
        assert_eq!(found, pages);
    }

    #[test]
    fn a_scan_for_absent_pages_tells_the_holes() {
        let (_range, start) = range_with_pages(&[0, 3], 4);
        let pagemap = Pagemap::of(std::process::id()).unwrap();
        let wanted = ScanFilter {
            all_of: Categories::NONE,
            any_of: Categories::NONE,
            none_of: Categories::PRESENT | Categories::SWAPPED,
            told: Categories::PRESENT,
        };
        let mut holes = 0;
        pagemap.scan(start, start + 4 * PAGE, wanted, |run| holes += run.end - run.start).unwrap();
        assert_eq!(holes, 2 * PAGE);
    }

    #[test]
    fn entries_tell_present_and_exclusive_pages() {
        let (_range, start) = range_with_pages(&[1], 3);
        let entries = Pagemap::of(std::process::id()).unwrap().entries(start, 3).unwrap();
        assert_eq!(entries.len(), 3);
        assert_eq!(entries[0] & (PRESENT | SWAPPED), 0);
        assert_eq!(entries[1] & (PRESENT | EXCLUSIVE | FILE_OR_SHARED), PRESENT | EXCLUSIVE);
    }
}
