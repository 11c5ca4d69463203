//! The guardians: two small processes that end the tree if the runner dies.
//!
//! When the last descriptor of a userfaultfd is closed, missing pages read as zeros. So each guardian shares
//! the runner's descriptor table ([`Heir`]): a guardian has a fork's descriptor from the moment when the
//! kernel creates the descriptor. The runner keeps a [list](list) of the processes entrusted to the
//! guardians, and the guardians wait. When the runner dies, the guardians act before any descriptor is
//! closed: they kill the programs whose pages only the runner had, let processes that stood still continue,
//! and print a message.
//!
//! ```text
//!   first:  waits beside the runner ─► the runner is dead ─► kills, sends SIGCONT, searches for survivors
//!           ─► empties the list, ends
//!   second: waits beside the runner ─► the runner is dead ─► waits for the first's end
//!           ─► the same, if the list is not empty
//! ```
//!
//! There are two guardians because one may die together with the runner. If a guardian ends while the runner
//! lives, the monitor starts another. The thread that reads a fork's event entrusts the child at once. Only
//! much later, the runner learns which process the child is.

mod list;

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::parent_id;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use octavo_platform::heir::Heir;
use octavo_platform::userfaultfd::{KIND, Userfaultfd};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, getpid, pidfd_open, waitpid};

use crate::messages;
use crate::system::proc;
use crate::system::signals::kill;
use list::{EntrustedList, EntrustedProcess, Trust};

/// The first argument of a process that becomes a guardian.
pub const SUBCOMMAND: &str = "__guardian";
/// The name that `ps` shows.
const NAME: &CStr = c"octavo-guard";
/// The arguments that make this program a guardian. They follow the program's name.
#[cfg(not(test))]
const ARGUMENTS: &[&str] = &[SUBCOMMAND];
#[cfg(test)]
const ARGUMENTS: &[&str] = &["--exact", "guardian::tests::guardian", "--ignored", "--nocapture"];

/// How many guardians there are.
const COUNT: usize = 2;
/// How long a guardian searches every few milliseconds for processes whose numbers it does not know, and the
/// time between two searches after that.
const SEARCH: Duration = Duration::from_secs(10);
const SEARCH_LATER: Duration = Duration::from_secs(1);

/// The runner's side. Clones refer to the same guardians.
#[derive(Clone, Debug)]
pub(crate) struct Guardian(Arc<Mutex<Ward>>);

#[derive(Debug)]
struct Ward {
    list: EntrustedList,
    /// A descriptor of this process, which is the runner.
    own: OwnedFd,
    guards: Vec<Guard>,
}

#[derive(Debug)]
struct Guard {
    pid: u32,
    process: Arc<OwnedFd>,
    /// A descriptor of the guardian that acts before this one. This guardian waits on the descriptor.
    _first: Option<Arc<OwnedFd>>,
}

/// Returns when a process started. Returns `None` if it has ended, or if it has not been found (`pid` is 0).
fn start_of(pid: u32) -> Option<u64> {
    (pid != 0).then(|| proc::stat(pid)).flatten().map(|stat| stat.start)
}

/// A process in the guardians' care, until this is dropped.
#[derive(Debug)]
pub(crate) struct Entrusted {
    guardian: Guardian,
    place: usize,
}

impl Guardian {
    /// Makes the list, without any guardian yet.
    ///
    /// # Errors
    /// Returns the kernel's error if memory or descriptors run out.
    pub(crate) fn new() -> io::Result<Self> {
        let (list, own) = (EntrustedList::new()?, pidfd_open(getpid(), PidfdFlags::empty())?);
        Ok(Self(Arc::new(Mutex::new(Ward { list, own, guards: Vec::new() }))))
    }

    /// Starts guardians until there are two. Returns the process numbers of the new guardians.
    ///
    /// # Errors
    /// Returns the kernel's error if a guardian cannot be started.
    pub(crate) fn complete(&self) -> io::Result<Vec<u32>> {
        let (mut ward, mut started) = (self.lock(), Vec::new());
        while ward.guards.len() < COUNT {
            let guard = ward.start_guard()?;
            started.push(guard.pid);
            ward.guards.push(guard);
        }
        Ok(started)
    }

    /// Records that a child of the runner has ended. Returns whether it was a guardian.
    pub(crate) fn note_end(&self, pid: u32) -> bool {
        let guards = &mut self.lock().guards;
        let before = guards.len();
        guards.retain(|guard| guard.pid != pid);
        guards.len() < before
    }

