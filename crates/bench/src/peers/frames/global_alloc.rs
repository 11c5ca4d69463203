//! General allocators that are linked into this program and called as objects. None replaces the program's
//! own.
//!
//! The bench measures `alloc` and `dealloc`, with the block's size as size and alignment. These allocators
//! serve any size and know nothing of frames. They may write headers or links into the blocks, or give memory
//! back to the kernel in between.

use std::alloc::{GlobalAlloc, Layout};

use super::{PAGE_SHIFT, PageBlocks, PeerBlock};

/// Any [`GlobalAlloc`] as a source of page blocks.
pub(super) struct Global<A>(pub(super) A);

#[inline]
fn layout(order: u32) -> Layout {
    let bytes = 1 << (PAGE_SHIFT + order);
    Layout::from_size_align(bytes, bytes).expect("a power of two far below the address space")
}

impl<A: GlobalAlloc + Sync> PageBlocks for Global<A> {
    const BYTES_PER_STEP: usize = 1;

    #[inline]
    fn alloc(&self, order: u32) -> Option<PeerBlock> {
        // SAFETY: the layout is not empty.
        let address = unsafe { self.0.alloc(layout(order)) };
        (!address.is_null()).then(|| PeerBlock(address.expose_provenance()))
    }

    #[inline]
    unsafe fn free(&self, block: PeerBlock, order: u32) {
        // SAFETY: by the caller's promise `alloc` returned this address for the same layout.
        unsafe { self.0.dealloc(std::ptr::with_exposed_provenance_mut(block.0), layout(order)) };
    }
}

/// Returns `allocator`, unless its crate's build script has put assertions into it (see this package's
/// `build.rs`). Figures of such a build would wrong the peer.
pub(super) fn without_assertions<A>(allocator: A) -> Result<Global<A>, String> {
    if cfg!(peers_with_assertions) {
        return Err(
            "built with its assertions, as debug information is on: set CARGO_PROFILE_RELEASE_DEBUG=0"
                .to_owned(),
        );
    }
    Ok(Global(allocator))
}
