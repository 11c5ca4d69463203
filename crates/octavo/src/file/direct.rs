//! Transfers between a file and pinned pages of a space: the device reads and writes the frames themselves,
//! and nothing is copied.
//!
//! The pages are pinned in groups of at most [`GROUP_BYTES`], as the direct I/O of Linux does, by the
//! lock-free path or the base form's ([`PinPath`](crate::PinPath)). With several groups, up to [`DEPTH`] are
//! under way in a ring; one group alone is one system call. A group's pin is dropped when the kernel is done
//! with it.
//!
//! The prefix rule holds as for pins: a transfer fails only if its first request does. Otherwise it says how
//! many bytes moved, from the first one on. Groups behind the one that stopped it may have moved too.
//!
//! The pins of all transfers together are bounded (`engine/transfer_pins.rs`). A transfer that has nothing
//! pinned waits for others. One that has waits for its own groups.
//!
//! Cost of a group: a pin (two read-modify-writes on each frame), two on the count of such pins, and the
//! kernel's work. A group by itself is one system call. A ring adds a share of the space and of the engine
//! for each group, one system call for all that are begun together, and one for each wait.

use std::io;
use std::ops::{Deref, Range};
use std::os::fd::AsFd;

use octavo_platform::uring::{Full, Payload};
use octavo_platform::{ArenaBytes, Direction};

use super::lanes::{DEPTH, TakenLane};
use super::{File, Kept, LEAD};
use crate::access::{PinHolder, PinOf};
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::io::is_passing;
use crate::space::{OwnedPin, Space};
use crate::sync::Shared;
use crate::table::Access;
use crate::units::PAGE_BYTES;
use crate::writeback::{after_direct_write, before_direct};

/// The most pages that are pinned for one request of the device.
const GROUP_PAGES: u32 = 64;
const GROUP_BYTES: u64 = GROUP_PAGES as u64 * PAGE_BYTES as u64;
/// A transfer that has groups under way pins more only up to this part of what all transfers may.
const SHARE_OF_ONE: u32 = 8;

impl File {
    /// Reads from the file into a space. Returns how many bytes moved, from the first one on: fewer than
    /// `len` at the end of the file, or if a later page cannot be pinned or read. Bytes behind those that
    /// are counted may have changed, too, up to `len`. Pages that are out come in first, also if the
    /// transfer replaces all of their bytes.
    ///
    /// # Errors
    /// Those of the first bytes. `InvalidRange` if the offset, the address or the length is not a multiple
    /// of [`File::alignment_bytes`]. `FileRead` if the kernel refuses. `Unsupported` for a space of another
    /// manager. Otherwise as [`Space::pin_prefix`].
    pub fn direct_read(&self, offset: u64, space: &Shared<Space>, address: u64, len: usize) -> Result<usize> {
        self.direct(Direction::Read, offset, space, address, len)
    }

    /// Writes from a space to the file, which grows if need be. Returns how many bytes moved, from the first
    /// one on: fewer than `len` if a later page cannot be pinned or written. Bytes behind those that are
    /// counted may have been written, too, and the file may have grown by them. Bytes that others store
    /// meanwhile are written as they were before or after. Call [`File::sync`] to have the bytes kept
    /// whatever happens. Pages of the file that others have pinned keep their old bytes in memory.
    ///
    /// # Errors
    /// Those of the first bytes. `FileWrite` if the file was not opened for writing, or if the kernel
    /// refuses. Otherwise as [`File::direct_read`].
    pub fn direct_write(
        &self,
        offset: u64,
        space: &Shared<Space>,
        address: u64,
        len: usize,
    ) -> Result<usize> {
        self.direct(Direction::Write, offset, space, address, len)
    }

