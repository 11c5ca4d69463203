//! Returns: the pages that came back soonest stay. For pages whose use shows only in their faults.
//!
//! ```text
//!   fresh, or back late ──► newcomers: a sixteenth ──► evicted
//!   back soon ────────────► main: a clock ───────────► evicted, which asks: is it in use?
//!                             ▲         │
//!                             └── a round for each halving of the time that it was away
//! ```
//!
//! A page on the other side of a translation may have no mark that shows its use. To other policies it looks
//! unused, however hot it is. Only an eviction shows whether the page is used: a page in use returns, and its
//! shadow says after how many evictions. So each return is a measurement, and each eviction from the main
//! queue is a *question*, which costs a fault if the page is in use.
//!
//! - **Which pages join the main queue**: those that return within a *window* of evictions. The sooner a page
//!   came back, the more rounds the clock gives it, up to three. So pages that are always in use are asked
//!   about least.
//! - **The number of questions**: the window is adjusted so that the main queue's evictions are a certain
//!   share of all. If most pages that were asked about return, the share is small: the queue holds pages in
//!   use, and questions are wasted. In a loop, most of the queue then stays and is hit. If few return, the
//!   queue is stale, and its share grows to all evictions.
//!
//! The policy does not know whether the eviction of a returning page was a question. But the time of the
//! eviction shows how likely this is: questions come in bursts, and a ring records, for each slot of time,
//! how many evictions were questions.
//!
//! The queues are the queues of S3-FIFO. Pages that have marks are treated as in S3-FIFO's small queue, and a
//! marked page on the clock keeps its rounds. Linux's NUMA balancing uses the same idea: it unmaps pages, and
//! learns of their use by hinting faults.

use super::two_queues::{self, MAIN, TwoQueues};
use super::{Arrival, Links, Place, Policy, Queue, Shadow, Verdict};

/// The newcomers' share of memory is a sixteenth.
const SMALL_SHARE: u64 = 16;
/// The window is adjusted after this many evictions. It grows or shrinks by one part in `STEP`.
const TURN: u64 = 1024;
const STEP: u64 = 4;
/// The first window, and the shortest.
const FIRST_WINDOW: u64 = 4096;
const LEAST_WINDOW: u64 = 64;
/// The longest window, in sizes of memory. A page that was away for longer counts as new.
const LONGEST_SHARE: u64 = 16;
/// The length of a burst of questions: one page in `BURST_SHARE` of memory, but at least `LEAST_BURST` pages.
const BURST_SHARE: u64 = 256;
const LEAST_BURST: u64 = 16;
const MOST_ROUNDS: u32 = 3;

/// Keeps the pages that came back soonest after an eviction. For pages whose use shows only in their faults.
#[derive(Debug)]
pub struct Returns {
    /// A page's count on the main queue is the number of rounds that it has left.
    both: TwoQueues,
    evictions: u64,
    /// Pages that return after at most this many evictions join the main queue.
    window: u64,
    /// When this turn began, and how many pages the main queue has evicted in it.
    turn_began: u64,
    asked: u64,
    /// Whether a burst of questions is under way.
    asks: bool,
    questions: Questions,
}

impl Default for Returns {
    fn default() -> Self {
        Self {
            both: TwoQueues::default(),
            evictions: 0,
            window: FIRST_WINDOW,
            turn_began: 0,
            asked: 0,
            asks: false,
            questions: Questions::default(),
        }
    }
}

impl Returns {
    fn evict(&mut self, links: &dyn Links, frame: u32, from_main: bool) -> Verdict {
        let pages = links.pages(frame);
        self.evictions += pages;
        if from_main {
            self.asked += pages;
            self.questions.note(self.evictions, pages);
        }
        if self.evictions - self.turn_began >= TURN {
            self.set_window();
        }
        Verdict::Evict(Shadow::at(self.evictions))
    }

    fn set_window(&mut self) {
        let passed = self.evictions - self.turn_began;
        self.questions.forget(passed, self.both.total());
        let step = self.window / STEP;
        let is_too_long = self.asked * Questions::SCALE > passed * self.questions.share();
        let window = if is_too_long { self.window - step } else { self.window + step };
        self.window = window.min(self.both.total() * LONGEST_SHARE).max(LEAST_WINDOW);
        (self.turn_began, self.asked) = (self.evictions, 0);
    }

    /// Returns the rounds of a page that was away for `distance` evictions.
    fn rounds(&self, distance: u64) -> u8 {
        (self.window / distance.max(1)).checked_ilog2().unwrap_or(0).min(MOST_ROUNDS) as u8
    }
}

