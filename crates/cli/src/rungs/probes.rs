//! Questions to the kernel about what this machine and this container allow.
//!
//! Each probe is one function. It changes nothing that outlives it.

use std::fmt::Display;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use octavo::PAGE_BYTES;
use octavo_platform::page_cache::cached_pages;
use octavo_platform::pagemap::{Categories, Pagemap, SOFT_DIRTY, ScanFilter};
use octavo_platform::userfaultfd::{Userfaultfd, open_device};
use octavo_platform::{refusal, seccomp_listener, usage};
use rustix::fs::{Advice, Mode, OFlags, StatVfsMountFlags, fadvise, open, statvfs};
use rustix::thread::{CapabilitySet, capabilities};

use crate::run::{demo, messages};

/// How much userfaultfd this process gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// With fork events and pages that move, as the pool rung needs it.
    Full,
    /// For accesses of the program's own code alone.
    UserMode,
    None,
}

pub fn faults() -> Faults {
    match octavo_pager::look_for_userfaultfd() {
        Ok(()) => Faults::Full,
        Err(_) if Userfaultfd::is_allowed_in_user_mode() => Faults::UserMode,
        Err(_) => Faults::None,
    }
}

/// Opens `/dev/userfaultfd` for reading and writing.
///
/// # Errors
/// Returns the kernel's error.
pub fn device() -> io::Result<()> {
    open_device().map(drop)
}

/// Starts a process and traces it for a moment.
///
/// # Errors
/// Returns a sentence that says why that is not possible.
pub fn tracing() -> Result<(), String> {
    let start = Command::new("/proc/self/exe")
        .arg(demo::WAITING)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut child =
        start.map_err(|error| messages::NOT_TRIED.with(&[("why", &refusal::in_words(&error))]))?;
    let traced = octavo_pager::may_trace(child.id());
    // The process ends when its standard input is closed.
    drop(child.stdin.take());
    let _ = child.wait();
    traced.map_err(|error| error.to_string())
}

/// Asks for the properties of this process's own pages by the call of Linux 6.7.
pub fn has_page_scan() -> bool {
    let page = vec![1_u8; PAGE_BYTES];
    let at = black_box(&page).as_ptr() as u64 / PAGE_BYTES as u64 * PAGE_BYTES as u64;
    Pagemap::of(std::process::id()).is_ok_and(|map| {
        map.scan(at, at + PAGE_BYTES as u64, ScanFilter::any(Categories::PRESENT), |_| {}).is_ok()
    })
}

/// Clears the marks of stores in this process, and stores.
pub fn has_soft_dirty() -> bool {
    let mut page = vec![1_u8; 3 * PAGE_BYTES];
    let at = (page.as_ptr() as u64).next_multiple_of(PAGE_BYTES as u64);
    let offset = (at - page.as_ptr() as u64) as usize;
    let Ok(map) = Pagemap::of(std::process::id()) else { return false };
    let is_marked = || map.entries(at, 1).is_ok_and(|words| words.iter().all(|word| word & SOFT_DIRTY != 0));
    let is_cleared = fs::write("/proc/self/clear_refs", "4").is_ok() && !is_marked();
    page[offset] = 2;
    black_box(&page);
    is_cleared && is_marked()
}

/// Asks whether system calls of other processes can be received and answered (Linux 5.19).
///
/// # Errors
/// Returns the kernel's error.
pub fn listening() -> io::Result<()> {
    seccomp_listener::may_listen()
}

/// The memory control group of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// 1 or 2.
    pub version: u8,
    pub folder: PathBuf,
    /// The tightest limit of the group and its ancestors.
    pub limit_bytes: Option<u64>,
    /// Whether a group can be made below it.
    pub can_have_children: bool,
}

/// Returns `None` if this process has no memory control group, or none that it can see.
pub fn group() -> Option<Group> {
    let (version, folder) = octavo_pager::memory_group()?;
    let child = folder.join(format!("octavo-probe-{}", std::process::id()));
    let can_have_children = fs::create_dir(&child).is_ok() && fs::remove_dir(&child).is_ok();
    Some(Group { version, folder, limit_bytes: usage::cgroup_memory_limit_bytes(), can_have_children })
}

