//! Swap areas: the user's description of a place for pages, before the place is opened.

use std::fmt;
use std::path::PathBuf;

use super::block;
use super::device::{self, Device};
use super::engine::IoEngine;
use super::file::{self, FileAreaOptions, FileDevice, SwapFile};
use super::ram::RamDevice;
use crate::error::Result;
use crate::units::PAGE_BYTES;

/// Describes a place for pages when memory is short, with a limit and a priority, for
/// [`ManagerBuilder::swap_area`](crate::ManagerBuilder::swap_area). The area is opened when the manager is
/// built. Pages there do not outlive the manager: a later manager finds none.
///
/// ```no_run
/// use octavo::io::SwapArea;
///
/// let fast = SwapArea::block_device("/dev/nvme1n1p3").priority(10);
/// let large = SwapArea::file("/data/octavo.swap").limit_bytes(200 << 30);
/// # drop((fast, large));
/// ```
#[derive(Debug)]
pub struct SwapArea {
    backend: Backend,
    limit_bytes: u64,
    priority: i32,
    allow_tmpfs: bool,
    overwrite: bool,
}

/// The kind of the place.
enum Backend {
    Temporary(PathBuf),
    File(PathBuf),
    BlockDevice(PathBuf),
    Ram(u64),
    Device(Box<dyn Device>),
}

/// A swap area that is open.
pub(crate) struct Opened {
    pub(crate) device: Box<dyn Device>,
    /// The pages that may be used, which may be fewer than a device of the user's own has.
    pub(crate) capacity_pages: u32,
    pub(crate) priority: i32,
    /// The engine that reads and writes the area, if there was a choice.
    pub(crate) engine: Option<String>,
}

impl SwapArea {
    fn new(backend: Backend) -> Self {
        Self { backend, limit_bytes: u64::MAX, priority: 0, allow_tmpfs: false, overwrite: false }
    }

    /// Uses an unnamed temporary file in this directory. Nothing of the file is left when the process has
    /// ended, even if it was killed.
    pub fn temporary(directory: impl Into<PathBuf>) -> Self {
        Self::new(Backend::Temporary(directory.into()))
    }

    /// Uses a file with this name, which is created if it does not exist, and left behind. The file keeps its
    /// blocks, which makes it faster than a new file. A file that is neither empty nor Octavo's is refused,
    /// unless [`SwapArea::overwrite`] is set. The file is 1 MiB longer than its pages.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::new(Backend::File(path.into()))
    }

    /// Uses a disk or partition, for this purpose alone. It is refused while it is mounted or in use. It
    /// is also refused if its first or last MiB holds anything but zeros, such as a file system or a
    /// partition table, unless it was Octavo's before or [`SwapArea::overwrite`] is set.
    pub fn block_device(path: impl Into<PathBuf>) -> Self {
        Self::new(Backend::BlockDevice(path.into()))
    }

    /// Uses `bytes` of memory outside the budget. For measurements of all costs except those of a device.
    pub fn ram(bytes: u64) -> Self {
        Self::new(Backend::Ram(bytes))
    }

    /// Uses a device of your own.
    pub fn device(device: Box<dyn Device>) -> Self {
        Self::new(Backend::Device(device))
    }

    /// Makes an area from a [`SwapFile`], to give it a priority, or to use it along with others. Returns
    /// `None` for [`SwapFile::None`].
    pub fn from_file(file: SwapFile) -> Option<Self> {
        match file {
            SwapFile::Temporary(directory) => Some(Self::temporary(directory)),
            SwapFile::Named(path) => Some(Self::file(path)),
            SwapFile::None => None,
        }
    }

    /// Limits the bytes that are used there. Default: the limit of all areas together, 8 TiB.
    pub fn limit_bytes(mut self, bytes: u64) -> Self {
        self.limit_bytes = bytes;
        self
    }

    /// Sets the priority. Areas of higher priority are filled first. Areas of the same priority take
    /// turns. Default: 0.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Accepts a file on a file system that lies in memory. Default: no.
    pub fn allow_tmpfs(mut self, allow: bool) -> Self {
        self.allow_tmpfs = allow;
        self
    }

    /// Accepts a file or disk that is not empty. **Its contents are lost.** Default: no.
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Checks the place, as far as that is possible without changing it. For programs that open it later.
    /// Costs some system calls, and reads up to 2 MiB.
    ///
    /// # Errors
    /// [`crate::ErrorKind::SwapUnavailable`] if the folder does not exist, lies in memory, or may not be
    /// written to, if there is no such block device, and if the limit holds no page.
    /// [`crate::ErrorKind::SwapNotEmpty`] if the place holds something that is not Octavo's.
    pub fn check(&self) -> Result<()> {
        device::capacity_pages(self.limit_bytes)?;
        match &self.backend {
            Backend::Temporary(path) => file::check(path, path, self.allow_tmpfs),
            Backend::File(path) => {
                file::check(path, file::folder_of(path), self.allow_tmpfs)?;
                if self.overwrite { Ok(()) } else { file::check_contents(path) }
            }
            Backend::BlockDevice(path) => block::check(path, self.overwrite),
            Backend::Ram(_) | Backend::Device(_) => Ok(()),
        }
    }

    /// Returns the most pages that may go there, as far as that is known before the area is opened.
    ///
    /// # Errors
    /// The error of a limit that holds no page.
    pub(crate) fn most_pages(&self) -> Result<u32> {
        let limit_bytes = match &self.backend {
            Backend::Ram(bytes) => self.limit_bytes.min(*bytes),
            Backend::Device(device) => {
                self.limit_bytes.min(u64::from(device.capacity_pages()) * PAGE_BYTES as u64)
            }
            Backend::Temporary(_) | Backend::File(_) | Backend::BlockDevice(_) => self.limit_bytes,
        };
        device::capacity_pages(limit_bytes)
    }

    /// Opens the area.
    ///
    /// # Errors
    /// [`crate::ErrorKind::SwapUnavailable`] if there is no such place or it may not be used.
    /// [`crate::ErrorKind::SwapNotEmpty`] if it holds something that is not Octavo's.
    /// [`crate::ErrorKind::Unsupported`] if the chosen engine does not work. [`crate::ErrorKind::System`]
    /// if there is no memory or no thread.
    pub(crate) fn open(self, engine: IoEngine) -> Result<Opened> {
        let Self { limit_bytes, priority, allow_tmpfs, overwrite, .. } = self;
        let options = FileAreaOptions { limit_bytes, allow_tmpfs, overwrite, engine };
        let of_file = |device: FileDevice| {
            let engine = device.describe_engine().to_owned();
            (Box::new(device) as Box<dyn Device>, Some(engine))
        };
        let (device, engine) = match self.backend {
            Backend::Temporary(directory) => of_file(FileDevice::temporary(&directory, options)?),
            Backend::File(path) => of_file(FileDevice::named(&path, options)?),
            Backend::BlockDevice(path) => of_file(block::open(&path, options)?),
            Backend::Ram(bytes) => {
                (Box::new(RamDevice::new(bytes.min(limit_bytes))?) as Box<dyn Device>, None)
            }
            Backend::Device(device) => (device, None),
        };
        let capacity_pages = device.capacity_pages().min(device::capacity_pages(limit_bytes)?);
        Ok(Opened { device, capacity_pages, priority, engine })
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Temporary(directory) => write!(f, "a temporary in {}", directory.display()),
            Self::File(path) | Self::BlockDevice(path) => write!(f, "{}", path.display()),
            Self::Ram(bytes) => write!(f, "{bytes} bytes of memory"),
            Self::Device(device) => f.write_str(&device.describe()),
        }
    }
}
