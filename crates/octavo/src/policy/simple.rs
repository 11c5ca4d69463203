//! Policies with one queue: first in, first out, and the same with a second chance.

use super::{Arrival, Links, Place, Policy, Queue, Shadow, Verdict};

/// Evicts the page that came first, whether used or not. The baseline for other policies.
#[derive(Debug, Default)]
pub struct Fifo(OneQueue);

/// Evicts the oldest page that was not used. A used page gets another round (second chance, Corbató 1968). An
/// active and an inactive list behave in the same way, if every page that is found marked is promoted.
#[derive(Debug, Default)]
pub struct Clock(OneQueue);

#[derive(Debug, Default)]
struct OneQueue {
    queue: Queue,
    evictions: u64,
}

impl OneQueue {
    fn push(&mut self, links: &dyn Links, frame: u32) -> Place {
        self.queue.push(links, frame, 0);
        Place::Cold
    }

    fn evict(&mut self, links: &dyn Links, frame: u32) -> Verdict {
        self.evictions += links.pages(frame);
        Verdict::Evict(Shadow::at(self.evictions))
    }
}

macro_rules! one_queue {
    ($policy:ident, |$accessed:ident| $keeps:expr) => {
        impl Policy for $policy {
            fn admit(&mut self, _: Arrival) -> u8 {
                0
            }

            fn insert(&mut self, links: &dyn Links, frame: u32, _: u8) {
                self.0.push(links, frame);
            }

            fn take_next(&mut self, links: &dyn Links) -> Option<(u32, u8)> {
                self.0.queue.pop(links)
            }

            fn judge(&mut self, links: &dyn Links, frame: u32, _: u8, $accessed: bool) -> Verdict {
                if $keeps { Verdict::Keep(self.0.push(links, frame)) } else { self.0.evict(links, frame) }
            }

            fn putback(&mut self, links: &dyn Links, frame: u32, _: u8, _: Place) {
                self.0.push(links, frame);
            }

            fn remove(&mut self, links: &dyn Links, frame: u32) -> u8 {
                self.0.queue.unlink(links, frame)
            }

            fn place(&self, _: u8) -> Place {
                Place::Cold
            }

            fn pages(&self) -> (u64, u64) {
                (0, self.0.queue.pages())
            }

            fn queues(&self) -> Vec<&Queue> {
                vec![&self.0.queue]
            }

            fn belongs(&self, tag: u8, _: usize) -> bool {
                tag == 0
            }
        }
    };
}

one_queue!(Fifo, |_accessed| false);
one_queue!(Clock, |accessed| accessed);
