//! The LRU: the queues of frames that reclaim takes from. A reclaim policy orders the frames, and per-CPU
//! batches feed it.
//!
//! The LRU state of a frame is eight flags in its ownership word. The two links in its words are its position
//! in a queue:
//!
//! ```text
//!            add                 batch drained               take
//!  (none) ────────► PENDING ───────────────────► LISTED ────────────────► (none), pinned by the reclaimer
//!     ▲               │ forget                     │ forget                  │ putback, decide: LISTED
//!     ├───────────────┴────────────────────────────┘                         ▼
//!     │                                                      decide, if others have pins: parked
//!     └───── list_again, when the last of their pins has gone ◄──────────────┘
//!
//!   7 ............ 2      1        0
//! +-----------------+--------+---------+
//! |  policy's tag   | LISTED | PENDING |     a tag alone: admitted, and being read; or parked
//! +-----------------+--------+---------+
//! ```
//!
//! The [policy](crate::policy) has the queues, and chooses the frame that is evicted next. The reclaimer
//! tests the marks of candidates without a lock, and the policy then decides about them. When a page comes
//! back, the policy places it by the shadow that the page left behind.
//!
//! Pinned pages cannot be evicted. A scan that meets such a page *parks* the frame: the frame leaves the
//! lists, so that no scan meets it again. The thread that drops the last pin lists the frame again
//! (`frame/holds.rs`). So the lists hold only pages that can be evicted, even if many pages are pinned.
//!
//! A batch holds bare frame numbers. A frame that is freed while its number is in a batch loses PENDING, so
//! the drain skips the stale number. If the frame has been allocated again by then and is PENDING again, the
//! drain lists it once, for the first of its numbers.
//!
//! Locking: one lock guards the policy and all links. No other lock is taken under it, except in
//! [`Lru::split`], which splits the block under it. Adding a page costs one push on a per-CPU stack, and each
//! batch of 32 pages takes the lock once. Hits never come here: they set the entry's accessed mark, and
//! reclaim tests the mark.

mod isolated;
mod links;
mod refaults;

use smallvec::SmallVec;

use crate::config::ReclaimPolicy;
use crate::frame::{FrameAllocator, FrameWords, PinnedFrame};
pub(crate) use crate::policy::Place;
use crate::policy::{self, Arrival, Links, Policy, Shadow, Verdict};
use crate::sync::percpu::{PerCpuStacks, Pop, Push, StackForm};
use crate::sync::{AtomicU32, Cpus, Mutex, Ordering, fence};
use crate::units::FrameId;

pub(crate) use isolated::{Isolated, IsolatedFrame};
use links::EngineLinks;
pub use refaults::RefaultSnapshot;
use refaults::Refaults;

pub(crate) use crate::sizes::ISOLATED;

/// Frames that a batch collects before the policy is locked.
const BATCH: usize = 32;
/// The most candidates that are taken together. This bounds how long a thread holds the lock.
const CANDIDATES: usize = 64;

/// The frame is in a batch.
const PENDING: u8 = 1;
/// The frame is on one of the policy's queues.
const LISTED: u8 = 2;
/// The lowest bit of the policy's tag.
const TAG_SHIFT: u32 = 2;

/// A frame that the policy proposes for eviction.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) frame: IsolatedFrame,
    tag: u8,
}

/// Candidates that were taken together.
pub(crate) type Candidates = SmallVec<[Candidate; CANDIDATES]>;

/// What the reclaimer saw of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// The candidate's mark was set, and the reclaimer has cleared it.
    Accessed,
    /// The mark was not set.
    Unused,
    /// The candidate cannot be evicted now: other threads hold pins, or it is under I/O.
    Busy,
}

/// The outcome of a decision about candidates.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Decided {
    /// Pages that became hot.
    pub(crate) activated: u64,
    /// Pages that became cold.
    pub(crate) deactivated: u64,
}

/// The LRU of a manager: the policy, and the batches that feed it.
#[derive(Debug)]
pub(crate) struct Lru {
    policy: Mutex<Box<dyn Policy>>,
    batches: PerCpuStacks,
    /// The shadow for pages that are evicted now.
    shadow: AtomicU32,
    refaults: Refaults,
}

impl Lru {
    pub(crate) fn new(cpus: Cpus, form: StackForm, policy: ReclaimPolicy) -> std::io::Result<Self> {
        let batches = PerCpuStacks::new(cpus, &[BATCH], form)?;
        for cpu in 0..batches.cpus() {
            batches.exclusive(cpu).expect("nobody else knows the stacks yet").set_limit(0, BATCH);
        }
        let shadow = AtomicU32::new(Shadow::at(0).bits());
        Ok(Self { policy: Mutex::new(make(policy)), batches, shadow, refaults: Refaults::new()? })
    }

