//! Tests that compare the reverse map with lists of owners, and tests of the map's memory.

use std::collections::BTreeSet;

use super::*;
use crate::frame::FrameConfig;
use proptest::prelude::*;

struct Fixture {
    frames: FrameAllocator,
    budget: Arc<Budget>,
    map: ReverseMap,
}

impl Fixture {
    fn new() -> Self {
        let frames = FrameAllocator::standalone(&FrameConfig::tiny(), u64::MAX).unwrap();
        let budget = Arc::new(Budget::new(u64::MAX));
        let map = ReverseMap::new(&frames, Arc::clone(&budget)).unwrap();
        Self { frames, budget, map }
    }

    fn add(&self, frame: FrameId, number: u64) {
        self.map.add(&self.frames, frame, owner(number));
    }

    fn remove(&self, frame: FrameId, number: u64) {
        self.map.remove(&self.frames, frame, owner(number));
    }

    fn owners(&self, frame: FrameId) -> BTreeSet<u64> {
        self.map.owners(&self.frames, frame).into_iter().map(|owner| owner.page.0 >> 20).collect()
    }

    fn lists(&self) -> usize {
        self.map.lists.iter().map(|lists| lists.lock().lists.len()).sum()
    }

    fn lists_in_use(&self) -> usize {
        self.lists() - self.map.lists.iter().map(|lists| lists.lock().free.len()).sum::<usize>()
    }
}

fn owner(number: u64) -> Owner {
    Owner { space: SpaceId(number as u32 % 5 * 0x30_0001), page: PageNumber(number << 20 | 0xF_FFFF) }
}

/// Two frames of one lock, and the head of one block.
const FRAMES: [FrameId; 3] = [FrameId(3), FrameId(3 + 64), FrameId(2 * CHUNK_FRAMES)];

/// A step on a frame with an owner.
#[derive(Clone, Copy, Debug)]
enum Op {
    Add,
    Remove,
    Remember,
    /// Moves the owners to the next frame, if the next frame has no owners.
    MoveAll,
}

fn ops() -> impl Strategy<Value = Vec<(Op, usize, u64)>> {
    let op = prop_oneof![
        6 => Just(Op::Add), 4 => Just(Op::Remove), 2 => Just(Op::Remember), 1 => Just(Op::MoveAll)
    ];
    prop::collection::vec((op, 0..FRAMES.len(), 0_u64..9), 1..200)
}

proptest! {
    #[test]
    fn agrees_with_lists_of_owners(ops in ops()) {
        let fixture = Fixture::new();
        let Fixture { frames, map, .. } = &fixture;
        let mut model = [const { BTreeSet::<u64>::new() }; FRAMES.len()];
        let mut former = [None; FRAMES.len()];
        for (op, at, number) in ops {
            let (frame, next) = (FRAMES[at], (at + 1) % FRAMES.len());
            match op {
                Op::Add if model[at].insert(number) => {
                    fixture.add(frame, number);
                    former[at] = None;
                }
                Op::Remove if model[at].remove(&number) => fixture.remove(frame, number),
                Op::Remember if model[at].remove(&number) => {
                    map.remember(frames, frame, owner(number));
                    former[at] = model[at].is_empty().then_some(number);
                }
                Op::MoveAll if model[next].is_empty() && !model[at].is_empty() => {
                    map.move_all(frames, frame, FRAMES[next]);
                    model[next] = std::mem::take(&mut model[at]);
                    former[next] = None;
                }
                _ => {}
            }
            for at in 0..FRAMES.len() {
                prop_assert_eq!(&fixture.owners(FRAMES[at]), &model[at]);
                let count = map.owners(frames, FRAMES[at]).len();
                prop_assert_eq!(count, model[at].len(), "nobody stands there twice");
                let expected = former[at].filter(|_| model[at].is_empty()).map(owner);
                prop_assert_eq!(map.former_owner(frames, FRAMES[at]), expected);
            }
            let crowds = model.iter().filter(|owners| owners.len() > 2).count();
            prop_assert_eq!(fixture.lists_in_use(), crowds, "a list for each frame with three owners or more");
        }
        for (frame, owners) in FRAMES.iter().zip(model) {
            owners.into_iter().for_each(|number| fixture.remove(*frame, number));
        }
        prop_assert_eq!(fixture.lists_in_use(), 0, "every list has ended");
        let pages = fixture.map.charged.iter().map(|word| word.load(Ordering::Relaxed).count_ones());
        let pages = u64::from(pages.sum::<u32>());
        prop_assert_eq!(fixture.budget.used_bytes(), pages * PAGE_BYTES as u64, "lists are charged no more");
    }
}

#[test]
fn one_or_two_owners_allocate_nothing() {
    let fixture = Fixture::new();
    for round in 0..3 {
        for frame in (0..2 * CHUNK_FRAMES).map(FrameId) {
            fixture.add(frame, round);
            fixture.add(frame, round + 1);
            assert_eq!(fixture.owners(frame), [round, round + 1].into());
            // Either of the two owners may be removed first.
            fixture.remove(frame, round + u64::from(frame.0) % 2);
            fixture.remove(frame, round + 1 - u64::from(frame.0) % 2);
            assert_eq!(fixture.owners(frame), [].into());
        }
    }
    assert_eq!(fixture.lists(), 0, "no list was ever made");
    // The map takes eight bytes for each frame, and charges them once.
    assert_eq!(fixture.budget.used_bytes(), 2 * PAGE_BYTES as u64);
}

#[test]
fn an_owner_that_stands_there_twice_goes_one_at_a_time() {
    let fixture = Fixture::new();
    let Fixture { frames, map, .. } = &fixture;
    fixture.add(FRAMES[0], 1);
    fixture.add(FRAMES[0], 1);
    assert_eq!(map.owners(frames, FRAMES[0]).len(), 2);
    map.remember(frames, FRAMES[0], owner(1));
    assert_eq!(map.owners(frames, FRAMES[0]).to_vec(), [owner(1)]);
    assert_eq!(map.former_owner(frames, FRAMES[0]), None);
    fixture.remove(FRAMES[0], 1);
    assert!(map.owners(frames, FRAMES[0]).is_empty());
}

#[test]
fn frames_of_different_locks_are_changed_side_by_side() {
    let fixture = Fixture::new();
    for frame in FRAMES {
        (0..3).for_each(|number| fixture.add(frame, number));
    }
    // While this thread holds the lock of one frame, it adds and removes owners of the other frames.
    let _held = fixture.map.lock(FRAMES[0]);
    fixture.add(FRAMES[2], 3);
    fixture.remove(FRAMES[2], 0);
    assert_eq!(fixture.owners(FRAMES[2]), [1, 2, 3].into());
}
