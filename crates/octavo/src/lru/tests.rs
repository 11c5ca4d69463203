//! The policies through the engine's own frames and batches.

use super::*;
use crate::budget::Budget;
use crate::counters::Counters;
use crate::frame::{FrameConfig, FrameId};
use crate::sync::Arc;
use crate::sync::Cpus;
use crate::units::Order;

const POLICIES: [ReclaimPolicy; 6] = [
    ReclaimPolicy::Reuse,
    ReclaimPolicy::Generations,
    ReclaimPolicy::S3Fifo,
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

    /// As the engine frees a frame whose last hold is gone.
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
        self.lru.candidates(&self.frames, most, false, |frame| self.free(frame))
    }

    fn settle(&self, candidates: &[Candidate], look: Look) -> Isolated {
        let mut going = Isolated::new();
        let looks: Vec<_> = candidates.iter().map(|candidate| (*candidate, look)).collect();
        self.lru.settle(&self.frames, &looks, &mut going, |frame| self.free(frame));
        going
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
        let mut frames: Vec<_> = taken.iter().map(|candidate| candidate.frame).collect();
        frames.sort();
        assert_eq!((frames, fixture.listed()), (added, 0), "{policy:?}");
        // Some go, some are busy, some were used.
        let going = fixture.settle(&taken[..100], Look::Unused);
        fixture.settle(&taken[100..200], Look::Busy);
        let going_too = fixture.settle(&taken[200..], Look::Accessed);
        // To the default, what not even its fault has marked was read ahead, and waits.
        assert_eq!(going.len(), if policy == ReclaimPolicy::Reuse { 0 } else { 100 });
        assert_eq!(going_too.len(), if policy == ReclaimPolicy::Fifo { 100 } else { 0 });
        assert_eq!(fixture.listed(), 300 - (going.len() + going_too.len()) as u64);
        for frame in going {
            fixture.lru.put_back(&fixture.frames, frame, List::Inactive);
            fixture.lru.put_back(&fixture.frames, frame, List::Active);
            assert_eq!(fixture.frames.words(frame).holds.drop_pin(), Dropped::Kept);
        }
        assert_eq!(fixture.listed(), 300 - going_too.len() as u64, "who is listed is not put back again");
    }
}

#[test]
fn what_is_freed_leaves_its_batch_its_queue_and_its_admission() {
    for policy in POLICIES {
        let fixture = Fixture::new(policy);
        let frames: Vec<_> = (0..100).map(|_| fixture.add(Order::ZERO)).collect();
        let mut left = 100;
        for frame in frames.iter().step_by(3) {
            fixture.release(*frame);
            left -= 1;
        }
        assert_eq!(fixture.listed(), left, "{policy:?}");
        // One that is taken off while it is released goes with its last pin.
        let candidate = fixture.candidates(1)[0];
        fixture.release(candidate.frame);
        fixture.settle(&[candidate], Look::Busy);
        assert_eq!(fixture.listed(), left - 1, "{policy:?}");
        let frame = fixture.frames.alloc(Order::ZERO).unwrap().into_frame();
        fixture.frames.words(frame).holds.begin(false);
        fixture.lru.admit(&fixture.frames, frame, fixture.lru.shadow());
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
                // As one that does not go after all: the head is listed already.
                fixture.lru.put_back(&fixture.frames, candidate.frame, List::Inactive);
                assert_eq!(fixture.frames.words(candidate.frame).holds.drop_pin(), Dropped::Kept);
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
    // The marks that their faults left.
    for _ in 0..5 {
        fixture.settle(&fixture.candidates(60), Look::Accessed);
    }
    let candidates = fixture.candidates(10);
    let going = fixture.settle(&candidates, Look::Unused);
    assert_eq!(going.len(), 10);
    let shadow = fixture.lru.shadow();
    // Nothing is hot yet, so there is room.
    for (index, frame) in going.into_iter().enumerate() {
        if index % 2 == 0 {
            assert_eq!(fixture.lru.admit(&fixture.frames, frame, shadow), Place::Hot);
        }
        fixture.lru.arrive(&fixture.frames, frame);
    }
    fixture.lru.validate(&fixture.frames);
    assert_eq!(fixture.lru.pages(), (5, frames.len() as u64 - 5));
    // When the cold cannot go, the hot may.
    let hot = fixture.lru.candidates(&fixture.frames, 100, true, |frame| fixture.free(frame));
    assert_eq!(hot.len(), 5);
}
