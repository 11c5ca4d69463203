//! The latch of a frame: a lock for readers and writers on its bytes. Only pages of guarded regions use it.
//!
//! ```text
//!  63 ................ 26    25       24      23 ...... 0
//! +----------------------+---------+-----------+----------+
//! |       version        | WAITERS | EXCLUSIVE |  shared  |
//! +----------------------+---------+-----------+----------+
//!
//!              try_shared                    try_exclusive: version + 1
//!   shared > 0 ◄──────────► free ◄──────────────────────────────► EXCLUSIVE
//!       ▲                                                             │
//!       └──────────────────────── downgrade ──────────────────────────┘
//! ```
//!
//! This is LeanStore's hybrid latch (*Leis, Haubenschild, Neumann: Optimistic Lock Coupling*, 2019): a
//! version lets optimistic readers do without the latch.
//!
//! **Who may use it.** A thread touches the latch only while it holds a pin on the frame, or on the head of
//! its block, and after it has checked under that pin that the entry still leads to the frame. So the latch
//! is free if no entry leads to the frame and nobody pins it. It is also free whenever a frame gets another
//! page. As long as a frame is pinned, its page stays there: a thread that moves, splits or takes a frame
//! checks the pins first.
//!
//! **Orderings.** Taking the latch acquires, and releasing it releases: the next holder sees what the last
//! one wrote. An optimistic reader reads the word ([`Latch::begin_read`]), copies, makes an acquire fence,
//! and reads the word again. A writer changes the version when it takes the latch, and makes a release fence
//! before it writes. So if a reader has read a byte of the writer, it then finds another version, or
//! EXCLUSIVE set.
//!
//! **Waiting.** A thread that finds the latch taken sets WAITERS and leaves a waker, both under the lock of a
//! bucket (`sync/wait.rs`), with no pin on the frame. WAITERS stays set until the latch is free. The release
//! that makes it free clears WAITERS and wakes all waiters, which look up their page again. If readers hold
//! the latch and a writer waits, a new reader lets the writer go first for a while, and then joins the
//! readers. The reader never waits longer, since its own thread may already hold the latch as a reader, and
//! the writer waits for that.
//!
//! Cost: one compare-and-swap to take and one to release, on a line of eight latches.

use std::ops::Index;

use crate::budget::Budget;
use crate::sync::{AtomicU64, Ordering, WordArray};
use crate::units::FrameId;

const SHARED: u64 = (1 << 24) - 1;
const EXCLUSIVE: u64 = 1 << 24;
const WAITERS: u64 = 1 << 25;
const VERSION_ONE: u64 = 1 << 26;

/// The most shared holders: as many as a frame may have pins.
const MAX_SHARED: u64 = super::holds::MAX_PINS as u64;

/// How a latch is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Together with other readers.
    Shared,
    /// Alone.
    Exclusive,
}

/// The version that an optimistic read began at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version(u64);

/// The reason why a latch was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Other threads hold the latch.
    ByOthers,
    /// Readers hold the latch, and a waiting writer should have it first.
    WriterFirst,
    /// The latch has as many shared holders as it can count.
    ByTooMany,
}

/// Bytes of a frame's latch.
pub(crate) const LATCH_BYTES: usize = size_of::<Latch>();

/// The latch of a frame.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros))]
#[repr(transparent)]
pub(crate) struct Latch(AtomicU64);

