//! A block device as a device: a disk or a partition that holds nothing else.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::file::{Extent, FileAreaOptions, FileDevice};
use super::header::{self, HEADER_BYTES, HEADER_PAGES};
use crate::error::{Error, ErrorKind, Result};
use crate::units::PAGE_BYTES;

/// A disk as a device: a [`FileDevice`] with all blocks allocated. To swap to one, use
/// [`SwapArea::block_device`](super::SwapArea::block_device).
pub type BlockDevice = FileDevice;

/// Opens the device for this process alone.
///
/// # Errors
/// [`ErrorKind::SwapUnavailable`] if it is mounted or otherwise in use, is no block device, or cannot be
/// opened. [`ErrorKind::SwapNotEmpty`] if it holds something that is not Octavo's.
pub(super) fn open(path: &Path, options: FileAreaOptions) -> Result<BlockDevice> {
    must_be_there(path)?;
    let refuse = |why: &str| refused(path, why);
    let failed = |error: &io::Error| refuse(&error.to_string());
    // O_EXCL asks for exclusive use of a block device. The kernel refuses if it is mounted, swapped to
    // or part of another device.
    let flags = OFlags::EXCL.bits() as i32;
    let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
    let mut file: File = opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::BUSY) => refuse("it is mounted, or in use by another device or process"),
        _ => failed(&error),
    })?;
    let block_bytes = rustix::fs::ioctl_blksszget(&file).map_err(|error| failed(&error.into()))?;
    if block_bytes == 0 || !(PAGE_BYTES as u32).is_multiple_of(block_bytes) {
        return Err(refuse(&format!("its blocks of {block_bytes} bytes do not divide a page of 4096")));
    }
    let bytes = file.seek(SeekFrom::End(0)).map_err(|error| failed(&error))?;
    let Some(room_bytes) = bytes.checked_sub(HEADER_BYTES).filter(|room| *room >= PAGE_BYTES as u64) else {
        return Err(refuse("it has no room for a page behind its first MiB"));
    };
    if !options.overwrite && !header::may_take_disk(&file, bytes).map_err(|error| failed(&error))? {
        return Err(not_empty(path));
    }
    header::write(&file).and_then(|()| file.sync_data()).map_err(|error| failed(&error))?;
    // The header went through the page cache. Pages bypass the cache.
    rustix::fs::fcntl_setfl(&file, OFlags::DIRECT).map_err(|error| failed(&error.into()))?;
    let name = format!("the block device {}", path.display());
    let limit_bytes = room_bytes.min(options.limit_bytes);
    FileDevice::over(
        file,
        name,
        Extent { first_page: HEADER_PAGES, grown_bytes: bytes, limit_bytes },
        options.engine,
    )
}

/// Checks that there is a disk. Unless it is to be overwritten, also checks that the disk holds nothing that
/// is not Octavo's, as far as the disk can be read.
///
/// # Errors
/// `SwapUnavailable` if there is no disk. `SwapNotEmpty` if it holds something else.
pub(super) fn check(path: &Path, overwrite: bool) -> Result<()> {
    must_be_there(path)?;
    let may_take = || {
        let mut file = File::open(path)?;
        let bytes = file.seek(SeekFrom::End(0))?;
        header::may_take_disk(&file, bytes)
    };
    if overwrite || may_take().unwrap_or(true) { Ok(()) } else { Err(not_empty(path)) }
}

/// Checks the path without opening it, since opening a pipe would wait for a writer.
fn must_be_there(path: &Path) -> Result<()> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.file_type().is_block_device() => Ok(()),
        Ok(_) => Err(refused(path, "it is none")),
        Err(error) => Err(refused(path, &error.to_string())),
    }
}

#[cold]
fn refused(path: &Path, why: &str) -> Error {
    let message = format!("cannot swap to the block device {}: {why}", path.display());
    Error::new(ErrorKind::SwapUnavailable, message)
}

#[cold]
fn not_empty(path: &Path) -> Error {
    header::not_empty(
        path,
        "a disk or partition whose first and last MiB are zeros (`lsblk -f` shows what others hold)",
    )
}
