//! Windows as an allocator, for collections that may be larger than memory.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # if octavo_window::Windows::is_allowed() {
//! use allocator_api2::vec::Vec;
//!
//! let manager = octavo::Manager::builder().budget_bytes(64 << 20).build()?;
//! let windows = octavo_window::Windows::new(&manager)?;
//! let mut names = Vec::with_capacity_in(4 << 20, windows); // 96 MiB, and room for more
//! names.extend((0..1000).map(|n| format!("number {n}")));
//! assert_eq!(names[999], "number 999");
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! `blocks` finds the windows of an address without a lock, and `global` is the global allocator above the
//! windows.
//!
//! An object of at least [`LEAST_BYTES`] has a window of its own. Smaller objects come from the global
//! allocator, since a window costs some system calls and whole pages. Zeroed memory costs nothing more, since
//! fresh windows are zero.

pub(crate) mod blocks;
pub(crate) mod global;

use std::alloc::Layout;
use std::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator, Global};

use crate::windows::{ALIGN, Windows};

/// The least object that has a window of its own.
pub const LEAST_BYTES: usize = 1 << 20;

/// Returns whether an object has a window of its own.
#[inline]
pub(crate) fn is_large(layout: Layout) -> bool {
    layout.size() >= LEAST_BYTES && layout.align() <= ALIGN
}

// SAFETY: a block is a window that nobody else has, or the global allocator's. It stays where it is until it
// is deallocated or the last clone of the windows is dropped. All clones share their blocks. The layout alone
// determines which of the two allocators a block comes from.
unsafe impl Allocator for Windows {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if is_large(layout) {
            self.lend(layout.size()).map_err(|_| AllocError)
        } else {
            Global.allocate(layout)
        }
    }

    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if is_large(layout) { self.allocate(layout) } else { Global.allocate_zeroed(layout) }
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        if is_large(layout) {
            self.take_back(block);
        } else {
            // SAFETY: the caller vouches that the block was allocated here with this layout, and so by the
            // global allocator.
            unsafe { Global.deallocate(block, layout) }
        }
    }
}
