//! S3-FIFO (Yang et al., SOSP 2023): a small queue for newcomers, a main clock, and ghosts.
//!
//! The ghosts are shadows. A page that returns before the main queue's length of evictions would still be in
//! the ghost queue. Hits are marked and not counted. So a page's frequency is the number of scans that found
//! it used, up to three. The fault itself leaves a mark, so a newcomer goes through the small queue twice,
//! and only the second time counts.

use super::{Arrival, Links, Place, Policy, Queue, Shadow, Verdict};

/// The small queue's share of memory is one in so many.
const SMALL_SHARE: u64 = 10;
/// The page is on the main queue.
const MAIN: u8 = 1;
/// The page's first mark has been cleared.
const SEEN: u8 = 2;
/// Where in a tag the frequency begins.
const FREQUENCY_SHIFT: u32 = 2;
/// The highest frequency.
const MOST: u8 = 3;

/// The policy S3-FIFO.
#[derive(Debug, Default)]
pub struct S3Fifo {
    small: Queue,
    main: Queue,
    evictions: u64,
}

impl S3Fifo {
    fn push_main(&mut self, links: &dyn Links, frame: u32, frequency: u8) -> Place {
        self.main.push(links, frame, MAIN | frequency << FREQUENCY_SHIFT);
        Place::Hot
    }

    fn evict(&mut self, links: &dyn Links, frame: u32) -> Verdict {
        self.evictions += links.pages(frame);
        Verdict::Evict(Shadow::at(self.evictions))
    }
}

impl Policy for S3Fifo {
    fn admit(&mut self, arrival: Arrival) -> u8 {
        match arrival {
            Arrival::Back(shadow) if shadow.distance(self.evictions) <= self.main.pages() => MAIN,
            _ => 0,
        }
    }

    fn insert(&mut self, links: &dyn Links, frame: u32, tag: u8) {
        self.putback(links, frame, 0, self.place(tag));
    }

    fn take_hot(&mut self, links: &dyn Links) -> Option<(u32, u8)> {
        self.main.pop(links)
    }

    fn take_next(&mut self, links: &dyn Links) -> Option<(u32, u8)> {
        let total = self.small.pages() + self.main.pages();
        let from_small = self.small.pages() * SMALL_SHARE >= total || self.main.oldest().is_none();
        if from_small { self.small.pop(links) } else { self.main.pop(links) }
    }

    fn judge(&mut self, links: &dyn Links, frame: u32, tag: u8, accessed: bool) -> Verdict {
        if tag & MAIN != 0 {
            let frequency = tag >> FREQUENCY_SHIFT;
            return match (accessed, frequency) {
                (true, _) => Verdict::Keep(self.push_main(links, frame, (frequency + 1).min(MOST))),
                (false, 0 | 1) => self.evict(links, frame),
                (false, _) => Verdict::Keep(self.push_main(links, frame, frequency - 1)),
            };
        }
        match (accessed, tag & SEEN != 0) {
            (false, _) => self.evict(links, frame),
            (true, true) => Verdict::Keep(self.push_main(links, frame, 0)),
            (true, false) => {
                self.small.push(links, frame, SEEN);
                Verdict::Keep(Place::Cold)
            }
        }
    }

    fn putback(&mut self, links: &dyn Links, frame: u32, tag: u8, to: Place) {
        match to {
            Place::Hot => {
                self.push_main(links, frame, tag >> FREQUENCY_SHIFT);
            }
            Place::Cold => self.small.push(links, frame, tag & SEEN),
        }
    }

    fn remove(&mut self, links: &dyn Links, frame: u32) -> u8 {
        if links.tag(frame) & MAIN != 0 { &mut self.main } else { &mut self.small }.unlink(links, frame)
    }

    fn place(&self, tag: u8) -> Place {
        if tag & MAIN != 0 { Place::Hot } else { Place::Cold }
    }

    fn pages(&self) -> (u64, u64) {
        (self.main.pages(), self.small.pages())
    }

    fn queues(&self) -> Vec<&Queue> {
        vec![&self.small, &self.main]
    }

    fn belongs(&self, tag: u8, queue: usize) -> bool {
        usize::from(tag & MAIN) == queue
    }
}
