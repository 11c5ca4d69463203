//! The hold word of a frame: whether the frame's bytes are in use, and whether they are newer than any copy.
//!
//! ```text
//!  31   30      29       28      27        26    25    24    23     22      21 .. 0
//! +---+-------+--------+-------+---------+-----+-----+----+------+---------+-------+
//! |NC |WAITERS|IO_ERROR|READING|WRITEBACK|DIRTY|DYING|LIVE|PARKED|ACCOUNTED| pins  |
//! +---+-------+--------+-------+---------+-----+-----+----+------+---------+-------+
//!
//! NC (NO_COMPRESS): the page must not be compressed on its way out: its region says so.
//! ACCOUNTED: a pin of the frame was taken from the credit of its space (`engine/pin_share.rs`).
//! PARKED: reclaim found the frame pinned, or could not move its page, and took it off its lists. The thread
//! that drops the last pin lists it again, or a thread that tries again to move it.
//!
//!            begin                    release, pins = 0
//!   unowned ───────► LIVE ─────────────────────────────────► unowned  (the releaser frees)
//!      ▲              │ release, pins > 0
//!      │              ▼
//!      └────────── DYING     drop_pin brings pins to 0      (that dropper frees)
//!
//!             park, others have pins              drop_pin brings pins to 0
//!   listed ──────────────────────────► PARKED ───────────────────► pinned for the dropper, to list
//!                                        ▲ │
//!             park_alone, no other pin   │ │ take_parked, no pins
//!   isolated ────────────────────────────┘ └─────────────────────► pinned for the taker, to list
//! ```
//!
//! The allocator's ownership word is separate: allocating or freeing a frame never writes the hold word. So a
//! late walker may add a pin at any moment, see that its entry changed, and drop the pin again. *The thread
//! that takes the word to zero, out of LIVE or DYING, frees the frame.* The compare-and-swap that does so can
//! succeed only once.
//!
//! Ordering. An unmapper changes the entry first, and then does a read-modify-write here ([`release`],
//! [`start_writeback`], [`try_reclaim`], [`pinned_by_others`]). A pinner does a read-modify-write here
//! ([`take_pin`]), and then reads the entry again. Both change the same word, so one of the two comes first.
//! If the pin comes first, the unmapper sees it. If the unmapper comes first, the pin acquires what the
//! unmapper released, and the pinner's second read sees the changed entry. So no fence is needed.
//!
//! Only [`start_writeback`] clears DIRTY on a live frame, and only while no other thread holds a pin. A
//! thread that stores to the page holds a pin. Before it drops the pin, it makes sure that DIRTY is set. So
//! no store is lost.
//!
//! A parked frame is on no list, and no reclaimer holds it. The one thread whose compare-and-swap clears
//! PARKED lists it again. The compare-and-swap also pins the frame, so that the frame cannot be freed before
//! it is listed. A frame that dies loses PARKED, and is not listed again.
//!
//! Cost: taking or dropping a pin is one read-modify-write on the frame's own half line.
//!
//! [`release`]: HoldWord::release
//! [`start_writeback`]: HoldWord::start_writeback
//! [`try_reclaim`]: HoldWord::try_reclaim
//! [`pinned_by_others`]: HoldWord::pinned_by_others
//! [`take_pin`]: HoldWord::take_pin

use std::fmt;

use crate::sync::{AtomicU32, Ordering};

const PINS: u32 = (1 << 22) - 1;
const ACCOUNTED: u32 = 1 << 22;
const PARKED: u32 = 1 << 23;
const LIVE: u32 = 1 << 24;
const DYING: u32 = 1 << 25;
const DIRTY: u32 = 1 << 26;
const WRITEBACK: u32 = 1 << 27;
const READING: u32 = 1 << 28;
const IO_ERROR: u32 = 1 << 29;
const WAITERS: u32 = 1 << 30;
const NO_COMPRESS: u32 = 1 << 31;

/// The most pins that a frame may have. The rest of the field is for late pins, which are soon dropped again.
pub(crate) const MAX_PINS: u32 = 1 << 20;

/// A snapshot of the word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holds(u32);

