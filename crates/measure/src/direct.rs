//! Input and output past the page cache: buffers that start on a page, files without a name, and files whose
//! blocks have all been written.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{Advice, MmapMut};
use rustix::fs::{FallocateFlags, OFlags, fallocate};

const ALIGN: usize = 4096;
const HUGE: usize = 2 << 20;
/// Smaller buffers are not in huge pages.
const HUGE_FROM: usize = 64 << 10;
const BLOCK_BYTES: usize = 1 << 20;

/// A buffer that starts on a page. If it has 64 KiB or more, it is in huge pages: a device takes a third of
/// the time for a transfer to memory in one piece.
#[derive(Debug)]
pub struct AlignedBytes {
    bytes: MmapMut,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    /// Makes a buffer of `len` zeros.
    pub fn new(len: usize) -> Self {
        let align = if len < HUGE_FROM { ALIGN } else { HUGE };
        let bytes = MmapMut::map_anon(align + len.next_multiple_of(align)).expect("memory for a buffer");
        let start = bytes.as_ptr().align_offset(align);
        if align == HUGE {
            // A refusal costs time only.
            let _ = bytes.advise(Advice::HugePage);
        }
        Self { bytes, start, len }
    }

    /// Returns the buffer's bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// Returns the buffer's bytes, mutable.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// Makes a file in a folder. The file has no name, so nothing is left of it, even if the process is killed.
///
/// # Errors
/// Fails if the system does.
pub fn nameless_file(folder: &Path) -> io::Result<File> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!(".octavo-measure-{}-{number}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// Makes later reads and writes of a file bypass the page cache.
///
/// # Errors
/// Fails if the file system does not support this.
pub fn pass_the_page_cache(file: &File) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    Ok(rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT)?)
}

/// Allocates the blocks of a file and writes zeros to all of it, past the page cache if possible. `bytes`
/// must be a whole number of pages.
///
/// # Errors
/// Fails if the system does.
pub fn write_in_full(file: &File, bytes: u64) -> io::Result<()> {
    // If the file system cannot allocate blocks ahead, the writes below allocate them.
    let _ = fallocate(file, FallocateFlags::empty(), 0, bytes);
    let _ = pass_the_page_cache(file);
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
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn starts_on_a_page_and_has_its_length() {
        let mut bytes = AlignedBytes::new(5000);
        assert_eq!(bytes.as_slice().as_ptr() as usize % ALIGN, 0);
        bytes.as_mut_slice()[4999] = 1;
        assert_eq!(bytes.as_slice().len(), 5000);
        let large = AlignedBytes::new(HUGE + 5);
        assert_eq!(large.as_slice().as_ptr() as usize % HUGE, 0);
        assert!(large.as_slice().len() == HUGE + 5 && large.as_slice().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_file_without_a_name_has_all_of_its_blocks() {
        let folder = std::env::temp_dir().join(format!("octavo-direct-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = nameless_file(&folder).unwrap();
        write_in_full(&file, (1 << 20) + 8192).unwrap();
        let metadata = file.metadata().unwrap();
        assert_eq!(metadata.len(), (1 << 20) + 8192);
        assert!(metadata.blocks() * 512 >= metadata.len());
        // This succeeds only if the folder is empty.
        fs::remove_dir(folder).unwrap();
    }
}
