//! Returns: the pages that came back soonest stay. For pages whose use nobody sees except by their faults.
//!
//! ```text
//!   fresh, or back late ──► newcomers: a sixteenth ──► evicted
//!   back soon ────────────► main: a clock ───────────► evicted, which asks: is it in use?
//!                             ▲         │
//!                             └── a round for each halving of the time that it was away
//! ```
//!
//! A page at the other side of a translation may have no mark that tells of its use. To other policies it
//! looks unused, however hot it is. What tells is its eviction: a page in use returns, and its shadow says
//! after how many evictions. So each return is one measurement, and to evict a page from the main queue is to
//! ask a *question*, which costs a fault if the page is in use.
//!
//! - **Who joins the main queue**: the soonest of the returning pages, those within a *window* of evictions.
//!   The clock gives a page more rounds the sooner it came back, up to three. So what is always in use is
//!   asked about least.
//! - **How many questions**: the window follows the main queue's own evictions, which are to be a certain
//!   share of all. Where most pages that were asked about return, the share is small: the queue holds what is
//!   in use, and questions are a waste. In a loop, most of the queue then stays and is hit. Where few return,
//!   the queue is stale, and its share of evictions grows to all.
//!
//! Whether a returning page was asked about follows from the time of its eviction. Questions come in bursts,
//! and a ring of slots remembers how many evictions of each slot of time were questions.
//!
//! The queues are those of S3-FIFO, and a mark counts as there, for pages that have marks. To learn of use by
//! unmapping pages is what Linux's NUMA balancing does with its hinting faults.

use super::two_queues::{self, MAIN, TwoQueues};
use super::{Arrival, Links, Place, Policy, Queue, Shadow, Verdict};

/// Newcomers' share of memory is one in so many.
const SMALL_SHARE: u64 = 16;
/// The window is set anew after so many evictions. It grows or shrinks by one part in `STEP`.
const TURN: u64 = 1024;
const STEP: u64 = 4;
/// The window at first, and at least.
const FIRST_WINDOW: u64 = 4096;
const LEAST_WINDOW: u64 = 64;
/// The longest window: so many times memory. What is away for longer is as good as new.
const LONGEST_SHARE: u64 = 16;
/// A burst of questions is one page in so many of memory, and at least so many pages.
const BURST_SHARE: u64 = 256;
const LEAST_BURST: u64 = 16;
const MOST_ROUNDS: u32 = 3;

/// Keeps the pages that came back soonest after an eviction. For pages whose use nobody sees except by their
/// faults.
#[derive(Debug)]
pub struct Returns {
    /// A page's count on the main queue is the rounds that it has left.
    both: TwoQueues,
    evictions: u64,
    /// Pages that return after no more evictions than that join the main queue.
    window: u64,
    /// When this turn began, and how many pages the main queue has evicted in it.
    turn_began: u64,
    asked: u64,
    /// A burst of questions is under way.
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

    /// Returns the rounds of a page that was away for so long.
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

/// When the main queue has evicted pages, and how many of them have returned.
#[derive(Debug)]
struct Questions {
    /// Evictions from the main queue in each slot of time.
    slots: Box<[u64; Self::SLOTS]>,
    /// Evictions in a slot, and the number of the last slot.
    width: u64,
    last: u64,
    /// Questions of late, and how many were answered by a return, in `SCALE`ths. The older they are, the less
    /// they count.
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
    /// A slot is at least as wide as shadows tell apart.
    const LEAST_WIDTH: u64 = Shadow::UNIT;
    const SCALE: u64 = 1024;
    /// The ring remembers as many evictions as memory has pages, so many times.
    const REMEMBERED: u64 = 4;
    /// Questions before their answers say anything.
    const FEW: u64 = 64 * Self::SCALE;
    /// The share of questions among evictions is at least that, in `SCALE`ths.
    const LEAST_SHARE: u64 = Self::SCALE / 12;

    fn slot(number: u64) -> usize {
        (number % Self::SLOTS as u64) as usize
    }

    /// Pages of the main queue have gone.
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

    /// A page has returned that went `then`.
    fn note_return(&mut self, then: u64) {
        let slot = then / self.width;
        if slot <= self.last && slot + Self::SLOTS as u64 > self.last {
            // One page in so many of those that went then was asked about.
            self.returned += (self.slots[Self::slot(slot)] * Self::SCALE / self.width).min(Self::SCALE);
        }
    }

    /// After so many evictions, with so many pages in memory: forgets a part of what was learned.
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

    /// Returns the share that questions are to have of all evictions, in `SCALE`ths: the more, the fewer of
    /// them return.
    fn share(&self) -> u64 {
        let returned = match self.asked {
            ..Self::FEW => Self::SCALE / 2,
            asked => (self.returned * Self::SCALE / asked).min(Self::SCALE),
        };
        (Self::SCALE - returned).max(Self::LEAST_SHARE)
    }
}
