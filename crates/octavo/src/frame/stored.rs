//! Where the page of a frame is kept as well: the store and the index there, in one word.
//!
//! The word is 0, or the bits of a [`StoredPage`]. The page's store writes it, under the lock of the page: before it adds its
//! use of the frame, and once it has taken that use back. Elsewhere the word is a hint, and whoever acts on it asks the
//! store, which looks again under its lock. How many pages a store can have: [`StoredPage`].

use crate::sync::{AtomicU32, Ordering};
use crate::units::StoredPage;

/// The word.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros))]
#[repr(transparent)]
pub(crate) struct StoredWord(AtomicU32);

impl StoredWord {
    /// The page that the frame has, where a store knows the frame.
    #[inline]
    pub(crate) fn page(&self) -> Option<StoredPage> {
        // Acquire: pairs with `set`. Whoever finds the frame no longer stored finds what its store did before.
        StoredPage::from_bits(self.0.load(Ordering::Acquire))
    }

    /// By the store, under the lock of the page.
    #[inline]
    pub(crate) fn set(&self, page: Option<StoredPage>) {
        self.0.store(page.map_or(0, StoredPage::bits), Ordering::Release);
    }
}
