//! `buddy_system_allocator`, twice, each behind a mutex as its documentation proposes.
//!
//! - The heap keeps links inside the free blocks, so it touches their memory. A free walks a list to find the
//!   buddy, and is slow if many blocks are free. The crate's own `LockedHeap` spins. Here, `parking_lot`'s
//!   mutex guards both, since it is fairer to two threads on a shared machine.
//! - The frame allocator only keeps frame numbers, in ordered sets, and touches no memory of the frames. The
//!   nodes of its sets come from the program's allocator.

use std::alloc::Layout;
use std::ptr::NonNull;

use buddy_system_allocator::{FrameAllocator, Heap};
use parking_lot::Mutex;

use super::{FrameBench, PAGE_SHIFT, PageBlocks, PeerBlock, arena, side};
use crate::peers::compare::Side;
use crate::peers::mapping::BenchMapping;
use crate::peers::versions;

pub(super) const HEAP: &str = "buddy_system heap + mutex";
pub(super) const FRAMES: &str = "buddy_system frames + mutex";

/// Largest class plus one: 2^39 bytes, or 2^39 frames, is more than any arena here.
const CLASSES: usize = 40;

pub(super) fn heap(arena_bytes: usize) -> Side<dyn FrameBench> {
    side(HEAP, version(), LockedHeap::new(arena_bytes))
}

pub(super) fn frames(arena_bytes: usize) -> Side<dyn FrameBench> {
    side(FRAMES, version(), Ok(LockedFrames::new(arena_bytes)))
}

fn version() -> Option<String> {
    versions::of_crate("buddy_system_allocator").map(|version| format!("buddy_system_allocator {version}"))
}

struct LockedHeap {
    heap: Mutex<Heap<CLASSES>>,
    /// Lives as long as the heap that holds its addresses.
    _arena: BenchMapping,
}

impl LockedHeap {
    fn new(arena_bytes: usize) -> Result<Self, String> {
        let arena = arena(arena_bytes)?;
        let mut heap = Heap::new();
        // SAFETY: the memory is mapped, writable and used by nobody else, and lives as long as the heap.
        unsafe { heap.init(arena.base().addr().get(), arena_bytes) };
        Ok(Self { heap: Mutex::new(heap), _arena: arena })
    }
}

#[inline]
fn layout(order: u32) -> Layout {
    let bytes = 1 << (PAGE_SHIFT + order);
    Layout::from_size_align(bytes, bytes).expect("a power of two far below the address space")
}

impl PageBlocks for LockedHeap {
    const BYTES_PER_STEP: usize = 1;

    #[inline]
    fn alloc(&self, order: u32) -> Option<PeerBlock> {
        let block = self.heap.lock().alloc(layout(order)).ok()?;
        Some(PeerBlock(block.as_ptr().expose_provenance()))
    }

    #[inline]
    unsafe fn free(&self, block: PeerBlock, order: u32) {
        let address = std::ptr::with_exposed_provenance_mut(block.0);
        let block = NonNull::new(address).expect("no block lies at 0");
        // SAFETY: by the caller's promise this heap allocated the block for the same layout.
        unsafe { self.heap.lock().dealloc(block, layout(order)) };
    }
}

struct LockedFrames(Mutex<FrameAllocator<CLASSES>>);

impl LockedFrames {
    fn new(arena_bytes: usize) -> Self {
        let mut frames = FrameAllocator::new();
        frames.insert(0..arena_bytes >> PAGE_SHIFT);
        Self(Mutex::new(frames))
    }
}

impl PageBlocks for LockedFrames {
    const BYTES_PER_STEP: usize = 1 << PAGE_SHIFT;

    #[inline]
    fn alloc(&self, order: u32) -> Option<PeerBlock> {
        self.0.lock().alloc(1 << order).map(PeerBlock)
    }

    #[inline]
    unsafe fn free(&self, block: PeerBlock, order: u32) {
        self.0.lock().dealloc(block.0, 1 << order);
    }
}
