//! SIEVE (Zhang et al., NSDI 2024): a clock whose survivors keep their place.
//!
//! Newcomers join at the young end. The hand moves from the old end to the young one, so it meets newcomers
//! before it meets the pages again that it has passed. Candidates that were taken together return behind the
//! hand in their order.

use super::{Arrival, Links, NIL, Place, Policy, Queue, Shadow, Verdict};

/// SIEVE (Zhang et al., NSDI 2024): a clock that leaves used pages where they are.
#[derive(Debug)]
pub struct Sieve {
    queue: Queue,
    /// The next candidate. [`NIL`] stands for the old end.
    hand: u32,
    /// Whether the hand passed the young end with the last candidate. Survivors then go to the young end.
    wrapped: bool,
    evictions: u64,
}

impl Default for Sieve {
    fn default() -> Self {
        Self { queue: Queue::default(), hand: NIL, wrapped: false, evictions: 0 }
    }
}

impl Policy for Sieve {
    fn admit(&mut self, _: Arrival) -> u8 {
        0
    }

    fn insert(&mut self, links: &dyn Links, frame: u32, _: u8) {
        self.queue.push(links, frame, 0);
    }

    fn take_next(&mut self, links: &dyn Links) -> Option<(u32, u8)> {
        let frame = if self.hand == NIL { self.queue.oldest()? } else { self.hand };
        self.hand = links.prev(frame);
        self.wrapped = self.hand == NIL;
        Some((frame, self.queue.unlink(links, frame)))
    }

    fn judge(&mut self, links: &dyn Links, frame: u32, tag: u8, accessed: bool) -> Verdict {
        if accessed {
            self.putback(links, frame, tag, Place::Hot);
            Verdict::Keep(Place::Cold)
        } else {
            self.evictions += links.pages(frame);
            Verdict::Evict(Shadow::at(self.evictions))
        }
    }

    fn putback(&mut self, links: &dyn Links, frame: u32, _: u8, _: Place) {
        match self.hand {
            NIL if self.wrapped || self.queue.oldest().is_none() => self.queue.push(links, frame, 0),
            NIL => self.queue.push_before(links, frame, 0, NIL),
            hand => {
                let older = links.next(hand);
                self.queue.push_before(links, frame, 0, older);
            }
        }
    }

    fn remove(&mut self, links: &dyn Links, frame: u32) -> u8 {
        if self.hand == frame {
            self.hand = links.prev(frame);
            self.wrapped = self.hand == NIL;
        }
        self.queue.unlink(links, frame)
    }

    fn place(&self, _: u8) -> Place {
        Place::Cold
    }

    fn pages(&self) -> (u64, u64) {
        (0, self.queue.pages())
    }

    fn queues(&self) -> Vec<&Queue> {
        vec![&self.queue]
    }

    fn belongs(&self, tag: u8, _: usize) -> bool {
        tag == 0
    }
}
