//! The pins and guards of one space leave memory for other spaces.

use std::sync::Arc;

use octavo::{
    Access, Advice, ErrorKind, HugePolicy, Manager, ManagerBuilder, OwnedExclusiveGuard, OwnedPin,
    RegionOptions, Space, SwapArea,
};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
const BUDGET: u64 = 32 * MIB;
/// Three quarters of the budget, in pages.
const SHARE: u64 = BUDGET / PAGE / 4 * 3;

fn builder(huge: HugePolicy) -> ManagerBuilder {
    Manager::builder().budget_bytes(BUDGET).huge(huge).swap_area(SwapArea::ram(4 * BUDGET))
}

fn space_of(manager: &Manager, guarded: bool) -> (Arc<Space>, u64) {
    let space = Arc::new(manager.space().unwrap());
    let at = space.map(2 * BUDGET, RegionOptions::new().guarded(guarded)).unwrap();
    (space, at)
}

/// Takes one page after the other until the manager refuses. Returns the pins or guards, and the kind of the
/// error.
fn take_all<T>(mut take: impl FnMut(u64) -> octavo::Result<T>) -> (Vec<T>, ErrorKind) {
    let mut taken = Vec::new();
    loop {
        match take(taken.len() as u64) {
            Ok(one) => taken.push(one),
            Err(error) => {
                assert!(
                    error.kind() != ErrorKind::TooManyPins
                        || ["three quarters", "its quota"].iter().any(|why| error.to_string().contains(why))
                );
                return (taken, error.kind());
            }
        }
    }
}

fn assert_near_share(pages: usize) {
    let (least, most) = (SHARE - SHARE / 16, SHARE + SHARE / 16);
    assert!((least..=most).contains(&(pages as u64)), "{pages} pages, and the share is {SHARE}");
}

/// Moves several times the remaining memory through another space.
fn others_have_room(other: &Space) {
    let pages = BUDGET / PAGE / 2;
    let at = other.map(pages * PAGE, RegionOptions::default()).unwrap();
    (0..pages).for_each(|page| other.store(at + page * PAGE, page).unwrap());
    (0..pages).for_each(|page| assert_eq!(other.load::<u64>(at + page * PAGE).unwrap(), page));
    other.unmap(at, pages * PAGE).unwrap();
}

fn pin(space: &Arc<Space>, address: u64) -> octavo::Result<OwnedPin> {
    space.pin_owned(address, 8, Access::Write)
}

#[test]
fn pins_that_bring_pages_in_stop_at_the_share_and_go_on_when_some_are_dropped() {
    let manager = builder(HugePolicy::Never).build().unwrap();
    let ((space, at), other) = (space_of(&manager, false), manager.space().unwrap());
    let (mut pins, refused) = take_all(|page| pin(&space, at + page * PAGE));
    assert_eq!(refused, ErrorKind::TooManyPins);
    assert_near_share(pins.len());
    others_have_room(&other);
    // Plain accesses do not count for the share.
    space.store(at + 2 * BUDGET - PAGE, 7_u64).unwrap();
    let dropped = pins.split_off(pins.len() / 2);
    let first = pins.len() as u64;
    drop(dropped);
    let (more, _) = take_all(|page| pin(&space, at + (first + page) * PAGE));
    assert_near_share(pins.len() + more.len());
    drop((pins, more));
    // Dropped pins do not count.
    for page in (0..2 * BUDGET / PAGE).chain(0..BUDGET / PAGE) {
        pin(&space, at + page * PAGE).unwrap();
    }
    manager.validate();
}

#[test]
fn pins_on_pages_that_are_there_stop_at_the_share_too() {
    for huge in [HugePolicy::Never, HugePolicy::Always] {
        let manager = builder(huge).build().unwrap();
        let (other, (space, at)) = (manager.space().unwrap(), space_of(&manager, false));
        let there = BUDGET / PAGE / 16 * 15;
        (0..there).for_each(|page| space.store(at + page * PAGE, page).unwrap());
        let (pins, refused) = take_all(|page| pin(&space, at + page * PAGE));
        assert_eq!(refused, ErrorKind::TooManyPins, "{huge:?}, {} pages", pins.len());
        assert_near_share(pins.len());
        others_have_room(&other);
        drop(pins);
        manager.validate();
    }
}

#[test]
fn a_block_that_is_pinned_counts_with_all_of_its_pages() {
    let manager = builder(HugePolicy::Always).build().unwrap();
    let (other, (space, at)) = (manager.space().unwrap(), space_of(&manager, false));
    let blocks = BUDGET / (2 * MIB) - 2;
    (0..blocks).for_each(|block| space.store(at + block * 2 * MIB, block).unwrap());
    // Thousands of pins on few blocks count only as those blocks.
    let few: Vec<_> =
        (0..20_000).map(|n| pin(&space, at + n % 2 * 2 * MIB + n % 512 * PAGE).unwrap()).collect();
    drop(few);
    let (pins, refused) = take_all(|block| pin(&space, at + block * 2 * MIB));
    assert_eq!(refused, ErrorKind::TooManyPins, "{} blocks", pins.len());
    others_have_room(&other);
    drop(pins);
    manager.validate();
}