impl Holds {
    #[inline]
    pub(crate) fn pins(self) -> u32 {
        self.0 & PINS
    }
    #[inline]
    pub(crate) fn is_live(self) -> bool {
        self.0 & LIVE != 0
    }
    /// Returns whether the owner has released the frame, and pins keep it.
    pub(crate) fn is_dying(self) -> bool {
        self.0 & DYING != 0
    }
    #[inline]
    pub(crate) fn is_dirty(self) -> bool {
        self.0 & DIRTY != 0
    }
    #[inline]
    pub(crate) fn is_writeback(self) -> bool {
        self.0 & WRITEBACK != 0
    }
    #[inline]
    pub(crate) fn is_reading(self) -> bool {
        self.0 & READING != 0
    }
    /// Returns whether the read of the page failed, so that the frame has no valid bytes. A failed *write*
    /// also sets IO_ERROR, but leaves the frame dirty: its bytes are good.
    #[inline]
    pub(crate) fn was_read_in_vain(self) -> bool {
        self.0 & (IO_ERROR | DIRTY) == IO_ERROR
    }
    /// Returns whether others hold pins beside the caller's `own` pins, or the frame is under I/O. For pins
    /// this is only a guess: see `pinned_by_others`.
    pub(crate) fn is_held_by_others(self, own: u32) -> bool {
        self.pins() > own || self.is_under_io()
    }
    /// Returns whether the page is being read or written.
    pub(crate) fn is_under_io(self) -> bool {
        self.is_writeback() || self.is_reading()
    }
    /// Returns whether a thread or task waits for I/O to end.
    pub(crate) fn has_waiters(self) -> bool {
        self.0 & WAITERS != 0
    }
    /// Returns whether reclaim has taken the frame off its lists. The frame stays off until others have
    /// dropped their pins, or until its page can move.
    pub(crate) fn is_parked(self) -> bool {
        self.0 & PARKED != 0
    }
    /// Returns whether a pin of the frame was taken from a credit.
    #[inline]
    pub(crate) fn is_accounted(self) -> bool {
        self.0 & ACCOUNTED != 0
    }
    /// Returns whether the page must not be compressed.
    pub(crate) fn is_no_compress(self) -> bool {
        self.0 & NO_COMPRESS != 0
    }
    /// Returns whether the word has no flags: the frame has no owner. Late pins do not count.
    pub(crate) fn is_unowned(self) -> bool {
        self.0 & !PINS == 0
    }
}

impl fmt::Debug for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pins", self.pins())?;
        let names = [
            (ACCOUNTED, "accounted"),
            (PARKED, "parked"),
            (LIVE, "live"),
            (DYING, "dying"),
            (DIRTY, "dirty"),
            (WRITEBACK, "writeback"),
            (READING, "reading"),
            (IO_ERROR, "failed"),
            (WAITERS, "waiters"),
            (NO_COMPRESS, "no-compress"),
        ];
        names.iter().filter(|(bit, _)| self.0 & bit != 0).try_for_each(|(_, name)| write!(f, " {name}"))
    }
}

/// The outcome when an owner releases a frame, or when a pin is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the caller that drops the last hold frees the frame, or lists it again"]
pub(crate) enum Dropped {
    /// The frame is still held, or is not the caller's to free.
    Kept,
    /// That was the last hold: the caller frees the frame.
    Last,
    /// That was the last pin of a parked frame. The frame is pinned again for the caller, who lists it.
    ToBeListed,
}

/// The state of a page on which a writeback may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageIs {
    /// The page has to be written to its slot, or saved in another way.
    Dirty,
    /// The page's store has its bytes, and has to move them elsewhere.
    Clean,
}

/// The hold word of a frame.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros))]
#[repr(transparent)]
pub(crate) struct HoldWord(AtomicU32);

impl HoldWord {
    /// Returns a snapshot. Its pins prove nothing: see `pinned_by_others`.
    #[inline]
    pub(crate) fn load(&self) -> Holds {
        Holds(self.0.load(Ordering::Acquire))
    }

    /// Begins the use of a frame that its owner has just allocated. `dirty` says that its bytes are nowhere
    /// else.
    #[inline]
    pub(crate) fn begin(&self, dirty: bool) {
        // Relaxed: the entry that publishes the frame releases this. Add instead of storing, since late pins
        // may be added and dropped meanwhile.
        let before = self.0.fetch_add(LIVE | if dirty { DIRTY } else { 0 }, Ordering::Relaxed);
        debug_assert!(Holds(before).is_unowned(), "a frame in use was begun again: {:?}", Holds(before));
    }

    /// Begins the use of a frame that a device will fill. Readers wait for [`HoldWord::end_read`].
    pub(crate) fn begin_reading(&self) {
        let before = self.0.fetch_add(LIVE | READING, Ordering::Relaxed);
        debug_assert!(Holds(before).is_unowned(), "a frame in use was begun again: {:?}", Holds(before));
    }

