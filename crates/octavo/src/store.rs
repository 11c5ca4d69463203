//! The seam under eviction and transfers: page stores, which keep pages that have no frame.
//!
//! If a store knows a frame, the frame's word names its page by a [`StoredPage`]: the store, and the page's
//! index there (`frame/stored.rs`). Eviction, transfers, migration and the LRU use this name and ask the
//! store for the rest. The store says what the entries of an evicted page become, how a write begins and
//! ends, and whether a frame can be forgotten.
//!
//! Swap is one store: its index is the slot, and its entries become Swapped. The page cache of files is the
//! other. Its index is a page of a file, and its pages' entries become empty: the region says which page of
//! which file a fault has to bring back.
//!
//! ```text
//!  reclaim, engine ──► Engine::store(page) ──► PageStore ──┬── swap: slots, the pool, areas
//!                                                          └── page cache: files
//! ```
//!
//! Contract:
//! - While a store knows a frame, the store holds one use of it, and the frame's word names the page. Both
//!   change under a lock of the store. A page under writeback keeps its frame, and no other page has its
//!   index.
//! - One transfer can move the pages of consecutive indexes.
//! - A place is kept while it has a reference. An entry that leads to the place holds one, and so does a
//!   clean frame that is away. A [`Reference`] cannot be copied.
//!
//! Cost: [`Engine::store`](crate::engine::Engine::store) looks at one bit of the page's number. A batch of
//! pages takes one call.

mod read_failures;

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
use crate::table::SpaceId;
use crate::table::entry::Entry;
use crate::units::{FrameId, StoredPage};

pub(crate) use read_failures::ReadFailures;

/// Pages on their way out, with the frames that have them.
pub(crate) type Going = SmallVec<[(StoredPage, IsolatedFrame); ISOLATED]>;

/// Frames of one transfer.
pub(crate) type Frames = SmallVec<[FrameId; WRITE_BATCH]>;

/// A store of pages.
pub(crate) trait PageStore {
    // --- the entries that lead to a page ---

    /// Returns the entry that leads to the page's place, for an entry that shows the page now.
    fn entry(&self, seen: Entry, page: StoredPage) -> Entry;

    /// Returns whether this entry leads to the page's place.
    fn is_led_to(&self, page: StoredPage, seen: Entry) -> bool;

    /// Counts one more reference of the page's place. Returns `None` if the store no longer knows the frame.
    fn add_reference(&self, frames: &FrameAllocator, page: StoredPage, frame: FrameId) -> Option<Reference>;

    /// Drops a counted reference.
    fn drop_reference(&self, frames: &FrameAllocator, reference: Reference) -> Orphan;

    /// Called when the last entry that showed the frame is gone. If no entry leads to the page's place
    /// either, the store may forget page and frame.
    fn forget_orphan(&self, frames: &FrameAllocator, frame: FrameId) -> Orphan;

    /// Takes a mapped frame from the store, if no entry leads to the page's place and the store need not keep
    /// the page. The frame becomes dirty, as its bytes are nowhere else now. The caller has pinned the frame,
    /// and reads its word afterwards.
    fn detach(&self, frames: &FrameAllocator, frame: FrameId);

    // --- the way out ---

    /// Returns whether a page to be written should get another place: its device is not well, and another one
    /// is.
    fn is_better_moved(&self, page: StoredPage) -> bool {
        let _ = page;
        false
    }

    /// Begins to write the dirty pages of a batch, in order. The frames are off the LRU and pinned, and their
    /// entries lead to the pages' places. The store tells `each` the outcome of each page, in order, with no
    /// lock held.
    fn put_away(
        &self,
        leaving: &Leaving<'_>,
        batch: &[(StoredPage, IsolatedFrame)],
        each: &mut dyn FnMut(PutAway),
    );

    /// The most pages that one transfer should write.
    fn write_batch(&self) -> usize;

    /// Returns frames to write in place of the first pages of `run`, as many as there is room for. The pages
    /// are under WRITEBACK. Returns `None` if they are written as they are.
    fn stand_ins(&self, frames: &FrameAllocator, first: StoredPage, run: &[FrameId]) -> Option<Frames>;

    /// Takes back a frame of [`PageStore::stand_ins`] that was written, or is not needed.
    fn give_stand_in_back(&self, frame: FrameId);

    /// Notes the outcome of a write of consecutive pages. The engine calls this before the writebacks end.
    fn note_written(&self, first: StoredPage, count: u32, written: bool);

    /// Ends the writeback of a frame. A write that failed leaves the frame dirty. Returns whether a thread
    /// waits for the frame.
    fn end_writeback(&self, frames: &FrameAllocator, page: StoredPage, frame: FrameId, written: bool)
    -> bool;