#[test]
fn guards_stop_at_the_share_and_a_long_pin_ends_there() {
    let manager = builder(HugePolicy::Never).build().unwrap();
    let (other, (space, at)) = (manager.space().unwrap(), space_of(&manager, true));
    let guard =
        |page| -> octavo::Result<OwnedExclusiveGuard<u64>> { space.exclusive_owned(at + page * PAGE, 1) };
    let (guards, refused) = take_all(guard);
    assert_eq!(refused, ErrorKind::TooManyPins);
    assert_near_share(guards.len());
    others_have_room(&other);
    drop(guards);
    drop((space, other));

    let (other, (space, at)) = (manager.space().unwrap(), space_of(&manager, false));
    let prefix = space.pin_prefix(at, 2 * BUDGET as usize, Access::Write).unwrap();
    assert_near_share(prefix.len() / PAGE as usize);
    others_have_room(&other);
    drop(prefix);
    let all = space.pin_exact(at, 2 * BUDGET as usize, Access::Write).map(|_| ());
    assert_eq!(all.unwrap_err().kind(), ErrorKind::TooManyPins);
    others_have_room(&other);
    manager.validate();
}

#[test]
fn a_space_that_is_alone_has_all_and_a_quota_is_a_share_of_its_own() {
    let manager = builder(HugePolicy::Never).build().unwrap();
    let (space, at) = space_of(&manager, false);
    let (pins, refused) = take_all(|page| pin(&space, at + page * PAGE));
    assert_eq!(refused, ErrorKind::OutOfMemory);
    assert!(pins.len() as u64 > SHARE + SHARE / 16);
    // Now there is another space, for which no memory is left yet.
    let other = manager.space().unwrap();
    let one_more = pin(&space, at).map(|_| ());
    assert_eq!(one_more.unwrap_err().kind(), ErrorKind::TooManyPins);
    drop(pins);
    others_have_room(&other);

    let quota = BUDGET / 8 * 7;
    space.set_quota(Some(quota)).unwrap();
    let (pins, refused) = take_all(|page| pin(&space, at + page * PAGE));
    assert_eq!(refused, ErrorKind::QuotaExceeded);
    assert!((SHARE + SHARE / 16..=quota / PAGE).contains(&(pins.len() as u64)), "{} pages", pins.len());
    drop(pins);
    others_have_room(&other);
    manager.validate();
}

#[test]
fn the_share_follows_the_budget_and_ends_with_the_last_other_space() {
    let manager = builder(HugePolicy::Never).build().unwrap();
    let ((space, at), other) = (space_of(&manager, false), manager.space().unwrap());
    let (pins, refused) = take_all(|page| pin(&space, at + page * PAGE));
    assert_eq!(refused, ErrorKind::TooManyPins);
    drop(pins);
    // The space's share of the larger budget no longer counts.
    manager.set_budget(BUDGET / 2).unwrap();
    let (pins, refused) = take_all(|page| pin(&space, at + page * PAGE));
    assert_eq!(refused, ErrorKind::TooManyPins);
    assert!(pins.len() as u64 <= SHARE / 2 + SHARE / 16, "{} pages", pins.len());
    drop(other);
    let there = pins.len() as u64;
    let (more, refused) = take_all(|page| pin(&space, at + (there + page) * PAGE));
    assert_eq!(refused, ErrorKind::OutOfMemory, "nobody else needs memory");
    drop((pins, more));
    manager.validate();
}

#[test]
fn threads_that_pin_and_let_go_are_not_refused() {
    let manager = builder(HugePolicy::Never).build().unwrap();
    let ((space, at), others) =
        (space_of(&manager, false), [manager.space().unwrap(), manager.space().unwrap()]);
    std::thread::scope(|scope| {
        for first in 0..4 {
            let space = &space;
            scope.spawn(move || {
                for page in (0..4 * BUDGET / PAGE).map(|page| (first * 1000 + page) % (2 * BUDGET / PAGE)) {
                    let pins: Vec<_> = (0..4).map(|n| pin(space, at + (page ^ n) * PAGE).unwrap()).collect();
                    assert_eq!(pins.len(), 4);
                }
            });
        }
        others.iter().for_each(others_have_room);
    });
    manager.validate();
}

