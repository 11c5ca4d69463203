//! The pool's share of memory follows the pages that return.

use crate::Manager;
use crate::io::SwapArea;
use crate::io::test_device::TestDevice;
use crate::region::{AccessPattern, RegionOptions};
use crate::units::PAGE_BYTES;

#[test]
fn each_page_that_returns_is_noted_and_each_batch_looks_at_the_turn() {
    const BYTES: u64 = 24 << 20;
    let area = SwapArea::device(TestDevice::new(16 << 10).boxed());
    let manager =
        Manager::builder().budget_bytes(16 << 20).background(false).swap_area(area).build().unwrap();
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
