//! Readahead, prefetching and advice, on a real file. No hint changes the bytes of pages, and each hint has
//! its effect.

mod common;

use common::device::{Manner, TestDevice};
use common::{MIB, PAGE};
use octavo::{
    AccessPattern, Advice, Compression, Counter, Manager, ManagerBuilder, ReclaimPolicy, RegionOptions,
    Space, SwapArea,
};

fn value(page: u64) -> u64 {
    page.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1
}

/// Makes a space of `pages` pages in 16 MiB, and writes to all of them. Most pages are then out. They are on
/// the device, since pages in the pool are not read ahead.
fn filled(pages: u64, options: RegionOptions) -> (Manager, Space, u64) {
    let manager = Manager::builder().budget_bytes(16 * MIB).compression(Compression::Off).build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(pages * PAGE, options).unwrap();
    for page in 0..pages {
        space.store(at + page * PAGE, value(page)).unwrap();
    }
    (manager, space, at)
}

fn check(space: &Space, at: u64, pages: impl Iterator<Item = u64>) {
    for page in pages {
        assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), value(page), "page {page}");
    }
}

#[test]
fn a_range_read_in_order_is_read_ahead_both_ways_and_at_a_stride() {
    const PAGES: u64 = 16 * 1024;
    let (manager, space, at) = filled(PAGES, RegionOptions::default());
    let ways: [(&str, Box<dyn Iterator<Item = u64>>, u64); 3] = [
        ("forwards", Box::new(0..PAGES), PAGES),
        ("backwards", Box::new((0..PAGES).rev()), PAGES),
        ("every third", Box::new((0..PAGES).step_by(3)), PAGES / 3),
    ];
    for (way, pages, count) in ways {
        let before = manager.counters();
        check(&space, at, pages);
        let done = manager.counters().since(&before);
        let (ahead, hits, major) =
            (done.get(Counter::ReadAhead), done.get(Counter::ReadAheadHit), done.get(Counter::MajorFault));
        // Under pressure, some pages are not read ahead for lack of a free frame.
        assert!(hits > count / 2, "{way}: {ahead} read ahead, {hits} hits, {major} major faults");
    }
    manager.validate();
}

#[test]
fn a_range_said_to_be_read_at_random_is_not_read_ahead() {
    const PAGES: u64 = 8 * 1024;
    let (manager, space, at) = filled(PAGES, RegionOptions::default().pattern(AccessPattern::Random));
    let before = manager.counters();
    check(&space, at, 0..PAGES);
    assert_eq!(manager.counters().since(&before).get(Counter::ReadAhead), 0);
    space.advise(at, PAGES * PAGE, Advice::Sequential).unwrap();
    check(&space, at, 0..PAGES);
    assert!(manager.counters().since(&before).get(Counter::ReadAhead) > 0, "the advice can be taken back");
}

#[test]
fn a_prefetched_range_is_there_without_another_read() {
    const PAGES: u64 = 8 * 1024;
    let (manager, space, at) = filled(PAGES, RegionOptions::default().pattern(AccessPattern::Random));
    for first in (0..PAGES).step_by(64) {
        let started = space.prefetch(at + first * PAGE + 5, 64 * PAGE - 5).unwrap();
        assert!(started <= 64);
        let before = manager.counters();
        check(&space, at, first..first + 64);
        let major = manager.counters().since(&before).get(Counter::MajorFault);
        // If all pages in memory are on their way out, a call starts no read.
        assert!(started == 0 || major < 64, "{major} faults read what had been prefetched");
    }
    let total = manager.counters();
    assert!(total.get(Counter::ReadAheadHit) > PAGES / 2, "{}", total.get(Counter::ReadAheadHit));
}

/// Makes a builder whose device ends each transfer at once, so that only the calls decide where a page is.
fn exact() -> ManagerBuilder {
    Manager::builder()
        .budget_bytes(16 * MIB)
        .background(false)
        .compression(Compression::Off)
        .swap_area(SwapArea::ram(64 * MIB))
}

#[test]
fn what_is_read_ahead_ends_with_its_region() {
    let manager = exact().build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(4 * MIB, RegionOptions::default()).unwrap();
    space.advise(at + 2 * MIB, 2 * MIB, Advice::Random).unwrap();
    (0..1024).for_each(|page| space.store(at + page * PAGE, value(page)).unwrap());
    space.advise(at, 4 * MIB, Advice::PageOut).unwrap();
    let before = manager.counters();
    check(&space, at, 0..512);
    let done = manager.counters().since(&before);
    assert!(done.get(Counter::ReadAhead) > 0);
    assert_eq!(done.get(Counter::SwapIn), 512);
    check(&space, at, 512..1024);
}

