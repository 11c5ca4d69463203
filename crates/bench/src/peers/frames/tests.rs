use std::collections::HashSet;
use std::sync::Mutex;

use super::*;

/// The model: a set of live block numbers. It refuses to free a number that is not in the set.
#[derive(Default)]
struct Model {
    live: Mutex<(HashSet<usize>, usize)>,
    limit: Option<usize>,
}

impl PageBlocks for Model {
    const BYTES_PER_STEP: usize = 1;

    fn alloc(&self, order: u32) -> Option<PeerBlock> {
        let (live, next) = &mut *self.live.lock().unwrap();
        if self.limit == Some(live.len()) {
            return None;
        }
        *next += 1;
        live.insert(*next << (PAGE_SHIFT + order));
        Some(PeerBlock(*next << (PAGE_SHIFT + order)))
    }

    unsafe fn free(&self, block: PeerBlock, _order: u32) {
        assert!(self.live.lock().unwrap().0.remove(&block.0), "freed twice, or never allocated");
    }
}

const SIZES: BlockCounts = BlockCounts { pool: 8, bulk: 16 };

#[test]
fn every_pattern_gives_back_what_it_took() {
    for pattern in BlockPattern::ALL {
        let model = Model::default();
        assert!(model.measure(pattern, 4, SIZES, 2, Plan::of_millis(1)).is_some());
        let (live, allocated) = model.live.into_inner().unwrap();
        assert!(live.is_empty() && allocated > 0, "{pattern:?}");
    }
}

#[test]
fn running_out_is_told_and_leaks_nothing() {
    for (pattern, limit) in [(BlockPattern::Ping, 0), (BlockPattern::Random, 5), (BlockPattern::Bulk, 5)] {
        let model = Model { limit: Some(limit), ..Model::default() };
        assert_eq!(model.measure(pattern, 0, SIZES, 2, Plan::of_millis(1)), None);
        assert!(model.live.into_inner().unwrap().0.is_empty(), "{pattern:?}");
    }
}

#[test]
fn the_check_tells_overlapping_blocks() {
    struct Same;
    impl PageBlocks for Same {
        const BYTES_PER_STEP: usize = 1;
        fn alloc(&self, _order: u32) -> Option<PeerBlock> {
            Some(PeerBlock(0))
        }
        unsafe fn free(&self, _block: PeerBlock, _order: u32) {}
    }
    assert!(Same.check(0).unwrap_err().contains("overlap"));
    assert_eq!(Model::default().check(9), Ok(()));
}

#[test]
fn every_linked_peer_hands_out_aligned_blocks_of_its_own() {
    let options = Options { rounds: 1, millis: 1, only: vec![], json: None };
    for side in sides(&options, 1 << 30, &[0, 4, 9]) {
        let wrong = side.subject.err().unwrap_or_default();
        assert!(!wrong.contains("block"), "{}: {wrong}", side.name);
    }
}
