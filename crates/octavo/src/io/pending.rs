//! What the I/O engines share: a transfer in progress, and how an engine's threads end.
//!
//! A device may move only part of a transfer. The thread that learns of this continues with the rest.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use octavo_platform::ArenaBytes;
use octavo_platform::uring::Payload;
use rustix::io::Errno;

use super::transfer::{Direction, Transfer};
use crate::sync::thread;
use crate::units::PAGE_BYTES;

/// Writes a count with its noun, for the description of an engine: "1 ring", "2 rings".
pub(super) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Joins a thread that was asked to stop, unless that thread is the caller. It may be the caller: if the last
/// transfer has kept the manager alive, the engine's thread that completes this transfer also drops the
/// engine.
pub(super) fn join_if_other(thread: thread::JoinHandle<()>) {
    if thread.thread().id() != thread::current().id() {
        // If the thread panicked, the panic has been printed.
        let _ = thread.join();
    }
}

/// The most attempts in a row that move no whole page, although the device reports no error.
pub(super) const MOST_IDLE_ROUNDS: u8 = 16;

/// A transfer, and how much of it is done.
pub(crate) struct PendingTransfer {
    transfer: Transfer,
    done_pages: u32,
    idle_rounds: u8,
}

impl PendingTransfer {
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

    /// Records the outcome of an attempt: the bytes that it moved, or its error. Returns the transfer if a
    /// part of it is left. Otherwise completes it.
    pub(crate) fn advance(mut self, file: &File, moved: io::Result<usize>) -> Option<Self> {
        let moved = match moved {
            Ok(bytes) if !bytes.is_multiple_of(PAGE_BYTES) && self.is_last_page_of(file, bytes) => {
                Ok(self.fill_page_behind(bytes))
            }
            other => other,
        };
        let moved = match moved {
            Ok(0) => Err(self.nothing_moved_error()),
            Ok(bytes) => Ok((bytes / PAGE_BYTES) as u32),
            Err(error) if is_passing(&error) => Ok(0),
            Err(error) => Err(error),
        };
        let moved = match moved {
            // Less than a page was moved. The next attempt may finish the page, or may return the actual
            // error.
            Ok(0) if self.idle_rounds == MOST_IDLE_ROUNDS => Err(self.nothing_moved_error()),
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

    /// Returns whether a read that moved so many bytes has reached the end of a file, which lies in the last
    /// page of the transfer.
    fn is_last_page_of(&self, file: &File, bytes: usize) -> bool {
        let reaches = bytes.div_ceil(PAGE_BYTES) + self.done_pages as usize;
        self.transfer.ends_in_zeros()
            && reaches == self.transfer.len()
            && file.metadata().is_ok_and(|found| found.len() <= self.file_offset() + bytes as u64)
    }

    /// Zeroes the rest of the page behind the bytes that were read. Returns the bytes up to the page's end.
    fn fill_page_behind(&self, bytes: usize) -> usize {
        let (whole, rest) = (bytes / PAGE_BYTES, bytes % PAGE_BYTES);
        if let Some(page) = self.transfer.ranges().nth(self.done_pages as usize + whole) {
            self.arena().zero(page.start + rest, page.len() - rest);
        }
        (whole + 1) * PAGE_BYTES
    }

    fn nothing_moved_error(&self) -> io::Error {
        match self.transfer.direction() {
            Direction::Read => io::ErrorKind::UnexpectedEof.into(),
            Direction::Write => io::ErrorKind::WriteZero.into(),
        }
    }

    /// Moves the rest on the calling thread, and completes the transfer.
    pub(crate) fn in_place(self, file: &File) {
        let mut rest = self;
        loop {
            let (offset, direction) = (rest.file_offset(), rest.direction());
            let moved = rest.arena().transfer_some(file.as_fd(), offset, direction, rest.segments());
            match rest.advance(file, moved) {
                Some(more) => rest = more,
                None => return,
            }
        }
    }

    pub(crate) fn transfer(&self) -> &Transfer {
        &self.transfer
    }

    /// Returns the transfer. Nothing of it may have been moved.
    pub(crate) fn into_transfer(self) -> Transfer {
        debug_assert_eq!(self.done_pages, 0, "nothing of it was moved");
        self.transfer
    }

    /// Completes the transfer with an error.
    pub(crate) fn fail(self, error: io::Error) {
        self.transfer.complete(Err(error));
    }
}

impl Payload for PendingTransfer {
    fn arena(&self) -> &ArenaBytes {
        self.transfer.arena()
    }

    fn segments(&self) -> impl Iterator<Item = Range<usize>> {
        self.transfer.ranges().skip(self.done_pages as usize)
    }
}

/// Returns whether an attempt moved nothing for a reason that may pass: a signal came, resources were short,
/// or the submitting thread ended.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::INTR | Errno::AGAIN | Errno::CANCELED))
}
