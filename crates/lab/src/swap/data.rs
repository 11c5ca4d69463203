//! The words of pages. Each word follows from the seed, the page and its place, so a check needs no second
//! copy.
//!
//! | kind | a page | compresses |
//! |---|---|---|
//! | random | pseudorandom words | not at all |
//! | text | a stamp, then a piece of real text from a place of the page's own | about 2:1 |
//! | zero | zeros | to nothing |
//! | half | half random words, then half zeros | 2:1 |

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use clap::ValueEnum;
use octavo_measure::random::{Random, mix};
use serde::{Deserialize, Serialize};

pub const PAGE_BYTES: usize = octavo::PAGE_BYTES;
/// Words of a page.
pub const PAGE_WORDS: usize = PAGE_BYTES / 8;

/// Real text that every Debian machine has.
const TEXT_FOLDER: &str = "/usr/share/common-licenses";
const MOST_TEXT_BYTES: usize = 1 << 20;

/// The words that fill pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Data {
    /// Incompressible words
    Random,
    /// Real text (of /usr/share/common-licenses, where it is there)
    Text,
    /// Zeros only
    Zero,
    /// Each page half random, half zero
    Half,
}

impl Data {
    /// Returns the words of one page.
    #[inline]
    pub fn page(self, seed: u64, page: u64) -> PageWords<'static> {
        let stamp = mix(seed ^ page.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1;
        match self {
            Self::Random => PageWords::Random { stamp, words: PAGE_WORDS },
            Self::Half => PageWords::Random { stamp, words: PAGE_WORDS / 2 },
            Self::Zero => PageWords::Random { stamp, words: 0 },
            Self::Text => PageWords::text(stamp, text()),
        }
    }
}

/// A generator of the words of one page.
#[derive(Clone, Copy, Debug)]
pub enum PageWords<'a> {
    /// `words` random words, then zeros.
    Random { stamp: u64, words: usize },
    /// A stamp, then text.
    Text { stamp: u64, text: &'a [u8; PAGE_BYTES] },
}

impl<'a> PageWords<'a> {
    fn text(stamp: u64, all: &'a [u8]) -> Self {
        let places = all.len() - PAGE_BYTES + 1;
        let start = ((u128::from(stamp) * places as u128) >> 64) as usize;
        let text = all[start..].first_chunk().expect("a place leaves room for a page");
        Self::Text { stamp, text }
    }

    /// Calls `take` with the index and the value of every word.
    #[inline]
    pub fn each(&self, mut take: impl FnMut(usize, u64)) {
        match *self {
            Self::Random { stamp, words } => {
                (0..words).for_each(|index| take(index, random_word(stamp, index)));
                (words..PAGE_WORDS).for_each(|index| take(index, 0));
            }
            Self::Text { stamp, text } => {
                take(0, stamp);
                let (chunks, _) = text.as_chunks::<8>();
                (1..PAGE_WORDS).for_each(|index| take(index, u64::from_le_bytes(chunks[index])));
            }
        }
    }

    /// Returns one word.
    #[inline]
    pub fn word(&self, index: usize) -> u64 {
        match *self {
            Self::Random { stamp, words } if index < words => random_word(stamp, index),
            Self::Random { .. } => 0,
            Self::Text { stamp, .. } if index == 0 => stamp,
            Self::Text { text, .. } => u64::from_le_bytes(text.as_chunks::<8>().0[index]),
        }
    }
}

/// Returns a random word by one multiplication: filling pages must cost little next to the measured memory.
#[inline]
fn random_word(stamp: u64, index: usize) -> u64 {
    let value = (stamp ^ index as u64).wrapping_mul(stamp | 1);
    (value ^ (value >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Returns the text, which is the same in every process of one machine.
fn text() -> &'static [u8] {
    static TEXT: OnceLock<Vec<u8>> = OnceLock::new();
    TEXT.get_or_init(|| {
        let mut text = read_text();
        if text.len() < 16 * PAGE_BYTES {
            text = made_up_text();
        }
        text
    })
}

fn read_text() -> Vec<u8> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(TEXT_FOLDER).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let mut text = Vec::new();
    for path in paths {
        // `GPL` and similar names are links to the file of a version.
        if path.is_symlink() || text.len() >= MOST_TEXT_BYTES {
            continue;
        }
        text.extend(fs::read(path).unwrap_or_default());
    }
    text.truncate(MOST_TEXT_BYTES);
    text
}

/// Makes a text of random English words, for machines without such texts.
fn made_up_text() -> Vec<u8> {
    const WORDS: [&str; 24] = [
        "the", "of", "memory", "and", "page", "to", "in", "that", "is", "which", "a", "frame", "it", "for",
        "was", "as", "be", "with", "program", "by", "on", "not", "this", "are",
    ];
    let mut text = Vec::with_capacity(MOST_TEXT_BYTES / 4);
    let mut random = Random::new(1);
    while text.len() < MOST_TEXT_BYTES / 4 {
        text.extend_from_slice(WORDS[random.below(WORDS.len())].as_bytes());
        text.push(if random.below(16) == 0 { b'\n' } else { b' ' });
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const ALL: [Data; 4] = [Data::Random, Data::Text, Data::Zero, Data::Half];

    #[test]
    fn a_word_alone_is_the_word_of_the_page() {
        for data in ALL {
            let page = data.page(3, 17);
            let mut seen = 0;
            page.each(|index, word| {
                assert_eq!(page.word(index), word, "{data:?} word {index}");
                assert_eq!(index, seen);
                seen += 1;
            });
            assert_eq!(seen, PAGE_WORDS);
        }
    }

    #[test]
    fn pages_differ_by_seed_and_number_where_they_are_not_zero() {
        for data in [Data::Random, Data::Text, Data::Half] {
            let firsts: HashSet<u64> =
                (0..100).flat_map(|seed| (0..100).map(move |page| data.page(seed, page).word(0))).collect();
            assert_eq!(firsts.len(), 10_000, "{data:?}");
        }
    }

    #[test]
    fn random_words_do_not_repeat_and_half_pages_end_in_zeros() {
        let mut words = HashSet::new();
        let mut bytes = [0u32; 256];
        for page in 0..64 {
            Data::Random.page(1, page).each(|_, word| {
                words.insert(word);
                word.to_le_bytes().iter().for_each(|&byte| bytes[usize::from(byte)] += 1);
            });
        }
        assert_eq!(words.len(), 64 * PAGE_WORDS);
        // Each byte value occurs 1024 times on average, so an entropy coder cannot compress the pages.
        assert!(bytes.iter().all(|&count| (850..1200).contains(&count)), "{bytes:?}");
        let half = Data::Half.page(1, 1);
        assert!(half.word(255) != 0 && half.word(256) == 0);
        Data::Zero.page(1, 1).each(|_, word| assert_eq!(word, 0));
    }

    #[test]
    fn text_is_text_with_and_without_the_folder() {
        for text in [text().to_vec(), made_up_text()] {
            let letters =
                text.iter().filter(|byte| byte.is_ascii_alphanumeric() || byte.is_ascii_whitespace());
            assert!(letters.count() * 10 > text.len() * 8);
        }
    }
}
