//! A model of one frame whose owners are added and removed. Each owner that was added and not removed stands
//! in the map exactly once.

use super::*;
use crate::frame::FrameConfig;
use crate::sync::{bounded, thread};

const FRAME: FrameId = FrameId(0);

struct Model {
    frames: FrameAllocator,
    map: ReverseMap,
}

fn owner(number: u32) -> Owner {
    Owner { space: SpaceId(number), page: PageNumber(u64::from(number)) }
}

impl Model {
    fn new() -> Self {
        let frames = FrameAllocator::standalone(&FrameConfig::tiny(), 1 << 20).unwrap();
        let map = ReverseMap::new(&frames, Arc::new(Budget::new(1 << 20))).unwrap();
        Self { frames, map }
    }

    fn add(&self, number: u32) {
        self.map.add(&self.frames, FRAME, owner(number));
    }

    fn remove(&self, number: u32) {
        self.map.remove(&self.frames, FRAME, owner(number));
    }

    fn owners(&self) -> Vec<u32> {
        let mut owners: Vec<_> =
            self.map.owners(&self.frames, FRAME).into_iter().map(|owner| owner.space.0).collect();
        owners.sort_unstable();
        owners
    }
}

/// One thread adds an owner and removes it. The other thread adds an owner that stays, and removes another. A
/// reader sees each owner that stays the whole time exactly once. At the start, the frame has no, one or two
/// owners. So the model meets every change from one kind of frame to another.
#[test]
fn loom_owners_of_one_frame_come_and_go() {
    for at_first in 0..3 {
        bounded(3, move || {
            let model = Arc::new(Model::new());
            (0..at_first).for_each(|number| model.add(number));
            let other = Arc::clone(&model);
            let thread = thread::spawn(move || {
                other.add(8);
                assert_eq!(other.owners().iter().filter(|number| **number == 8).count(), 1);
                other.remove(8);
            });
            model.add(9);
            if at_first > 0 {
                model.remove(0);
            }
            let seen = model.owners();
            assert_eq!(seen.iter().filter(|number| **number == 9).count(), 1, "{seen:?}");
            assert!(!seen.contains(&0), "{seen:?}");
            thread.join().unwrap();
            let expected: Vec<_> = (1..at_first).chain([9]).collect();
            assert_eq!(model.owners(), expected);
            for number in expected {
                model.remove(number);
            }
            let lists = model.map.lists[0].lock();
            assert_eq!(lists.free.len(), lists.lists.len(), "every list has ended");
        });
    }
}
