//! Which pages of a file the kernel has in memory.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

use crate::PAGE_BYTES;

/// Returns how many of the first `pages` pages of a file the kernel has in its page cache.
///
/// Fails with the kernel's error if the file cannot be mapped.
pub fn cached_pages(file: &File, pages: usize) -> io::Result<usize> {
    let len = pages * PAGE_BYTES;
    // SAFETY: a fresh mapping at an address that the kernel chooses. Nobody reads or writes through it.
    let at = unsafe { libc::mmap(null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let mut present = vec![0_u8; pages];
    // SAFETY: the range is the mapping above, and the vector has a byte for each of its pages.
    let asked = match unsafe { libc::mincore(at, len, present.as_mut_ptr()) } {
        0 => Ok(present.iter().filter(|byte| **byte & 1 != 0).count()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: the mapping is this function's own, and ends with it.
    unsafe { libc::munmap(at, len) };
    asked
}

/// Returns how the kernel names a file in the lists of mappings (`/proc/PID/maps`): its device and inode, as
/// one text. On some file systems, `stat` gives another device.
///
/// Fails with the kernel's error if the file cannot be mapped.
pub fn name_in_maps(file: &File) -> io::Result<String> {
    let (read, shared, number) = (libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd());
    // SAFETY: a fresh mapping at an address that the kernel chooses. Nobody reads or writes through it.
    let at = unsafe { libc::mmap(null_mut(), PAGE_BYTES, read, shared, number, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let maps = crate::proc_text::read(std::process::id(), "maps");
    // SAFETY: the mapping is this function's own, and ends with it.
    unsafe { libc::munmap(at, PAGE_BYTES) };
    let start = format!("{:08x}-", at as usize);
    let maps = maps?;
    let line =
        maps.lines().find(|line| line.trim_start_matches('0').starts_with(start.trim_start_matches('0')));
    let name = line.and_then(|line| {
        let mut fields = line.split_ascii_whitespace().skip(3);
        Some(format!("{} {}", fields.next()?, fields.next()?))
    });
    name.ok_or_else(|| io::Error::other("the kernel does not list a mapping of a file"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn each_file_has_a_name_of_its_own() {
        let files = [(); 2].map(|()| tempfile::tempfile_in("/var/tmp").unwrap());
        let names = files.each_ref().map(|file| name_in_maps(file).unwrap());
        assert_ne!(names[0], names[1]);
        assert_eq!(name_in_maps(&files[0]).unwrap(), names[0]);
    }

    #[test]
    fn what_was_just_written_is_cached_and_what_was_dropped_is_not() {
        let mut file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.write_all(&[1; 8 * PAGE_BYTES]).unwrap();
        assert_eq!(cached_pages(&file, 8).unwrap(), 8);
        let advice = rustix::fs::Advice::DontNeed;
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, advice).unwrap();
        let is_memory = crate::page_cache::cached_pages(&file, 8).unwrap() == 8;
        // On a file system in memory, nothing can be dropped.
        assert!(is_memory || cached_pages(&file, 8).unwrap() == 0);
    }
}
