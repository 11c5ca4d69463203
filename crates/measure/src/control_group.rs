//! Memory control groups of version 1 or 2, wherever their hierarchy is mounted.
//!
//! This module only names files: the caller makes the changes, and undoes them. [`ControlGroup::new`] makes
//! nothing, so the caller can note each step before it takes it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const CONTROLLER: &str = "memory";

/// The version of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ControllerVersion {
    One,
    Two,
}

/// The hierarchy of the memory controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    root: PathBuf,
    version: ControllerVersion,
}

impl Hierarchy {
    /// Finds the hierarchy. Returns `None` if none is mounted.
    ///
    /// # Errors
    /// The mounts of this process cannot be read.
    pub fn find() -> io::Result<Option<Self>> {
        Ok(Self::among(&fs::read_to_string("/proc/self/mountinfo")?))
    }

    /// The hierarchy of version 1 that the caller has mounted.
    pub fn mounted_at(root: PathBuf) -> Self {
        Self { root, version: ControllerVersion::One }
    }

    /// The hierarchy among the lines of /proc/self/mountinfo.
    fn among(mounts: &str) -> Option<Self> {
        let of = |wanted: &str, has_memory: fn(&Path, &str) -> bool| {
            mounts.lines().find_map(|line| {
                let (place, kind) = line.split_once(" - ")?;
                let mut kind = kind.split(' ');
                let (system, options) = (kind.next()?, kind.nth(1)?);
                let at = PathBuf::from(place.split(' ').nth(4)?);
                (system == wanted && has_memory(&at, options)).then_some(at)
            })
        };
        let v1 = of("cgroup", |_, options| options.split(',').any(|option| option == CONTROLLER));
        let v2 = || of("cgroup2", |at, _| names_memory(&at.join("cgroup.controllers")).unwrap_or(false));
        v1.map(Self::mounted_at).or_else(|| v2().map(|root| Self { root, version: ControllerVersion::Two }))
    }

    /// Returns the file that gives the controller to the groups below, if they do not have it yet: version 2
    /// gives it only on request.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn delegation(&self) -> io::Result<Option<PathBuf>> {
        if self.version == ControllerVersion::One {
            return Ok(None);
        }
        let file = self.root.join("cgroup.subtree_control");
        Ok((!names_memory(&file)?).then_some(file))
    }
}

fn names_memory(list: &Path) -> io::Result<bool> {
    Ok(fs::read_to_string(list)?.split_whitespace().any(|controller| controller == CONTROLLER))
}

/// The text to write into the file of [`Hierarchy::delegation`].
pub const DELEGATE: &str = "+memory";

/// A control group.
#[derive(Clone, Debug)]
pub struct ControlGroup {
    path: PathBuf,
    version: ControllerVersion,
}

impl ControlGroup {
    /// Names a group of the hierarchy. Does not make the group.
    pub fn new(hierarchy: &Hierarchy, name: &str) -> Self {
        Self { path: hierarchy.root.join(name), version: hierarchy.version }
    }

    /// Returns the group's folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file into which the number of a process is written to move the process into the group.
    pub fn procs(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Returns the file of the group's limit, which may be written.
    pub fn limit(&self) -> PathBuf {
        self.file("memory.limit_in_bytes", "memory.max")
    }

    /// Returns the file that limits memory and swap together (version 1) or swap alone (version 2), and the
    /// limit that forbids swap to a group of `bytes`. Returns `None` if the kernel does not account swap.
    pub fn limit_without_swap(&self, bytes: u64) -> Option<(PathBuf, u64)> {
        let file = self.file("memory.memsw.limit_in_bytes", "memory.swap.max");
        let least = if self.version == ControllerVersion::One { bytes } else { 0 };
        file.exists().then_some((file, least))
    }

    /// Returns the file with the most bytes that were ever charged to the group, including page cache.
    pub fn peak(&self) -> PathBuf {
        self.file("memory.max_usage_in_bytes", "memory.peak")
    }

    /// Returns the file of the group's figures, which the kernel sums at each reading.
    pub fn figures(&self) -> PathBuf {
        self.path.join("memory.stat")
    }

    /// Returns the most bytes that the kernel has ever charged to the group, or `None` if the kernel does not
    /// record it.
    pub fn peak_bytes(&self) -> Option<u64> {
        fs::read_to_string(self.peak()).ok()?.trim().parse().ok()
    }

    /// Returns the anonymous memory of the group now, in bytes.
    pub fn anonymous_bytes(&self) -> Option<u64> {
        let stat = fs::read_to_string(self.figures()).ok()?;
        figure(&stat, if self.version == ControllerVersion::One { "rss" } else { "anon" })
    }

    /// Returns whether the kernel has killed a process of the group for lack of memory.
    pub fn has_killed(&self) -> bool {
        let events = self.file("memory.oom_control", "memory.events");
        fs::read_to_string(events)
            .is_ok_and(|events| figure(&events, "oom_kill").is_some_and(|kills| kills > 0))
    }

    /// The processes of the group.
    pub fn processes(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.procs()).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    fn file(&self, v1: &str, v2: &str) -> PathBuf {
        self.path.join(if self.version == ControllerVersion::One { v1 } else { v2 })
    }
}

/// Finds a figure among lines of a name and a number.
fn figure(text: &str, wanted: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(name, _)| *name == wanted)?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_version_is_found_where_it_is_mounted() {
        let v1 = "30 20 0:27 / /x/cpu rw - cgroup cgroup rw,cpu\n31 20 0:28 / /x/memory rw shared:9 - cgroup cgroup rw,memory\n";
        assert_eq!(Hierarchy::among(v1), Some(Hierarchy::mounted_at("/x/memory".into())));
        let folder = std::env::temp_dir().join(format!("octavo-hierarchy-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let v2 = format!("31 20 0:28 / {} rw - cgroup2 cgroup2 rw,nsdelegate\n", folder.display());
        assert_eq!(Hierarchy::among(&v2), None, "without the controller it is of no use");
        fs::write(folder.join("cgroup.controllers"), "cpu memory io\n").unwrap();
        let found = Hierarchy::among(&v2).unwrap();
        assert_eq!((&found.root, found.version), (&folder, ControllerVersion::Two));
        fs::write(folder.join("cgroup.subtree_control"), "cpu\n").unwrap();
        assert_eq!(found.delegation().unwrap(), Some(folder.join("cgroup.subtree_control")));
        fs::write(folder.join("cgroup.subtree_control"), "cpu memory\n").unwrap();
        assert_eq!(found.delegation().unwrap(), None);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn kills_are_counted() {
        assert_eq!(figure("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "oom_kill"), Some(3));
        assert_eq!(figure("low 0\noom 1\noom_kill 0\n", "oom_kill"), Some(0));
    }
}
