//! The data in a file without a name, written in full, past the page cache; and a side that reads the file
//! the same way.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use super::{Data, Loads, PAGE_BYTES, fill};

const O_DIRECT: i32 = 0o40000;
const BLOCK_PAGES: u64 = 256;

/// The data in a file.
#[derive(Debug)]
pub struct DataFile {
    file: File,
}

impl DataFile {
    /// Writes the data.
    pub fn new(data: &Data) -> io::Result<Self> {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = data.folder.join(format!(".octavo-misses-{}-{number}", std::process::id()));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(O_DIRECT)
            .open(&path)?;
        // A file without a name leaves nothing behind, whatever happens.
        fs::remove_file(&path)?;
        let mut block = Page::new(BLOCK_PAGES as usize * PAGE_BYTES);
        for first in (0..data.pages).step_by(BLOCK_PAGES as usize) {
            let bytes = (data.pages - first).min(BLOCK_PAGES) as usize * PAGE_BYTES;
            fill(&mut block.bytes()[..bytes], first);
            file.write_all_at(&block.bytes()[..bytes], first * PAGE_BYTES as u64)?;
        }
        file.sync_all()?;
        Ok(Self { file })
    }

    /// Returns the file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

/// Bytes that start on a page.
#[derive(Debug)]
pub struct Page {
    bytes: Vec<u8>,
    len: usize,
}

impl Page {
    fn new(len: usize) -> Self {
        Self { bytes: vec![0; len + PAGE_BYTES], len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        let start = self.bytes.as_ptr().align_offset(PAGE_BYTES);
        &mut self.bytes[start..start + self.len]
    }
}

impl Loads for DataFile {
    const KEEPS_PAGES: bool = false;
    type Scratch = Page;

    fn scratch(&self) -> Page {
        Page::new(PAGE_BYTES)
    }

    fn load(&self, scratch: &mut Page, page: u64, index: usize) -> u64 {
        let bytes = scratch.bytes();
        self.file.read_exact_at(bytes, page * PAGE_BYTES as u64).expect("the device reads what it wrote");
        u64::from_le_bytes(bytes.as_chunks().0[index])
    }
}