    /// Adds a fresh frame or block, which no other thread can reach yet.
    #[inline]
    pub(crate) fn add(&self, frames: &FrameAllocator, frame: FrameId) {
        frames.words(frame).state.set_lru_flags_unshared(PENDING);
        if self.batches.push(0, frame.0) != Push::Done {
            self.drain_and_list(frames, frame);
        }
    }

    /// Adds a fresh frame that takes over the page of the frame `from`, at the young end. The fresh frame
    /// gets the tag of `from`. The frame `from` stays on its queue.
    pub(crate) fn add_in_place_of(&self, frames: &FrameAllocator, from: FrameId, frame: FrameId) {
        let flags = frames.words(from).state.load().lru_flags();
        match flags >> TAG_SHIFT {
            0 => self.add(frames, frame),
            tag => self.policy.lock().insert(&EngineLinks::new(frames), frame.0, tag),
        }
    }

    #[cold]
    fn drain_and_list(&self, frames: &FrameAllocator, frame: FrameId) {
        let mut policy = self.policy.lock();
        self.drain_here(frames, &mut **policy);
        list_pending(frames, &mut **policy, frame);
    }

    fn drain_here(&self, frames: &FrameAllocator, policy: &mut dyn Policy) {
        while let Pop::Value(frame) = self.batches.pop(0) {
            list_pending(frames, policy, FrameId(frame));
        }
    }

    /// Lists the frames that are left in every CPU's batch.
    pub(crate) fn drain_all(&self, frames: &FrameAllocator) {
        let mut policy = self.policy.lock();
        for cpu in 0..self.batches.cpus() {
            if self.batches.len(cpu, 0) == 0 {
                continue;
            }
            if let Some(exclusive) = self.batches.exclusive(cpu) {
                while let Some(frame) = exclusive.remove(0) {
                    list_pending(frames, &mut **policy, FrameId(frame));
                }
            }
        }
    }

    /// Takes a frame that will be freed off its list or out of its batch.
    #[inline]
    pub(crate) fn forget(&self, frames: &FrameAllocator, frame: FrameId) {
        if frames.words(frame).state.load().lru_flags() == 0 {
            // Acquire: pairs with the fence in `unlist`. The queue's accesses to the frame's links are over.
            fence(Ordering::Acquire);
            return;
        }
        if !self.take(frames, frame) {
            // The frame was admitted, but the read of its page failed, or it was parked.
            frames.words(frame).state.clear_lru_flags(u8::MAX);
        }
    }

    /// Takes a frame off its list or out of its batch. Returns false if the frame was in neither: a thread is
    /// about to add it, or another reclaimer has taken it. In the second case, only that reclaimer may put
    /// the frame back.
    pub(crate) fn take(&self, frames: &FrameAllocator, frame: FrameId) -> bool {
        let state = &frames.words(frame).state;
        // The number stays in the batch. The drain skips it, since the flag is gone.
        if state.replace_lru_flags(PENDING, 0) {
            return true;
        }
        let mut policy = self.policy.lock();
        let listed = state.load().lru_flags() & LISTED != 0;
        if listed {
            policy.remove(&EngineLinks::new(frames), frame.0);
        }
        listed
    }

    /// Takes a frame that holds a page off the LRU, and pins it. Returns `None` if the frame is not on the
    /// LRU: its page is not complete yet, or another reclaimer has isolated the frame. `unpin` drops a pin
    /// that was taken in vain.
    pub(crate) fn isolate(
        &self,
        frames: &FrameAllocator,
        frame: FrameId,
        unpin: impl Fn(PinnedFrame),
    ) -> Option<IsolatedFrame> {
        let words = frames.words(frame);
        if !words.holds.load().is_live() {
            return None;
        }
        let (pin, before) = PinnedFrame::take(frame, words);
        let isolated = IsolatedFrame::new(pin);
        if before.is_live() && self.take(frames, frame) {
            return Some(isolated);
        }
        unpin(isolated.into_pin());
        None
    }

