//! The guardian: a small process that ends the tree if the runner dies.
//!
//! When the last descriptor of a userfaultfd is closed, pages that are missing read as zeros. So the guardian
//! keeps each descriptor open too. It learns of the runner's end by the end of their socket. Programs whose
//! pages only the runner had are killed then, before they can read a wrong byte, and a sentence says so.
//!
//! The runner keeps a list of what it has entrusted. Where the guardian ends before the runner, the monitor starts another, which gets
//! everything on the list, and then is asked to answer. Where several in a row end without an answer, the next one would do no better,
//! and the tree is stopped. A fork's child is entrusted by the thread that reads its event, long before anybody knows which process
//! it is.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, parent_id};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use octavo_platform::userfaultfd::{Features, Userfaultfd};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recv, recvmsg, send, sendmsg,
    shutdown, socketpair,
};
use rustix::process::Signal;
use rustix::stdio::dup2_stderr;

use crate::proc;
use crate::signals::kill;

/// The first argument of a process that is to be a guardian.
pub const SUBCOMMAND: &str = "__guardian";

/// A process is managed from now on. Its descriptor comes along.
const MANAGED: u32 = 1;
/// A process is managed no longer.
const ENDED: u32 = 2;
/// The runner ends as it should.
const DONE: u32 = 3;
/// A file comes along that is to be closed last.
const KEEP: u32 = 4;
/// A process stands still until it is taken over.
const STOPPED: u32 = 5;
/// All that stood still go on.
const CONTINUED: u32 = 6;
/// A fork's child has been found among the processes, or is to be looked for again.
const FOUND: u32 = 7;
/// The guardian has everything, and is to say so.
const ANSWER: u32 = 8;

/// What a guardian answers: it has everything up to there, or there are no descriptors for it.
const HAS_ALL: u8 = 1;
const LACKS_DESCRIPTORS: u8 = 2;

/// So many guardians in a row may end before they have answered.
const MOST_SILENT: u32 = 3;

/// How long a guardian may take to hear of something, once its socket is full.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the guardian looks all the time for processes that nobody has told it the numbers of, and how often afterwards.
const SEARCH: Duration = Duration::from_secs(10);
const SEARCH_LATER: Duration = Duration::from_secs(1);

/// What a message says: three numbers, when the process has started, and where its stack begins.
#[derive(Clone, Copy, Debug, Default)]
struct Message {
    what: u32,
    /// Names what has been entrusted.
    key: u32,
    /// 0 where it is not known.
    pid: u32,
    start: u64,
    stack: u64,
}

impl Message {
    const BYTES: usize = 28;

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        for (index, word) in [self.what, self.key, self.pid].into_iter().enumerate() {
            bytes[4 * index..4 * index + 4].copy_from_slice(&word.to_ne_bytes());
        }
        bytes[12..20].copy_from_slice(&self.start.to_ne_bytes());
        bytes[20..].copy_from_slice(&self.stack.to_ne_bytes());
        bytes
    }

    fn of_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Self { what: word(0), key: word(4), pid: word(8), start: long(12), stack: long(20) }
    }
}

/// The runner's side. It knows all that the guardian has, so that another one can take its place. Clones are the same guardian.
#[derive(Clone, Debug)]
pub(crate) struct Guardian(Arc<Mutex<Ward>>);

#[derive(Debug)]
struct Ward {
    socket: OwnedFd,
    pid: u32,
    /// How many before this one have ended in a row without an answer.
    silent: u32,
    next_key: u32,
    entrusted: BTreeMap<u32, Process>,
    kept: Vec<OwnedFd>,
    stopped: Vec<u32>,
}

/// A process whose memory the runner pages.
#[derive(Debug)]
struct Process {
    /// 0: a fork's child that has not been found yet.
    pid: u32,
    /// When it has started. Its number may be another's by now, which has started later.
    start: u64,
    stack: u64,
    events: Userfaultfd,
}

impl Process {
    fn new(pid: u32, start: u64, stack: u64, events: OwnedFd) -> Self {
        // The guardian only asks whether the memory is there still.
        Self { pid, start, stack, events: Userfaultfd::of_fork(events, Features::default()) }
    }

    /// Returns whether the number is still this process's.
    fn has_its_number(&self) -> bool {
        start_of(self.pid) == Some(self.start)
    }
}

/// Returns when a process has started. `None`: it has ended, or (0) has not been found.
fn start_of(pid: u32) -> Option<u64> {
    (pid != 0).then(|| proc::stat(pid)).flatten().map(|stat| stat.start)
}

