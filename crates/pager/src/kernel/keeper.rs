//! The keeper: a process that makes a run's control group and swap file, and takes them down.
//!
//! ```text
//!   runner ── the pipe stays open ──► keeper    makes all, says the group
//!   runner ── the pipe closes ──────► keeper    kills what is left in the group, takes all down
//! ```
//!
//! The kernel closes the pipe however the runner ends. A keeper that was killed itself leaves group and file
//! behind. The next keeper with the same folder finds them by their names, and takes them down first.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use octavo_platform::kernel_swap::{format, swap_off, swap_on};
use octavo_platform::refusal;
use rustix::fs::{FallocateFlags, IFlags, fallocate, ioctl_getflags, ioctl_setflags};
use rustix::process::Signal;

use crate::kernel::KernelSwap;
use crate::kernel::group::Group;
use crate::messages;
use crate::system::proc;
use crate::system::signals::kill;

/// The first argument of a process that becomes a keeper.
pub const SUBCOMMAND: &str = "__swap-keeper";
/// The beginning of the names of groups and files, before the number of the keeper.
const NAME: &str = "octavo-swap-";
/// The tries to switch swap off or to remove a group, this far apart.
const TRIES: u32 = 300;
const BETWEEN: Duration = Duration::from_millis(20);

/// The runner's side.
#[derive(Debug)]
pub(crate) struct Keeper {
    child: Child,
    group: PathBuf,
}

impl Keeper {
    /// Starts a keeper, and waits until all is made.
    ///
    /// # Errors
    /// Returns a sentence that says what cannot be made.
    pub(crate) fn start(swap: &KernelSwap) -> Result<Self, String> {
        let cannot = |error: io::Error| messages::NO_KEEPER.with(&[("why", &refusal::in_words(&error))]);
        let mut child = Command::new("/proc/self/exe")
            .arg(SUBCOMMAND)
            .args([swap.limit_bytes.to_string(), swap.swap_bytes.to_string()])
            .arg(&swap.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // The terminal's signals must not reach it.
            .process_group(0)
            .spawn()
            .map_err(cannot)?;
        let mut line = String::new();
        let answer = child.stdout.take().map(BufReader::new).ok_or(io::ErrorKind::BrokenPipe.into());
        answer.and_then(|mut answer| answer.read_line(&mut line)).map_err(cannot)?;
        match line.trim_end().split_once(' ') {
            Some(("ready", group)) => Ok(Self { child, group: group.into() }),
            Some(("failed", why)) => {
                let _ = child.wait();
                Err(why.into())
            }
            _ => Err(messages::KEEPER_ENDED.with(&[])),
        }
    }

    /// The folder of the group.
    pub(crate) fn group(&self) -> &Path {
        &self.group
    }

    /// Has all taken down.
    ///
    /// # Errors
    /// Returns a sentence if something is left.
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        drop(self.child.stdin.take());
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            // Its own message says what is left.
            _ => Err(messages::SWAP_LEFT.with(&[])),
        }
    }
}

/// What a keeper does. The arguments are the limit, the size of swap, and the folder. Returns whether all is
/// gone at the end.
pub fn keeper_main(mut arguments: impl Iterator<Item = OsString>) -> bool {
    let mut next = || arguments.next().unwrap_or_default();
    let mut number = || next().to_str().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let (limit_bytes, swap_bytes) = (number(), number());
    let folder = PathBuf::from(next());
    let own = match Group::of_this_process() {
        Ok(own) => own,
        Err(why) => return say("failed", &why),
    };
    take_down_leftovers(&folder, &own);
    let name = format!("{NAME}{}", std::process::id());
    let path = folder.join(&name);
    let made = own.make(&name, limit_bytes);
    let is_ready = match &made {
        Ok(group) => match switch_on(&path, swap_bytes) {
            Ok(()) => say("ready", &group.folder().display().to_string()),
            Err(why) => say("failed", &why),
        },
        Err(why) => say("failed", why),
    };
    if is_ready {
        // The pipe ends with the runner.
        let _ = io::stdin().read_to_end(&mut Vec::new());
    }
    let is_empty = made.as_ref().is_ok_and(empty);
    take_down_file(&path) && is_empty && is_ready
}

fn say(word: &str, rest: &str) -> bool {
    let line = rest.replace('\n', " ");
    let written = writeln!(io::stdout(), "{word} {line}").and_then(|()| io::stdout().flush());
    written.is_ok() && word == "ready"
}

/// Makes a swap file with all its blocks, and switches it on.
fn switch_on(path: &Path, bytes: u64) -> Result<(), String> {
    let make = || -> io::Result<File> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        // btrfs swaps only to files that are not copied on write. Other file systems have no such flag.
        if let Ok(flags) = ioctl_getflags(&file) {
            let _ = ioctl_setflags(&file, flags | IFlags::NOCOW);
        }
        fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
        format(&file, bytes)?;
        Ok(file)
    };
    let refused = |what: &str, error: io::Error| {
        messages::NO_SWAP_FILE.with(&[("what", &what), ("path", &path.display()), ("why", &error)])
    };
    make().map_err(|error| refused("make the swap file", error))?;
    swap_on(path).map_err(|error| refused("swap to", error))
}

/// Switches a swap file off, if it is on, and removes it. Returns whether it is gone.
fn take_down_file(path: &Path) -> bool {
    for _ in 0..TRIES {
        match swap_off(path) {
            // Memory is short for a moment, or a signal came.
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::OutOfMemory) => {
                std::thread::sleep(BETWEEN);
            }
            _ => break,
        }
    }
    match fs::remove_file(path) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Kills all processes of a group, and removes the group. Returns whether it is gone.
fn empty(group: &Group) -> bool {
    for _ in 0..TRIES {
        group.processes().into_iter().for_each(|pid| kill(pid, Signal::KILL));
        if group.remove() {
            return true;
        }
        std::thread::sleep(BETWEEN);
    }
    false
}

/// Takes down what keepers have left that were killed.
fn take_down_leftovers(folder: &Path, own: &Group) {
    let of_the_dead = |at: &Path| {
        let entries = fs::read_dir(at).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        let dead = paths.filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            let pid = name.and_then(|name| name.strip_prefix(NAME)?.parse::<u32>().ok());
            pid.is_some_and(|pid| proc::stat(pid).is_none_or(|stat| stat.state == b'Z'))
        });
        dead.collect::<Vec<_>>()
    };
    for group in of_the_dead(own.folder()) {
        empty(&Group::at(group));
    }
    for path in of_the_dead(folder) {
        take_down_file(&path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_dead_keepers_go_and_others_stay() {
        let Ok(own) = Group::of_this_process() else { return };
        let folder = tempfile::tempdir().unwrap();
        let living = format!("{NAME}{}", std::process::id());
        for name in [&format!("{NAME}999999999"), &living, &format!("{NAME}x"), &"other".into()] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        take_down_leftovers(folder.path(), &own);
        let mut left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
        left.sort();
        let mut expected = [living, format!("{NAME}x"), "other".into()].map(OsString::from);
        expected.sort();
        assert_eq!(left, expected);
    }
}
