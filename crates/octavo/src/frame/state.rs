//! The ownership word of a frame: whether it is free, on a list or allocated.
//!
//! ```text
//!  31 ....... 24 23 ....... 16 15 ..... 9     8        7     6 ... 3  2 ... 0
//! +-------------+-------------+----------+---------+--------+-------+--------+
//! |      0      |  LRU flags  |    0     |ISOLATING| ZEROED | order |  kind  |
//! +-------------+-------------+----------+---------+--------+-------+--------+
//!
//!   Offline ──online──► Free ──take──► Cached ──hand_out──► Owned
//!      ▲                 ▲  ▲             │ ▲                 │
//!      │                 │  └───insert────┘ └────take_back────┘   (one compare-and-swap)
//!      └──── Isolated ◄──┴──────isolate / free into an isolated chunk
//! ```
//!
//! Only the first frame of a block (its head) says Free, Cached, Owned or Isolated. The others say Tail. So
//! if a caller frees a tail, the allocator does not mistake it for a block. A split of an owned block makes
//! heads of all its frames.
//!
//! Writers: the holder of the zone's lock writes the words of Free and Isolated blocks. The thread that took
//! a block off a list or shelf writes the word of the Cached block. The word of an Owned block that other
//! threads can reach changes by read-modify-write, except in a split. The owner frees the block
//! ([`StateWord::take_back_plain`]), and the LRU sets its flags. Compaction sets ISOLATING. Then a free sends
//! the block to the zone, instead of to a per-CPU list.
//!
//! ZEROED says that every byte of the block is known to be zero. The flag ends when the block is handed out.

use std::fmt;
use std::num::NonZeroU32;

use crate::sync::{AtomicU32, Ordering};
use crate::units::Order;

const KIND_MASK: u32 = 0b111;
const ORDER_SHIFT: u32 = 3;
const ORDER_MASK: u32 = 0b1111 << ORDER_SHIFT;
const ZEROED: u32 = 1 << 7;
const ISOLATING: u32 = 1 << 8;
const LRU_SHIFT: u32 = 16;
const LRU_MASK: u32 = 0xff << LRU_SHIFT;

/// The state of a frame, as the allocator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The frame has no memory.
    Offline = 0,
    /// The frame heads a free buddy block below order 9.
    Free = 1,
    /// The frame is inside a block.
    Tail = 2,
    /// The frame heads a block on a per-CPU list, in the zeroed reserve, or on its way between lists. The
    /// head of a whole free chunk has this state in its zone too.
    Cached = 3,
    /// The frame heads an allocated block.
    Owned = 4,
    /// The frame heads a free block that is held back because its chunk is being emptied.
    Isolated = 5,
}

/// A snapshot of the word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameState(u32);

impl FrameState {
    const fn new(kind: Kind, order: Order, zeroed: bool) -> Self {
        Self(kind as u32 | (order.0 as u32) << ORDER_SHIFT | if zeroed { ZEROED } else { 0 })
    }

    /// The state of a block on a list.
    pub(super) const fn cached(order: Order, zeroed: bool) -> Self {
        Self::new(Kind::Cached, order, zeroed)
    }

    /// Returns the word of a block on a list. It is not zero, because its kind is not.
    #[inline]
    pub(super) fn of_a_list(self) -> NonZeroU32 {
        const LOWEST: NonZeroU32 = NonZeroU32::MIN;
        const { assert!(Kind::Cached as u32 & LOWEST.get() != 0) };
        debug_assert_eq!(self.kind(), Kind::Cached);
        LOWEST | self.0
    }

    #[inline]
    pub(crate) fn kind(self) -> Kind {
        match self.0 & KIND_MASK {
            0 => Kind::Offline,
            1 => Kind::Free,
            2 => Kind::Tail,
            3 => Kind::Cached,
            4 => Kind::Owned,
            5 => Kind::Isolated,
            other => panic!("a frame's state word holds kind {other}"),
        }
    }

    /// Returns the block's order. Only a head has one.
    #[inline]
    pub(crate) fn order(self) -> Order {
        Order(((self.0 & ORDER_MASK) >> ORDER_SHIFT) as u8)
    }

    /// Returns whether all bytes of the block are known to be zero.
    #[inline]
    pub(crate) fn zeroed(self) -> bool {
        self.0 & ZEROED != 0
    }

    /// Returns whether the block's chunk is being emptied, so that the block must not be allocated again.
    pub(crate) fn isolating(self) -> bool {
        self.0 & ISOLATING != 0
    }

    /// Returns the LRU's flags.
    #[inline]
    pub(crate) fn lru_flags(self) -> u8 {
        (self.0 >> LRU_SHIFT) as u8
    }

