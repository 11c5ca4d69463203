//! Files: what a program keeps on a device. Spaces show their pages, and calls read and write them.
//!
//! All ways but one go through the page cache of the manager, which has a page of a file once, however many
//! use it. [`File::direct_read`] and [`File::direct_write`] move bytes between the device and pages of a
//! space.
//!
//! | file | what it holds | uses |
//! |---|---|---|
//! | `mod` | a file, how it is opened, its length, and when its bytes are durable | |
//! | `cached` | reads and writes at an offset | |
//! | `map` | files as regions of spaces | |
//! | `direct` | transfers between the file and pinned pages of a space | `lanes` |
//! | `lanes` | rings of io_uring, one for each transfer that has several parts under way | |

mod cached;
mod direct;
mod lanes;
mod map;

use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, StatxFlags};

pub use cached::FileCursor;
pub use map::Sharing;

use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
pub use crate::io::FileBacking;
use crate::io::{UserFile, bypass_page_cache};
pub use crate::page_cache::WriteGate;
use crate::page_cache::{Identity, Inode, SeenErrors};
use crate::reclaim::Running;
use crate::space::Space;
use crate::sync::{Arc, Duration, OnceLock, Shared};
use crate::units::PAGE_BYTES;
use crate::writeback::{FileUse, punch, set_len, sync_pages};
use direct::Group;
use lanes::Lanes;

/// How long a thread sleeps for a completion before it looks again, whatever happens.
const LEAD: Duration = Duration::from_millis(50);

/// The choices for opening a file.
#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    write: bool,
    create: bool,
    direct: bool,
}

impl Default for FileOptions {
    /// As [`FileOptions::new`].
    fn default() -> Self {
        Self { write: false, create: false, direct: true }
    }
}

impl FileOptions {
    /// Opens a file that exists, for reading only, and past the kernel's page cache if that can be done.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens the file for writing as well.
    #[must_use]
    pub fn write(self, write: bool) -> Self {
        Self { write, ..self }
    }

    /// Makes the file if it does not exist, and opens it for writing, too.
    #[must_use]
    pub fn create(self, create: bool) -> Self {
        Self { create, ..self }
    }

    /// Selects whether transfers go past the kernel's page cache (`O_DIRECT`). The default is that they do,
    /// if the file system can do that.
    #[must_use]
    pub fn direct(self, direct: bool) -> Self {
        Self { direct, ..self }
    }
}

/// A file, or a disk, with its pages in the manager's page cache. From
/// [`Manager::open`](crate::Manager::open). A clone is the same open file. An open file keeps its manager.
///
/// What a program writes is in memory first. It goes to the device when [`File::sync`] is called, when
/// memory is short, and when the file's last handle, mapping or clone is dropped. Only `sync` tells of
/// errors. While a manager has a file open, it takes the file's length and bytes to be its own: another
/// program that changes them may not be noticed.
///
/// Calls block. `sync`, changes of the length and direct transfers have no timeout.
///
/// ```
/// use octavo::file::{FileOptions, Sharing};
/// use octavo::{Manager, RegionOptions};
///
/// let folder = tempfile::tempdir()?;
/// let manager = Manager::builder().budget_bytes(16 << 20).build()?;
/// let file = manager.open(folder.path().join("table"), FileOptions::new().create(true))?;
///
/// file.write_at(8192, b"kept on a device")?;
/// let space = manager.space()?;
/// let at = space.map_file(&file, 0, 1 << 20, Sharing::Shared, RegionOptions::default())?;
/// assert_eq!(space.load::<u8>(at + 8192)?, b'k');
///
/// space.store(at + 8192, b'K')?;
/// file.sync()?;
/// assert_eq!(std::fs::read(folder.path().join("table"))?[8192..], *b"Kept on a device");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct File {
    open: Shared<Open>,
}

struct Open {
    running: Arc<Running>,
    /// The file of the system, unless the bytes are kept elsewhere.
    kept: Option<Kept>,
    path: PathBuf,
    is_writable: bool,
    in_use: FileUse,
    /// The errors of writes that calls of `sync` have reported.
    seen: SeenErrors,
    /// The space that shows all of the file, from the first plain read or write on.
    whole: OnceLock<Space>,
}

/// A file of the system.
struct Kept {
    file: Shared<std::fs::File>,
    /// If transfers go past the kernel's page cache: what offsets, addresses and lengths are multiples of.
    direct_align: Option<u64>,
    lanes: Lanes<Group>,
}