/// A process in the guardian's care, until this is dropped.
#[derive(Debug)]
pub(crate) struct Entrusted {
    guardian: Guardian,
    key: u32,
}

impl Guardian {
    /// Starts a guardian, which is this program again.
    ///
    /// # Errors
    /// The kernel's, where it cannot be started.
    pub(crate) fn start() -> io::Result<Self> {
        let (socket, pid) = spawn()?;
        let ward = Ward::new(socket, pid);
        ward.send(Message { what: ANSWER, ..Message::default() }, None)?;
        Ok(Self(Arc::new(Mutex::new(ward))))
    }

    /// Puts another process in the place of a guardian that has ended, and entrusts everything to it again.
    ///
    /// # Errors
    /// The kernel's, where it cannot be started; or several in a row have ended without a sign of life; or the last one has ended for
    /// want of descriptors, as another would.
    pub(crate) fn start_again(&self) -> io::Result<()> {
        let mut ward = self.lock();
        ward.silent = match ward.last_answer() {
            Some(LACKS_DESCRIPTORS) => {
                return Err(io::Error::other("it may not have enough descriptors (see `ulimit -n`)"));
            }
            Some(_) => 0,
            None => ward.silent + 1,
        };
        if ward.silent == MOST_SILENT {
            return Err(io::Error::other(format!("{MOST_SILENT} in a row have ended as soon as they began")));
        }
        (ward.socket, ward.pid) = spawn()?;
        // It may have ended already. Then there will be a third one.
        for (key, process) in &ward.entrusted {
            let Process { pid, start, stack, ref events } = *process;
            let message = Message { what: MANAGED, key: *key, pid, start, stack };
            ward.send(message, Some(events.as_fd()))?;
        }
        for file in &ward.kept {
            ward.send(Message { what: KEEP, ..Message::default() }, Some(file.as_fd()))?;
        }
        for pid in &ward.stopped {
            ward.send(Message { what: STOPPED, pid: *pid, ..Message::default() }, None)?;
        }
        ward.send(Message { what: ANSWER, ..Message::default() }, None)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.lock().pid
    }

    /// Entrusts a process to the guardian. A fork's child need not be found among the processes yet.
    ///
    /// # Errors
    /// The kernel's, where there are too many descriptors.
    pub(crate) fn entrust(
        &self,
        pid: Option<u32>,
        stack: u64,
        events: BorrowedFd<'_>,
    ) -> io::Result<Entrusted> {
        let pid = pid.unwrap_or(0);
        let start = start_of(pid).unwrap_or(0);
        let process = Process::new(pid, start, stack, events.try_clone_to_owned()?);
        let mut ward = self.lock();
        let key = ward.next_key;
        ward.next_key += 1;
        ward.send(Message { what: MANAGED, key, pid, start, stack }, Some(events))?;
        ward.entrusted.insert(key, process);
        Ok(Entrusted { guardian: self.clone(), key })
    }

    /// A process stands still from now on. If the runner dies, the guardian lets it go on.
    pub(crate) fn stopped(&self, pid: u32) {
        let mut ward = self.lock();
        ward.stopped.push(pid);
        let _ = ward.send(Message { what: STOPPED, pid, ..Message::default() }, None);
    }

    /// All processes that stood still go on.
    pub(crate) fn continued(&self) {
        let mut ward = self.lock();
        ward.stopped.clear();
        let _ = ward.send(Message { what: CONTINUED, ..Message::default() }, None);
    }

    /// Has the guardian close a file last. It may take the kernel a while to give the blocks of an unnamed file back, and the runner
    /// does not wait for that.
    pub(crate) fn keep(&self, file: OwnedFd) {
        let mut ward = self.lock();
        // Otherwise the runner waits.
        let _ = ward.send(Message { what: KEEP, ..Message::default() }, Some(file.as_fd()));
        ward.kept.push(file);
    }

    /// Has the guardian take the runner for dead, and hear of nothing more. It kills whoever is left of the processes in its care, and has
    /// their descriptors until they are gone.
    pub(crate) fn leave_survivors(&self) {
        let _ = shutdown(&self.lock().socket, Shutdown::Both);
    }

