//! A block device as a device: a disk or a partition that holds nothing else. Its contents are lost.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::engine::IoEngine;
use super::file::FileDevice;
use crate::error::{Error, ErrorKind, Result};
use crate::units::PAGE_BYTES;

/// A disk as a device: a [`FileDevice`] whose blocks are all there. To swap to one, use [`SwapArea::block_device`](super::SwapArea::block_device).
pub type BlockDevice = FileDevice;

/// Opens the device for this process alone, to hold at most `limit_bytes`.
///
/// # Errors
/// [`ErrorKind::SwapUnavailable`] when it is mounted or otherwise in use, is no block device, or cannot be opened.
pub(super) fn open(path: &Path, limit_bytes: u64, engine: IoEngine) -> Result<BlockDevice> {
    let refuse = |why: &str| {
        let message = format!("cannot swap to the block device {}: {why}", path.display());
        Error::new(ErrorKind::SwapUnavailable, message)
    };
    let is_block = std::fs::metadata(path).map(|metadata| metadata.file_type().is_block_device());
    match is_block {
        Ok(true) => {}
        Ok(false) => return Err(refuse("it is none")),
        Err(error) => return Err(refuse(&error.to_string())),
    }
    // O_EXCL asks for a block device alone. The kernel refuses if it is mounted, swapped to or part of another
    // device.
    let flags = (OFlags::DIRECT | OFlags::EXCL).bits() as i32;
    let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
    let mut file: File = opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::BUSY) => refuse("it is mounted, or in use by another device or process"),
        _ => refuse(&error.to_string()),
    })?;
    let block_bytes = rustix::fs::ioctl_blksszget(&file).map_err(|error| refuse(&error.to_string()))?;
    if block_bytes == 0 || !(PAGE_BYTES as u32).is_multiple_of(block_bytes) {
        return Err(refuse(&format!("its blocks of {block_bytes} bytes do not divide a page of 4096")));
    }
    let bytes = file.seek(SeekFrom::End(0)).map_err(|error| refuse(&error.to_string()))?;
    if bytes < PAGE_BYTES as u64 {
        return Err(refuse("it has no room for a page"));
    }
    let name = format!("the block device {}", path.display());
    FileDevice::over(file, name, bytes, bytes.min(limit_bytes), engine)
}
