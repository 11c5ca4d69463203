//! Finds the windows that a block of the global allocator lies in, by its address.
//!
//! ```text
//!   address   47 ─────── 35 34 ─────── 21 20 ────── 0
//!             leaf           place in it   0: windows are aligned to 2 MiB
//! ```
//!
//! A place in the table is empty, or counts as a clone of the windows that the block lies in. So the windows
//! live as long as their blocks.
//!
//! Only the owner of a block changes its place. It fills the place before any caller has the block's address,
//! and empties it before the addresses are freed. The next owner of the same addresses gets them from the
//! kernel. The kernel's lock on mappings orders the old owner's change before the new owner's.
//!
//! Each leaf of the table is made once. Only the making of a leaf may wait for another thread. If a process
//! forks while a leaf is made, the child cannot make windows in that leaf. A leaf takes 128 KiB and covers 32
//! GiB of addresses. A leaf is smaller than any block in a window, so it comes from the allocator below.
//! Leaves are never freed. A lookup costs two loads, or none if the address cannot be a window's.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::allocator::LEAST_BYTES;
use crate::windows::{ALIGN, Serving, Windows};

const ADDRESS_BITS: u32 = 47;
const LEAVES: usize = 1 << 12;
const PLACES: usize = (1 << ADDRESS_BITS) / ALIGN / LEAVES;

type ServingPointer = AtomicPtr<Serving>;

const _: () = assert!(PLACES * size_of::<ServingPointer>() < LEAST_BYTES, "a leaf is no block in a window");

static BLOCKS: [OnceLock<Box<[ServingPointer]>>; LEAVES] = [const { OnceLock::new() }; LEAVES];

/// Returns the leaf of an address and the place in it, or `None` if no window can begin there.
fn place_of(block: NonNull<u8>) -> Option<(usize, usize)> {
    let number = block.addr().get() / ALIGN;
    let is_window = block.addr().get().is_multiple_of(ALIGN) && number < LEAVES * PLACES;
    is_window.then_some((number / PLACES, number % PLACES))
}

fn find(block: NonNull<u8>) -> Option<&'static ServingPointer> {
    let (leaf, at) = place_of(block)?;
    BLOCKS[leaf].get().map(|places| &places[at])
}

/// Notes that a block lies in a window. Gives the windows back if the address is beyond those that programs
/// have.
pub(crate) fn note(block: NonNull<u8>, windows: Windows) -> Result<(), Windows> {
    let Some((leaf, at)) = place_of(block) else { return Err(windows) };
    let places = BLOCKS[leaf].get_or_init(|| (0..PLACES).map(|_| ServingPointer::default()).collect());
    // The old value is null, or belongs to the parent of this forked child: this process must not end those
    // windows. Release: pairs with the load in `windows_of`, by another thread that got the block.
    places[at].store(windows.into_raw(), Ordering::Release);
    Ok(())
}

/// Returns the windows that a block lies in, if it lies in any. They must not be dropped: the block still
/// counts as a clone.
///
/// # Safety
/// The caller owns the block: nobody frees it while the returned value is in use.
pub(crate) unsafe fn windows_of(block: NonNull<u8>) -> Option<ManuallyDrop<Windows>> {
    // Acquire: pairs with the store in `note`.
    let raw = find(block)?.load(Ordering::Acquire);
    // SAFETY: `note` has put a pointer there. It counts as a clone until the block's owner calls `forget`,
    // and is not dropped here.
    (!raw.is_null()).then(|| ManuallyDrop::new(unsafe { Windows::from_raw(raw) }))
}

/// Empties the place of a block that is about to be freed. Returns the windows that it lies in, if any.
pub(crate) fn forget(block: NonNull<u8>) -> Option<Windows> {
    // AcqRel: acquires what `note` stored. Releases to a later `note` of the same addresses, which the kernel
    // reassigns in between.
    let raw = find(block)?.swap(std::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: `note` has put a pointer there, and the exchange gives it to one caller.
    (!raw.is_null()).then(|| unsafe { Windows::from_raw(raw) })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn at(address: usize) -> Option<(usize, usize)> {
        place_of(NonNull::new(std::ptr::without_provenance_mut(address)).unwrap())
    }

    #[test]
    fn each_window_has_a_place_of_its_own() {
        assert_eq!(at(ALIGN), Some((0, 1)));
        assert_eq!(at(ALIGN * PLACES), Some((1, 0)));
        assert_eq!(at((1 << ADDRESS_BITS) - ALIGN), Some((LEAVES - 1, PLACES - 1)));
        assert_eq!(at(1 << ADDRESS_BITS), None, "programs have no such addresses");
        assert_eq!(at(ALIGN + 16), None, "no window begins there");
        // SAFETY: nobody frees this block, which does not exist.
        let windows = unsafe { windows_of(NonNull::new(std::ptr::without_provenance_mut(ALIGN)).unwrap()) };
        assert!(windows.is_none(), "nothing was noted there");
    }
}
