//! The reverse map: from a frame to the pages that show it.
//!
//! ```text
//!  63 .. 61    60    59 ....... 36   35 ......... 0
//! +---------+-------+---------------+---------------+
//! |  kind   |   -   |     space     |     page      |   1 SINGLE: the one owner; 4 FORMER: the last that was
//! |         |       |               |               |   2 PAIR: one owner, the other stands in `seconds`
//! +---------+-------+---------------+---------------+
//! |  kind   |                 list index            |   3 LIST: three owners or more, in a list of their own
//! +---------+---------------------------------------+
//!
//!    none ◄──► SINGLE ◄──► PAIR ◄──► LIST
//!                └──► FORMER ──► SINGLE
//! ```
//!
//! An owner is a space and a page in it. Nearly every frame has one owner, and then the reverse map costs a
//! store at the fault and a compare-and-swap at the unmap. A frame of a snapshot or a fork has two owners:
//! the second is in an array by frame. One or two owners need no allocation. More owners (files, shared
//! ranges) are in a list.
//!
//! The map's answers are hints: an owner may be gone when the caller looks. The caller walks to the page's
//! entry, and acts only if that entry still names the frame. Entries are versioned words, in memory that is
//! never used for anything else. So the walk is safe even if the space is gone.
//!
//! Locking: 64 locks, chosen by frame. A single owner is added and removed by one compare-and-swap without a
//! lock. So even a thread that has the lock changes a word by compare-and-swap if the word is neither PAIR
//! nor LIST. The words PAIR and LIST change only under the lock.

use crossbeam_utils::CachePadded;
use smallvec::SmallVec;

use crate::budget::Budget;
use crate::frame::{FrameAllocator, FrameWords};
use crate::sizes::OWNER_LOCKS;
use crate::sync::{Arc, AtomicU64, Mutex, MutexGuard, Ordering, WordArray};
use crate::table::SpaceId;
use crate::units::{CHUNK_FRAMES, FrameId, PAGE_BYTES, PageNumber};

const KIND: u64 = 0b111 << 61;
const SINGLE: u64 = 1 << 61;
const PAIR: u64 = 2 << 61;
const LIST: u64 = 3 << 61;
/// The last owner before the frame went into the swap cache. If the page's write fails, this owner shows the
/// page again.
const FORMER: u64 = 4 << 61;
const SPACE_SHIFT: u32 = 36;

/// The owners that a new list has room for.
const LIST_ROOM: usize = 8;
/// Bytes of address space reserved for each frame: the word of its second owner.
pub(crate) const BYTES_OF_FRAME: usize = size_of::<u64>();
/// The number of second owners' words in one page.
const FRAMES_PER_PAGE: usize = PAGE_BYTES / BYTES_OF_FRAME;

/// A page of a space that shows a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) space: SpaceId,
    pub(crate) page: PageNumber,
}

impl Owner {
    fn bits(self) -> u64 {
        u64::from(self.space.0) << SPACE_SHIFT | self.page.0
    }

    fn single(self) -> u64 {
        SINGLE | self.bits()
    }

    fn from_word(word: u64) -> Self {
        Self {
            space: SpaceId((word >> SPACE_SHIFT) as u32 & ((1 << 24) - 1)),
            page: PageNumber(word & ((1 << SPACE_SHIFT) - 1)),
        }
    }
}

/// Owners of one frame, copied out.
pub(crate) type Owners = SmallVec<[Owner; 2]>;

/// The second and further owners of all frames. The first owner is in the frame's words.
#[derive(Debug)]
pub(crate) struct ReverseMap {
    /// The second owners' words, by frame.
    seconds: WordArray<AtomicU64>,
    /// A bit for each page of `seconds` that has been charged.
    charged: Box<[AtomicU64]>,
    lists: Box<[CachePadded<Mutex<OwnerLists>>]>,
    budget: Arc<Budget>,
}

/// The lists of the frames of one lock.
#[derive(Debug, Default)]
struct OwnerLists {
    lists: Vec<Vec<u64>>,
    free: Vec<usize>,
}

impl OwnerLists {
    fn of(&mut self, word: u64) -> &mut Vec<u64> {
        &mut self.lists[(word & !KIND) as usize]
    }

