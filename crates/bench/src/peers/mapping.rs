//! Plain mapped memory: arenas for the peers that manage one, and pages for the sides that keep a flat array
//! (`hits/array.rs`, `vmcache.rs`).

use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// The alignment of every mapping: 2 MiB, the size of the largest block.
pub const ALIGN: usize = 2 << 20;

/// Whether the kernel may back a mapping with huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugePages {
    /// The mapping asks for huge pages, for the fewest TLB misses.
    Wanted,
    /// The mapping refuses huge pages, so that work on 4 KiB pages stays at 4 KiB.
    Refused,
}

/// Zeroed, private memory, aligned to [`ALIGN`]. The kernel reserves no memory for it in advance.
#[derive(Debug)]
pub struct BenchMapping {
    mapped: NonNull<u8>,
    mapped_bytes: usize,
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is only handed out as an address or as atomic words.
unsafe impl Send for BenchMapping {}
// SAFETY: as above.
unsafe impl Sync for BenchMapping {}

impl BenchMapping {
    /// Maps `bytes` bytes.
    pub fn new(bytes: usize, huge: HugePages) -> std::io::Result<Self> {
        let mapped_bytes = bytes + ALIGN;
        // SAFETY: a new anonymous mapping at a place that the kernel chooses touches nothing that exists.
        let mapped = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                mapped_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let mapped = NonNull::new(mapped.cast::<u8>()).expect("the kernel maps nothing at 0 unasked");
        let skip = mapped.as_ptr().align_offset(ALIGN);
        // SAFETY: `skip` is below ALIGN, and ALIGN bytes more than `bytes` are mapped.
        let base = unsafe { mapped.add(skip) };
        let advice = match huge {
            HugePages::Wanted => Advice::LinuxHugepage,
            HugePages::Refused => Advice::LinuxNoHugepage,
        };
        // SAFETY: the range is ours, and the advice changes no content. A refusal costs speed only.
        let _ = unsafe { madvise(base.as_ptr().cast(), bytes, advice) };
        Ok(Self { mapped, mapped_bytes, base, bytes })
    }

    /// Returns the address of the first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the memory as words that several threads may read and write.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the words are mapped, aligned and zero-initialised, live as long as `self`, and are used as
        // atomics only.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.bytes / size_of::<AtomicU64>()) }
    }
}

impl Drop for BenchMapping {
    fn drop(&mut self) {
        // SAFETY: this is exactly the range that `new` mapped, and nothing borrows it any more.
        let _ = unsafe { munmap(self.mapped.as_ptr().cast(), self.mapped_bytes) };
    }
}
