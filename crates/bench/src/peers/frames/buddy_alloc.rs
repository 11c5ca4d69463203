//! `buddy-alloc` behind a mutex. It keeps bit maps at the head of the arena, and links inside the free
//! blocks, so it touches their memory.

use buddy_alloc::buddy_alloc::{BuddyAlloc, BuddyAllocParam};
use parking_lot::Mutex;

use super::{FrameBench, PAGE_SHIFT, PageBlocks, PeerBlock, arena};
use crate::peers::compare::Side;
use crate::peers::mapping::{ALIGN, BenchMapping};
use crate::peers::versions;

pub(super) const NAME: &str = "buddy-alloc + mutex";

pub(super) fn side(arena_bytes: usize) -> Side<dyn FrameBench> {
    let version = versions::of_crate("buddy-alloc").map(|version| format!("buddy-alloc {version}"));
    super::side(NAME, version, Locked::new(arena_bytes))
}

struct Locked {
    buddy: Mutex<BuddyAlloc>,
    /// Lives as long as the allocator that holds its addresses.
    _arena: BenchMapping,
}

// SAFETY: the raw pointers inside lead into the arena and are followed only under the mutex.
unsafe impl Send for Locked {}
// SAFETY: as above.
unsafe impl Sync for Locked {}

impl Locked {
    fn new(arena_bytes: usize) -> Result<Self, String> {
        // The crate aligns its blocks relative to the end of its bit maps. A first instance shows the
        // position of this end. The second instance is placed so that the end falls on a multiple of the
        // largest block.
        let skew = {
            let probe = Self::at(0, arena_bytes)?;
            let largest = probe.alloc(ALIGN.trailing_zeros() - PAGE_SHIFT).ok_or("no block of 2 MiB")?;
            largest.0 % ALIGN
        };
        Self::at((ALIGN - skew) % ALIGN, arena_bytes)
    }

    fn at(offset: usize, arena_bytes: usize) -> Result<Self, String> {
        let arena = arena(arena_bytes + ALIGN)?;
        assert!(offset < ALIGN);
        // SAFETY: the arena is larger by ALIGN than the part that begins at the offset.
        let base = unsafe { arena.base().add(offset) }.as_ptr();
        let param = BuddyAllocParam::new_with_zero_filled(base, arena_bytes, 1 << PAGE_SHIFT);
        // SAFETY: the memory is mapped, zeroed and used by nobody else, and lives as long as the allocator.
        let buddy = Mutex::new(unsafe { BuddyAlloc::new(param) });
        Ok(Self { buddy, _arena: arena })
    }
}

impl PageBlocks for Locked {
    const BYTES_PER_STEP: usize = 1;

    #[inline]
    fn alloc(&self, order: u32) -> Option<PeerBlock> {
        let address = self.buddy.lock().malloc(1 << (PAGE_SHIFT + order));
        (!address.is_null()).then(|| PeerBlock(address.expose_provenance()))
    }

    #[inline]
    unsafe fn free(&self, block: PeerBlock, _order: u32) {
        self.buddy.lock().free(std::ptr::with_exposed_provenance_mut(block.0));
    }
}