    /// Everything has ended as it should. A guardian that is left otherwise ends the tree.
    pub(crate) fn finish(self) {
        let mut ward = self.lock();
        // The guardian is to be the last that has these files.
        ward.kept.clear();
        let _ = ward.send(Message { what: DONE, ..Message::default() }, None);
        drop(ward);
        // The socket ends with the runner, after all else.
        std::mem::forget(self);
    }

    fn lock(&self) -> MutexGuard<'_, Ward> {
        self.0.lock().expect("nobody panics here")
    }
}

#[cfg(test)]
impl Guardian {
    /// A guardian that does not hear anything.
    pub(crate) fn deaf() -> Self {
        let (socket, _) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("the test may have a socket");
        Self(Arc::new(Mutex::new(Ward::new(socket, 0))))
    }

    /// From now on the kernel refuses to tell it anything.
    pub(crate) fn refuse(&self) {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None);
        self.lock().socket = socket.expect("the test may have a socket");
    }

    /// Returns the numbers of the processes in its care, 0 for each that has not been found.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.lock().entrusted.values().map(|process| process.pid).collect()
    }
}

impl Entrusted {
    /// The process has been found. With 0, it was another one, and is to be looked for again; or it has ended.
    pub(crate) fn found(&self, pid: u32) {
        let start = start_of(pid).unwrap_or(0);
        let mut ward = self.guardian.lock();
        if let Some(process) = ward.entrusted.get_mut(&self.key) {
            (process.pid, process.start) = (pid, start);
        }
        let _ = ward.send(Message { what: FOUND, key: self.key, pid, start, stack: 0 }, None);
    }
}

impl Drop for Entrusted {
    fn drop(&mut self) {
        let mut ward = self.guardian.lock();
        ward.entrusted.remove(&self.key);
        let _ = ward.send(Message { what: ENDED, key: self.key, ..Message::default() }, None);
    }
}

impl Ward {
    fn new(socket: OwnedFd, pid: u32) -> Self {
        let (entrusted, kept, stopped) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { socket, pid, silent: 0, next_key: 0, entrusted, kept, stopped }
    }

    /// Returns what a guardian that has ended has answered last.
    fn last_answer(&self) -> Option<u8> {
        let mut answer = [0];
        let mut next = || {
            let received = recv(&self.socket, &mut answer, RecvFlags::DONTWAIT);
            received.map(|(_, bytes)| (bytes > 0).then_some(answer[0]))
        };
        // What it has left unread is an error first.
        let mut last = next().or_else(|_| next()).ok()?;
        while let Ok(Some(answer)) = next() {
            last = Some(answer);
        }
        last
    }

    /// Tells the guardian. One that has ended need not be told: the monitor notices its end, and the next one hears of everything. One
    /// that does not listen is ended: somebody has stopped it, and it would guard nobody.
    fn send(&self, message: Message, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if let Some(descriptor) = &descriptor {
            control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(descriptor)));
        }
        let bytes = message.to_bytes();
        loop {
            return match sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => continue,
                Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
                Err(Errno::AGAIN) => {
                    kill(self.pid, Signal::KILL);
                    Ok(())
                }
                Err(error) => Err(error.into()),
            };
        }
    }
}

/// Starts a process that is to be a guardian, and returns the socket to it.
fn spawn() -> io::Result<(OwnedFd, u32)> {
    let kind = SocketType::SEQPACKET;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&ours, Timeout::Send, Some(PATIENCE))?;
    let mut command = Command::new("/proc/self/exe");
    command.arg(SUBCOMMAND).stdin(Stdio::from(theirs)).stdout(Stdio::null());
    // A group of its own: what a terminal sends to the program's group is not for the guardian.
    command.process_group(0);
    Ok((ours, command.spawn()?.id()))
}

