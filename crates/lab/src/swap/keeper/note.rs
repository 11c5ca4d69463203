//! Notes of the changes to the machine, written before each change, so that the next keeper can undo them.
//!
//! A note is a file in `/run/octavo`, named by its keeper's process id. A restart of the machine empties
//! /run, but also ends control groups and swap. The keeper writes the note before each step. Undoing a step
//! that was noted but not done does no harm.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use octavo_command::failure::Failure;

const FOLDER: &str = "/run/octavo";
pub const PAGE_CLUSTER: &str = "/proc/sys/vm/page-cluster";

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Mounted the memory controller of version 1 here.
    Mounted {
        at: PathBuf,
    },
    /// Gave the memory controller to the groups below, by this `cgroup.subtree_control`.
    Delegated {
        file: PathBuf,
    },
    Group {
        path: PathBuf,
    },
    SwapFile {
        path: PathBuf,
    },
    SwapDevice {
        path: PathBuf,
    },
    Zram {
        number: u32,
    },
    PageCluster {
        was: String,
    },
}

/// The steps that one keeper has taken.
#[derive(Debug, Serialize, Deserialize)]
pub struct KeeperNote {
    pid: u32,
    /// The keeper's start time. It distinguishes the keeper from a later process with the same number.
    started: u64,
    steps: Vec<Step>,
}

impl KeeperNote {
    /// Makes an empty note of this process.
    pub fn new() -> Result<Self, Failure> {
        let folder = Path::new(FOLDER);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|error| failed("note what is changed on this machine in", folder, error))?;
        let pid = std::process::id();
        Ok(Self { pid, started: start_time(pid).unwrap_or(0), steps: Vec::new() })
    }

    /// Notes a step that the keeper is about to take.
    pub fn add(&mut self, step: Step) -> Result<(), Failure> {
        self.steps.push(step);
        self.write()
    }

    /// Returns the last noted step.
    pub fn last(&self) -> Option<&Step> {
        self.steps.last()
    }

    /// Removes the last step, which has been undone.
    pub fn forget_last(&mut self) -> Result<(), Failure> {
        self.steps.pop();
        self.write()
    }

    /// Undoes all steps, the last one first. A step that could not be undone stays noted.
    pub fn undo(mut self, undo: impl Fn(&Step) -> Result<(), Failure>) -> Vec<String> {
        let mut complaints = Vec::new();
        let mut kept: Vec<Step> = Vec::new();
        for step in self.steps.drain(..).rev() {
            if let Err(failure) = undo(&step) {
                complaints.push(failure.to_string());
                kept.insert(0, step);
            }
        }
        self.steps = kept;
        let written = match self.steps.is_empty() {
            true => ignore_missing(fs::remove_file(path_of(self.pid))).map_err(|error| error.to_string()),
            false => self.write().map_err(|failure| failure.to_string()),
        };
        complaints.extend(written.err());
        complaints
    }

    fn write(&self) -> Result<(), Failure> {
        let path = path_of(self.pid);
        let fresh = path.with_extension("fresh");
        let write = || -> io::Result<()> {
            let mut file = File::create(&fresh)?;
            file.write_all(&serde_json::to_vec(self)?)?;
            // The rename makes sure that a reader finds either the old note or the new one.
            fs::rename(&fresh, &path)
        };
        write().map_err(|error| failed("note what is changed on this machine in", &path, error))
    }

    /// Returns the keeper's process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    fn keeper_is_gone(&self) -> bool {
        start_time(self.pid) != Some(self.started)
    }
}

/// Returns the notes of killed keepers.
pub fn notes_of_the_dead() -> Vec<KeeperNote> {
    let entries = fs::read_dir(FOLDER).into_iter().flatten().flatten().map(|entry| entry.path());
    let notes = entries.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    let notes = notes.filter_map(|path| serde_json::from_slice::<KeeperNote>(&fs::read(path).ok()?).ok());
    notes.filter(KeeperNote::keeper_is_gone).collect()
}

fn path_of(pid: u32) -> PathBuf {
    Path::new(FOLDER).join(format!("{pid}.json"))
}

/// Returns the start time of a process, in the kernel's ticks, or `None` if it does not exist or is a zombie.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name in brackets, state is the first field and starttime the 20th.
    let mut fields = stat.rsplit(')').next()?.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

pub fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

pub fn failed(attempt: &str, path: &Path, error: io::Error) -> Failure {
    Failure::system(format!("cannot {attempt} {}", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_number_and_its_start() {
        let pid = std::process::id();
        let started = start_time(pid).unwrap();
        assert!(!KeeperNote { pid, started, steps: Vec::new() }.keeper_is_gone());
        assert!(KeeperNote { pid, started: started + 1, steps: Vec::new() }.keeper_is_gone());
        assert_eq!(start_time(u32::MAX), None);
    }
}