    /// Adds a pin in any state of the frame, and returns the previous word. The caller then reads its entry
    /// again, and drops the pin if the entry changed.
    #[inline(always)]
    pub(crate) fn take_pin(&self) -> Holds {
        // Acquire: pairs with the release of the thread that unmapped the frame before (see the module doc).
        Holds(self.0.fetch_add(1, Ordering::Acquire))
    }

    /// Drops a pin.
    #[inline(always)]
    pub(crate) fn drop_pin(&self) -> Dropped {
        // Release: all work under the pin happens before the frame is written back or freed.
        let before = self.0.fetch_sub(1, Ordering::Release);
        debug_assert!(before & PINS != 0, "a pin was dropped twice");
        if before & PINS == 1 && before & (DYING | PARKED) != 0 { self.finish() } else { Dropped::Kept }
    }

    /// Takes the word of a dying frame without pins to zero, or pins a parked frame for the caller. If
    /// several threads saw this state, one of them succeeds.
    #[cold]
    fn finish(&self) -> Dropped {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            let (next, outcome) = match seen & (DYING | PARKED | PINS) {
                DYING => (0, Dropped::Last),
                PARKED => ((seen & !PARKED) + 1, Dropped::ToBeListed),
                _ => return Dropped::Kept,
            };
            // Acquire: all work of others under their pins happens before the frame is used again. All that
            // the reclaimer noted about a parked frame happens before as well.
            match self.0.compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return outcome,
                Err(now) => seen = now,
            }
        }
    }

    /// Parks a frame that the caller has isolated, with one pin, if others have pins as well. Then nobody
    /// lists it until all pins are dropped, and the caller only drops its own. Returns whether the frame is
    /// parked.
    pub(crate) fn park(&self) -> bool {
        // Relaxed: when the caller drops its pin, that releases everything that the caller noted. No other
        // thread takes the frame before.
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |seen| {
                (seen & PINS > 1 && seen & LIVE != 0).then_some(seen | PARKED)
            })
            .is_ok()
    }

    /// Parks a frame that the caller has isolated with the only pin, and drops that pin. The frame then stays
    /// off the lists until [`HoldWord::take_parked`], or until a pin is taken and dropped. Returns whether
    /// the frame is parked.
    pub(crate) fn park_alone(&self) -> bool {
        // Release: the caller's work on the frame comes before the next thread's work, or before the free.
        self.0
            .fetch_update(Ordering::Release, Ordering::Relaxed, |seen| {
                let is_alone = seen & (PINS | LIVE | READING | WRITEBACK) == 1 | LIVE;
                is_alone.then_some((seen | PARKED) - 1)
            })
            .is_ok()
    }

    /// Takes a parked frame without pins, and pins it for the caller, who lists it. Returns false if the
    /// frame is not parked, or has pins.
    pub(crate) fn take_parked(&self) -> bool {
        // Acquire: pairs with the release of the thread that parked the frame.
        self.0
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |seen| {
                (seen & (PARKED | PINS) == PARKED).then_some((seen & !PARKED) + 1)
            })
            .is_ok()
    }

    /// Releases the frame. The owner, who calls this, has removed every entry that led to it.
    #[inline]
    pub(crate) fn release(&self) -> Dropped {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            debug_assert!(seen & LIVE != 0, "a frame that nobody owned was released: {:?}", Holds(seen));
            let (next, outcome) =
                if seen & PINS == 0 { (0, Dropped::Last) } else { (dying(seen), Dropped::Kept) };
            // AcqRel: acquires the work that was done under pins, and releases the removal of the entries to
            // late pins.
            match self.0.compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return outcome,
                Err(now) => seen = now,
            }
        }
    }

    /// Does what [`HoldWord::release`] does, unless the frame is under writeback. The caller has a pin, which
    /// keeps the frame until it is dropped. Returns whether the frame is released.
    pub(crate) fn release_unless_writeback(&self) -> bool {
        // AcqRel: a writeback that started before is seen here. A writeback that starts after this fails.
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |seen| {
                debug_assert!(
                    seen & LIVE != 0 && seen & PINS != 0,
                    "not pinned, or not live: {:?}",
                    Holds(seen)
                );
                (seen & WRITEBACK == 0).then_some(dying(seen))
            })
            .is_ok()
    }

    /// Marks the bytes as newer than any copy elsewhere. The caller holds a pin.
    #[inline]
    pub(crate) fn mark_dirty(&self) {
        // Relaxed: the pin's drop releases it.
        self.0.fetch_or(DIRTY, Ordering::Relaxed);
    }

    /// Marks the page as one that must not be compressed. The frame is live.
    pub(crate) fn mark_no_compress(&self) {
        // Relaxed: a hint.
        self.0.fetch_or(NO_COMPRESS, Ordering::Relaxed);
    }

    /// Notes that a pin of the frame is taken from a credit. The caller has a pin. Returns whether the caller
    /// is the first to note it.
    pub(crate) fn account(&self) -> bool {
        // Relaxed: the credit is a hint.
        self.0.fetch_or(ACCOUNTED, Ordering::Relaxed) & ACCOUNTED == 0
    }

    /// Clears ACCOUNTED if the frame has no pins now, so that the next pin is taken from a credit again.
    pub(crate) fn account_anew(&self) {
        let unpinned = |seen| (seen & PINS == 0).then_some(seen & !ACCOUNTED);
        // If the frame has pins, they stay accounted.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, unpinned);
    }

    /// Returns whether the frame has more pins than the caller's `own`. The caller has made the entries
    /// unusable before. So if the answer is no, it stays true until the entries are usable again.
    pub(crate) fn pinned_by_others(&self, own: u32) -> bool {
        // This must be a read-modify-write: see the module doc, *Ordering*.
        self.0.fetch_add(0, Ordering::AcqRel) & PINS > own
    }

    /// Turns DIRTY into WRITEBACK, if the frame is dirty, live, not under I/O, and held by the caller's one
    /// pin only. For `PageIs::Clean`, sets WRITEBACK if the frame is clean, under the same other
    /// conditions.
    pub(crate) fn start_writeback(&self, page: PageIs) -> bool {
        let dirty = if page == PageIs::Dirty { DIRTY } else { 0 };
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |seen| {
                let ready = seen & (PINS | LIVE | DIRTY | READING | WRITEBACK) == 1 | LIVE | dirty;
                ready.then_some(seen & !(DIRTY | IO_ERROR) | WRITEBACK)
            })
            .is_ok()
    }

    /// Sets WRITEBACK on a live frame that others have pinned beside the caller, unless it is under I/O. They
    /// may store to it meanwhile, so it is dirty, and stays so.
    pub(crate) fn start_writeback_of_pinned(&self) -> bool {
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |seen| {
                let ready = seen & (LIVE | READING | WRITEBACK) == LIVE;
                ready.then_some(seen & !IO_ERROR | DIRTY | WRITEBACK)
            })
            .is_ok()
    }

    /// Ends a writeback. If it failed, the frame is dirty again. Returns whether a waiter must be woken.
    pub(crate) fn end_writeback(&self, written: bool) -> bool {
        self.end_io(WRITEBACK, if written { 0 } else { DIRTY | IO_ERROR })
    }

    /// Cancels a writeback. The frame is dirty again, as before. Returns whether a waiter must be woken.
    pub(crate) fn cancel_writeback(&self) -> bool {
        self.end_io(WRITEBACK, DIRTY)
    }

    /// Ends a read. Returns whether a waiter must be woken.
    pub(crate) fn end_read(&self, ok: bool) -> bool {
        self.end_io(READING, if ok { 0 } else { IO_ERROR })
    }

    fn end_io(&self, flag: u32, outcome: u32) -> bool {
        // Release: the bytes that were read come before the cleared flag.
        let before = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |seen| {
                Some(seen & !(flag | WAITERS) | outcome)
            })
            .unwrap_or_default();
        debug_assert!(before & flag != 0, "I/O ended that had not begun");
        before & WAITERS != 0
    }

    /// Asks to be woken when the I/O ends. Returns false if no I/O is under way any more.
    pub(crate) fn announce_waiter(&self) -> bool {
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |seen| {
                (seen & (READING | WRITEBACK) != 0).then_some(seen | WAITERS)
            })
            .is_ok()
    }

    /// Makes a clean and idle frame unowned, if only the caller's one pin holds it. The caller has made every
    /// entry that leads to the frame unusable, and frees the frame afterwards.
    pub(crate) fn try_reclaim(&self) -> bool {
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |seen| {
                (seen & !(NO_COMPRESS | ACCOUNTED) == LIVE | 1).then_some(0)
            })
            .is_ok()
    }
}