/// The life of a guardian. Its socket is its standard input.
pub fn guardian_main() {
    let input = io::stdin();
    let (mut watched, mut kept, mut stopped) = (BTreeMap::new(), Vec::new(), Vec::new());
    // Whoever kills looks at processes, and may have no descriptor left for that.
    let spare = input.as_fd().try_clone_to_owned();
    loop {
        let mut bytes = [0; Message::BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut buffers = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg(input.as_fd(), &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC);
        let received = match received {
            // A runner that ends with an answer unread is an error first, and all that it has said comes after that.
            Err(Errno::INTR | Errno::CONNRESET) => continue,
            received => received.map_or(0, |message| message.bytes),
        };
        let descriptor = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
            _ => None,
        });
        let Message { what, key, pid, start, stack } = Message::of_bytes(&bytes);
        match (received, what) {
            // The runner entrusts no more to whoever could not have this, and stops the tree.
            (Message::BYTES, MANAGED | KEEP) if descriptor.is_none() => {
                let _ = send(input.as_fd(), &[LACKS_DESCRIPTORS], SendFlags::NOSIGNAL);
                return;
            }
            (Message::BYTES, DONE) => return close_last(input.as_fd(), kept),
            (Message::BYTES, KEEP) => kept.extend(descriptor),
            (Message::BYTES, STOPPED) => stopped.push(pid),
            (Message::BYTES, CONTINUED) => stopped.clear(),
            (Message::BYTES, MANAGED) => {
                watched.extend(descriptor.map(|events| (key, Process::new(pid, start, stack, events))));
            }
            (Message::BYTES, FOUND) => {
                let found = |process: &mut Process| (process.pid, process.start) = (pid, start);
                watched.get_mut(&key).into_iter().for_each(found);
            }
            (Message::BYTES, ENDED) => drop(watched.remove(&key)),
            // The runner reads it once this process has ended.
            (Message::BYTES, ANSWER) => {
                let _ = send(input.as_fd(), &[HAS_ALL], SendFlags::NOSIGNAL);
            }
            // The runner is gone.
            _ => break,
        }
    }
    drop(spare);
    let watched: Vec<Process> = watched.into_values().collect();
    kill_with_children(known(&watched));
    // The search may take for ever, and nobody waits for it.
    stopped.into_iter().for_each(|pid| kill(pid, Signal::CONT));
    let count = watched.len();
    let tell = move || {
        if count > 0 {
            // Nobody may read it.
            let _ = writeln!(
                io::stderr(),
                "octavo: the runner has died, and {count} of its processes were killed: pages of theirs were in its hands only"
            );
        }
    };
    // Whoever reads it may be slow. The search does not wait for that.
    let telling = std::thread::Builder::new().spawn(tell);
    end_survivors(&watched);
    // Descriptors are closed only now.
    drop(watched);
    match telling {
        Ok(telling) => drop(telling.join()),
        Err(_) => tell(),
    }
}

/// Returns the numbers of the processes that have been found, and are there still.
fn known(watched: &[Process]) -> Vec<u32> {
    watched.iter().filter(|process| process.has_its_number()).map(|process| process.pid).collect()
}

/// Kills processes whose memory the runner had until none is left.
///
/// A fork's child may not have been found among the processes yet, and its parent may have ended or run another program. Then it is,
/// or soon becomes, a process beneath the one that takes orphans, with the stack of its family. Movers are found as well, which would
/// live for another second. A process that runs another program has memory of its own, which nobody needs to find.
fn end_survivors(watched: &[Process]) {
    let began = Instant::now();
    // While memory is there, its descriptors stay open: whoever has it waits, and reads no zeros.
    while watched.iter().any(|process| process.events.is_alive()) {
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

/// Returns the processes that descend from one, but for those of other runners. These may have the same stacks where the kernel places
/// nothing at random.
fn beneath(reaper: u32) -> Vec<u32> {
    let (mut found, mut at) = (vec![reaper], 0);
    while at < found.len() {
        let known = found.len();
        // The search goes on.
        let _ = proc::children(found[at], &mut found);
        let is_other = |pid: &u32| *pid != std::process::id() && is_guardian(*pid);
        // Whoever takes orphans may be a runner, too.
        if at > 0 && found[known..].iter().any(is_other) {
            found.truncate(known);
        }
        at += 1;
    }
    found.split_off(1)
}

fn is_guardian(pid: u32) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).nth(1) == Some(SUBCOMMAND.as_bytes())
}

fn kill_with_children(mut doomed: Vec<u32>) {
    let mut at = 0;
    while at < doomed.len() {
        let _ = proc::children(doomed[at], &mut doomed);
        at += 1;
    }
    for pid in doomed {
        kill(pid, Signal::KILL);
        // It may stand still until it is taken over.
        kill(pid, Signal::CONT);
    }
}

/// Closes files after the runner has.
fn close_last(socket: BorrowedFd<'_>, kept: Vec<OwnedFd>) {
    // Whoever reads what the runner says does not wait for this process.
    let _ = File::open("/dev/null").map(|nothing| dup2_stderr(&nothing));
    // Ends with the runner.
    let _ = recv(socket, &mut [0; 8], RecvFlags::empty());
    drop(kept);
}

#[cfg(test)]
mod tests;
