//! The events that a descriptor reports to its reader.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::wire::{self, UffdMessage};
use super::{Features, Userfaultfd};

/// The most messages that one system call takes.
pub const MESSAGES_AT_ONCE: usize = 32;

/// A message of a [`Userfaultfd`].
#[derive(Debug)]
pub enum Event {
    /// A thread waits for a page.
    Fault {
        /// The address of the page.
        address: u64,
        /// Whether the access was a store.
        write: bool,
        /// Whether the page is present and write-protected. If not, it is missing.
        protected: bool,
        /// The thread's number, if the descriptor has [`Features::THREAD_ID`].
        thread: Option<u32>,
    },
    /// The process forked. The descriptor is the child's, with the same registrations.
    Fork(OwnedFd),
    /// A range was moved to another address.
    Remap {
        /// The old address.
        from: u64,
        /// The new address.
        to: u64,
        /// The length in bytes.
        len: u64,
    },
    /// The process gives the pages of a range back (`MADV_DONTNEED`, `MADV_FREE`). The kernel drops them
    /// after the event has been read.
    Remove {
        /// The first address.
        start: u64,
        /// The address after the last.
        end: u64,
    },
    /// The process unmaps a range.
    Unmap {
        /// The first address.
        start: u64,
        /// The address after the last.
        end: u64,
    },
}

impl Userfaultfd {
    /// Appends the waiting events, at most [`MESSAGES_AT_ONCE`] of them, and returns their number. Never
    /// waits: 0 means that there are no events.
    ///
    /// Fails with the kernel's error, and on a message of an unknown kind.
    pub fn read(&self, events: &mut Vec<Event>) -> io::Result<usize> {
        let mut messages = [UffdMessage::default(); MESSAGES_AT_ONCE];
        let bytes = loop {
            // SAFETY: the array is live and has the stated length, and any bytes are a valid value of it.
            let read = unsafe {
                libc::read(
                    self.as_fd().as_raw_fd(),
                    messages.as_mut_ptr().cast(),
                    size_of::<[UffdMessage; MESSAGES_AT_ONCE]>(),
                )
            };
            if read >= 0 {
                break read as usize;
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EAGAIN) => return Ok(0),
                Some(libc::EINTR) => {}
                _ => return Err(error),
            }
        };
        let count = bytes / size_of::<UffdMessage>();
        let mut unknown = None;
        // The loop handles every message, so that an unknown message does not lose a child's descriptor after
        // it.
        for message in &messages[..count] {
            match self.event(message) {
                Some(event) => events.push(event),
                None => unknown = Some(message.event),
            }
        }
        match unknown {
            None => Ok(count),
            Some(number) => Err(io::Error::other(format!("the kernel sent a userfaultfd event {number:#x}"))),
        }
    }

    fn event(&self, message: &UffdMessage) -> Option<Event> {
        let words = message.words;
        Some(match message.event {
            wire::EVENT_FAULT => Event::Fault {
                address: words[1],
                write: words[0] & wire::FAULT_WRITE != 0,
                protected: words[0] & wire::FAULT_PROTECTED != 0,
                thread: self.features.contains(Features::THREAD_ID).then_some(words[2] as u32),
            },
            // SAFETY: the kernel has just made this descriptor for the reader, and tells its number once.
            wire::EVENT_FORK => Event::Fork(unsafe { OwnedFd::from_raw_fd(words[0] as u32 as RawFd) }),
            wire::EVENT_REMAP => Event::Remap { from: words[0], to: words[1], len: words[2] },
            wire::EVENT_REMOVE => Event::Remove { start: words[0], end: words[1] },
            wire::EVENT_UNMAP => Event::Unmap { start: words[0], end: words[1] },
            _ => return None,
        })
    }
}
