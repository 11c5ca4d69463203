//! The memory control group of a run, version 1 or 2.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use octavo::PAGE_BYTES;

use crate::messages;

/// Returns the version (1 or 2) and the folder of this process's memory control group, if it can see one.
#[must_use]
pub fn memory_group() -> Option<(u8, PathBuf)> {
    Group::of_this_process().ok().map(|group| (if group.is_unified { 2 } else { 1 }, group.folder))
}

/// A group, by its folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    folder: PathBuf,
    is_unified: bool,
}

/// What the kernel counts for a group. A figure is missing if this kernel does not count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupFigures {
    /// Its anonymous memory now, present and in swap.
    pub(crate) anonymous_bytes: u64,
    /// See `anonymous_bytes`.
    pub(crate) swap_bytes: Option<u64>,
    /// Pages that have come back from swap.
    pub(crate) came_back_bytes: Option<u64>,
    /// Faults that waited for a disk, to read swap or a file.
    pub(crate) disk_faults: Option<u64>,
}

impl Group {
    /// Returns the group of this process.
    ///
    /// # Errors
    /// Returns a sentence if there is none.
    pub(crate) fn of_this_process() -> Result<Self, String> {
        let memberships = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::among(&memberships, Path::new("/sys/fs/cgroup")).ok_or_else(|| messages::NO_GROUP.with(&[]))
    }

    /// Finds the group in the text of `/proc/self/cgroup`. A container may see its own group as the root.
    fn among(memberships: &str, mount: &Path) -> Option<Self> {
        let path_of = |is_it: fn(&str) -> bool| {
            memberships.lines().find_map(|line| {
                let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
                is_it(controllers).then_some(path.trim_start_matches('/'))
            })
        };
        let v1 = path_of(|names| names.split(',').any(|name| name == "memory"));
        let (root, path) = match v1 {
            Some(path) => (mount.join("memory"), path),
            None => (mount.to_path_buf(), path_of(str::is_empty)?),
        };
        let mut folders = [root.join(path), root].into_iter();
        folders.find(|folder| folder.join("cgroup.procs").exists()).map(Self::at)
    }

