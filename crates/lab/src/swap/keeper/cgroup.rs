//! A memory control group of our own, version 1 or 2, wherever its hierarchy is mounted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use octavo_command::failure::Failure;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount as unmount_at};
use rustix::process::{Pid, Signal, kill_process};

use super::note::{Note, Step, failed, ignore_missing};

/// Processes that were killed take a moment to end, and longer with much memory in swap.
const LONGEST_END: Duration = Duration::from_secs(30);

/// A control group with a memory limit.
#[derive(Clone, Debug)]
pub struct Group {
    /// The file that takes the number of a process that enters.
    pub procs: PathBuf,
    /// Its limit, which may be written.
    pub limit: PathBuf,
    /// Most bytes that were charged to it.
    pub peak: PathBuf,
    /// Its figures.
    pub figures: PathBuf,
}

/// The place of the memory controller.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Hierarchy {
    V1(PathBuf),
    V2(PathBuf),
}

/// Makes the group, noting each step.
pub fn make(note: &mut Note, limit_bytes: u64) -> Result<Group, Failure> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")
        .map_err(|error| failed("read", Path::new("/proc/self/mountinfo"), error))?;
    let hierarchy = match find(&mounts) {
        Some(hierarchy) => hierarchy,
        None => Hierarchy::V1(mount_privately(note)?),
    };
    let name = format!("octavo-swap-{}", std::process::id());
    let (root, limit_file, peak_file) = match &hierarchy {
        Hierarchy::V1(root) => (root, "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
        Hierarchy::V2(root) => {
            delegate(note, root)?;
            (root, "memory.max", "memory.peak")
        }
    };
    let path = root.join(name);
    note.add(Step::Group { path: path.clone() })?;
    fs::create_dir(&path).map_err(|error| failed("make the control group", &path, error))?;
    let limit = path.join(limit_file);
    fs::write(&limit, limit_bytes.to_string()).map_err(|error| failed("set", &limit, error))?;
    Ok(Group {
        procs: path.join("cgroup.procs"),
        limit,
        peak: path.join(peak_file),
        figures: path.join("memory.stat"),
    })
}

/// Ends every process of the group and removes it.
pub fn remove(path: &Path) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        let procs = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
        for pid in procs.lines().filter_map(|line| line.parse().ok().and_then(Pid::from_raw)) {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::KILL);
        }
        match ignore_missing(fs::remove_dir(path)) {
            Ok(()) => return Ok(()),
            Err(error) if begun.elapsed() > LONGEST_END => {
                return Err(failed("remove the control group", path, error));
            }
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

pub fn unmount(at: &Path) -> Result<(), Failure> {
    match unmount_at(at, UnmountFlags::empty()).map_err(io::Error::from) {
        // This step was noted and not done.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => {}
        Err(error) => return Err(failed("unmount", at, error)),
        Ok(()) => {}
    }
    ignore_missing(fs::remove_dir(at)).map_err(|error| failed("remove", at, error))
}

/// The memory controller's hierarchy, of either version, among the lines of /proc/self/mountinfo.
fn find(mounts: &str) -> Option<Hierarchy> {
    let of = |wanted: &str, has_memory: fn(&Path, &str) -> bool| {
        mounts.lines().find_map(|line| {
            let (place, kind) = line.split_once(" - ")?;
            let mut kind = kind.split(' ');
            let (system, options) = (kind.next()?, kind.nth(1)?);
            let at = PathBuf::from(place.split(' ').nth(4)?);
            (system == wanted && has_memory(&at, options)).then_some(at)
        })
    };
    let v1 = of("cgroup", |_, options| options.split(',').any(|option| option == "memory"));
    let v2 = || {
        of("cgroup2", |at, _| {
            let controllers = fs::read_to_string(at.join("cgroup.controllers")).unwrap_or_default();
            controllers.split_whitespace().any(|controller| controller == "memory")
        })
    };
    v1.map(Hierarchy::V1).or_else(|| v2().map(Hierarchy::V2))
}

/// Mounts the controller at a place that no other program uses.
fn mount_privately(note: &mut Note) -> Result<PathBuf, Failure> {
    let at = PathBuf::from(format!("/run/octavo/{}.memory", std::process::id()));
    note.add(Step::Mounted { at: at.clone() })?;
    fs::create_dir(&at).map_err(|error| failed("make", &at, error))?;
    let options = c"memory";
    mount("octavo", &at, "cgroup", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, options)
        .map_err(|error| {
            Failure::system(
                "this machine has no memory control groups mounted, and they cannot be mounted here",
                error.into(),
            )
        })?;
    Ok(at)
}

/// Lets the groups below have the controller, which version 2 gives them on request only.
fn delegate(note: &mut Note, root: &Path) -> Result<(), Failure> {
    let file = root.join("cgroup.subtree_control");
    let given = fs::read_to_string(&file).map_err(|error| failed("read", &file, error))?;
    if given.split_whitespace().any(|controller| controller == "memory") {
        return Ok(());
    }
    note.add(Step::Delegated { file: file.clone() })?;
    fs::write(&file, "+memory")
        .map_err(|error| failed("give the memory controller to a group of ours by", &file, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_version_is_found_where_it_is_mounted() {
        let v1 = "30 20 0:27 / /x/cpu rw - cgroup cgroup rw,cpu\n31 20 0:28 / /x/memory rw shared:9 - cgroup cgroup rw,memory\n";
        assert_eq!(find(v1), Some(Hierarchy::V1("/x/memory".into())));
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().display();
        let v2 = format!("31 20 0:28 / {at} rw - cgroup2 cgroup2 rw,nsdelegate\n");
        assert_eq!(find(&v2), None, "without the controller it is of no use");
        fs::write(folder.path().join("cgroup.controllers"), "cpu memory io\n").unwrap();
        assert_eq!(find(&v2), Some(Hierarchy::V2(folder.path().into())));
    }
}