impl Latch {
    /// Takes the latch without waiting, or returns why not. `joins` says that a reader does not let a waiting
    /// writer go first.
    #[inline]
    pub(crate) fn try_take(&self, hold: Hold, joins: bool) -> Result<(), Taken> {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            let next = match hold {
                Hold::Exclusive if seen & (SHARED | EXCLUSIVE) != 0 => return Err(Taken::ByOthers),
                Hold::Exclusive => (seen | EXCLUSIVE).wrapping_add(VERSION_ONE),
                Hold::Shared if seen & EXCLUSIVE != 0 => return Err(Taken::ByOthers),
                Hold::Shared if seen & WAITERS != 0 && !joins => return Err(Taken::WriterFirst),
                Hold::Shared if seen & SHARED >= MAX_SHARED => return Err(Taken::ByTooMany),
                Hold::Shared => seen + 1,
            };
            // Acquire: pairs with the release of the previous holder.
            match self.0.compare_exchange_weak(seen, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => seen = now,
            }
        }
    }

    /// Releases the latch. Returns whether the caller must wake waiters.
    #[inline]
    #[must_use = "those who wait must be woken"]
    pub(crate) fn release(&self, hold: Hold) -> bool {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            let left = match hold {
                Hold::Exclusive => seen & !EXCLUSIVE,
                Hold::Shared => seen - 1,
            };
            debug_assert!(
                if hold == Hold::Exclusive { seen & EXCLUSIVE != 0 } else { seen & SHARED != 0 },
                "a latch was let go that was not held: {seen:#x}"
            );
            let is_free = left & SHARED == 0;
            let next = if is_free { left & !WAITERS } else { left };
            // Release: all work under the latch happens before the next holder's.
            match self.0.compare_exchange_weak(seen, next, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return is_free && seen & WAITERS != 0,
                Err(now) => seen = now,
            }
        }
    }

    /// Turns the caller's exclusive hold into a shared one. Returns whether the caller must wake waiters.
    #[must_use = "those who wait must be woken"]
    pub(crate) fn downgrade(&self) -> bool {
        // Clears EXCLUSIVE and adds a reader. Release: as in `release`. Other threads change only WAITERS
        // meanwhile.
        let before = self.0.fetch_sub(EXCLUSIVE - 1, Ordering::Release);
        debug_assert!(before & (EXCLUSIVE | SHARED) == EXCLUSIVE, "only a holder alone shares: {before:#x}");
        // Readers that wait can take the latch now. WAITERS stays set, for writers.
        before & WAITERS != 0
    }

    /// Asks to be woken when the latch can be taken. Returns false if it can be taken now.
    pub(crate) fn announce_waiter(&self, hold: Hold) -> bool {
        let in_the_way = if hold == Hold::Exclusive { SHARED | EXCLUSIVE } else { EXCLUSIVE };
        // Relaxed: the lock of the waiters' bucket orders the wakers, and all changes of this one word are in
        // one order.
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |seen| {
                (seen & in_the_way != 0).then_some(seen | WAITERS)
            })
            .is_ok()
    }

    /// Clears WAITERS. The caller wakes all waiters, and those that still wait set it again.
    pub(crate) fn forget_waiters(&self) {
        // Relaxed: as in `announce_waiter`. If a waiter has set the bit before, it leaves its waker under the
        // lock that the caller takes next.
        self.0.fetch_and(!WAITERS, Ordering::Relaxed);
    }

    /// Begins an optimistic read. Returns `None` if a writer holds the latch.
    #[inline]
    pub(crate) fn begin_read(&self) -> Option<Version> {
        // Acquire: the reader sees the bytes of the previous writer.
        let seen = self.0.load(Ordering::Acquire);
        (seen & EXCLUSIVE == 0).then_some(Version(seen & !(VERSION_ONE - 1)))
    }

    /// Returns whether no writer has had the latch since the read began. The caller makes an acquire fence
    /// first.
    #[inline]
    pub(crate) fn is_still(&self, begun: Version) -> bool {
        self.0.load(Ordering::Relaxed) & !(VERSION_ONE - 1 - EXCLUSIVE) == begun.0
    }

    /// Returns whether nobody holds the latch or waits for it. For checks.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_free(&self) -> bool {
        self.0.load(Ordering::Acquire) & (SHARED | EXCLUSIVE | WAITERS) == 0
    }
}

