//! One word of the page table.
//!
//! ```text
//!  63 ........ 40  39 ............. 8    7     6       5       4     3    2 .. 0
//! +--------------+------------------+------+-------+--------+-----+-----+-------+
//! |   version    |     payload      | AWAY |   *   |ACCESSED|WRITE|READ | state |
//! +--------------+------------------+------+-------+--------+-----+-----+-------+
//!
//! *: WAITERS while the entry is Busy. COPY_ON_WRITE in Present entries (see below). Clear in all others.
//!
//! state    payload           means
//! Empty    -                 nothing here yet (all-zero memory is Empty, version 0)
//! Zero     -                 reads as zeros; no frame (level 0: small, level 1: 2 MiB)
//! Present  frame             the page has a frame; READ and WRITE say which accesses are allowed
//! Swapped  slot              the bytes are in the swap cache, or where the slot's content word says
//! Busy     -                 a thread is changing it; WAITERS: others wait for the change
//! Node     node (level in READ|WRITE for a root)   a table one level down
//! ```
//!
//! Every transition that changes the meaning of the word adds one to the version. The version keeps counting
//! through unmap and the reuse of the node that holds the word. ACCESSED and WAITERS are flags on a meaning,
//! and leave the version alone.
//!
//! The version makes an optimistic load sound: equal words before and after mean that nothing happened in
//! between. To be fooled, a reader must sleep between two adjacent loads while exactly a multiple of 2^24
//! transitions of this one word pass, and end on the same frame (see `docs/state-words.md`). A pinner does
//! not rely on the version: it holds the frame before it reads the entry again.
//!
//! COPY_ON_WRITE says that the frame is another owner's, and this page gets a frame of its own when it is
//! written. WRITE is clear then, so a read is a hit and a write is a fault, at no extra cost. A private
//! mapping of a file shows the file's frames so. The transitions that keep the meaning keep the bit.

use std::fmt;

use crate::sync::{AtomicU64, Ordering};
use crate::units::{FrameId, SwapSlot};

const STATE: u64 = 0b111;
const READ: u64 = 1 << 3;
const WRITE: u64 = 1 << 4;
const ACCESSED: u64 = 1 << 5;
const WAITERS: u64 = 1 << 6;
/// In Present entries. The same bit as `WAITERS`, which only Busy entries have.
const COPY_ON_WRITE: u64 = 1 << 6;
const AWAY: u64 = 1 << 7;
const PAYLOAD_SHIFT: u32 = 8;
const VERSION_SHIFT: u32 = 40;
const VERSION_ONE: u64 = 1 << VERSION_SHIFT;

const EMPTY: u64 = 0;
const ZERO: u64 = 1;
const PRESENT: u64 = 2;
const SWAPPED: u64 = 3;
const BUSY: u64 = 4;
const NODE: u64 = 5;

/// The index of a table node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NodeId(pub(crate) u32);

/// What a program may do with a region, for [`RegionOptions::protection`](crate::RegionOptions::protection)
/// and [`Space::protect`](crate::Space::protect).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Protection {
    /// Loads, reads and read pins are allowed.
    pub read: bool,
    /// Stores, writes and write pins are allowed. This implies `read`.
    pub write: bool,
}

impl Protection {
    /// No access at all.
    pub const NONE: Self = Self { read: false, write: false };
    /// Reading only.
    pub const READ: Self = Self { read: true, write: false };
    /// Reading and writing.
    pub const READ_WRITE: Self = Self { read: true, write: true };

    /// The protection of entries that only guards may reach. No region has it, and WRITE without READ allows
    /// no other access.
    pub(crate) const GUARDED: Self = Self { read: false, write: true };

    /// Returns the protection that allows only what both allow.
    pub(crate) fn both(self, other: Self) -> Self {
        Self { read: self.read && other.read, write: self.write && other.write }
    }

    /// Returns this protection without writing.
    pub(crate) fn read_only(self) -> Self {
        Self { write: false, ..self }
    }

    /// Returns this protection, with reading if writing is allowed.
    pub(crate) fn normal(self) -> Self {
        Self { read: self.read || self.write, ..self }
    }

    /// Returns whether `access` is allowed.
    #[inline]
    pub fn allows(self, access: Access) -> bool {
        match access {
            Access::Read => self.read,
            Access::Write => self.write,
        }
    }

    #[inline]
    fn bits(self) -> u64 {
        (if self.read { READ } else { 0 }) | if self.write { WRITE } else { 0 }
    }
}

/// The purpose of a pin, or of bringing a page in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// To read bytes.
    Read,
    /// To write bytes, and perhaps to read them.
    Write,
}

/// The meaning of an entry, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Empty,
    Zero,
    Present(FrameId),
    Swapped(SwapSlot),
    Busy,
    Node(NodeId),
}

