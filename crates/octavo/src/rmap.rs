//! The reverse map: from a frame to the pages that show it.
//!
//! ```text
//!  63    62      61 .. 60   59 ....... 36   35 ......... 0
//! +-----+------+----------+---------------+---------------+
//! |MANY |SINGLE|FORMER| - |     space     |     page      |   SINGLE: the one owner; FORMER: the last that was
//! +-----+------+----------+---------------+---------------+
//! |MANY |  0   |        -              |   list index     |   MANY: owners in a list of their own
//! +-----+------+-----------------------+------------------+
//! ```
//!
//! An owner is (space, page). Nearly every frame has one, and then the reverse map costs a store at the fault
//! and a compare-and-swap at the unmap. Frames shown by several pages (files, snapshots, shared ranges) have
//! their owners in a list behind one lock.
//!
//! What the map says is a hint about the past: an owner may be gone when the caller looks. The caller walks to
//! the page's entry and acts only if that entry still names the frame; entries are versioned words in memory
//! that is never anything else, so this is safe even when the space itself is gone.

use smallvec::SmallVec;

use crate::frame::FrameWords;
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::table::SpaceId;
use crate::units::PageNumber;

const MANY: u64 = 1 << 63;
const SINGLE: u64 = 1 << 62;
/// The owner before the frame went into the swap cache: to be shown there again, should it not get out.
const FORMER: u64 = 1 << 61;
const SPACE_SHIFT: u32 = 36;

/// A page of a space that shows a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) space: SpaceId,
    pub(crate) page: PageNumber,
}