#[test]
fn prefetch_takes_a_part_of_memory_and_what_the_quota_leaves() {
    let manager = exact().build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(32 * MIB, RegionOptions::default().pattern(AccessPattern::Random)).unwrap();
    (0..8192).for_each(|page| space.store(at + page * PAGE, value(page)).unwrap());
    space.advise(at, 32 * MIB, Advice::PageOut).unwrap();
    assert_eq!(space.prefetch(at, 32 * MIB).unwrap(), 16 * MIB / PAGE / 4);
    space.set_quota(Some(2 * MIB)).unwrap();
    check(&space, at, 0..100);
    assert_eq!(space.stats().unwrap().resident_bytes, 100 * PAGE);
    assert_eq!(space.prefetch(at + 16 * MIB, 16 * MIB).unwrap(), 512 - 100);
    check(&space, at, 0..8192);
    manager.validate();
}

#[test]
fn what_is_prefetched_is_under_way_whoever_comes_for_it() {
    let device = TestDevice::with_manner(4096, Manner::AtFlush);
    let manager = Manager::builder()
        .budget_bytes(16 * MIB)
        .background(false)
        .compression(Compression::Off)
        .swap_area(SwapArea::device(device.boxed()))
        .build()
        .unwrap();
    let space = manager.space().unwrap();
    let at = space.map(2 * MIB, RegionOptions::default()).unwrap();
    (0..512).for_each(|page| space.store(at + page * PAGE, value(page)).unwrap());
    space.advise(at, 2 * MIB, Advice::PageOut).unwrap();
    assert_eq!(space.prefetch(at, 2 * MIB).unwrap(), 512);
    assert_eq!(manager.counters().get(Counter::SwapIn), 512, "all was read");
    check(&space, at, 0..512);
}

#[test]
fn pages_said_to_be_cold_go_before_others() {
    let manager = exact().reclaim_policy(ReclaimPolicy::Clock).build().unwrap();
    let fill = || {
        let space = manager.space().unwrap();
        let at = space.map(5 * MIB, RegionOptions::default()).unwrap();
        (0..1280).for_each(|page| space.store(at + page * PAGE, value(page)).unwrap());
        (space, at)
    };
    let ((warm, warm_at), (cold, cold_at)) = (fill(), fill());
    cold.advise(cold_at, 5 * MIB, Advice::Cold).unwrap();
    let (_more, _) = fill();
    let out = |space: &Space| space.stats().unwrap().swapped_out_bytes;
    assert!(out(&cold) > 0, "there is not room for all three");
    assert_eq!(out(&warm), 0, "{} of the cold went", out(&cold));
    check(&warm, warm_at, 0..1280);
    check(&cold, cold_at, 0..1280);
}

#[test]
fn pages_said_to_be_cold_are_not_hot() {
    let manager = exact().reclaim_policy(ReclaimPolicy::Reuse).build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(20 * MIB, RegionOptions::default()).unwrap();
    (0..5120).for_each(|page| space.store(at + page * PAGE, value(page)).unwrap());
    (0..2).for_each(|_| check(&space, at, 0..5120));
    let hot = || manager.stats().unwrap().lru_pages.0;
    assert!(hot() > 0, "pages that came back are hot");
    space.advise(at, 20 * MIB, Advice::Cold).unwrap();
    assert_eq!(hot(), 0);
    check(&space, at, 0..5120);
    manager.validate();
}

#[test]
fn pages_sent_out_are_out_and_come_back_right() {
    let manager = Manager::builder().budget_bytes(16 * MIB).background(false).build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(4 * MIB, RegionOptions::default()).unwrap();
    for page in 0..1024 {
        space.store(at + page * PAGE, value(page)).unwrap();
    }
    space.advise(at, 2 * MIB, Advice::PageOut).unwrap();
    let resident = space.stats().unwrap().resident_bytes;
    assert!(resident <= 2 * MIB + 64 * PAGE, "{resident}");
    check(&space, at, 0..1024);
    space.advise(at, 4 * MIB, Advice::Cold).unwrap();
    check(&space, at, 0..1024);
    manager.validate();
}

#[test]
fn what_is_freed_reads_as_zeros_and_can_be_used_again() {
    const PAGES: u64 = 8 * 1024;
    let (manager, space, at) = filled(PAGES, RegionOptions::default());
    space.advise(at + PAGE, (PAGES - 2) * PAGE, Advice::Free).unwrap();
    // If a page is being written, its slot is freed when the write ends.
    let given_back = || manager.stats().unwrap().swap_slots <= 2;
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !given_back() && std::time::Instant::now() < patience {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(given_back(), "the slots are given back");
    check(&space, at, [0, PAGES - 1].into_iter());
    for page in 1..PAGES - 1 {
        assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), 0);
    }
    space.store(at + 5 * PAGE, 7_u64).unwrap();
    assert_eq!(space.load::<u64>(at + 5 * PAGE).unwrap(), 7);
    space.advise(1 << 40, 4096, Advice::WillNeed).unwrap();
    manager.validate();
}
