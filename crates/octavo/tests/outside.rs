//! Memory of other owners under the same budget.

mod common;

use std::ops::Range;

use octavo::{HugePolicy, RegionOptions};

use common::target::{BUDGET, builder, pair};
use common::{MIB, PAGE};

#[test]
fn pages_go_out_for_what_others_use_and_come_back_when_they_use_less() {
    let manager = builder().huge(HugePolicy::Never).build().unwrap();
    let space = manager.space().unwrap();
    let (fitting, len) = (BUDGET * 3 / 4, BUDGET);
    let at = space.map(len, RegionOptions::default()).unwrap();
    let store = |pages: Range<u64>| pages.for_each(|page| space.store(at + page * PAGE, page).unwrap());
    store(0..fitting / PAGE);
    let fits = manager.stats().unwrap();
    assert_eq!(space.stats().unwrap().swapped_out_bytes, 0);
    manager.set_outside_bytes(BUDGET / 2).unwrap();
    assert_eq!(manager.stats().unwrap().outside_bytes, BUDGET / 2);
    // Each access that needs memory finds the budget overdrawn, and makes room.
    store(fitting / PAGE..len / PAGE);
    (0..len / PAGE).for_each(|page| assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), page));
    space.populate(at, len, octavo::Access::Write).unwrap();
    let crowded = manager.stats().unwrap();
    assert!(crowded.used_bytes <= BUDGET + MIB, "{crowded:?}");
    assert!(space.stats().unwrap().swapped_out_bytes > 0);
    manager.set_outside_bytes(0).unwrap();
    assert!(manager.stats().unwrap().used_bytes <= fits.used_bytes);
    (0..len / PAGE).for_each(|page| assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), page));
    manager.validate();
}

#[test]
fn pages_that_are_away_make_room_for_others_too() {
    let pair = pair(HugePolicy::Never, BUDGET);
    let pages = BUDGET / PAGE * 5 / 8;
    (0..pages).for_each(|page| pair.store(page, page + 1));
    pair.manager.set_outside_bytes(BUDGET / 2).unwrap();
    (pages..pages + 64).for_each(|page| pair.store(page, page + 1));
    assert!(pair.manager.stats().unwrap().used_bytes <= BUDGET + MIB);
    pair.manager.set_outside_bytes(0).unwrap();
    (0..pages + 64).for_each(|page| assert_eq!(pair.load(page), page + 1));
    pair.end();
}

#[test]
fn pages_that_are_charged_twice_and_there_once_take_room_once() {
    let pair = pair(HugePolicy::Never, 2 * BUDGET);
    let pages = BUDGET / PAGE * 5 / 4;
    pair.manager.set_shared_bytes(BUDGET / 2).unwrap();
    (0..pages).for_each(|page| pair.store(page, page + 1));
    let shared = pair.manager.stats().unwrap();
    assert_eq!((shared.shared_bytes, shared.swap_slots, shared.away_bytes), (BUDGET / 2, 0, pages * PAGE));
    // Stores have made copies of all pages.
    pair.manager.set_shared_bytes(0).unwrap();
    (pages..pages + 64).for_each(|page| pair.store(page, page + 1));
    assert!(pair.manager.stats().unwrap().used_bytes <= BUDGET + MIB);
    (0..pages + 64).for_each(|page| assert_eq!(pair.load(page), page + 1));
    pair.manager.set_shared_bytes(u64::MAX).unwrap();
    assert_eq!(pair.manager.stats().unwrap().shared_bytes, 6 * BUDGET, "there are numbers for no more");
    pair.end();
}

#[test]
fn an_error_for_want_of_room_names_what_others_use() {
    let manager = builder().huge(HugePolicy::Never).build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(BUDGET, RegionOptions::default()).unwrap();
    manager.set_outside_bytes(2 * BUDGET).unwrap();
    let error = (0..BUDGET / PAGE).find_map(|page| space.store(at + page * PAGE, 1_u64).err()).unwrap();
    assert!(error.to_string().contains("outside of Octavo: 32 MiB"), "{error}");
}
