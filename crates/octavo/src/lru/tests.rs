//! Tests of the policies with the engine's own frames and batches.

use super::*;
use crate::budget::Budget;
use crate::counters::Counters;
use crate::frame::{Dropped, FrameConfig, FrameId};
use crate::sync::Arc;
use crate::sync::Cpus;
use crate::units::Order;

const POLICIES: [ReclaimPolicy; 7] = [
    ReclaimPolicy::Reuse,
    ReclaimPolicy::Generations,
    ReclaimPolicy::S3Fifo,
    ReclaimPolicy::Returns,
    ReclaimPolicy::Sieve,
    ReclaimPolicy::Clock,
    ReclaimPolicy::Fifo,
];

struct Fixture {
    frames: FrameAllocator,
    lru: Lru,
}

impl Fixture {
    fn new(policy: ReclaimPolicy) -> Self {
        let (budget, counters) = (Arc::new(Budget::new(1 << 30)), Arc::new(Counters::new().unwrap()));
        let frames = FrameAllocator::new(&FrameConfig::tiny(), budget, counters).unwrap();
        Self { frames, lru: Lru::new(Cpus::pretended(1, || 0), StackForm::TryLock, policy).unwrap() }
    }

    fn add(&self, order: Order) -> FrameId {
        let frame = self.frames.alloc(order).unwrap().into_frame();
        self.frames.words(frame).holds.begin(true);
        self.lru.add(&self.frames, frame);
        frame
    }

    /// Drops a pin, as the engine does.
    fn unpin(&self, pin: PinnedFrame) {
        let frame = pin.frame();
        match pin.unpin(self.frames.words(frame)) {
            Dropped::Kept => {}
            Dropped::Last => self.free(frame),
            Dropped::ToBeListed => {
                let parked = IsolatedFrame::counted(frame);
                self.unpin(self.lru.list_again(&self.frames, parked));
            }
        }
    }

    /// Frees a frame whose last hold is gone, as the engine does.
    fn free(&self, frame: FrameId) {
        self.lru.forget(&self.frames, frame);
        let order = self.frames.words(frame).order();
        self.frames.free(frame, order).unwrap();
    }

    fn release(&self, frame: FrameId) {
        if self.frames.words(frame).holds.release() == Dropped::Last {
            self.free(frame);
        }
    }

    fn candidates(&self, most: u64) -> Candidates {
        self.lru.candidates(&self.frames, most, false, |pin| self.unpin(pin))
    }

    fn decide(&self, candidates: impl IntoIterator<Item = Candidate>, look: Look) -> Isolated {
        let mut going = Isolated::new();
        let looks = candidates.into_iter().map(|candidate| (candidate, look));
        self.lru.decide(&self.frames, looks, &mut going, |pin| self.unpin(pin));
        going
    }

    /// Puts a frame back, and drops its pin.
    fn putback(&self, frame: IsolatedFrame) {
        let pin = self.lru.putback(&self.frames, frame, Place::Cold);
        let words = self.frames.words(pin.frame());
        assert_eq!(pin.unpin(words), Dropped::Kept);
    }

    fn listed(&self) -> u64 {
        self.lru.drain_all(&self.frames);
        self.lru.validate(&self.frames);
        let (hot, cold) = self.lru.pages();
        hot + cold
    }
}

#[test]
fn a_frame_is_in_one_hand_or_listed_once() {
    for policy in POLICIES {
        let fixture = Fixture::new(policy);
        let mut added: Vec<_> = (0..300).map(|_| fixture.add(Order::ZERO)).collect();
        added.sort();
        assert_eq!(fixture.listed(), 300);
        let mut taken = Vec::new();
        while let batch = fixture.candidates(CANDIDATES as u64)
            && !batch.is_empty()
        {
            taken.extend(batch);
        }
        let mut frames: Vec<_> = taken.iter().map(|candidate| candidate.frame.frame()).collect();
        frames.sort();
        assert_eq!((frames, fixture.listed()), (added, 0), "{policy:?}");
        // Of the candidates, some can be evicted, some are busy, and some were used.
        let going = fixture.decide(taken.drain(..100), Look::Unused);
        assert_eq!(fixture.decide(taken.drain(..100), Look::Busy).len(), 0);
        let going_too = fixture.decide(taken, Look::Accessed);
        // The default policy assumes that a page without its fault's mark was read ahead, and lets it wait.
        assert_eq!(going.len(), if policy == ReclaimPolicy::Reuse { 0 } else { 100 });
        assert_eq!(going_too.len(), if policy == ReclaimPolicy::Fifo { 100 } else { 0 });
        assert_eq!(fixture.listed(), 300 - (going.len() + going_too.len()) as u64);
        for frame in going {
            // Another reclaimer may have found the frame by its position in memory.
            let (pin, _) = PinnedFrame::take(frame.frame(), fixture.frames.words(frame.frame()));
            fixture.putback(frame);
            fixture.putback(IsolatedFrame::new(pin));
        }
        assert_eq!(fixture.listed(), 300 - going_too.len() as u64, "a listed frame is not put back again");
        going_too.into_iter().for_each(|frame| fixture.putback(frame));
        assert_eq!(fixture.listed(), 300);
    }
}

