//! One word that names the page store that also keeps a frame's page, and the page's index in that store.
//!
//! The word is 0, or the bits of a [`StoredPage`]. The page store writes the word under the lock of the page:
//! before the store adds its use of the frame, and after it has removed that use. For all other threads the
//! word is a hint. A thread that acts on it asks the store, which checks again under its lock. [`StoredPage`]
//! says how many pages a store can have.

use crate::sync::{AtomicU32, Ordering};
use crate::units::StoredPage;

/// The stored word of a frame.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros))]
#[repr(transparent)]
pub(crate) struct StoredWord(AtomicU32);

impl StoredWord {
    /// Returns the stored page of the frame, or `None` if no store keeps it.
    #[inline]
    pub(crate) fn page(&self) -> Option<StoredPage> {
        // Acquire: pairs with `set`. If a thread finds that the frame is no longer stored, it also sees
        // everything that the store did before.
        StoredPage::from_bits(self.0.load(Ordering::Acquire))
    }

    /// Sets the word. Only the store calls this, under the lock of the page.
    #[inline]
    pub(crate) fn set(&self, page: Option<StoredPage>) {
        self.0.store(page.map_or(0, StoredPage::bits), Ordering::Release);
    }
}