    fn direct(
        &self,
        direction: Direction,
        offset: u64,
        space: &Shared<Space>,
        address: u64,
        len: usize,
    ) -> Result<usize> {
        let open = &*self.open;
        let _inside = open.engine().enter()?;
        self.check(direction, offset, space, address, len)?;
        let Some(kept) = &open.kept else {
            let message =
                "no direct transfers from a place of your own: use read_at(), write_at() or map_file()";
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        let (bytes, inode) = (offset..offset + len as u64, open.inode());
        before_direct(open.engine(), inode, &bytes)?;
        let transfer = Transfer { file: self, kept, direction, offset, space, address };
        let mut end = End { at: len as u64, why: None };
        // One group is one system call either way, and without a ring it needs no other.
        let lane = if len as u64 > GROUP_BYTES { kept.lanes.take() } else { None };
        // A write behind the end moves the end, and no sync may cut off its bytes before that.
        let resizing =
            (direction == Direction::Write && bytes.end > inode.len_bytes()).then(|| inode.resizing.lock());
        if resizing.is_some() && bytes.end > inode.len_bytes() {
            inode.check_len(bytes.end)?;
        }
        match lane {
            Some(lane) => transfer.by_ring(&lane, &mut end),
            None => transfer.in_order(&mut end),
        }
        if direction == Direction::Write {
            // Groups behind the one that stopped the transfer may have been written, too.
            let reached = if end.at == 0 { 0 } else { offset + end.at };
            after_direct_write(open.engine(), inode, bytes, reached, resizing);
        }
        match end {
            End { at: 0, why: Some(error) } => Err(error),
            End { at, .. } => Ok(at as usize),
        }
    }

    fn check(
        &self,
        direction: Direction,
        offset: u64,
        space: &Space,
        address: u64,
        len: usize,
    ) -> Result<()> {
        let path = &self.open.path;
        let align = self.alignment_bytes();
        if !space.is_of(self.open.engine()) {
            let message = "the space is of another manager; open the file by the space's own";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if direction == Direction::Write {
            self.open.check_writable("write to")?;
        }
        if [offset, address, len as u64].iter().any(|number| !number.is_multiple_of(align)) {
            let message = format!(
                "{len} bytes at {offset} of {}, and address {address:#x}: give multiples of {}, the size of its \
                 device's blocks, or open it with FileOptions::direct(false)",
                path.display(),
                align
            );
            return Err(Error::new(ErrorKind::InvalidRange, message));
        }
        if offset.checked_add(len as u64).is_none_or(|end| end > i64::MAX as u64) {
            let message = format!("{len} bytes at {offset}: a file has at most 2^63 - 1 bytes");
            return Err(Error::new(ErrorKind::InvalidRange, message));
        }
        if address.checked_add(len as u64).is_none() {
            let message = format!("{len} bytes from {address:#x} on: addresses end at 2^64");
            return Err(Error::new(ErrorKind::InvalidRange, message));
        }
        Ok(())
    }
}

/// Pinned pages that lie together in a file, for one request of the device.
pub(super) struct Group {
    pin: OwnedPin,
    /// Where the group begins, in bytes from the beginning of the transfer.
    at: u64,
    /// Given back after the pin.
    _counted: Counted<Shared<Engine>>,
}

impl Payload for Group {
    fn arena(&self) -> &ArenaBytes {
        self.pin.arena()
    }

    fn segments(&self) -> impl Iterator<Item = Range<usize>> {
        self.pin.ranges()
    }
}

/// Pages that a transfer has counted, to pin them.
struct Counted<E: Deref<Target = Engine>> {
    engine: E,
    pages: u32,
}

impl<E: Deref<Target = Engine>> Drop for Counted<E> {
    fn drop(&mut self) {
        self.engine.give_transfer_pins_back(self.pages);
    }
}

/// How far a transfer goes, from its beginning on, and what stops it there: nothing at the end of the file.
struct End {
    at: u64,
    why: Option<Error>,
}

impl End {
    fn stop(&mut self, at: u64, why: Option<Error>) {
        if at < self.at {
            *self = Self { at, why };
        }
    }
}

struct Transfer<'t> {
    file: &'t File,
    kept: &'t Kept,
    direction: Direction,
    offset: u64,
    space: &'t Shared<Space>,
    address: u64,
}

impl Transfer<'_> {
    /// Moves one group after the other.
    fn in_order(&self, end: &mut End) {
        let (engine, mut at) = (&**self.file.open.engine(), 0);
        while at < end.at {
            let (address, len, pages) = self.group(at, end.at);
            engine.take_transfer_pins(pages);
            let _counted = Counted { engine, pages };
            match self.space.pin_prefix(address, len, self.access()) {
                Ok(pin) => {
                    self.finish(&pin, at, 0, end);
                    at += pin.len() as u64;
                }
                Err(error) => end.stop(at, Some(error)),
            }
        }
    }

