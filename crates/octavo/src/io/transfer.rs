//! One transfer in flight: pages of the arena and consecutive places of a device. While it is in flight, the
//! device owns it.
//!
//! A transfer is a few words, moved by value, so the way out needs no allocation. Its pages are chained
//! through the links of their frame words. Nothing else uses these links while the frames are off the LRU.
//! The device completes the transfer once, from any thread, perhaps before `submit` returns.

use std::fmt;
use std::io;
use std::ops::Range;

use octavo_platform::ArenaBytes;

use crate::sync::Shared;
use crate::units::{FrameId, PAGE_BYTES, StoredPage};

/// Whether a [`Transfer`] reads pages from the device or writes them to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the device into memory.
    Read,
    /// From memory to the device.
    Write,
}

/// Tells a [`Device`](super::Device) whether somebody waits for this transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// The caller sleeps until this transfer is done. A device that blocks a thread for each transfer may
    /// block the caller instead.
    Now,
    /// The caller continues with other work. The transfer must be on its way after the next `flush`.
    Queued,
}

/// The pages of a transfer, for the host that gets it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) direction: Direction,
    /// The first of consecutive pages of a page store.
    pub(crate) first: StoredPage,
    pub(crate) count: u32,
    /// The first of the chain of frames whose pages are moved.
    pub(crate) head: FrameId,
    /// The first of the chain of frames whose bytes are moved: `head`, or frames with other bytes if pages
    /// must not be written as they are.
    pub(crate) bytes: FrameId,
}

/// The owner of transfers. A transfer comes from its host, and goes back to it when it ends.
pub(crate) trait Host: Send + Sync {
    fn arena(&self) -> &ArenaBytes;
    /// The frame that follows in a chain.
    fn chained(&self, frame: FrameId) -> FrameId;
    /// Notes, in the words of a frame, the queue of the device in which the transfer waits.
    fn note_queue(&self, frame: FrameId, queue: u32);
    /// Takes a transfer back: the device is done with it.
    fn ended(&self, job: Job, result: io::Result<()>);
}

/// A page of a transfer, whose bytes a device takes from memory or puts there.
#[derive(Debug)]
pub struct TransferPage<'t> {
    transfer: &'t Transfer,
    offset: usize,
}

impl TransferPage<'_> {
    /// Copies the page's bytes out, to keep them on the device.
    pub fn copy_out(&self, to: &mut [u8; PAGE_BYTES]) {
        self.transfer.arena().copy_out(self.offset, to);
    }

    /// Makes these the page's bytes.
    ///
    /// # Panics
    /// When the transfer goes to the device. During such a transfer, others may be reading the page's bytes.
    pub fn copy_in(&self, from: &[u8; PAGE_BYTES]) {
        assert_eq!(
            self.transfer.direction(),
            Direction::Read,
            "a device changes only pages that it is to read"
        );
        self.transfer.arena().copy_in(self.offset, from);
    }
}

/// Pages that a [`Device`](super::Device) is to read or write. [`Transfer::complete`] ends it, from any
/// thread. A transfer that is dropped before that has failed.
#[must_use = "a transfer that is dropped has failed"]
pub struct Transfer {
    host: Shared<dyn Host>,
    job: Job,
    place: u32,
    /// Pages that the device has to move: all, but for a last page whose part was taken.
    pages: u32,
    /// The place may be where a file ends. What lies behind the end reads as zeros.
    ends_in_zeros: bool,
    /// The file ends so many bytes into the last page, if it ends there.
    part_bytes: Option<usize>,
    ended: bool,
}

impl Transfer {
    pub(crate) fn new(host: Shared<dyn Host>, job: Job, place: u32) -> Self {
        debug_assert!(job.count > 0, "a transfer moves pages");
        Self { host, job, place, pages: job.count, ends_in_zeros: false, part_bytes: None, ended: false }
    }

    /// The same transfer, to a file that ends so many bytes into the last page. A device that moves whole
    /// pages only makes its file longer by that.
    pub(crate) fn ending_at(mut self, part_bytes: usize) -> Self {
        self.part_bytes = Some(part_bytes);
        self
    }

