//! Plain calls on the page cache: reads and writes at an offset, and a cursor.
//!
//! A file shows all of itself in a space of its own, at the addresses that are its offsets. So these calls
//! are reads and writes of that space, on the same pages that [`Space::map_file`] shows elsewhere. The
//! space is made by the first such call.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;

use super::{File, Open};
use crate::error::{Error, ErrorKind, Result};
use crate::region::RegionOptions;
use crate::space::Space;
use crate::table::Protection;
use crate::units::{PAGE_BYTES, PageNumber, StoredPage};
use crate::writeback::extend;

/// The pages that such a space shows: as many as the page cache can number.
const WHOLE_PAGES: u64 = StoredPage::MOST as u64;

impl File {
    /// Reads bytes from `offset` on, by the page cache. Returns how many: fewer than the buffer has room for
    /// only at the end of the file.
    ///
    /// # Errors
    /// `FileRead` if the device fails; the buffer may have some of the bytes then. `TimedOut`,
    /// `OutOfMemory` and others as [`Space::read`].
    pub fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<usize> {
        let open = &*self.open;
        let space = open.whole()?;
        loop {
            let left = open.inode().len_bytes().saturating_sub(offset);
            let len = left.min(to.len() as u64) as usize;
            match space.read(offset, &mut to[..len]) {
                // The file has become shorter meanwhile.
                Err(error) if error.kind() == ErrorKind::BeyondEnd => {}
                Err(error) => return Err(error),
                Ok(()) => return Ok(len),
            }
        }
    }

    /// Writes bytes from `offset` on, to the page cache. The file becomes longer if need be, and a gap
    /// reads as zeros. [`File::sync`] makes the bytes durable.
    ///
    /// # Errors
    /// `FileWrite` if the file was not opened for writing. `InvalidRange` behind 8 TiB. `FileRead` if a
    /// page that is overwritten in part cannot be read. Otherwise as [`Space::write`]. The bytes before the
    /// page that failed are written.
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        let open = &*self.open;
        let _inside = open.engine().enter()?;
        let space = open.whole()?;
        open.check_writable("write to")?;
        let end = offset.checked_add(from.len() as u64).filter(|end| *end <= WHOLE_PAGES << 12);
        let Some(end) = end else {
            let message = format!("{} bytes at {offset}: files reach up to 8 TiB here", from.len());
            return Err(Error::new(ErrorKind::InvalidRange, message));
        };
        loop {
            if end > open.inode().len_bytes() && !from.is_empty() {
                extend(open.engine(), open.inode(), end)?;
            }
            match space.write(offset, from) {
                // The file has become shorter meanwhile.
                Err(error) if error.kind() == ErrorKind::BeyondEnd => {}
                written => return written,
            }
        }
    }

    /// Returns a cursor at the beginning of the file, to read and write it in order.
    pub fn cursor(&self) -> FileCursor {
        FileCursor { file: self.clone(), position: 0 }
    }
}

impl Open {
    /// Stores zeros to bytes of one page, as far as the file still has them.
    pub(super) fn zero(&self, bytes: Range<u64>) -> Result<()> {
        let zeros = &[0; PAGE_BYTES][..(bytes.end - bytes.start) as usize];
        match self.whole()?.write(bytes.start, zeros) {
            // The file has become shorter meanwhile.
            Err(error) if error.kind() == ErrorKind::BeyondEnd => Ok(()),
            written => written,
        }
    }

    /// The space that shows all of the file.
    fn whole(&self) -> Result<&Space> {
        if let Some(space) = self.whole.get() {
            return Ok(space);
        }
        let _inside = self.engine().enter()?;
        let name = format!("the file {}", self.path.display());
        let space = Space::make(&self.running, Some(name), None)?;
        let protection = if self.is_writable { Protection::READ_WRITE } else { Protection::READ };
        let options = RegionOptions::new().protection(protection);
        space.map_file_pages(
            &self.in_use,
            (0, WHOLE_PAGES),
            Some(PageNumber(0)),
            (false, !self.is_writable),
            options,
        )?;
        Ok(self.whole.get_or_init(|| space))
    }
}

/// Reads and writes a file in order, by [`Read`], [`Write`] and [`Seek`], from [`File::cursor`]. Writes
/// make the file longer. An error is one of [`File::read_at`] or [`File::write_at`], inside an
/// [`io::Error`]. A `flush` does nothing: [`File::sync`] makes bytes durable.
#[derive(Clone, Debug)]
pub struct FileCursor {
    file: File,
    position: u64,
}

impl FileCursor {
    /// Returns how far the cursor is from the beginning of the file, in bytes.
    pub fn position(&self) -> u64 {
        self.position
    }
}

impl Read for FileCursor {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(self.position, to)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl Write for FileCursor {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.file.write_at(self.position, from)?;
        self.position += from.len() as u64;
        Ok(from.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for FileCursor {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(offset) => self.file.len_bytes()?.checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        self.position = position.ok_or_else(|| {
            let message = format!("{to:?} lies before the beginning of the file, or behind all offsets");
            io::Error::new(io::ErrorKind::InvalidInput, message)
        })?;
        Ok(self.position)
    }
}
