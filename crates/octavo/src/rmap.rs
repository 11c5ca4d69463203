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
//! An owner is (space, page). Nearly every frame has one, and then the reverse map costs a store at the fault
//! and a compare-and-swap at the unmap. A frame of a snapshot or a fork has two: the second owner has a word of its own,
//! in an array by frame. Neither allocates. More owners (files, shared ranges) stand in a list.
//!
//! What the map says is a hint about the past: an owner may be gone when the caller looks. The caller walks to
//! the page's entry and acts only if that entry still names the frame; entries are versioned words in memory
//! that is never anything else, so this is safe even when the space itself is gone.
//!
//! Locking: 64 locks, chosen by frame. A single owner comes and goes by one compare-and-swap without them, so changes to
//! and from SINGLE are compare-and-swaps under the lock as well. PAIR and LIST change under the lock only.

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
/// The owner before the frame went into the swap cache: to be shown there again, should it not get out.
const FORMER: u64 = 4 << 61;
const SPACE_SHIFT: u32 = 36;

/// Owners that a list has room for at first.
const LIST_ROOM: usize = 8;
/// Frames whose second owners' words lie in one page.
const FRAMES_PER_PAGE: usize = PAGE_BYTES / size_of::<u64>();

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

/// Where second and further owners stand. The first stands in the frame's words.
#[derive(Debug)]
pub(crate) struct ReverseMap {
    /// By frame.
    seconds: WordArray<AtomicU64>,
    /// A bit for each page of `seconds` that has been charged.
    charged: Box<[AtomicU64]>,
    lists: Box<[CachePadded<Mutex<Lists>>]>,
    budget: Arc<Budget>,
}

/// The lists of the frames of one lock.
#[derive(Debug, Default)]
struct Lists {
    lists: Vec<Vec<u64>>,
    free: Vec<usize>,
}

impl Lists {
    fn of(&mut self, word: u64) -> &mut Vec<u64> {
        &mut self.lists[(word & !KIND) as usize]
    }

    /// A list of these owners; says what its frame's word becomes.
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

    /// Ends a list, and gives its owners back.
    fn end(&mut self, budget: &Budget, word: u64) -> Vec<u64> {
        let list = std::mem::take(self.of(word));
        budget.uncharge((list.capacity() * size_of::<u64>()) as u64);
        self.free.push((word & !KIND) as usize);
        list
    }
}

/// Room for so many more, on the budget, over it if need be: whoever adds an owner cannot make room first.
fn reserve(list: &mut Vec<u64>, more: usize, budget: &Budget) {
    let before = list.capacity();
    list.reserve_exact(more);
    budget.charge_over(((list.capacity() - before) * size_of::<u64>()) as u64);
}

impl ReverseMap {
    /// For all of these frames.
    ///
    /// # Errors
    /// The kernel's, when the address space is exhausted.
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

    fn lock(&self, frame: FrameId) -> MutexGuard<'_, Lists> {
        // Heads of blocks are multiples of a chunk's frames: spread as well.
        let index = frame.0 ^ (frame.0 / CHUNK_FRAMES);
        self.lists[index as usize % OWNER_LOCKS].lock()
    }

    /// Under the frame's lock: its second owner.
    fn second(&self, frame: FrameId) -> u64 {
        // Relaxed: the lock orders it.
        self.seconds[frame.index()].load(Ordering::Relaxed)
    }

    fn set_second(&self, frame: FrameId, owner: u64) {
        let page = frame.index() / FRAMES_PER_PAGE;
        let (word, bit) = (&self.charged[page / u64::BITS as usize], 1 << (page % u64::BITS as usize));
        // Relaxed: a figure. The page stays, and so does the charge.
        if word.load(Ordering::Relaxed) & bit == 0 && word.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            self.budget.charge_over(PAGE_BYTES as u64);
        }
        self.seconds[frame.index()].store(owner, Ordering::Relaxed);
    }

    /// Names the first owner of a frame that nobody else can reach yet. One store.
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
                // The others went while we came for the lock.
                _ => owner.single(),
            };
            // The single owner may go at any moment; nobody but the lock's holder changes anything else.
            if word.compare_exchange(now, then, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return;
            }
        }
    }

    /// Removes an owner, whose entry the caller has just changed away from the frame.
    #[inline]
    pub(crate) fn remove(&self, frames: &FrameAllocator, frame: FrameId, owner: Owner) {
        self.remove_and_leave(frames, frame, owner, 0);
    }

    /// As [`ReverseMap::remove`], of a frame on its way out: a single owner is remembered.
    pub(crate) fn remember(&self, frames: &FrameAllocator, frame: FrameId, owner: Owner) {
        self.remove_and_leave(frames, frame, owner, FORMER | owner.bits());
    }

    /// `left`: what the word of a frame becomes that has lost its single owner.
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
                // The others went while we came for the lock.
                let removed =
                    word.compare_exchange(owner.single(), left, Ordering::AcqRel, Ordering::Relaxed);
                assert!(removed.is_ok(), "{owner:?} did not own the frame");
            }
        }
    }

    /// The owner that [`ReverseMap::remember`] left, if there has been none since.
    pub(crate) fn former_owner(&self, frames: &FrameAllocator, frame: FrameId) -> Option<Owner> {
        let word = frames.words(frame).owner.load(Ordering::Acquire);
        (word & KIND == FORMER).then(|| Owner::from_word(word))
    }

    /// The frame's owners at this moment.
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

    /// Moves all owners of `from` to `to`, which has none. The caller has made every entry busy.
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