    /// Returns whether this is the head of a block of this kind and order.
    #[inline]
    pub(crate) fn is(self, kind: Kind, order: Order) -> bool {
        self.0 & (KIND_MASK | ORDER_MASK) == Self::new(kind, order, false).0
    }
}

impl From<NonZeroU32> for FrameState {
    #[inline]
    fn from(word: NonZeroU32) -> Self {
        Self(word.get())
    }
}

impl fmt::Debug for FrameState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({:?}", self.kind(), self.order())?;
        for (set, name) in [(self.zeroed(), ", zeroed"), (self.isolating(), ", isolating")] {
            f.write_str(if set { name } else { "" })?;
        }
        write!(f, ", LRU {:#04x})", self.lru_flags())
    }
}

/// The outcome of [`StateWord::take_back`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakeBack {
    /// The caller has the block, in state Cached.
    Done,
    /// The caller has the block, in state Cached. The block goes to its zone, because its chunk is being
    /// emptied.
    Isolating,
    /// The frame heads no owned block of this order, or is still on the LRU. Nothing changed.
    Refused(FrameState),
}

/// The ownership word of a frame.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros))]
#[repr(transparent)]
pub(crate) struct StateWord(AtomicU32);

impl StateWord {
    #[inline]
    pub(crate) fn load(&self) -> FrameState {
        FrameState(self.0.load(Ordering::Relaxed))
    }

    /// Sets the word of a frame that only the caller has (see the head of this file).
    #[inline]
    pub(crate) fn set(&self, kind: Kind, order: Order, zeroed: bool) {
        // Relaxed: the list or lock through which the block passes orders this store.
        self.0.store(FrameState::new(kind, order, zeroed).0, Ordering::Relaxed);
    }

    /// Makes a frame a tail.
    #[inline]
    pub(crate) fn set_tail(&self) {
        self.set(Kind::Tail, Order::ZERO, false);
    }

    /// Cached → Owned, for a block that was just taken off a list. Returns the previous state. This is a
    /// plain store, since no other thread has the block.
    ///
    /// # Panics
    /// If the block is in another state, since the frame would have two owners.
    #[inline]
    pub(crate) fn hand_out(&self, order: Order) -> FrameState {
        // Acquire: pairs with `take_back_plain`. The previous owner's accesses to the bytes are over.
        let state = FrameState(self.0.load(Ordering::Acquire));
        assert!(state.is(Kind::Cached, order), "a list of {order:?} held a frame in state {state:?}");
        self.set(Kind::Owned, order, false);
        state
    }

    /// Owned → Cached, for a block without a mark or LRU flags. Costs one compare-and-swap. Returns `Err`
    /// with the word if the block is in any other state.
    #[inline]
    pub(crate) fn take_back_plain(&self, order: Order) -> Result<u32, u32> {
        let owned = FrameState::new(Kind::Owned, order, false).0;
        let cached = FrameState::new(Kind::Cached, order, false).0;
        // Release: the owner's accesses come before those of the next owner. A failure needs no ordering.
        self.0.compare_exchange(owned, cached, Ordering::Release, Ordering::Relaxed)
    }

    /// Takes a block back by either path. For tests.
    #[cfg(test)]
    pub(crate) fn take_back(&self, order: Order) -> TakeBack {
        match self.take_back_plain(order) {
            Ok(_) => TakeBack::Done,
            Err(found) => self.take_back_unusual(order, found),
        }
    }

    /// Takes a block back after [`StateWord::take_back_plain`] failed: the block is marked, or there is no
    /// such block.
    #[cold]
    pub(crate) fn take_back_unusual(&self, order: Order, mut found: u32) -> TakeBack {
        let owned = FrameState::new(Kind::Owned, order, false).0;
        let cached = FrameState::new(Kind::Cached, order, false).0;
        while found & !ISOLATING == owned {
            // Ordering as in `take_back_plain`. Compaction may set or clear its bit meanwhile.
            match self.0.compare_exchange(found, cached, Ordering::Release, Ordering::Relaxed) {
                Ok(_) if found & ISOLATING != 0 => return TakeBack::Isolating,
                Ok(_) => return TakeBack::Done,
                Err(now) => found = now,
            }
        }
        TakeBack::Refused(FrameState(found))
    }

    /// Marks an owned block, so that its free goes to the zone. Returns whether the block is owned.
    pub(crate) fn mark_isolating(&self) -> bool {
        self.update_owned(|word| word | ISOLATING)
    }

    /// Undoes [`StateWord::mark_isolating`].
    pub(crate) fn clear_isolating(&self) {
        self.update_owned(|word| word & !ISOLATING);
    }

