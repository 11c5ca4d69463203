//! A small file system in memory.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

/// A file system of the kind tmpfs, mounted until this value is dropped.
pub struct Mounted(PathBuf);

impl Mounted {
    /// Mounts it over a folder. If mounting is not allowed, prints the reason and returns `None`.
    pub fn new(at: &Path, options: &str) -> Option<Self> {
        let status =
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "octavo-test"]).arg(at).status();
        if status.as_ref().is_ok_and(|status| status.success()) {
            return Some(Self(at.into()));
        }
        eprintln!("SKIPPED: cannot mount a small file system here ({status:?}); run as root");
        None
    }

    pub fn make_read_only(&self) {
        let status = Command::new("mount").args(["-o", "remount,ro"]).arg(&self.0).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(&self.0).status();
        assert!(thread::panicking() || unmounted.is_ok_and(|status| status.success()));
    }
}