#[test]
fn a_frame_that_is_pinned_leaves_the_lists_until_its_last_pin_has_gone() {
    for policy in POLICIES {
        let fixture = Fixture::new(policy);
        let frames: Vec<_> = (0..100).map(|_| fixture.add(Order::ZERO)).collect();
        let blocks: Vec<_> = (0..2).map(|_| fixture.add(Order(4))).collect();
        assert_eq!(fixture.listed(), 132);
        let pin = |frame: FrameId| PinnedFrame::take(frame, fixture.frames.words(frame)).0;
        let mut pins: Vec<_> =
            frames[..40].iter().chain(&blocks).chain(&frames[..10]).map(|frame| pin(*frame)).collect();
        let all: Vec<_> = std::iter::from_fn(|| {
            let batch = fixture.candidates(CANDIDATES as u64);
            (!batch.is_empty()).then_some(batch)
        })
        .flatten()
        .collect();
        assert_eq!(fixture.decide(all, Look::Busy).len(), 0);
        assert_eq!(fixture.listed(), 60, "{policy:?}: those that nobody pinned");
        // One of the parked frames dies. It is freed with its last pin, and not listed.
        fixture.release(frames[39]);
        let doubly = pins.split_off(42);
        for (index, pin) in pins.into_iter().enumerate() {
            fixture.unpin(pin);
            let dropped = index as u64 + 1;
            // Ten frames are pinned twice, one has died, and a block has 16 pages.
            let pages = dropped.min(39).saturating_sub(10) + 16 * dropped.saturating_sub(40);
            assert_eq!(fixture.listed(), 60 + pages, "{policy:?}");
        }
        doubly.into_iter().for_each(|pin| fixture.unpin(pin));
        assert_eq!(fixture.listed(), 131, "{policy:?}");
        // A frame whose pins are dropped before it can be parked is only put back.
        let candidates = fixture.candidates(1);
        let late = pin(candidates[0].frame.frame());
        fixture.unpin(late);
        fixture.decide(candidates, Look::Busy);
        assert_eq!(fixture.listed(), 131, "{policy:?}");
    }
}

#[test]
fn a_freed_frame_leaves_its_batch_its_queue_and_its_admission() {
    for policy in POLICIES {
        let fixture = Fixture::new(policy);
        let frames: Vec<_> = (0..100).map(|_| fixture.add(Order::ZERO)).collect();
        let mut left = 100;
        for frame in frames.iter().step_by(3) {
            fixture.release(*frame);
            left -= 1;
        }
        assert_eq!(fixture.listed(), left, "{policy:?}");
        // A frame that is taken off while its owner releases it is freed with its last pin.
        let candidates = fixture.candidates(1);
        fixture.release(candidates[0].frame.frame());
        assert_eq!(fixture.decide(candidates, Look::Busy).len(), 0);
        assert_eq!(fixture.listed(), left - 1, "{policy:?}");
        let frame = fixture.frames.alloc(Order::ZERO).unwrap().into_frame();
        fixture.frames.words(frame).holds.begin(false);
        fixture.lru.admit(&fixture.frames, frame, Arrival::Back(fixture.lru.shadow()));
        fixture.release(frame);
        assert_eq!(fixture.listed(), left - 1, "{policy:?}");
    }
}

#[test]
fn a_block_that_is_split_is_listed_frame_by_frame() {
    for policy in POLICIES {
        let fixture = Fixture::new(policy);
        let head = fixture.add(Order(4));
        assert_eq!(fixture.listed(), 16, "a block counts all its frames");
        for in_hand in [false, true] {
            let head = if in_hand { fixture.add(Order(4)) } else { head };
            let candidates = if in_hand {
                fixture.listed();
                fixture.candidates(CANDIDATES as u64)
            } else {
                Candidates::new()
            };
            fixture.lru.split(&fixture.frames, head, 16, || {
                fixture.frames.split(head, Order(4)).unwrap();
                (1..16).for_each(|index| fixture.frames.words(head.plus(index)).holds.begin(true));
            });
            for candidate in candidates {
                // The candidate is put back instead of being evicted. Its head is listed already.
                fixture.putback(candidate.frame);
            }
            assert_eq!(fixture.listed(), if in_hand { 32 } else { 16 }, "{policy:?}");
        }
    }
}

#[test]
fn a_page_that_comes_back_is_put_where_its_shadow_says() {
    let fixture = Fixture::new(ReclaimPolicy::Reuse);
    let frames: Vec<_> = (0..300).map(|_| fixture.add(Order::ZERO)).collect();
    fixture.listed();
    // These are the marks that the faults left.
    for _ in 0..5 {
        assert_eq!(fixture.decide(fixture.candidates(60), Look::Accessed).len(), 0);
    }
    let candidates = fixture.candidates(10);
    let going = fixture.decide(candidates, Look::Unused);
    assert_eq!(going.len(), 10);
    let shadow = fixture.lru.shadow();
    // No page is hot yet, so there is room among the hot pages.
    for (index, frame) in going.into_iter().enumerate() {
        let frame = frame.into_pin().into_frame();
        if index % 2 == 0 {
            assert_eq!(fixture.lru.admit(&fixture.frames, frame, Arrival::Back(shadow)), Place::Hot);
        }
        fixture.lru.arrive(&fixture.frames, frame);
    }
    fixture.lru.validate(&fixture.frames);
    assert_eq!(fixture.lru.pages(), (5, frames.len() as u64 - 5));
    // When no cold page can go, hot pages may.
    let hot = fixture.lru.candidates(&fixture.frames, 100, true, |pin| fixture.unpin(pin));
    assert_eq!(hot.len(), 5);
    assert_eq!(fixture.decide(hot, Look::Busy).len(), 0);
}
