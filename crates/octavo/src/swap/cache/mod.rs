//! The swap cache: the frame of each slot's page, the number of entries that lead to the slot, and the slot's
//! content.
//!
//! The cache has three forms ([`SwapCache`]), which differ only in `index`.
//!
//! | file | what |
//! |---|---|
//! | `mod` | what can be done with a slot |
//! | `index` | from a slot to its frame: a tree with tags, a tree, a table |
//! | `words` | the 16 bytes of a slot |
//! | `standalone` | a cache without a manager, for measurements |
//!
//! Invariants:
//! - A frame's `stored` word and the index agree under the lock of the slot's cluster. Both change only under
//!   it.
//! - A page under writeback is never removed, and its slot never freed.
//! - One compare-and-swap evicts a frame. It succeeds only if the pin of the evicting thread is the frame's
//!   only pin, and the frame is clean.
//! - In the form with tags: whenever the lock is free, a page has the tag WRITEBACK if and only if its frame
//!   has the flag.
//!
//! Locking: each cluster of 512 slots has a lock. Clusters with the same number modulo 256 have the same
//! lock. It is taken with pins held. In the tree forms, the mapping's lock is taken under it.
//! [`FreeSlot::slot_freed`] is called without either lock. Look-ups take no lock in any form. References are
//! counted under the cluster's lock in all forms. The counters `swap_lock_*` count how often the lock that
//! guards the *index* is taken to change it.
//!
//! **Look-ups.** A look-up reads the word, pins the frame, and reads the word again. A thread that takes a
//! frame out of the cache changes the word first. Then it does a read-modify-write on the frame's holds
//! (`try_reclaim`, `release`, or the drop of its own pin). If the pin comes before this read-modify-write,
//! the removing thread sees the pin. If it comes after, the pin acquires the changed word. Frame words are
//! never reused for anything else, so a pin on a frame that has lost the slot does no harm. The look-up also
//! reads the slot from the frame's words: in a tree, each of the two walks may end in a leaf that is now at
//! another place of the tree. A miss is only a hint: [`Cache::begin_read`] looks the slot up again, under the
//! lock.
//!
//! **Call sites.** `insert`, `insert_run`, `start_writeback`, `end_writeback` and `evict_run` are never
//! inlined, so that a sampling profiler shows them.
//!
//! **Writeback.** `index::start_unlocked` says why forms without tags need no lock at the start and end of a
//! writeback.

mod index;
mod standalone;
mod words;

use std::collections::HashMap;

use crossbeam_utils::CachePadded;

use crate::budget::Budget;
use crate::config::SwapCache;
use crate::counters::{Counter, Counters};
use crate::frame::{Block, Dropped, FrameAllocator, FrameWords, PageIs, PinnedFrame};
use crate::mapping::PageWord;
use crate::policy::Shadow;
use crate::sizes::SWAP_CACHE_LOCKS as LOCKS;
use crate::store::{Begun, Evicted, Found, Orphan, Started};
use crate::swap::clusters::{CLUSTER_SLOTS, SlotRun};
use crate::sync::{Arc, Mutex, MutexGuard, WordArray};
use crate::units::{FrameId, SwapSlot};

use index::SlotIndex;
pub use standalone::StandaloneSwapCache;
use words::set_slot;
pub(crate) use words::{SlotWords, slot_of};

/// The owner of slots. The cache reports each slot that becomes free.
pub(crate) trait FreeSlot: std::fmt::Debug + Send + Sync {
    /// Called, with no lock held, when nothing leads to the slot and no frame has its page. The slot may be
    /// given to another page, and its `content` freed.
    fn slot_freed(&self, frames: &FrameAllocator, slot: SwapSlot, content: u64);
}

/// The cache.
#[derive(Debug)]
pub(crate) struct Cache {
    index: SlotIndex,
    words: WordArray<SlotWords>,
    locks: Box<[CachePadded<Mutex<()>>]>,
    sink: Box<dyn FreeSlot>,
    counters: Arc<Counters>,
}

impl Cache {
    /// The bytes that the cache keeps for the slots of a cluster. They are charged when the cluster is first
    /// used.
    pub(crate) const BYTES_PER_CLUSTER: u64 = (CLUSTER_SLOTS * size_of::<SlotWords>()) as u64;

