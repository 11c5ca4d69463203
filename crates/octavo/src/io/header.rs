//! The header of a named file or disk. It distinguishes Octavo's places from places that hold something else.
//! Such places are never overwritten, unless the user asks for that.
//!
//! ```text
//! | a text, then zeros, 1 MiB in all | place 0 | place 1 | ...
//! ```
//!
//! Octavo accepts a file that is empty, and a disk whose first and last MiB are zeros. It accepts both if
//! they begin with the header. If a file system, a partition table, a volume or a swap area is made on
//! Octavo's disk later, it writes into that MiB, and Octavo no longer accepts the disk. So no list of
//! signatures is needed. A list would miss unknown signatures, and data without a signature.
//!
//! The header is written when the place is opened. It says nothing about the pages behind it: these are of
//! use to one manager only.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use octavo_platform::without_size_signal;

use crate::error::{Error, ErrorKind};
use crate::units::PAGE_BYTES;

/// The bytes before place 0.
pub(super) const HEADER_BYTES: u64 = 1 << 20;
/// The pages before place 0.
pub(super) const HEADER_PAGES: u32 = (HEADER_BYTES / PAGE_BYTES as u64) as u32;

/// The text, for people who look into the file.
const TEXT: &[u8] = b"Octavo swap area, version 1\n\
    The pages behind this text mean something to a running program only. When none runs, the file may be deleted.\n";

/// Returns whether a file of `len` bytes may be overwritten.
pub(super) fn may_take_file(file: &File, len: u64) -> io::Result<bool> {
    Ok(len == 0 || is_header(&read(file, 0, len.min(HEADER_BYTES))?))
}

/// Returns whether a disk of `len` bytes may be overwritten.
pub(super) fn may_take_disk(file: &File, len: u64) -> io::Result<bool> {
    let span = len.min(HEADER_BYTES);
    let first = read(file, 0, span)?;
    Ok(is_header(&first) || is_zero(&first) && is_zero(&read(file, len - span, span)?))
}

/// Writes the header.
pub(super) fn write(file: &File) -> io::Result<()> {
    let mut header = vec![0; HEADER_BYTES as usize];
    header[..TEXT.len()].copy_from_slice(TEXT);
    without_size_signal(|| file.write_all_at(&header, 0))
}

/// Makes the error for a place that holds something else.
#[cold]
pub(super) fn not_empty(path: &Path, what: &str) -> Error {
    Error::new(
        ErrorKind::SwapNotEmpty,
        format!(
            "cannot swap to {}: it holds data that is not Octavo's, and was left as it is; name {what}, or have this one \
             overwritten with `--force` (`SwapArea::overwrite(true)` in a program)",
            path.display()
        ),
    )
}

fn read(file: &File, at: u64, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

/// Returns whether these bytes are a header. The end of the header may be missing: a process may have been
/// killed while it wrote the header.
fn is_header(bytes: &[u8]) -> bool {
    bytes.strip_prefix(TEXT).is_some_and(is_zero)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const LEN: u64 = 8 << 20;

    fn file() -> File {
        let file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.set_len(LEN).unwrap();
        file
    }

    /// The places at which formats put their marks. The sources are the kernel's headers, and the
    /// documentation of each on-disk layout.
    const MARKS: [(&str, u64, &[u8]); 14] = [
        ("a boot sector or partition table", 510, &[0x55, 0xaa]),
        ("a GUID partition table", 512, b"EFI PART"),
        ("ext4", 1080, &[0x53, 0xef]),
        ("xfs", 0, b"XFSB"),
        ("f2fs", 1024, &[0x10, 0x20, 0xf5, 0xf2]),
        ("btrfs", 65600, b"_BHRfS_M"),
        ("zfs, whose first 8 KiB are empty", 131_072, &[0x0c, 0xb1, 0xba]),
        ("swap", 4086, b"SWAPSPACE2"),
        ("a LUKS volume", 0, b"LUKS\xba\xbe"),
        ("a physical volume of LVM", 512, b"LABELONE"),
        ("a member of an array, version 1.2", 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
        ("ISO 9660", 32769, b"CD001"),
        ("a member of an array, version 1.0", LEN - 8192, &[0xfc, 0x4e, 0x2b, 0xa9]),
        ("data without any mark", 777, b"x"),
    ];

    #[test]
    fn a_disk_that_holds_something_is_told_from_one_of_zeros() {
        assert!(may_take_disk(&file(), LEN).unwrap());
        for (what, at, mark) in MARKS {
            let disk = file();
            disk.write_all_at(mark, at).unwrap();
            assert!(!may_take_disk(&disk, LEN).unwrap(), "{what}");
        }
    }

    #[test]
    fn a_disk_of_ours_is_taken_again_until_something_else_is_made_on_it() {
        let ours = || {
            let disk = file();
            write(&disk).unwrap();
            disk.write_all_at(&[7; 4096], HEADER_BYTES).unwrap();
            disk.write_all_at(&[7; 4096], LEN - 4096).unwrap();
            disk
        };
        assert!(may_take_disk(&ours(), LEN).unwrap());
        // Marks at the end are left out: a format that has such a mark also writes at the beginning.
        for (what, at, mark) in MARKS.into_iter().filter(|(_, at, _)| *at < HEADER_BYTES) {
            let disk = ours();
            disk.write_all_at(mark, at).unwrap();
            assert!(!may_take_disk(&disk, LEN).unwrap(), "{what}");
        }
    }

    #[test]
    fn a_header_that_was_cut_is_a_header_and_half_a_text_is_none() {
        let ours = file();
        write(&ours).unwrap();
        for (len, is_ours) in
            [(HEADER_BYTES, true), (4096, true), (TEXT.len() as u64, true), (20, false), (0, true)]
        {
            ours.set_len(len).unwrap();
            assert_eq!(may_take_file(&ours, len).unwrap(), is_ours, "{len} bytes");
        }
    }
}
