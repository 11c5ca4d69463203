//! The kernel's side: memory control groups of version 1 or 2, and swap files.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::document::{read, write};
use super::warden::{Warden, quoted};

/// What a group is for.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    /// It holds the kernel to a limit. A group that may not swap uses no area of others either.
    Limit { bytes: u64, may_swap: bool },
    /// It measures whoever holds a limit himself.
    Measure,
}

/// A group for one run.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
    /// Whether the controller is of version 2.
    is_unified: bool,
}

impl Group {
    /// Makes the group. The warden ends its processes and removes it.
    pub fn new(warden: &mut Warden, purpose: Purpose) -> Result<Self, String> {
        let mounts = read(Path::new("/proc/self/mountinfo"))?;
        let Some((root, is_unified)) = find(&mounts) else {
            return Err("this machine has no memory control groups mounted".into());
        };
        if is_unified {
            delegate(warden, &root)?;
        }
        let path = root.join(format!("octavo-programs-{}", std::process::id()));
        let group = quoted(&path);
        warden.at_the_end(&format!(
            "for i in $(seq 300); do for p in $(cat {group}/cgroup.procs); do kill -9 $p; done; rmdir {group} && break; \
             [ -d {group} ] || break; sleep 0.1; done"
        ))?;
        fs::create_dir(&path)
            .map_err(|error| format!("cannot make the group {}: {error}", path.display()))?;
        if let Purpose::Limit { bytes, may_swap } = purpose {
            let limit = if is_unified { "memory.max" } else { "memory.limit_in_bytes" };
            write(&path.join(limit), &bytes.to_string())?;
            // Version 1 limits memory and swap together, version 2 swap alone. A kernel without either has no
            // swap accounts.
            let both = [("memory.memsw.limit_in_bytes", bytes), ("memory.swap.max", 0)];
            for (file, bytes) in both.iter().filter(|(file, _)| !may_swap && path.join(file).exists()) {
                write(&path.join(file), &bytes.to_string())?;
            }
        }
        Ok(Self { path, is_unified })
    }

    /// The words of a command line that enters the group and then runs another.
    pub fn entering(&self, words: &[String]) -> Vec<String> {
        let enter = format!("echo $$ > {} && exec \"$@\"", quoted(&self.path.join("cgroup.procs")));
        [&["sh", "-c", &enter, "sh"].map(str::to_owned), words].concat()
    }

    /// Whether the kernel has killed a process of the group for want of memory.
    pub fn has_killed(&self) -> bool {
        let events = self.path.join(if self.is_unified { "memory.events" } else { "memory.oom_control" });
        fs::read_to_string(events).is_ok_and(|events| oom_kills(&events) > 0)
    }

    /// The most that the kernel has ever charged to the group, page cache and all. `None` where the kernel
    /// keeps no such account.
    pub fn peak_bytes(&self) -> Option<u64> {
        let file = if self.is_unified { "memory.peak" } else { "memory.max_usage_in_bytes" };
        fs::read_to_string(self.path.join(file)).ok()?.trim().parse().ok()
    }

    /// Private memory of the group that is no file's, now.
    pub fn anonymous_bytes(&self) -> Option<u64> {
        let stat = fs::read_to_string(self.path.join("memory.stat")).ok()?;
        let wanted = if self.is_unified { "anon" } else { "rss" };
        let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(name, _)| *name == wanted)?.1.trim().parse().ok()
    }

    /// Has the kernel sum the group's figures, which it otherwise does every other second. Reclaim goes by
    /// them: in a small group that goes through its memory faster than that, it believes that a list is long,
    /// finds it empty, and kills a process, with swap nearly empty and every page reclaimable. Who compares
    /// with the kernel at its best reads them all the time.
    pub fn read_figures(&self) {
        self.anonymous_bytes();
    }

    /// The processes of the group.
    pub fn processes(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

/// Gives the groups below the root the controller, which version 2 does on request only.
fn delegate(warden: &mut Warden, root: &Path) -> Result<(), String> {
    let file = root.join("cgroup.subtree_control");
    if read(&file)?.split_whitespace().any(|controller| controller == "memory") {
        return Ok(());
    }
    warden.at_the_end(&format!("echo -memory > {}", quoted(&file)))?;
    write(&file, "+memory")
}

fn oom_kills(events: &str) -> u64 {
    let count = events.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// The memory controller's root, and whether it is of version 2.
fn find(mounts: &str) -> Option<(PathBuf, bool)> {
    let of = |system: &str, has_memory: fn(&Path, &str) -> bool| {
        mounts.lines().find_map(|line| {
            let (place, kind) = line.split_once(" - ")?;
            let at = PathBuf::from(place.split(' ').nth(4)?);
            let options = kind.split(' ').nth(2)?;
            (kind.split(' ').next() == Some(system) && has_memory(&at, options)).then_some(at)
        })
    };
    let v1 = of("cgroup", |_, options| options.split(',').any(|option| option == "memory"));
    v1.map(|root| (root, false)).or_else(|| {
        let has = |at: &Path, _: &str| {
            fs::read_to_string(at.join("cgroup.controllers"))
                .is_ok_and(|all| all.split_whitespace().any(|controller| controller == "memory"))
        };
        of("cgroup2", has).map(|root| (root, true))
    })
}

/// Makes a swap file in the folder and switches it on. The warden switches it off and removes it.
pub fn swap_on(warden: &mut Warden, folder: &Path, bytes: u64) -> Result<(), String> {
    let path = folder.join(format!("kernel-swap-{}", std::process::id()));
    let file = quoted(&path);
    warden.at_the_end(&format!("for i in $(seq 100); do swapoff {file} && break; grep -qF {file} /proc/swaps || break; sleep 0.1; done; rm -f {file}"))?;
    make_file(&path, bytes).map_err(|error| format!("cannot make {}: {error}", path.display()))?;
    for tool in ["mkswap", "swapon"] {
        let status = Command::new(tool).arg(&path).stdout(Stdio::null()).status();
        let done = status.map_err(|error| format!("cannot run {tool}: {error}"))?.success();
        if !done {
            return Err(format!(
                "{tool} {} failed; the kernel swaps to files on ext4 and xfs",
                path.display()
            ));
        }
    }
    Ok(())
}

/// A file whose blocks have all been written.
fn make_file(path: &Path, bytes: u64) -> std::io::Result<()> {
    const CHUNK: u64 = 1 << 20;
    let mut file = File::create(path)?;
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    let zeros = vec![0; CHUNK as usize];
    for _ in 0..bytes.div_ceil(CHUNK) {
        file.write_all(&zeros)?;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_version_of_the_controller_is_found_and_kills_are_counted() {
        let v1 = "30 20 0:27 / /x/cpu rw - cgroup cgroup rw,cpu\n31 20 0:28 / /x/m rw shared:9 - cgroup cgroup rw,memory\n";
        assert_eq!(find(v1), Some(("/x/m".into(), false)));
        assert_eq!(find("31 20 0:28 / /nowhere rw - cgroup2 cgroup2 rw\n"), None);
        assert_eq!(oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), 3);
        assert_eq!(oom_kills("low 0\noom 1\noom_kill 0\n"), 0);
    }
}
