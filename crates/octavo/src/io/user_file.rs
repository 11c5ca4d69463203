//! A file of the user's as a device: page n lies at byte n * 4096, and the file may end inside a page.
//!
//! Swap has a whole device of pages. A file has a length, holes, and a moment at which its bytes have to be
//! on the disk. [`FileBacking`] adds these to [`Device`].
//!
//! A read of the page in which the file ends gets zeros behind the end. A write ends where the file does, so
//! that a program that reads the file beside never finds it longer than it is, not even after this process
//! was killed. A direct write cannot end at any byte. So the calling thread writes the part of the last page
//! through the kernel's page cache, before the engine gets the whole pages. The kernel makes the two agree,
//! page by page. If another program reads the file by larger pieces at that moment, the kernel may report a
//! failed sync, and the next one writes all.
//!
//! Cost: an engine (a ring for each CPU, and a thread) is started at the first transfer that is not done by
//! the calling thread. A part of a page costs one system call. It copies the part, and may wait for the disk:
//! to read the rest of a block, or because the kernel has many dirty pages. The first part opens a descriptor
//! if the file's own is direct.

use std::fs::{File, OpenOptions};
use std::io;
use std::iter;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileTypeExt;

use octavo_platform::{ArenaBytes, without_size_signal};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom, fallocate, fcntl_getfl, fstatfs, seek};

use super::device::{Device, MOST_PAGES, Submitted, Waited};
use super::engine::{IoEngine, start};
use super::pending::{MOST_IDLE_ROUNDS, PendingTransfer, is_passing};
use super::transfer::{Transfer, Urgency};
use crate::sync::{AtomicU32, Duration, OnceLock, Ordering, Shared, pause};
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
    /// The file without direct transfers, from the first part of a page on.
    through_cache: OnceLock<Shared<File>>,
    /// Threads that write parts of pages.
    writing_parts: AtomicU32,
}

/// How long a thread pauses that waits for a part of a page, which another thread writes.
const PART_PAUSE: Duration = Duration::from_micros(50);

impl UserFile {
    pub(crate) fn new(file: Shared<File>, name: String) -> Self {
        let is_disk = file.metadata().is_ok_and(|found| found.file_type().is_block_device());
        let disk_bytes = is_disk.then(|| seek(&*file, SeekFrom::End(0)).unwrap_or(0));
        let pages = disk_bytes.map_or(u64::from(MOST_PAGES), |bytes| bytes / PAGE_BYTES as u64);
        let capacity_pages = pages.min(MOST_PAGES.into()) as u32;
        let (engine, through_cache) = (OnceLock::new(), OnceLock::new());
        Self { file, name, capacity_pages, engine, through_cache, writing_parts: AtomicU32::new(0) }
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

    /// Returns a descriptor for parts of pages, unless the file has blocks larger than pages, or cannot be
    /// opened again. A part in a larger block would have the kernel write pages beside it, which may be under
    /// way to the disk.
    fn through_cache(&self) -> Option<&File> {
        if let Some(file) = self.through_cache.get() {
            return Some(file);
        }
        let file = if fcntl_getfl(&*self.file).ok()?.contains(OFlags::DIRECT) {
            let block_bytes = fstatfs(&*self.file).ok()?.f_bsize;
            if usize::try_from(block_bytes).map_or(true, |bytes| bytes > PAGE_BYTES) {
                return None;
            }
            // A descriptor of its own: the flag belongs to all copies of one.
            let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            Shared::new(OpenOptions::new().write(true).open(path).ok()?)
        } else {
            Shared::clone(&self.file)
        };
        Some(self.through_cache.get_or_init(|| file))
    }

    /// Writes the part of the last page that lies in the file, and takes that page off the transfer. Where
    /// that is not possible, all of the page stays, and the length is cut at the next sync.
    fn write_part(&self, transfer: &mut Transfer) -> io::Result<()> {
        if !transfer.has_part() {
            return Ok(());
        }
        let Some(file) = self.through_cache() else { return Ok(()) };
        let Some(part) = transfer.take_part() else { return Ok(()) };
        let offset = (u64::from(transfer.place()) + transfer.len() as u64) * PAGE_BYTES as u64;
        // Relaxed: it only tells others not to spin.
        self.writing_parts.fetch_add(1, Ordering::Relaxed);
        let written = write_all(file, offset, transfer.arena(), part);
        self.writing_parts.fetch_sub(1, Ordering::Relaxed);
        written
    }
}

fn write_all(file: &File, mut offset: u64, arena: &ArenaBytes, mut part: Range<usize>) -> io::Result<()> {
    let mut tries = 0;
    while !part.is_empty() {
        let (to, from) = (octavo_platform::Direction::Write, iter::once(part.clone()));
        match arena.transfer_some(file.as_fd(), offset, to, from) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(moved) => (part.start, offset) = (part.start + moved, offset + moved as u64),
            Err(error) if is_passing(&error) && tries < MOST_IDLE_ROUNDS => tries += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Device for UserFile {
    fn capacity_pages(&self) -> u32 {
        self.capacity_pages
    }

    fn submit(&self, mut transfer: Transfer, urgency: Urgency) -> Submitted {
        let written = self.write_part(&mut transfer);
        if written.is_err() || transfer.len() == 0 {
            transfer.complete(written);
            return Submitted::Accepted;
        }
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
        let waited = self.started().map_or(Waited::Sleep, |engine| engine.wait(queue, still_waiting));
        let is_part_under_way = self.writing_parts.load(Ordering::Relaxed) > 0;
        if waited == Waited::Progress && is_part_under_way && still_waiting() {
            // The engine knows nothing of the part, and would let the caller look again at once.
            pause(PART_PAUSE);
        }
        waited
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
        // Asking is cheaper than a change of nothing, which a file system notes in its journal.
        if self.file.metadata().is_ok_and(|found| found.is_file() && found.len() == bytes) {
            return Ok(());
        }
        without_size_signal(|| self.file.set_len(bytes))
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        Ok(fallocate(&*self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len)?)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
