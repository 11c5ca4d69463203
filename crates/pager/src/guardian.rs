//! The guardian: a small process that ends the tree if the runner dies.
//!
//! When the last descriptor of a userfaultfd is closed, pages that are missing read as zeros. So the guardian
//! keeps each descriptor open too. It learns of the runner's end by the end of their socket. Programs whose
//! pages only the runner had are killed then, before they can read a wrong byte, and a sentence says so.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, sendmsg, socketpair,
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

/// The runner's side.
#[derive(Debug)]
pub(crate) struct Guardian {
    socket: OwnedFd,
    child: Child,
}

impl Guardian {
    /// Starts a guardian, which is this program again.
    ///
    /// # Errors
    /// The kernel's, where it cannot be started.
    pub(crate) fn start() -> io::Result<Self> {
        let kind = SocketType::SEQPACKET;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg(SUBCOMMAND).stdin(Stdio::from(theirs)).stdout(Stdio::null());
        // A group of its own: what a terminal sends to the program's group is not for the guardian.
        command.process_group(0);
        Ok(Self { socket: ours, child: command.spawn()? })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Entrusts a process to the guardian.
    ///
    /// # Errors
    /// The kernel's, where the guardian has ended.
    pub(crate) fn watch(&self, pid: u32, events: BorrowedFd<'_>) -> io::Result<()> {
        self.send(MANAGED, pid, &[events])
    }

    /// A process has ended.
    pub(crate) fn forget(&self, pid: u32) {
        // A guardian that has ended need not be told.
        let _ = self.send(ENDED, pid, &[]);
    }

    /// A process stands still from now on. If the runner dies, the guardian lets it go on.
    pub(crate) fn stopped(&self, pid: u32) {
        let _ = self.send(STOPPED, pid, &[]);
    }

    /// All processes that stood still go on.
    pub(crate) fn continued(&self) {
        let _ = self.send(CONTINUED, 0, &[]);
    }

    /// Has the guardian close a file last. It may take the kernel a while to give the blocks of an unnamed file back, and the runner
    /// does not wait for that.
    pub(crate) fn keep(&self, file: BorrowedFd<'_>) {
        // Otherwise the runner waits.
        let _ = self.send(KEEP, 0, &[file]);
    }

    fn send(&self, what: u32, pid: u32, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&what.to_ne_bytes());
        bytes[4..].copy_from_slice(&pid.to_ne_bytes());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

impl Guardian {
    /// Everything has ended as it should. A guardian that is dropped otherwise ends the tree.
    pub(crate) fn finish(self) {
        let _ = self.send(DONE, 0, &[]);
        // The socket ends with the runner, after all else.
        std::mem::forget(self.socket);
    }
}

/// The life of a guardian. Its socket is its standard input.
pub fn guardian_main() {
    let input = io::stdin();
    let (mut watched, mut kept): (Vec<(u32, OwnedFd)>, Vec<OwnedFd>) = (Vec::new(), Vec::new());
    let mut stopped = Vec::new();
    loop {
        let mut bytes = [0; 8];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut buffers = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg(input.as_fd(), &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC);
        let received = match received {
            Err(rustix::io::Errno::INTR) => continue,
            received => received.map_or(0, |message| message.bytes),
        };
        let descriptor = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
            _ => None,
        });
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        match (received, word(0)) {
            (8, DONE) => return close_last(input.as_fd(), kept),
            (8, KEEP) => kept.extend(descriptor),
            (8, STOPPED) => stopped.push(word(4)),
            (8, CONTINUED) => stopped.clear(),
            (8, MANAGED) => watched.extend(descriptor.map(|descriptor| (word(4), descriptor))),
            (8, ENDED) => watched.retain(|(pid, _)| *pid != word(4)),
            // The runner is gone.
            _ => break,
        }
    }
    // Children of forks may not have been entrusted yet.
    let mut doomed: Vec<u32> = watched.iter().map(|(pid, _)| *pid).collect();
    let mut at = 0;
    while at < doomed.len() {
        proc::children(doomed[at], &mut doomed);
        at += 1;
    }
    for pid in doomed {
        kill(pid, Signal::KILL);
        // It may stand still until it is taken over.
        kill(pid, Signal::CONT);
    }
    stopped.into_iter().for_each(|pid| kill(pid, Signal::CONT));
    if !watched.is_empty() {
        eprintln!(
            "octavo: the runner has died, and {} of its processes were killed: pages of theirs were in its hands only",
            watched.len()
        );
    }
    // Descriptors are closed only now.
    drop(watched);
}

/// Closes files after the runner has.
fn close_last(socket: BorrowedFd<'_>, kept: Vec<OwnedFd>) {
    // Whoever reads what the runner says does not wait for this process.
    let _ = File::open("/dev/null").map(|nothing| dup2_stderr(&nothing));
    // Ends with the runner.
    let _ = recv(socket, &mut [0; 8], RecvFlags::empty());
    drop(kept);
}
