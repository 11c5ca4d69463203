//! Devices that pages go to and come from.
//!
//! A device is a parameter of the manager: a file, or a test's own that fails, delays and tears as told.

mod file;

use std::io;
use std::ops::Range;

use octavo_platform::ArenaBytes;

pub use file::{FileDevice, SwapFile};

use crate::units::PAGE_BYTES;

/// The pages of one transfer, in device order: each a page-aligned range of the arena.
#[derive(Debug)]
pub struct Pages<'a> {
    arena: &'a ArenaBytes,
    segments: &'a [Range<usize>],
}

impl<'a> Pages<'a> {
    pub(crate) fn new(arena: &'a ArenaBytes, segments: &'a [Range<usize>]) -> Self {
        Self { arena, segments }
    }

    /// How many pages.
    #[allow(clippy::len_without_is_empty, reason = "a transfer is never empty")]
    pub fn len(&self) -> usize {
        self.segments.len()
    }

    /// Copies page `index` out.
    pub fn copy_out(&self, index: usize, to: &mut [u8; PAGE_BYTES]) {
        self.arena.copy_out(self.segments[index].start, to);
    }

    /// Copies page `index` in.
    pub fn copy_in(&self, index: usize, from: &[u8; PAGE_BYTES]) {
        self.arena.copy_in(self.segments[index].start, from);
    }
}

/// A device of page-sized places. Operations may be called from several threads at once.
pub trait Device: Send + Sync {
    /// Places there are, at most 2^32 - 2.
    fn capacity_pages(&self) -> u32;

    /// Writes the pages to consecutive places from `place` on.
    ///
    /// # Errors
    /// The device's. Any of the places may then hold anything; the pages are kept in memory.
    fn write(&self, place: u32, pages: &Pages<'_>) -> io::Result<()>;

    /// Reads consecutive places from `place` on into the pages.
    ///
    /// # Errors
    /// The device's. The pages' bytes are then never shown to anyone.
    fn read(&self, place: u32, pages: &Pages<'_>) -> io::Result<()>;

    /// What the device is, for messages.
    fn describe(&self) -> String;
}
