//! Engines: ways to move the bytes of transfers between one file and the arena.
//!
//! | engine | a transfer | completions |
//! |---|---|---|
//! | `uring` | is queued in the ring of the CPU, and sent with the others at `flush` | are pulled: see `uring.rs` |
//! | `threads` | waits for one of a few threads, which does it by one system call | come from those threads |
//!
//! In both, a transfer of [`Urgency::Now`](super::Urgency::Now) is done on the spot by the calling thread, which was going to
//! sleep anyway: nothing is faster than a thread that the kernel wakes for its own transfer.
//!
//! An engine is a device of all places that can be named: who opened the file knows which of them there are.
//!
//! What a device moves only in part is continued where it stopped, by whoever finds out.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use octavo_platform::ArenaBytes;
use octavo_platform::uring::Payload;

use super::threads::ThreadsEngine;
use super::uring::UringEngine;
use super::{Device, Direction, Transfer};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Shared, thread};
use crate::units::PAGE_BYTES;

/// How files and block devices are read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoEngine {
    /// io_uring where it works, else threads.
    #[default]
    Probe,
    /// io_uring, or an error.
    Uring,
    /// Threads that call `preadv` and `pwritev`.
    Threads,
}

/// An engine that runs, and what to say of it.
pub(crate) struct Started {
    pub(crate) engine: Box<dyn Device>,
    pub(crate) description: String,
}

/// Starts an engine of the chosen kind on `file`.
///
/// # Errors
/// [`ErrorKind::Unsupported`] where io_uring was chosen and does not work, [`ErrorKind::System`] without threads.
pub(crate) fn start(choice: IoEngine, file: &Shared<File>) -> Result<Started> {
    let why_threads = match choice {
        IoEngine::Threads => None,
        IoEngine::Probe | IoEngine::Uring => match UringEngine::start(file) {
            Ok(engine) => {
                let description = engine.describe();
                return Ok(Started { engine: Box::new(engine), description });
            }
            Err(error) if choice == IoEngine::Uring => {
                let message = format!("{error}; choose threads, or let the engine be probed");
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            Err(error) => Some(error),
        },
    };
    let engine =
        ThreadsEngine::start(file).map_err(|error| Error::system("cannot start I/O threads", &error))?;
    let description = match why_threads {
        Some(why) => format!("{why}: {}", engine.describe()),
        None => engine.describe(),
    };
    Ok(Started { engine: Box::new(engine), description })
}

pub(super) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Waits for the end of a thread that was told to stop, unless it is the caller: the last transfer may be what kept its
/// manager, and be completed by one of the engine's own threads.
pub(super) fn join_if_other(thread: thread::JoinHandle<()>) {
    if thread.thread().id() != thread::current().id() {
        // A panic in it has been printed.
        let _ = thread.join();
    }
}

/// How often in a row a transfer may fail to get on for no reason of its own.
const PATIENCE: u8 = 16;

/// A transfer and how far it is.
pub(crate) struct Pending {
    transfer: Transfer,
    done_pages: u32,
    idle_rounds: u8,
}

impl Pending {
    pub(crate) fn new(transfer: Transfer) -> Self {
        Self { transfer, done_pages: 0, idle_rounds: 0 }
    }

    pub(crate) fn direction(&self) -> octavo_platform::Direction {
        match self.transfer.direction() {
            Direction::Read => octavo_platform::Direction::Read,
            Direction::Write => octavo_platform::Direction::Write,
        }
    }

    /// Where in the file the rest begins.
    pub(crate) fn file_offset(&self) -> u64 {
        (u64::from(self.transfer.place()) + u64::from(self.done_pages)) * PAGE_BYTES as u64
    }

    /// Takes note of so many bytes moved. The rest, if there is one; else the transfer is completed.
    pub(crate) fn advance(mut self, moved: io::Result<usize>) -> Option<Self> {
        let moved = match moved {
            Ok(0) => Err(self.at_the_end()),
            Ok(bytes) => Ok((bytes / PAGE_BYTES) as u32),
            // A signal, a shortage, or the thread that had submitted it ended.
            Err(error) if matches!(error.raw_os_error(), Some(EINTR | EAGAIN | ECANCELED)) => Ok(0),
            Err(error) => Err(error),
        };
        let moved = match moved {
            // Part of a page may be followed by the rest, or by what is in its way.
            Ok(0) if self.idle_rounds == PATIENCE => Err(self.at_the_end()),
            other => other,
        };
        match moved {
            Ok(0) => self.idle_rounds += 1,
            Ok(pages) => {
                self.done_pages += pages;
                self.idle_rounds = 0;
                if self.done_pages as usize == self.transfer.len() {
                    self.transfer.complete(Ok(()));
                    return None;
                }
            }
            Err(error) => {
                self.transfer.complete(Err(error));
                return None;
            }
        }
        Some(self)
    }

    fn at_the_end(&self) -> io::Error {
        match self.transfer.direction() {
            Direction::Read => io::ErrorKind::UnexpectedEof.into(),
            Direction::Write => io::ErrorKind::WriteZero.into(),
        }
    }

    /// Does what is left of it here and now.
    pub(crate) fn in_place(self, file: &File) {
        let mut rest = self;
        loop {
            let (offset, direction) = (rest.file_offset(), rest.direction());
            let moved = rest.arena().transfer_some(file.as_fd(), offset, direction, rest.segments());
            match rest.advance(moved) {
                Some(more) => rest = more,
                None => return,
            }
        }
    }

    /// Ends it unsuccessfully.
    pub(crate) fn fail(self, error: io::Error) {
        self.transfer.complete(Err(error));
    }
}

impl Payload for Pending {
    fn arena(&self) -> &ArenaBytes {
        self.transfer.arena()
    }

    fn segments(&self) -> impl Iterator<Item = Range<usize>> {
        self.transfer.pages().skip(self.done_pages as usize)
    }
}

const EINTR: i32 = rustix::io::Errno::INTR.raw_os_error();
const EAGAIN: i32 = rustix::io::Errno::AGAIN.raw_os_error();
const ECANCELED: i32 = rustix::io::Errno::CANCELED.raw_os_error();
