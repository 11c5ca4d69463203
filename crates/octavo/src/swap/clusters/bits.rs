//! The slots of one cluster: a bit for each slot in use, and the runs between them.
//!
//! [`SlotBits`] is a value. A thread loads the bits from the cluster's words and writes them back, under the
//! cluster's lock. Positions count from the cluster's first slot.

use crate::sync::{AtomicU64, Ordering};

use super::CLUSTER_SLOTS;

pub(super) const WORDS: usize = CLUSTER_SLOTS.div_ceil(64);
const BITS: usize = WORDS * 64;
/// The bits of the last word that lie beyond the end of any cluster.
const BEYOND: u64 = if CLUSTER_SLOTS.is_multiple_of(64) { 0 } else { u64::MAX << (CLUSTER_SLOTS % 64) };

/// A bit is 1 if its slot is in use, or lies beyond the end of the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotBits([u64; WORDS]);

impl SlotBits {
    /// Makes the bits of a cluster with `slots` free slots. Slots beyond these never become free.
    pub(super) fn free(slots: usize) -> Self {
        let mut bits = Self([0; WORDS]);
        bits.set(slots, BITS);
        bits
    }

    // Relaxed: the cluster's lock orders the bits.
    pub(super) fn load(words: &[AtomicU64; WORDS]) -> Self {
        Self(std::array::from_fn(|word| words[word].load(Ordering::Relaxed)))
    }

    /// Writes the bits of `first..end` back.
    pub(super) fn store(&self, words: &[AtomicU64; WORDS], first: usize, end: usize) {
        let touched = first / 64..end.div_ceil(64);
        for (word, value) in words[touched.clone()].iter().zip(&self.0[touched]) {
            word.store(*value, Ordering::Relaxed);
        }
    }

    pub(super) fn store_all(&self, words: &[AtomicU64; WORDS]) {
        for (word, value) in words.iter().zip(self.0) {
            word.store(value, Ordering::Relaxed);
        }
    }

