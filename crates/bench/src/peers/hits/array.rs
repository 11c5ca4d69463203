//! The floors: the least that a hit can cost. The pages lie one after the other in memory backed by huge
//! pages, and there is no translation and no residency.
//!
//! - version check: version, word, version again. No optimistic read can be cheaper.
//! - atomic add and subtract: the cheapest hold. It is a count in a flat array of 32-bit words, sixteen to a
//!   cache line.
//!
//! Neither of the two could evict a page, because neither has a state for an evicted page.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::{HitBench, HitTarget, OCTAVO_LOAD, OCTAVO_PIN, PageHits, WORDS, Working, side};
use crate::peers::compare::Side;
use crate::peers::mapping::{BenchMapping, HugePages};

pub(super) fn sides(working: &Working) -> [Side<dyn HitBench>; 2] {
    [
        side("array + version check", "", Some(OCTAVO_LOAD), Versions::new(working)),
        side("array + atomic add, sub", "", Some(OCTAVO_PIN), Counts::new(working)),
    ]
}

/// The pages of `working` as one piece of memory.
pub(super) fn flat_pages(working: &Working, huge: HugePages) -> Result<BenchMapping, String> {
    let bytes = working.pages() as usize * WORDS * size_of::<u64>();
    let mapping = BenchMapping::new(bytes, huge).map_err(|error| format!("no memory for pages: {error}"))?;
    for target in working.targets() {
        mapping.words()[target.flat_word()].store(target.word_written(), Ordering::Relaxed);
    }
    Ok(mapping)
}

struct Versions {
    pages: BenchMapping,
    versions: Vec<AtomicU64>,
}

impl Versions {
    fn new(working: &Working) -> Result<Self, String> {
        let versions = (0..working.pages()).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { pages: flat_pages(working, HugePages::Wanted)?, versions })
    }
}

impl PageHits for Versions {
    #[inline]
    fn hit(&self, target: HitTarget) -> u64 {
        let version = &self.versions[target.page() as usize];
        loop {
            // Acquire: the word is read after the version.
            let before = version.load(Ordering::Acquire);
            let word = self.pages.words()[target.flat_word()].load(Ordering::Relaxed);
            // Acquire: the version is read again after the word.
            fence(Ordering::Acquire);
            if version.load(Ordering::Relaxed) == before {
                return word;
            }
        }
    }
}

struct Counts {
    pages: BenchMapping,
    holds: Vec<AtomicU32>,
}

impl Counts {
    fn new(working: &Working) -> Result<Self, String> {
        let holds = (0..working.pages()).map(|_| AtomicU32::new(0)).collect();
        Ok(Self { pages: flat_pages(working, HugePages::Wanted)?, holds })
    }
}

impl PageHits for Counts {
    #[inline]
    fn hit(&self, target: HitTarget) -> u64 {
        let holds = &self.holds[target.page() as usize];
        // Acquire: the word is read after the hold is taken.
        holds.fetch_add(1, Ordering::Acquire);
        let word = self.pages.words()[target.flat_word()].load(Ordering::Relaxed);
        // Release: the word is read before the hold is given up.
        holds.fetch_sub(1, Ordering::Release);
        word
    }
}
