//! A range of address space, reserved once and unmapped on drop.
//!
//! The kernel faults pages in at their first touch, as zeros; [`Reservation::populate`] does so ahead of
//! time. [`Reservation::discard`] gives pages back. The range itself never moves.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use crate::PAGE_BYTES;

/// The page size by which the kernel should back a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// 4 KiB pages only. The kernel can move a single page in and out without splitting a huge one.
    BasePages,
    /// 2 MiB pages where the kernel has them.
    HugePages,
}

/// A private anonymous range of addresses. It is readable and writable, and the kernel does not count it as
/// committed memory.
#[derive(Debug)]
pub struct Reservation {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the reservation is a range of addresses and hands out a raw pointer only. Every user of that
// pointer states its own rule for concurrent access.
unsafe impl Send for Reservation {}
// SAFETY: as above. `populate`, `discard` and the advice are system calls, which any number of threads may
// make.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves `len` bytes, rounded up to pages. `align` is a power of two and at least a page.
    ///
    /// Fails with the kernel's error if the address space is exhausted or limited (`RLIMIT_AS`).
    pub fn new(len: usize, align: usize) -> io::Result<Self> {
        assert!(align.is_power_of_two() && align >= PAGE_BYTES, "alignment is a power of two of pages");
        let len = len.max(1).next_multiple_of(PAGE_BYTES);
        let padded = len.checked_add(align - PAGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a fresh private anonymous mapping at an address that the kernel chooses touches no memory
        // that anyone else knows of.
        let raw = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                padded,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if raw == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = raw as usize;
        let aligned = start.next_multiple_of(align);
        let (head, tail) = (aligned - start, padded - (aligned - start) - len);
        // SAFETY: both trimmed pieces lie in the mapping just made, outside the part that is kept. No pointer
        // into them exists.
        unsafe {
            if head > 0 {
                libc::munmap(raw, head);
            }
            if tail > 0 {
                libc::munmap((aligned + len) as *mut libc::c_void, tail);
            }
        }
        let base = NonNull::new(aligned as *mut u8).expect("mmap never returns null without MAP_FIXED");
        Ok(Self { base, len })
    }

    /// Returns the first byte. The pointer is valid for [`Reservation::len`] bytes while `self` lives.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the length in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a reservation is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Asks the kernel to back the range as given. A kernel without transparent huge pages ignores the
    /// request.
    pub fn advise_backing(&self, range: Range<usize>, backing: Backing) {
        let advice = match backing {
            Backing::BasePages => libc::MADV_NOHUGEPAGE,
            Backing::HugePages => libc::MADV_HUGEPAGE,
        };
        // A kernel that lacks the feature only costs speed.
        let _ = self.madvise(range, advice);
    }

    /// Asks the kernel to start reading the range's pages from its swap.
    pub fn advise_will_need(&self, range: Range<usize>) {
        // A refusal does no harm: the kernel then reads a page when it is touched.
        let _ = self.madvise(range, libc::MADV_WILLNEED);
    }

    /// Asks the kernel to send the range's pages out to its swap.
    pub fn advise_page_out(&self, range: Range<usize>) {
        // A refusal does no harm: the pages stay in memory.
        let _ = self.madvise(range, libc::MADV_PAGEOUT);
    }

    /// Makes every page of the range present and writable now.
    ///
    /// Fails with `OutOfMemory` if the kernel has no memory for it. Some pages may then be present.
    pub fn populate(&self, range: Range<usize>) -> io::Result<()> {
        match self.madvise(range, libc::MADV_POPULATE_WRITE) {
            // Linux before 5.14 lacks this advice: the first touch brings the page.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            other => other,
        }
    }

    /// Gives the pages of the range back to the kernel. They read as zeros afterwards.
    ///
    /// Fails with the kernel's error. The pages then stay.
    pub fn discard(&self, range: Range<usize>) -> io::Result<()> {
        self.madvise(range, libc::MADV_DONTNEED)
    }

    /// Keeps the range out of forked children: an access there faults instead of copying pages.
    pub fn exclude_from_fork(&self) -> io::Result<()> {
        self.madvise(0..self.len, libc::MADV_DONTFORK)
    }

    /// Makes forked children find the range filled with zeros.
    pub fn wipe_on_fork(&self) -> io::Result<()> {
        self.madvise(0..self.len, libc::MADV_WIPEONFORK)
    }

    fn madvise(&self, range: Range<usize>, advice: libc::c_int) -> io::Result<()> {
        assert!(range.start <= range.end && range.end <= self.len, "advice inside the reservation");
        assert!(range.start.is_multiple_of(PAGE_BYTES), "advice starts on a page");
        if range.is_empty() {
            return Ok(());
        }
        loop {
            // SAFETY: the range lies inside this reservation (asserted). The advice values used above only
            // add pages, drop pages (to zeros) or set policy. Every reader of the memory is an atomic or an
            // assembly copy, and sees such a change as a write of zeros by another party.
            let rc = unsafe {
                libc::madvise(self.base.as_ptr().add(range.start).cast(), range.end - range.start, advice)
            };
            if rc == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            // The kernel may interrupt a populate, or refuse it for the moment.
            if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) {
                return Err(error);
            }
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone. Types that lend pointers into it own the reservation, so no loan
        // outlives it.
        unsafe {
            libc::munmap(self.base.as_ptr().cast(), self.len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_aligned_as_asked_and_gives_pages_back() {
        let reservation = Reservation::new(8 << 20, 2 << 20).unwrap();
        assert!((reservation.base().as_ptr() as usize).is_multiple_of(2 << 20));
        reservation.populate(0..8192).unwrap();
        reservation.discard(0..8192).unwrap();
    }
}
