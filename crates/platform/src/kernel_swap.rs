//! A switch for the kernel's own swap, for comparisons.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

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
    fn what_is_no_area_is_refused() {
        let nothing = Path::new("/dev/null");
        assert!(swap_on(nothing).is_err());
        assert!(swap_off(nothing).is_err());
        assert_eq!(swap_on(Path::new("a\0b")).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
