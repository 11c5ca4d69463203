//! A file as a device. By default, it is a temporary file without a name, of which nothing is left even if
//! the process is killed.
//!
//! The file grows in steps, ahead of the writes. A write inside the file avoids the locks and the journal of
//! the file system that a write at its end needs. A named file keeps its blocks and is used as it is, since
//! blocks that were written once are written faster. It begins with a [header](super::header), and a file
//! that holds anything else is refused. Transfers go past the page cache if the file system allows it.
//!
//! Locking: `growing`. The thread that makes the file larger holds this lock. Writes inside the file do not
//! take it.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use octavo_platform::without_size_signal;
use rustix::fs::{Access, FallocateFlags, FlockOperation, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::device::{Device, MOST_PAGES, Submitted, Waited, capacity_pages};
use super::engine::{IoEngine, start};
use super::header::{self, HEADER_BYTES, HEADER_PAGES};
use super::transfer::{Direction, Transfer, Urgency};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, Shared};
use crate::units::PAGE_SHIFT;

/// The swap file of a manager that is given no [`SwapArea`](super::SwapArea): where it lies, or that there is
/// none. For [`ManagerBuilder::swap_file`](crate::ManagerBuilder::swap_file).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapFile {
    /// A temporary file without a name in this directory.
    Temporary(PathBuf),
    /// A file of this name, which is created if it does not exist, and left behind. A file that holds
    /// anything but Octavo's pages is refused, except by [`SwapArea::overwrite`](super::SwapArea::overwrite).
    Named(PathBuf),
    /// No swap. When the budget is used up, accesses that need room fail.
    None,
}

impl Default for SwapFile {
    /// A temporary file in `$TMPDIR`, or in /var/tmp if `$TMPDIR` is not set or lies in memory. /var/tmp is
    /// on a disk, but /tmp may lie in memory.
    fn default() -> Self {
        let chosen = std::env::var_os("TMPDIR").map(PathBuf::from);
        let on_disk =
            chosen.filter(|path| !rustix::fs::statfs(path).is_ok_and(|status| names_memory(&status)));
        Self::Temporary(on_disk.unwrap_or_else(|| "/var/tmp".into()))
    }
}

/// The file grows by a quarter at a time, within these limits.
const STEP_BYTES: std::ops::RangeInclusive<u64> = 32 << 20..=512 << 20;

/// A swap file or disk as a [`Device`], to wrap in a device of your own. Otherwise use
/// [`SwapArea::file`](super::SwapArea::file).
pub struct FileDevice {
    file: Shared<File>,
    engine: Box<dyn Device>,
    engine_description: String,
    name: String,
    /// The page of the file at which place 0 begins.
    first_page: u32,
    capacity_pages: u32,
    /// Up to here, the file has blocks, or would have them if the file system could allocate ahead.
    grown_bytes: AtomicU64,
    growing: Mutex<()>,
    /// Whether the file system cannot allocate blocks ahead.
    plain: AtomicBool,
}

/// The choices for opening a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileAreaOptions {
    pub(super) limit_bytes: u64,
    pub(super) allow_tmpfs: bool,
    /// Whether to take a named place that holds something else.
    pub(super) overwrite: bool,
    pub(super) engine: IoEngine,
}

impl FileAreaOptions {
    fn refuse_memory(&self, file: &File, path: &Path) -> Result<()> {
        if !self.allow_tmpfs && is_memory(file) { Err(in_memory(path)) } else { Ok(()) }
    }
}

/// The bytes of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// The page at which place 0 begins.
    pub(super) first_page: u32,
    /// Up to here the file has blocks.
    pub(super) grown_bytes: u64,
    /// The most that the places take.
    pub(super) limit_bytes: u64,
}

impl FileDevice {
    /// Opens the file that `swap` describes, to hold at most `limit_bytes`, on any file system. Returns
    /// `None` for [`SwapFile::None`].
    ///
    /// # Errors
    /// [`ErrorKind::SwapUnavailable`] if it cannot be made or opened. [`ErrorKind::SwapNotEmpty`] if it holds
    /// something that is not Octavo's.
    pub fn open(swap: &SwapFile, limit_bytes: u64) -> Result<Option<Self>> {
        let engine = IoEngine::Probe;
        let options = FileAreaOptions { limit_bytes, allow_tmpfs: true, overwrite: false, engine };
        match swap {
            SwapFile::None => Ok(None),
            SwapFile::Temporary(directory) => Self::temporary(directory, options).map(Some),
            SwapFile::Named(path) => Self::named(path, options).map(Some),
        }
    }