impl Owner {
    fn word(self) -> u64 {
        SINGLE | u64::from(self.space.0) << SPACE_SHIFT | self.page.0
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

/// The lists of frames with several owners.
#[derive(Debug, Default)]
pub(crate) struct ReverseMap {
    lists: Mutex<Lists>,
}

#[derive(Debug, Default)]
struct Lists {
    owners: Vec<Owners>,
    free: Vec<usize>,
}

impl ReverseMap {
    /// Names the first owner of a frame that nobody else can reach yet. One store.
    #[inline]
    pub(crate) fn set_first(&self, words: &FrameWords, owner: Owner) {
        debug_assert_eq!(
            words.owner.load(Ordering::Relaxed) & (MANY | SINGLE),
            0,
            "a fresh frame has no owner"
        );
        // Relaxed: the entry that publishes the frame releases it.
        words.owner.store(owner.word(), Ordering::Relaxed);
    }

    /// Adds an owner to a frame that the caller holds.
    pub(crate) fn add(&self, words: &FrameWords, owner: Owner) {
        let first = words.owner.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |now| {
            (now & (MANY | SINGLE) == 0).then(|| owner.word())
        });
        if first.is_ok() {
            return;
        }
        let mut lists = self.lists.lock();
        let word = words.owner.load(Ordering::Acquire);
        if word & MANY != 0 {
            lists.owners[(word & !MANY) as usize].push(owner);
            return;
        }
        let index = lists.free.pop().unwrap_or_else(|| {
            lists.owners.push(Owners::new());
            lists.owners.len() - 1
        });
        // A single owner may be removed without the lock, so the change to a list is by compare-and-swap.
        let replaced = words.owner.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
            lists.owners[index].clear();
            if now & SINGLE == 0 {
                return Some(owner.word());
            }
            lists.owners[index].extend([Owner::from_word(now), owner]);
            Some(MANY | index as u64)
        });
        debug_assert!(replaced.is_ok());
        if lists.owners[index].is_empty() {
            lists.free.push(index);
        }
    }

    /// Removes an owner, whose entry the caller has just changed away from the frame.
    #[inline]
    pub(crate) fn remove(&self, words: &FrameWords, owner: Owner) {
        if words.owner.compare_exchange(owner.word(), 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            self.remove_from_list(words, owner);
        }
    }

    /// As [`ReverseMap::remove`], of a frame on its way out: a single owner is remembered.
    pub(crate) fn remember(&self, words: &FrameWords, owner: Owner) {
        let former = owner.word() ^ SINGLE | FORMER;
        if words.owner.compare_exchange(owner.word(), former, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            self.remove_from_list(words, owner);
        }
    }

    /// The owner that [`ReverseMap::remember`] left, if there has been none since.
    pub(crate) fn former_owner(&self, words: &FrameWords) -> Option<Owner> {
        let word = words.owner.load(Ordering::Acquire);
        (word & (MANY | SINGLE | FORMER) == FORMER).then(|| Owner::from_word(word))
    }

    #[cold]
    fn remove_from_list(&self, words: &FrameWords, owner: Owner) {
        let mut lists = self.lists.lock();
        let word = words.owner.load(Ordering::Acquire);
        if word & MANY == 0 {
            // The list went away while we came for the lock.
            let removed = words.owner.compare_exchange(owner.word(), 0, Ordering::AcqRel, Ordering::Relaxed);
            assert!(removed.is_ok(), "{owner:?} did not own the frame");
            return;
        }
        let index = (word & !MANY) as usize;
        let owners = &mut lists.owners[index];
        let at = owners.iter().position(|other| *other == owner).expect("the owner is in the frame's list");
        owners.swap_remove(at);
        let rest = match owners.as_slice() {
            [last] => last.word(),
            _ => return,
        };
        owners.clear();
        words.owner.store(rest, Ordering::Release);
        lists.free.push(index);
    }

    /// The frame's owners at this moment.
    #[inline]
    pub(crate) fn owners(&self, words: &FrameWords) -> Owners {
        let word = words.owner.load(Ordering::Acquire);
        if word & MANY == 0 { from_single(word) } else { self.owners_from_list(words) }
    }

    #[cold]
    fn owners_from_list(&self, words: &FrameWords) -> Owners {
        let lists = self.lists.lock();
        let word = words.owner.load(Ordering::Acquire);
        if word & MANY == 0 { from_single(word) } else { lists.owners[(word & !MANY) as usize].clone() }
    }

    /// Moves all owners of `from` to `to`, which has none. The caller has made every entry busy.
    pub(crate) fn move_all(&self, from: &FrameWords, to: &FrameWords) {
        let _lists = self.lists.lock();
        let word = take(&from.owner);
        to.owner.store(word, Ordering::Release);
    }
}

fn from_single(word: u64) -> Owners {
    (word & SINGLE != 0).then(|| Owner::from_word(word)).into_iter().collect()
}

fn take(word: &AtomicU64) -> u64 {
    word.swap(0, Ordering::AcqRel)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn owner(number: u64) -> Owner {
        Owner { space: SpaceId(number as u32 % 5), page: PageNumber(number << 20) }
    }

    proptest! {
        #[test]
        fn agrees_with_a_list_of_owners(ops in prop::collection::vec((any::<bool>(), 0u64..6), 1..80)) {
            let map = ReverseMap::default();
            let words = FrameWords::default();
            let mut model: Vec<Owner> = Vec::new();
            for (add, number) in ops {
                let owner = owner(number);
                if add {
                    if !model.contains(&owner) {
                        map.add(&words, owner);
                        model.push(owner);
                    }
                } else if let Some(at) = model.iter().position(|other| *other == owner) {
                    model.remove(at);
                    map.remove(&words, owner);
                }
                let mut found = map.owners(&words).to_vec();
                let key = |owner: &Owner| (owner.space, owner.page);
                found.sort_by_key(key);
                model.sort_by_key(key);
                prop_assert_eq!(&found, &model);
            }
            for owner in model {
                map.remove(&words, owner);
            }
            let lists = map.lists.lock();
            prop_assert_eq!(lists.free.len(), lists.owners.len(), "every list is free again");
        }
    }
}
