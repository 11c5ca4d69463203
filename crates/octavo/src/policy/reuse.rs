//! Reuse: the pages that are used again soonest stay. Shadows and the age of generations measure how soon.
//!
//! ```text
//!        fresh             back, and not         back, and there is room, or
//!          │               soon enough           there is when it has passed
//!          ▼                    ▼                             ▼
//!   young ┌──────────────────────────┐ old           ┌──────┬──────┬─   ─┬──────┐
//!   ────► │ cold: a sixteenth        │ ── used ────► │ hot: by when each was      │
//!         │ gone through twice       │    again      │ last looked at             │
//!         └──────────────────────────┘ ◄──────────── └──────┴──────┴─   ─┴──────┘
//!                    │                  unused for longer than a challenger was away
//!                    ▼ evicted
//! ```
//!
//! The policy counts time in evictions. The shadow of a returning page says for how many evictions the page
//! was away. Before that, the page was in memory for about as many evictions as the cold queue has pages. The
//! sum of both is the page's *reuse distance*.
//!
//! A returning page should be hot if, and only if, some hot page has been unused for longer than this
//! distance. So the returning page *challenges* the oldest hot pages, if the policy last looked at them
//! longer ago than this distance. Each challenge pays for a few looks at hot pages. If a look finds a hot
//! page marked, the page is young again. If it finds the page unmarked, the page makes room. A page that was
//! marked at the look before gets a second look first. The room is for the challenger, which waits in the
//! cold queue, or for another page that returns as soon.
//!
//! - The pages of a **scan** do not return, so they challenge nobody: they pass through the cold queue.
//! - In a **loop** larger than memory, all distances are the same, so no challenge succeeds. The hot part of
//!   the loop is hit in each round. No policy can have more hits, except for the cold queue's share.
//! - When the **hot set moves**, most looks find the page unused. Challenges then pay for more looks, and no
//!   page gets a second look. Such a move costs two faults for each page, while an LRU needs only one. This
//!   is the price of resisting scans.
//!
//! The policy approximates LIRS (Jiang, Zhang, SIGMETRICS 2002) with marks. It is CLOCK-Pro (Jiang, Chen,
//! Zhang, USENIX 2005) with two differences. First, the ghosts are shadows, as in Linux's `workingset.c`, so
//! the test period of a page is a comparison of numbers, and needs no clock hand. Second, hot pages are kept
//! in generations. Each generation knows when it was closed, so the policy knows for how long an unmarked
//! page has been unused.
//!
//! **Pages that come along.** A page that comes back with others, for instance as the next of a run, costs a
//! fraction of a fault. A program that goes through its memory in order is fast, so its pages have short
//! distances, and could keep out a page that costs its thread a whole fault each time. So distances are
//! weighted by what a return costs, as in GreedyDual (Young, Algorithmica 1994). A page that came by its own
//! fault beats a page that came along, unless the distance of the latter is [`ALONG_COST`] times shorter. Its
//! challenge then *weighs* for a number of evictions that equals its own distance. Meanwhile, looks turn
//! pages that came along cold, even if these pages were used, and no such page becomes hot.
//!
//! Pages pass through the cold queue twice, because the fault itself leaves a mark: only a mark found the
//! second time shows that a page was used again. A page without any mark was read ahead: not even its fault
//! has left a mark. Such a page gets a few more rounds, and the cold queue is longer as long as there are
//! such pages.

use super::{Arrival, Links, Place, Policy, Queue, Shadow, Verdict};

/// The cold queue's share of memory is a sixteenth. If the cold queue were smaller, no page would be used
/// again while it is there. If it were larger, loops would have fewer hits.
const COLD_SHARE: u64 = 16;
/// The most generations of hot pages.
const GENERATIONS: usize = 8;
/// The youngest generation is closed when it holds more than a quarter of the hot pages.
const GENERATION_SHARE: u64 = 4;
/// The looks at hot pages that a challenge pays for.
const LOOKS: u64 = 32;
/// The looks that a challenge pays for while the hot set is stale.
const LOOKS_IF_STALE: u64 = 64;
/// The most looks that can be outstanding.
const MOST_LOOKS: u64 = 1024;
/// The hot set is stale if more than this many of `UNUSED_SCALE` looks found a page unused.
const STALE: u32 = 600;
const UNUSED_SCALE: u32 = 1024;
/// With each look, the findings of earlier looks lose one part in this many of their weight.
const UNUSED_MEMORY: u32 = 32;
/// A page that comes along costs an eighth of a fault.
const ALONG_COST: u64 = 8;
/// The weight of the latest page in the average distance of pages that come along is one in this many.
const ALONG_MEMORY: u64 = 64;
/// At most one page in this many may wait for its first use, beyond the cold queue's share.
const WAITING_SHARE: u64 = 2;
/// The number of evictions after which the policy expects one waiting page fewer.
const WAITING_MEMORY: u64 = 16;

