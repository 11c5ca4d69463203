//! Which page goes next: reclaim policies, apart from everything that makes them concurrent.
//!
//! A policy keeps frames on queues of its own. It never hears of a hit: an access leaves a *mark*, and whoever asks the
//! policy for candidates tests and clears their marks. What it learns of a page that is gone is a *shadow*, kept where
//! the page went, which it gets back when the page returns; so it remembers no page that is not in memory.
//!
//! ```text
//!   admit(Fresh | Back(shadow))
//!      └────────► insert ──────► on a queue ──take_next──► in the caller's hands
//!                                  ▲  │                       │ judge(accessed?)
//!                      put_back ───┘  └─ remove ──►           ├── Keep: on a queue again
//!                                                             └── Evict(shadow): the caller's
//! ```
//!
//! | file | policy | which page goes |
//! |---|---|---|
//! | `simple` | [`Fifo`] | the oldest |
//! | `simple` | [`Clock`] | the oldest that is not marked; a marked one goes round again |
//! | `sieve` | [`Sieve`] | as clock, but survivors keep their place and newcomers do not come behind the hand |
//! | `s3_fifo` | [`S3Fifo`] | from a small queue of newcomers, unless used there or remembered; else from the main clock |
//! | `generations` | [`Generations`] | from the oldest generation; returning pages join the youngest |
//! | `reuse` | [`Reuse`] | newcomers, unless they return sooner than something long kept was used: the default |
//!
//! The same code runs in the engine, under the LRU's lock, and on recorded traces: it reaches frames through [`Links`].

mod generations;
mod queue;
mod reuse;
mod s3_fifo;
mod sieve;
mod simple;

pub use generations::Generations;
pub use queue::{Links, NIL, Queue};
pub use reuse::Reuse;
pub use s3_fifo::S3Fifo;
pub use sieve::Sieve;
pub use simple::{Clock, Fifo};

/// What a policy notes of a page as it is evicted: when, in evictions. Never 0, and below 2^24.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shadow(u32);

impl Shadow {
    /// Bits of a shadow.
    pub const BITS: u32 = 24;
    /// Evictions that it does not tell apart: so that it takes a tebibyte of evictions until one passes for younger.
    const UNIT: u64 = 16;
    const WRAP: u64 = (1 << Self::BITS) - 1;

    /// The shadow of a page that goes as the `evictions`-th.
    pub fn at(evictions: u64) -> Self {
        Self((evictions / Self::UNIT % Self::WRAP) as u32 + 1)
    }

    /// Pages evicted since, where `now` have been.
    pub fn distance(self, now: u64) -> u64 {
        let (then, now) = (u64::from(self.0 - 1), now / Self::UNIT % Self::WRAP);
        (now + Self::WRAP - then) % Self::WRAP * Self::UNIT
    }

    /// The bits to be kept.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// From kept bits; `None` where they are no shadow's.
    pub fn from_bits(bits: u32) -> Option<Self> {
        (bits != 0 && u64::from(bits) <= Self::WRAP).then_some(Self(bits))
    }
}

/// How a page comes to be in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// For the first time, or nothing is known of it.
    Fresh,
    /// Again, after it was evicted.
    Back(Shadow),
}

/// Where a page was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Among those that are tried first.
    Cold,
    /// Among those that are to stay.
    Hot,
}

/// What becomes of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It stays, and is on a queue again.
    Keep(Place),
    /// It is to go; it is on no queue.
    Evict(Shadow),
}

/// A reclaim policy. Frames are on its queues from `insert` (or `put_back`, or a `judge` that keeps them) to a `take_..`
/// or `remove`. The `tag` given out with a frame is what the policy knows of it, to be given back with it.
pub trait Policy: std::fmt::Debug + Send {
    /// Where a page belongs that is about to be in memory: the tag to insert it with. 0 if it is fresh.
    fn admit(&mut self, arrival: Arrival) -> u8;

    /// An admitted page is in memory. Its first use leaves a mark that says nothing.
    fn insert(&mut self, links: &dyn Links, frame: u32, tag: u8);

    /// Admits and inserts.
    fn arrive(&mut self, links: &dyn Links, frame: u32, arrival: Arrival) {
        let tag = self.admit(arrival);
        self.insert(links, frame, tag);
    }

    /// Takes one of those that are to stay, if there are such: for when the others cannot go.
    fn take_hot(&mut self, _: &dyn Links) -> Option<(u32, u8)> {
        None
    }

    /// Takes the next candidate, and its tag. `None`: no frame is on any queue.
    fn take_next(&mut self, links: &dyn Links) -> Option<(u32, u8)>;

    /// Decides about a candidate that was taken, and was or was not `accessed` since its mark was last cleared.
    fn judge(&mut self, links: &dyn Links, frame: u32, tag: u8, accessed: bool) -> Verdict;

    /// Puts a frame back that was taken or removed, and could not go just now. Tag 0, if it was lost.
    fn put_back(&mut self, links: &dyn Links, frame: u32, tag: u8, to: Place);

    /// Takes a frame off its queue, wherever it is.
    fn remove(&mut self, links: &dyn Links, frame: u32) -> u8;

    /// Where a page with this tag is, was, or is to go.
    fn place(&self, tag: u8) -> Place;

    /// Base pages among those to stay, and among those tried first.
    fn pages(&self) -> (u64, u64);

    /// Every queue, for checks.
    fn queues(&self) -> Vec<&Queue>;

    /// Whether a frame with this tag belongs on the queue of this index in [`Policy::queues`].
    fn belongs(&self, tag: u8, queue: usize) -> bool;
}

/// Walks every queue: links agree both ways, tags agree with the queue, pages add up. Answers how many frames there are.
///
/// # Panics
/// When they do not.
pub fn validate(policy: &dyn Policy, links: &dyn Links) -> u64 {
    let mut frames = 0;
    for (index, queue) in policy.queues().into_iter().enumerate() {
        frames += queue.validate(links, |tag| policy.belongs(tag, index));
    }
    frames
}

#[cfg(all(test, not(loom)))]
mod tests;
