//! The zero pages: a small one that is never freed, and a huge one with one of three ways to count its users.
//!
//! Entries in state Zero show a zero page, and name no frame. A zero page is not resident, not pinned, not
//! reclaimed and not swapped. The huge zero page has a count of its users, apart from the frames' words
//! (Linux `mm/huge_memory.c`; Linux 4.9, 6fcb52a56ff6, *thp: reduce usage of huge zero page's atomic
//! counter*):
//!
//! ```text
//! references   0          no huge zero page, or the shrinker is taking it away
//!              1          it is there, only the shrinker's pin is left: it may go
//!              n >= 2     n - 1 users
//! ```
//!
//! - `PerUse` (base): each huge zero leaf holds one reference. Every fault and every removal is an atomic
//!   operation on this one line, shared by all CPUs.
//! - `PerSpace` (patched): a space takes a reference at its first use, and gives it back when it is dropped.
//! - `Persistent` (best): the page is allocated when the manager is built, unless its policy for huge pages
//!   is `Never`. Users count nothing.
//!
//! One lock covers publication and teardown. Without the lock, a shrinker that had taken the count to zero
//! could wipe the frame number that the next getter has published. Linux had this race until 2026
//! (*mm/huge_memory: fix huge_zero_pfn race*). A getter that finds the count above zero takes no lock.

use crate::config::ZeroPage;
use crate::counters::{Counter, Counters};
use crate::frame::{FrameAllocator, FrameId};
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};
use crate::units::Order;

/// The source of the huge zero page: the allocator, or a test double.
pub(crate) trait ZeroSource {
    /// Allocates a block of the largest order whose bytes are all zero.
    fn allocate_zeroed(&self) -> Option<FrameId>;
    /// Takes the block back.
    fn free(&self, block: FrameId);
}

impl ZeroSource for FrameAllocator {
    fn allocate_zeroed(&self) -> Option<FrameId> {
        let block = self.alloc(Order::MAX)?;
        if !block.is_zeroed() {
            self.bytes().zero(block.frame().home_offset(), Order::MAX.bytes());
        }
        Some(block.into_frame())
    }

    fn free(&self, block: FrameId) {
        FrameAllocator::free(self, block, Order::MAX).expect("the huge zero page was allocated at order 9");
    }
}

const NO_FRAME: u64 = u64::MAX;

/// The huge zero page of a manager.
#[derive(Debug)]
pub(crate) struct HugeZero {
    mode: ZeroPage,
    references: AtomicU32,
    /// Frame number of the page, or `NO_FRAME`.
    frame: AtomicU64,
    /// Locked while the page is published or torn down.
    lock: Mutex<()>,
    counters: Arc<Counters>,
}

/// A space's mark that it holds a reference (`PerSpace`).
#[derive(Debug, Default)]
pub(crate) struct UsedHugeZero(AtomicBool);

impl HugeZero {
    pub(crate) fn new(mode: ZeroPage, counters: Arc<Counters>) -> Self {
        Self {
            mode,
            references: AtomicU32::new(0),
            frame: AtomicU64::new(NO_FRAME),
            lock: Mutex::new(()),
            counters,
        }
    }

    /// Allocates the page if it is persistent. A manager that has huge leaves calls this when it is built.
    pub(crate) fn prepare(&self, source: &impl ZeroSource) {
        if self.mode == ZeroPage::Persistent {
            // If the budget has no room for the page, huge zero leaves are not used. Linux also continues,
            // after a warning.
            let _ = self.get_or_allocate(source);
        }
    }

    /// Takes the right to install one huge zero leaf in a space. Returns false if there is no memory for the
    /// page.
    #[inline]
    pub(crate) fn get(&self, used: &UsedHugeZero, source: &impl ZeroSource) -> bool {
        match self.mode {
            ZeroPage::Persistent => self.frame.load(Ordering::Relaxed) != NO_FRAME,
            ZeroPage::PerSpace => self.get_for_space(used, source),
            ZeroPage::PerUse => self.get_reference(source),
        }
    }

    /// Gives back the rights to `leaves` leaves that were removed, or not installed after all.
    #[inline]
    pub(crate) fn put(&self, leaves: u32) {
        if self.mode == ZeroPage::PerUse && leaves > 0 {
            self.put_references(leaves);
        }
    }

    /// Gives back the space's reference, after its last leaf is gone.
    pub(crate) fn put_space(&self, used: &UsedHugeZero) {
        if self.mode == ZeroPage::PerSpace && used.0.load(Ordering::Relaxed) {
            used.0.store(false, Ordering::Relaxed);
            self.put_references(1);
        }
    }

    fn get_for_space(&self, used: &UsedHugeZero, source: &impl ZeroSource) -> bool {
        // Acquire: the thread that set the mark held the reference, and so had seen the page published.
        if used.0.load(Ordering::Acquire) {
            return true;
        }
        if !self.get_reference(source) {
            return false;
        }
        if used.0.swap(true, Ordering::AcqRel) {
            // Another thread of this space has taken the space's reference first.
            self.put_references(1);
        }
        true
    }

    /// Takes a reference. Out of line, so that a profile shows its cost.
    #[inline(never)]
    pub(crate) fn get_reference(&self, source: &impl ZeroSource) -> bool {
        self.counters.count(Counter::HugeZeroGet);
        self.get_live() || self.get_or_allocate(source)
    }

