//! S3-FIFO (Yang et al., SOSP 2023): a small queue for newcomers, a main clock, and ghosts.
//!
//! The ghosts are shadows. A page counts as still in the ghost queue if it returns after no more evictions
//! than the main queue has pages. Hits are marked and not counted. So a page's frequency is the number of
//! scans that found it used, up to three, minus one for each scan that did not. The fault itself leaves a
//! mark, so a newcomer passes through the small queue twice, and only the second time counts.

use super::two_queues::{self, MAIN, TwoQueues};
use super::{Arrival, Links, Place, Policy, Queue, Shadow, Verdict};

/// The small queue's share of memory is a tenth.
const SMALL_SHARE: u64 = 10;
/// The highest frequency.
const MOST: u8 = 3;

/// S3-FIFO (Yang et al., SOSP 2023): newcomers pass through a small queue, and only those used again join the
/// main one.
#[derive(Debug, Default)]
pub struct S3Fifo {
    /// A page's count on the main queue is its frequency.
    both: TwoQueues,
    evictions: u64,
}

impl S3Fifo {
    fn evict(&mut self, links: &dyn Links, frame: u32) -> Verdict {
        self.evictions += links.pages(frame);
        Verdict::Evict(Shadow::at(self.evictions))
    }
}

impl Policy for S3Fifo {
    fn admit(&mut self, arrival: Arrival) -> u8 {
        match arrival {
            Arrival::Back(shadow) | Arrival::Along(shadow)
                if shadow.distance(self.evictions) <= self.both.main.pages() =>
            {
                MAIN
            }
            _ => 0,
        }
    }

    fn insert(&mut self, links: &dyn Links, frame: u32, tag: u8) {
        self.both.insert(links, frame, tag);
    }

    fn take_hot(&mut self, links: &dyn Links) -> Option<(u32, u8)> {
        self.both.main.pop(links)
    }

    fn take_next(&mut self, links: &dyn Links) -> Option<(u32, u8)> {
        let TwoQueues { small, main } = &mut self.both;
        let total = small.pages() + main.pages();
        let from_small = small.pages() * SMALL_SHARE >= total || main.oldest().is_none();
        if from_small { small.pop(links) } else { main.pop(links) }
    }

    fn judge(&mut self, links: &dyn Links, frame: u32, tag: u8, accessed: bool) -> Verdict {
        let kept = if tag & MAIN == 0 {
            self.both.judge_newcomer(links, frame, tag, accessed)
        } else {
            match (accessed, two_queues::count(tag)) {
                (true, frequency) => Some((frequency + 1).min(MOST)),
                (false, 0 | 1) => None,
                (false, frequency) => Some(frequency - 1),
            }
            .map(|frequency| self.both.push_main(links, frame, frequency))
        };
        kept.map_or_else(|| self.evict(links, frame), Verdict::Keep)
    }

    fn putback(&mut self, links: &dyn Links, frame: u32, tag: u8, to: Place) {
        self.both.putback(links, frame, tag, to);
    }

    fn remove(&mut self, links: &dyn Links, frame: u32) -> u8 {
        self.both.remove(links, frame)
    }

    fn place(&self, tag: u8) -> Place {
        two_queues::place(tag)
    }

    fn pages(&self) -> (u64, u64) {
        self.both.pages()
    }

    fn queues(&self) -> Vec<&Queue> {
        self.both.queues()
    }

    fn belongs(&self, tag: u8, queue: usize) -> bool {
        TwoQueues::belongs(tag, queue)
    }
}