    /// Returns the numbers of the guardian processes.
    pub(crate) fn guards(&self) -> Vec<u32> {
        self.lock().guards.iter().map(|guard| guard.pid).collect()
    }

    /// Entrusts a process to the guardians. `pid` is `None` for a fork's child that has not been found among
    /// the processes yet.
    ///
    /// # Errors
    /// Returns the kernel's error if memory runs out.
    pub(crate) fn entrust(&self, pid: Option<u32>, stack: u64) -> io::Result<Entrusted> {
        let pid = pid.unwrap_or(0);
        let start = start_of(pid).unwrap_or(0);
        let place = self.lock().list.put(EntrustedProcess { what: Trust::Managed, pid, start, stack })?;
        Ok(Entrusted { guardian: self.clone(), place })
    }

    /// Records that a process stands still from now on. If the runner dies, the guardians let it continue.
    pub(crate) fn stopped(&self, pid: u32) {
        // If there is no memory for the entry, no guardian lets the process continue.
        let _ = self.lock().list.put(EntrustedProcess {
            what: Trust::Stopped,
            pid,
            ..EntrustedProcess::default()
        });
    }

    /// Records that a process that stood still continues.
    pub(crate) fn continued(&self, pid: u32) {
        self.lock().list.remove(|entry| entry.what == Trust::Stopped && entry.pid == pid);
    }

    /// Leaves the entrusted processes that still run to the guardians. When the runner ends, the guardians
    /// treat it as dead, kill these processes, and keep their descriptors until they have ended.
    pub(crate) fn leave_survivors(&self) {
        // The guardians wait on descriptors that must stay open until the runner ends.
        std::mem::forget(std::mem::take(&mut self.lock().guards));
        std::mem::forget(self.clone());
    }

    /// Ends the guardians after a normal end of the run. A guardian that is left would kill the tree.
    pub(crate) fn finish(self) {
        self.lock().end_guards();
    }

    fn lock(&self) -> MutexGuard<'_, Ward> {
        self.0.lock().expect("nobody panics here")
    }
}

#[cfg(test)]
impl Guardian {
    /// Makes every later write to the list fail for lack of space.
    pub(crate) fn refuse(&self) {
        self.lock().list.file = File::options().write(true).open("/dev/full").unwrap();
    }

    /// Returns the numbers of the entrusted processes, with 0 for each that has not been found.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.lock().list.entries().map(|entry| entry.pid).collect()
    }
}

impl Entrusted {
    /// Records that the process has been found as `pid`. `pid` is 0 if the process has ended, or if the wrong
    /// one was found and the search begins again.
    pub(crate) fn found(&self, pid: u32) {
        let start = start_of(pid).unwrap_or(0);
        self.guardian.lock().list.change(self.place, |entry| (entry.pid, entry.start) = (pid, start));
    }
}

impl Drop for Entrusted {
    fn drop(&mut self) {
        self.guardian.lock().list.change(self.place, |entry| *entry = EntrustedProcess::default());
    }
}

impl Ward {
    fn end_guards(&mut self) {
        for guard in self.guards.drain(..) {
            kill(guard.pid, Signal::KILL);
            // Another thread may have reaped the guardian already.
            let _ = Pid::from_raw(guard.pid as i32).map(|pid| waitpid(Some(pid), WaitOptions::empty()));
        }
    }

    fn start_guard(&self) -> io::Result<Guard> {
        let first = self.guards.last().map(|guard| Arc::clone(&guard.process));
        let arguments = ARGUMENTS.iter().map(|argument| CString::new(*argument));
        let arguments = arguments.collect::<Result<Vec<_>, _>>()?;
        let arguments: Vec<&CStr> =
            [NAME].into_iter().chain(arguments.iter().map(CString::as_c_str)).collect();
        let heir = Heir {
            name: NAME,
            of: self.own.as_fd(),
            after: first.as_ref().map(|first| first.as_fd()),
            program: c"/proc/self/exe",
            arguments: &arguments,
            input: self.list.file.as_fd(),
            keeps: KIND,
        };
        let pid = heir.start()?;
        let number = Pid::from_raw(pid as i32).expect("a process has a number");
        let process = pidfd_open(number, PidfdFlags::empty()).inspect_err(|_| kill(pid, Signal::KILL))?;
        Ok(Guard { pid, process: Arc::new(process), _first: first })
    }
}

