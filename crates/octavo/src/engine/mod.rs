//! The structures of one manager that all paths share, and the few steps by which a page loses its frame.
//!
//! | file | what it has |
//! |---|---|
//! | `mod` | the structures; uses, pins and releases of frames |
//! | `batch` | asking a translation about many pages at once |
//! | `build` | building an engine from its options |
//! | `busy` | making all entries that show one frame busy at once |
//! | `devices` | calls to the devices of all stores |
//! | `pin_share` | the share of memory that the pins of one space may keep |
//! | `relocate` | moving the pages of a range to other addresses |
//! | `space_state` | the part of a space's state that faults need |
//! | `edges` | splitting blocks over the edges of a range before it changes |
//! | `fork` | giving a child space what its parent has |
//! | `growth` | making new pages leave room for pages that come in |
//! | `homecoming` | bringing away pages home |
//! | `immovable` | pages that cannot go, and when they are tried again |
//! | `out_of_memory` | the error of an access that finds no room, and what uses the budget |
//! | `unmap` | clearing a range of a table, and protecting one |
//! | `validate` | checking tables, frames and slots against each other |
//! | `space_use` | how much each space uses, and its quota |
//! | `split` | splitting a huge leaf into 512 small ones |
//! | `streams` | finding faults that follow each other, and planning what to read ahead |
//! | `stretches` | whether readahead pays, by stretch of addresses |
//! | `transfers` | pages under way to and from devices, and what happens when they arrive |
//! | `transfer_pins` | the limit on pages that transfers between files and spaces pin |
//! | `waiter` | how an access waits for devices, and until when |
//!
//! Locking: only a split holds the LRU's lock while it calls another structure. The table in
//! `docs/locking.md` has the order in which locks may nest.

mod batch;
mod build;
mod busy;
mod devices;
mod edges;
mod fork;
mod growth;
mod homecoming;
mod immovable;
mod out_of_memory;
mod pin_share;
mod relocate;
mod space_state;
mod space_use;
mod split;
mod streams;
mod stretches;
mod transfer_pins;
mod transfers;
mod unmap;
mod validate;
mod waiter;

use std::collections::BTreeMap;
use std::task::{Poll, Waker};

use octavo_platform::{ForkCanary, Inside};

use crate::backoff::Backoff;
use crate::budget::Budget;
use crate::config::{DirtyPages, HugePolicy, HugeZeroWrite, PinPath};
use crate::counters::Counters;
use crate::error::{Error, Result};
use crate::frame::latch::{Hold, Latches};
use crate::frame::state::Kind;
use crate::frame::zero_page::HugeZero;
use crate::frame::{Block, Dropped, FrameAllocator, PinnedFrame};
use crate::io::Host;
use crate::latency::Latencies;
use crate::lru::{IsolatedFrame, Lru};
use crate::page_cache::PageCache;
use crate::rmap::{Owner, ReverseMap};
use crate::store::{Found, Leaving, Orphan, PageStore, Reference};
use crate::swap::{Handle, Swap};
use crate::sync::park::block_until;
use crate::sync::timer::Timer;
use crate::sync::wait::{WaitTable, Waiting, key_of};
use crate::sync::{Arc, AtomicBool, AtomicU32, Duration, Machine, Mutex, Ordering, Shared, WeakShared};
use crate::table::entry::EntryWord;
use crate::table::translation::Translation;
use crate::table::{SpaceId, Table};
use crate::units::{CHUNK_FRAMES, FrameId, StoreId, StoredPage, SwapSlot};

