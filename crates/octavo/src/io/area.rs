//! Swap areas: what the user says of a place where pages may go, before it is opened.

use std::fmt;
use std::path::PathBuf;

use super::block;
use super::device::{self, Device};
use super::engine::IoEngine;
use super::file::{FileDevice, FileOptions, SwapFile};
use super::ram::RamDevice;
use crate::error::Result;

/// A place where swapped pages go.
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
}

/// What an area is on.
enum Backend {
    Temporary(PathBuf),
    File(PathBuf),
    BlockDevice(PathBuf),
    Ram(u64),
    Device(Box<dyn Device>),
}

/// A swap area that can be used.
pub(crate) struct Opened {
    pub(crate) device: Box<dyn Device>,
    /// The pages that may be used: of a device of the user's own, perhaps fewer than it has.
    pub(crate) capacity_pages: u32,
    pub(crate) priority: i32,
    /// How it is read and written, where there was something to choose.
    pub(crate) engine: Option<String>,
}

impl SwapArea {
    fn new(backend: Backend) -> Self {
        Self { backend, limit_bytes: u64::MAX, priority: 0, allow_tmpfs: false }
    }

    /// A temporary file without a name in this directory. Nothing is left of it, whatever happens.
    pub fn temporary(directory: impl Into<PathBuf>) -> Self {
        Self::new(Backend::Temporary(directory.into()))
    }

    /// A file of this name, made or overwritten, and left behind. Its blocks are kept: a file that was used before is faster
    /// than a new one.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::new(Backend::File(path.into()))
    }

    /// A disk or partition for this purpose alone. **What was on it is lost.** Refused while it is mounted or in use.
    pub fn block_device(path: impl Into<PathBuf>) -> Self {
        Self::new(Backend::BlockDevice(path.into()))
    }

    /// So many bytes of memory outside the budget, to see what everything but a device costs.
    pub fn ram(bytes: u64) -> Self {
        Self::new(Backend::Ram(bytes))
    }

    /// A device of the caller's own.
    pub fn device(device: Box<dyn Device>) -> Self {
        Self::new(Backend::Device(device))
    }

    /// What `file` names, if anything.
    pub fn from_file(file: SwapFile) -> Option<Self> {
        match file {
            SwapFile::Temporary(directory) => Some(Self::temporary(directory)),
            SwapFile::Named(path) => Some(Self::file(path)),
            SwapFile::None => None,
        }
    }

    /// Uses no more of it than this. Default: all that can be addressed, which is 8 TiB over all areas.
    pub fn limit_bytes(mut self, bytes: u64) -> Self {
        self.limit_bytes = bytes;
        self
    }

    /// Areas of higher priority are filled first, those of the same in turn. Default: 0.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Takes a file even on a file system that is memory. Default: no.
    pub fn allow_tmpfs(mut self, allow: bool) -> Self {
        self.allow_tmpfs = allow;
        self
    }

    /// Opens it.
    ///
    /// # Errors
    /// [`crate::ErrorKind::SwapUnavailable`] where there is no such place or it may not be used,
    /// [`crate::ErrorKind::Unsupported`] where the chosen engine does not work, [`crate::ErrorKind::System`] without
    /// memory or threads.
    pub(crate) fn open(self, engine: IoEngine) -> Result<Opened> {
        let Self { limit_bytes, priority, allow_tmpfs, .. } = self;
        let options = FileOptions { limit_bytes, allow_tmpfs, engine };
        let of_file = |device: FileDevice| {
            let engine = device.describe_engine().to_owned();
            (Box::new(device) as Box<dyn Device>, Some(engine))
        };
        let (device, engine) = match self.backend {
            Backend::Temporary(directory) => of_file(FileDevice::temporary(&directory, options)?),
            Backend::File(path) => of_file(FileDevice::named(&path, options)?),
            Backend::BlockDevice(path) => of_file(block::open(&path, limit_bytes, engine)?),
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
