//! Where the pages are kept that have no frame, as eviction and transfers see it: the seam under them.
//!
//! A frame whose page a store knows says so in one word, by a [`StoredPage`]: the store, and the page's index there
//! (`frame/stored.rs`). Eviction, transfers, migration and the LRU go by that name, and ask the store for the rest: what the
//! entries of an evicted page become, how a write begins and ends, whether a frame can be forgotten. Swap is the first store:
//! its index is the slot, and its entries become Swapped. A second one stands in tests (`double`): it has no slots, and leaves its
//! pages' entries empty.
//!
//! ```text
//!  reclaim, engine ──► Engine::store(page) ──► PageStore ──┬── swap: slots, the pool, areas
//!                                                          └── double (tests)
//! ```
//!
//! Contract:
//! - While a store knows a frame it holds one use of it, and the frame's word names the page. Both change under a lock of the
//!   store. A page under writeback keeps its frame, and its index is no other page's.
//! - Indexes that follow each other are places that one transfer can move together.
//!
//! Cost: [`Engine::store`](crate::engine::Engine::store) is a `match` with one arm outside tests, so that calls are direct
//! ones. What concerns a batch is one call for the batch.

#[cfg(all(test, not(loom)))]
pub(crate) mod double;

use std::io;

use smallvec::SmallVec;

use crate::error::Error;
use crate::frame::{Block, FrameAllocator, PinnedFrame};
use crate::io::{Host, Job, Urgency, Waited};
use crate::lru::IsolatedFrame;
use crate::policy::Shadow;
use crate::rmap::ReverseMap;
use crate::sizes::{ISOLATED, WRITE_BATCH};
use crate::sync::{AtomicBool, Ordering, Shared, is_panicking};
use crate::table::entry::Entry;
use crate::units::{FrameId, StoredPage};

/// Pages on their way out, with the frames that have them.
pub(crate) type Going = SmallVec<[(StoredPage, IsolatedFrame); ISOLATED]>;

/// Frames of one transfer.
pub(crate) type Frames = SmallVec<[FrameId; WRITE_BATCH]>;

/// What keeps pages.
pub(crate) trait PageStore {
    // --- the entries that lead to a page ---

    /// What an entry becomes that shows the page now, and is to lead to its place instead.
    fn entry(&self, seen: Entry, page: StoredPage) -> Entry;

    /// Whether this is an entry that leads to the page's place.
    fn is_led_to(&self, page: StoredPage, seen: Entry) -> bool;

    /// Counts one more entry that leads to the page's place, if the store still knows the frame for it.
    fn add_reference(&self, frames: &FrameAllocator, page: StoredPage, frame: FrameId) -> bool;

    /// Counts one entry less.
    fn drop_reference(&self, frames: &FrameAllocator, page: StoredPage) -> Orphan;

    /// The last entry that showed the frame is gone: if none leads to the page's place either, both may go.
    fn forget_orphan(&self, frames: &FrameAllocator, frame: FrameId) -> Orphan;

    /// Takes a mapped frame from the store, if no entry leads to the page's place, and the store need not keep the page. The frame
    /// becomes dirty: its bytes are nowhere else now. The caller has it pinned, and looks at its word afterwards.
    fn detach(&self, frames: &FrameAllocator, frame: FrameId);

    // --- the way out ---

    /// Whether a page that is to be written had better be given another place: the device of this one does not do well, and
    /// others do.
    fn is_better_moved(&self, page: StoredPage) -> bool {
        let _ = page;
        false
    }

    /// Begins to write what is dirty of a batch, in the order of the pages. The frames are off the LRU and pinned, and their
    /// entries lead to the pages' places. `each` is told what came of each, in turn, with no lock held.
    fn put_away(
        &self,
        leaving: &Leaving<'_>,
        batch: &[(StoredPage, IsolatedFrame)],
        each: &mut dyn FnMut(PutAway),
    );

    /// Pages that a transfer should write at the most.
    fn write_batch(&self) -> usize;

    /// Frames to be written in place of the pages of `run`, which are under WRITEBACK: those of the first pages, as far as there is
    /// room for them. `None`: pages are written as they are.
    fn stand_ins(&self, frames: &FrameAllocator, first: StoredPage, run: &[FrameId]) -> Option<Frames>;

    /// A frame of [`PageStore::stand_ins`] was written, or is not needed.
    fn give_stand_in_back(&self, frame: FrameId);

    /// What came of the write of consecutive pages. Told before the writebacks end.
    fn note_written(&self, first: StoredPage, count: u32, written: bool);

    /// Ends the writeback of a frame; one that came to nothing leaves it dirty. Says whether somebody waits for it.
    fn end_writeback(&self, frames: &FrameAllocator, page: StoredPage, frame: FrameId, written: bool)
    -> bool;

    /// Forgets clean frames, each of which the caller alone has pinned and no entry shows. Their pages leave the shadow until they
    /// come back. `each` is told what came of each, in turn, with a lock of the store held.
    fn evict_run(
        &self,
        frames: &FrameAllocator,
        run: &[(StoredPage, IsolatedFrame)],
        shadow: Shadow,
        each: &mut dyn FnMut(Evicted),
    );

    // --- the way in ---

    /// Puts a fresh frame under READING for a page that is out, pinned for the caller; or finds that another frame has the page
    /// already. The page need not be the caller's: an entry that led to it may have changed meanwhile.
    fn begin_read(&self, frames: &FrameAllocator, page: StoredPage, fresh: Block) -> Begun<Shadow>;