    /// Forgets clean frames. Only the caller has pinned them, and no entry shows them. Their pages keep the
    /// shadow until they come back. The store tells `each` the outcome of each frame, in order, with a lock
    /// of the store held.
    fn evict_run(
        &self,
        frames: &FrameAllocator,
        run: &[(StoredPage, IsolatedFrame)],
        shadow: Shadow,
        each: &mut dyn FnMut(Evicted),
    );

    /// Notes that a page which was in use without a frame in the store is out again. The page keeps the
    /// shadow until it comes back.
    fn leave(&self, page: StoredPage, shadow: Shadow);

    /// Returns how many of `pages` the store would copy, to bring them back sooner. The pages are of one
    /// space, leave clean, and pass [`PageStore::may_copy`].
    fn wants_copies(&self, leaving: &Leaving<'_>, space: SpaceId, pages: u32) -> u32 {
        let _ = (leaving, space, pages);
        0
    }

    /// Returns whether a copy of the page would bring it back sooner.
    fn may_copy(&self, page: StoredPage) -> bool {
        let _ = page;
        false
    }

    /// Takes a copy of a clean page of a space. Only the caller has pinned the frame, and no entry shows it.
    /// Returns whether to wake threads that wait for I/O on the frame.
    fn copy(&self, frames: &FrameAllocator, page: StoredPage, frame: FrameId, space: SpaceId) -> bool {
        let _ = (frames, page, frame, space);
        false
    }

    // --- the way in ---

    /// Puts a fresh frame under READING for a page that is out, and pins it for the caller. Refuses if
    /// another frame already has the page, or no entry leads to the page any more. The caller's entry may
    /// have changed meanwhile.
    fn begin_read(&self, frames: &FrameAllocator, page: StoredPage, fresh: Block) -> Begun<Shadow>;

    /// Notes the device's outcome for a read of consecutive pages. Returns the error for threads that wait
    /// for one of the pages.
    fn note_read(&self, first: StoredPage, count: u32, result: io::Result<()>) -> Result<(), Error>;

    /// Checks that the bytes read into a frame are those written for the page.
    fn check_read(&self, frames: &FrameAllocator, page: StoredPage, frame: FrameId) -> Result<(), Error>;

    /// Keeps the reason why a page was not read, for threads that wait for the page.
    fn note_unread(&self, page: StoredPage, why: Unread);

    /// Returns why a page was not read.
    fn why_unread(&self, page: StoredPage) -> Unread;

    /// Returns the error for an access whose time ran out while it waited for the page's device.
    fn timed_out(&self, page: StoredPage) -> Error;

    /// Forgets a frame whose read failed. The caller has pinned it.
    fn forget_failed(&self, frames: &FrameAllocator, page: StoredPage, frame: FrameId);

    // --- devices ---

    /// Submits a job to the device of its pages. Returns false if the device is full; then nothing has begun.
    fn submit(&self, host: Shared<dyn Host>, job: Job, urgency: Urgency) -> bool;

    /// Notes the end of a transfer. Its result says whether the device is well.
    fn note_end(&self, job: &Job, result: &io::Result<()>);

    /// Returns a mark to hold while a completion runs. It distinguishes the engine's panics from a device's.
    fn completing(&self) -> Option<Completing<'_>> {
        None
    }

    /// Returns whether the store may have transfers in flight.
    fn has_devices(&self) -> bool;

    /// Starts the transfers that its devices have only collected so far.
    fn flush(&self);

    /// Completes the transfers that have ended.
    fn poll(&self);

    /// Makes devices complete transfers by themselves, because a waiting thread cannot fetch completions.
    fn serve(&self);

    /// Does what [`Device::wait`](crate::io::Device::wait) does, for a thread that waits for any transfer of
    /// the store.
    fn wait_for_any(&self, still_waiting: &dyn Fn() -> bool) -> Waited;

    /// Completes transfers while `still_waiting`, or says that the thread may sleep. For a thread that waits
    /// for the transfer of a page. See [`Device::wait`](crate::io::Device::wait).
    fn wait(&self, page: StoredPage, queue: u32, still_waiting: &dyn Fn() -> bool) -> Waited;
}

/// A reference of a page's place. Give it to an entry or to a frame that is away ([`Reference::into_page`]),
/// or end it with [`PageStore::drop_reference`]. Dropping it instead leaks it, and panics if debug assertions
/// are on.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a reference has to be given on, or dropped in its store"]
pub(crate) struct Reference(StoredPage);

