//! The pages that are hit, and their order.

use octavo_measure::random::Random;

use super::BATCH;

/// 8-byte words of a page.
pub const WORDS: usize = 4096 / 8;

/// The most hits in an order. A thread that reaches the end of the order continues at its start.
const LONGEST_ORDER: usize = 1 << 17;

/// A page and a word of it, in 32 bits. Each hit also loads its target from the order, so targets should be
/// small.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HitTarget(u32);

impl HitTarget {
    /// Makes the target of a page. The word's offset varies from page to page, because words at one offset
    /// would compete for few sets of the processor's cache.
    fn of_page(page: u32) -> Self {
        let word = page.wrapping_mul(0x9E37_79B1) >> (u32::BITS - WORDS.trailing_zeros());
        Self(page << WORDS.trailing_zeros() | word)
    }

    /// Returns the page's number.
    #[inline]
    pub fn page(self) -> u32 {
        self.0 >> WORDS.trailing_zeros()
    }

    /// Returns the word within the page.
    #[inline]
    pub fn word(self) -> usize {
        self.0 as usize % WORDS
    }

    /// Returns the word's number if the pages follow one another.
    #[inline]
    pub fn flat_word(self) -> usize {
        self.0 as usize
    }

    /// Returns the content of the word: its own number, inverted so that zeroed memory is not right by
    /// chance.
    #[inline]
    pub fn word_written(self) -> u64 {
        !u64::from(self.0)
    }
}

impl std::fmt::Debug for HitTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "page {} word {}", self.page(), self.word())
    }
}

/// The pages of a group, and the order in which they are hit.
#[derive(Clone, Debug)]
pub struct Working {
    pages: u32,
    order: Vec<HitTarget>,
}

impl Working {
    /// Makes `pages` pages that are hit in random order.
    pub fn random(pages: u32) -> Self {
        let mut random = Random::new(u64::from(pages));
        let hits = (pages as usize * 16).clamp(2 * BATCH, LONGEST_ORDER).next_multiple_of(2 * BATCH);
        let order = (0..hits).map(|_| HitTarget::of_page(random.below(pages as usize) as u32)).collect();
        Self { pages, order }
    }

    /// Makes `pages` pages of which one is hit over and over.
    pub fn hot(pages: u32) -> Self {
        Self { pages, order: vec![HitTarget::of_page(pages / 2); 2 * BATCH] }
    }

    /// Returns the number of pages in memory.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Returns the hits, a multiple of two batches.
    pub fn order(&self) -> &[HitTarget] {
        &self.order
    }

    /// Returns the target of every page.
    pub fn targets(&self) -> impl Iterator<Item = HitTarget> {
        (0..self.pages).map(HitTarget::of_page)
    }
}

/// A page as the cache libraries keep it.
#[repr(C, align(64))]
pub struct CachedPage([u64; WORDS]);

impl CachedPage {
    /// Makes page number `page`, with the word in it that is read.
    pub fn filled(page: u32) -> Self {
        let target = HitTarget::of_page(page);
        let mut words = [0; WORDS];
        words[target.word()] = target.word_written();
        Self(words)
    }

    /// Returns the word at `target`.
    #[inline]
    pub fn word(&self, target: HitTarget) -> u64 {
        self.0[target.word()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_name_their_page_and_spread_over_the_words() {
        let working = Working::random(65_536);
        let mut words = vec![false; WORDS];
        for (page, target) in working.targets().enumerate() {
            assert_eq!(target.page() as usize, page);
            assert_eq!(target.flat_word(), page * WORDS + target.word());
            words[target.word()] = true;
        }
        assert!(words.iter().all(|&used| used));
    }

    #[test]
    fn the_order_divides_into_batches_for_two() {
        for working in [Working::random(1), Working::random(1000), Working::random(65_536), Working::hot(7)] {
            assert_eq!(working.order().len() % (2 * BATCH), 0);
            assert!(working.order().iter().all(|target| target.page() < working.pages()));
        }
    }
}