    /// Keeps several groups under way.
    fn by_ring(&self, lane: &TakenLane<'_, Group>, end: &mut End) {
        let ring = lane.ring();
        let (mut next, mut under_way) = (0, 0);
        let most =
            (self.file.open.engine().most_transfer_pins() / SHARE_OF_ONE / GROUP_PAGES).clamp(1, DEPTH);
        loop {
            while next < end.at && under_way < most {
                let group = match self.pin(next, end.at, under_way == 0) {
                    Ok(Some(group)) => group,
                    Ok(None) => break,
                    // The groups under way may hold what this one needs.
                    Err(_) if under_way > 0 => break,
                    Err(error) => {
                        end.stop(next, Some(error));
                        break;
                    }
                };
                next += group.pin.len() as u64;
                match ring.queue(self.offset + group.at, self.direction, group) {
                    Ok(()) => under_way += 1,
                    Err(Full(group)) => self.finish(&group.pin, group.at, 0, end),
                }
            }
            if under_way == 0 {
                return;
            }
            // What the kernel does not take now goes with the wait.
            let _ = ring.submit();
            ring.try_lead(
                || true,
                LEAD,
                |group, moved| {
                    under_way -= 1;
                    match moved {
                        Ok(moved) => self.finish(&group.pin, group.at, moved, end),
                        Err(error) if is_passing(&error) => self.finish(&group.pin, group.at, 0, end),
                        Err(error) => {
                            end.stop(group.at, Some(self.failed(group.at, group.pin.len(), &error)));
                        }
                    }
                },
            );
        }
    }

    /// Address, bytes and pages of the group that begins so far into the transfer. Whole groups end where
    /// their pages do.
    fn group(&self, at: u64, end: u64) -> (u64, usize, u32) {
        let address = self.address + at;
        let len = (GROUP_BYTES - address % GROUP_BYTES).min(end - at);
        let pages = (address % PAGE_BYTES as u64 + len).div_ceil(PAGE_BYTES as u64);
        (address, len as usize, pages as u32)
    }

    /// What the device does with the pages.
    fn access(&self) -> Access {
        match self.direction {
            Direction::Read => Access::Write,
            Direction::Write => Access::Read,
        }
    }

    /// Pins the group that begins so far into the transfer, or as much of it as can be pinned. Returns `None`
    /// if transfers have too many pages pinned, and the caller may not wait for others, as it has some.
    fn pin(&self, at: u64, end: u64, may_wait: bool) -> Result<Option<Group>> {
        let engine = self.file.open.engine();
        let (address, len, pages) = self.group(at, end);
        if may_wait {
            engine.take_transfer_pins(pages);
        } else if !engine.try_take_transfer_pins(pages) {
            return Ok(None);
        }
        let _counted = Counted { engine: Shared::clone(engine), pages };
        let pin = self.space.pin_prefix(address, len, self.access())?;
        Ok(Some(Group { pin: pin.held_by(Shared::clone(self.space)), at, _counted }))
    }

    /// Moves what is left of pinned pages that begin `at` so far into the transfer, when `done` bytes of them
    /// have moved.
    fn finish<H: PinHolder>(&self, pin: &PinOf<H>, at: u64, mut done: usize, end: &mut End) {
        let len = pin.len();
        while done < len {
            let here = at + done as u64;
            // The file may end in the middle of a block, and nothing begins there.
            if self.direction == Direction::Read && !(done as u64).is_multiple_of(self.file.alignment_bytes())
            {
                return end.stop(here, None);
            }
            let (offset, rest) = (self.offset + here, skip(pin.ranges(), done));
            match pin.arena().transfer_some(self.kept.file.as_fd(), offset, self.direction, rest) {
                Ok(0) if self.direction == Direction::Read => return end.stop(here, None),
                Ok(0) => {
                    let error = self.failed(here, len - done, &io::ErrorKind::WriteZero.into());
                    return end.stop(here, Some(error));
                }
                Ok(moved) => done += moved,
                Err(error) => return end.stop(here, Some(self.failed(here, len - done, &error))),
            }
        }
    }

    #[cold]
    fn failed(&self, at: u64, len: usize, error: &io::Error) -> Error {
        let (kind, verb) = match self.direction {
            Direction::Read => (ErrorKind::FileRead, "read"),
            Direction::Write => (ErrorKind::FileWrite, "write"),
        };
        self.file.failed(kind, &format!("{verb} {len} bytes at {} of", self.offset + at), error)
    }
}

/// Leaves so many bytes out.
fn skip(ranges: impl Iterator<Item = Range<usize>>, mut bytes: usize) -> impl Iterator<Item = Range<usize>> {
    ranges.filter_map(move |range| {
        let left_out = bytes.min(range.len());
        bytes -= left_out;
        (left_out < range.len()).then(|| range.start + left_out..range.end)
    })
}