/// A snapshot of the word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry(u64);

impl Entry {
    #[inline(always)]
    fn payload(self) -> u32 {
        (self.0 >> PAYLOAD_SHIFT) as u32
    }

    #[inline]
    pub(crate) fn state(self) -> State {
        match self.0 & STATE {
            EMPTY => State::Empty,
            ZERO => State::Zero,
            PRESENT => State::Present(FrameId(self.payload())),
            SWAPPED => State::Swapped(SwapSlot(self.payload())),
            BUSY => State::Busy,
            NODE => State::Node(NodeId(self.payload())),
            other => unreachable!("entry state {other}"),
        }
    }

    /// Returns the frame, if reads are allowed and its bytes are in the arena.
    #[inline(always)]
    pub(crate) fn readable_at_home(self) -> Option<FrameId> {
        (self.0 & (STATE | READ | AWAY) == PRESENT | READ).then_some(FrameId(self.payload()))
    }

    /// Returns the frame, if `access` is allowed and its bytes are in the arena.
    #[inline(always)]
    pub(crate) fn usable_at_home(self, access: Access) -> Option<FrameId> {
        let need = match access {
            Access::Read => READ,
            Access::Write => READ | WRITE,
        };
        (self.0 & (STATE | need | AWAY) == PRESENT | need).then_some(FrameId(self.payload()))
    }

    /// Returns the frame of a page that only guards may reach, if its bytes are in the arena.
    #[inline(always)]
    pub(crate) fn guarded_at_home(self) -> Option<FrameId> {
        (self.0 & (STATE | READ | WRITE | AWAY) == PRESENT | WRITE).then_some(FrameId(self.payload()))
    }

    /// Returns the node one level down.
    #[inline(always)]
    pub(crate) fn node(self) -> Option<NodeId> {
        (self.0 & STATE == NODE).then_some(NodeId(self.payload()))
    }

    /// Returns the level of a root's node: 0 covers 2 MiB, 3 covers 256 TiB.
    #[inline(always)]
    pub(crate) fn root_level(self) -> usize {
        (self.0 >> 3) as usize & 3
    }

    #[inline(always)]
    pub(crate) fn is_zero(self) -> bool {
        self.0 & STATE == ZERO
    }

    #[inline(always)]
    pub(crate) fn is_empty(self) -> bool {
        self.0 & STATE == EMPTY
    }

    #[inline(always)]
    pub(crate) fn is_busy(self) -> bool {
        self.0 & STATE == BUSY
    }

    #[inline(always)]
    pub(crate) fn is_accessed(self) -> bool {
        self.0 & ACCESSED != 0
    }

    /// Returns whether the page, or its zeros, are on the translation's side.
    #[inline(always)]
    pub(crate) fn is_away(self) -> bool {
        self.0 & AWAY != 0
    }

    /// Returns whether the entry shows a frame of another owner, and a write needs a frame of its own.
    #[inline(always)]
    pub(crate) fn is_copy_on_write(self) -> bool {
        self.0 & (STATE | COPY_ON_WRITE) == PRESENT | COPY_ON_WRITE
    }

    #[inline]
    pub(crate) fn version(self) -> u32 {
        (self.0 >> VERSION_SHIFT) as u32
    }

    #[inline]
    fn next(self, meaning: u64) -> Self {
        // The version wraps at 2^24: see the module doc.
        Self((self.0 & !(VERSION_ONE - 1)).wrapping_add(VERSION_ONE) | meaning)
    }