/// Pins pages and frees each of them, but the pin keeps the page in memory.
fn take_and_free<T>(
    space: &Space,
    at: u64,
    advice: Option<Advice>,
    mut take: impl FnMut(u64) -> octavo::Result<T>,
) -> (Vec<T>, ErrorKind) {
    take_all(|page| {
        let taken = take(at + page * PAGE)?;
        match advice {
            Some(advice) => space.advise(at + page * PAGE, PAGE, advice)?,
            None => space.unmap(at + page * PAGE, PAGE)?,
        }
        Ok(taken)
    })
}

#[test]
fn pages_that_were_unmapped_under_their_pins_count_as_well() {
    let manager = builder(HugePolicy::Never).build().unwrap();
    let ((space, at), other) = (space_of(&manager, false), manager.space().unwrap());
    for advice in [None, Some(Advice::Free)] {
        let (pins, refused) = take_and_free(&space, at, advice, |page| pin(&space, page));
        assert_eq!(refused, ErrorKind::TooManyPins, "{} pages", pins.len());
        assert_near_share(pins.len());
        // The same is true after reclaim has seen the pages.
        others_have_room(&other);
        let (more, refused) = take_and_free(&space, at + BUDGET, advice, |page| pin(&space, page));
        assert_eq!(refused, ErrorKind::TooManyPins, "{} pages more", more.len());
        assert_near_share(pins.len() + more.len());
        others_have_room(&other);
        drop((pins, more));
        // All pins are dropped, and the space may pin again.
        space.unmap(at, 2 * BUDGET).unwrap();
        space.map_at(at, 2 * BUDGET, RegionOptions::default()).unwrap();
        drop(pin(&space, at).unwrap());
    }
    manager.validate();

    let guarded = Arc::new(manager.space().unwrap());
    let at = guarded.map(2 * BUDGET, RegionOptions::new().guarded(true)).unwrap();
    let lend = |page| -> octavo::Result<OwnedExclusiveGuard<u64>> { guarded.exclusive_owned(page, 1) };
    let (guards, refused) = take_and_free(&guarded, at, Some(Advice::Free), lend);
    assert_eq!(refused, ErrorKind::TooManyPins, "{} pages", guards.len());
    assert_near_share(guards.len());
    others_have_room(&other);
    drop(guards);
    manager.validate();
}

#[test]
fn a_quota_bounds_pins_of_unmapped_pages_too() {
    let manager = builder(HugePolicy::Never).build().unwrap();
    let (space, at) = space_of(&manager, false);
    let quota = BUDGET / 4;
    space.set_quota(Some(quota)).unwrap();
    let (pins, refused) = take_and_free(&space, at, Some(Advice::Free), |page| pin(&space, page));
    assert_eq!(refused, ErrorKind::TooManyPins, "{} pages", pins.len());
    let error = pin(&space, at).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("its quota is 8 MiB"), "{error}");
    let (least, most) = (quota / PAGE / 16 * 15, quota / PAGE / 16 * 17);
    assert!((least..=most).contains(&(pins.len() as u64)), "{} pages", pins.len());
    drop(pins);
    let (pins, _) = take_all(|page| pin(&space, at + page * PAGE));
    assert!((least..=most).contains(&(pins.len() as u64)), "{} pages", pins.len());
    drop(pins);
    manager.validate();
}

#[test]
fn what_was_pinned_and_unmapped_alone_counts_when_another_space_comes() {
    let manager = builder(HugePolicy::Never).build().unwrap();
    let (space, at) = space_of(&manager, false);
    let orphans: Vec<_> = (0..SHARE / 2).map(|page| pin(&space, at + page * PAGE).unwrap()).collect();
    space.advise(at, SHARE / 2 * PAGE, Advice::Free).unwrap();
    drop(pin(&space, at + BUDGET).unwrap());
    let other = manager.space().unwrap();
    let (pins, refused) = take_and_free(&space, at, Some(Advice::Free), |page| pin(&space, page));
    assert_eq!(refused, ErrorKind::TooManyPins);
    assert_near_share(orphans.len() + pins.len());
    others_have_room(&other);
    drop((orphans, pins));
    manager.validate();
}

#[test]
fn a_quota_that_one_block_fills_is_not_refused_for_a_page_that_was_unmapped() {
    let manager = builder(HugePolicy::Always).build().unwrap();
    let (space, at) = space_of(&manager, false);
    drop(pin(&space, at).unwrap());
    let freed = pin(&space, at).unwrap();
    space.unmap(at, 2 * MIB).unwrap();
    drop(freed);
    space.set_quota(Some(2 * MIB)).unwrap();
    let block = pin(&space, at + 2 * MIB).unwrap();
    // The pages of the space are pinned again, more often than the credit allows.
    for page in (0..512).chain(0..512).chain(0..512) {
        drop(pin(&space, at + 2 * MIB + page * PAGE).unwrap());
    }
    drop(block);
    manager.validate();
}