    pub(super) fn temporary(directory: &Path, options: FileAreaOptions) -> Result<Self> {
        let file = tempfile::tempfile_in(directory).map_err(|error| unavailable(directory, &error))?;
        options.refuse_memory(&file, directory)?;
        let name = format!("the temporary swap file in {}", directory.display());
        let extent = Extent { first_page: 0, grown_bytes: 0, limit_bytes: options.limit_bytes };
        Self::new(file, name, extent, options.engine)
    }

    pub(super) fn named(path: &Path, options: FileAreaOptions) -> Result<Self> {
        let refused = |error: &io::Error| unavailable(path, error);
        let mut opening = OpenOptions::new();
        opening.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = opening.open(path).map_err(|error| refused(&error))?;
        let metadata = file.metadata().map_err(|error| refused(&error))?;
        if metadata.file_type().is_block_device() {
            return Err(unavailable_because(
                path,
                "it is a block device: name it as one, as all on it is lost",
            ));
        }
        if !metadata.is_file() {
            return Err(unavailable_because(path, "it is not a file"));
        }
        // Some network file systems have no locks, so every other error is ignored.
        if let Err(Errno::WOULDBLOCK) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            return Err(unavailable_because(path, "another manager, here or in another process, uses it"));
        }
        options.refuse_memory(&file, path)?;
        // Ask again under the lock: another manager may have made the file and ended since.
        let len = file.metadata().map_err(|error| refused(&error))?.len();
        if !options.overwrite && !header::may_take_file(&file, len).map_err(|error| refused(&error))? {
            return Err(header::not_empty(path, "a file that is not there yet"));
        }
        header::write(&file).and_then(|()| file.sync_data()).map_err(|error| {
            // If only a part of the header was written, the file would later seem to hold something else. So
            // make it empty again.
            let _ = if len == 0 { file.set_len(0) } else { Ok(()) };
            refused(&error)
        })?;
        let name = format!("the swap file {}", path.display());
        let extent = Extent {
            first_page: HEADER_PAGES,
            grown_bytes: len.max(HEADER_BYTES),
            limit_bytes: options.limit_bytes,
        };
        Self::new(file, name, extent, options.engine)
    }

    fn new(file: File, name: String, mut extent: Extent, engine: IoEngine) -> Result<Self> {
        let direct = bypass_page_cache(&file);
        // The process cannot write beyond its own file size limit. That limit may be lowered later, too.
        let most_bytes = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        let before_bytes = u64::from(extent.first_page) << PAGE_SHIFT;
        extent.limit_bytes = extent.limit_bytes.min(most_bytes.saturating_sub(before_bytes));
        let mut device = Self::over(file, name, extent, engine)?;
        if !direct {
            device.engine_description += ", through the page cache";
        }
        Ok(device)
    }

    /// Starts an engine on a file.
    pub(super) fn over(file: File, name: String, extent: Extent, engine: IoEngine) -> Result<Self> {
        let Extent { first_page, grown_bytes, limit_bytes } = extent;
        let capacity_pages = capacity_pages(limit_bytes)?.min(MOST_PAGES - first_page);
        let file = Shared::new(file);
        let started = start(engine, &file)?;
        Ok(Self {
            file,
            engine: started.engine,
            engine_description: started.description,
            name,
            first_page,
            capacity_pages,
            grown_bytes: AtomicU64::new(grown_bytes),
            growing: Mutex::new(()),
            plain: AtomicBool::new(false),
        })
    }

    /// The engine that reads and writes the file, for messages.
    pub fn describe_engine(&self) -> &str {
        &self.engine_description
    }

    /// Returns where in the file the first `places` places end.
    fn end_of(&self, places: u64) -> u64 {
        (u64::from(self.first_page) + places) << PAGE_SHIFT
    }

    /// Makes the file reach to `end`.
    fn grow(&self, end: u64) -> io::Result<()> {
        if end <= self.grown_bytes.load(Ordering::Acquire) || self.plain.load(Ordering::Relaxed) {
            return Ok(());
        }
        let _growing = self.growing.lock();
        let start = self.grown_bytes.load(Ordering::Acquire);
        if end <= start {
            return Ok(());
        }
        let step = (start / 4).clamp(*STEP_BYTES.start(), *STEP_BYTES.end());
        let wanted = (start + step).max(end).min(self.end_of(self.capacity_pages.into()));
        let grown = self.allocate(start, wanted).map(|()| wanted).or_else(|error| {
            // The larger step has failed, but there may be room for the bytes that are needed now.
            if wanted > end { self.allocate(start, end).map(|()| end) } else { Err(error) }
        });
        match grown {
            Ok(reached) => {
                self.grown_bytes.store(reached, Ordering::Release);
                Ok(())
            }
            // From now on, each write extends the file.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                self.plain.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn allocate(&self, start: u64, end: u64) -> rustix::io::Result<()> {
        without_size_signal(|| {
            loop {
                match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), start, end - start) {
                    Err(Errno::INTR) => {}
                    other => return other,
                }
            }
        })
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        // After a ring has ended, the kernel keeps the ring's file open for a while, and with it the lock. So
        // release the lock here.
        let _ = rustix::fs::flock(&*self.file, FlockOperation::Unlock);
    }
}