    /// Runs `split`, which splits a block, and lists the frames at the block's place. Meanwhile, a reclaimer
    /// that has isolated the block cannot put it back as a whole.
    pub(crate) fn split(&self, frames: &FrameAllocator, head: FrameId, count: u32, split: impl FnOnce()) {
        let mut policy = self.policy.lock();
        let links = EngineLinks::new(frames);
        let state = &frames.words(head).state;
        let was_pending = state.replace_lru_flags(PENDING, 0);
        let is_listed = state.load().lru_flags() & LISTED != 0;
        let tag = if is_listed { policy.remove(&links, head.0) } else { 0 };
        let place = if is_listed { policy.place(tag) } else { Place::Cold };
        split();
        // The reclaimer that has isolated the head puts it back.
        let in_hand = !was_pending && !is_listed;
        for index in u32::from(in_hand)..count {
            policy.putback(&links, head.plus(index).0, tag, place);
        }
    }

    /// Takes candidates until they have `most` pages, and pins each for the caller. With `stuck`, takes them
    /// from the hot pages. Drops the pins of dying frames.
    pub(crate) fn candidates(
        &self,
        frames: &FrameAllocator,
        most: u64,
        stuck: bool,
        unpin: impl Fn(PinnedFrame),
    ) -> Candidates {
        let (mut taken, mut dying) = (Candidates::new(), Candidates::new());
        let links = EngineLinks::pinning(frames);
        let mut pages = 0;
        let mut policy = self.policy.lock();
        while pages < most && taken.len() + dying.len() < CANDIDATES {
            let next = if stuck { policy.take_hot(&links) } else { policy.take_next(&links) };
            let Some((frame, tag)) = next else { break };
            pages += links.pages(frame);
            // The links have taken the pin.
            let candidate = Candidate { frame: IsolatedFrame::counted(FrameId(frame)), tag };
            if links.found_live() { taken.push(candidate) } else { dying.push(candidate) }
        }
        drop(policy);
        dying.into_iter().for_each(|candidate| unpin(candidate.frame.into_pin()));
        taken
    }

    /// Lets the policy decide about candidates by their looks. Candidates that stay are listed again and
    /// unpinned. Candidates that others have pinned are parked. The rest are added to `going`.
    pub(crate) fn decide(
        &self,
        frames: &FrameAllocator,
        candidates: impl IntoIterator<Item = (Candidate, Look)>,
        going: &mut Isolated,
        unpin: impl Fn(PinnedFrame),
    ) -> Decided {
        let mut decided = Decided::default();
        let mut kept = SmallVec::<[IsolatedFrame; CANDIDATES]>::new();
        let links = EngineLinks::new(frames);
        let mut policy = self.policy.lock();
        for (Candidate { frame, tag }, look) in candidates {
            let (number, from) = (frame.frame().0, policy.place(tag));
            let verdict = match look {
                Look::Busy => {
                    if !park(frames, frame.frame(), tag) {
                        policy.putback(&links, number, tag, from);
                    }
                    Verdict::Keep(from)
                }
                look => policy.judge(&links, number, tag, look == Look::Accessed),
            };
            match verdict {
                Verdict::Keep(to) => {
                    decided.activated += u64::from((from, to) == (Place::Cold, Place::Hot));
                    decided.deactivated += u64::from((from, to) == (Place::Hot, Place::Cold));
                    kept.push(frame);
                }
                Verdict::Evict(shadow) => {
                    self.shadow.store(shadow.bits(), Ordering::Relaxed);
                    going.push(frames, frame);
                }
            }
        }
        drop(policy);
        kept.into_iter().for_each(|frame| unpin(frame.into_pin()));
        decided
    }

    /// Lists a frame that was parked, at its old place. The caller has dropped the last of the pins that kept
    /// the frame off the lists. It passes another pin in, and gets it back.
    pub(crate) fn list_again(&self, frames: &FrameAllocator, frame: IsolatedFrame) -> PinnedFrame {
        let (pin, mut policy) = (frame.into_pin(), self.policy.lock());
        let flags = frames.words(pin.frame()).state.load().lru_flags();
        if flags & (PENDING | LISTED) == 0 {
            let tag = flags >> TAG_SHIFT;
            let place = policy.place(tag);
            policy.putback(&EngineLinks::new(frames), pin.frame().0, tag, place);
        }
        pin
    }

    /// Returns the shadow for a page that is evicted now.
    pub(crate) fn shadow(&self) -> Shadow {
        Shadow::from_bits(self.shadow.load(Ordering::Relaxed)).expect("a shadow's bits")
    }

    /// Returns how much more memory would have kept the pages that came back in memory.
    pub(crate) fn refaults(&self) -> RefaultSnapshot {
        self.refaults.snapshot()
    }