impl Policy for Returns {
    fn admit(&mut self, arrival: Arrival) -> u8 {
        let Some(shadow) = arrival.shadow() else { return 0 };
        let distance = shadow.distance(self.evictions);
        self.questions.note_return(self.evictions.saturating_sub(distance));
        if distance <= self.window { two_queues::main_tag(self.rounds(distance)) } else { 0 }
    }

    fn insert(&mut self, links: &dyn Links, frame: u32, tag: u8) {
        self.both.insert(links, frame, tag);
    }

    fn take_hot(&mut self, links: &dyn Links) -> Option<(u32, u8)> {
        self.both.main.pop(links)
    }

    fn take_next(&mut self, links: &dyn Links) -> Option<(u32, u8)> {
        let total = self.both.total();
        let burst = if self.asks { (total / BURST_SHARE).max(LEAST_BURST) } else { 0 };
        let TwoQueues { small, main } = &mut self.both;
        self.asks = small.pages() < total / SMALL_SHARE + burst;
        let (first, then) = if self.asks { (main, small) } else { (small, main) };
        first.pop(links).or_else(|| then.pop(links))
    }

    fn judge(&mut self, links: &dyn Links, frame: u32, tag: u8, accessed: bool) -> Verdict {
        let is_main = tag & MAIN != 0;
        let kept = if is_main {
            match (accessed, two_queues::count(tag)) {
                (true, rounds) => Some(rounds),
                (false, rounds) => rounds.checked_sub(1),
            }
            .map(|rounds| self.both.push_main(links, frame, rounds))
        } else {
            self.both.judge_newcomer(links, frame, tag, accessed)
        };
        kept.map_or_else(|| self.evict(links, frame, is_main), Verdict::Keep)
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

/// Records when the main queue evicted pages, and how many of these have returned.
#[derive(Debug)]
struct Questions {
    /// Evictions from the main queue in each slot of time.
    slots: Box<[u64; Self::SLOTS]>,
    /// The length of a slot, in evictions, and the number of the last slot.
    width: u64,
    last: u64,
    /// Recent questions, and how many of their pages returned, in `SCALE`ths. Older ones count less.
    asked: u64,
    returned: u64,
}

impl Default for Questions {
    fn default() -> Self {
        Self { slots: Box::new([0; Self::SLOTS]), width: Self::LEAST_WIDTH, last: 0, asked: 0, returned: 0 }
    }
}

impl Questions {
    const SLOTS: usize = 1024;
    /// A slot is no shorter than the time that shadows can tell apart.
    const LEAST_WIDTH: u64 = Shadow::UNIT;
    const SCALE: u64 = 1024;
    /// The ring covers this many times as many evictions as memory has pages.
    const REMEMBERED: u64 = 4;
    /// The fewest questions whose answers are used.
    const FEW: u64 = 64 * Self::SCALE;
    /// The least share of questions among evictions, in `SCALE`ths.
    const LEAST_SHARE: u64 = Self::SCALE / 12;

    fn slot(number: u64) -> usize {
        (number % Self::SLOTS as u64) as usize
    }

    /// Notes that the main queue has evicted `pages` pages.
    fn note(&mut self, now: u64, pages: u64) {
        let slot = now / self.width;
        self.last = self.last.max(slot.saturating_sub(Self::SLOTS as u64));
        while self.last < slot {
            self.last += 1;
            self.slots[Self::slot(self.last)] = 0;
        }
        self.slots[Self::slot(slot)] += pages;
        self.asked += pages * Self::SCALE;
    }

    /// Notes the return of a page that was evicted at the time `then`.
    fn note_return(&mut self, then: u64) {
        let slot = then / self.width;
        if slot <= self.last && slot + Self::SLOTS as u64 > self.last {
            // Add the probability that this page was asked about.
            self.returned += (self.slots[Self::slot(slot)] * Self::SCALE / self.width).min(Self::SCALE);
        }
    }

    /// Forgets a part of what was learned, after `passed` evictions, with `total` pages in memory.
    fn forget(&mut self, passed: u64, total: u64) {
        let width =
            (total * Self::REMEMBERED / Self::SLOTS as u64).next_power_of_two().max(Self::LEAST_WIDTH);
        if width > self.width || width < self.width / 2 {
            self.slots.fill(0);
            (self.width, self.last) = (width, 0);
        }
        let part = (2 * total).max(4 * passed);
        self.asked -= self.asked * passed / part;
        self.returned -= self.returned * passed / part;
    }

    /// Returns the share of all evictions that should be questions, in `SCALE`ths. The fewer of their pages
    /// return, the larger it is.
    fn share(&self) -> u64 {
        let returned = match self.asked {
            ..Self::FEW => Self::SCALE / 2,
            asked => (self.returned * Self::SCALE / asked).min(Self::SCALE),
        };
        (Self::SCALE - returned).max(Self::LEAST_SHARE)
    }
}