pub(crate) use batch::{Batch, ask_for};
pub(crate) use build::EngineConfig;
pub(crate) use busy::AllBusy;
pub(crate) use edges::{Obstacle, split_edges};
pub(crate) use fork::{Lack, fork_range};
pub(crate) use homecoming::{Came, Homecoming};
pub(crate) use pin_share::PinShares;
pub(crate) use relocate::relocate_range;
pub(crate) use space_state::SpaceState;
pub(crate) use space_use::{Figure, Quota, SpaceUse};
pub(crate) use split::{Nodes, Split, split_leaf};
pub(crate) use streams::{Hit, ReadaheadWindow, Streams};
pub(crate) use transfer_pins::TransferPins;
pub(crate) use transfers::Transfers;
pub(crate) use unmap::{clear_space, forget_range, protect_range, unmap_range};
pub(crate) use validate::validate_tables;
pub(crate) use waiter::{Waiter, apart, in_place};

/// Choices that paths consult as they run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    pub(crate) huge: HugePolicy,
    pub(crate) huge_zero_write: HugeZeroWrite,
    pub(crate) pin_path: PinPath,
    pub(crate) dirty_pages: DirtyPages,
    /// How long an access waits for a device. `None` means for ever.
    pub(crate) io_timeout: Option<Duration>,
    /// The most pages of one readahead window. 0 turns readahead off.
    pub(crate) readahead_pages: u32,
}

/// The structures of one manager.
pub struct Engine {
    pub(crate) policy: Policy,
    pub(crate) machine: Machine,
    pub(crate) canary: ForkCanary,
    pub(crate) budget: Arc<Budget>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) latencies: Latencies,
    pub(crate) frames: FrameAllocator,
    /// The latches of frames. In guarded regions, they say how the bytes of a page are lent just now.
    pub(crate) latches: Latches,
    /// 4 KiB of zeros that nobody writes. A pin on a zero page shows them.
    pub(crate) small_zero: FrameId,
    pub(crate) huge_zero: HugeZero,
    pub(crate) table: Table,
    pub(crate) rmap: ReverseMap,
    pub(crate) lru: Lru,
    pub(crate) swap: Swap,
    pub(crate) waits: WaitTable,
    /// Wakes futures at their deadlines.
    pub(crate) timer: Timer,
    pub(crate) spaces: Mutex<BTreeMap<SpaceId, SpaceRecord>>,
    /// Whether any space has, or had, a translation. If none has, evictions skip the look-up.
    any_translation: AtomicBool,
    /// How many threads reclaim now. A thread that finds nothing to reclaim waits for the others.
    pub(crate) reclaimers: AtomicU32,
    /// Held by the thread that empties chunks, to give them back or to make a block of order 9.
    pub(crate) shrinking: Mutex<()>,
    /// How often compaction has recently failed to make blocks of order 9, for faults and for the pool.
    pub(crate) blocks_for_faults: Backoff,
    pub(crate) blocks_for_pool: Backoff,
    pub(crate) transfers: Transfers,
    transfer_pins: TransferPins,
    /// The number of open files. An open file keeps the manager.
    open_files: AtomicU32,
    /// A buffer for the slots and handles of pages that leave the pool.
    pub(crate) pool_victims: Mutex<Vec<(SwapSlot, Handle)>>,
    pub(crate) space_use: SpaceUse,
    pub(crate) pin_shares: PinShares,
    immovable: immovable::Immovable,
    /// Boxed, because an engine is moved while it is made, and stacks may be small.
    pub(crate) page_cache: Box<PageCache>,
    /// The engine itself, for the completions of transfers.
    itself: WeakShared<Engine>,
}

/// The manager's record of a space, beside its table.
pub(crate) struct SpaceRecord {
    pub(crate) name: String,
    pub(crate) translation: Option<Shared<dyn Translation>>,
}

impl Engine {
    fn host(&self) -> Shared<dyn Host> {
        self.shared()
    }

    /// Returns one more handle to the engine.
    pub(crate) fn shared(&self) -> Shared<Self> {
        self.itself.upgrade().expect("whoever calls the engine keeps it")
    }

