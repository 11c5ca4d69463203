//! The pool's share of memory follows the pages that return.

use crate::Manager;
use crate::counters::Counter;
use crate::io::SwapArea;
use crate::io::test_device::TestDevice;
use crate::region::{AccessPattern, RegionOptions};
use crate::units::PAGE_BYTES;

const BYTES: u64 = 24 << 20;

/// A manager of 16 MiB without a thread of its own.
fn manager() -> Manager {
    let area = SwapArea::device(TestDevice::new(16 << 10).boxed());
    Manager::builder().budget_bytes(16 << 20).background(false).swap_area(area).build().unwrap()
}

#[test]
fn each_page_that_returns_is_noted_and_each_batch_looks_at_the_turn() {
    let manager = manager();
    let (share, space) = (manager.engine().swap.pool().unwrap().share(), manager.space().unwrap());
    let options = RegionOptions { pattern: AccessPattern::Random, ..RegionOptions::default() };
    let at = space.map(BYTES, options).unwrap();
    let pages = || (at..at + BYTES).step_by(PAGE_BYTES);
    pages().for_each(|page| space.store(page, page).unwrap());
    assert_eq!(share.noted(), (0, true), "nothing has returned");
    pages().for_each(|page| assert_eq!(space.load::<u64>(page).unwrap(), page));
    let (returned, _) = share.noted();
    assert!(returned >= 512, "{returned}: more than 4 MiB of them were out");
}

#[test]
fn pages_that_repeat_a_word_are_no_returns_from_the_pool() {
    let manager = manager();
    let (share, space) = (manager.engine().swap.pool().unwrap().share(), manager.space().unwrap());
    let at = space.map(BYTES, RegionOptions::default()).unwrap();
    let pages = || (at..at + BYTES).step_by(PAGE_BYTES);
    pages().for_each(|page| space.write(page, &[7; PAGE_BYTES]).unwrap());
    pages().for_each(|page| assert_eq!(space.load::<u8>(page).unwrap(), 7));
    let filled = manager.counters().get(Counter::ZeroSwapIn);
    assert!(filled >= 512, "{filled}: more than 4 MiB of them were out");
    assert_eq!(share.noted().0, 0);
}

/// The share learns the costs of exactly the returns that it counts. Pages that were read ahead are no
/// returns.
#[test]
fn only_a_fault_that_sends_for_its_page_tells_the_share_how_long_it_waited() {
    let manager = manager();
    let (share, space) = (manager.engine().swap.pool().unwrap().share(), manager.space().unwrap());
    let map = |pattern| {
        let options = RegionOptions { pattern, compress: false, ..RegionOptions::default() };
        space.map(BYTES / 2, options).unwrap()
    };
    let [random, ordered] = [AccessPattern::Random, AccessPattern::Sequential].map(map);
    for page in (0..BYTES / 2).step_by(PAGE_BYTES) {
        [random, ordered].into_iter().for_each(|at| space.store(at + page, page).unwrap());
    }
    let load = |at: u64| {
        (0..512 * PAGE_BYTES as u64)
            .step_by(PAGE_BYTES)
            .for_each(|page| assert_eq!(space.load::<u64>(at + page).unwrap(), page));
    };
    let count = |counter| manager.counters().get(counter);
    let waits = || share.times().waits.number();
    assert_eq!(waits(), 0);
    load(ordered);
    let (sent, ahead) = (count(Counter::MajorFault), count(Counter::ReadAheadHit));
    assert!(ahead > 8 * sent, "{ahead} pages were read ahead, and {sent} were sent for");
    assert!(waits() <= sent, "{} waits for {sent} pages", waits());
    load(random);
    assert!(waits() >= 64, "{} waits: one page in four is timed", waits());
}
