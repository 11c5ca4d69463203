//! The flags of a process's mappings, which only `/proc/PID/smaps` shows.
//!
//! To show this file, the kernel counts the pages of each mapping. The count costs about 14 ms per GiB, and
//! some microseconds per mapping.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;

use rustix::io::Errno;

/// Returns the mappings of a process that have a flag, by the kernel's two-letter name: `wf` if a forked
/// child finds the mapping zeroed (`MADV_WIPEONFORK`), `um` if a userfaultfd watches it.
///
/// # Errors
/// The kernel's error, at once or at any mapping, if the process has ended or may not be inspected. Mappings
/// after an error stay unknown. If the process loses its memory meanwhile, the list ends without an error.
pub fn flagged(pid: u32, flag: &str) -> io::Result<impl Iterator<Item = io::Result<Range<u64>>>> {
    // Names of files may be any bytes.
    let mut file = BufReader::new(File::open(format!("/proc/{pid}/smaps"))?);
    if file.fill_buf()?.is_empty() {
        // The process's memory has gone: Linux before 6.17 shows an empty file.
        return Err(Errno::SRCH.into());
    }
    let lines = file.split(b'\n');
    let mut mapping = 0..0;
    Ok(lines.filter_map(move |line| match line {
        Ok(line) => {
            let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
            let first = words.next()?;
            if first == b"VmFlags:" {
                return words.any(|word| word == flag.as_bytes()).then(|| Ok(mapping.clone()));
            }
            mapping = parse_range(first).unwrap_or(mapping.clone());
            None
        }
        Err(error) => Some(Err(error)),
    }))
}

fn parse_range(word: &[u8]) -> Option<Range<u64>> {
    let (start, end) = std::str::from_utf8(word).ok()?.split_once('-')?;
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    Some(hex(start)?..hex(end)?)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;
    use std::ptr::null_mut;

    use super::*;

    #[test]
    fn flags_are_told_also_behind_a_file_whose_name_is_no_text() {
        const LEN: usize = 1 << 20;
        let own = || flagged(std::process::id(), "wf").unwrap().collect::<io::Result<Vec<_>>>().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(OsStr::from_bytes(b"\xff"));
        fs::write(&path, [1; LEN]).unwrap();
        let file = File::open(path).unwrap();
        let map = |at: *mut libc::c_void, len, flags, file| {
            // SAFETY: the kernel chooses the place, or it is the first half of this test's own mapping, of
            // which nobody else knows.
            let mapped = unsafe { libc::mmap(at, len, libc::PROT_READ, libc::MAP_PRIVATE | flags, file, 0) };
            assert_ne!(mapped, libc::MAP_FAILED);
            mapped
        };
        let both = map(null_mut(), 2 * LEN, libc::MAP_ANONYMOUS, -1);
        map(both, LEN, libc::MAP_FIXED, file.as_raw_fd());
        let wiped = both.wrapping_byte_add(LEN);
        let has = |range: &Range<u64>| range.contains(&(wiped as u64));
        assert!(!own().iter().any(has));
        // SAFETY: the mapping is this test's, and forks have no use for it.
        assert_eq!(unsafe { libc::madvise(wiped, LEN, libc::MADV_WIPEONFORK) }, 0);
        assert!(own().iter().any(has));
        // SAFETY: nobody uses the mappings any more.
        assert_eq!(unsafe { libc::munmap(both, 2 * LEN) }, 0);
        assert!(flagged(u32::MAX, "wf").is_err());
    }
}