/// The bits of a hot page's tag that hold its generation.
const GENERATION: u8 = GENERATIONS as u8 - 1;
/// The page is hot.
const HOT: u8 = 8;
/// The page is hot, and the last look found it used.
const USED: u8 = 16;
/// The page is cold, and its first mark has been cleared.
const SEEN: u8 = 16;
/// The page is hot, and came along at its last return.
const HOT_ALONG: u8 = 32;
/// The page is cold, and came along at its last return.
const COLD_ALONG: u8 = 4;
/// The page is cold, and has challenged.
const CHALLENGER: u8 = 32;
/// The page is cold and not used yet: the bits count its looks.
const WAITED: u8 = 3;

/// The default: keeps the pages with the shortest time from one use to the next. It resists scans, and keeps
/// part of a loop that is larger than memory.
#[derive(Debug, Default)]
pub struct Reuse {
    cold: Queue,
    hot: [Queue; GENERATIONS],
    /// The time when each generation was closed. Its pages had their last look before then.
    closed_at: [u64; GENERATIONS],
    /// The numbers of the oldest and the youngest generation. Numbers only grow.
    oldest: u64,
    youngest: u64,
    hot_pages: u64,
    evictions: u64,
    /// The looks at hot pages that challenges have paid for, and the distance of the last challenge.
    looks: u64,
    challenge: u64,
    /// The share of looks that find hot pages unused, in `UNUSED_SCALE`ths. The latest looks count most.
    unused: u32,
    /// The pages by which the cold queue is longer than its share, so that pages that were read ahead stay
    /// until they are used.
    waiting: u64,
    /// The average distance of pages that come along. The latest ones count most.
    along: u64,
    /// A challenge weighs until this time.
    weighs_until: u64,
}

/// Returns whether the page with this tag came along at its last return.
fn came_along(tag: u8) -> bool {
    tag & if tag & HOT != 0 { HOT_ALONG } else { COLD_ALONG } != 0
}

/// Adds COLD_ALONG to a cold page's tag, if the page came along.
fn cold_tag(tag: u8, along: bool) -> u8 {
    if along { tag | COLD_ALONG } else { tag }
}

fn index(number: u64) -> usize {
    (number % GENERATIONS as u64) as usize
}

impl Reuse {
    fn cold_target(&self) -> u64 {
        (self.cold.pages() + self.hot_pages) / COLD_SHARE + self.waiting
    }

    fn has_room(&self) -> bool {
        self.cold.pages() > self.cold_target()
    }

    fn is_stale(&self) -> bool {
        self.unused > STALE
    }

    fn push_cold(&mut self, links: &dyn Links, frame: u32, tag: u8) -> Place {
        self.cold.push(links, frame, tag);
        Place::Cold
    }

    fn push_hot(&mut self, links: &dyn Links, frame: u32, tag: u8, along: bool) -> Place {
        let is_full = self.hot[index(self.youngest)].pages() * GENERATION_SHARE > self.hot_pages;
        if is_full && self.youngest - self.oldest + 1 < GENERATIONS as u64 {
            self.closed_at[index(self.youngest)] = self.evictions;
            self.youngest += 1;
        }
        let youngest = index(self.youngest);
        let tag = if along { tag | HOT_ALONG } else { tag };
        self.hot[youngest].push(links, frame, HOT | youngest as u8 | tag);
        self.hot_pages += links.pages(frame);
        Place::Hot
    }

    fn take_oldest(&mut self, links: &dyn Links) -> Option<(u32, u8)> {
        self.skip_empty();
        let taken = self.hot[index(self.oldest)].pop(links)?;
        self.hot_pages -= links.pages(taken.0);
        Some(taken)
    }

    fn skip_empty(&mut self) {
        while self.oldest < self.youngest && self.hot[index(self.oldest)].oldest().is_none() {
            self.oldest += 1;
        }
    }

    /// Returns whether the last look at the oldest hot pages was longer ago than `distance`.
    fn is_beaten_by(&mut self, distance: u64) -> bool {
        self.skip_empty();
        // The youngest generation is not closed: a page in it may have had a look just now.
        self.oldest < self.youngest && self.evictions - self.closed_at[index(self.oldest)] > distance
    }

    /// Asks for room among the hot pages, for a page with this reuse distance.
    fn challenge(&mut self, distance: u64) {
        if self.is_beaten_by(distance) {
            let looks = if self.is_stale() { LOOKS_IF_STALE } else { LOOKS };
            self.looks = (self.looks + looks).min(MOST_LOOKS);
            self.challenge = distance;
        }
    }

    /// Returns whether a challenge takes precedence over pages that come along.
    fn weighs(&self) -> bool {
        self.evictions < self.weighs_until
    }

    fn judge_hot(&mut self, links: &dyn Links, frame: u32, tag: u8, accessed: bool) -> Place {
        let along = came_along(tag);
        self.unused -= self.unused / UNUSED_MEMORY;
        if accessed && !(along && self.weighs()) {
            return self.push_hot(links, frame, USED, along);
        }
        if !accessed {
            self.unused += UNUSED_SCALE / UNUSED_MEMORY;
            if tag & USED != 0 && !self.is_stale() {
                return self.push_hot(links, frame, 0, along);
            }
        }
        self.push_cold(links, frame, cold_tag(SEEN, along))
    }
}

