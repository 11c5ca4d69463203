//! Eviction policies. Use them directly to try them on recorded accesses, outside of a manager. A manager
//! takes one of them by name ([`ReclaimPolicy`](crate::ReclaimPolicy)), and cannot run your own.
//!
//! A policy keeps frames on its own queues. Hits are not reported to it: an access leaves a *mark*, and the
//! caller that takes candidates tests and clears their marks. When a page goes, the policy returns a
//! *shadow*, which is kept where the page went. The policy gets the shadow back when the page returns. So a
//! policy stores nothing about pages that are not in memory.
//!
//! ```text
//!   admit(Fresh | Back(shadow))
//!      └────────► insert ──────► on a queue ──take_next──► with the caller
//!                                  ▲  │                       │ judge(accessed?)
//!                      putback ───┘  └─ remove ──►           ├── Keep: on a queue again
//!                                                             └── Evict(shadow): the caller's
//! ```
//!
//! | file | policy | page that goes |
//! |---|---|---|
//! | `simple` | [`Fifo`] | the oldest |
//! | `simple` | [`Clock`] | the oldest without a mark; a marked page gets another round |
//! | `sieve` | [`Sieve`] | like a clock, but survivors keep their place, and newcomers join far from the hand |
//! | `s3_fifo` | [`S3Fifo`] | a newcomer neither used nor remembered, or else one from the main clock |
//! | `generations` | [`Generations`] | one of the oldest generation; returning pages join the youngest |
//! | `reuse` | [`Reuse`] | a newcomer, unless it returns sooner than old pages are used: the default |
//! | `returns` | [`Returns`] | a newcomer, unless it returns among the soonest: for pages without marks |
//!
//! The engine runs this code under the LRU's lock, and the benchmarks run it on recorded traces. The code
//! reaches frames through [`Links`].

mod generations;
mod queue;
mod returns;
mod reuse;
mod s3_fifo;
mod sieve;
mod simple;
mod two_queues;

pub use generations::Generations;
pub use queue::{Links, NIL, Queue};
pub use returns::Returns;
pub use reuse::Reuse;
pub use s3_fifo::S3Fifo;
pub use sieve::Sieve;
pub use simple::{Clock, Fifo};

/// The time at which a page was evicted, counted in evictions. A [`Policy`] remembers it for a page that is
/// out. It is never 0, and below 2^24.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shadow(u32);

impl Shadow {
    /// Width of a shadow in bits.
    pub const BITS: u32 = 24;
    /// The number of evictions that share one shadow. An old shadow looks like a young one only after a
    /// tebibyte of evictions.
    pub(crate) const UNIT: u64 = 16;
    const WRAP: u64 = (1 << Self::BITS) - 1;

    /// Makes the shadow of the `evictions`-th page to be evicted.
    pub fn at(evictions: u64) -> Self {
        Self((evictions / Self::UNIT % Self::WRAP) as u32 + 1)
    }

    /// Returns the number of pages evicted since this shadow's time. `now` is the number evicted in all.
    pub fn distance(self, now: u64) -> u64 {
        self.until(Self::at(now))
    }

    /// Returns the number of pages evicted between this shadow's time and a later shadow's.
    pub fn until(self, later: Self) -> u64 {
        (u64::from(later.0) + Self::WRAP - u64::from(self.0)) % Self::WRAP * Self::UNIT
    }

    /// Returns the bits to keep.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Makes a shadow from kept bits. Returns `None` if the bits are not a shadow's.
    pub fn from_bits(bits: u32) -> Option<Self> {
        (bits != 0 && u64::from(bits) <= Self::WRAP).then_some(Self(bits))
    }
}

/// Tells a [`Policy`] whether a page comes for the first time or returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The page comes for the first time, or nothing is known of it.
    Fresh,
    /// The page returns after it was evicted.
    Back(Shadow),
    /// The page returns along with a page that is needed, for instance as the next of a run. Bringing it back
    /// again costs little.
    Along(Shadow),
}

