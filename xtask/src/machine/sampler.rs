//! The peak of anonymous memory of a process and all processes that it started.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

/// Samples a tree of processes now and then.
///
/// The kernel splits a shared page among its processes (`Pss_Anon`), so the sum over a tree counts each page
/// once. A sample takes about 14 ms a GiB. So the sampler waits nine times as long as the sample took, and
/// may miss a short peak.
#[derive(Debug)]
pub struct Sampler {
    root: u32,
    peak_bytes: u64,
    next: Instant,
}

const SHORTEST_PAUSE: Duration = Duration::from_millis(20);

impl Sampler {
    pub fn new(root: u32) -> Self {
        Self { root, peak_bytes: 0, next: Instant::now() }
    }

    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// Takes a sample, if one is due.
    pub fn look(&mut self) {
        let begun = Instant::now();
        if begun < self.next {
            return;
        }
        let now: u64 = tree(self.root).into_iter().filter_map(anonymous_bytes).sum();
        self.peak_bytes = self.peak_bytes.max(now);
        let ended = Instant::now();
        self.next = ended + SHORTEST_PAUSE.max(9 * (ended - begun));
    }
}

/// Returns the process, its descendants, and all of its process group.
fn tree(root: u32) -> BTreeSet<u32> {
    let processes: Vec<[u32; 3]> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let (parent, group) = parent_and_group(&stat)?;
            Some([pid, parent, group])
        })
        .collect();
    let mut found = BTreeSet::from([root]);
    loop {
        let before = found.len();
        for &[pid, parent, group] in &processes {
            if group == root || found.contains(&parent) {
                found.insert(pid);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

/// Reads the parent and the process group from a line of /proc/PID/stat. A name may hold blanks and brackets.
fn parent_and_group(stat: &str) -> Option<(u32, u32)> {
    let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(1);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

fn anonymous_bytes(pid: u32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss_Anon:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_names_do_not_confuse() {
        let mut sampler = Sampler::new(std::process::id());
        sampler.look();
        assert!(sampler.peak_bytes() > 0);
        assert_eq!(parent_and_group("7 (a) b (c)) S 3 5 5 0"), Some((3, 5)));
    }
}