/// The latches of all frames. A latch takes memory only once it is used. From the first guarded region on,
/// they count against the budget: 8 bytes for each frame that the budget has room for.
#[derive(Debug)]
pub(crate) struct Latches {
    latches: WordArray<Latch>,
    charged_pages: AtomicU64,
}

impl Latches {
    /// Makes latches for frames below `end`.
    pub(crate) fn new(end: FrameId) -> std::io::Result<Self> {
        Ok(Self { latches: WordArray::new(end.0 as usize)?, charged_pages: AtomicU64::new(0) })
    }

    /// Charges the latches to the budget, before their first use.
    pub(crate) fn charge(&self, budget: &Budget) {
        let pages = budget.limit_pages();
        let before = self.charged_pages.fetch_max(pages, Ordering::Relaxed);
        budget.charge_over(pages.saturating_sub(before) * LATCH_BYTES as u64);
    }

    /// Adjusts the charge to a new limit.
    pub(crate) fn limit_changed(&self, budget: &Budget) {
        if self.charged_pages.load(Ordering::Relaxed) > 0 {
            self.charge(budget);
        }
    }
}

impl Index<FrameId> for Latches {
    type Output = Latch;

    #[inline(always)]
    fn index(&self, frame: FrameId) -> &Latch {
        &self.latches[frame.0 as usize]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn readers_share_and_a_writer_is_alone() {
        let latch = Latch::default();
        assert_eq!(latch.try_take(Hold::Shared, false), Ok(()));
        assert_eq!(latch.try_take(Hold::Shared, false), Ok(()));
        assert_eq!(latch.try_take(Hold::Exclusive, false), Err(Taken::ByOthers));
        assert!(!latch.release(Hold::Shared) && !latch.release(Hold::Shared));
        assert_eq!(latch.try_take(Hold::Exclusive, false), Ok(()));
        assert_eq!(latch.try_take(Hold::Shared, true), Err(Taken::ByOthers));
        assert!(!latch.downgrade());
        assert_eq!(latch.try_take(Hold::Shared, false), Ok(()));
        assert!(!latch.release(Hold::Shared) && !latch.release(Hold::Shared) && latch.is_free());
    }

    #[test]
    fn a_reader_lets_a_writer_go_first_unless_it_joins_in() {
        let latch = Latch::default();
        assert!(!latch.announce_waiter(Hold::Exclusive), "a free latch is not waited for");
        latch.try_take(Hold::Shared, false).unwrap();
        assert!(!latch.announce_waiter(Hold::Shared), "readers do not wait for readers");
        assert!(latch.announce_waiter(Hold::Exclusive));
        assert_eq!(latch.try_take(Hold::Shared, false), Err(Taken::WriterFirst));
        assert_eq!(latch.try_take(Hold::Shared, true), Ok(()));
        assert!(!latch.release(Hold::Shared), "the writer cannot have it yet");
        assert!(latch.release(Hold::Shared) && latch.is_free());
    }

    #[test]
    fn a_version_tells_of_each_writer_and_of_no_reader() {
        let latch = Latch::default();
        let begun = latch.begin_read().unwrap();
        latch.try_take(Hold::Shared, false).unwrap();
        assert!(latch.announce_waiter(Hold::Exclusive));
        assert!(latch.is_still(begun));
        assert!(latch.release(Hold::Shared) && latch.is_still(begun));
        latch.try_take(Hold::Exclusive, false).unwrap();
        assert!(!latch.is_still(begun) && latch.begin_read().is_none());
        assert!(!latch.release(Hold::Exclusive) && !latch.is_still(begun));
        let last = Latch(AtomicU64::new(!(VERSION_ONE - 1)));
        let begun = last.begin_read().unwrap();
        last.try_take(Hold::Exclusive, false).unwrap();
        assert!(!last.is_still(begun) && !last.release(Hold::Exclusive) && last.is_free());
    }
}

#[cfg(all(test, loom))]
mod loom;
