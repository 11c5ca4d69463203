//! The parts that the engines share: a transfer that is moved part by part, and the end of an engine's
//! threads.
//!
//! If a device moves only part of a transfer, the thread that finds out continues where the device stopped.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use octavo_platform::ArenaBytes;
use octavo_platform::uring::Payload;

use super::transfer::{Direction, Transfer};
use crate::sync::thread;
use crate::units::PAGE_BYTES;

pub(super) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Waits for the end of a thread that was told to stop, unless it is the caller. The last transfer may have
/// kept its manager, and one of the engine's own threads may complete it.
pub(super) fn join_if_other(thread: thread::JoinHandle<()>) {
    if thread.thread().id() != thread::current().id() {
        // A panic in it has been printed.
        let _ = thread.join();
    }
}

/// How often in a row a transfer may fail to get on without a reason of its own.
const PATIENCE: u8 = 16;

/// A transfer, and how far it is.
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

    /// The position in the file at which the rest begins.
    pub(crate) fn file_offset(&self) -> u64 {
        (u64::from(self.transfer.place()) + u64::from(self.done_pages)) * PAGE_BYTES as u64
    }

    /// Notes that so many bytes were moved. Returns the rest, if there is one, and completes the transfer
    /// otherwise.
    pub(crate) fn advance(mut self, moved: io::Result<usize>) -> Option<Self> {
        let moved = match moved {
            Ok(0) => Err(self.at_the_end()),
            Ok(bytes) => Ok((bytes / PAGE_BYTES) as u32),
            // A signal, a shortage, or the thread that had submitted it ended.
            Err(error) if matches!(error.raw_os_error(), Some(EINTR | EAGAIN | ECANCELED)) => Ok(0),
            Err(error) => Err(error),
        };
        let moved = match moved {
            // A part of a page may be followed by the rest, or by the error that stops it.
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

    /// Moves the rest here and now.
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

    pub(crate) fn transfer(&self) -> &Transfer {
        &self.transfer
    }

    /// A transfer that was not begun.
    pub(crate) fn into_transfer(self) -> Transfer {
        debug_assert_eq!(self.done_pages, 0, "nothing of it was moved");
        self.transfer
    }

    /// Ends it with an error.
    pub(crate) fn fail(self, error: io::Error) {
        self.transfer.complete(Err(error));
    }
}

impl Payload for Pending {
    fn arena(&self) -> &ArenaBytes {
        self.transfer.arena()
    }

    fn segments(&self) -> impl Iterator<Item = Range<usize>> {
        self.transfer.ranges().skip(self.done_pages as usize)
    }
}

const EINTR: i32 = rustix::io::Errno::INTR.raw_os_error();
const EAGAIN: i32 = rustix::io::Errno::AGAIN.raw_os_error();
const ECANCELED: i32 = rustix::io::Errno::CANCELED.raw_os_error();
