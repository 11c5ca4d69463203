//! A file as a device: by default a temporary that has no name, so that nothing is left behind, whatever happens.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use smallvec::SmallVec;

use super::{Device, Direction, Transfer, Urgency};
use crate::error::{Error, ErrorKind, Result};
use crate::units::{PAGE_BYTES, PAGE_SHIFT, bytes_for_people};

/// Where swapped pages go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwapFile {
    /// An unlinked temporary file in this directory.
    Temporary(PathBuf),
    /// A file of this name, made or truncated, and left behind.
    Named(PathBuf),
    /// No swap: when the budget is used up, accesses that need room fail.
    None,
}

impl Default for SwapFile {
    /// A temporary in `$TMPDIR`, or in /var/tmp, which is on a disk where /tmp may be memory.
    fn default() -> Self {
        Self::Temporary(std::env::var_os("TMPDIR").map_or_else(|| "/var/tmp".into(), PathBuf::from))
    }
}

/// Pages in a file, moved by `preadv` and `pwritev`, past the page cache where the file system allows it.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    name: String,
    capacity_pages: u32,
}

impl FileDevice {
    /// Opens the file that `swap` describes, to hold at most `limit_bytes`. `None` for [`SwapFile::None`].
    ///
    /// # Errors
    /// [`ErrorKind::SwapUnavailable`] when it cannot be made or opened.
    pub fn open(swap: &SwapFile, limit_bytes: u64) -> Result<Option<Self>> {
        let (path, file, name) = match swap {
            SwapFile::None => return Ok(None),
            SwapFile::Temporary(directory) => {
                let name = format!("the temporary swap file in {}", directory.display());
                (directory, tempfile::tempfile_in(directory), name)
            }
            SwapFile::Named(path) => {
                let mut options = OpenOptions::new();
                let file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(path);
                (path, file, format!("the swap file {}", path.display()))
            }
        };
        let file = file.map_err(|error| unavailable(path, &error))?;
        bypass_page_cache(&file);
        let capacity_pages = (limit_bytes >> PAGE_SHIFT).min(u64::from(u32::MAX - 2)) as u32;
        if capacity_pages == 0 {
            let message = format!(
                "a swap limit of {} holds no page; give at least 4 KiB",
                bytes_for_people(limit_bytes)
            );
            return Err(Error::new(ErrorKind::SwapUnavailable, message));
        }
        Ok(Some(Self { file, name, capacity_pages }))
    }
}

/// Past the page cache, which would count against the process's control group; where the file system can.
fn bypass_page_cache(file: &File) {
    if let Ok(flags) = rustix::fs::fcntl_getfl(file) {
        // tmpfs before Linux 6.6, and some network file systems, refuse: then it goes through the cache.
        let _ = rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT);
    }
}

#[cold]
fn unavailable(path: &Path, error: &io::Error) -> Error {
    Error::new(
        ErrorKind::SwapUnavailable,
        format!(
            "cannot make a swap file at {}: {error}; choose a writable place on a disk, or run without swap",
            path.display()
        ),
    )
}

impl Device for FileDevice {
    fn capacity_pages(&self) -> u32 {
        self.capacity_pages
    }

    fn submit(&self, transfer: Transfer, _urgency: Urgency) {
        let segments: SmallVec<[_; 32]> = transfer.segments().collect();
        let offset = u64::from(transfer.place()) * PAGE_BYTES as u64;
        let file = self.file.as_fd();
        let result = match transfer.direction() {
            Direction::Write => transfer.arena().write_file(file, offset, &segments),
            Direction::Read => transfer.arena().read_file(file, offset, &segments),
        };
        transfer.complete(result);
    }

    fn describe(&self) -> String {
        self.name.clone()
    }
}
