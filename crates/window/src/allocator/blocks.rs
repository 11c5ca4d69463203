//! Which windows a block of the global allocator lies in, by its address.
//!
//! ```text
//!   address   47 ─────── 35 34 ─────── 21 20 ────── 0
//!             leaf           place in it   0: windows are aligned to 2 MiB
//! ```
//!
//! A place holds nothing, or counts as a clone of the windows that the block lies in. So the windows live as
//! long as their blocks.
//!
//! Only the owner of a block changes its place. A window has its place before anybody has its address, and is
//! out of it before its addresses go. Whoever gets the same addresses next got them from the kernel, whose
//! lock of mappings stands between.
//!
//! A leaf is made once, and only that may block: a child that a thread forks meanwhile cannot make windows
//! near it. A leaf takes 128 KiB once, for windows in 32 GiB of addresses. It is smaller than any block in a
//! window, so it comes from the allocator below. Leaves are never freed. To look a block up costs two loads,
//! or none where its address is not a window's.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::allocator::LEAST_BYTES;
use crate::windows::{ALIGN, Serving, Windows};

const ADDRESS_BITS: u32 = 47;
const LEAVES: usize = 1 << 12;
const PLACES: usize = (1 << ADDRESS_BITS) / ALIGN / LEAVES;

type Place = AtomicPtr<Serving>;

const _: () = assert!(PLACES * size_of::<Place>() < LEAST_BYTES, "a leaf is no block in a window");

static BLOCKS: [OnceLock<Box<[Place]>>; LEAVES] = [const { OnceLock::new() }; LEAVES];

/// Returns the leaf of an address and the place in it. `None`: no window is there.
fn place_of(block: NonNull<u8>) -> Option<(usize, usize)> {
    let number = block.addr().get() / ALIGN;
    let is_window = block.addr().get().is_multiple_of(ALIGN) && number < LEAVES * PLACES;
    is_window.then_some((number / PLACES, number % PLACES))
}

fn find(block: NonNull<u8>) -> Option<&'static Place> {
    let (leaf, at) = place_of(block)?;
    BLOCKS[leaf].get().map(|places| &places[at])
}

/// Notes that a block lies in a window. Gives the windows back where an address is beyond those that programs
/// have.
pub(crate) fn note(block: NonNull<u8>, windows: Windows) -> Result<(), Windows> {
    let Some((leaf, at)) = place_of(block) else { return Err(windows) };
    let places = BLOCKS[leaf].get_or_init(|| (0..PLACES).map(|_| Place::default()).collect());
    // What was there is null, or of the parent of this forked child: those windows are not this process's to
    // end. Release: with the load of `windows_of`, by another thread that got the block.
    places[at].store(windows.into_raw(), Ordering::Release);
    Ok(())
}

/// Returns the windows that a block lies in, if it does. They are not to be dropped: the block still counts.
///
/// # Safety
/// The caller owns the block: nobody frees it while the value that this returns is in use.
pub(crate) unsafe fn windows_of(block: NonNull<u8>) -> Option<ManuallyDrop<Windows>> {
    // Acquire: with the store of `note`.
    let raw = find(block)?.load(Ordering::Acquire);
    // SAFETY: `note` has put a number there. It counts until `forget`, which the block's owner calls. It is
    // not dropped here.
    (!raw.is_null()).then(|| ManuallyDrop::new(unsafe { Windows::from_raw(raw) }))
}

/// A block is about to be freed. Returns the windows that it lies in, if it does.
pub(crate) fn forget(block: NonNull<u8>) -> Option<Windows> {
    // AcqRel: acquires what `note` stored. Releases to a `note` of the same addresses, which the kernel has
    // in between.
    let raw = find(block)?.swap(std::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: `note` has put a number there, and the exchange gives it to one caller.
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
        // SAFETY: nobody frees this block, which is none.
        let windows = unsafe { windows_of(NonNull::new(std::ptr::without_provenance_mut(ALIGN)).unwrap()) };
        assert!(windows.is_none(), "nothing was noted there");
    }
}