    #[inline]
    pub(crate) fn to_empty(self) -> Self {
        self.next(EMPTY)
    }
    /// Makes a zero entry. It is marked as accessed, so that no reader has to mark it: zeros are never
    /// evicted.
    #[inline]
    pub(crate) fn to_zero(self) -> Self {
        self.next(ZERO | ACCESSED)
    }
    /// Makes a zero entry as [`Entry::to_zero`] does, for zeros that the translation shows too.
    pub(crate) fn to_zero_away(self) -> Self {
        self.next(ZERO | ACCESSED | AWAY)
    }
    #[inline]
    pub(crate) fn to_busy(self) -> Self {
        self.next(BUSY)
    }
    /// Makes a present entry, marked as accessed.
    #[inline]
    pub(crate) fn to_present(self, frame: FrameId, protection: Protection) -> Self {
        self.next(PRESENT | ACCESSED | protection.bits() | u64::from(frame.0) << PAYLOAD_SHIFT)
    }
    /// Makes a present entry, marked as accessed, for a frame that the page shares until it is written.
    pub(crate) fn to_copy_on_write(self, frame: FrameId, protection: Protection) -> Self {
        Self(self.to_present(frame, protection.read_only()).0 | COPY_ON_WRITE)
    }
    /// Makes a present entry, marked as accessed, for an away frame.
    pub(crate) fn to_away(self, frame: FrameId, protection: Protection) -> Self {
        Self(self.to_present(frame, protection).0 | AWAY)
    }
    /// Makes an entry like the present entry `before`, but for another frame.
    pub(crate) fn to_present_as(self, before: Entry, frame: FrameId) -> Self {
        debug_assert!(before.0 & STATE == PRESENT);
        let rest = before.0 & (VERSION_ONE - 1) & !(u64::from(u32::MAX) << PAYLOAD_SHIFT);
        self.next(rest | u64::from(frame.0) << PAYLOAD_SHIFT)
    }
    /// Makes an entry with the meaning and the accessed mark of `before`.
    pub(crate) fn to_what_was(self, before: Entry) -> Self {
        debug_assert!(!before.is_busy());
        self.next(before.0 & (VERSION_ONE - 1))
    }
    #[inline]
    pub(crate) fn to_swapped(self, slot: SwapSlot) -> Self {
        self.next(SWAPPED | u64::from(slot.0) << PAYLOAD_SHIFT)
    }
    #[inline]
    pub(crate) fn to_node(self, node: NodeId) -> Self {
        self.next(NODE | u64::from(node.0) << PAYLOAD_SHIFT)
    }
    /// Makes a root's link, which carries the level of the node that it leads to.
    #[inline]
    pub(crate) fn to_root(self, node: NodeId, level: usize) -> Self {
        self.next(NODE | (level as u64) << 3 | u64::from(node.0) << PAYLOAD_SHIFT)
    }
    /// Makes an entry with the same meaning under a later version. The word that earlier readers saw no
    /// longer matches.
    #[inline]
    pub(crate) fn to_same(self) -> Self {
        debug_assert!(!self.is_busy());
        self.next(self.0 & (VERSION_ONE - 1))
    }
    /// Makes an entry with the same frame and other permissions. A page that is copied on write stays without
    /// WRITE.
    #[inline]
    pub(crate) fn with_protection(self, protection: Protection) -> Self {
        let protection = if self.is_copy_on_write() { protection.read_only() } else { protection };
        self.next(self.0 & (VERSION_ONE - 1) & !(READ | WRITE) | protection.bits())
    }
    /// Makes an entry with the same frame, and its accessed mark cleared. The meaning does not change.
    #[inline]
    pub(crate) fn without_accessed(self) -> Self {
        Self(self.0 & !ACCESSED)
    }
    #[inline]
    pub(crate) fn protection(self) -> Protection {
        Protection { read: self.0 & READ != 0, write: self.0 & WRITE != 0 }
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} v{}", self.state(), self.version())
    }
}

/// The word of an entry.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros))]
#[repr(transparent)]
pub(crate) struct EntryWord(AtomicU64);

impl EntryWord {
    /// Loads the word. Acquire: everything that the word leads to was prepared before it was published.
    #[inline(always)]
    pub(crate) fn load(&self) -> Entry {
        Entry(self.0.load(Ordering::Acquire))
    }

    /// Returns whether the word is still `seen`, apart from its accessed mark. The caller first makes an
    /// acquire fence or an acquiring read-modify-write, so that its reads in between happened before.
    #[inline(always)]
    pub(crate) fn still_is(&self, seen: Entry) -> bool {
        (self.0.load(Ordering::Relaxed) ^ seen.0) & !ACCESSED == 0
    }