impl Reference {
    /// Makes the value for a reference that the store has just counted, or that an entry or a frame has just
    /// given up. No other value stands for it.
    #[inline]
    pub(crate) fn counted(page: StoredPage) -> Self {
        Self(page)
    }

    /// The page whose place this is.
    #[inline]
    pub(crate) fn page(&self) -> StoredPage {
        self.0
    }

    /// Leaves the reference counted, for the entry or the frame that now leads to the place.
    #[inline]
    pub(crate) fn into_page(self) -> StoredPage {
        let page = self.0;
        std::mem::forget(self);
        page
    }
}

#[cfg(debug_assertions)]
impl Drop for Reference {
    fn drop(&mut self) {
        // A second panic in a panicking thread would abort the process, and hide the first.
        assert!(is_panicking(), "the reference of {:?} was lost", self.0);
    }
}

/// A mark on the thread that runs a completion.
pub(crate) struct Completing<'a> {
    is_broken: &'a AtomicBool,
    was_panicking: bool,
}

impl<'a> Completing<'a> {
    /// Begins a completion. A panic in it sets `is_broken`.
    pub(crate) fn begin(is_broken: &'a AtomicBool) -> Self {
        Self { is_broken, was_panicking: is_panicking() }
    }
}

impl Drop for Completing<'_> {
    fn drop(&mut self) {
        if is_panicking() && !self.was_panicking {
            // Relaxed: only the thread that unwinds reads it.
            self.is_broken.store(true, Ordering::Relaxed);
        }
    }
}

/// Why a page was not read.
#[derive(Clone, Debug)]
pub(crate) enum Unread {
    /// The device was full. Try again when a transfer has ended.
    NoRoom,
    /// The device failed, or returned wrong bytes.
    Failed(Error),
}

/// What a store may consider when it writes a batch.
pub(crate) struct Leaving<'a> {
    pub(crate) frames: &'a FrameAllocator,
    pub(crate) rmap: &'a ReverseMap,
    /// Pages whose write has ended, so far.
    pub(crate) ended_pages: u64,
    /// Pages being written now.
    pub(crate) writing_pages: u32,
    /// The shadow of pages that are evicted now.
    pub(crate) now: Shadow,
    /// Whether faults come through translations.
    pub(crate) translated: bool,
}

/// The outcome for a page of [`PageStore::put_away`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a page to be written is under WRITEBACK"]
pub(crate) enum PutAway {
    /// The page is in its place, and the frame clean. If `awaited`, wake threads that wait for I/O on the
    /// frame.
    Done {
        /// A thread saw the frame under writeback.
        awaited: bool,
    },
    /// The page must be written to a device. Its frame is under WRITEBACK.
    ToBeWritten,
    /// The page stays, with the caller's pin. A thread has just pinned it, or a fault brought it back and its
    /// store no longer knows it.
    Refused {
        /// As for `Done`.
        awaited: bool,
    },
}

/// Whether a page that no entry leads to still has a frame.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an orphan must be unpinned"]
pub(crate) enum Orphan {
    /// An entry still leads to the page, or there is no frame.
    None,
    /// The frame is being freed: drop the pin.
    Frame(PinnedFrame),
}

/// The outcome for a frame of [`PageStore::evict_run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an evicted frame must be freed"]
pub(crate) enum Evicted {
    /// No page owns the frame. The caller frees it, and has no pin on it any more.
    Freed,
    /// The frame is in use, or dirty. It stays, with the caller's pin.
    Kept,
}

/// The outcome of a look for the frame of a page, without a lock.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a frame that was found is pinned"]
pub(crate) enum Found {
    /// The page's frame.
    Frame(PinnedFrame),
    /// This frame was the page's a moment ago: drop the pin, and look again.
    Moved(PinnedFrame),
    /// The page has no frame, as far as a thread can see without the lock.
    Nothing,
}

/// The outcome of putting a fresh frame under READING for a page.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a read that was begun must be ended, and a frame that was found is pinned"]
pub(crate) enum Begun<S> {
    /// The store knows the fresh frame, which is under READING. The shadow is what the page's last frame left
    /// behind.
    Reading(PinnedFrame, Option<S>),
    /// Another frame has the page already. The fresh frame comes back.
    Cached(PinnedFrame, Block),
    /// No entry leads to the page any more. The fresh frame comes back.
    Gone(Block),
}

/// The outcome of the start of a frame's writeback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a writeback that was started must be ended"]
pub(crate) enum Started {
    Yes,
    /// Another thread holds the frame, or the frame is not dirty, or the store no longer knows it.
    Refused,
    /// As `Refused`, but a thread saw the frame under writeback and waits: wake threads that wait for I/O on
    /// the frame.
    RefusedAndAwaited,
}
