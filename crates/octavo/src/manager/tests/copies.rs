//! Copies in the compressed pool of pages that their area has as well.

use crate::Advice;
use crate::Counter;
use crate::Manager;
use crate::io::SwapArea;
use crate::io::test_device::TestDevice;
use crate::reclaim::shrink_pool;
use crate::region::RegionOptions;
use crate::sync::Duration;
use crate::units::PAGE_BYTES;

/// Pages that leave the pool at once.
const MANY: usize = 512;

#[test]
fn a_copy_of_a_page_in_memory_does_not_count_as_one_that_left() {
    const BYTES: u64 = 8 << 20;
    let device = TestDevice::new(16 << 10);
    device.reads().delay(Duration::from_micros(500));
    let area = SwapArea::device(device.boxed());
    let manager =
        Manager::builder().budget_bytes(64 << 20).background(false).swap_area(area).build().unwrap();
    let (engine, space) = (manager.engine(), manager.space().unwrap());
    let pool = engine.swap.pool().unwrap();
    let at = space.map(BYTES, RegionOptions::default()).unwrap();
    let pages = || (at..at + BYTES).step_by(PAGE_BYTES);
    let words =
        |page: u64| (0..PAGE_BYTES as u64 / 8).map(move |word| if word % 4 == 0 { page | word } else { 7 });
    let load_all = || pages().for_each(|page| assert_eq!(space.load::<u64>(page).unwrap(), page));
    let evict_all = || space.advise(at, BYTES, Advice::PageOut).unwrap();
    let copies_dropped = || manager.counters().get(Counter::PoolCopyDropped);
    for page in pages() {
        let bytes: Vec<u8> = words(page).flat_map(u64::to_ne_bytes).collect();
        space.write(page, &bytes).unwrap();
    }
    // They come back from the pool, so it pays. Then they leave it for the device.
    evict_all();
    load_all();
    evict_all();
    while !shrink_pool(engine, MANY).is_nothing() {}
    assert!(engine.wait_until_ended(0));
    // They come back clean, and leave with copies.
    load_all();
    evict_all();
    load_all();
    let before = (pool.turnover().left, copies_dropped());
    while shrink_pool(engine, MANY).dropped > 0 {}
    assert!(copies_dropped() > before.1, "there are copies");
    assert_eq!(pool.turnover().left, before.0);
    load_all();
}