impl Policy for Reuse {
    fn admit(&mut self, arrival: Arrival) -> u8 {
        let Some(shadow) = arrival.shadow() else { return 0 };
        let (distance, along) =
            (shadow.distance(self.evictions) + self.cold.pages(), matches!(arrival, Arrival::Along(_)));
        if along {
            self.along = self.along - self.along / ALONG_MEMORY + distance / ALONG_MEMORY;
            if self.weighs() {
                return COLD_ALONG;
            }
        }
        // While there are fewer hot pages than there can be, every page that returns is hot. Otherwise, the
        // room was made for pages whose distance is no longer than the challenger's.
        let is_filling = self.cold.pages() > 2 * self.cold_target();
        if is_filling || self.has_room() && distance <= self.challenge {
            return if along { HOT | HOT_ALONG } else { HOT };
        }
        if !self.is_beaten_by(distance) {
            return cold_tag(0, along);
        }
        self.challenge(distance);
        if !along && distance < ALONG_COST * self.along {
            self.weighs_until = self.weighs_until.max(self.evictions + distance);
        }
        cold_tag(CHALLENGER, along)
    }

    fn insert(&mut self, links: &dyn Links, frame: u32, tag: u8) {
        match self.place(tag) {
            Place::Hot => self.push_hot(links, frame, 0, came_along(tag)),
            Place::Cold => self.push_cold(links, frame, tag),
        };
    }

    fn take_hot(&mut self, links: &dyn Links) -> Option<(u32, u8)> {
        self.take_oldest(links)
    }

    fn take_next(&mut self, links: &dyn Links) -> Option<(u32, u8)> {
        if self.looks > 0 {
            self.looks -= 1;
            if self.is_beaten_by(self.challenge) {
                return self.take_oldest(links);
            }
            self.looks = 0;
        }
        if self.cold.pages() <= self.cold_target() / 2
            && let Some(taken) = self.take_oldest(links)
        {
            return Some(taken);
        }
        self.cold.pop(links)
    }

    fn judge(&mut self, links: &dyn Links, frame: u32, tag: u8, accessed: bool) -> Verdict {
        if tag & HOT != 0 {
            return Verdict::Keep(self.judge_hot(links, frame, tag, accessed));
        }
        let (is_used_again, along) = (accessed && tag & SEEN != 0, came_along(tag));
        let may_challenge = !(along && self.weighs());
        if may_challenge && (is_used_again || tag & CHALLENGER != 0) && self.has_room() {
            return Verdict::Keep(self.push_hot(links, frame, 0, along));
        }
        if is_used_again && may_challenge {
            self.challenge(self.cold.pages());
            return Verdict::Keep(self.push_cold(links, frame, cold_tag(SEEN | CHALLENGER, along)));
        }
        if accessed {
            return Verdict::Keep(self.push_cold(links, frame, tag | SEEN));
        }
        let pages = links.pages(frame);
        if tag & (SEEN | CHALLENGER) == 0 && tag & WAITED < WAITED {
            // Not even a fault has used the page: it was read ahead, and its use is still to come.
            let most = (self.cold.pages() + self.hot_pages) / WAITING_SHARE;
            self.waiting = (self.waiting + 2 * pages).min(most);
            return Verdict::Keep(self.push_cold(links, frame, tag + 1));
        }
        let passed = self.evictions % WAITING_MEMORY + pages;
        self.waiting = self.waiting.saturating_sub(passed / WAITING_MEMORY);
        self.evictions += pages;
        Verdict::Evict(Shadow::at(self.evictions))
    }

    fn putback(&mut self, links: &dyn Links, frame: u32, tag: u8, to: Place) {
        match to {
            Place::Hot => self.push_hot(links, frame, 0, came_along(tag)),
            // The page was hot before, so it does not count as a newcomer.
            Place::Cold if tag & HOT != 0 => self.push_cold(links, frame, cold_tag(SEEN, came_along(tag))),
            Place::Cold => self.push_cold(links, frame, tag & (CHALLENGER | COLD_ALONG) | SEEN),
        };
    }

    fn remove(&mut self, links: &dyn Links, frame: u32) -> u8 {
        let tag = links.tag(frame);
        if tag & HOT == 0 {
            return self.cold.unlink(links, frame);
        }
        self.hot_pages -= links.pages(frame);
        self.hot[usize::from(tag & GENERATION)].unlink(links, frame)
    }

    fn place(&self, tag: u8) -> Place {
        if tag & HOT != 0 { Place::Hot } else { Place::Cold }
    }

    fn pages(&self) -> (u64, u64) {
        (self.hot_pages, self.cold.pages())
    }

    fn queues(&self) -> Vec<&Queue> {
        std::iter::once(&self.cold).chain(&self.hot).collect()
    }

    fn belongs(&self, tag: u8, queue: usize) -> bool {
        match self.place(tag) {
            Place::Cold => queue == 0,
            Place::Hot => queue == usize::from(tag & GENERATION) + 1,
        }
    }
}
