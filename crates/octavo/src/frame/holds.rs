//! The hold word of a frame: it says who uses the frame's bytes, and whether they are newer than any copy.
//!
//! ```text
//!  31   30      29       28      27        26    25    24    23     22      21 .. 0
//! +---+-------+--------+-------+---------+-----+-----+----+------+---------+-------+
//! |NC |WAITERS|IO_ERROR|READING|WRITEBACK|DIRTY|DYING|LIVE|PARKED|ACCOUNTED| pins  |
//! +---+-------+--------+-------+---------+-----+-----+----+------+---------+-------+
//!
//! NC (NO_COMPRESS): the page is not to be compressed on its way out, as its region says.
//! ACCOUNTED: a pin of the frame was taken from the credit of its space (`engine/pin_share.rs`).
//! PARKED: reclaim found the frame pinned, or its page cannot move, and left it off its lists. Whoever drops the last pin lists it
//! again, or whoever tries again to move it.
//!
//!            begin                    release, pins = 0
//!   unowned ───────► LIVE ─────────────────────────────────► unowned  (the releaser frees)
//!      ▲              │ release, pins > 0
//!      │              ▼
//!      └────────── DYING     drop_pin brings pins to 0      (that dropper frees)
//!
//!             park, others have pins              drop_pin brings pins to 0
//!   listed ──────────────────────────► PARKED ──────────────────────────────► the dropper's: pinned, to be listed
//!                                        ▲ │
//!             park_alone, no other pin   │ │ take_parked, no pins
//!   in hand ─────────────────────────────┘ └───────────────────────────────► the taker's: pinned, to be listed
//! ```
//!
//! The allocator's ownership word is another word. To allocate or free a frame never writes this one. So a
//! late walker may add a pin at any moment, see that its entry changed, and take the pin back. *The thread
//! that takes the word to zero, out of LIVE or DYING, frees the frame.* The compare-and-swap that does so can
//! succeed only once.
//!
//! Ordering. An unmapper changes the entry first, and then does a read-modify-write here ([`release`],
//! [`start_writeback`], [`try_reclaim`], [`pinned_by_others`]). A pinner does one here ([`take_pin`]), and
//! then reads the entry again. All of them are on one word, so one comes first. If the pin comes first, the
//! unmapper sees it. If the unmapper comes first, the pin acquires its release, and the second reading sees
//! the changed entry. No fence is needed, and no thread pays for one.
//!
//! Only [`start_writeback`] clears DIRTY, and only while no other thread holds a pin. A store holds a pin. So
//! at any moment before it lets go, the store finds DIRTY set or sets it, and no write is lost.
//!
//! A parked frame is on no list, and in no reclaimer's hand. To list it again is the task of the one thread
//! whose compare-and-swap takes PARKED away. The same step pins the frame, so that it cannot be freed before
//! it is listed. A frame that dies loses PARKED, and needs no list any more.
//!
//! Cost: to take or drop a pin is one read-modify-write on the frame's own half line.
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

/// The most pins that a frame may carry. The rest of the field is room for late pins on their way back.
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
    /// The frame's owner has let it go, and pins keep it.
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
    /// The read of the page failed, so the frame has no bytes. A failed *write* also leaves the mark, on a
    /// frame whose bytes are good: that frame is dirty.
    #[inline]
    pub(crate) fn was_read_in_vain(self) -> bool {
        self.0 & (IO_ERROR | DIRTY) == IO_ERROR
    }
    /// Others than the caller, who has `own` pins, hold pins, or the frame is under I/O. For pins this is
    /// only a guess: see `pinned_by_others`.
    pub(crate) fn is_held_by_others(self, own: u32) -> bool {
        self.pins() > own || self.is_under_io()
    }
    /// The page is being read or written.
    pub(crate) fn is_under_io(self) -> bool {
        self.is_writeback() || self.is_reading()
    }
    /// A thread or task waits for I/O to end.
    pub(crate) fn has_waiters(self) -> bool {
        self.0 & WAITERS != 0
    }
    /// Reclaim left the frame off its lists, until the pins of others have gone.
    pub(crate) fn is_parked(self) -> bool {
        self.0 & PARKED != 0
    }
    /// A pin of the frame was taken from a credit.
    #[inline]
    pub(crate) fn is_accounted(self) -> bool {
        self.0 & ACCOUNTED != 0
    }
    /// The page is not to be compressed.
    pub(crate) fn is_no_compress(self) -> bool {
        self.0 & NO_COMPRESS != 0
    }
    /// The word has no pins and no flags: the frame has no owner.
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