/// Returns the word of a frame whose owner has released it while pins keep it.
fn dying(live: u32) -> u32 {
    live & !(LIVE | PARKED) | DYING
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_last_hold_frees_whichever_it_is() {
        let word = HoldWord::default();
        word.begin(true);
        word.take_pin();
        assert_eq!(word.release(), Dropped::Kept);
        assert_eq!(word.drop_pin(), Dropped::Last);
        assert_eq!(word.load(), Holds(0));
        word.begin(false);
        assert_eq!(word.release(), Dropped::Last);
    }

    #[test]
    fn a_late_pin_on_a_free_frame_never_frees_it_again() {
        let word = HoldWord::default();
        word.take_pin();
        word.begin(false);
        assert_eq!(word.drop_pin(), Dropped::Kept);
        word.take_pin();
        assert_eq!(word.release(), Dropped::Kept);
        assert_eq!(word.drop_pin(), Dropped::Last);
        word.take_pin();
        assert_eq!(word.drop_pin(), Dropped::Kept);
    }

    #[test]
    fn a_frame_that_is_parked_alone_is_taken_once_or_dies() {
        let word = HoldWord::default();
        word.begin(true);
        word.take_pin();
        word.take_pin();
        assert!(!word.park_alone(), "another has it");
        assert_eq!(word.drop_pin(), Dropped::Kept);
        assert!(word.park_alone());
        assert_eq!(word.load(), Holds(LIVE | DIRTY | PARKED));
        assert!(word.take_parked() && !word.take_parked());
        assert_eq!(word.load(), Holds(LIVE | DIRTY | 1));
        assert!(word.park_alone());
        word.take_pin();
        assert!(!word.take_parked(), "whoever has the pin lists it");
        assert_eq!(word.drop_pin(), Dropped::ToBeListed);
        assert!(word.park_alone());
        assert_eq!(word.release(), Dropped::Last);
        assert!(!word.take_parked());
    }

    #[test]
    fn a_parked_frame_is_listed_by_whoever_drops_its_last_pin() {
        let word = HoldWord::default();
        word.begin(true);
        word.take_pin();
        assert!(!word.park(), "only the reclaimer has it");
        word.take_pin();
        assert!(word.park());
        assert_eq!(word.drop_pin(), Dropped::Kept);
        assert_eq!(word.drop_pin(), Dropped::ToBeListed);
        assert_eq!((word.load().pins(), word.load().is_parked()), (1, false));
        assert_eq!(word.drop_pin(), Dropped::Kept);
        // A frame that dies meanwhile is not listed again.
        word.take_pin();
        word.take_pin();
        assert!(word.park());
        assert_eq!(word.release(), Dropped::Kept);
        assert!(!word.load().is_parked() && !word.park());
        assert_eq!((word.drop_pin(), word.drop_pin()), (Dropped::Kept, Dropped::Last));
        assert_eq!(word.load(), Holds(0));
    }

    #[test]
    fn dirty_is_cleared_only_when_nobody_else_holds_the_frame() {
        let word = HoldWord::default();
        word.begin(true);
        word.take_pin();
        word.take_pin();
        assert!(!word.start_writeback(PageIs::Dirty));
        let _ = word.drop_pin();
        assert!(word.start_writeback(PageIs::Dirty));
        assert!(!word.try_reclaim(), "a page under writeback is never reclaimed");
        word.end_writeback(false);
        assert!(!word.try_reclaim(), "a page whose write failed stays");
        assert!(word.start_writeback(PageIs::Dirty));
        word.end_writeback(true);
        assert!(word.try_reclaim());
    }

    #[test]
    fn a_clean_page_is_put_elsewhere_only_while_it_is_clean_and_nobody_else_holds_it() {
        let word = HoldWord::default();
        word.begin(false);
        word.take_pin();
        assert!(!word.start_writeback(PageIs::Dirty));
        word.take_pin();
        assert!(!word.start_writeback(PageIs::Clean), "somebody may store to it");
        let _ = word.drop_pin();
        assert!(word.start_writeback(PageIs::Clean) && !word.try_reclaim());
        word.take_pin();
        word.mark_dirty();
        let _ = word.drop_pin();
        word.end_writeback(true);
        assert!(!word.try_reclaim() && !word.start_writeback(PageIs::Clean), "it was stored to meanwhile");
        assert!(word.start_writeback(PageIs::Dirty));
    }
}

#[cfg(all(test, loom))]
mod loom;
