//! Where the bytes of an access lie, and which accesses are out of bounds.

use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::frame::holds::MAX_PINS;
use crate::units::{CHUNK_FRAMES, FrameId, PAGE_BYTES};

/// The offset in the arena of the byte at `address`, in a leaf at `level` that shows `frame` at home.
#[inline(always)]
pub(super) fn offset_in_arena(frame: FrameId, level: usize, address: u64) -> usize {
    let within =
        if level == 0 { PAGE_BYTES as u64 - 1 } else { (PAGE_BYTES as u64) * u64::from(CHUNK_FRAMES) - 1 };
    frame.home_offset() + (address & within) as usize
}

#[inline]
pub(super) fn bytes_left_in_page(address: u64) -> usize {
    PAGE_BYTES - address as usize % PAGE_BYTES
}

/// Refuses a byte range that runs past the end of the address space. An access to an empty range never
/// faults, so this function does the check for a forked child.
pub(super) fn check_range(engine: &Engine, address: u64, len: u64) -> Result<()> {
    engine.check_process()?;
    if address.checked_add(len).is_some() {
        return Ok(());
    }
    let message =
        format!("{len} bytes from {address:#x} run past the end of the address space; check the range");
    Err(Error::new(ErrorKind::InvalidRange, message))
}

#[cold]
pub(super) fn too_many_pins() -> Error {
    Error::new(
        ErrorKind::TooManyPins,
        format!("a frame carries {MAX_PINS} pins; drop some before taking more"),
    )
}
