//! A file of the user's as a device: page n lies at byte n * 4096, and the file may end inside a page.
//!
//! Swap has a whole device of pages. A file has a length, holes, and a moment at which its bytes have to be
//! on the disk. [`FileBacking`] adds these to [`Device`].
//!
//! A read of the page in which the file ends gets zeros behind the end. A write moves whole pages, so it may
//! leave the file longer than the user made it; who knows the length cuts it off.
//!
//! Cost: an engine (a ring for each CPU, and a thread) is started at the first transfer that is not done by
//! the calling thread.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt;

use octavo_platform::without_size_signal;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};

use super::device::{Device, MOST_PAGES, Submitted, Waited};
use super::engine::{IoEngine, start};
use super::pending::PendingTransfer;
use super::transfer::{Transfer, Urgency};
use crate::sync::{OnceLock, Shared};
use crate::units::PAGE_BYTES;

/// Implement this to keep the bytes of a [`File`](crate::file::File) in a place of your own: numbered pages
/// of 4 KiB, as for [`Device`], and what a file has beyond these.
pub trait FileBacking: Device {
    /// Returns the length in bytes.
    ///
    /// # Errors
    /// The reason why it cannot be told.
    fn len_bytes(&self) -> io::Result<u64>;

    /// Changes the length. New bytes are zero.
    ///
    /// # Errors
    /// The reason why the length is as before.
    fn set_len_bytes(&self, bytes: u64) -> io::Result<()>;

    /// Makes `len` bytes from `offset` on zero, and frees their room. They lie inside the file.
    ///
    /// # Errors
    /// The reason why they are as before.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Returns when everything that was written before the call stays, whatever happens.
    ///
    /// # Errors
    /// Some of it may be lost.
    fn sync(&self) -> io::Result<()>;
}

/// An open file.
pub(crate) struct UserFile {
    file: Shared<File>,
    name: String,
    /// The pages of a disk. A file of a file system may grow.
    capacity_pages: u32,
    engine: OnceLock<Box<dyn Device>>,
}

impl UserFile {
    pub(crate) fn new(file: Shared<File>, name: String) -> Self {
        let is_disk = file.metadata().is_ok_and(|found| found.file_type().is_block_device());
        let disk_bytes = is_disk.then(|| seek(&*file, SeekFrom::End(0)).unwrap_or(0));
        let pages = disk_bytes.map_or(u64::from(MOST_PAGES), |bytes| bytes / PAGE_BYTES as u64);
        let capacity_pages = pages.min(MOST_PAGES.into()) as u32;
        Self { file, name, capacity_pages, engine: OnceLock::new() }
    }

    /// Returns the engine, which the first caller starts. Without one, the caller moves the bytes itself.
    fn engine(&self) -> Option<&dyn Device> {
        if self.engine.get().is_none()
            && let Ok(started) = start(IoEngine::Probe, &self.file)
        {
            self.engine.get_or_init(|| started.engine);
        }
        self.engine.get().map(|engine| &**engine)
    }

    fn started(&self) -> Option<&dyn Device> {
        self.engine.get().map(|engine| &**engine)
    }
}

impl Device for UserFile {
    fn capacity_pages(&self) -> u32 {
        self.capacity_pages
    }

    fn submit(&self, transfer: Transfer, urgency: Urgency) -> Submitted {
        let engine = if urgency == Urgency::Now { self.started() } else { self.engine() };
        match engine {
            Some(engine) => engine.submit(transfer, urgency),
            None => {
                PendingTransfer::new(transfer).in_place(&self.file);
                Submitted::Accepted
            }
        }
    }

    fn flush(&self) {
        self.started().iter().for_each(|engine| engine.flush());
    }

    fn poll(&self) {
        self.started().iter().for_each(|engine| engine.poll());
    }

    fn wait(&self, queue: u32, still_waiting: &dyn Fn() -> bool) -> Waited {
        self.started().map_or(Waited::Sleep, |engine| engine.wait(queue, still_waiting))
    }

    fn serve(&self) {
        self.started().iter().for_each(|engine| engine.serve());
    }

    fn describe(&self) -> String {
        self.name.clone()
    }
}

impl FileBacking for UserFile {
    fn len_bytes(&self) -> io::Result<u64> {
        // The end of a disk is found by going there. The position is nobody's: transfers name theirs.
        let bytes = seek(&*self.file, SeekFrom::End(0))?;
        // The last part of a page of a disk cannot be written by pages.
        Ok(bytes.min(u64::from(self.capacity_pages) * PAGE_BYTES as u64))
    }

    fn set_len_bytes(&self, bytes: u64) -> io::Result<()> {
        without_size_signal(|| self.file.set_len(bytes))
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        Ok(fallocate(&*self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)?)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
