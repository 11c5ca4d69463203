//! A block device as a device: a disk or a partition that holds nothing else. What was on it is lost.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::engine::{Engine, IoEngine, start};
use super::file::capacity_pages;
use super::{Device, Transfer, Urgency, Waited};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Shared;
use crate::units::PAGE_BYTES;

/// Pages on a block device, which nobody else uses meanwhile.
#[derive(Debug)]
pub struct BlockDevice {
    engine: Box<dyn Engine>,
    engine_description: String,
    name: String,
    capacity_pages: u32,
}

impl BlockDevice {
    /// Opens the device for this process alone, to hold at most `limit_bytes`.
    ///
    /// # Errors
    /// [`ErrorKind::SwapUnavailable`] where it is mounted or otherwise in use, no block device, or not to be opened.
    pub(super) fn open(path: &Path, limit_bytes: u64, engine: IoEngine) -> Result<Self> {
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
        // On a block device O_EXCL asks for it alone: refused while it is mounted, swapped to or part of another device.
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
        let capacity_pages = capacity_pages(bytes.min(limit_bytes))?;
        let started = start(engine, &Shared::new(file))?;
        Ok(Self {
            engine: started.engine,
            engine_description: started.description,
            name: format!("the block device {}", path.display()),
            capacity_pages,
        })
    }

    /// How the device is read and written, for messages.
    pub fn describe_engine(&self) -> &str {
        &self.engine_description
    }
}

impl Device for BlockDevice {
    fn capacity_pages(&self) -> u32 {
        self.capacity_pages
    }

    fn submit(&self, transfer: Transfer, urgency: Urgency) {
        self.engine.submit(transfer, urgency);
    }

    fn flush(&self) {
        self.engine.flush();
    }

    fn poll(&self) {
        self.engine.poll();
    }

    fn wait(&self, queue: u32, still_waiting: &dyn Fn() -> bool) -> Waited {
        self.engine.wait(queue, still_waiting)
    }

    fn serve(&self) {
        self.engine.serve();
    }

    fn describe(&self) -> String {
        self.name.clone()
    }
}
