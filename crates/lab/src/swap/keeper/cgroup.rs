//! A memory control group of the keeper's own, with a limit. If no hierarchy is mounted, the keeper also
//! makes a mount of its own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use octavo_command::failure::Failure;
use octavo_measure::control_group::{ControlGroup, DELEGATE, Hierarchy};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount as unmount_at};
use rustix::process::{Pid, Signal, kill_process};

use super::note::{KeeperNote, Step, failed, ignore_missing};

/// How long killed processes may take to end: they need longer with much memory in swap.
const LONGEST_END: Duration = Duration::from_secs(30);

/// Makes the group, noting each step.
pub fn make(note: &mut KeeperNote, limit_bytes: u64) -> Result<ControlGroup, Failure> {
    let found = Hierarchy::find().map_err(|error| Failure::system("cannot read the mounts", error))?;
    let hierarchy = match found {
        Some(hierarchy) => hierarchy,
        None => Hierarchy::mounted_at(mount_privately(note)?),
    };
    delegate(note, &hierarchy)?;
    let group = ControlGroup::new(&hierarchy, &format!("octavo-swap-{}", std::process::id()));
    let (path, limit) = (group.path(), group.limit());
    note.add(Step::Group { path: path.into() })?;
    fs::create_dir(path).map_err(|error| failed("make the control group", path, error))?;
    fs::write(&limit, limit_bytes.to_string()).map_err(|error| failed("set", &limit, error))?;
    Ok(group)
}

/// Ends every process of the group and removes it.
pub fn remove(path: &Path) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        let procs = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
        for pid in procs.lines().filter_map(|line| line.parse().ok().and_then(Pid::from_raw)) {
            // The process may have ended already.
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
        // This step was noted, but not done.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => {}
        Err(error) => return Err(failed("unmount", at, error)),
        Ok(()) => {}
    }
    ignore_missing(fs::remove_dir(at)).map_err(|error| failed("remove", at, error))
}

/// Mounts the controller at a place that no other program uses.
fn mount_privately(note: &mut KeeperNote) -> Result<PathBuf, Failure> {
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

/// Gives the controller to the groups below. Version 2 does this only on request.
fn delegate(note: &mut KeeperNote, hierarchy: &Hierarchy) -> Result<(), Failure> {
    let delegation = hierarchy.delegation();
    let delegation =
        delegation.map_err(|error| Failure::system("cannot read what a group delegates", error))?;
    let Some(file) = delegation else { return Ok(()) };
    note.add(Step::Delegated { file: file.clone() })?;
    fs::write(&file, DELEGATE)
        .map_err(|error| failed("give the memory controller to a group of ours by", &file, error))
}