    /// Admits a page that arrives. Its frame is not listed yet. Returns the place where the page belongs.
    /// [`Lru::arrive`] puts it there after it has been read.
    pub(crate) fn admit(&self, frames: &FrameAllocator, frame: FrameId, arrival: Arrival) -> Place {
        self.refaults.note(arrival, self.shadow());
        let mut policy = self.policy.lock();
        let tag = policy.admit(arrival);
        if tag == 0 {
            return Place::Cold;
        }
        frames.words(frame).state.set_lru_flags(tag << TAG_SHIFT);
        policy.place(tag)
    }

    /// Lists a frame whose page has been read. The caller has pinned the frame.
    pub(crate) fn arrive(&self, frames: &FrameAllocator, frame: FrameId) {
        let mut policy = self.policy.lock();
        let flags = frames.words(frame).state.load().lru_flags();
        // Compaction finds live frames by their position in memory, and may have listed this one already.
        if flags & (PENDING | LISTED) == 0 {
            policy.insert(&EngineLinks::new(frames), frame.0, flags >> TAG_SHIFT);
        }
    }

    /// Puts a frame at the young end of a queue of `place`, unless it is listed already. Returns the pin.
    pub(crate) fn putback(&self, frames: &FrameAllocator, frame: IsolatedFrame, place: Place) -> PinnedFrame {
        let (pin, mut policy) = (frame.into_pin(), self.policy.lock());
        if frames.words(pin.frame()).state.load().lru_flags() & (PENDING | LISTED) == 0 {
            policy.putback(&EngineLinks::new(frames), pin.frame().0, 0, place);
        }
        pin
    }

    /// Returns the numbers of hot and cold base pages.
    pub(crate) fn pages(&self) -> (u64, u64) {
        self.policy.lock().pages()
    }

    /// Returns whether a frame is listed, or in a batch.
    pub(crate) fn knows(&self, words: &FrameWords) -> bool {
        words.state.load().lru_flags() & (PENDING | LISTED) != 0
    }

    /// Walks all queues. Checks that links agree both ways, that flags agree with the queue, and that pages
    /// add up. Takes linear time.
    pub(crate) fn validate(&self, frames: &FrameAllocator) {
        let policy = self.policy.lock();
        policy::validate(&**policy, &EngineLinks::new(frames));
    }

    /// Isolates all frames.
    #[cfg(all(test, loom))]
    pub(crate) fn isolate_all(&self, frames: &FrameAllocator, unpin: impl Fn(PinnedFrame)) -> Isolated {
        let mut all = Isolated::new();
        loop {
            let candidates = self.candidates(frames, CANDIDATES as u64, false, &unpin);
            if candidates.is_empty() {
                return all;
            }
            candidates.into_iter().for_each(|candidate| all.push(frames, candidate.frame));
        }
    }
}

fn make(policy: ReclaimPolicy) -> Box<dyn Policy> {
    match policy {
        ReclaimPolicy::Reuse => Box::<policy::Reuse>::default(),
        ReclaimPolicy::Returns => Box::<policy::Returns>::default(),
        ReclaimPolicy::Generations => Box::<policy::Generations>::default(),
        ReclaimPolicy::S3Fifo => Box::<policy::S3Fifo>::default(),
        ReclaimPolicy::Sieve => Box::<policy::Sieve>::default(),
        ReclaimPolicy::Clock => Box::<policy::Clock>::default(),
        ReclaimPolicy::Fifo => Box::<policy::Fifo>::default(),
    }
}

/// Lists a frame from a batch, unless the frame was freed or listed since.
fn list_pending(frames: &FrameAllocator, policy: &mut dyn Policy, frame: FrameId) {
    // The frame has one of the two flags at all times. So a thread that frees the frame meanwhile waits for
    // the lock.
    if frames.words(frame).state.replace_lru_flags(PENDING, LISTED) {
        policy.insert(&EngineLinks::new(frames), frame.0, 0);
    }
}

/// Parks a frame that the caller has isolated and others have pinned. Its flags keep its tag. Returns false
/// if the frame is under I/O, or the others have dropped their pins.
fn park(frames: &FrameAllocator, frame: FrameId, tag: u8) -> bool {
    let words = frames.words(frame);
    // Set the flags first: once PARKED is set, another thread may list the frame.
    words.state.exchange_lru_flags(tag << TAG_SHIFT);
    !words.holds.load().is_under_io() && words.holds.park()
}

#[cfg(all(test, not(loom)))]
mod tests;
