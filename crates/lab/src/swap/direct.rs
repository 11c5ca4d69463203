//! I/O past the page cache: buffers that start on a page, and files whose blocks have all been written.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, OFlags, fallocate};

const ALIGN: usize = octavo::PAGE_BYTES;
const BLOCK_BYTES: usize = 1 << 20;

/// A buffer that starts on a page.
#[derive(Debug)]
pub struct AlignedBytes {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    /// So many zeros.
    pub fn new(len: usize) -> Self {
        let bytes = vec![0; len + ALIGN];
        let start = bytes.as_ptr().align_offset(ALIGN);
        Self { bytes, start, len }
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// Allocates the blocks of a file and writes zeros to all of it, past the page cache where that is possible.
pub fn write_in_full(file: &File, bytes: u64) -> io::Result<()> {
    // Where the file system cannot allocate ahead, the writes do.
    let _ = fallocate(file, FallocateFlags::empty(), 0, bytes);
    if let Ok(flags) = rustix::fs::fcntl_getfl(file) {
        let _ = rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT);
    }
    let zeros = AlignedBytes::new(BLOCK_BYTES);
    let mut at = 0;
    while at < bytes {
        let len = (bytes - at).min(BLOCK_BYTES as u64);
        file.write_all_at(&zeros.as_slice()[..len as usize], at)?;
        at += len;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_on_a_page_and_has_its_length() {
        let mut bytes = AlignedBytes::new(5000);
        assert_eq!(bytes.as_slice().as_ptr() as usize % ALIGN, 0);
        bytes.as_mut_slice()[4999] = 1;
        assert_eq!(bytes.as_slice().len(), 5000);
    }
}
