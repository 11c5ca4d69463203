//! The thread that faults: the CPU that it ran on last, and its CPU time.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use octavo_platform::threads::stat_field;

/// The thread that faults.
#[derive(Debug)]
pub(super) struct Faulter {
    pub(super) thread: u32,
    stat: File,
    times: File,
}

impl Faulter {
    pub(super) fn new(thread: u32) -> Option<Self> {
        let open = |name| File::open(format!("/proc/{thread}/task/{thread}/{name}")).ok();
        Some(Self { thread, stat: open("stat")?, times: open("schedstat")? })
    }

    /// Returns the CPU that the thread ran on last.
    pub(super) fn cpu(&self) -> Option<usize> {
        let mut text = [0; 1024];
        let len = self.stat.read_at(&mut text, 0).ok()?;
        parse(stat_field(&text[..len], 39)?)
    }

    /// Returns the thread's CPU time.
    pub(super) fn computed(&self) -> Option<Duration> {
        let mut text = [0; 64];
        let len = self.times.read_at(&mut text, 0).ok()?;
        parse(text[..len].split(|byte| *byte == b' ').next()?).map(Duration::from_nanos)
    }
}

fn parse<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok()?.trim().parse().ok()
}