    /// Makes a list of these owners, and returns the word for their frame.
    fn create(&mut self, budget: &Budget, owners: [u64; 3]) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.lists.push(Vec::new());
            self.lists.len() - 1
        });
        let word = LIST | index as u64;
        let list = self.of(word);
        reserve(list, LIST_ROOM, budget);
        list.extend(owners);
        word
    }

    fn add(&mut self, budget: &Budget, word: u64, owner: u64) {
        let list = self.of(word);
        if list.len() == list.capacity() {
            reserve(list, list.len(), budget);
        }
        list.push(owner);
    }

    /// Ends a list, and returns its owners.
    fn end(&mut self, budget: &Budget, word: u64) -> Vec<u64> {
        let list = std::mem::take(self.of(word));
        budget.uncharge((list.capacity() * size_of::<u64>()) as u64);
        self.free.push((word & !KIND) as usize);
        list
    }
}

/// Makes room for `more` owners. Charges the budget, if necessary beyond its limit: a caller that adds an
/// owner cannot make room first.
fn reserve(list: &mut Vec<u64>, more: usize, budget: &Budget) {
    let before = list.capacity();
    list.reserve_exact(more);
    budget.charge_over(((list.capacity() - before) * size_of::<u64>()) as u64);
}

impl ReverseMap {
    /// Makes a reverse map for the frames of this allocator.
    ///
    /// # Errors
    /// The kernel's error, if the address space is exhausted.
    pub(crate) fn new(frames: &FrameAllocator, budget: Arc<Budget>) -> std::io::Result<Self> {
        let end = frames.end_frame().index();
        let pages = end.div_ceil(FRAMES_PER_PAGE);
        Ok(Self {
            seconds: WordArray::new(end)?,
            charged: (0..pages.div_ceil(u64::BITS as usize)).map(|_| AtomicU64::new(0)).collect(),
            lists: (0..OWNER_LOCKS).map(|_| CachePadded::new(Mutex::default())).collect(),
            budget,
        })
    }