/// The outcome when an owner lets a frame go, or when a pin is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the caller that drops the last hold frees the frame, or lists it again"]
pub(crate) enum Dropped {
    /// Others still hold the frame.
    Kept,
    /// That was the last hold: the caller frees the frame.
    Last,
    /// That was the last pin of a parked frame. The frame is pinned again for the caller, who lists it.
    ToBeListed,
}

/// The state of a page on which a writeback may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageIs {
    /// The page is to be written, or put away in another way.
    Dirty,
    /// The page's store has its bytes, and is to put them elsewhere.
    Clean,
}

/// The hold word of a frame.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros))]
#[repr(transparent)]
pub(crate) struct HoldWord(AtomicU32);

impl HoldWord {
    /// Returns the word as it is. Its pins prove nothing: see `pinned_by_others`.
    #[inline]
    pub(crate) fn load(&self) -> Holds {
        Holds(self.0.load(Ordering::Acquire))
    }

    /// Begins the use of a frame that an owner has fresh from the allocator. `dirty` says that its bytes are
    /// nowhere else.
    #[inline]
    pub(crate) fn begin(&self, dirty: bool) {
        // Relaxed: the entry that publishes the frame releases this. It is an addition, since late pins may
        // come and go meanwhile.
        let before = self.0.fetch_add(LIVE | if dirty { DIRTY } else { 0 }, Ordering::Relaxed);
        debug_assert!(Holds(before).is_unowned(), "a frame in use was begun again: {:?}", Holds(before));
    }

    /// Begins the use of a frame that a device will fill. Readers wait for [`HoldWord::end_read`].
    pub(crate) fn begin_reading(&self) {
        let before = self.0.fetch_add(LIVE | READING, Ordering::Relaxed);
        debug_assert!(Holds(before).is_unowned(), "a frame in use was begun again: {:?}", Holds(before));
    }

    /// Adds a pin, whatever the frame's state, and returns the word as it was. The caller then reads its
    /// entry again, and drops the pin where the entry changed.
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

