//! Mappings of the program, accessed by relaxed atomics only.
//!
//! An [`OwnMapping`] owns a range of addresses and gives no reference to bytes: it lends words as atomics. So
//! another thread, a system call or a pager may write the memory at any time, and the program sees old words
//! or new ones. An access without permission faults, and the handler of [`crate::signals`] ends the program
//! with a sentence.

use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::finding::{insist, last_errno, last_error};
use crate::waits::CALLS;

pub const PAGE: usize = 4096;
pub const WORDS: usize = PAGE / 8;

pub const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
pub const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// A range of whole pages that was mapped here. It is unmapped when the value is dropped.
#[derive(Debug)]
pub struct OwnMapping {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the memory is reached by atomics, by system calls or by assembly only, and calls that move or unmap
// it take the value exclusively.
unsafe impl Send for OwnMapping {}
// SAFETY: as above.
unsafe impl Sync for OwnMapping {}

/// How a mapping may be moved or grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remap {
    /// The mapping stays at its address.
    InPlace,
    /// The mapping stays at its address, or moves.
    MayMove,
    /// The mapping moves to a reserved range of the program.
    Fixed,
    /// The mapping moves. The old range stays mapped, but empty.
    DontUnmap,
}

impl OwnMapping {
    /// Maps fresh private memory.
    pub fn anonymous(bytes: usize) -> Self {
        Self::new(bytes, READ_WRITE, ANONYMOUS, -1, 0)
    }

    /// Reserves addresses without memory or permission.
    pub fn reserved(bytes: usize) -> Self {
        Self::new(bytes, libc::PROT_NONE, ANONYMOUS | libc::MAP_NORESERVE, -1, 0)
    }

    /// Maps memory that forked children share.
    pub fn shared(bytes: usize) -> Self {
        Self::new(bytes, READ_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0)
    }

    /// Maps a part of a file that the kernel shares with this process.
    pub fn of_file(bytes: usize, descriptor: i32, offset: i64) -> Self {
        Self::new(bytes, READ_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE, descriptor, offset)
    }

    fn new(bytes: usize, protection: i32, flags: i32, descriptor: i32, offset: i64) -> Self {
        let bytes = bytes.next_multiple_of(PAGE);
        // SAFETY: a mapping at an address that the kernel chooses touches nothing that exists.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, descriptor, offset) };
        insist!(base != libc::MAP_FAILED, "mmap of {bytes} bytes was refused: {}", last_error());
        Self { base: base.cast(), bytes }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn pages(&self) -> usize {
        self.bytes / PAGE
    }

    pub fn address(&self) -> usize {
        self.base as usize
    }

    /// Returns the address of a byte, for system calls. The range of `bytes` from there lies inside the
    /// mapping.
    pub fn pointer(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(offset <= self.bytes && bytes <= self.bytes - offset, "a range outside its mapping");
        self.base.wrapping_add(offset)
    }

    /// Returns the words of a range.
    pub fn words(&self, offset: usize, bytes: usize) -> &[AtomicU64] {
        assert!(offset.is_multiple_of(8) && bytes.is_multiple_of(8));
        let first = self.pointer(offset, bytes).cast::<AtomicU64>();
        // SAFETY: the range is inside, aligned, and stays mapped as long as `self` is borrowed. Any bits are
        // a valid word. The memory is accessed by atomics, and by the kernel or a pager.
        unsafe { std::slice::from_raw_parts(first, bytes / 8) }
    }

    /// One word.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        &self.words(offset, 8)[0]
    }

