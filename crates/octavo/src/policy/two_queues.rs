//! The two queues of S3-FIFO: a small one for newcomers, and a main clock. Each page on the clock has a
//! count.
//!
//! ```text
//!   7..... 2      1      0
//! +--------+------+------+
//! | count  | SEEN | MAIN |     a tag: a newcomer has SEEN or nothing, a page of the clock has MAIN and its count
//! +--------+------+------+
//! ```

use super::{Links, Place, Queue};

/// The page is on the main queue.
pub(super) const MAIN: u8 = 1;
/// The page is a newcomer, and its first mark has been cleared.
const SEEN: u8 = 2;
/// The lowest bit of the count in a tag.
const COUNT_SHIFT: u32 = 2;

/// Returns the tag of a page that will join the main queue.
pub(super) fn main_tag(count: u8) -> u8 {
    MAIN | count << COUNT_SHIFT
}

/// Returns the count of a page of the main queue.
pub(super) fn count(tag: u8) -> u8 {
    tag >> COUNT_SHIFT
}

pub(super) fn place(tag: u8) -> Place {
    if tag & MAIN != 0 { Place::Hot } else { Place::Cold }
}

/// The queues.
#[derive(Debug, Default)]
pub(super) struct TwoQueues {
    pub(super) small: Queue,
    pub(super) main: Queue,
}

impl TwoQueues {
    pub(super) fn total(&self) -> u64 {
        self.small.pages() + self.main.pages()
    }

    pub(super) fn push_main(&mut self, links: &dyn Links, frame: u32, count: u8) -> Place {
        self.main.push(links, frame, main_tag(count));
        Place::Hot
    }

    /// Decides about a newcomer that was taken. The fault leaves a mark, so the first mark does not count.
    /// Returns `None` if the page must be evicted.
    pub(super) fn judge_newcomer(
        &mut self,
        links: &dyn Links,
        frame: u32,
        tag: u8,
        accessed: bool,
    ) -> Option<Place> {
        match (accessed, tag & SEEN != 0) {
            (false, _) => None,
            (true, true) => Some(self.push_main(links, frame, 0)),
            (true, false) => {
                self.small.push(links, frame, SEEN);
                Some(Place::Cold)
            }
        }
    }

    /// Lists an admitted page, without SEEN.
    pub(super) fn insert(&mut self, links: &dyn Links, frame: u32, tag: u8) {
        self.putback(links, frame, tag & !SEEN, place(tag));
    }

    pub(super) fn putback(&mut self, links: &dyn Links, frame: u32, tag: u8, to: Place) {
        match to {
            Place::Hot => _ = self.push_main(links, frame, count(tag)),
            Place::Cold => self.small.push(links, frame, tag & SEEN),
        }
    }

    pub(super) fn remove(&mut self, links: &dyn Links, frame: u32) -> u8 {
        if links.tag(frame) & MAIN != 0 { &mut self.main } else { &mut self.small }.unlink(links, frame)
    }

    pub(super) fn pages(&self) -> (u64, u64) {
        (self.main.pages(), self.small.pages())
    }

    pub(super) fn queues(&self) -> Vec<&Queue> {
        vec![&self.small, &self.main]
    }

    pub(super) fn belongs(tag: u8, queue: usize) -> bool {
        usize::from(tag & MAIN) == queue
    }
}