    /// Makes one step of the state machine. If the word is not `from`, returns what it is.
    #[inline]
    pub(crate) fn change(&self, from: Entry, to: Entry) -> Result<(), Entry> {
        // Release publishes all that the new meaning leads to. Acquire orders this change after the previous
        // one.
        match self.0.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(now) => Err(Entry(now)),
        }
    }

    /// Returns whether the word is `seen` now. This is a read-modify-write: a thread that changes the word
    /// later sees the caller's earlier work, and the caller sees earlier changes.
    pub(crate) fn confirm(&self, seen: Entry) -> bool {
        self.change(seen, seen).is_ok()
    }

    /// Ends the caller's own Busy. Returns whether the caller must wake waiters.
    #[inline]
    #[must_use = "those who wait must be woken"]
    pub(crate) fn publish(&self, to: Entry) -> bool {
        let before = self.0.swap(to.0, Ordering::AcqRel);
        debug_assert!(before & STATE == BUSY, "only a busy entry is published: {:?}", Entry(before));
        before & WAITERS != 0
    }

    /// Stores an entry that no other thread can reach: its node is not yet linked, or its space is being
    /// dropped.
    #[inline]
    pub(crate) fn set_unshared(&self, to: Entry) {
        self.0.store(to.0, Ordering::Release);
    }

    /// Asks the thread that is changing the entry to wake waiters. Returns false if the entry is not Busy any
    /// more.
    pub(crate) fn announce_waiter(&self) -> bool {
        let mut seen = self.0.load(Ordering::Acquire);
        while seen & STATE == BUSY {
            match self.0.compare_exchange_weak(seen, seen | WAITERS, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Marks the page as accessed, unless `seen` is already marked.
    #[inline(always)]
    pub(crate) fn mark_accessed(&self, seen: Entry) {
        if !seen.is_accessed() {
            // Only the word that was seen is marked. The mark is a hint, and may be lost. Relaxed: it orders
            // nothing.
            let _ = self.0.compare_exchange(seen.0, seen.0 | ACCESSED, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_meaning_survives_the_round_trip_and_every_change_has_a_new_version() {
        let empty = Entry(0);
        assert_eq!(empty.state(), State::Empty);
        let present = empty.to_present(FrameId(u32::MAX), Protection::READ);
        assert_eq!(present.state(), State::Present(FrameId(u32::MAX)));
        assert_eq!(present.readable_at_home(), Some(FrameId(u32::MAX)));
        assert_eq!(present.usable_at_home(Access::Write), None);
        let writable = present.with_protection(Protection::READ_WRITE);
        assert_eq!(writable.usable_at_home(Access::Write), Some(FrameId(u32::MAX)));
        assert_eq!(writable.to_swapped(SwapSlot(9)).state(), State::Swapped(SwapSlot(9)));
        let node = writable.to_root(NodeId(3), 2);
        assert_eq!((node.state(), node.root_level()), (State::Node(NodeId(3)), 2));
        assert_eq!(
            [empty, present, writable, node.to_busy(), node.to_busy().to_zero()].map(Entry::version),
            [0, 1, 2, 4, 5]
        );
        assert_eq!(Entry(!STATE).to_empty().version(), 0, "the version wraps");
    }

    /// Fields do not overlap, and fill the word.
    const _: () = {
        let fields = [
            STATE,
            READ,
            WRITE,
            ACCESSED,
            WAITERS,
            AWAY,
            (u32::MAX as u64) << PAYLOAD_SHIFT,
            !0 << VERSION_SHIFT,
        ];
        let (mut at, mut union) = (0, 0_u64);
        while at < fields.len() {
            assert!(union & fields[at] == 0);
            union |= fields[at];
            at += 1;
        }
        assert!(union == !0);
    };

    #[test]
    fn a_page_that_is_copied_on_write_never_gets_write_by_a_change_of_permissions() {
        let widest = FrameId(u32::MAX);
        let shared = Entry(0).to_copy_on_write(widest, Protection::READ_WRITE);
        assert_eq!(shared.state(), State::Present(widest));
        assert_eq!(shared.usable_at_home(Access::Read), Some(widest), "reading it is a hit");
        assert_eq!(shared.usable_at_home(Access::Write), None, "writing it is a fault");
        assert_eq!(shared.with_protection(Protection::READ_WRITE).protection(), Protection::READ);
        let kept = [
            shared.to_same(),
            shared.with_protection(Protection::NONE),
            shared.without_accessed(),
            shared.to_busy().to_what_was(shared),
            shared.to_busy().to_present_as(shared, FrameId(7)),
        ];
        assert!(kept.iter().all(|entry| entry.is_copy_on_write()), "{kept:?}");
        // Other states do not have the bit: in Busy, it would count as a waiter.
        let others = [
            shared.to_busy(),
            shared.to_empty(),
            shared.to_zero(),
            shared.to_node(NodeId(1)),
            shared.to_swapped(SwapSlot(u32::MAX)),
            shared.to_present(widest, Protection::READ_WRITE),
        ];
        assert!(others.iter().all(|entry| entry.0 & COPY_ON_WRITE == 0), "{others:?}");
        let word = EntryWord::default();
        word.change(Entry(0), shared).unwrap();
        assert!(!word.announce_waiter(), "nobody waits for an entry that is not busy");
        let busy = shared.to_same().to_busy();
        word.change(shared, busy).unwrap();
        assert!(!word.publish(busy.to_empty()), "nobody waited");
    }

    #[test]
    fn the_accessed_mark_is_no_change_of_meaning() {
        let word = EntryWord::default();
        let present = Entry(0).to_present(FrameId(7), Protection::READ).without_accessed();
        word.change(Entry(0), present).unwrap();
        word.mark_accessed(present);
        assert!(word.still_is(present) && word.load().is_accessed());
        assert!(word.change(present, present.to_empty()).is_err(), "a change names the exact word");
    }
}