/// Returns what direct transfers of a file have to be multiples of, in bytes. Returns `None` if the file
/// system has no direct transfers of single pages for it.
fn alignment_of(file: &std::fs::File) -> Option<u64> {
    let told = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    let is_told =
        |told: &rustix::fs::Statx| StatxFlags::from_bits_retain(told.stx_mask).contains(StatxFlags::DIOALIGN);
    let Some(told) = told.ok().filter(is_told) else {
        // Before Linux 6.1, and on some file systems. A page is enough for every device.
        return Some(PAGE_BYTES as u64);
    };
    let align = u64::from(told.stx_dio_mem_align.max(told.stx_dio_offset_align));
    (told.stx_dio_offset_align != 0 && align <= PAGE_BYTES as u64).then_some(align)
}

impl File {
    pub(crate) fn open(running: &Arc<Running>, path: &Path, options: FileOptions) -> Result<Self> {
        let refused = |why: &str| {
            let message = format!("cannot open {}: {why}", path.display());
            Error::new(ErrorKind::FileUnavailable, message)
        };
        // To open a pipe would wait for its other end.
        let is_kept = |kind: std::fs::FileType| kind.is_file() || kind.is_block_device();
        if std::fs::metadata(path).is_ok_and(|found| !is_kept(found.file_type())) {
            return Err(refused("it is neither a file nor a disk"));
        }
        let is_writable = options.write || options.create;
        let mut opening = OpenOptions::new();
        opening.read(true).write(is_writable).create(options.create);
        let file = opening.open(path).map_err(|error| refused(&error.to_string()))?;
        let direct_align = options.direct.then(|| alignment_of(&file)).flatten();
        let direct_align = direct_align.filter(|_| bypass_page_cache(&file));
        let status =
            rustix::fs::fstat(&file).map_err(|error| refused(&io::Error::from(error).to_string()))?;
        // A disk has another inode in each folder of devices.
        let is_disk = rustix::fs::FileType::from_raw_mode(status.st_mode).is_block_device();
        let identity = match is_disk {
            true => Identity { device: u64::MAX, inode: status.st_rdev },
            false => Identity { device: status.st_dev, inode: status.st_ino },
        };
        let file = Shared::new(file);
        let backing = || {
            // The cache writes by this descriptor for all who open the file, so it wants to write if it may.
            let backing = match OpenOptions::new().read(true).write(true).open(path) {
                Ok(backing) if is_same(&backing, &file) => backing,
                _ => file.try_clone().map_err(|error| refused(&error.to_string()))?,
            };
            if direct_align.is_some() {
                bypass_page_cache(&backing);
            }
            let name = path.display().to_string();
            Ok(Box::new(UserFile::new(Shared::new(backing), name)) as Box<dyn FileBacking>)
        };
        let name = path.display().to_string();
        let inode = running.engine.page_cache.open(Some(identity), &name, backing)?;
        let kept = Kept { direct_align, lanes: Lanes::new(Shared::clone(&file)), file };
        Self::over(running, inode, Some(kept), path, is_writable)
    }

    /// Opens a file whose bytes are kept in a place of the caller's own.
    pub(crate) fn open_backing(
        running: &Arc<Running>,
        name: &str,
        backing: Box<dyn FileBacking>,
        options: FileOptions,
    ) -> Result<Self> {
        let inode = running.engine.page_cache.open(None, name, || Ok(backing))?;
        Self::over(running, inode, None, Path::new(name), options.write || options.create)
    }

    fn over(
        running: &Arc<Running>,
        inode: Shared<Inode>,
        kept: Option<Kept>,
        path: &Path,
        is_writable: bool,
    ) -> Result<Self> {
        let in_use = FileUse::counted(&running.engine, inode);
        if is_writable && let Err(error) = running.start_flusher() {
            return Err(Error::system("cannot start the thread that writes pages of files", &error));
        }
        running.engine.note_open_file();
        let open = Open {
            running: Arc::clone(running),
            kept,
            path: path.into(),
            is_writable,
            seen: in_use.inode().errors.sample(),
            in_use,
            whole: OnceLock::new(),
        };
        Ok(Self { open: Shared::new(open) })
    }

    /// Whether transfers go past the kernel's page cache. Otherwise the kernel copies each of them.
    pub fn is_direct(&self) -> bool {
        self.open.kept.as_ref().is_some_and(|kept| kept.direct_align.is_some())
    }

    /// Returns what offsets and lengths of transfers, and addresses in spaces, have to be multiples of:
    /// mostly the size of the device's blocks, 512 or 4096. It is 1 if transfers go through the page cache.
    pub fn alignment_bytes(&self) -> u64 {
        self.open.kept.as_ref().and_then(|kept| kept.direct_align).unwrap_or(1)
    }

    /// Returns the length of the file, or of the disk, in bytes.
    ///
    /// # Errors
    /// `ForkedChild` in a forked child.
    pub fn len_bytes(&self) -> Result<u64> {
        self.open.engine().check_process()?;
        Ok(self.open.inode().len_bytes())
    }

