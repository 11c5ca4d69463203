//! Slots and the swap cache: for each slot, the frame that has its page, and how many entries lead to it.
//!
//! ```text
//! frame word    references    the slot is
//! 0             0             free
//! RESERVED      0             allocated, its frame not inserted yet
//! frame + 1     n             cached: the frame has its bytes (or will, once read)
//! 0             n > 0         on the device only
//! ```
//!
//! Locking: one lock for each group of clusters (512 slots). A slot's two words change only under it, and so do
//! the questions that need both of them and the frame's use count; it is taken with pins held, and only the LRU
//! and the zones come after it. `allocate` has a lock of its own, taken before.
//!
//! Cost: 8 bytes a slot, one page of them for each cluster, charged to the budget when the cluster is first used.
//! Reclaim must not be refused memory for them, so that charge may go over the limit; reclaim then empties a chunk.

use std::collections::HashMap;

use crate::budget::Budget;
use crate::frame::{FrameAllocator, FrameWords};
use crate::swap::SlotRun;
use crate::sync::{Arc, AtomicU32, Mutex, MutexGuard, Ordering, WordArray};
use crate::units::{FrameId, PAGE_BYTES, SwapSlot};

/// Slots of a cluster: 2 MiB of pages.
const CLUSTER_SLOTS: usize = if cfg!(loom) { 2 } else { 512 };
const LOCKS: usize = if cfg!(loom) { 1 } else { 64 };
const RESERVED: u32 = u32::MAX;
/// In a frame's `slot` word: not in the swap cache.
pub(super) const NO_SLOT: u32 = 0;

#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros))]
#[repr(C)]
struct SlotWords {
    frame: AtomicU32,
    references: AtomicU32,
}

/// Whether the caller must release a frame that nothing leads to any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an orphan must be released"]
pub(crate) enum Orphan {
    /// Something still leads to it, or there is no frame.
    None,
    /// Release this frame.
    Frame(FrameId),
}

/// What came of [`Slots::try_evict`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an evicted frame must be freed"]
pub(crate) enum Evicted {
    /// The frame is unowned: the caller frees it. Its pin is gone with it.
    Freed,
    /// Somebody uses it, or it is dirty. It stays, with the caller's pin.
    Kept,
}

/// All slots of an area.
#[derive(Debug)]
pub(super) struct Slots {
    words: WordArray<SlotWords>,
    /// Slots in use, by cluster.
    in_use: WordArray<AtomicU32>,
    locks: Box<[Mutex<()>]>,
    cursor: Mutex<Cursor>,
    used: AtomicU32,
    capacity: u32,
    budget: Arc<Budget>,
}

#[derive(Debug)]
struct Cursor {
    /// The next slot to try.
    next: usize,
    /// Clusters whose words are present and charged.
    touched: usize,
}

/// Under the slot's lock: caches a fresh frame under READING, with a pin.
fn put_for_reading(frames: &FrameAllocator, slot: SwapSlot, words: &SlotWords, fresh: FrameId) {
    let frame_words = frames.words(fresh);
    frame_words.holds.begin_reading();
    frame_words.holds.take_pin();
    frame_words.uses.set_first();
    frame_words.slot.store(slot.0 + 1, Ordering::Relaxed);
    words.frame.store(fresh.0 + 1, Ordering::Relaxed);
}

pub(super) fn slot_of(words: &FrameWords) -> Option<SwapSlot> {
    match words.slot.load(Ordering::Acquire) {
        NO_SLOT => None,
        slot => Some(SwapSlot(slot - 1)),
    }
}

impl Slots {
    pub(super) fn new(capacity: u32, budget: Arc<Budget>) -> std::io::Result<Self> {
        let clusters = (capacity as usize).div_ceil(CLUSTER_SLOTS);
        Ok(Self {
            words: WordArray::new((clusters * CLUSTER_SLOTS).max(1))?,
            in_use: WordArray::new(clusters.max(1))?,
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
            cursor: Mutex::new(Cursor { next: 0, touched: 0 }),
            used: AtomicU32::new(0),
            capacity,
            budget,
        })
    }

