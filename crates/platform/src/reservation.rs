//! A range of address space, taken once and unmapped when dropped.
//!
//! Pages inside are faulted in by the kernel on first touch (zeros), or by [`Reservation::populate`], and
//! given back by [`Reservation::discard`]. The range itself never moves.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use crate::PAGE_BYTES;

/// How the kernel should back a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// 4 KiB pages only: single pages can be moved in and out without splitting a huge one.
    BasePages,
    /// 2 MiB pages where the kernel has them.
    HugePages,
}

/// A private anonymous reservation of address space, readable and writable, not counted as committed.
#[derive(Debug)]
pub struct Reservation {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the reservation is a range of addresses; it hands out a raw pointer only, and every user of that
// pointer states its own rule for concurrent access.
unsafe impl Send for Reservation {}
// SAFETY: as above; `populate`, `discard` and `advise` are system calls, safe to make from several threads.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves `len` bytes (rounded up to pages), aligned to `align` (a power of two, at least a page).
    ///
    /// # Errors
    /// The kernel's, when the address space is exhausted or limited (`RLIMIT_AS`).
    pub fn new(len: usize, align: usize) -> io::Result<Self> {
        assert!(align.is_power_of_two() && align >= PAGE_BYTES, "alignment is a power of two of pages");
        let len = len.max(1).next_multiple_of(PAGE_BYTES);
        let padded = len.checked_add(align - PAGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a fresh private anonymous mapping at an address of the kernel's choice touches no memory
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
        // SAFETY: both trimmed pieces lie in the mapping just made, outside the part that is kept, and no
        // pointer into them exists.
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

    /// First byte. Valid for [`Reservation::len`] bytes while `self` lives.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a reservation is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Says how the range should be backed. A kernel without transparent huge pages ignores it.
    pub fn advise_backing(&self, range: Range<usize>, backing: Backing) {
        let advice = match backing {
            Backing::BasePages => libc::MADV_NOHUGEPAGE,
            Backing::HugePages => libc::MADV_HUGEPAGE,
        };
        // The kernel may lack the feature; that only costs speed.
        let _ = self.madvise(range, advice);
    }

    /// Has the kernel start reading the range's pages from its swap.
    pub fn advise_will_need(&self, range: Range<usize>) {
        // Advice only: the pages are read when they are touched otherwise.
        let _ = self.madvise(range, libc::MADV_WILLNEED);
    }

    /// Has the kernel send the range's pages out to its swap.
    pub fn advise_page_out(&self, range: Range<usize>) {
        // Advice only: what cannot go stays.
        let _ = self.madvise(range, libc::MADV_PAGEOUT);
    }

    /// Makes every page of the range present and writable now.
    ///
    /// # Errors
    /// `OutOfMemory` when the kernel has no memory for it; nothing is lost.
    pub fn populate(&self, range: Range<usize>) -> io::Result<()> {
        match self.madvise(range, libc::MADV_POPULATE_WRITE) {
            // Linux before 5.14 has no such advice: the first touch will do it.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            other => other,
        }
    }

    /// Gives the pages of the range back to the kernel; they read as zeros afterwards.
    ///
    /// # Errors
    /// The kernel's; the pages then stay.
    pub fn discard(&self, range: Range<usize>) -> io::Result<()> {
        self.madvise(range, libc::MADV_DONTNEED)
    }

    /// A forked child does not inherit the range: touching it there faults instead of copying.
    pub fn exclude_from_fork(&self) -> io::Result<()> {
        self.madvise(0..self.len, libc::MADV_DONTFORK)
    }

    /// A forked child finds the range zero-filled.
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
            // SAFETY: the range lies inside this reservation (asserted), and the advice values used above
            // only add pages, drop pages (to zeros) or set policy; every reader of the memory is an atomic
            // or an assembly copy for which such a change is a write of zeros by another party.
            let rc = unsafe {
                libc::madvise(self.base.as_ptr().add(range.start).cast(), range.end - range.start, advice)
            };
            if rc == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            // A populate may be interrupted or transiently refused.
            if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) {
                return Err(error);
            }
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and types that lend pointers into it own the reservation, so
        // no loan outlives this.
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
