//! Files as regions of spaces.

use super::File;
use crate::error::{Error, ErrorKind, Result};
use crate::region::RegionOptions;
use crate::space::Space;
use crate::units::{PAGE_BYTES, PageNumber};

/// What becomes of the bytes that a program stores to a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// They are the file's: all who use the file see them, and the device gets them.
    Shared,
    /// They are the region's own. A page that is written gets memory of its own, which can go to swap.
    Private,
}

impl Space {
    /// Maps `len` bytes of a file from `offset` on (rounded up to pages), at an address that Octavo chooses.
    /// Returns the address of the first byte. Loads, stores, copies, pins and guards work as on other memory,
    /// and come from the file's pages in the page cache, which all spaces of the manager share.
    ///
    /// The range may reach behind the end of the file. An access there is an error, until the file is
    /// longer. In the last page, bytes behind the end can be accessed, and are lost. If the file becomes
    /// shorter, pages of a private region that were written stay.
    ///
    /// A region keeps its file open. [`File::sync`] makes the bytes durable. With
    /// [`RegionOptions::guarded`], pages are lent by guards. [`Advice::Free`](crate::Advice::Free) drops a
    /// private region's own pages, so the file's bytes show again; a shared region loses nothing.
    ///
    /// # Errors
    /// `InvalidRange` for an offset that is no multiple of [`PAGE_BYTES`], an empty range, or one that fits
    /// nowhere. `Protected` for a shared region that may be written, of a file that was not opened for
    /// writing. `Unsupported` for a guarded private region, for a guarded region of a file that is used
    /// without guards or the other way round, for a space of another manager, or a space with a
    /// translation. Otherwise as [`Space::map`].
    pub fn map_file(
        &self,
        file: &File,
        offset: u64,
        len: u64,
        sharing: Sharing,
        options: RegionOptions,
    ) -> Result<u64> {
        self.map_file_in(file, None, offset, len, sharing, options)
    }

    /// Maps bytes of a file as [`Space::map_file`] does, at `address`.
    ///
    /// # Errors
    /// `InvalidRange` for an unaligned address. `AlreadyMapped` if the range overlaps a region. Otherwise as
    /// [`Space::map_file`].
    pub fn map_file_at(
        &self,
        address: u64,
        file: &File,
        offset: u64,
        len: u64,
        sharing: Sharing,
        options: RegionOptions,
    ) -> Result<()> {
        self.map_file_in(file, Some(address), offset, len, sharing, options).map(drop)
    }

    fn map_file_in(
        &self,
        file: &File,
        address: Option<u64>,
        offset: u64,
        len: u64,
        sharing: Sharing,
        options: RegionOptions,
    ) -> Result<u64> {
        let open = &*file.open;
        let _inside = open.engine().enter()?;
        let page = PAGE_BYTES as u64;
        let pages = len.div_ceil(page);
        let end = address.unwrap_or(0).checked_add(len);
        let fits = end.is_some() && offset.checked_add(len).is_some() && pages > 0;
        if !fits || !offset.is_multiple_of(page) || !address.unwrap_or(0).is_multiple_of(page) {
            let message = format!(
                "{len} bytes at {offset} of {} cannot be mapped: give at least one byte, and an offset and an \
                 address that are multiples of {page}",
                open.path.display()
            );
            return Err(Error::new(ErrorKind::InvalidRange, message));
        }
        if !self.is_of(open.engine()) {
            let message = "the file is of another manager; open it by the space's own";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let is_private = sharing == Sharing::Private;
        if is_private && options.guarded {
            let message = "a private region of a file has no guards; map it Shared, or without guarded()";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if !is_private && options.protection.write && !open.is_writable {
            let message = format!(
                "{} was opened for reading, and cannot be mapped for writing: open it with \
                 FileOptions::write(true), give RegionOptions::protection(Protection::READ), or map it Private",
                open.path.display()
            );
            return Err(Error::new(ErrorKind::Protected, message));
        }
        let at = address.map(PageNumber::containing);
        self.map_file_pages(
            &open.in_use,
            (offset / page, pages),
            at,
            (is_private, !open.is_writable),
            options,
        )
    }
}