    fn lock(&self, slot: SwapSlot) -> (MutexGuard<'_, ()>, &SlotWords) {
        let index = slot.0 as usize;
        (self.locks[index / CLUSTER_SLOTS % LOCKS].lock(), &self.words[index])
    }

    pub(super) fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// With `may_grow`, places never used before come before gaps between used ones.
    pub(super) fn allocate(&self, count: u32, may_grow: bool) -> Option<SlotRun> {
        let mut cursor = self.cursor.lock();
        if self.used() == self.capacity {
            return None;
        }
        let mut cluster = cursor.next / CLUSTER_SLOTS;
        // The cluster at hand, then an empty one, then a new one or any with room.
        if let Some(run) = self.take_from(cluster, cursor.next % CLUSTER_SLOTS, count, &mut cursor) {
            return Some(run);
        }
        let used = |cluster: usize| self.in_use[cluster].load(Ordering::Relaxed) as usize;
        cluster = (0..cursor.touched)
            .find(|&cluster| used(cluster) == 0)
            .or_else(|| if may_grow { self.touch_next(&mut cursor) } else { None })
            .or_else(|| (0..cursor.touched).find(|&cluster| used(cluster) < CLUSTER_SLOTS))
            .or_else(|| self.touch_next(&mut cursor))?;
        self.take_from(cluster, 0, count, &mut cursor)
    }

    fn touch_next(&self, cursor: &mut Cursor) -> Option<usize> {
        let cluster = cursor.touched;
        if cluster * CLUSTER_SLOTS >= self.capacity as usize {
            return None;
        }
        self.budget.charge_over(PAGE_BYTES as u64);
        cursor.touched += 1;
        Some(cluster)
    }

    /// The first run of free slots of `cluster` from `from` on.
    fn take_from(&self, cluster: usize, from: usize, count: u32, cursor: &mut Cursor) -> Option<SlotRun> {
        if cluster >= cursor.touched {
            return None;
        }
        let start = cluster * CLUSTER_SLOTS;
        let end = (start + CLUSTER_SLOTS).min(self.capacity as usize);
        let _lock = self.locks[cluster % LOCKS].lock();
        let is_free = |index: &usize| {
            let words = &self.words[*index];
            words.frame.load(Ordering::Relaxed) == 0 && words.references.load(Ordering::Relaxed) == 0
        };
        let first = (start + from..end).find(is_free)?;
        let run = (first..end.min(first + count as usize)).take_while(is_free).count();
        for words in &self.words[first..first + run] {
            words.frame.store(RESERVED, Ordering::Relaxed);
        }
        self.in_use[cluster].fetch_add(run as u32, Ordering::Relaxed);
        self.used.fetch_add(run as u32, Ordering::Relaxed);
        cursor.next = first + run;
        if cursor.next == end {
            // The next call starts over with the clusters.
            cursor.next = start + CLUSTER_SLOTS - 1;
        }
        Some(SlotRun { first: SwapSlot(first as u32), count: run as u32 })
    }