    /// Returns an error in a forked child, which must not use the engine.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.canary.is_original_process() { Ok(()) } else { Err(Error::forked_child()) }
    }

    /// Enters the engine for a call that may allocate, or returns an error in a forked child. If the
    /// program's allocator takes its memory from spaces of an engine, it must give other memory to a thread
    /// that is inside the engine.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Inside> {
        self.check_process().map(|()| Inside::enter())
    }

    // --- frames and their holders ---

    /// Drops a pin. Frees the frame if that was its last hold, or lists it again if it was parked.
    #[inline(always)]
    pub(crate) fn unpin(&self, pin: PinnedFrame) {
        let frame = pin.frame();
        match pin.unpin(self.frames.words(frame)) {
            Dropped::Kept => {}
            Dropped::Last => self.free_last(frame),
            Dropped::ToBeListed => self.list_again(IsolatedFrame::counted(frame)),
        }
    }

    /// Lists a parked frame again after its last pin was dropped. Pins taken and dropped meanwhile may park
    /// it once more.
    #[cold]
    #[inline(never)]
    fn list_again(&self, parked: IsolatedFrame) {
        // A forked child lists nothing, just as it frees nothing.
        if self.canary.is_original_process() {
            self.unpin(self.lru.list_again(&self.frames, parked));
        } else {
            parked.into_pin().into_frame();
        }
    }

    /// Takes a frame that shows a page off the LRU. Returns `None` if the frame is not on it.
    pub(crate) fn isolate(&self, frame: FrameId) -> Option<IsolatedFrame> {
        self.lru.isolate(&self.frames, frame, |pin| self.unpin(pin))
    }

    /// Drops the owner's hold on a frame, after its last use.
    pub(crate) fn release(&self, frame: FrameId) {
        if self.frames.words(frame).holds.release() == Dropped::Last {
            self.free_last(frame);
        }
    }

    /// Frees a frame or block that nobody holds any more.
    #[inline(never)]
    pub(crate) fn free_last(&self, frame: FrameId) {
        // A forked child frees nothing. The parent's threads may hold the locks for ever.
        if !self.canary.is_original_process() {
            return;
        }
        self.lru.forget(&self.frames, frame);
        if self.frames.is_away(frame) {
            self.give_place_up(frame);
        }
        let order = self.frames.words(frame).order();
        self.frames.free(frame, order).expect("a frame is freed by whoever dropped its last hold");
    }

    /// Drops a reference to a page's place, and lets the page go if nothing else leads to it.
    pub(crate) fn drop_reference(&self, reference: Reference) {
        let orphan = self.store(reference.page()).drop_reference(&self.frames, reference);
        self.release_orphan(orphan);
    }

    /// Lets the orphan go, if there is one.
    pub(crate) fn release_orphan(&self, orphan: Orphan) {
        if let Orphan::Frame(pin) = orphan {
            self.unpin(pin);
        }
    }

    /// Returns what stores may consult about pages on their way out.
    pub(crate) fn leaving(&self) -> Leaving<'_> {
        Leaving {
            frames: &self.frames,
            rmap: &self.rmap,
            ended_pages: self.transfers.ended_pages(),
            writing_pages: self.transfers.writing_pages(),
            now: self.lru.shadow(),
            translated: self.has_translations(),
        }
    }

    /// Returns the store that keeps a page.
    #[inline]
    pub(crate) fn store(&self, page: StoredPage) -> &dyn PageStore {
        match page.store() {
            StoreId::Swap => &self.swap,
            StoreId::File => &*self.page_cache,
        }
    }

    /// Lets a frame go if only its store still uses it and nothing leads to its page any more.
    pub(crate) fn forget_orphan(&self, frame: FrameId) {
        if let Some(page) = self.frames.words(frame).stored.page() {
            let orphan = self.store(page).forget_orphan(&self.frames, frame);
            self.release_orphan(orphan);
        }
    }

    /// Returns the frame in the swap cache that has a slot's page, and pins it. A miss is only a hint:
    /// [`Swap::begin_read`] knows for sure.
    pub(crate) fn find_swapped(&self, slot: SwapSlot) -> Option<PinnedFrame> {
        self.find(|| self.swap.cache.look_up(&self.frames, slot))
    }

    /// Returns the frame that has a page of a file, and pins it. A miss is only a hint.
    pub(crate) fn find_in_file(&self, page: StoredPage) -> Option<PinnedFrame> {
        self.find(|| self.page_cache.look_up(&self.frames, page))
    }

    /// Looks up a page's frame until it does not move meanwhile.
    #[inline]
    fn find(&self, look_up: impl Fn() -> Found) -> Option<PinnedFrame> {
        loop {
            match look_up() {
                Found::Frame(pin) => return Some(pin),
                Found::Nothing => return None,
                Found::Moved(pin) => self.unpin(pin),
            }
        }
    }

    /// Marks a clean frame as dirty. The caller has it pinned. If a file has its page, the page gets its tag
    /// first: a thread that finds the mark relies on the tag.
    #[cold]
    pub(crate) fn mark_dirty(&self, frame: FrameId) {
        let words = self.frames.words(frame);
        if let Some(page) = words.stored.page()
            && page.store() == StoreId::File
        {
            self.page_cache.note_dirty(&self.frames, page, frame);
        }
        words.holds.mark_dirty();
    }

    /// Counts the frames and blocks that only pins keep, because no page shows them any more. Walks all
    /// frames.
    pub(crate) fn outlived_by_pins(&self) -> u64 {
        let reached = self.frames.reached_chunks().map(|chunk| chunk.first());
        let online = reached.filter(|first| self.frames.words(*first).state.load().kind() != Kind::Offline);
        let frames = online.flat_map(|first| (0..CHUNK_FRAMES).map(move |index| first.plus(index)));
        frames.filter(|frame| self.frames.words(*frame).holds.load().is_dying()).count() as u64
    }

    /// Makes a fresh frame or block ready to be published at `owner`: live, in use, and on its way to the
    /// LRU. It is dirty, because its bytes are nowhere else.
    #[inline]
    pub(crate) fn adopt(&self, block: Block, owner: Owner) -> FrameId {
        let frame = self.adopt_off_lists(block, owner);
        self.lru.add(&self.frames, frame);
        frame
    }

    /// Does what [`Engine::adopt`] does, for a page that was in the frame `from`. The policy keeps what it
    /// knows about the page. If the page is not dirty, a store has its bytes too.
    pub(crate) fn adopt_from(&self, from: FrameId, block: Block, owner: Owner, dirty: bool) -> FrameId {
        let frame = self.begin(block, owner, dirty);
        self.lru.add_in_place_of(&self.frames, from, frame);
        frame
    }

    /// Does what [`Engine::adopt`] does, except that the caller puts the frame on a list.
    #[inline]
    pub(crate) fn adopt_off_lists(&self, block: Block, owner: Owner) -> FrameId {
        self.begin(block, owner, true)
    }

    #[inline]
    fn begin(&self, block: Block, owner: Owner, dirty: bool) -> FrameId {
        let frame = block.into_frame();
        let words = self.frames.words(frame);
        words.holds.begin(dirty);
        words.uses.set_first();
        self.rmap.set_first(words, owner);
        self.count_resident(owner.space, frame, u64::from(words.order().frames()));
        frame
    }

    /// Ends the use of a frame that the entry of `owner` no longer shows. Frees the frame after its last
    /// hold.
    pub(crate) fn disown(&self, frame: FrameId, owner: Owner) {
        let words = self.frames.words(frame);
        self.rmap.remove(&self.frames, frame, owner);
        if words.holds.load().pins() != 0 {
            self.note_orphan(owner, frame);
        }
        self.space_use.subtract(owner.space, Figure::Resident, u64::from(words.order().frames()));
        match words.uses.remove() {
            0 => self.release(frame),
            1 => self.forget_orphan(frame),
            _ => {}
        }
    }

    // --- waiting ---

    /// Publishes an entry that the caller had made Busy, and wakes its waiters.
    #[inline]
    pub(crate) fn publish(&self, word: &EntryWord, to: crate::table::entry::Entry) {
        if word.publish(to) {
            self.waits.wake(key_of(word));
        }
    }

    /// Registers `waker` with a busy entry.
    pub(crate) fn wait_for_entry(&self, word: &EntryWord, waker: &Waker) -> Waiting {
        self.waits.register(key_of(word), waker, || word.announce_waiter())
    }

    /// Registers `waker` with a frame under I/O.
    pub(crate) fn wait_for_io(&self, frame: FrameId, waker: &Waker) -> Waiting {
        let holds = &self.frames.words(frame).holds;
        self.waits.register(key_of(holds), waker, || holds.announce_waiter())
    }

    /// Registers `waker` with the latch of a frame.
    pub(crate) fn wait_for_latch(&self, frame: FrameId, hold: Hold, waker: &Waker) -> Waiting {
        let latch = &self.latches[frame];
        self.waits.register(key_of(latch), waker, || latch.announce_waiter(hold))
    }

    /// Releases the latch of a frame, and wakes its waiters.
    #[inline]
    pub(crate) fn unlatch(&self, frame: FrameId, hold: Hold) {
        if self.latches[frame].release(hold) {
            self.wake_latch(frame);
        }
    }

    /// Makes the caller's exclusive hold on the latch of a frame a shared one.
    pub(crate) fn downgrade_latch(&self, frame: FrameId) {
        if self.latches[frame].downgrade() {
            self.wake_latch(frame);
        }
    }

    /// Wakes all waiters for the latch of a frame. Those that still wait register again.
    pub(crate) fn rouse_latch(&self, frame: FrameId) {
        self.latches[frame].forget_waiters();
        self.wake_latch(frame);
    }

    #[cold]
    fn wake_latch(&self, frame: FrameId) {
        // In a forked child, the waiters are the parent's, and the lock of their bucket may be held for ever.
        if self.check_process().is_ok() {
            self.waits.wake(key_of(&self.latches[frame]));
        }
    }

    /// Wakes all waiters for I/O on the frame.
    pub(crate) fn wake_io(&self, frame: FrameId) {
        self.waits.wake(key_of(&self.frames.words(frame).holds));
    }

    /// Blocks until the entry is not busy.
    pub(crate) fn block_on_entry(&self, word: &EntryWord) {
        block_until(|waker| {
            if word.load().is_busy() && self.wait_for_entry(word, waker) == Waiting::Registered {
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        });
    }

    // --- files and spaces ---

    pub(crate) fn note_open_file(&self) {
        self.open_files.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_closed_file(&self) {
        self.open_files.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns how many files are open.
    pub(crate) fn open_files(&self) -> u32 {
        self.open_files.load(Ordering::Relaxed)
    }

    /// Returns whether any space has, or had, a translation.
    pub(crate) fn has_translations(&self) -> bool {
        self.any_translation.load(Ordering::Acquire)
    }

    /// Returns the translation of a space, for callers that have only a frame's owner.
    pub(crate) fn translation(&self, space: SpaceId) -> Option<Shared<dyn Translation>> {
        if !self.has_translations() {
            return None;
        }
        self.spaces.lock().get(&space)?.translation.clone()
    }

    pub(crate) fn register_space(&self, space: SpaceId, record: SpaceRecord) {
        if record.translation.is_some() {
            self.any_translation.store(true, Ordering::Release);
        }
        let mut spaces = self.spaces.lock();
        let first = spaces.keys().next().copied();
        spaces.insert(space, record);
        drop(spaces);
        self.pin_shares.add_space();
        // With a second space, the first one's pins get a limit.
        if let Some(first) = first {
            self.pin_share_changed(first);
        }
    }
}