    /// Returns whether the file ends inside the last page.
    pub(crate) fn has_part(&self) -> bool {
        self.part_bytes.is_some()
    }

    /// Takes the part of the last page that lies in the file, if the file ends inside that page. The caller
    /// moves these bytes of the arena, and [`Transfer::len`] is one less, perhaps 0.
    pub(crate) fn take_part(&mut self) -> Option<Range<usize>> {
        let bytes = self.part_bytes.take()?;
        let page = self.ranges().last()?;
        self.pages -= 1;
        Some(page.start..page.start + bytes)
    }

    /// The same transfer, from a file that may end inside its last page.
    pub(crate) fn ending_in_zeros(mut self) -> Self {
        self.ends_in_zeros = true;
        self
    }

    /// Returns whether what lies behind the end of the file reads as zeros.
    pub(crate) fn ends_in_zeros(&self) -> bool {
        self.ends_in_zeros
    }

    /// The direction in which the bytes go.
    pub fn direction(&self) -> Direction {
        self.job.direction
    }

    /// The first of the consecutive places on the device, in pages.
    pub fn place(&self) -> u32 {
        self.place
    }

    /// The same transfer at another place, for a device that lies inside another.
    pub(crate) fn at(mut self, place: u32) -> Self {
        self.place = place;
        self
    }

    /// Returns the number of pages, which is at least one.
    #[allow(clippy::len_without_is_empty, reason = "a transfer that a device gets is never empty")]
    pub fn len(&self) -> usize {
        self.pages as usize
    }

    /// The arena's memory. Users' own devices do not see it: the rest of it may be lent.
    pub(crate) fn arena(&self) -> &ArenaBytes {
        self.host.arena()
    }

    /// The pages, in device order: the first goes to [`Transfer::place`] or comes from there, and so on.
    pub fn pages(&self) -> impl Iterator<Item = TransferPage<'_>> {
        self.ranges().map(|range| TransferPage { transfer: self, offset: range.start })
    }

    /// Byte ranges of the arena, one page each, in device order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut next = Some(self.job.bytes);
        (0..self.pages).map(move |index| {
            let frame = next.expect("a chain is as long as its count");
            next = (index + 1 < self.pages).then(|| self.host.chained(frame));
            frame.home_offset()..frame.home_offset() + PAGE_BYTES
        })
    }

    /// The ranges of [`Transfer::ranges`], with neighbours in the arena joined.
    pub(crate) fn segments(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut pages = self.ranges().peekable();
        std::iter::from_fn(move || {
            let mut segment = pages.next()?;
            while let Some(page) = pages.next_if(|page| page.start == segment.end) {
                segment.end = page.end;
            }
            Some(segment)
        })
    }

    /// Notes the queue in which the device keeps this transfer, for threads that call
    /// [`super::Device::wait`].
    pub fn note_queue(&self, queue: u32) {
        let mut frame = self.job.head;
        for index in 0..self.job.count {
            let next = (index + 1 < self.job.count).then(|| self.host.chained(frame));
            self.host.note_queue(frame, queue);
            frame = next.unwrap_or(frame);
        }
    }

    /// Ends the transfer. All bytes are in their places. If the result is an error, any of them may be
    /// missing.
    pub fn complete(mut self, result: io::Result<()>) {
        self.end(result);
    }

    /// Returns whether this is the transfer that was made from this job for this host. No other transfer has
    /// the same frames meanwhile.
    pub(crate) fn is_of(&self, host: *const (), job: &Job) -> bool {
        Shared::as_ptr(&self.host).cast() == host && self.job == *job
    }

    /// Takes back a transfer that did not begin. The host gets no report of its end.
    pub(crate) fn take_back(mut self) -> Job {
        self.ended = true;
        self.job
    }

    fn end(&mut self, result: io::Result<()>) {
        self.ended = true;
        self.host.ended(self.job, result);
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if !self.ended {
            self.end(Err(io::Error::other("the device gave the transfer up")));
        }
    }
}

impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer").field("job", &self.job).field("place", &self.place).finish_non_exhaustive()
    }
}