    /// Adds a reference, unless the count is zero.
    fn get_live(&self) -> bool {
        self.references
            // Acquire: the page was published before the count left zero.
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |count| (count != 0).then(|| count + 1))
            .is_ok()
    }

    #[cold]
    fn get_or_allocate(&self, source: &impl ZeroSource) -> bool {
        // Allocate outside the lock, since that may take long.
        let Some(block) = source.allocate_zeroed() else {
            self.counters.count(Counter::HugeZeroFailed);
            return false;
        };
        let lock = self.lock.lock();
        if self.get_live() {
            drop(lock);
            source.free(block);
            return true;
        }
        debug_assert_eq!(self.frame.load(Ordering::Relaxed), NO_FRAME, "one huge zero page at a time");
        self.frame.store(u64::from(block.0), Ordering::Relaxed);
        // One reference is the caller's, and one the shrinker's. Release: publishes the frame number.
        self.references.store(2, Ordering::Release);
        drop(lock);
        self.counters.count(Counter::HugeZeroAllocated);
        true
    }

    #[inline(never)]
    fn put_references(&self, references: u32) {
        self.counters.add(Counter::HugeZeroPut, u64::from(references));
        // Release: the leaf is removed before the page may be freed.
        let before = self.references.fetch_sub(references, Ordering::Release);
        assert!(before > references, "only the shrinker takes the last reference on the huge zero page");
    }

    /// Returns how many frames [`HugeZero::shrink`] would free now.
    pub(crate) fn shrinkable_frames(&self) -> u32 {
        let idle = self.mode != ZeroPage::Persistent && self.references.load(Ordering::Relaxed) == 1;
        if idle { Order::MAX.frames() } else { 0 }
    }

    /// Frees the page if only the shrinker's pin is left. Returns how many frames were freed.
    pub(crate) fn shrink(&self, source: &impl ZeroSource) -> u32 {
        if self.mode == ZeroPage::Persistent {
            return 0;
        }
        let lock = self.lock.lock();
        // Acquire: every user's removal of its leaf came before.
        if self.references.compare_exchange(1, 0, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return 0;
        }
        let frame = self.frame.swap(NO_FRAME, Ordering::Relaxed);
        drop(lock);
        assert_ne!(frame, NO_FRAME, "a counted huge zero page has a frame");
        source.free(FrameId(frame as u32));
        Order::MAX.frames()
    }

    /// Returns how many references users hold, without the shrinker's pin.
    pub(crate) fn users(&self) -> u32 {
        if self.mode == ZeroPage::Persistent {
            0
        } else {
            self.references.load(Ordering::Relaxed).saturating_sub(1)
        }
    }

    /// Returns the page's first frame.
    #[cfg(test)]
    pub(crate) fn frame(&self) -> Option<FrameId> {
        match self.frame.load(Ordering::Acquire) {
            NO_FRAME => None,
            frame => Some(FrameId(frame as u32)),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;

    struct Source {
        left: Cell<u32>,
        live: Cell<u32>,
    }

    impl ZeroSource for Source {
        fn allocate_zeroed(&self) -> Option<FrameId> {
            let left = self.left.get().checked_sub(1)?;
            self.left.set(left);
            self.live.set(self.live.get() + 1);
            Some(FrameId(left * 512))
        }
        fn free(&self, _block: FrameId) {
            self.live.set(self.live.get() - 1);
        }
    }

    fn source(left: u32) -> Source {
        Source { left: Cell::new(left), live: Cell::new(0) }
    }

    fn counters() -> Arc<Counters> {
        Arc::new(Counters::new().unwrap())
    }

    #[test]
    fn per_use_counts_each_leaf_and_the_shrinker_waits_for_the_last() {
        let (source, used) = (source(9), UsedHugeZero::default());
        let zero = HugeZero::new(ZeroPage::PerUse, counters());
        assert_eq!(source.live.get(), 0, "allocated lazily");
        assert!(zero.get(&used, &source) && zero.get(&used, &source));
        assert_eq!((zero.users(), source.live.get()), (2, 1));
        zero.put(1);
        assert_eq!((zero.shrinkable_frames(), zero.shrink(&source)), (0, 0));
        zero.put(1);
        assert_eq!((zero.shrinkable_frames(), zero.shrink(&source)), (512, 512));
        assert_eq!((source.live.get(), zero.frame()), (0, None));
        assert!(zero.get(&used, &source), "and is allocated anew");
    }

    #[test]
    fn per_space_counts_once_a_space_until_it_is_dropped() {
        let (source, first, second) = (source(9), UsedHugeZero::default(), UsedHugeZero::default());
        let zero = HugeZero::new(ZeroPage::PerSpace, counters());
        for _ in 0..3 {
            assert!(zero.get(&first, &source) && zero.get(&second, &source));
        }
        zero.put(3);
        assert_eq!(zero.users(), 2, "removing leaves gives nothing back");
        zero.put_space(&first);
        zero.put_space(&first);
        assert_eq!((zero.users(), zero.shrink(&source)), (1, 0));
        zero.put_space(&second);
        assert_eq!(zero.shrink(&source), 512);
    }

    #[test]
    fn persistent_is_there_from_the_start_and_counts_nothing() {
        let (source, used) = (source(1), UsedHugeZero::default());
        let zero = HugeZero::new(ZeroPage::Persistent, counters());
        assert!(!zero.get(&used, &source), "a manager without huge leaves does not prepare it");
        zero.prepare(&source);
        assert_eq!(source.live.get(), 1);
        assert!(zero.get(&used, &source));
        zero.put(1);
        assert_eq!((zero.users(), zero.shrink(&source)), (0, 0));
    }

    #[test]
    fn no_memory_is_counted_and_answered() {
        let (source, used) = (source(0), UsedHugeZero::default());
        let counters = counters();
        let zero = HugeZero::new(ZeroPage::PerUse, Arc::clone(&counters));
        assert!(!zero.get(&used, &source));
        assert_eq!(counters.snapshot().get(Counter::HugeZeroFailed), 1);
    }
}

#[cfg(all(test, loom))]
mod loom;