    fn lock(&self, frame: FrameId) -> MutexGuard<'_, OwnerLists> {
        // Heads of huge blocks are multiples of a chunk's frames. The XOR spreads these heads over the locks,
        // too.
        let index = frame.0 ^ (frame.0 / CHUNK_FRAMES);
        self.lists[index as usize % OWNER_LOCKS].lock()
    }

    /// Returns the word of a frame's second owner. The caller holds the frame's lock.
    fn second(&self, frame: FrameId) -> u64 {
        // Relaxed: the lock orders the word.
        self.seconds[frame.index()].load(Ordering::Relaxed)
    }

    fn set_second(&self, frame: FrameId, owner: u64) {
        let page = frame.index() / FRAMES_PER_PAGE;
        let (word, bit) = (&self.charged[page / u64::BITS as usize], 1 << (page % u64::BITS as usize));
        // Relaxed: the bit only makes sure that a page is charged once. It orders nothing.
        if word.load(Ordering::Relaxed) & bit == 0 && word.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            self.budget.charge_over(PAGE_BYTES as u64);
        }
        self.seconds[frame.index()].store(owner, Ordering::Relaxed);
    }

    /// Sets the first owner of a frame that no other thread can reach yet. Costs one store.
    #[inline]
    pub(crate) fn set_first(&self, words: &FrameWords, owner: Owner) {
        debug_assert!(
            matches!(words.owner.load(Ordering::Relaxed) & KIND, 0 | FORMER),
            "a fresh frame has no owner"
        );
        // Relaxed: the entry that publishes the frame releases it.
        words.owner.store(owner.single(), Ordering::Relaxed);
    }

    /// Adds an owner to a frame that the caller holds.
    pub(crate) fn add(&self, frames: &FrameAllocator, frame: FrameId, owner: Owner) {
        let word = &frames.words(frame).owner;
        let first = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |now| {
            matches!(now & KIND, 0 | FORMER).then(|| owner.single())
        });
        if first.is_err() {
            self.add_another(word, frame, owner);
        }
    }

    #[cold]
    fn add_another(&self, word: &AtomicU64, frame: FrameId, owner: Owner) {
        let mut lists = self.lock(frame);
        loop {
            let now = word.load(Ordering::Acquire);
            let then = match now & KIND {
                LIST => return lists.add(&self.budget, now, owner.bits()),
                PAIR => lists.create(&self.budget, [now & !KIND, self.second(frame), owner.bits()]),
                SINGLE => {
                    self.set_second(frame, owner.bits());
                    now ^ SINGLE | PAIR
                }
                // The other owners were removed while this thread waited for the lock.
                _ => owner.single(),
            };
            // The single owner may be removed at any moment. Only the lock's holder changes anything else.
            if word.compare_exchange(now, then, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return;
            }
        }
    }

    /// Replaces an owner by another. The caller holds the old owner's entry busy, and will show the frame at
    /// the new one. Allocates nothing for a frame with one owner, which may be an away frame.
    pub(crate) fn replace(&self, frames: &FrameAllocator, frame: FrameId, from: Owner, to: Owner) {
        let word = &frames.words(frame).owner;
        // Release: a thread that finds the new owner sees its table.
        if word.compare_exchange(from.single(), to.single(), Ordering::AcqRel, Ordering::Relaxed).is_err() {
            self.add(frames, frame, to);
            self.remove(frames, frame, from);
        }
    }

    /// Removes an owner. The caller has just changed the owner's entry so that it no longer names the frame.
    #[inline]
    pub(crate) fn remove(&self, frames: &FrameAllocator, frame: FrameId, owner: Owner) {
        self.remove_and_leave(frames, frame, owner, 0);
    }

    /// Remembers the owner that was just removed, if it was the last. The frame is not released yet.
    #[cold]
    pub(crate) fn remember_last(&self, words: &FrameWords, owner: Owner) {
        // Relaxed: the word is only a hint. If there is another owner, no former owner is needed.
        let _ = words.owner.compare_exchange(0, FORMER | owner.bits(), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Removes an owner as [`ReverseMap::remove`] does, from a frame that is being evicted. Remembers a
    /// single owner.
    pub(crate) fn remember(&self, frames: &FrameAllocator, frame: FrameId, owner: Owner) {
        self.remove_and_leave(frames, frame, owner, FORMER | owner.bits());
    }

    /// Removes an owner. If it was the only one, the frame's word becomes `left`.
    #[inline]
    fn remove_and_leave(&self, frames: &FrameAllocator, frame: FrameId, owner: Owner, left: u64) {
        let word = &frames.words(frame).owner;
        if word.compare_exchange(owner.single(), left, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            self.remove_one_of_several(word, frame, owner, left);
        }
    }

    #[cold]
    fn remove_one_of_several(&self, word: &AtomicU64, frame: FrameId, owner: Owner, left: u64) {
        let mut lists = self.lock(frame);
        let now = word.load(Ordering::Acquire);
        match now & KIND {
            PAIR => {
                let (one, other) = (now & !KIND, self.second(frame));
                assert!([one, other].contains(&owner.bits()), "{owner:?} did not own the frame");
                let rest = if other == owner.bits() { one } else { other };
                word.store(SINGLE | rest, Ordering::Release);
            }
            LIST => {
                let list = lists.of(now);
                let at = list.iter().position(|other| *other == owner.bits());
                list.swap_remove(at.expect("the owner is in the frame's list"));
                if let [one, other] = list[..] {
                    lists.end(&self.budget, now);
                    self.set_second(frame, other);
                    word.store(PAIR | one, Ordering::Release);
                }
            }
            _ => {
                // The other owners were removed while this thread waited for the lock.
                let removed =
                    word.compare_exchange(owner.single(), left, Ordering::AcqRel, Ordering::Relaxed);
                assert!(removed.is_ok(), "{owner:?} did not own the frame");
            }
        }
    }

    /// Returns the owner that [`ReverseMap::remember`] left, if no owner was added since.
    pub(crate) fn former_owner(&self, frames: &FrameAllocator, frame: FrameId) -> Option<Owner> {
        let word = frames.words(frame).owner.load(Ordering::Acquire);
        (word & KIND == FORMER).then(|| Owner::from_word(word))
    }

    /// Returns the frame's owners at this moment.
    #[inline]
    pub(crate) fn owners(&self, frames: &FrameAllocator, frame: FrameId) -> Owners {
        let word = &frames.words(frame).owner;
        let now = word.load(Ordering::Acquire);
        if matches!(now & KIND, PAIR | LIST) { self.several_owners(word, frame) } else { single_owner(now) }
    }

    #[cold]
    fn several_owners(&self, word: &AtomicU64, frame: FrameId) -> Owners {
        let mut lists = self.lock(frame);
        let now = word.load(Ordering::Acquire);
        match now & KIND {
            PAIR => [now, self.second(frame)].map(Owner::from_word).into_iter().collect(),
            LIST => lists.of(now).iter().map(|owner| Owner::from_word(*owner)).collect(),
            _ => single_owner(now),
        }
    }

    /// Moves all owners of `from` to `to`, which has none. The caller holds all their entries busy.
    pub(crate) fn move_all(&self, frames: &FrameAllocator, from: FrameId, to: FrameId) {
        for owner in self.owners(frames, from) {
            self.remove(frames, from, owner);
            self.add(frames, to, owner);
        }
    }
}

fn single_owner(word: u64) -> Owners {
    (word & KIND == SINGLE).then(|| Owner::from_word(word)).into_iter().collect()
}

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests;
