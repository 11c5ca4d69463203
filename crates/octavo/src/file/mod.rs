//! Files: what a program keeps on a device, and moves between there and the pages of its spaces.
//!
//! | file | what it holds | uses |
//! |---|---|---|
//! | `mod` | a file, how it is opened, and its length | `direct` |
//! | `direct` | transfers between the file and pinned pages of a space | `lanes` |
//! | `lanes` | rings of io_uring, one for each transfer that has several parts under way | |

mod direct;
mod lanes;

use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, StatxFlags};

use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::io::bypass_page_cache;
use crate::reclaim::Running;
use crate::sync::{Arc, Duration, Shared};
use crate::units::PAGE_BYTES;
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

/// A file, or a disk, whose bytes move between the device and the pages of spaces. From
/// [`Manager::open`](crate::Manager::open). A clone is the same open file. An open file keeps its manager.
///
/// Calls block, and have no timeout. For what is not here (locks, holes), use the file's descriptor
/// ([`AsFd`]).
///
/// ```
/// use std::sync::Arc;
/// use octavo::file::FileOptions;
/// use octavo::{Manager, RegionOptions};
///
/// let folder = tempfile::tempdir()?;
/// let manager = Manager::builder().budget_bytes(16 << 20).build()?;
/// let file = manager.open(folder.path().join("table"), FileOptions::new().create(true))?;
/// let space = Arc::new(manager.space()?);
/// let at = space.map(1 << 20, RegionOptions::default())?;
///
/// space.write(at, b"kept on a device")?;
/// file.direct_write(8192, &space, at, 4096)?;
/// file.sync()?;
/// assert_eq!(file.direct_read(8192, &space, at + 4096, 4096)?, 4096);
/// assert_eq!(space.load::<u64>(at)?, space.load::<u64>(at + 4096)?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct File {
    open: Shared<Open>,
}

struct Open {
    running: Arc<Running>,
    file: Shared<std::fs::File>,
    path: PathBuf,
    is_writable: bool,
    /// If transfers go past the page cache: what offsets, addresses and lengths are multiples of.
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
        let file = Shared::new(file);
        running.engine.note_open_file();
        let open = Open {
            running: Arc::clone(running),
            lanes: Lanes::new(Shared::clone(&file)),
            file,
            path: path.into(),
            is_writable,
            direct_align,
        };
        Ok(Self { open: Shared::new(open) })
    }

    /// Whether transfers go past the kernel's page cache. Otherwise the kernel copies each of them.
    pub fn is_direct(&self) -> bool {
        self.open.direct_align.is_some()
    }

    /// Returns what offsets and lengths of transfers, and addresses in spaces, have to be multiples of:
    /// mostly the size of the device's blocks, 512 or 4096. It is 1 if transfers go through the page cache.
    pub fn alignment_bytes(&self) -> u64 {
        self.open.direct_align.unwrap_or(1)
    }

    /// Returns the length of the file, or of the disk, in bytes. One system call.
    ///
    /// # Errors
    /// `FileRead` if the kernel does not tell it; `ForkedChild` in a forked child.
    pub fn len_bytes(&self) -> Result<u64> {
        let _inside = self.open.engine().enter()?;
        // The end of a disk is found by going there. The position is nobody's: transfers name theirs.
        rustix::fs::seek(&*self.open.file, rustix::fs::SeekFrom::End(0))
            .map_err(|error| self.failed(ErrorKind::FileRead, "tell the length of", &error.into()))
    }

    /// Changes the length of the file. New bytes are zero.
    ///
    /// # Errors
    /// `FileWrite` if the file is a disk, was not opened for writing, or if the kernel refuses;
    /// `ForkedChild` in a forked child.
    pub fn set_len_bytes(&self, bytes: u64) -> Result<()> {
        let _inside = self.open.engine().enter()?;
        let set = octavo_platform::without_size_signal(|| self.open.file.set_len(bytes));
        set.map_err(|error| self.failed(ErrorKind::FileWrite, "change the length of", &error))
    }

    /// Waits until what was written is on the device for good (`fdatasync`), as far as the kernel and the
    /// device keep their promise.
    ///
    /// # Errors
    /// `FileWrite` if the device fails: what was written since the last success may be lost. `ForkedChild`
    /// in a forked child.
    pub fn sync(&self) -> Result<()> {
        let _inside = self.open.engine().enter()?;
        self.open.file.sync_data().map_err(|error| self.failed(ErrorKind::FileWrite, "sync", &error))
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
}

impl Drop for Open {
    fn drop(&mut self) {
        self.engine().note_closed_file();
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.open.file.as_fd()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.is_direct() { "direct" } else { "through the page cache" };
        write!(f, "File({}, {way})", self.open.path.display())
    }
}