    /// The group of a folder.
    pub(crate) fn at(folder: PathBuf) -> Self {
        let is_unified = folder.join("cgroup.controllers").exists();
        Self { folder, is_unified }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes a group below this one, with a limit of memory. Swap has none of its own.
    ///
    /// # Errors
    /// Returns a sentence that says what the kernel refuses.
    pub(crate) fn make(&self, name: &str, limit_bytes: u64) -> Result<Self, String> {
        let refused = |what: &str, at: &Path, error: &io::Error| {
            messages::GROUP_REFUSED.with(&[("what", &what), ("path", &at.display()), ("why", error)])
        };
        let control = self.folder.join("cgroup.subtree_control");
        let lends = fs::read_to_string(&control).unwrap_or_default();
        if self.is_unified && !lends.split_whitespace().any(|name| name == "memory") {
            // A group with processes of its own may not do that, unless it is the root.
            fs::write(&control, "+memory")
                .map_err(|error| refused("pass the memory controller on in", &control, &error))?;
        }
        let folder = self.folder.join(name);
        fs::create_dir(&folder).map_err(|error| refused("make the control group", &folder, &error))?;
        let made = Self { folder, is_unified: self.is_unified };
        let limit = made.file("memory.limit_in_bytes", "memory.max");
        match fs::write(&limit, limit_bytes.to_string()) {
            Ok(()) => Ok(made),
            Err(error) => {
                made.remove();
                Err(refused("set", &limit, &error))
            }
        }
    }

    /// Makes a group below this one, and removes it.
    ///
    /// # Errors
    /// Same as [`make`](Self::make).
    pub(crate) fn try_one(&self) -> Result<(), String> {
        self.make(&format!("octavo-probe-{}", std::process::id()), 1 << 30).map(|made| {
            made.remove();
        })
    }

    /// Removes the group if it is empty. Returns whether it is gone.
    pub(crate) fn remove(&self) -> bool {
        fs::remove_dir(&self.folder).is_ok() || !self.folder.exists()
    }

    /// The file that takes the number of a process that enters.
    pub(crate) fn procs(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    pub(crate) fn processes(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.procs()).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Returns the most bytes that were ever charged, page cache included.
    pub(crate) fn peak_bytes(&self) -> Option<u64> {
        fs::read_to_string(self.file("memory.max_usage_in_bytes", "memory.peak")).ok()?.trim().parse().ok()
    }

    /// Makes the kernel sum the group's figures, and returns them.
    pub(crate) fn read_figures(&self) -> GroupFigures {
        let text = fs::read_to_string(self.folder.join("memory.stat")).unwrap_or_default();
        let figure = |v1: &str, v2: &str| count_in(&text, if self.is_unified { v2 } else { v1 });
        let swap_bytes = if self.is_unified {
            let current = fs::read_to_string(self.folder.join("memory.swap.current")).ok();
            current.and_then(|text| text.trim().parse().ok())
        } else {
            figure("total_swap", "")
        };
        let back = figure("total_workingset_refault_anon", "workingset_refault_anon");
        GroupFigures {
            anonymous_bytes: figure("total_rss", "anon").unwrap_or(0),
            swap_bytes,
            came_back_bytes: back.map(|pages| pages * PAGE_BYTES as u64),
            disk_faults: figure("total_pgmajfault", "pgmajfault"),
        }
    }

    /// Returns for how long some thread of the group has waited for memory. Version 1 does not count it.
    pub(crate) fn waited(&self) -> Option<Duration> {
        let text = fs::read_to_string(self.folder.join("memory.pressure")).ok()?;
        let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
        let total = some.split_ascii_whitespace().find_map(|field| field.strip_prefix("total="))?;
        total.parse().ok().map(Duration::from_micros)
    }

    /// Returns how many processes of the group the kernel has killed for want of memory.
    pub(crate) fn killed(&self) -> u64 {
        let text = fs::read_to_string(self.file("memory.oom_control", "memory.events")).unwrap_or_default();
        count_in(&text, "oom_kill").unwrap_or(0)
    }

    fn file(&self, v1: &str, v2: &str) -> PathBuf {
        self.folder.join(if self.is_unified { v2 } else { v1 })
    }
}

/// Returns a count of a file that has one name and count in each line.
fn count_in(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, text)| fs::write(folder.path().join(name), text).unwrap());
        folder
    }

    #[test]
    fn a_group_is_found_under_both_versions_and_as_a_containers_root() {
        let mount = tempfile::tempdir().unwrap();
        let make = |folder: &str| {
            let folder = mount.path().join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("cgroup.procs"), "").unwrap();
            folder
        };
        let (root, inner) = (make("memory"), make("memory/outer/inner"));
        let find = |text: &str| Group::among(text, mount.path()).map(|group| group.folder);
        assert_eq!(find("4:memory:/outer/inner\n0::/\n"), Some(inner));
        assert_eq!(find("4:memory:/seen/from/outside\n"), Some(root));
        let unified = make("a/b");
        assert_eq!(find("0::/a/b\n"), Some(unified));
        assert_eq!(find("3:cpu:/\n"), None);
    }

    /// The files of the kernel's second version, as plain files.
    #[test]
    fn version_2_lends_its_controller_first() {
        let folder = folder_with(&[
            ("cgroup.procs", ""),
            ("cgroup.controllers", "memory"),
            ("cgroup.subtree_control", "cpu"),
        ]);
        let group = Group::among("0::/\n", folder.path()).unwrap();
        assert!(group.is_unified);
        let made = group.make("inner", 1 << 30).unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("cgroup.subtree_control")).unwrap(), "+memory");
        assert_eq!(fs::read_to_string(made.folder().join("memory.max")).unwrap(), "1073741824");
    }

    #[test]
    fn figures_are_read_under_both_versions_and_missing_ones_are_missing() {
        let unified = folder_with(&[
            ("cgroup.controllers", "memory"),
            ("memory.stat", "file 1\nanon 77\nworkingset_refault_anon 3\npgmajfault 5\n"),
            ("memory.swap.current", "4096\n"),
            ("memory.pressure", "some avg10=0.00 avg60=0.00 total=1500000\nfull avg10=0.00 total=7\n"),
        ]);
        let group = Group::at(unified.path().into());
        let figures = GroupFigures {
            anonymous_bytes: 77,
            swap_bytes: Some(4096),
            came_back_bytes: Some(3 * PAGE_BYTES as u64),
            disk_faults: Some(5),
        };
        assert_eq!((group.read_figures(), group.waited()), (figures, Some(Duration::from_millis(1500))));
        let stat = "rss 1\nswap 2\npgmajfault 3\ntotal_rss 77\ntotal_swap 4096\ntotal_pgmajfault 5\n";
        let first = folder_with(&[("memory.stat", stat)]);
        let group = Group::at(first.path().into());
        let figures = GroupFigures { came_back_bytes: None, ..figures };
        assert_eq!((group.read_figures(), group.waited()), (figures, None));
    }

    #[test]
    fn a_group_is_made_with_its_limit_and_removed() {
        let Ok(own) = Group::of_this_process() else { return };
        let name = format!("octavo-test-{}", std::process::id());
        let Ok(made) = own.make(&name, 64 << 20) else { return };
        let limit = made.file("memory.limit_in_bytes", "memory.max");
        assert_eq!(fs::read_to_string(limit).unwrap().trim(), (64 << 20).to_string());
        assert!(made.processes().is_empty() && made.remove() && !made.folder().exists());
    }
}
