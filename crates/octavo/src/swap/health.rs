//! How the device of one area does, in one word: what is under way there, and how often it has answered.
//!
//! ```text
//!  63 ............ 28  27 .......... 0
//! +------------------+---------------+
//! |     answers      |   under way   |
//! +------------------+---------------+
//! ```
//!
//! *Under way* counts transfers that were handed over and have not ended; *answers* counts those that have ended, however
//! they did, and wraps.

use crate::sync::{AtomicU64, Ordering};

const UNDER_WAY: u64 = 1;
const UNDER_WAY_MASK: u64 = (1 << 28) - 1;
const ANSWER: u64 = 1 << 28;

/// The word.
#[derive(Debug, Default)]
pub(super) struct Health(AtomicU64);

/// What the word said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen(u64);

impl Seen {
    pub(super) fn under_way(self) -> u64 {
        self.0 & UNDER_WAY_MASK
    }

    /// Whether nothing has ended between the two.
    pub(super) fn has_not_answered_since(self, before: Seen) -> bool {
        self.0 / ANSWER == before.0 / ANSWER
    }
}

impl Health {
    // Relaxed: the word counts, and orders nothing. What a transfer did is published by the frames it is about.

    pub(super) fn load(&self) -> Seen {
        Seen(self.0.load(Ordering::Relaxed))
    }

    /// A transfer is about to be handed over. What was seen before.
    pub(super) fn begin(&self) -> Seen {
        Seen(self.0.fetch_add(UNDER_WAY, Ordering::Relaxed))
    }

    /// The device was full. What was seen before.
    pub(super) fn refused(&self) -> Seen {
        Seen(self.0.fetch_sub(UNDER_WAY, Ordering::Relaxed))
    }

    /// A transfer has ended.
    pub(super) fn end(&self) {
        self.0.fetch_add(ANSWER - UNDER_WAY, Ordering::Relaxed);
    }
}