    /// What came of the read of consecutive pages, as far as the device goes: the error that those are told who wait for one.
    fn note_read(&self, first: StoredPage, count: u32, result: io::Result<()>) -> Result<(), Error>;

    /// Whether what was read into a frame is what was written from one.
    fn check_read(&self, frames: &FrameAllocator, page: StoredPage, frame: FrameId) -> Result<(), Error>;

    /// Keeps why a page was not read, for those who wait for it.
    fn note_unread(&self, page: StoredPage, why: Unread);

    /// Forgets a frame whose read came to nothing. The caller has it pinned.
    fn forget_failed(&self, frames: &FrameAllocator, page: StoredPage, frame: FrameId);

    // --- devices ---

    /// Hands a job over to the device of its pages. False: the device is full, and nothing has begun.
    fn submit(&self, host: Shared<dyn Host>, job: Job, urgency: Urgency) -> bool;

    /// A transfer has ended: what it says of its device.
    fn note_end(&self, job: &Job, result: &io::Result<()>);

    /// To be kept while a completion runs: it tells a panic of ours from one of a device's.
    fn completing(&self) -> Option<Completing<'_>> {
        None
    }

    /// Whether the store may have transfers in flight.
    fn has_devices(&self) -> bool;

    /// Starts the transfers that its devices have only collected so far.
    fn flush(&self);

    /// Completes the transfers that have ended.
    fn poll(&self);

    /// Has devices complete transfers by themselves: somebody waits for one, and cannot pull completions.
    fn serve(&self);

    /// For a thread that waits for transfers of the store, whichever. As [`Device::wait`](crate::io::Device::wait).
    fn wait_for_any(&self, still_waiting: &dyn Fn() -> bool) -> Waited;

    /// For whoever waits for the transfer of a page: completes transfers as long as `still_waiting`, or says that he may sleep. See
    /// [`Device::wait`](crate::io::Device::wait).
    fn wait(&self, page: StoredPage, queue: u32, still_waiting: &dyn Fn() -> bool) -> Waited;
}

/// While a completion runs.
pub(crate) struct Completing<'a> {
    is_broken: &'a AtomicBool,
    was_panicking: bool,
}

impl<'a> Completing<'a> {
    /// `is_broken` is set where the completion panics.
    pub(crate) fn begin(is_broken: &'a AtomicBool) -> Self {
        Self { is_broken, was_panicking: is_panicking() }
    }
}

impl Drop for Completing<'_> {
    fn drop(&mut self) {
        if is_panicking() && !self.was_panicking {
            // Relaxed: only the thread that unwinds asks.
            self.is_broken.store(true, Ordering::Relaxed);
        }
    }
}

/// Why a page was not read.
#[derive(Clone, Debug)]
pub(crate) enum Unread {
    /// The device was full. Try again when a transfer has ended.
    NoRoom,
    /// The device failed, or what it brought is wrong.
    Failed(Error),
}

/// What a store may go by in how it writes a batch.
pub(crate) struct Leaving<'a> {
    pub(crate) frames: &'a FrameAllocator,
    pub(crate) rmap: &'a ReverseMap,
    /// Pages whose write has ended, so far.
    pub(crate) ended_pages: u64,
    /// Pages being written now.
    pub(crate) writing_pages: u32,
}

/// What came of a page in [`PageStore::put_away`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a page to be written is under WRITEBACK"]
pub(crate) enum PutAway {
    /// The page is in its place, and the frame clean. `awaited`: wake those who wait for I/O on the frame.
    Done {
        /// Somebody saw the frame under writeback.
        awaited: bool,
    },
    /// It belongs on a device, and its frame is under WRITEBACK.
    ToBeWritten,
    /// Somebody pinned it just now, or it was faulted back and its store knows it no longer: it stays, with the caller's pin.
    Refused {
        /// As of `Done`.
        awaited: bool,
    },
}

/// Whether something is left of a page that nothing leads to any more.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an orphan must be unpinned"]
pub(crate) enum Orphan {
    /// Something still leads to it, or there is no frame.
    None,
    /// The frame is on its way out: drop the pin.
    Frame(PinnedFrame),
}

/// What came of [`PageStore::evict_run`] for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an evicted frame must be freed"]
pub(crate) enum Evicted {
    /// The frame is unowned: the caller frees it. Its pin is gone with it.
    Freed,
    /// Somebody uses it, or it is dirty. It stays, with the caller's pin.
    Kept,
}

/// What came of looking for the frame of a page, without a lock.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a frame that was found is pinned"]
pub(crate) enum Found {
    /// The page's frame.
    Frame(PinnedFrame),
    /// This frame was the page's a moment ago: drop the pin, and look again.
    Moved(PinnedFrame),
    /// None, as far as can be seen without the lock.
    Nothing,
}

/// What came of putting a fresh frame under READING for a page.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a read that was begun must be ended, and a frame that was found is pinned"]
pub(crate) enum Begun<S> {
    /// The store knows the fresh frame, which is under READING. The shadow is what the frame before it left behind.
    Reading(PinnedFrame, Option<S>),
    /// Another frame has the page already. The fresh one comes back.
    Cached(PinnedFrame, Block),
    /// No entry leads to the page any more. The fresh frame comes back.
    Gone(Block),
}

/// What came of starting the writeback of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a writeback that was started must be ended"]
pub(crate) enum Started {
    Yes,
    /// Somebody else holds the frame, or it is not dirty, or the store does not know it any more.
    Refused,
    /// The same, and somebody saw it under writeback meanwhile and waits: wake those who wait for I/O on the frame.
    RefusedAndAwaited,
}