    pub(super) fn is_used(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    /// Returns whether all slots of a cluster are free.
    pub(super) fn none_used(&self) -> bool {
        let [words @ .., last] = self.0;
        words.iter().fold(last ^ BEYOND, |all, word| all | word) == 0
    }

    /// Counts the free slots.
    pub(super) fn free_slots(&self) -> usize {
        self.0.iter().map(|word| word.count_zeros() as usize).sum()
    }

    /// Returns the first bit from `at` on that is 1 (if `flip` is 0) or 0 (if `flip` is all ones), or `BITS`
    /// if there is none.
    fn scan(&self, at: usize, flip: u64) -> usize {
        if at >= BITS {
            return BITS;
        }
        let mut word = at / 64;
        let mut bits = (self.0[word] ^ flip) & u64::MAX << (at % 64);
        while bits == 0 {
            word += 1;
            if word == WORDS {
                return BITS;
            }
            bits = self.0[word] ^ flip;
        }
        word * 64 + bits.trailing_zeros() as usize
    }

    /// Returns whether no slot is free.
    pub(super) fn none_free(&self) -> bool {
        self.scan(0, u64::MAX) == BITS
    }

    fn next_used(&self, at: usize) -> usize {
        self.scan(at, 0)
    }

    /// The start of the free run that ends before `end`.
    fn run_start(&self, end: usize) -> usize {
        if end == 0 {
            return 0;
        }
        let last = end - 1;
        let mut word = last / 64;
        let mut bits = self.0[word] & u64::MAX >> (63 - last % 64);
        while bits == 0 {
            if word == 0 {
                return 0;
            }
            word -= 1;
            bits = self.0[word];
        }
        word * 64 + 64 - bits.leading_zeros() as usize
    }

    /// The free runs from `at` on. Each is given by its first slot and its length.
    pub(super) fn runs(&self, at: usize) -> impl Iterator<Item = (usize, usize)> {
        let mut at = at;
        std::iter::from_fn(move || {
            let first = self.scan(at, u64::MAX);
            (first < BITS).then(|| {
                at = self.next_used(first);
                (first, at - first)
            })
        })
    }

    /// The first free run of at least `least` slots from `at` on.
    pub(super) fn find(&self, at: usize, least: usize) -> Option<(usize, usize)> {
        self.runs(at).find(|(_, len)| *len >= least)
    }

    /// The longest free run, or the first of the longest.
    pub(super) fn longest(&self) -> Option<(usize, usize)> {
        // `max_by_key` would return the last.
        self.runs(0).reduce(|best, run| if run.1 > best.1 { run } else { best })
    }

    /// Length of the free run that holds `first..end`, which is free.
    pub(super) fn run_around(&self, first: usize, end: usize) -> usize {
        self.next_used(end) - self.run_start(first)
    }

    /// Returns whether all of `first..end` is in use.
    pub(super) fn all_used(&self, first: usize, end: usize) -> bool {
        masks(first, end).all(|(word, mask)| self.0[word] & mask == mask)
    }

    pub(super) fn set(&mut self, first: usize, end: usize) {
        masks(first, end).for_each(|(word, mask)| self.0[word] |= mask);
    }

    pub(super) fn clear(&mut self, first: usize, end: usize) {
        masks(first, end).for_each(|(word, mask)| self.0[word] &= !mask);
    }
}

/// The words that `first..end` touches, with its bits in each.
fn masks(first: usize, end: usize) -> impl Iterator<Item = (usize, u64)> {
    (first / 64..end.div_ceil(64)).map(move |word| {
        let low = first.saturating_sub(word * 64);
        let high = (end - word * 64).min(64);
        (word, u64::MAX << low & u64::MAX >> (64 - high))
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bits_of(model: &[bool]) -> SlotBits {
        let mut bits = SlotBits::free(CLUSTER_SLOTS);
        for at in (0..CLUSTER_SLOTS).filter(|&at| model[at]) {
            bits.set(at, at + 1);
        }
        bits
    }

    fn runs_of(model: &[bool]) -> Vec<(usize, usize)> {
        let mut runs = Vec::new();
        let mut at = 0;
        while at < CLUSTER_SLOTS {
            let len = model[at..].iter().take_while(|used| !**used).count();
            if len > 0 {
                runs.push((at, len));
            }
            at += len + 1;
        }
        runs
    }

    #[test]
    fn slots_beyond_the_end_are_never_free() {
        for slots in [0, 1, 63, 64, 65, 511, 512] {
            let bits = SlotBits::free(slots);
            assert_eq!(bits.free_slots(), slots);
            assert_eq!(bits.longest(), (slots > 0).then_some((0, slots)));
        }
    }

    proptest! {
        #[test]
        fn runs_are_those_of_an_array_of_flags(
            ranges in prop::collection::vec((0usize..512, 0usize..200, any::<bool>()), 0..24),
            from in 0usize..520,
            least in 1usize..80,
        ) {
            let mut model = vec![false; CLUSTER_SLOTS];
            let mut bits = SlotBits::free(CLUSTER_SLOTS);
            for (first, len, used) in ranges {
                let end = (first + len).min(CLUSTER_SLOTS);
                model[first..end].fill(used);
                if used { bits.set(first, end) } else { bits.clear(first, end) }
                prop_assert_eq!(bits.all_used(first, end), used || first == end);
            }
            prop_assert_eq!(bits, bits_of(&model));
            prop_assert_eq!(bits.free_slots(), model.iter().filter(|used| !**used).count());
            let runs = runs_of(&model);
            prop_assert_eq!(bits.runs(0).collect::<Vec<_>>(), runs.clone());
            prop_assert_eq!(bits.longest().map(|run| run.1), runs.iter().map(|run| run.1).max());
            for (first, len) in runs {
                prop_assert_eq!(bits.run_around(first, first + 1), len);
                prop_assert_eq!(bits.run_around(first + len - 1, first + len), len);
                prop_assert_eq!(bits.run_around(first + len / 2, first + len / 2), len);
            }
            let mut masked = model.clone();
            masked[..from.min(CLUSTER_SLOTS)].fill(true);
            let expected = runs_of(&masked).into_iter().find(|run| run.1 >= least);
            prop_assert_eq!(bits.find(from, least), expected);
        }
    }
}