    /// Changes the length of the file. New bytes are zero. Pages behind the end are dropped from memory, and
    /// accesses to them are errors from then on.
    ///
    /// # Errors
    /// `FileWrite` if the file is a disk, was not opened for writing, or if the kernel refuses;
    /// `ForkedChild` in a forked child.
    pub fn set_len_bytes(&self, bytes: u64) -> Result<()> {
        let _inside = self.open.engine().enter()?;
        self.open.check_writable("change the length of")?;
        set_len(self.open.engine(), self.open.inode(), bytes)
    }

    /// Makes `len` bytes from `offset` on zero, and frees the room of whole pages on the device. The length
    /// stays. Bytes that others store to the hole before the call returns may be lost.
    ///
    /// # Errors
    /// `FileWrite` if the file was not opened for writing, or if its file system has no holes. Otherwise as
    /// [`File::write_at`]: a page of which only a part becomes zero is written.
    /// `ForkedChild` in a forked child.
    pub fn punch_hole(&self, offset: u64, len: u64) -> Result<()> {
        let open = &*self.open;
        let _inside = open.engine().enter()?;
        open.check_writable("make a hole in")?;
        let edges = punch(open.engine(), open.inode(), offset..offset.saturating_add(len))?;
        // The rest of these pages belongs to others, who may be storing to it.
        for part in edges.into_iter().filter(|part| !part.is_empty()) {
            open.zero(part)?;
        }
        Ok(())
    }

    /// Sets who holds dirty pages of the file back until their log is durable, or nobody. It holds for all
    /// who have the file open.
    ///
    /// # Errors
    /// `FileWrite` if the file was not opened for writing.
    pub fn set_write_gate(&self, gate: Option<Shared<dyn WriteGate>>) -> Result<()> {
        self.open.check_writable("hold back pages of")?;
        self.open.inode().set_gate(gate);
        Ok(())
    }

    /// Returns how many bytes of the file are in memory only, in whole pages.
    pub fn dirty_bytes(&self) -> u64 {
        self.open.inode().dirty_pages() * PAGE_BYTES as u64
    }

    /// Returns the file's descriptor, for what is not here, such as locks. `None` if a [`FileBacking`]
    /// keeps the bytes. Reads and writes by the descriptor miss what is only in the page cache.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.open.kept.as_ref().map(|kept| kept.file.as_fd())
    }

    /// Waits until everything that was stored to the file before the call is on the device for good, as far
    /// as the kernel and the device keep their promise. Stores that begin after the call are not waited
    /// for. Pages that are pinned for writing go out as they are. The call waits for exclusive guards, so
    /// its own thread must hold none.
    ///
    /// Costs by the dirty pages of the file, not by its length, and a flush of the device.
    ///
    /// # Errors
    /// `FileWrite` if the device has failed since the last call on this open file. Pages that could not be
    /// written stay dirty and in memory, and the next call tries again. If the flush failed, what was written
    /// since the last success may be lost. `ForkedChild` in a forked child.
    pub fn sync(&self) -> Result<()> {
        self.sync_range(0, u64::MAX)
    }

    /// Does what [`File::sync`] does, for the pages of `len` bytes from `offset` on.
    ///
    /// # Errors
    /// As [`File::sync`].
    pub fn sync_range(&self, offset: u64, len: u64) -> Result<()> {
        let open = &*self.open;
        let _inside = open.engine().enter()?;
        let page = PAGE_BYTES as u64;
        let pages = offset / page..offset.saturating_add(len).div_ceil(page);
        sync_pages(open.engine(), open.inode(), pages);
        match open.inode().errors.check(&open.seen) {
            Some(error) => Err(self.failed(ErrorKind::FileWrite, "write to", &error)),
            None => Ok(()),
        }
    }

    #[cold]
    fn failed(&self, kind: ErrorKind, what: &str, error: &io::Error) -> Error {
        Error::new(kind, format!("cannot {what} {}: {error}", self.open.path.display()))
    }
}

impl Open {
    fn engine(&self) -> &Shared<Engine> {
        &self.running.engine
    }

    fn inode(&self) -> &Shared<Inode> {
        self.in_use.inode()
    }

    fn check_writable(&self, verb: &str) -> Result<()> {
        if self.is_writable {
            return Ok(());
        }
        let message = format!(
            "cannot {verb} {}: it was opened for reading; give FileOptions::write(true)",
            self.path.display()
        );
        Err(Error::new(ErrorKind::FileWrite, message))
    }
}

/// Returns whether both are the same file.
fn is_same(one: &std::fs::File, other: &std::fs::File) -> bool {
    let identity = |file| rustix::fs::fstat(file).map(|status| (status.st_dev, status.st_ino)).ok();
    identity(one).is_some() && identity(one) == identity(other)
}

impl Drop for Open {
    fn drop(&mut self) {
        self.engine().note_closed_file();
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.is_direct() { "direct" } else { "through the page cache" };
        write!(f, "File({}, {way})", self.open.path.display())
    }
}
