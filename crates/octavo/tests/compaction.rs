//! Compaction makes 2 MiB blocks from fragmented memory, and a lowered budget gives chunks back. Every byte
//! is kept.

use octavo::{Access, CHUNK_BYTES, Counter, HugePolicy, Manager, RegionOptions, Space};

const MIB: u64 = 1 << 20;

fn fill(space: &Space, at: u64, len: u64) {
    for offset in (0..len).step_by(4096) {
        space.store(at + offset, offset ^ 0xabcd).unwrap();
    }
}

/// Checks that every other page still has its original bytes.
fn check_odd_pages(space: &Space, at: u64, len: u64) {
    for offset in (4096..len).step_by(8192) {
        assert_eq!(space.load::<u64>(at + offset).unwrap(), offset ^ 0xabcd);
    }
}

#[test]
fn a_block_of_two_mebibytes_is_had_after_fragmentation() {
    let manager = Manager::builder().budget_bytes(48 * MIB).huge(HugePolicy::Advised).build().unwrap();
    let space = manager.space().unwrap();
    let len = 36 * MIB;
    let at = space.map(len, RegionOptions::new()).unwrap();
    fill(&space, at, len);
    for offset in (0..len).step_by(8192) {
        space.unmap(at + offset, 4096).unwrap();
    }
    // Takes all free whole blocks, so that only fragments are left.
    let mut whole = Vec::new();
    while let Some(frame) = manager.alloc_block(octavo::Order::MAX).unwrap() {
        whole.push(frame);
    }
    let before = manager.counters();
    let huge = space.map(CHUNK_BYTES as u64, RegionOptions::new().huge(true)).unwrap();
    space.store(huge, 7u64).unwrap();
    let moved = manager.counters().since(&before);
    assert_eq!(moved.get(Counter::HugeFaultAllocated), 1, "{moved:?}");
    assert_eq!(moved.get(Counter::CompactSuccess), 1);
    assert!(moved.get(Counter::FrameMigrated) > 0);
    check_odd_pages(&space, at, len);
    for frame in whole {
        manager.free_block(frame, octavo::Order::MAX).unwrap();
    }
    manager.validate();
}

#[test]
fn a_pinned_page_is_not_moved_and_the_others_are() {
    let manager = Manager::builder().budget_bytes(64 * MIB).background(false).build().unwrap();
    let space = manager.space().unwrap();
    let len = 48 * MIB;
    let at = space.map(len, RegionOptions::new()).unwrap();
    fill(&space, at, len);
    let pin = space.pin_exact(at + 4096, 8, Access::Write).unwrap();
    let (pointer, _) = pin.pages().next().unwrap();
    manager.set_budget(32 * MIB).unwrap();
    assert!(manager.stats().unwrap().used_bytes <= 32 * MIB);
    let again = space.pin_exact(at + 4096, 8, Access::Read).unwrap();
    assert_eq!(again.pages().next().unwrap().0, pointer, "the pinned page stayed where it was");
    drop((pin, again));
    check_odd_pages(&space, at, len);
    manager.validate();
}
