//! Runs of private pages.

use std::ops::Range;

use octavo_platform::PAGE_BYTES;
use octavo_platform::pagemap::{FILE_OR_SHARED, PRESENT, Pagemap};

use crate::mappings::Mapping;

const PAGE: u64 = PAGE_BYTES as u64;
/// Shorter runs of pages are not converted: each makes a mapping of its own.
pub(crate) const LEAST_RUN: u64 = 16 * PAGE;

/// Returns for each page whether it is private memory that is present.
pub(crate) fn private_pages(pagemap: &Pagemap, part: &Mapping) -> Vec<bool> {
    let count = ((part.end - part.start) / PAGE) as usize;
    let words = pagemap.entries(part.start, count).unwrap_or_default();
    words.into_iter().map(|word| word & (PRESENT | FILE_OR_SHARED) == PRESENT).collect()
}

/// Returns the runs of pages for which the answer is yes.
pub(crate) fn runs(pages: &[bool]) -> Vec<Range<u64>> {
    let (mut found, mut start) = (Vec::new(), None);
    for (index, is_it) in pages.iter().copied().chain([false]).enumerate() {
        match (is_it, start) {
            (true, None) => start = Some(index),
            (false, Some(first)) => {
                found.push(first as u64..index as u64);
                start = None;
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_at_both_ends_and_in_between() {
        let pages = [true, true, false, true, false, false, true];
        assert_eq!(runs(&pages), [0..2, 3..4, 6..7]);
        assert_eq!(runs(&[]), []);
    }
}