    /// Under the slot's lock: neither cached nor referred to any more.
    fn count_free(&self, slot: SwapSlot) {
        self.in_use[slot.0 as usize / CLUSTER_SLOTS].fetch_sub(1, Ordering::Relaxed);
        self.used.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn free_unused(&self, slot: SwapSlot) {
        let (_lock, words) = self.lock(slot);
        let before = words.frame.swap(0, Ordering::Relaxed);
        assert!(
            before == RESERVED && words.references.load(Ordering::Relaxed) == 0,
            "an unused slot was used"
        );
        self.count_free(slot);
    }

    pub(super) fn insert(&self, frames: &FrameAllocator, slot: SwapSlot, frame: FrameId) -> bool {
        let (_lock, words) = self.lock(slot);
        assert_eq!(
            words.frame.load(Ordering::Relaxed),
            RESERVED,
            "a frame is inserted into a slot of its own"
        );
        let frame_words = frames.words(frame);
        // The slot first: whoever then finds that only the cache uses the frame must know where.
        frame_words.slot.store(slot.0 + 1, Ordering::Release);
        if !frame_words.uses.try_add() {
            frame_words.slot.store(NO_SLOT, Ordering::Relaxed);
            return false;
        }
        words.frame.store(frame.0 + 1, Ordering::Relaxed);
        true
    }

    pub(super) fn add_reference(&self, slot: SwapSlot, frame: FrameId) -> bool {
        let (_lock, words) = self.lock(slot);
        let cached = words.frame.load(Ordering::Relaxed) == frame.0 + 1;
        if cached {
            words.references.fetch_add(1, Ordering::Relaxed);
        }
        cached
    }

    pub(super) fn drop_reference(&self, frames: &FrameAllocator, slot: SwapSlot) -> Orphan {
        let (_lock, words) = self.lock(slot);
        let left = words.references.fetch_sub(1, Ordering::Relaxed) - 1;
        match words.frame.load(Ordering::Relaxed) {
            0 if left == 0 => {
                self.count_free(slot);
                Orphan::None
            }
            0 => Orphan::None,
            cached => self.forget_if_orphan(frames, slot, words, FrameId(cached - 1)),
        }
    }

    /// Under the slot's lock: with no reference and no use but the cache's, frame and slot go.
    fn forget_if_orphan(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        words: &SlotWords,
        frame: FrameId,
    ) -> Orphan {
        let frame_words = frames.words(frame);
        // Nobody can add a use: that takes an entry that shows the frame, or one that refers to the slot. While the frame
        // is being written the slot must not go to another; the writer comes by here again when it is done.
        if words.references.load(Ordering::Relaxed) != 0
            || frame_words.uses.get() != 1
            || frame_words.holds.load().is_writeback()
        {
            return Orphan::None;
        }
        if self.uncache(slot, words, frame_words) { Orphan::Frame(frame) } else { Orphan::None }
    }

    /// Under the slot's lock: ends the cache's use of a frame, and frees the slot if nothing refers to it. True: that
    /// was the frame's last use.
    fn uncache(&self, slot: SwapSlot, words: &SlotWords, frame_words: &FrameWords) -> bool {
        words.frame.store(0, Ordering::Relaxed);
        frame_words.slot.store(NO_SLOT, Ordering::Relaxed);
        if words.references.load(Ordering::Relaxed) == 0 {
            self.count_free(slot);
        }
        frame_words.uses.remove() == 0
    }

    pub(super) fn look_up(&self, frames: &FrameAllocator, slot: SwapSlot) -> Option<FrameId> {
        let (_lock, words) = self.lock(slot);
        match words.frame.load(Ordering::Relaxed) {
            0 => None,
            // The caller's entry is out of date: its slot was freed, and is somebody else's now.
            RESERVED => None,
            cached => {
                let frame = FrameId(cached - 1);
                // In the cache means in use, so the frame cannot end while the lock is held.
                frames.words(frame).holds.take_pin();
                Some(frame)
            }
        }
    }

    pub(super) fn begin_read(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        fresh: FrameId,
    ) -> Result<(), FrameId> {
        let (_lock, words) = self.lock(slot);
        match words.frame.load(Ordering::Relaxed) {
            0 => {}
            cached => {
                let frame = FrameId(cached - 1);
                frames.words(frame).holds.take_pin();
                return Err(frame);
            }
        }
        put_for_reading(frames, slot, words, fresh);
        Ok(())
    }

    /// Whether the slot's page is on the device only. A guess.
    pub(super) fn is_out(&self, slot: SwapSlot) -> bool {
        self.words[slot.0 as usize].frame.load(Ordering::Relaxed) == 0
    }

    pub(super) fn begin_read_ahead(&self, frames: &FrameAllocator, slot: SwapSlot, fresh: FrameId) -> bool {
        let (_lock, words) = self.lock(slot);
        let is_out = words.frame.load(Ordering::Relaxed) == 0 && words.references.load(Ordering::Relaxed) > 0;
        if is_out {
            put_for_reading(frames, slot, words, fresh);
        }
        is_out
    }

    /// The slot a cached frame belongs to, with its lock. `None`: the frame is not in the cache (any more).
    fn lock_cached(
        &self,
        frames: &FrameAllocator,
        frame: FrameId,
    ) -> Option<(MutexGuard<'_, ()>, SwapSlot, &SlotWords)> {
        let slot = slot_of(frames.words(frame))?;
        let (lock, words) = self.lock(slot);
        (words.frame.load(Ordering::Relaxed) == frame.0 + 1).then_some((lock, slot, words))
    }

    pub(super) fn forget_failed(&self, frames: &FrameAllocator, slot: SwapSlot, frame: FrameId) -> Orphan {
        match self.lock_cached(frames, frame) {
            Some((_lock, cached, words)) if cached == slot => {
                if self.uncache(slot, words, frames.words(frame)) {
                    Orphan::Frame(frame)
                } else {
                    Orphan::None
                }
            }
            _ => Orphan::None,
        }
    }

    pub(super) fn start_writeback(&self, frames: &FrameAllocator, slot: SwapSlot, frame: FrameId) -> bool {
        // Under the lock: the slot is the frame's, and stays so until the mark is gone.
        matches!(self.lock_cached(frames, frame), Some((_lock, cached, _)) if cached == slot
            && frames.words(frame).holds.start_writeback())
    }

    pub(super) fn try_evict(&self, frames: &FrameAllocator, frame: FrameId) -> Evicted {
        let Some((_lock, slot, words)) = self.lock_cached(frames, frame) else { return Evicted::Kept };
        let frame_words = frames.words(frame);
        // One use is the cache's own: no entry shows the frame, and the lock keeps faults from finding it. The
        // count is frozen before dirty is asked, in one compare-and-swap.
        if frame_words.uses.get() != 1 || !frame_words.holds.try_reclaim() {
            return Evicted::Kept;
        }
        let last = self.uncache(slot, words, frame_words);
        debug_assert!(last);
        Evicted::Freed
    }

    pub(super) fn forget_orphan(&self, frames: &FrameAllocator, frame: FrameId) -> Orphan {
        match self.lock_cached(frames, frame) {
            Some((_lock, slot, words)) => self.forget_if_orphan(frames, slot, words, frame),
            None => Orphan::None,
        }
    }

    pub(super) fn detach(&self, frames: &FrameAllocator, frame: FrameId) -> Orphan {
        let Some((_lock, slot, words)) = self.lock_cached(frames, frame) else { return Orphan::None };
        let frame_words = frames.words(frame);
        if words.references.load(Ordering::Relaxed) != 0
            || frame_words.uses.get() < 2
            || frame_words.holds.load().is_writeback()
        {
            return Orphan::None;
        }
        frame_words.holds.mark_dirty();
        // The last entry may have gone since the uses were read.
        if self.uncache(slot, words, frame_words) { Orphan::Frame(frame) } else { Orphan::None }
    }

    pub(super) fn contradicted_by(&self, swapped: &HashMap<SwapSlot, u32>) -> Option<String> {
        let touched = self.cursor.lock().touched;
        (0..touched * CLUSTER_SLOTS).map(|index| SwapSlot(index as u32)).find_map(|slot| {
            let (_lock, words) = self.lock(slot);
            let (counted, entries) =
                (words.references.load(Ordering::Relaxed), swapped.get(&slot).copied().unwrap_or(0));
            (counted != entries)
                .then(|| format!("{slot:?} counts {counted} entries, and {entries} lead to it"))
        })
    }

    pub(super) fn validate(&self, frames: &FrameAllocator) {
        let cursor = self.cursor.lock();
        let mut used = 0;
        for cluster in 0..cursor.touched {
            let _lock = self.locks[cluster % LOCKS].lock();
            let mut here = 0;
            for index in cluster * CLUSTER_SLOTS..(cluster + 1) * CLUSTER_SLOTS {
                let words = &self.words[index];
                let frame = words.frame.load(Ordering::Relaxed);
                here += u32::from(frame != 0 || words.references.load(Ordering::Relaxed) != 0);
                if frame != 0 && frame != RESERVED {
                    let frame_words = frames.words(FrameId(frame - 1));
                    assert_eq!(slot_of(frame_words), Some(SwapSlot(index as u32)), "frame and slot agree");
                    assert!(frame_words.uses.get() >= 1, "a cached frame is in use");
                }
            }
            assert_eq!(here, self.in_use[cluster].load(Ordering::Relaxed), "slots of the cluster add up");
            used += here;
        }
        assert_eq!(used, self.used(), "slots add up");
    }
}