    /// Makes a cache for areas that begin at the slots `areas`, with `end` slots in all.
    ///
    /// # Errors
    /// The kernel's error, if the address space is exhausted.
    pub(crate) fn new(
        form: SwapCache,
        areas: &[u32],
        end: u32,
        sink: Box<dyn FreeSlot>,
        budget: &Arc<Budget>,
        counters: Arc<Counters>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            index: SlotIndex::new(form, areas, end, budget)?,
            words: WordArray::new((end as usize).next_multiple_of(CLUSTER_SLOTS).max(1))?,
            locks: (0..LOCKS).map(|_| CachePadded::new(Mutex::new(()))).collect(),
            sink,
            counters,
        })
    }

    #[inline]
    fn words(&self, slot: SwapSlot) -> &SlotWords {
        &self.words[slot.0 as usize]
    }

    #[inline]
    fn lock(&self, slot: SwapSlot) -> MutexGuard<'_, ()> {
        self.locks[slot.0 as usize / CLUSTER_SLOTS % LOCKS].lock()
    }

    /// Under the slot's lock: returns the frame that has its page.
    #[inline]
    fn cached(&self, frames: &FrameAllocator, slot: SwapSlot) -> Option<FrameId> {
        let frame = self.index.peek(slot, self.words(slot)).as_frame()?;
        // The word of a tree may be out of date. The frame's own words decide.
        frames.words_if_any(frame).and_then(slot_of).filter(|of| *of == slot).map(|_| frame)
    }

    /// Returns the slot of a cached frame, with the slot's lock. Returns `None` if the frame is not, or no
    /// longer, in the cache.
    fn lock_cached(&self, words: &FrameWords) -> Option<(MutexGuard<'_, ()>, SwapSlot)> {
        let slot = slot_of(words)?;
        let lock = self.lock(slot);
        (slot_of(words) == Some(slot)).then_some((lock, slot))
    }

    /// Called under the slot's lock, and releases it. Frees a slot that nothing leads to any more.
    fn free(&self, lock: MutexGuard<'_, ()>, frames: &FrameAllocator, slot: SwapSlot) {
        let content = self.words(slot).swap_content(0);
        drop(lock);
        self.sink.slot_freed(frames, slot, content);
    }

    // --- slots on their way into use ---

    /// Reserves slots that the allocator has just given out. Only the caller has these slots.
    pub(crate) fn reserve(&self, run: SlotRun) {
        for slot in run.first.0..run.first.0 + run.count {
            let words = self.words(SwapSlot(slot));
            assert!(
                words.frame() == PageWord::NOTHING && words.references() == 0,
                "{:?} was given out while it was in use",
                SwapSlot(slot)
            );
            words.set_frame(PageWord::RESERVED);
        }
    }

    /// Gives back a reserved slot that got no frame.
    pub(crate) fn free_unused(&self, frames: &FrameAllocator, slot: SwapSlot) {
        let (lock, words) = (self.lock(slot), self.words(slot));
        assert!(
            words.frame() == PageWord::RESERVED && words.references() == 0,
            "an unused slot was used: {slot:?}"
        );
        words.set_frame(PageWord::NOTHING);
        self.free(lock, frames, slot);
    }

    /// Does what [`Cache::insert_run`] does, for one frame.
    #[cfg(test)]
    #[inline(never)]
    pub(crate) fn insert(&self, frames: &FrameAllocator, slot: SwapSlot, frame: FrameId) -> bool {
        let mut inserted = false;
        self.insert_run(frames, slot, [frame], |_, _, done| inserted = done);
        inserted
    }

    /// Puts frames that the caller has pinned into the cache at reserved slots, consecutive from `first`.
    /// Calls `each` for each frame, with a lock held: with false if the frame is dying and its slot is still
    /// reserved, else with true.
    #[inline(never)]
    pub(crate) fn insert_run(
        &self,
        frames: &FrameAllocator,
        first: SwapSlot,
        run: impl IntoIterator<Item = FrameId>,
        mut each: impl FnMut(SwapSlot, FrameId, bool),
    ) {
        let mut lock = None;
        for (slot, frame) in (first.0..).map(SwapSlot).zip(run) {
            if lock.is_none() || (slot.0 as usize).is_multiple_of(CLUSTER_SLOTS) {
                drop(lock.take());
                lock = Some(self.lock(slot));
                if matches!(self.index, SlotIndex::Table) {
                    self.counters.count(Counter::SwapLockAdd);
                }
            }
            each(slot, frame, self.insert_locked(frames, slot, frame));
        }
    }

    fn insert_locked(&self, frames: &FrameAllocator, slot: SwapSlot, frame: FrameId) -> bool {
        let words = self.words(slot);
        assert_eq!(words.frame(), PageWord::RESERVED, "a frame is inserted into a slot of its own");
        let frame_words = frames.words(frame);
        // The slot is set first. From then on, a thread may find that only the cache uses the frame, and that
        // thread needs the slot.
        set_slot(frame_words, Some(slot));
        if !frame_words.uses.try_add() {
            set_slot(frame_words, None);
            return false;
        }
        if !matches!(self.index, SlotIndex::Table) {
            self.counters.count(Counter::SwapLockAdd);
        }
        self.index.put(slot, words, frame);
        true
    }

    // --- references ---

    /// Counts one more entry that says Swapped to this slot, if the frame is still cached there.
    pub(crate) fn add_reference(&self, frames: &FrameAllocator, slot: SwapSlot, frame: FrameId) -> bool {
        let _lock = self.lock(slot);
        let cached = slot_of(frames.words(frame)) == Some(slot);
        if cached {
            let words = self.words(slot);
            words.set_references(words.references() + 1);
        }
        cached
    }

    /// Counts one more entry that says Swapped to this slot. The caller holds such an entry.
    pub(crate) fn share(&self, slot: SwapSlot) {
        let _lock = self.lock(slot);
        let words = self.words(slot);
        let references = words.references();
        assert!(references > 0, "an entry in hand leads to the slot");
        words.set_references(references + 1);
    }

    /// Returns whether several pages share a frame at home: after a fork, other entries show it, or lead to
    /// its slot. The caller has an entry that shows it. A frame of one page remains a frame of one page while
    /// the caller's entry shows it: only an entry that shows a frame or leads to its slot can add another. A
    /// frame may look shared while other entries are just being unmapped.
    pub(crate) fn is_shared(&self, frames: &FrameAllocator, frame: FrameId) -> bool {
        let words = frames.words(frame);
        // An entry counts its new use or reference before it drops the old one. References change only under
        // this lock.
        match self.lock_cached(words) {
            Some((_lock, slot)) => self.words(slot).references() != 0 || words.uses.get() > 2,
            None => words.uses.get() > 1,
        }
    }

    /// Counts one entry fewer.
    pub(crate) fn drop_reference(&self, frames: &FrameAllocator, slot: SwapSlot) -> Orphan {
        let (lock, words) = (self.lock(slot), self.words(slot));
        let left = words.references().checked_sub(1).expect("a reference was dropped twice");
        words.set_references(left);
        if let Some(frame) = self.cached(frames, slot) {
            return self.forget_if_orphan(lock, frames, slot, frame);
        }
        if left == 0 {
            if self.index.peek(slot, words) != PageWord::NOTHING {
                self.counters.count(Counter::SwapLockOther);
                self.index.forget(slot, words);
            }
            self.free(lock, frames, slot);
        }
        Orphan::None
    }

    // --- the way in ---

    /// The cached frame of a slot.
    #[inline]
    pub(crate) fn look_up(&self, frames: &FrameAllocator, slot: SwapSlot) -> Found {
        let words = self.words(slot);
        let seen = self.index.peek(slot, words);
        let Some((frame, frame_words)) =
            seen.as_frame().and_then(|frame| Some((frame, frames.words_if_any(frame)?)))
        else {
            return Found::Nothing;
        };
        let (pin, _) = PinnedFrame::take(frame, frame_words);
        if self.index.peek(slot, words) == seen && slot_of(frame_words) == Some(slot) {
            Found::Frame(pin)
        } else {
            Found::Moved(pin)
        }
    }

    /// Returns the cached frame of a slot, pinned. Takes the slot's lock, so a miss is exact: while an entry
    /// leads to the slot, and a thread has pinned the slot's frame, this look-up finds the frame.
    pub(crate) fn find(&self, frames: &FrameAllocator, slot: SwapSlot) -> Option<PinnedFrame> {
        let _lock = self.lock(slot);
        self.pin_cached(frames, slot)
    }

    /// Under the slot's lock: pins the frame that has its page. A frame in the cache is in use, so it cannot
    /// be freed meanwhile.
    fn pin_cached(&self, frames: &FrameAllocator, slot: SwapSlot) -> Option<PinnedFrame> {
        self.cached(frames, slot).map(|frame| PinnedFrame::take(frame, frames.words(frame)).0)
    }

    /// Puts a fresh frame into the cache for reading, pinned for the caller, if the slot's page is out.
    /// Refuses if another frame already has the page, or if no entry leads to the slot any more, since the
    /// caller's entry may have changed meanwhile.
    pub(crate) fn begin_read(&self, frames: &FrameAllocator, slot: SwapSlot, fresh: Block) -> Begun<Shadow> {
        let (_lock, words) = (self.lock(slot), self.words(slot));
        self.counters.count(Counter::SwapLockOther);
        if words.references() == 0 {
            return Begun::Gone(fresh);
        }
        if let Some(pin) = self.pin_cached(frames, slot) {
            return Begun::Cached(pin, fresh);
        }
        let (pin, shadow) = self.put_for_reading(frames, slot, fresh);
        Begun::Reading(pin, shadow)
    }

    /// Returns whether the slot's page has no frame. This is a guess.
    pub(crate) fn is_out(&self, slot: SwapSlot) -> bool {
        let words = self.words(slot);
        words.frame() != PageWord::RESERVED && self.index.peek(slot, words).as_frame().is_none()
    }

    /// Under the slot's lock: sets a fresh frame for a page that is out. Returns the shadow that the former
    /// frame left.
    fn put_for_reading(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        fresh: Block,
    ) -> (PinnedFrame, Option<Shadow>) {
        let fresh = fresh.into_frame();
        let frame_words = frames.words(fresh);
        frame_words.holds.begin_reading();
        let (pin, _) = PinnedFrame::take(fresh, frame_words);
        frame_words.uses.set_first();
        set_slot(frame_words, Some(slot));
        (pin, self.index.put(slot, self.words(slot), fresh).as_shadow())
    }

    /// Takes a frame whose read failed out of the cache. The caller has pinned it.
    pub(crate) fn forget_failed(&self, frames: &FrameAllocator, slot: SwapSlot, frame: FrameId) {
        let frame_words = frames.words(frame);
        match self.lock_cached(frame_words) {
            Some((lock, cached)) if cached == slot => self.uncache_pinned(lock, frames, slot, frame_words),
            _ => {}
        }
    }

    // --- the way out ---

    /// Changes DIRTY to WRITEBACK. The frame must be in the cache at this slot, dirty (or clean, as `page`
    /// says), and held by the caller's pin alone. The frame keeps its slot until the writeback ends, even if
    /// all entries are unmapped. The caller then calls [`Cache::forget_orphan`].
    #[inline(never)]
    pub(crate) fn start_writeback(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        frame: FrameId,
        page: PageIs,
    ) -> Started {
        if self.index.locks_writeback() {
            self.counters.count(Counter::SwapLockStartWriteback);
        }
        self.index.start_writeback(slot, frame, frames.words(frame), page)
    }

    /// Ends the writeback of a frame. A failed writeback leaves it dirty. Returns whether a thread waits for
    /// the frame.
    #[inline(never)]
    pub(crate) fn end_writeback(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        frame: FrameId,
        written: bool,
    ) -> bool {
        if self.index.locks_writeback() {
            self.counters.count(Counter::SwapLockEndWriteback);
        }
        self.index.end_writeback(slot, frames.words(frame), written)
    }

    /// Does what [`Cache::evict_run`] does, for one frame.
    #[cfg(test)]
    pub(crate) fn try_evict(
        &self,
        frames: &FrameAllocator,
        frame: FrameId,
        shadow: Option<Shadow>,
    ) -> Evicted {
        let mut outcome = Evicted::Kept;
        let slot = slot_of(frames.words(frame));
        self.evict_run(frames, slot.map(|slot| (slot, frame)), shadow, |_, evicted| outcome = evicted);
        outcome
    }

    /// Forgets clean frames. Only the caller has pinned them, and no entry shows them. Their slots keep the
    /// bytes, and the index keeps the shadow. Consecutive frames of one cluster take its lock once. Calls
    /// `each` with the outcome for each frame, with a lock held.
    #[inline(never)]
    pub(crate) fn evict_run(
        &self,
        frames: &FrameAllocator,
        run: impl IntoIterator<Item = (SwapSlot, FrameId)>,
        shadow: Option<Shadow>,
        mut each: impl FnMut(FrameId, Evicted),
    ) {
        let (mut lock, mut locked) = (None, 0);
        for (slot, frame) in run {
            let cluster = slot.0 as usize / CLUSTER_SLOTS;
            if lock.is_none() || locked != cluster {
                drop(lock.take());
                (lock, locked) = (Some(self.lock(slot)), cluster);
                if matches!(self.index, SlotIndex::Table) {
                    self.counters.count(Counter::SwapLockRemove);
                }
            }
            let evicted = self.evict_locked(frames, slot, frame, shadow);
            each(frame, evicted);
            if evicted == Evicted::Freed && self.words(slot).references() == 0 {
                self.free(lock.take().expect("just locked"), frames, slot);
            }
        }
    }

    fn evict_locked(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        frame: FrameId,
        shadow: Option<Shadow>,
    ) -> Evicted {
        let (words, frame_words) = (self.words(slot), frames.words(frame));
        // If the frame has one use, that is the cache's own, and no entry shows the frame. Everything except
        // the number of uses is checked again below. Uses cannot grow while no other thread holds a pin.
        let holds = frame_words.holds.load();
        if slot_of(frame_words) != Some(slot)
            || frame_words.uses.get() != 1
            || holds.pins() != 1
            || holds.is_dirty()
            || holds.is_writeback()
        {
            return Evicted::Kept;
        }
        let left = PageWord::left(shadow.filter(|_| words.references() != 0));
        if !matches!(self.index, SlotIndex::Table) {
            self.counters.count(Counter::SwapLockRemove);
        }
        // One compare-and-swap freezes the count and checks that the frame is clean.
        if !self.index.forget_if(slot, words, frame, left, || frame_words.holds.try_reclaim()) {
            return Evicted::Kept;
        }
        set_slot(frame_words, None);
        let uses = frame_words.uses.remove();
        debug_assert_eq!(uses, 0, "an entry shows a frame that was evicted");
        Evicted::Freed
    }

    /// Notes that the page of a slot was in use without a frame of the cache, and is out again. This shadow
    /// replaces the page's last shadow, unless other entries lead to the same page after a fork. For those
    /// entries, the page has been out since the last shadow.
    pub(crate) fn leave(&self, slot: SwapSlot, shadow: Shadow) {
        let (_lock, words) = (self.lock(slot), self.words(slot));
        self.counters.count(Counter::SwapLockOther);
        if words.references() == 1 {
            self.index.replace_shadow(slot, words, PageWord::left(Some(shadow)));
        }
    }

    /// Called when the last entry that showed the frame is gone. If no entry says Swapped to its slot,
    /// forgets the frame and frees the slot.
    pub(crate) fn forget_orphan(&self, frames: &FrameAllocator, frame: FrameId) -> Orphan {
        match self.lock_cached(frames.words(frame)) {
            Some((lock, slot)) => self.forget_if_orphan(lock, frames, slot, frame),
            None => Orphan::None,
        }
    }

    /// Under the slot's lock: forgets the frame and frees the slot, if the slot has no reference and the
    /// cache's use of the frame is the only one.
    fn forget_if_orphan(
        &self,
        lock: MutexGuard<'_, ()>,
        frames: &FrameAllocator,
        slot: SwapSlot,
        frame: FrameId,
    ) -> Orphan {
        let frame_words = frames.words(frame);
        // While the frame is being written, the slot must not go to another page. The writing thread calls
        // this function again at the end of the write. A fault that comes too late adds a use for a moment,
        // and calls this function again when it drops the use.
        if self.words(slot).references() != 0
            || frame_words.holds.load().is_writeback()
            || !frame_words.uses.take_only()
        {
            return Orphan::None;
        }
        // The frame leaves LIVE before the slot changes: from then on, no writeback can start. The pin taken
        // here keeps the frame: other threads that drop their pins must not free the frame before all changes
        // here are made.
        let (pin, _) = PinnedFrame::take(frame, frame_words);
        if !frame_words.holds.release_unless_writeback() {
            frame_words.uses.restore_only();
            // The frame stays in the cache. Because of this pin, another thread may have parked the frame,
            // and its writeback may have ended.
            return Orphan::Frame(pin);
        }
        self.counters.count(Counter::SwapLockRemove);
        self.index.forget(slot, self.words(slot));
        set_slot(frame_words, None);
        self.free(lock, frames, slot);
        Orphan::Frame(pin)
    }

    /// Takes a mapped frame out of the cache, if no entry says Swapped to its slot, and frees the slot. The
    /// frame becomes dirty, since its bytes are now nowhere else. The caller has pinned the frame, and reads
    /// [`slot_of`] afterwards.
    pub(crate) fn detach(&self, frames: &FrameAllocator, frame: FrameId) {
        let frame_words = frames.words(frame);
        let Some((lock, slot)) = self.lock_cached(frame_words) else { return };
        // From here on, the caller's pin prevents the start of a writeback.
        if self.words(slot).references() != 0
            || frame_words.uses.get() < 2
            || frame_words.holds.load().is_writeback()
        {
            return;
        }
        frame_words.holds.mark_dirty();
        self.uncache_pinned(lock, frames, slot, frame_words);
    }

    /// Called under the slot's lock, and releases it. Ends the cache's use of a frame that the caller has
    /// pinned. Frees the slot if nothing refers to it.
    fn uncache_pinned(
        &self,
        lock: MutexGuard<'_, ()>,
        frames: &FrameAllocator,
        slot: SwapSlot,
        frame_words: &FrameWords,
    ) {
        self.counters.count(Counter::SwapLockRemove);
        self.index.forget(slot, self.words(slot));
        set_slot(frame_words, None);
        if frame_words.uses.remove() == 0 {
            // The last entry was unmapped after the uses were read.
            let dropped = frame_words.holds.release();
            debug_assert_eq!(dropped, Dropped::Kept, "the caller has a pin, which ends the frame");
        }
        if self.words(slot).references() == 0 {
            self.free(lock, frames, slot);
        }
    }

    // --- the content of slots ---

    /// The content that the slot's writer noted, or 0 if there is none.
    pub(crate) fn content(&self, slot: SwapSlot) -> u64 {
        self.words(slot).content()
    }

    /// Sets the content of the slot, and returns the one before. Only the thread that has the slot's frame
    /// under WRITEBACK may call this.
    pub(crate) fn set_content(&self, slot: SwapSlot, content: u64) -> u64 {
        self.words(slot).swap_content(content)
    }

    /// Replaces the content of a slot in use, if it is `from`. Returns false if it has changed.
    pub(crate) fn change_content(&self, slot: SwapSlot, from: u64, to: u64) -> bool {
        self.words(slot).change_content(from, to)
    }

    // --- checks ---

    /// Returns whether a slot is in use. Exact while no other thread is at work.
    pub(crate) fn is_used(&self, slot: SwapSlot) -> bool {
        let words = self.words(slot);
        words.references() != 0
            || words.frame() != PageWord::NOTHING
            || self.index.peek(slot, words) != PageWord::NOTHING
    }

    /// Compares the references of `slots` with `swapped`, which counts the entries that say Swapped to each
    /// slot. Returns the first contradiction.
    pub(crate) fn contradicted_by(
        &self,
        mut slots: impl Iterator<Item = SwapSlot>,
        swapped: &HashMap<SwapSlot, u32>,
    ) -> Option<String> {
        slots.find_map(|slot| {
            let _lock = self.lock(slot);
            let (counted, entries) =
                (self.words(slot).references(), swapped.get(&slot).copied().unwrap_or(0));
            (counted != entries)
                .then(|| format!("{slot:?} counts {counted} entries, and {entries} lead to it"))
        })
    }

    /// Checks that the slots of these clusters, their frames and the tags agree. Returns how many slots are
    /// in use. Linear; no other thread may be at work.
    ///
    /// # Panics
    /// If they do not agree.
    pub(crate) fn validate(&self, frames: &FrameAllocator, clusters: impl Iterator<Item = u32>) -> u32 {
        let mut used = 0;
        for cluster in clusters {
            let first = cluster as usize * CLUSTER_SLOTS;
            for slot in (first..first + CLUSTER_SLOTS).map(|slot| SwapSlot(slot as u32)) {
                let _lock = self.lock(slot);
                used += u32::from(self.is_used(slot));
                let words = self.words(slot);
                let Some(frame) = self.index.peek(slot, words).as_frame() else {
                    assert!(words.frame() != PageWord::RESERVED || words.references() == 0);
                    continue;
                };
                let frame_words = frames.words(frame);
                assert_eq!(slot_of(frame_words), Some(slot), "frame and slot agree");
                assert!(frame_words.uses.get() >= 1, "a cached frame is in use");
                self.index.validate_writeback(slot, frame_words);
            }
        }
        self.index.validate(&|frame| frames.words(frame).holds.load().is_writeback());
        used
    }
}

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests;
