//! A cheap check whether a page is worth packing.
//!
//! The check samples 256 bytes, 8 in every 128, and counts distinct values. Random bytes (packed, encrypted,
//! or mantissas of floating point) show some 162 of 256. A page of which a quarter is zeros shows some 136,
//! and would pack to three quarters of a page, which the pool refuses anyway. Text shows about 60, and
//! machine code about
//! 100. A page that repeats itself at a distance of a few hundred bytes repeats its samples too.

use crate::units::PAGE_BYTES;

const EVERY: usize = 128;
const RUN: usize = 8;
/// If the samples have this many distinct values or more, packing would gain nothing.
const HOPELESS: u32 = 134;

/// Returns whether the page is not worth packing.
pub(super) fn is_hopeless(page: &[u8]) -> bool {
    distinct(page) >= HOPELESS
}

fn distinct(page: &[u8]) -> u32 {
    let mut seen = [0u8; 256];
    for run in page.chunks_exact(EVERY) {
        for &byte in &run[..RUN] {
            seen[usize::from(byte)] = 1;
        }
    }
    seen.iter().map(|&mark| u32::from(mark)).sum()
}

const _: () = assert!(PAGE_BYTES / EVERY * RUN == 256);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::swap::pool::tests::{Fill, page};

    #[test]
    fn what_cannot_shrink_is_told_from_what_can() {
        let hopeless = (0..200).filter(|&seed| is_hopeless(&page(Fill::Floats, seed))).count();
        assert!(hopeless > 180, "{hopeless} of 200 pages of floats");
        for seed in 0..200 {
            assert!(is_hopeless(&page(Fill::Random, seed)), "seed {seed}");
            for kind in [Fill::Text, Fill::Half, Fill::Words, Fill::Repeats] {
                assert!(!is_hopeless(&page(kind, seed)), "{kind:?}, seed {seed}");
            }
        }
    }
}