/// Returns the bytes of the kernel's own swap.
pub fn kernel_swap_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    system.totalswap as u64 * u64::from(system.mem_unit)
}

/// Returns whether this process has the capability that `swapon` needs. A container's filter may forbid the
/// call all the same.
pub fn may_swap_on() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// What a folder is for files of pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    pub path: PathBuf,
    pub free_bytes: u64,
}

/// Tests a folder for files of pages: writes one without a name, waits for the disk, and lets the kernel drop
/// the pages.
///
/// # Errors
/// Returns a sentence that says why pages cannot go there.
pub fn folder(path: &Path) -> Result<Folder, String> {
    const PAGES: usize = 16;
    let path_words = path.display();
    let said = |what: &str, error: &dyn Display| {
        messages::FOLDER_REFUSED.with(&[("what", &what), ("path", &path_words), ("why", error)])
    };
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let mut file = match open(path, flags, mode) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR) => {
            tempfile::tempfile_in(path).map_err(|error| said("no file can be made", &error))?
        }
        Err(error) => return Err(said("no file can be made", &error)),
    };
    let bytes = vec![0x5a_u8; PAGES * PAGE_BYTES];
    file.write_all(&bytes).map_err(|error| said("nothing can be written", &error))?;
    file.sync_all().map_err(|error| said("nothing reaches the disk", &error))?;
    fadvise(&file, 0, None, Advice::DontNeed).map_err(|error| said("pages are not dropped", &error))?;
    match cached_pages(&file, PAGES) {
        Ok(0) => {}
        Ok(_) => return Err(messages::FOLDER_IN_MEMORY.with(&[("path", &path_words)])),
        Err(error) => return Err(said("no file can be mapped", &error)),
    }
    let mut again = Vec::new();
    let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut again));
    read.map_err(|error| said("nothing can be read", &error))?;
    if again != bytes {
        return Err(said("other bytes come back", &ErrorKind::InvalidData));
    }
    let system = statvfs(path).map_err(|error| said("free space is not told", &error))?;
    if system.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        // A program could not make such memory executable any more.
        return Err(messages::FOLDER_NOEXEC.with(&[("path", &path_words)]));
    }
    Ok(Folder { path: path.into(), free_bytes: system.f_bavail.saturating_mul(system.f_frsize) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_gets_all_of_userfaultfd_where_the_kernel_has_it() {
        if octavo_pager::look_for_rights().is_ok() {
            assert_eq!(faults(), Faults::Full);
        } else {
            assert_ne!((faults(), device().is_ok()), (Faults::Full, true));
        }
    }

    #[test]
    fn a_group_that_was_tried_is_gone_again() {
        if let Some(group) = group() {
            let left = fs::read_dir(&group.folder).unwrap().flatten();
            let name = format!("octavo-probe-{}", std::process::id());
            assert!(left.filter(|entry| entry.file_name() == *name).count() == 0);
        }
    }

    #[test]
    fn a_folder_on_disk_will_do_and_memory_or_nothing_will_not() {
        let there = folder(Path::new("/var/tmp")).unwrap();
        assert!(there.free_bytes > 0);
        assert!(folder(Path::new("/nowhere")).unwrap_err().contains("/nowhere"));
        if Path::new("/dev/shm").is_dir() {
            assert!(folder(Path::new("/dev/shm")).unwrap_err().contains("stay in memory"));
        }
    }

    #[test]
    fn the_other_probes_answer() {
        // What they answer depends on the machine, but they do it every time.
        assert_eq!(has_page_scan(), has_page_scan());
        assert_eq!(has_soft_dirty(), has_soft_dirty());
        assert_eq!(listening().is_ok(), listening().is_ok());
        assert_eq!(kernel_swap_bytes(), kernel_swap_bytes());
        let _ = may_swap_on();
    }
}
