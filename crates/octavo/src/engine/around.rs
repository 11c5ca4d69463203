//! Which neighbours come along with a page that a fault wants, where faults follow each other in no order.
//!
//! A page lies in a *block*: [`BLOCK`] pages, from a multiple of it on. Memory that was allocated together is often used together,
//! so the other pages of the block are read with the page, and shown with it, where that pays.
//!
//! ```text
//!   block   │ shown │ shown │ wanted │ shown │ probe │ shown │ shown │ shown │
//! ```
//!
//! **Does it pay?** Nobody sees the accesses to pages that are shown. So one page of each block, its *probe*, is not shown. It
//! is in memory, and an access to it is a fault. The account of a stretch of 16 MiB says how many probes were left in memory
//! lately, and how many of them were wanted. While at least three quarters were, neighbours come along. Where fewer are, one fault in
//! [`ATTEMPT`] brings the probe of its block only, to see whether that has changed.
//!
//! From Linux: `swap_vma_readahead` in `mm/swap_state.c`, which also sizes its window by the hits of the last one. There a page
//! that was read too early costs a minor fault, and is seen.
//!
//! Locking: the accounts stand under the lock of the streams.

use std::ops::Range;

use crate::engine::streams::Window;
use crate::engine::stretches::{ACCOUNTS, account_of};
use crate::units::PageNumber;

/// Pages of a block.
const BLOCK: u64 = 8;
/// Probes that were left, up to which a stretch is believed to pay.
const ON_TRUST: u16 = 3;
/// An account remembers at most so many probes.
const REMEMBERED: u16 = 64;
/// Where neighbours do not pay, one fault in so many brings a probe.
const ATTEMPT: u64 = 16;

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    left: u16,
    wanted: u16,
}

impl Account {
    fn pays(self) -> bool {
        // The last one may be wanted yet.
        self.left < ON_TRUST || (self.wanted + 1) * 4 >= self.left * 3
    }
}

/// The accounts of a space.
#[derive(Debug)]
pub(super) struct Around {
    accounts: [Account; ACCOUNTS],
}

impl Default for Around {
    fn default() -> Self {
        Self { accounts: [Account::default(); ACCOUNTS] }
    }
}

impl Around {
    /// Returns the pages to be read with one that only a device has. `faults` counts the space's faults.
    /// They are `most` at most.
    pub(super) fn window(&self, page: u64, faults: u64, most: u32) -> Option<Window> {
        let probe = probe_of(page);
        if self.pays(page) && u64::from(most) >= BLOCK - 1 {
            let start = block_of(page);
            let (before, behind) = (page - start, start + BLOCK - 1 - page);
            return Some(Window::around(PageNumber(page), before as u32, behind as u32, probe));
        }
        let tries = faults.is_multiple_of(ATTEMPT) && probe != page;
        tries.then(|| Window::probe(PageNumber(probe)))
    }

    /// Returns whether the neighbours of a page are to be shown with it.
    pub(super) fn pays(&self, page: u64) -> bool {
        self.accounts[account_of(page)].pays()
    }

    /// The probe of a page's block has been left in memory.
    pub(super) fn note_left(&mut self, page: u64) {
        let account = &mut self.accounts[account_of(page)];
        account.left += 1;
        if account.left > REMEMBERED {
            account.left /= 2;
            account.wanted /= 2;
        }
    }

    /// A fault has found its page in memory.
    pub(super) fn note_wanted(&mut self, page: u64) {
        if probe_of(page) == page {
            let account = &mut self.accounts[account_of(page)];
            account.wanted = (account.wanted + 1).min(account.left);
        }
    }
}

/// Returns the pages that are shown with a page: the others of its block, but for the probe.
pub(crate) fn shown_with(page: PageNumber) -> impl Iterator<Item = PageNumber> {
    let others = block_of(page.0)..block_end(page.0);
    others.filter(move |other| *other != page.0 && *other != probe_of(page.0)).map(PageNumber)
}

/// Returns the probe of a page's block, if that is another page.
pub(crate) fn probe_beside(page: PageNumber) -> Option<PageNumber> {
    Some(PageNumber(probe_of(page.0))).filter(|probe| *probe != page)
}

/// Returns the addresses of a page's block.
pub(crate) fn addresses_around(page: PageNumber) -> Range<u64> {
    PageNumber(block_of(page.0)).address()..PageNumber(block_end(page.0)).address()
}

/// Returns the first page of a page's block.
pub(super) fn block_of(page: u64) -> u64 {
    page - page % BLOCK
}

/// Returns the page behind a page's block.
pub(super) fn block_end(page: u64) -> u64 {
    block_of(page) + BLOCK
}

/// Returns the probe of a page's block. It lies at another place in each block, so that no place is always left out.
pub(super) fn probe_of(page: u64) -> u64 {
    let block = page / BLOCK;
    block * BLOCK + (block.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 61) % BLOCK
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::engine::stretches::STRETCH_SHIFT;

    fn pages(window: Window) -> Vec<u64> {
        let mut pages: Vec<_> = window.pages().map(|page| page.0).collect();
        pages.sort_unstable();
        pages
    }

    #[test]
    fn the_other_pages_of_the_block_come_along() {
        for page in 64..96 {
            let window = Around::default().window(page, 1, 8).unwrap();
            let others = (block_of(page)..block_end(page)).filter(|other| *other != page);
            assert_eq!(pages(window), others.collect::<Vec<_>>(), "{page}");
        }
    }

    #[test]
    fn probes_lie_everywhere_and_in_their_blocks() {
        let mut places = [0; BLOCK as usize];
        for block in 0..8000 {
            let probe = probe_of(block * BLOCK + block % BLOCK);
            assert_eq!(block_of(probe), block * BLOCK);
            places[(probe % BLOCK) as usize] += 1;
        }
        assert!(places.iter().all(|count| (900..1100).contains(count)), "{places:?}");
    }

    #[test]
    fn neighbours_that_nobody_wants_come_no_more_and_come_again_once_they_are_wanted() {
        let mut around = Around::default();
        let page = if probe_of(0) == 0 { 1 } else { 0 };
        (0..REMEMBERED).for_each(|_| around.note_left(page));
        let brought: Vec<_> = (0..2 * ATTEMPT).filter_map(|faults| around.window(page, faults, 8)).collect();
        assert_eq!(brought.len(), 2);
        assert!(brought.into_iter().all(|window| pages(window) == [probe_of(page)]));
        // Other stretches have accounts of their own.
        assert!(around.pays(page + (1 << STRETCH_SHIFT)));
        let mut turns = 0;
        while !around.pays(page) {
            around.note_left(page);
            around.note_wanted(probe_of(page));
            turns += 1;
        }
        assert!(turns <= REMEMBERED, "{turns}");
        assert_eq!(pages(around.window(page, 1, 8).unwrap()).len(), BLOCK as usize - 1);
    }

    #[test]
    fn only_probes_are_counted() {
        let mut around = Around::default();
        let page = if probe_of(0) == 0 { 1 } else { 0 };
        for _ in 0..ON_TRUST {
            around.note_left(page);
            around.note_wanted(page);
        }
        assert!(!around.pays(page));
    }
}