    /// One short word.
    pub fn short_word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4));
        // SAFETY: as in `words`.
        unsafe { &*self.pointer(offset, 4).cast::<AtomicU32>() }
    }

    /// One byte.
    pub fn byte(&self, offset: usize) -> u8 {
        self.word(offset & !7).load(Relaxed).to_ne_bytes()[offset % 8]
    }

    /// Adds one by a plain instruction that reads and writes memory. No other thread may use this word.
    pub fn increment_plainly(&self, offset: usize) {
        let word = self.word(offset).as_ptr();
        // SAFETY: the word is inside and aligned. An `inc` of an aligned word is a load and a store of it.
        unsafe { std::arch::asm!("inc qword ptr [{0}]", in(reg) word, options(nostack)) }
    }

    /// Calls `madvise` on whole pages. Returns the error's number, or 0.
    pub fn advise(&self, first: usize, count: usize, advice: i32) -> i32 {
        let at = self.pointer(first * PAGE, count * PAGE);
        // SAFETY: the range is ours. Advice may drop its bytes to zeros, which words allow.
        match CALLS.of(|| unsafe { libc::madvise(at.cast(), count * PAGE, advice) }) {
            0 => 0,
            _ => last_errno(),
        }
    }

    /// Calls `mprotect` on whole pages.
    pub fn protect(&self, first: usize, count: usize, protection: i32) {
        let at = self.pointer(first * PAGE, count * PAGE);
        // SAFETY: the range is ours. A later access without permission faults.
        let result = unsafe { libc::mprotect(at.cast(), count * PAGE, protection) };
        insist!(result == 0, "mprotect of {count} pages at {at:p} was refused: {}", last_error());
    }

    /// Puts a fresh mapping over whole pages.
    pub fn replace(&self, first: usize, count: usize, protection: i32) {
        let at = self.pointer(first * PAGE, count * PAGE);
        let flags = ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the range is ours, and words of it read zero from now on.
        let got = CALLS.of(|| unsafe { libc::mmap(at.cast(), count * PAGE, protection, flags, -1, 0) });
        insist!(
            got == at.cast(),
            "mmap of {count} pages by MAP_FIXED over {at:p} was refused: {}",
            last_error()
        );
    }

    /// Moves or resizes the mapping by `mremap`. Returns the error's number if the kernel has refused. With
    /// [`Remap::DontUnmap`], returns the old range as well.
    pub fn remap(&mut self, pages: usize, how: Remap) -> Result<Option<OwnMapping>, i32> {
        let bytes = pages * PAGE;
        let (flags, target) = match how {
            Remap::InPlace => (0, ptr::null_mut()),
            Remap::MayMove => (libc::MREMAP_MAYMOVE, ptr::null_mut()),
            // The range becomes the new mapping's, or stays reserved forever if the call is refused.
            Remap::Fixed => {
                let reserved = std::mem::ManuallyDrop::new(OwnMapping::reserved(bytes));
                (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, reserved.base)
            }
            Remap::DontUnmap => (libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP, ptr::null_mut()),
        };
        // SAFETY: the old range is ours and borrowed exclusively, so no word of it is borrowed. A fixed
        // target is a reservation that no other code uses.
        let got = CALLS.of(|| unsafe {
            libc::mremap(self.base.cast(), self.bytes, bytes, flags, target.cast::<libc::c_void>())
        });
        if got == libc::MAP_FAILED {
            return Err(last_errno());
        }
        let old = (how == Remap::DontUnmap).then(|| OwnMapping { base: self.base, bytes: self.bytes });
        (self.base, self.bytes) = (got.cast(), bytes);
        Ok(old)
    }

    /// Splits the mapping in two, at a page.
    pub fn split(self, page: usize) -> (OwnMapping, OwnMapping) {
        let this = std::mem::ManuallyDrop::new(self);
        let at = page * PAGE;
        assert!(at <= this.bytes);
        let rest = OwnMapping { base: this.base.wrapping_add(at), bytes: this.bytes - at };
        (OwnMapping { base: this.base, bytes: at }, rest)
    }
}

impl Drop for OwnMapping {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: the range is ours, and no borrow of it is left.
            let result = CALLS.of(|| unsafe { libc::munmap(self.base.cast(), self.bytes) });
            insist!(
                result == 0,
                "munmap of {} bytes at {:p} was refused: {}",
                self.bytes,
                self.base,
                last_error()
            );
        }
    }
}
