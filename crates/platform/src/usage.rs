//! The memory and the CPUs that the kernel reports for this machine and this process.

use std::fs;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Returns the bytes of RAM in the machine.
pub fn machine_memory_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    system.totalram as u64 * u64::from(system.mem_unit)
}

/// Returns the largest resident set of this process so far, in bytes.
pub fn peak_resident_bytes() -> u64 {
    field_kib(&fs::read_to_string("/proc/self/status").unwrap_or_default(), "VmHWM:").unwrap_or(0) << 10
}

/// Returns the present resident set of this process, in bytes.
pub fn resident_bytes() -> u64 {
    field_kib(&fs::read_to_string("/proc/self/status").unwrap_or_default(), "VmRSS:").unwrap_or(0) << 10
}

/// The use of this process's children that have ended and been waited for, and of their children.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChildrensUse {
    /// The largest resident set of any one of them, in bytes.
    pub peak_resident_bytes: u64,
    /// The time that CPUs spent on all of them.
    pub cpu: Duration,
    /// Their faults that waited for a disk.
    pub major_faults: u64,
}

impl ChildrensUse {
    /// Returns the use since `earlier`. The peak is 0 unless it has grown since then.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        let is_new = self.peak_resident_bytes > earlier.peak_resident_bytes;
        Self {
            peak_resident_bytes: if is_new { self.peak_resident_bytes } else { 0 },
            cpu: self.cpu.saturating_sub(earlier.cpu),
            major_faults: self.major_faults.saturating_sub(earlier.major_faults),
        }
    }
}

/// Returns the children's use, including children from before this process's last `exec`. Costs a system
/// call.
pub fn of_children() -> ChildrensUse {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes the structure, which is live for the call. If the call fails, its zeros are a
    // valid value.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let time = |time: libc::timeval| Duration::from_micros((time.tv_sec * 1_000_000 + time.tv_usec) as u64);
    ChildrensUse {
        peak_resident_bytes: (usage.ru_maxrss as u64) << 10,
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        major_faults: usage.ru_majflt as u64,
    }
}

/// Restarts [`peak_resident_bytes`] from the present resident set. Returns false if the kernel refuses.
pub fn reset_peak_resident() -> bool {
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// Returns the tightest memory limit of this process's control group and its ancestors (v1 or v2), in bytes.
/// Returns `None` if there is no limit.
pub fn cgroup_memory_limit_bytes() -> Option<u64> {
    tightest_limit(&fs::read_to_string("/proc/self/cgroup").ok()?, Path::new("/sys/fs/cgroup"), || {
        fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()
    })
}

/// Returns the machine's memory as far as the control groups of this process allow it, in bytes.
pub fn usable_memory_bytes() -> u64 {
    machine_memory_bytes().min(cgroup_memory_limit_bytes().unwrap_or(u64::MAX))
}

/// Returns the number of processors that this process may run on.
pub fn available_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the number of processors that the machine may ever have: one more than the largest CPU number.
pub fn possible_cpus() -> usize {
    let text = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = text.trim().rsplit(['-', ',']).next().and_then(|number| number.parse::<usize>().ok());
    last.map_or_else(available_cpus, |last| last + 1)
}

fn field_kib(text: &str, field: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(field)?.split_whitespace().next()?.parse().ok())
}

/// `memberships` is /proc/self/cgroup: lines of `id:controllers:path`. Under v1 the memory controller has a
/// hierarchy of its own. Under v2, the only line names no controllers. If v1 has the memory controller, v2
/// limits no memory. A container may see its own group mounted as the root. So the function reads every
/// prefix of the path that exists, and the mount point itself.
fn tightest_limit(memberships: &str, mount: &Path, mountinfo: impl FnOnce() -> String) -> Option<u64> {
    let path_of = |is_it: fn(&str) -> bool| {
        memberships.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            is_it(controllers).then_some(path)
        })
    };
    let (root, path, file): (PathBuf, &str, &str) = if let Some(path) =
        path_of(|controllers| controllers.split(',').any(|name| name == "memory"))
    {
        (mount.join("memory"), path, "memory.limit_in_bytes")
    } else {
        let path = path_of(str::is_empty)?;
        let unified = mountinfo().lines().any(|line| line.contains("/unified") && line.contains("cgroup2"));
        (if unified { mount.join("unified") } else { mount.to_path_buf() }, path, "memory.max")
    };
    let mut tightest: Option<u64> = None;
    let mut group = root.join(path.trim_start_matches('/'));
    loop {
        let limit = fs::read_to_string(group.join(file)).ok().and_then(|text| text.trim().parse().ok());
        tightest = tightest.into_iter().chain(limit).min();
        if group == root || !group.pop() {
            break;
        }
    }
    // v1 expresses "unlimited" by the largest multiple of a page.
    tightest.filter(|&limit| limit < 1 << 62)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_ancestor_wins_under_both_versions() {
        let root = tempfile::tempdir().unwrap();
        let v1 = root.path().join("memory/outer/inner");
        fs::create_dir_all(&v1).unwrap();
        fs::write(v1.join("memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        fs::write(root.path().join("memory/outer/memory.limit_in_bytes"), "1073741824\n").unwrap();
        let none = String::new;
        let hybrid = "3:memory:/outer/inner\n2:cpu:/\n0::/a/b\n";
        assert_eq!(tightest_limit(hybrid, root.path(), || unreachable!("v2 has no memory")), Some(1 << 30));

        let v2 = root.path().join("a/b");
        fs::create_dir_all(&v2).unwrap();
        fs::write(root.path().join("a/memory.max"), "max\n").unwrap();
        fs::write(v2.join("memory.max"), "4096000\n").unwrap();
        assert_eq!(tightest_limit("0::/a/b\n", root.path(), none), Some(4_096_000));
        assert_eq!(tightest_limit("0::/a\n", root.path(), none), None);
    }

    #[test]
    fn the_kernel_answers() {
        assert!(machine_memory_bytes() > 1 << 20);
        assert!(peak_resident_bytes() >= resident_bytes() / 2);
        assert!(possible_cpus() >= 1);
    }
}
