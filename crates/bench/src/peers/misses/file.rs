//! The data in a file without a name, written in full past the page cache, and a side that reads the file the
//! same way.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use octavo_measure::direct::{AlignedBytes, nameless_file, pass_the_page_cache};

use super::{DataSet, Loads, PAGE_BYTES, fill};

const BLOCK_PAGES: u64 = 256;

/// The data in a file.
#[derive(Debug)]
pub struct DataFile {
    file: File,
}

impl DataFile {
    /// Writes the data.
    pub fn new(data: &DataSet) -> io::Result<Self> {
        let file = nameless_file(&data.folder)?;
        pass_the_page_cache(&file)?;
        let mut block = AlignedBytes::new(BLOCK_PAGES as usize * PAGE_BYTES);
        for first in (0..data.pages).step_by(BLOCK_PAGES as usize) {
            let bytes = (data.pages - first).min(BLOCK_PAGES) as usize * PAGE_BYTES;
            fill(&mut block.as_mut_slice()[..bytes], first);
            file.write_all_at(&block.as_slice()[..bytes], first * PAGE_BYTES as u64)?;
        }
        file.sync_all()?;
        Ok(Self { file })
    }

    /// Returns the file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl Loads for DataFile {
    const KEEPS_PAGES: bool = false;
    type Scratch = AlignedBytes;

    fn scratch(&self) -> AlignedBytes {
        AlignedBytes::new(PAGE_BYTES)
    }

    fn load(&self, scratch: &mut AlignedBytes, page: u64, index: usize) -> u64 {
        let bytes = scratch.as_mut_slice();
        self.file.read_exact_at(bytes, page * PAGE_BYTES as u64).expect("the device reads what it wrote");
        u64::from_le_bytes(bytes.as_chunks().0[index])
    }
}