    fn update_owned(&self, change: impl Fn(u32) -> u32) -> bool {
        // Relaxed: the bit orders nothing. The zone's lock orders the frames.
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
                (word & KIND_MASK == Kind::Owned as u32).then(|| change(word))
            })
            .is_ok()
    }

    /// Makes this frame, the head or a tail of an owned block, the head of an owned block of `order`. The
    /// caller owns the block.
    pub(crate) fn split_to(&self, order: Order, isolating: bool) {
        let word = FrameState::new(Kind::Owned, order, false).0 | if isolating { ISOLATING } else { 0 };
        self.0.store(word, Ordering::Relaxed);
    }

    /// Sets LRU flags of an owned frame, and returns the previous flags. The caller keeps the frame from
    /// being freed.
    #[inline]
    pub(crate) fn set_lru_flags(&self, flags: u8) -> u8 {
        FrameState(self.0.fetch_or(u32::from(flags) << LRU_SHIFT, Ordering::Relaxed)).lru_flags()
    }

    /// Sets LRU flags of a frame that was just handed out, and that no other thread can reach. This is a
    /// plain store, so it may overwrite compaction's mark. That does no harm, since compaction looks again at
    /// any block that changes hands.
    #[inline]
    pub(crate) fn set_lru_flags_unshared(&self, flags: u8) {
        let word = self.0.load(Ordering::Relaxed);
        self.0.store(word | u32::from(flags) << LRU_SHIFT, Ordering::Relaxed);
    }

    /// Replaces the LRU flags `from` by `to`, if all of `from` are set. Returns whether they were.
    #[inline]
    pub(crate) fn replace_lru_flags(&self, from: u8, to: u8) -> bool {
        let (from, to) = (u32::from(from) << LRU_SHIFT, u32::from(to) << LRU_SHIFT);
        // Relaxed: the LRU's lock orders the flags.
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
                (word & from == from).then_some(word & !from | to)
            })
            .is_ok()
    }

    /// Sets all LRU flags of an owned frame at once. The caller keeps the frame from being freed.
    #[inline]
    pub(crate) fn exchange_lru_flags(&self, flags: u8) {
        // Relaxed: the LRU's lock orders the flags. The closure never refuses.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
            Some(word & !LRU_MASK | u32::from(flags) << LRU_SHIFT)
        });
    }

    /// Clears LRU flags of an owned frame, and returns the previous flags.
    #[inline]
    pub(crate) fn clear_lru_flags(&self, flags: u8) -> u8 {
        FrameState(self.0.fetch_and(!(u32::from(flags) << LRU_SHIFT), Ordering::Relaxed)).lru_flags()
    }
}

const _: () = assert!(LRU_MASK & (KIND_MASK | ORDER_MASK | ZEROED | ISOLATING) == 0);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn owned(order: Order) -> StateWord {
        let word = StateWord::default();
        word.set(Kind::Cached, order, true);
        assert!(word.hand_out(order).zeroed(), "a zeroed block is handed out as zeroed");
        word
    }

    #[test]
    fn a_block_comes_back_once_with_its_own_order() {
        let word = owned(Order(3));
        let before = word.load();
        assert_eq!(word.take_back(Order(2)), TakeBack::Refused(before));
        assert_eq!(word.load(), before, "a refused free changes nothing");
        assert_eq!(word.take_back(Order(3)), TakeBack::Done);
        assert!(matches!(word.take_back(Order(3)), TakeBack::Refused(_)));
        assert!(!word.load().zeroed(), "an owner may have written");
    }

    #[test]
    fn tails_and_frames_on_the_lru_are_refused() {
        let tail = StateWord::default();
        tail.set_tail();
        assert!(matches!(tail.take_back(Order::ZERO), TakeBack::Refused(_)));
        let listed = owned(Order::ZERO);
        listed.set_lru_flags(1);
        assert!(matches!(listed.take_back(Order::ZERO), TakeBack::Refused(_)));
        assert_eq!(listed.clear_lru_flags(1), 1);
        assert_eq!(listed.take_back(Order::ZERO), TakeBack::Done);
    }

    #[test]
    fn an_isolating_mark_shows_at_the_free_and_ends_with_it() {
        let word = owned(Order::ZERO);
        assert!(word.mark_isolating());
        assert_eq!(word.take_back(Order::ZERO), TakeBack::Isolating);
        assert!(!word.load().isolating() && !word.mark_isolating(), "only owned blocks are marked");
    }

    #[test]
    #[should_panic(expected = "held a frame in state")]
    fn a_frame_handed_out_twice_is_caught() {
        owned(Order::ZERO).hand_out(Order::ZERO);
    }
}

#[cfg(all(test, loom))]
mod loom;
