//! The file of pages: unlinked, readable by this user only, and written past the page cache.
//!
//! A write past the page cache reports its error at once, leaves no dirty page to the program's control
//! group, and changes no page of the cache in place: a page that lies in a pipe keeps its bytes.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use octavo_platform::page_cache::name_in_maps;
use octavo_platform::without_size_signal;
use rangemap::RangeSet;
use rustix::fs::{FallocateFlags, fallocate};

/// The sizes of the file that are tried, the largest first. File systems differ in what they allow.
const SIZES: [u64; 4] = [8 << 40, 1 << 40, 64 << 30, 4 << 30];
/// Buffers and offsets of writes are multiples of this.
pub(crate) const BLOCK: usize = 4096;

#[derive(Debug)]
pub(crate) struct Pages {
    file: File,
    /// How the kernel names it in lists of mappings.
    name: String,
    bytes: u64,
    /// The ranges that may be mapped, or are being written.
    in_use: RangeSet<u64>,
    /// Where the search for room begins.
    cursor: u64,
}

impl Pages {
    /// Makes the file.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn in_folder(folder: &Path) -> io::Result<Self> {
        let file = without_name(folder)?;
        let mut refused = io::ErrorKind::StorageFull.into();
        let mut fits = |bytes: &u64| {
            without_size_signal(|| file.set_len(*bytes)).map_err(|error| refused = error).is_ok()
        };
        let bytes = SIZES.into_iter().find(|bytes| fits(bytes)).ok_or(refused)?;
        Ok(Self { name: name_in_maps(&file)?, file, bytes, in_use: RangeSet::new(), cursor: 0 })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Takes room that nobody maps. Returns `None` if the file has none.
    pub(crate) fn take(&mut self, len: u64) -> Option<u64> {
        let fits = |gap: &Range<u64>| gap.end - gap.start >= len;
        let [behind, before] = [self.cursor..self.bytes, 0..self.cursor];
        let find = |within: Range<u64>| {
            if within.is_empty() { None } else { self.in_use.gaps(&within).find(fits) }
        };
        let start = find(behind).or_else(|| find(before))?.start;
        self.in_use.insert(start..start + len);
        self.cursor = start + len;
        Some(start)
    }

    /// Gives room back that was never mapped.
    pub(crate) fn give_back(&mut self, range: Range<u64>) {
        if !range.is_empty() {
            self.in_use.remove(range);
        }
    }

    /// Writes bytes past the page cache. `bytes` begins at a multiple of [`BLOCK`], and so does its length.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        without_size_signal(|| self.file.write_all_at(bytes, offset))
    }

    /// Waits until the disk has all that was written.
    ///
    /// # Errors
    /// Returns the kernel's error. Another call might succeed though bytes are lost, so the file must not be
    /// written again.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Gives all room back to the disk that is not in `mapped`. The caller has seen all mappings while nobody
    /// could make another. Returns the bytes in use.
    pub(crate) fn keep_only(&mut self, mapped: RangeSet<u64>) -> u64 {
        let unused: Vec<_> = self.in_use.iter().flat_map(|range| mapped.gaps(range)).collect();
        for range in unused {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Without holes the room comes back at the end of the run.
            let _ = fallocate(&self.file, how, range.start, range.end - range.start);
        }
        self.in_use = mapped;
        self.in_use.iter().map(|range| range.end - range.start).sum()
    }
}

/// Makes a file without a name, or removes its name at once where the file system always gives one.
fn without_name(folder: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    let flags = libc::O_DIRECT | libc::O_CLOEXEC;
    match options.clone().custom_flags(flags | libc::O_TMPFILE).open(folder) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
            let path = folder.join(format!(".octavo-pages-{}", std::process::id()));
            let file = options.create_new(true).custom_flags(flags).open(&path)?;
            std::fs::remove_file(&path)?;
            Ok(file)
        }
        opened => opened,
    }
}

/// Bytes at a multiple of [`BLOCK`].
#[derive(Debug)]
pub(crate) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    pub(crate) fn new(len: usize) -> Self {
        let bytes = vec![0; len + BLOCK];
        let start = bytes.as_ptr().align_offset(BLOCK);
        Self { bytes, start, len }
    }

    pub(crate) fn all(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    pub(crate) fn all_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn pages() -> Pages {
        Pages::in_folder(Path::new("/var/tmp")).unwrap()
    }

    #[test]
    fn room_is_given_once_until_it_is_given_back() {
        let mut pages = pages();
        let first = pages.take(MIB).unwrap();
        let second = pages.take(2 * MIB).unwrap();
        assert!(second >= first + MIB || first >= second + 2 * MIB);
        assert_eq!(pages.keep_only(RangeSet::from_iter(std::iter::once(second..second + 2 * MIB))), 2 * MIB);
        pages.cursor = pages.bytes;
        assert_eq!(pages.take(MIB), Some(0), "the search begins anew");
        assert_eq!(pages.take(pages.bytes), None);
    }

    #[test]
    fn what_was_written_is_read_and_what_is_unused_is_a_hole() {
        let mut pages = pages();
        let at = pages.take(MIB).unwrap();
        let mut bytes = Aligned::new(MIB as usize);
        bytes.all_mut().fill(7);
        pages.write(bytes.all(), at).unwrap();
        pages.flush().unwrap();
        let mut again = Aligned::new(BLOCK);
        pages.file.read_exact_at(again.all_mut(), at).unwrap();
        assert!(again.all().iter().all(|byte| *byte == 7));
        assert_eq!(pages.keep_only(RangeSet::new()), 0);
        pages.file.read_exact_at(again.all_mut(), at).unwrap();
        assert!(again.all().iter().all(|byte| *byte == 0));
        assert_eq!(std::os::unix::fs::MetadataExt::blocks(&pages.file.metadata().unwrap()), 0);
    }
}
