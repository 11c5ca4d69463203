//! Generations, as in Linux's multi-generational LRU: four queues by age. Pages are evicted from the oldest.
//!
//! A page found marked in the oldest generation joins the youngest. A newcomer joins the second oldest. The
//! newcomer's own fault leaves a mark. So the first mark found only moves the page to the second oldest
//! generation. A page that returns joins the youngest if its refault distance is no more than the pages in
//! memory. When the oldest generation is empty, the next takes its place. There are always at least three
//! generations: if only two are left, a new youngest one begins.

use super::{Arrival, Links, Place, Policy, Queue, Shadow, Verdict};

/// The most generations.
const COUNT: usize = 4;
/// The fewest generations that are younger than the oldest, and the number of cold generations.
const FEWEST: u64 = 2;
/// The bits of a tag that hold the generation.
const GENERATION: u8 = COUNT as u8 - 1;
/// The page's first mark has been cleared.
const SEEN: u8 = 4;
/// The page is not in memory yet, and will join the youngest generation.
const TO_YOUNGEST: u8 = 8;

/// Evicts from the oldest of four age groups, as Linux's multi-generational LRU does.
#[derive(Debug, Default)]
pub struct Generations {
    queues: [Queue; COUNT],
    /// The number of the oldest generation. Numbers only grow.
    oldest: u64,
    /// How many generations are younger than the oldest.
    younger: u64,
    evictions: u64,
}

impl Generations {
    fn push(&mut self, links: &dyn Links, frame: u32, number: u64, seen: bool) -> Place {
        let index = (number % COUNT as u64) as usize;
        self.queues[index].push(links, frame, index as u8 | if seen { SEEN } else { 0 });
        if number >= self.oldest + FEWEST { Place::Hot } else { Place::Cold }
    }

    fn youngest(&self) -> u64 {
        self.oldest + self.younger
    }

    fn total(&self) -> u64 {
        self.queues.iter().map(Queue::pages).sum()
    }

    /// Skips empty generations, so that the oldest holds a frame if any does. Keeps at least two others above
    /// it.
    fn age(&mut self) {
        for _ in 0..COUNT {
            self.younger = self.younger.max(FEWEST);
            if self.queues[(self.oldest % COUNT as u64) as usize].oldest().is_some() {
                // If the youngest generation has more than its share, and there is room for another, begin
                // one.
                let share = self.total() / COUNT as u64;
                let youngest = (self.youngest() % COUNT as u64) as usize;
                if self.younger + 1 < COUNT as u64 && self.queues[youngest].pages() > share {
                    self.younger += 1;
                }
                return;
            }
            self.oldest += 1;
            self.younger -= 1;
        }
    }
}

impl Policy for Generations {
    fn admit(&mut self, arrival: Arrival) -> u8 {
        match arrival {
            Arrival::Back(shadow) | Arrival::Along(shadow)
                if shadow.distance(self.evictions) <= self.total() =>
            {
                TO_YOUNGEST
            }
            _ => 0,
        }
    }

    fn insert(&mut self, links: &dyn Links, frame: u32, tag: u8) {
        let to = if tag & TO_YOUNGEST != 0 { Place::Hot } else { Place::Cold };
        self.putback(links, frame, 0, to);
    }

    fn take_hot(&mut self, links: &dyn Links) -> Option<(u32, u8)> {
        let numbers = self.oldest + FEWEST..=self.youngest();
        numbers.into_iter().find_map(|number| self.queues[(number % COUNT as u64) as usize].pop(links))
    }

    fn take_next(&mut self, links: &dyn Links) -> Option<(u32, u8)> {
        self.age();
        self.queues[(self.oldest % COUNT as u64) as usize].pop(links)
    }

    fn judge(&mut self, links: &dyn Links, frame: u32, tag: u8, accessed: bool) -> Verdict {
        match (accessed, tag & SEEN != 0) {
            (true, true) => Verdict::Keep(self.push(links, frame, self.youngest(), true)),
            (true, false) => Verdict::Keep(self.push(links, frame, self.oldest + 1, true)),
            (false, _) => {
                self.evictions += links.pages(frame);
                Verdict::Evict(Shadow::at(self.evictions))
            }
        }
    }

    fn putback(&mut self, links: &dyn Links, frame: u32, tag: u8, to: Place) {
        self.younger = self.younger.max(FEWEST);
        let number = if to == Place::Hot { self.youngest() } else { self.oldest + 1 };
        self.push(links, frame, number, tag & SEEN != 0);
    }

    fn remove(&mut self, links: &dyn Links, frame: u32) -> u8 {
        self.queues[usize::from(links.tag(frame) & GENERATION)].unlink(links, frame)
    }

    fn place(&self, tag: u8) -> Place {
        if tag & TO_YOUNGEST != 0 {
            return Place::Hot;
        }
        let index = u64::from(tag & GENERATION);
        let is_cold = (self.oldest..self.oldest + FEWEST).any(|number| number % COUNT as u64 == index);
        if is_cold { Place::Cold } else { Place::Hot }
    }

    fn pages(&self) -> (u64, u64) {
        let cold: u64 = (self.oldest..self.oldest + FEWEST)
            .map(|number| self.queues[(number % COUNT as u64) as usize].pages())
            .sum();
        (self.total() - cold, cold)
    }

    fn queues(&self) -> Vec<&Queue> {
        self.queues.iter().collect()
    }

    fn belongs(&self, tag: u8, queue: usize) -> bool {
        usize::from(tag & GENERATION) == queue
    }
}
