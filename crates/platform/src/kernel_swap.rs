//! A switch for the kernel's own swap.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::PAGE_BYTES;

/// The highest priority that an area can have.
const HIGHEST_PRIORITY: i32 = 32767;
/// `SWAP_FLAG_PREFER` of linux/swap.h: the low 15 bits are a priority.
const PREFER: i32 = 0x8000;

/// Lets the kernel swap to a prepared file or block device before it uses its other areas.
///
/// Fails with the kernel's error if this process lacks `CAP_SYS_ADMIN` or the file is not a swap area.
pub fn swap_on(path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: the path is a string that ends in zero and outlives the call. The call uses no other memory of
    // ours.
    outcome(unsafe { libc::swapon(path.as_ptr(), PREFER | HIGHEST_PRIORITY) })
}

/// Stops the kernel's use of an area. Returns when the area's pages are back in memory.
///
/// Fails with the kernel's error: `EINVAL` if the path is not an area in use.
pub fn swap_off(path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: as in `swap_on`.
    outcome(unsafe { libc::swapoff(path.as_ptr()) })
}

/// Makes a swap area of a file or block device of `bytes`, as mkswap does. A file must have all its blocks.
///
/// Fails with the kernel's error.
pub fn format(file: &File, bytes: u64) -> io::Result<()> {
    file.write_all_at(&header(bytes / PAGE_BYTES as u64), 0)?;
    file.sync_all()
}

/// Returns the first page of an area: version, last page, no bad pages, and the mark at the end.
fn header(pages: u64) -> [u8; PAGE_BYTES] {
    const MARK: &[u8; 10] = b"SWAPSPACE2";
    let last_page = u32::try_from(pages.saturating_sub(1)).unwrap_or(u32::MAX);
    let mut header = [0; PAGE_BYTES];
    header[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    header[1028..1032].copy_from_slice(&last_page.to_ne_bytes());
    header[PAGE_BYTES - MARK.len()..].copy_from_slice(MARK);
    header
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn outcome(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_mkswaps() {
        let header = header(100);
        assert_eq!(&header[4086..], b"SWAPSPACE2");
        assert_eq!((header[1024], header[1028], header[1032]), (1, 99, 0));
        assert!(header[..1024].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn what_is_no_area_is_refused() {
        let nothing = Path::new("/dev/null");
        assert!(swap_on(nothing).is_err());
        assert!(swap_off(nothing).is_err());
        assert_eq!(swap_on(Path::new("a\0b")).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