    /// Takes a dying frame without pins to zero, or a parked one into the caller's hand. Of the threads that
    /// saw the frame so, one succeeds.
    #[cold]
    fn finish(&self) -> Dropped {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            let (next, outcome) = match seen & (DYING | PARKED | PINS) {
                DYING => (0, Dropped::Last),
                PARKED => ((seen & !PARKED) + 1, Dropped::ToBeListed),
                _ => return Dropped::Kept,
            };
            // Acquire: all work of others under their pins happens before the frame is used anew, and what
            // the reclaimer noted of a parked frame can be read.
            match self.0.compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return outcome,
                Err(now) => seen = now,
            }
        }
    }

    /// Marks a frame that the caller has in its hand, with one pin, as parked, if others have pins as well.
    /// Then it is nobody's to list until their pins have gone; the caller only drops its own. Returns whether
    /// it is parked.
    pub(crate) fn park(&self) -> bool {
        // Relaxed: the drop of the caller's pin releases what it noted, and nobody has the frame in hand
        // before.
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |seen| {
                (seen & PINS > 1 && seen & LIVE != 0).then_some(seen | PARKED)
            })
            .is_ok()
    }

    /// Parks a frame that the caller has in its hand with the only pin, which this drops. The frame is in
    /// nobody's hand then, until [`HoldWord::take_parked`], or until a pin comes and goes. Returns whether it
    /// is parked.
    pub(crate) fn park_alone(&self) -> bool {
        // Release: what the caller did with the frame comes before its next hand, or its free.
        self.0
            .fetch_update(Ordering::Release, Ordering::Relaxed, |seen| {
                let is_alone = seen & (PINS | LIVE | READING | WRITEBACK) == 1 | LIVE;
                is_alone.then_some((seen | PARKED) - 1)
            })
            .is_ok()
    }

    /// Takes a parked frame without pins in hand, with a pin for the caller, who lists it. Returns false
    /// where the frame is not so.
    pub(crate) fn take_parked(&self) -> bool {
        // Acquire: pairs with the release of the thread that had the frame in hand before.
        self.0
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |seen| {
                (seen & (PARKED | PINS) == PARKED).then_some((seen & !PARKED) + 1)
            })
            .is_ok()
    }

    /// Lets the frame go for its owner, who has removed every entry that led to it.
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

    /// Does what [`HoldWord::release`] does, but not while the frame is being written. The caller has a pin,
    /// which keeps the frame until it is dropped. Returns whether the frame is released.
    pub(crate) fn release_unless_writeback(&self) -> bool {
        // AcqRel: a writeback that starts after this fails. This sees one that started before.
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

    /// Marks the page as not to be compressed. The caller's frame is live.
    pub(crate) fn mark_no_compress(&self) {
        // Relaxed: a hint.
        self.0.fetch_or(NO_COMPRESS, Ordering::Relaxed);
    }

    /// Notes that a pin of the frame is taken from a credit. The caller has a pin. Returns whether no thread
    /// noted it before.
    pub(crate) fn account(&self) -> bool {
        // Relaxed: the credit is a hint.
        self.0.fetch_or(ACCOUNTED, Ordering::Relaxed) & ACCOUNTED == 0
    }

    /// Has the next pin taken from a credit again, if the frame has none by now.
    pub(crate) fn account_anew(&self) {
        let unpinned = |seen| (seen & PINS == 0).then_some(seen & !ACCOUNTED);
        // Where it has one, that pin stays accounted.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, unpinned);
    }

    /// Returns whether anyone but the caller, who holds `own` pins, holds the frame. The caller has made the
    /// entries unusable before, so that "no" stays "no" until they are usable again.
    pub(crate) fn pinned_by_others(&self, own: u32) -> bool {
        // It is a read-modify-write, as the module doc's argument asks.
        self.0.fetch_add(0, Ordering::AcqRel) & PINS > own
    }

    /// Turns DIRTY into WRITEBACK, if the frame is dirty, live, and held by the caller's one pin only. Of a
    /// clean page, it sets WRITEBACK under the same conditions.
    pub(crate) fn start_writeback(&self, page: PageIs) -> bool {
        let dirty = if page == PageIs::Dirty { DIRTY } else { 0 };
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |seen| {
                let ready = seen & (PINS | LIVE | DIRTY | READING | WRITEBACK) == 1 | LIVE | dirty;
                ready.then_some(seen & !(DIRTY | IO_ERROR) | WRITEBACK)
            })
            .is_ok()
    }

    /// Ends a writeback. A failed one leaves the frame dirty. Returns whether somebody waits for the end.
    pub(crate) fn end_writeback(&self, written: bool) -> bool {
        self.end_io(WRITEBACK, if written { 0 } else { DIRTY | IO_ERROR })
    }

    /// Takes back a writeback that should not have been started. The frame is dirty again, as it was. Returns
    /// whether somebody waits for the end.
    pub(crate) fn cancel_writeback(&self) -> bool {
        self.end_io(WRITEBACK, DIRTY)
    }

    /// Ends a read. Returns whether somebody waits for the end.
    pub(crate) fn end_read(&self, ok: bool) -> bool {
        self.end_io(READING, if ok { 0 } else { IO_ERROR })
    }

    fn end_io(&self, flag: u32, outcome: u32) -> bool {
        // Release: the bytes that the device brought come before the cleared flag.
        let before = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |seen| {
                Some(seen & !(flag | WAITERS) | outcome)
            })
            .unwrap_or_default();
        debug_assert!(before & flag != 0, "I/O ended that had not begun");
        before & WAITERS != 0
    }

    /// Asks to be woken when the I/O under way ends. Returns false where no I/O is under way any more.
    pub(crate) fn announce_waiter(&self) -> bool {
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |seen| {
                (seen & (READING | WRITEBACK) != 0).then_some(seen | WAITERS)
            })
            .is_ok()
    }

    /// Takes a clean and idle frame to unowned, if only the caller's one pin holds it. The caller then frees
    /// the frame. The caller has made every way to the frame unusable.
    pub(crate) fn try_reclaim(&self) -> bool {
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |seen| {
                (seen & !(NO_COMPRESS | ACCOUNTED) == LIVE | 1).then_some(0)
            })
            .is_ok()
    }
}

/// The word of a frame whose owner has let it go, while pins keep it.
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
        // One that dies meanwhile is listed no more.
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