impl Arrival {
    /// Makes the arrival of a page that left this shadow, if it left one.
    pub(crate) fn of(shadow: Option<Shadow>, along: bool) -> Self {
        match shadow {
            None => Self::Fresh,
            Some(shadow) if along => Self::Along(shadow),
            Some(shadow) => Self::Back(shadow),
        }
    }

    /// Returns the shadow that the page left.
    pub fn shadow(self) -> Option<Shadow> {
        match self {
            Self::Fresh => None,
            Self::Back(shadow) | Self::Along(shadow) => Some(shadow),
        }
    }
}

/// Whether a [`Policy`] intends to keep a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Pages that the policy tries to evict first.
    Cold,
    /// Pages that the policy intends to keep.
    Hot,
}

/// The answer of [`Policy::judge`]: the page stays, or goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The frame stays, and is on a queue again.
    Keep(Place),
    /// The page must be evicted, and its frame is on no queue.
    Evict(Shadow),
}

/// Chooses which page leaves memory next. Most programs need only [`ReclaimPolicy`](crate::ReclaimPolicy).
///
/// A frame is on a queue from `insert` (or from `putback`, or from a `judge` that keeps it) to a `take_..` or
/// a `remove`. The `tag` that is returned with a frame holds what the policy knows about it. The caller gives
/// the tag back with the frame.
pub trait Policy: std::fmt::Debug + Send {
    /// Returns the tag with which to insert a page that is being brought into memory. The tag says where the
    /// page belongs, and is 0 for a fresh page.
    fn admit(&mut self, arrival: Arrival) -> u8;

    /// Lists an admitted page that is in memory now, or a page that moved from another frame, with that
    /// frame's tag. The mark that the page's first use leaves does not count.
    fn insert(&mut self, links: &dyn Links, frame: u32, tag: u8);

    /// Admits a page and inserts its frame.
    fn arrive(&mut self, links: &dyn Links, frame: u32, arrival: Arrival) {
        let tag = self.admit(arrival);
        self.insert(links, frame, tag);
    }

    /// Takes a hot frame, if there is one. The caller does this if no other frame can go.
    fn take_hot(&mut self, _: &dyn Links) -> Option<(u32, u8)> {
        None
    }

    /// Takes the next candidate, and its tag. Returns `None` if no frame is on any queue.
    fn take_next(&mut self, links: &dyn Links) -> Option<(u32, u8)>;

    /// Decides about a candidate that was taken. `accessed` says whether the page was used since its mark was
    /// last cleared.
    fn judge(&mut self, links: &dyn Links, frame: u32, tag: u8, accessed: bool) -> Verdict;

    /// Puts back a frame that was taken or removed, but cannot go now. A caller that no longer has the
    /// frame's tag passes 0.
    fn putback(&mut self, links: &dyn Links, frame: u32, tag: u8, to: Place);

    /// Takes a frame off its queue, and returns its tag.
    fn remove(&mut self, links: &dyn Links, frame: u32) -> u8;

    /// Returns the place that a page with this tag has, had, or will get.
    fn place(&self, tag: u8) -> Place;

    /// Returns the numbers of hot and cold base pages.
    fn pages(&self) -> (u64, u64);

    /// Returns every queue, for checks.
    fn queues(&self) -> Vec<&Queue>;

    /// Returns whether a frame with this tag belongs on the queue with this index in [`Policy::queues`].
    fn belongs(&self, tag: u8, queue: usize) -> bool;
}

/// Walks every queue and checks that links agree both ways, that tags agree with the queue, and that pages
/// add up. Returns the number of frames.
///
/// # Panics
/// If one of the checks fails.
#[doc(hidden)]
pub fn validate(policy: &dyn Policy, links: &dyn Links) -> u64 {
    let mut frames = 0;
    for (index, queue) in policy.queues().into_iter().enumerate() {
        frames += queue.validate(links, |tag| policy.belongs(tag, index));
    }
    frames
}

#[cfg(all(test, not(loom)))]
mod tests;
