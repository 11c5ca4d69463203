//! The reasons why the last reads failed. Threads that wait for such a page soon ask for its reason.
//!
//! Locking: one lock. It is taken only if a read has failed, and without any other lock.

use crate::store::Unread;
use crate::sync::Mutex;
use crate::units::StoredPage;

/// The last failed reads of a store, by page.
#[derive(Debug, Default)]
pub(crate) struct ReadFailures(Mutex<Last>);

#[derive(Debug, Default)]
struct Last {
    all: [Option<(StoredPage, Unread)>; 16],
    next: usize,
}

impl ReadFailures {
    pub(crate) fn note(&self, page: StoredPage, why: Unread) {
        let mut last = self.0.lock();
        let known = last.all.iter().position(|last| matches!(last, Some((failed, _)) if *failed == page));
        let at = known.unwrap_or(last.next);
        last.all[at] = Some((page, why));
        if known.is_none() {
            last.next = (at + 1) % last.all.len();
        }
    }

    /// Returns why the page was not read, or `None` if too many other reads have failed since.
    pub(crate) fn why(&self, page: StoredPage) -> Option<Unread> {
        let last = self.0.lock();
        last.all.iter().flatten().find(|(failed, _)| *failed == page).map(|(_, why)| why.clone())
    }
}
