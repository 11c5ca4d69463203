//! Reading ahead, prefetching and advice, on a real file: what was stored is there whatever was said about it, and each
//! hint does what it is for.

use octavo::{AccessPattern, Advice, Counter, Manager, RegionOptions, Space};

const PAGE: u64 = octavo::PAGE_BYTES as u64;
const MIB: u64 = 1 << 20;

fn value(page: u64) -> u64 {
    page.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1
}

/// A space of `pages` pages in 16 MiB, all stored to, most of them out.
fn filled(pages: u64, options: RegionOptions) -> (Manager, Space, u64) {
    let manager = Manager::builder().budget_bytes(16 * MIB).build().unwrap();
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
        // Under pressure some pages are not read ahead for want of a free frame.
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
        assert!(major < 64, "{major} faults read what had been prefetched");
    }
    let total = manager.counters();
    assert!(total.get(Counter::ReadAheadHit) > PAGES / 2, "{}", total.get(Counter::ReadAheadHit));
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
    // Writes under way end at the latest when somebody wants the pages.
    manager.reclaim(1).unwrap();
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
    // The slot of a page that is being written is given back when that has ended.
    let given_back = || manager.stats().unwrap().swap_slots <= 2;
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !given_back() && std::time::Instant::now() < patience {
        manager.reclaim(1).unwrap();
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
