//! Whether readahead pays, by stretch of a space's addresses.
//!
//! An account says how many pages were read ahead in its stretch lately, and how many of them a fault then
//! wanted. A stretch *pays* while at least three quarters were wanted. So readahead adds at most a third to
//! the pages that a program needs. A short burst of faults in order inside a random pattern, such as the
//! neighbours of a vertex in a graph, closes its stretch after a few windows. A reader in order opens it
//! again, because a long run of faults starts a window even there (`engine/streams.rs`).
//!
//! ```text
//!   page number:   … hash to an account | 12 bits: 16 MiB of one stretch
//! ```
//!
//! Stretches far apart share an account, which then holds for their sum. An unmap need not undo anything,
//! because an account forgets: both numbers are halved once it has more than [`REMEMBERED`] pages. (Linux
//! decides the next window of a VMA by the hits of the last one: `__swapin_nr_pages` in `mm/swap_state.c`.)
//!
//! Locking: the lock of the streams protects the accounts.

/// log2 of the pages of a stretch.
const STRETCH_SHIFT: u32 = 12;
/// Accounts of a space: enough for the stretches of 2 GiB.
const ACCOUNTS: usize = 128;
/// A stretch with fewer pages read than this is assumed to pay: two first windows.
const ON_TRUST: u32 = 16;
/// The most pages read that an account remembers.
const REMEMBERED: u32 = 256;

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    read: u32,
    used: u32,
}

#[derive(Debug)]
pub(super) struct Stretches {
    accounts: [Account; ACCOUNTS],
}

impl Default for Stretches {
    fn default() -> Self {
        Self { accounts: [Account::default(); ACCOUNTS] }
    }
}

impl Stretches {
    /// Notes that `read` pages were read ahead near `page`, and that faults wanted `used` of them.
    pub(super) fn note(&mut self, page: u64, read: u32, used: u32) {
        let account = &mut self.accounts[account_of(page)];
        account.read += read;
        // A page that was read ahead may be wanted after its stream was given up.
        account.used = (account.used + used).min(account.read);
        while account.read > REMEMBERED {
            account.read /= 2;
            account.used /= 2;
        }
    }

    /// Returns whether readahead near `page` pays.
    pub(super) fn pays(&self, page: u64) -> bool {
        let account = self.accounts[account_of(page)];
        account.read < ON_TRUST || pays(account.read, account.used)
    }
}

/// Returns the index of the account of a page's stretch. Consecutive stretches have consecutive accounts.
fn account_of(page: u64) -> usize {
    (page >> STRETCH_SHIFT) as usize % ACCOUNTS
}

/// Returns whether it pays to read `read` pages if `used` of them are wanted.
pub(super) fn pays(read: u32, used: u32) -> bool {
    used.saturating_mul(4) >= read.saturating_mul(3)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_pays_while_three_quarters_are_wanted() {
        let mut stretches = Stretches::default();
        stretches.note(5000, ON_TRUST - 1, 0);
        assert!(stretches.pays(5000), "on trust");
        stretches.note(5000, 1, 0);
        assert!(!stretches.pays(5000) && !stretches.pays(4096), "the same stretch");
        assert!(stretches.pays(4095) && stretches.pays(8192), "its neighbours");
        stretches.note(5000, 48, 48);
        assert!(stretches.pays(5000));
    }

    #[test]
    fn a_page_that_is_wanted_late_counts() {
        let mut stretches = Stretches::default();
        stretches.note(0, 100, 0);
        (0..74).for_each(|page| stretches.note(page, 0, 1));
        assert!(!stretches.pays(0));
        stretches.note(0, 0, 1);
        assert!(stretches.pays(0));
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let mut stretches = Stretches::default();
        (0..1000).for_each(|_| stretches.note(0, 512, 0));
        (0..3).for_each(|_| stretches.note(0, 256, 256));
        assert!(stretches.pays(0));
        (0..3).for_each(|_| stretches.note(0, 64, 0));
        assert!(!stretches.pays(0));
    }
}