impl Drop for Ward {
    /// Ends the guardians: no process is entrusted any more, and the descriptors on which the guardians wait
    /// are closed now.
    fn drop(&mut self) {
        self.end_guards();
    }
}

/// The work of a guardian after the death of the runner. The list is the guardian's standard input.
pub fn guardian_main() {
    let _ = rustix::thread::set_name(NAME);
    let Ok(list) = io::stdin().as_fd().try_clone_to_owned().map(File::from) else { return };
    let entries = list::read(&list).unwrap_or_default();
    let (watched, stopped): (Vec<_>, Vec<_>) =
        entries.into_iter().partition(|entry| entry.what == Trust::Managed);
    kill_with_children(known(&watched));
    // Let the stopped processes continue before the search, which may take forever.
    stopped.into_iter().for_each(|process| kill(process.pid, Signal::CONT));
    tell_beside(watched.len(), || {
        end_survivors(&watched);
        // Nothing is left to do for the other guardian.
        let _ = list.set_len(0);
    });
}

/// Tells how many processes were killed, and does `work` meanwhile, since the reader of standard error may be
/// slow.
fn tell_beside(killed: usize, work: impl FnOnce()) {
    let telling = std::thread::Builder::new().spawn(move || tell(killed));
    work();
    match telling {
        Ok(telling) => drop(telling.join()),
        Err(_) => tell(killed),
    }
}

fn tell(killed: usize) {
    if killed > 0 {
        // Standard error may be closed.
        let _ = writeln!(io::stderr(), "octavo: {}", messages::RUNNER_DIED.with(&[("killed", &killed)]));
    }
}

/// Returns the numbers of the processes that have been found and still exist.
fn known(watched: &[EntrustedProcess]) -> Vec<u32> {
    let has_its_number = |process: &&EntrustedProcess| start_of(process.pid) == Some(process.start);
    watched.iter().filter(has_its_number).map(|process| process.pid).collect()
}

/// Kills processes whose memory the runner had, until none is left.
///
/// A fork's child may not have been found among the processes yet, and its parent may have ended or executed
/// another program. The child then is, or soon becomes, a descendant of the process that adopts orphans, and
/// its stack begins at the address of its family. The search also finds movers, which would live for another
/// second. A process that has executed another program has fresh memory, and need not be found.
fn end_survivors(watched: &[EntrustedProcess]) {
    let began = Instant::now();
    // While watched memory exists, this guardian keeps its descriptors open. So a process that uses the
    // memory waits, and reads no zeros.
    while Userfaultfd::is_any_alive() {
        let mut doomed = beneath(parent_id());
        doomed.retain(|pid| {
            let stack = proc::stat(*pid).map(|stat| stat.stack);
            watched.iter().any(|process| Some(process.stack) == stack)
                && proc::is_watched(*pid).unwrap_or(false)
        });
        kill_with_children(doomed);
        let is_late = began.elapsed() > SEARCH;
        std::thread::sleep(if is_late { SEARCH_LATER } else { Duration::from_millis(2) });
    }
}

/// Returns the descendants of a process, except those of other runners, which may have the same stacks if
/// address randomization is off.
fn beneath(reaper: u32) -> Vec<u32> {
    let (mut found, mut at) = (vec![reaper], 0);
    while at < found.len() {
        let known = found.len();
        // After an error, the search continues with the others.
        let _ = proc::children(found[at], &mut found);
        let is_other = |pid: &u32| *pid != std::process::id() && is_guardian(*pid);
        // The process that adopts orphans may be a runner, too.
        if at > 0 && found[known..].iter().any(is_other) {
            found.truncate(known);
        }
        at += 1;
    }
    found.split_off(1)
}

fn is_guardian(pid: u32) -> bool {
    proc::name(pid).as_bytes() == NAME.to_bytes()
}

fn kill_with_children(mut doomed: Vec<u32>) {
    let mut at = 0;
    while at < doomed.len() {
        let _ = proc::children(doomed[at], &mut doomed);
        at += 1;
    }
    for pid in doomed {
        kill(pid, Signal::KILL);
        // The process may be stopped, to wait until it is taken over. A stopped process ends only after it
        // continues.
        kill(pid, Signal::CONT);
    }
}

#[cfg(test)]
mod tests;