impl Device for FileDevice {
    fn capacity_pages(&self) -> u32 {
        self.capacity_pages
    }

    fn submit(&self, transfer: Transfer, urgency: Urgency) -> Submitted {
        if transfer.direction() == Direction::Write {
            let end = self.end_of(u64::from(transfer.place()) + transfer.len() as u64);
            if let Err(error) = self.grow(end) {
                transfer.complete(Err(error));
                return Submitted::Accepted;
            }
        }
        let place = transfer.place();
        match self.engine.submit(transfer.at(self.first_page + place), urgency) {
            Submitted::Full(back) => Submitted::Full(back.at(place)),
            Submitted::Accepted => Submitted::Accepted,
        }
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

impl fmt::Debug for FileDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileDevice of {} ({})", self.name, self.engine_description)
    }
}

/// Makes transfers bypass the page cache if the file system allows it: the cache would count against the
/// process's control group.
pub(crate) fn bypass_page_cache(file: &File) -> bool {
    // tmpfs before Linux 6.6, and some network file systems, refuse. Then transfers go through the cache.
    rustix::fs::fcntl_getfl(file)
        .and_then(|flags| rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT))
        .is_ok()
}

/// Returns whether the file system keeps files in memory: tmpfs, ramfs, hugetlbfs.
fn is_memory(file: &File) -> bool {
    #[allow(clippy::unnecessary_cast, reason = "its width differs between C libraries")]
    rustix::fs::fstatfs(file).is_ok_and(|status| names_memory(&status))
}

fn names_memory(status: &rustix::fs::StatFs) -> bool {
    const MEMORY: [i64; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];
    MEMORY.contains(&status.f_type)
}

/// Checks a place for a file, as far as possible without making one.
///
/// # Errors
/// `SwapUnavailable`.
pub(super) fn check(path: &Path, folder: &Path, allow_tmpfs: bool) -> Result<()> {
    let place = if path.exists() { path } else { folder };
    if path
        .metadata()
        .is_ok_and(|found| !found.is_file() && !found.is_dir() && !found.file_type().is_block_device())
    {
        return Err(unavailable_because(path, "it is neither a file nor a disk"));
    }
    if !folder.is_dir() {
        return Err(unavailable_because(path, &format!("there is no folder {}", folder.display())));
    }
    let checked = rustix::fs::access(place, Access::WRITE_OK).and_then(|()| rustix::fs::statfs(place));
    match checked {
        Err(error) => Err(unavailable(path, &error.into())),
        Ok(status) if !allow_tmpfs && names_memory(&status) => Err(in_memory(path)),
        Ok(_) => Ok(()),
    }
}

/// Returns the folder that a file is in, or is to be in.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Checks that a file holds nothing that is not Octavo's, as far as it can be read.
///
/// # Errors
/// `SwapNotEmpty`.
pub(super) fn check_contents(path: &Path) -> Result<()> {
    let may_take = File::open(path).and_then(|file| header::may_take_file(&file, file.metadata()?.len()));
    if may_take.unwrap_or(true) {
        Ok(())
    } else {
        Err(header::not_empty(path, "a file that is not there yet"))
    }
}

#[cold]
fn in_memory(path: &Path) -> Error {
    let why = "the file system there is memory (tmpfs), so swapping to it frees nothing; \
               choose a directory on a disk, or force it with `allow_tmpfs(true)`";
    Error::new(ErrorKind::SwapUnavailable, format!("no swap at {}: {why}", path.display()))
}

#[cold]
pub(super) fn unavailable(path: &Path, error: &io::Error) -> Error {
    unavailable_because(path, &error.to_string())
}

#[cold]
pub(super) fn unavailable_because(path: &Path, why: &str) -> Error {
    Error::new(
        ErrorKind::SwapUnavailable,
        format!(
            "cannot make a swap file at {}: {why}; choose a writable place on a disk, by another path or by $TMPDIR",
            path.display()
        ),
    )
}
