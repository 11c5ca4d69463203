//! Which pages are hit, and in which order.

use crate::random::XorShift;

use super::BATCH;

/// 8-byte words of a page.
pub const WORDS: usize = 4096 / 8;

/// Hits worked out beforehand, where there are enough pages to tell them apart: at most this many.
const LONGEST_ORDER: usize = 1 << 17;

/// A page and a word of it, in 32 bits: the list of them is read alongside the pages and should be short.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Place(u32);

impl Place {
    /// The page, at the word that is read of it: scattered, or else the words of all pages would share few cache sets.
    fn of_page(page: u32) -> Self {
        let word = page.wrapping_mul(0x9E37_79B1) >> (u32::BITS - WORDS.trailing_zeros());
        Self(page << WORDS.trailing_zeros() | word)
    }

    /// The page's number.
    #[inline]
    pub fn page(self) -> u32 {
        self.0 >> WORDS.trailing_zeros()
    }

    /// The word within the page.
    #[inline]
    pub fn word(self) -> usize {
        self.0 as usize % WORDS
    }

    /// The word's number where the pages follow one another.
    #[inline]
    pub fn flat_word(self) -> usize {
        self.0 as usize
    }

    /// What stands in the word: its own number, inverted so that zeroed memory is not right by chance.
    #[inline]
    pub fn word_written(self) -> u64 {
        !u64::from(self.0)
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "page {} word {}", self.page(), self.word())
    }
}

/// The pages of a group and the order in which they are hit.
#[derive(Clone, Debug)]
pub struct Working {
    pages: u32,
    order: Vec<Place>,
}

impl Working {
    /// `pages` pages, hit in random order.
    pub fn random(pages: u32) -> Self {
        let mut random = XorShift::new(u64::from(pages));
        let hits = (pages as usize * 16).clamp(2 * BATCH, LONGEST_ORDER).next_multiple_of(2 * BATCH);
        let order = (0..hits).map(|_| Place::of_page(random.below(pages as usize) as u32)).collect();
        Self { pages, order }
    }

    /// `pages` pages, of which one is hit over and over.
    pub fn hot(pages: u32) -> Self {
        Self { pages, order: vec![Place::of_page(pages / 2); 2 * BATCH] }
    }

    /// How many pages are in memory.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// The hits, a multiple of two batches.
    pub fn order(&self) -> &[Place] {
        &self.order
    }

    /// Every page's place.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        (0..self.pages).map(Place::of_page)
    }
}

/// A page as the caches hold it.
#[repr(C, align(64))]
pub struct Page([u64; WORDS]);

impl Page {
    /// Page number `page`, with the word in it that is read.
    pub fn filled(page: u32) -> Self {
        let place = Place::of_page(page);
        let mut words = [0; WORDS];
        words[place.word()] = place.word_written();
        Self(words)
    }

    /// The word at `place`.
    #[inline]
    pub fn word(&self, place: Place) -> u64 {
        self.0[place.word()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_name_their_page_and_spread_over_the_words() {
        let working = Working::random(65_536);
        let mut words = vec![false; WORDS];
        for (page, place) in working.places().enumerate() {
            assert_eq!(place.page() as usize, page);
            assert_eq!(place.flat_word(), page * WORDS + place.word());
            words[place.word()] = true;
        }
        assert!(words.iter().all(|&used| used));
    }

    #[test]
    fn the_order_divides_into_batches_for_two() {
        for working in [Working::random(1), Working::random(1000), Working::random(65_536), Working::hot(7)] {
            assert_eq!(working.order().len() % (2 * BATCH), 0);
            assert!(working.order().iter().all(|place| place.page() < working.pages()));
        }
    }
}
