//! A caller takes things from the budget that are not pages: blocks of frames, and regions.

use octavo::{ErrorKind, FrameId, Manager, Order, RegionOptions};

const PAGE: u64 = 4096;

fn manager() -> Manager {
    Manager::builder().budget_bytes(16 << 20).background(false).build().unwrap()
}

#[test]
fn blocks_that_alloc_block_did_not_give_cannot_be_freed() {
    let manager = manager();
    let space = manager.space().unwrap();
    let at = space.map(64 * PAGE, RegionOptions::default()).unwrap();
    (0..64).for_each(|page| space.store(at + page * PAGE, page).unwrap());
    for frame in 0..2048 {
        for order in [Order::ZERO, Order::MAX] {
            let freed = manager.free_block(FrameId(frame), order);
            assert_eq!(freed.unwrap_err().kind(), ErrorKind::InvalidFree);
        }
    }
    let block = manager.alloc_block(Order::MAX).unwrap().unwrap();
    assert_eq!(manager.free_block(block, Order::ZERO).unwrap_err().kind(), ErrorKind::InvalidFree);
    manager.free_block(block, Order::MAX).unwrap();
    assert_eq!(manager.free_block(block, Order::MAX).unwrap_err().kind(), ErrorKind::InvalidFree);
    (0..64).for_each(|page| assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), page));
}

#[test]
fn regions_are_in_the_budget_too() {
    let manager = manager();
    let before = manager.stats().unwrap().used_bytes;
    let space = manager.space().unwrap();
    let mut mapped = 0;
    let error = loop {
        match space.map_at((mapped * 2 + 512) * PAGE, PAGE, RegionOptions::default()) {
            Ok(()) => mapped += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.to_string().contains("no room for more regions"), "{error}");
    let stats = manager.stats().unwrap();
    assert!(stats.used_bytes >= before + mapped * 24 && stats.used_bytes <= stats.budget_bytes);
    space.unmap(512 * PAGE, mapped * 2 * PAGE).unwrap();
    space.map(PAGE, RegionOptions::default()).unwrap();
    drop(space);
    assert_eq!(manager.stats().unwrap().used_bytes, before);
}
