//! A range of a space as a stream of bytes.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::{Deref, Range};

use crate::space::Space;

/// Reads and writes a range of a space in order, by [`Read`], [`Write`] and [`Seek`]. For code that
/// expects a file, such as compressors and parsers.
///
/// `S` is a reference to a space, or an [`Arc`](std::sync::Arc) of one. The range has a fixed length. At
/// its end, reads end and writes write nothing, as with [`std::io::Cursor`] over a slice. Several cursors
/// may share a range. Bytes that other threads write at the same time may be torn.
///
/// Each call copies, so large pieces are cheaper than small ones. For small pieces, wrap the cursor in a
/// [`std::io::BufReader`] or [`std::io::BufWriter`]. An error is one of [`Space::read`] or
/// [`Space::write`], inside an [`io::Error`]. The position is then as before, and a part of the bytes may
/// be written.
///
/// ```
/// use std::io::{Read, Seek, Write};
/// use octavo::{Manager, RegionOptions, SpaceCursor};
///
/// let space = Manager::builder().budget_bytes(16 << 20).build()?.space()?;
/// let at = space.map(8192, RegionOptions::default())?;
/// let mut cursor = SpaceCursor::new(&space, at..at + 8192);
/// cursor.write_all(b"to be read later")?;
/// cursor.rewind()?;
/// let mut bytes = [0; 5];
/// cursor.read_exact(&mut bytes)?;
/// assert_eq!(&bytes, b"to be");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SpaceCursor<S> {
    space: S,
    range: Range<u64>,
    /// In bytes from the start of the range. May lie behind the end.
    position: u64,
}

impl<S: Deref<Target = Space>> SpaceCursor<S> {
    /// Makes a cursor at the start of a range of addresses. The range need not be mapped until it is read
    /// or written. A range that ends before it begins is empty.
    pub fn new(space: S, range: Range<u64>) -> Self {
        Self { space, range, position: 0 }
    }

    /// Returns how far the cursor is from the start of its range, in bytes.
    pub fn position(&self) -> u64 {
        self.position
    }

    fn range_bytes(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start)
    }

    /// Returns the address at the cursor, and how many of `len` bytes are left there.
    fn here(&self, len: usize) -> (u64, usize) {
        let left = self.range_bytes().saturating_sub(self.position);
        (self.range.start.saturating_add(self.position), left.min(len as u64) as usize)
    }
}

impl<S: Deref<Target = Space>> Read for SpaceCursor<S> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let (at, len) = self.here(to.len());
        self.space.read(at, &mut to[..len])?;
        self.position += len as u64;
        Ok(len)
    }
}

impl<S: Deref<Target = Space>> Write for SpaceCursor<S> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let (at, len) = self.here(from.len());
        self.space.write(at, &from[..len])?;
        self.position += len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<S: Deref<Target = Space>> Seek for SpaceCursor<S> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(offset) => self.range_bytes().checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        self.position = position.ok_or_else(|| {
            let message = format!("{to:?} lies before the start of the range, or behind all addresses");
            io::Error::new(io::ErrorKind::InvalidInput, message)
        })?;
        Ok(self.position)
    }
}
