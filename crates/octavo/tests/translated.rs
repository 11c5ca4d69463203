//! Spaces whose pages can also be reached from another side: pages go away and come home, and no store is
//! lost.

mod common;

use std::future::Future;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use common::device::{Manner, TestDevice, Whims};
use common::target::{Able, BUDGET, QuestionKind, SLOTS, TranslatedPair, builder, pair, pair_of};
use common::{MIB, PAGE, Watchdog, says};
use octavo::io::SwapFile;
use octavo::translation::{Answer, InPlace};
use octavo::{
    Access, Advice, Compression, Counter, ErrorKind, HugePolicy, HugeZeroWrite, Manager, Protection,
    RegionOptions,
};

#[test]
fn bytes_are_in_one_place_and_both_sides_see_each_others_stores() {
    let pair = pair(HugePolicy::Never, 8 * PAGE);
    pair.store(0, 1);
    pair.agree(1, 0);
    assert_eq!(pair.space.load::<u64>(pair.page(0)).unwrap(), 1, "it came home");
    pair.agree(0, 0);
    pair.space.store(pair.page(0), 2_u64).unwrap();
    assert_eq!(pair.load(0), 2, "it went away");
    pair.agree(1, 0);
    let pin = pair.space.pin_exact(pair.page(0), 8, Access::Write).unwrap();
    pin.store(0, 3_u64).unwrap();
    drop(pin);
    assert_eq!(pair.load(0), 3);
    pair.space.write(pair.page(0), &[7; PAGE as usize]).unwrap();
    assert_eq!(pair.load(0), u64::from_le_bytes([7; 8]));
    pair.end();
}

#[test]
fn zeros_need_no_memory_at_either_side_until_they_are_written() {
    let pair = pair(HugePolicy::Never, 8 * PAGE);
    assert_eq!(pair.load(0), 0);
    pair.agree(0, 1);
    assert_eq!(pair.space.load::<u64>(pair.page(0)).unwrap(), 0, "zeros are at both sides");
    pair.agree(0, 1);
    pair.space.store(pair.page(0), 5_u64).unwrap();
    pair.agree(0, 0);
    assert_eq!(pair.load(0), 5);
    assert_eq!(pair.load(1), 0);
    pair.store(1, 6);
    pair.agree(2, 0);
    pair.end();
}

#[test]
fn two_mib_of_zeros_are_shown_at_once_and_replaced_as_the_policy_says() {
    for (write, pages) in [(HugeZeroWrite::Split, 1), (HugeZeroWrite::Allocate, 512)] {
        let pair = pair_of(builder().huge(HugePolicy::Always).huge_zero_write(write), Able::ALL, 2 * MIB);
        assert_eq!(pair.load(3), 0);
        assert_eq!(pair.target.take_asked(QuestionKind::Install), [(pair.at / PAGE, 512)]);
        pair.agree(0, 512);
        pair.store(7, 1);
        pair.agree(pages, 512 - pages);
        assert_eq!(pair.space.load::<u64>(pair.page(7)).unwrap(), 1);
        pair.end();
    }
}

#[test]
fn a_target_without_zero_pages_gets_zeros_with_memory() {
    for huge in [HugePolicy::Never, HugePolicy::Always] {
        let able = Able { shows_zeros: false, ..Able::ALL };
        let pair = pair_of(builder().huge(huge), able, 2 * MIB);
        assert_eq!(pair.load(3), 0);
        pair.agree(1, 0);
        pair.end();
    }
}

#[test]
fn a_page_goes_out_from_where_it_is_and_comes_back_on_either_side() {
    let pair = pair(HugePolicy::Never, 64 * PAGE);
    (0..64).for_each(|page| pair.store(page, page + 1));
    pair.agree(64, 0);
    pair.evict_all();
    pair.agree(0, 0);
    assert_eq!(pair.manager.stats().unwrap().swap_slots, 64);
    for page in 0..64 {
        let (here, there) = (pair.space.load::<u64>(pair.page(page)), || pair.load(page));
        assert_eq!((here.unwrap(), there()), (page + 1, page + 1));
    }
    pair.agree(64, 0);
    pair.end();
}

#[test]
fn pages_go_in_runs() {
    let pair = pair(HugePolicy::Never, 128 * PAGE);
    (0..128).for_each(|page| pair.store(page, page + 1));
    pair.space.advise(pair.at, 128 * PAGE, Advice::PageOut).unwrap();
    let runs = pair.target.take_asked(QuestionKind::Remove);
    assert_eq!(runs.iter().map(|(_, count)| count).sum::<u32>(), 128);
    assert!(
        runs.len() <= 16,
        "neighbours go together as far as their frames at home are neighbours: {runs:?}"
    );
    (0..128).for_each(|page| pair.store(page, page + 1));
    pair.target.take_asked(QuestionKind::Remove);
    pair.space.unmap(pair.at, 128 * PAGE).unwrap();
    assert_eq!(pair.target.take_asked(QuestionKind::Remove).len(), 1, "one batch");
    pair.end();
}

#[test]
fn a_page_that_was_only_read_keeps_its_place_and_is_not_written_again() {
    for able in [Able::ALL, Able { watches: false, ..Able::ALL }] {
        let pair = pair_of(builder().huge(HugePolicy::Never), able, 16 * PAGE);
        (0..16).for_each(|page| pair.store(page, page + 1));
        pair.evict_all();
        (0..16).for_each(|page| assert_eq!(pair.load(page), page + 1));
        pair.agree(16, 0);
        assert_eq!(pair.manager.stats().unwrap().swap_slots, 16, "clean pages keep their places");
        // Written pages lose their slots, if the target reported the write, and also if reclaim found it.
        (0..4).for_each(|page| pair.store(page, page + 101));
        pair.evict_all();
        pair.agree(0, 0);
        let written = pair.manager.counters().get(Counter::SwapOut);
        assert_eq!(written, 16 + 4, "{able:?}: each page was written once, and four twice");
        for page in 0..16 {
            let expected = if page < 4 { page + 101 } else { page + 1 };
            assert_eq!(pair.load(page), expected, "{able:?}, page {page}");
        }
        pair.end();
    }
}

#[test]
fn a_clean_page_leaves_with_a_copy_in_the_pool_which_is_dropped_for_nothing() {
    const PAGES: u64 = 8192;
    let device = TestDevice::new(64 << 10);
    device.reads().delay(Duration::from_micros(500));
    let manager = Manager::builder().budget_bytes(4 * BUDGET).background(false).swap_device(device.boxed());
    let pair = pair_of(manager.huge(HugePolicy::Never), Able::ALL, PAGES * PAGE);
    let counted = |counter| pair.manager.counters().get(counter);
    // A page compresses to about a third.
    let words =
        |page: u64| (0..PAGE / 8).map(move |at| if at.is_multiple_of(4) { page << 16 | at } else { at % 8 });
    let fill = |page| words(page).flat_map(u64::to_ne_bytes).collect::<Vec<u8>>();
    let load_all = || {
        let before = counted(Counter::SwapIn);
        (0..PAGES).for_each(|page| assert_eq!(pair.load(page), page << 16));
        counted(Counter::SwapIn) - before
    };
    (0..PAGES).for_each(|page| pair.space.write(pair.page(page), &fill(page)).unwrap());
    pair.evict_all();
    // The pages come back from the pool, so the pool pays off. Then they leave the pool for the device.
    load_all();
    pair.evict_all();
    pair.manager.set_budget(octavo::MIN_BUDGET_BYTES).unwrap();
    pair.manager.set_budget(4 * BUDGET).unwrap();
    let written = counted(Counter::SwapOut);
    assert!(written > PAGES / 2, "{written} pages are on the device");
    let read = load_all();
    pair.evict_all();
    assert_eq!(counted(Counter::SwapOut), written, "no clean page is written");
    let read_then = load_all();
    assert!(read_then < read, "{read_then} pages of {read} came from the device again");
    pair.evict_all();
    // The pool is now larger than its share of the budget.
    pair.manager.set_budget(BUDGET).unwrap();
    assert!(counted(Counter::PoolCopyDropped) > 0);
    load_all();
    for page in 0..PAGES {
        let mut bytes = vec![0; PAGE as usize];
        pair.space.read(pair.page(page), &mut bytes).unwrap();
        assert!(bytes == fill(page), "page {page}");
    }
    pair.end();
}

#[test]
fn what_cannot_be_learned_of_counts_as_written() {
    let able = Able { watches: false, harvests: false, ..Able::ALL };
    let pair = pair_of(builder().huge(HugePolicy::Never), able, 16 * PAGE);
    (0..16).for_each(|page| pair.store(page, page + 1));
    for round in 2..5 {
        pair.evict_all();
        pair.agree(0, 0);
        (0..16).for_each(|page| assert_eq!(pair.load(page), (round - 1) * (page + 1)));
        (0..16).for_each(|page| pair.store(page, round * (page + 1)));
    }
    pair.end();
}

#[test]
fn pages_that_the_other_side_uses_stay_longer() {
    let pair = pair(HugePolicy::Never, 512 * PAGE);
    (0..512).for_each(|page| pair.store(page, page + 1));
    // All pages were just used. From now on, only every eighth page is used.
    while pair.manager.reclaim(1).unwrap() == 0 {}
    let stayed = |page: &u64| pair.target.try_load(pair.page(*page)).is_some();
    let mut gone = 0;
    for _ in 0..6 {
        gone += 64 - (0..512).step_by(8).filter(stayed).count();
        (0..512).step_by(8).for_each(|page| assert_eq!(pair.load(page), page + 1));
        pair.manager.reclaim(48).unwrap();
    }
    let others = (0..512).filter(|page| page % 8 != 0).filter(stayed).count();
    assert!(
        others < 448 - 128 && gone < 8,
        "{gone} times a page that is used was gone, {others} of 448 others stayed"
    );
    pair.end();
}

#[test]
fn more_than_the_budget_fits_and_the_budget_holds() {
    for huge in [HugePolicy::Never, HugePolicy::Always] {
        let pair = pair(huge, 3 * BUDGET);
        let pages = 3 * BUDGET / PAGE;
        for page in 0..pages {
            pair.store(page, page + 1);
            if page % 256 == 0 {
                let stats = pair.manager.stats().unwrap();
                assert!(stats.used_bytes <= BUDGET, "{} of {BUDGET} bytes", stats.used_bytes);
            }
        }
        let away = pair.away_pages() * PAGE;
        assert!(away > BUDGET / 2, "most of the budget is away: {away}");
        (0..pages).for_each(|page| assert_eq!(pair.load(page), page + 1, "page {page}"));
        // Pages of a handle that come back displace pages that are away.
        let at = pair.space.map(2 * BUDGET, RegionOptions::default()).unwrap();
        // On a busy machine, the background thread may be late.
        let gives_way = |turn| {
            for page in 0..2 * BUDGET / PAGE {
                pair.space.store(at + page * PAGE, page + turn).unwrap();
            }
            turn >= 2 && pair.away_pages() * PAGE < BUDGET / 2
        };
        assert!((0..30).any(gives_way), "{} pages are away", pair.away_pages());
        (0..pages).for_each(|page| assert_eq!(pair.load(page), page + 1, "page {page}"));
        // When the handle's pages are unmapped, the other side gets their room.
        pair.space.unmap(at, 2 * BUDGET).unwrap();
        (0..pages).for_each(|page| assert_eq!(pair.load(page), page + 1, "page {page}"));
        let away = pair.away_pages() * PAGE;
        assert!(away > BUDGET / 2, "chunks at home were given back: {away}");
        pair.manager.validate();
        pair.end();
    }
}

#[test]
fn without_swap_pages_stay_and_the_error_says_so() {
    let builder = Manager::builder().budget_bytes(BUDGET).swap_file(SwapFile::None).background(false);
    let pair = pair_of(builder.huge(HugePolicy::Never), Able::ALL, 2 * BUDGET);
    let store = |page| pair.target.store(&pair.space, pair.page(page), page + 1);
    let full = (0..2 * BUDGET / PAGE).find(|page| store(*page).is_err()).unwrap();
    says(store(full), ErrorKind::OutOfMemory, &["translated", "configure a swap file"]);
    (0..full).for_each(|page| assert_eq!(pair.load(page), page + 1));
    pair.space.unmap(pair.at, 64 * PAGE).unwrap();
    pair.target.store(&pair.space, pair.page(full), 9).unwrap();
    pair.manager.validate();
    pair.end();
}

/// Writes of one thread fail while others wait for room. For none of these threads, the failed writes count
/// as progress.
#[test]
fn threads_that_wait_for_each_others_writes_end_where_all_writes_fail() {
    const THREADS: u64 = 8;
    for (seed, delay) in [(1, 0), (2, 100)] {
        let whims = Whims { failed_writes: 1000, full: true, delay, ..Whims::default() };
        let device = TestDevice::simulated(1 << 18, seed, Manner::Threads(2), whims);
        let builder = Manager::builder().budget_bytes(BUDGET).swap_device(device.boxed());
        let builder = builder.compression(Compression::Off).huge(HugePolicy::Never);
        let pair = pair_of(builder, Able::ALL, THREADS * BUDGET);
        let _watchdog = Watchdog::new(format!("seed {seed}"));
        let part = THREADS * BUDGET / PAGE / THREADS;
        thread::scope(|scope| {
            for first in (0..THREADS).map(|thread| thread * part) {
                let pair = &pair;
                scope.spawn(move || {
                    let store = |page| pair.target.store(&pair.space, pair.page(page), page + 1);
                    let failed = (first..first + part).find(|page| store(*page).is_err());
                    let failed = failed.expect("this part alone is as large as the budget");
                    // A page that came home for a write has no room on the other side.
                    let load = |page| pair.target.load(&pair.space, pair.page(page));
                    for page in first..failed {
                        let Ok(found) = load(page) else { break };
                        assert_eq!(found, page + 1);
                    }
                });
            }
        });
        pair.manager.validate();
    }
}

#[test]
fn a_block_is_split_before_its_pages_go_and_its_split_is_told() {
    let pair = pair(HugePolicy::Always, 4 * MIB);
    pair.store(5, 6);
    pair.agree(512, 0);
    assert_eq!(pair.target.take_asked(QuestionKind::Install), [(pair.at / PAGE, 512)]);
    // A load by a handle splits the block, and brings one page home.
    assert_eq!(pair.space.load::<u64>(pair.page(5)).unwrap(), 6);
    assert_eq!(pair.target.take_asked(QuestionKind::Split), [(pair.at / PAGE, 512)]);
    pair.agree(511, 0);
    // This write crosses the edge of a block.
    pair.store(512, 7);
    pair.space.unmap(pair.page(512 + 100), PAGE).unwrap();
    assert_eq!(pair.target.take_asked(QuestionKind::Split), [(pair.at / PAGE + 512, 512)]);
    pair.agree(511 + 511, 0);
    // A block is split on its way out. A block that may not be split stays.
    let (at, first) = (pair.space.map(2 * MIB, RegionOptions::default()).unwrap(), pair.away_pages());
    pair.target.store(&pair.space, at, 8).unwrap();
    pair.agree(first + 512, 0);
    pair.target.always(QuestionKind::Split, Some(Answer::Busy));
    pair.evict_all();
    pair.agree(512, 0);
    says(pair.space.unmap(at, PAGE), ErrorKind::Busy, &["2 MiB block"]);
    pair.target.always(QuestionKind::Split, None);
    pair.evict_all();
    pair.agree(0, 0);
    assert_eq!(pair.target.load(&pair.space, at).unwrap(), 8);
    assert_eq!((pair.load(5), pair.load(512)), (6, 7));
    pair.end();
}

#[test]
fn of_a_block_the_part_stays_that_was_installed() {
    for zeros_first in [false, true] {
        let write = HugeZeroWrite::Allocate;
        let pair = pair_of(builder().huge(HugePolicy::Always).huge_zero_write(write), Able::ALL, 2 * MIB);
        if zeros_first {
            assert_eq!(pair.load(0), 0);
        }
        pair.target.script(QuestionKind::Install, [Answer::Partly(100), Answer::Busy]);
        pair.store(300, 7);
        pair.agree(101, if zeros_first { 411 } else { 0 });
        assert_eq!(pair.manager.stats().unwrap().huge_zero_users, 0);
        (0..512).for_each(|page| assert_eq!(pair.load(page), if page == 300 { 7 } else { 0 }));
        (0..512).for_each(|page| pair.store(page, page));
        pair.agree(512, 0);
        pair.end();
    }
}

#[test]
fn a_refusal_leaves_the_page_as_it_was_and_is_an_error_in_the_end() {
    let pair = pair(HugePolicy::Never, 8 * PAGE);
    // The target refuses, one after the other, to install zeros, to install a copy, and to give a page up.
    let always = |ask, answer| pair.target.always(ask, answer);
    for (answer, kind) in [(Answer::Busy, ErrorKind::Busy), (Answer::Unsupported, ErrorKind::Unsupported)] {
        always(QuestionKind::Install, Some(answer));
        says(pair.target.store(&pair.space, pair.page(0), 1), kind, &["page at"]);
        pair.agree(0, 0);
        pair.space.store(pair.page(1), 2_u64).unwrap();
        says(pair.target.load(&pair.space, pair.page(1)), kind, &["page at"]);
        assert_eq!(pair.space.load::<u64>(pair.page(1)).unwrap(), 2);
        always(QuestionKind::Install, None);
        pair.store(2, 3);
        always(QuestionKind::Remove, Some(answer));
        says(pair.space.load::<u64>(pair.page(2)), kind, &["page at"]);
        pair.evict_all();
        assert_eq!(pair.load(2), 3, "it stayed");
        always(QuestionKind::Remove, None);
        assert_eq!(pair.space.load::<u64>(pair.page(2)).unwrap(), 3);
        pair.manager.validate();
    }
    pair.target.script(QuestionKind::Install, [Answer::Busy; 5]);
    pair.store(3, 4);
    assert_eq!(pair.load(3), 4);
    pair.end();
}

#[test]
fn a_pinned_page_goes_when_its_pin_is_gone() {
    let pair = pair(HugePolicy::Never, PAGE);
    pair.space.store(pair.at, 1_u64).unwrap();
    let pin = pair.space.pin_exact(pair.at, 8, Access::Write).unwrap();
    says(pair.target.load(&pair.space, pair.at), ErrorKind::Busy, &["drop what holds"]);
    pin.store(0, 2_u64).unwrap();
    drop(pin);
    assert_eq!(pair.load(0), 2);
    pair.end();
}

#[test]
fn protection_is_told_and_a_fault_finds_what_is_allowed() {
    for huge in [HugePolicy::Never, HugePolicy::Always] {
        let pair = pair(huge, 2 * MIB);
        (0..512).for_each(|page| pair.store(page, page + 1));
        pair.space.protect(pair.at, 4 * PAGE, Protection::READ).unwrap();
        assert_eq!(pair.target.take_asked(QuestionKind::Protect), [(pair.at / PAGE, 4)]);
        assert_eq!(pair.load(0), 1);
        assert!(!pair.target.try_store(pair.at, 9));
        says(pair.target.store(&pair.space, pair.at, 9), ErrorKind::Protected, &[]);
        pair.store(4, 9);
        pair.space.protect(pair.at, 4 * PAGE, Protection::READ_WRITE).unwrap();
        assert!(!pair.target.try_store(pair.at, 9), "a fault allows more");
        pair.store(0, 9);
        pair.space.protect(pair.at, 4 * PAGE, Protection::NONE).unwrap();
        assert_eq!(pair.target.try_load(pair.at), None);
        says(pair.target.load(&pair.space, pair.at), ErrorKind::Protected, &[]);
        pair.space.protect(pair.at, 4 * PAGE, Protection::READ).unwrap();
        assert_eq!(pair.load(0), 9);
        pair.manager.validate();
        pair.end();
    }
}

#[test]
fn protection_that_the_translation_cannot_give_is_an_error_and_changes_no_region() {
    let able = Able { protects: false, ..Able::ALL };
    let pair = pair_of(builder().huge(HugePolicy::Never), able, 8 * PAGE);
    (0..4).for_each(|page| pair.store(page, page + 1));
    pair.space.store(pair.page(4), 5_u64).unwrap();
    let protect = |protection| pair.space.protect(pair.at, 8 * PAGE, protection);
    says(protect(Protection::READ), ErrorKind::Unsupported, &["translation cannot protect"]);
    // Both sides still have all of their permissions.
    (0..4).for_each(|page| assert!(pair.target.try_store(pair.page(page), page + 11)));
    pair.space.store(pair.page(4), 15_u64).unwrap();
    pair.evict_all();
    (0..5).for_each(|page| assert_eq!(pair.space.load::<u64>(pair.page(page)).unwrap(), page + 11));
    protect(Protection::READ).unwrap();
    pair.end();
}

#[test]
fn what_is_in_place_becomes_pages_that_count_and_go() {
    let pair = pair(HugePolicy::Never, 4 * MIB);
    let put = |page, word| pair.target.put(pair.page(page), word, Protection::READ_WRITE);
    (0..600).for_each(|page| put(page, Some(page + 1)));
    (600..610).for_each(|page| pair.target.put(pair.page(page), None, Protection::READ));
    pair.adopt(pair.at, 600 * PAGE, InPlace::Blocks(Protection::READ_WRITE)).unwrap();
    pair.adopt(pair.page(600), 10 * PAGE, InPlace::Zeros).unwrap();
    assert_eq!(pair.target.take_asked(QuestionKind::Install), [], "nothing was asked");
    pair.agree(600, 10);
    assert_eq!(pair.space.load::<u64>(pair.page(599)).unwrap(), 600);
    assert_eq!(pair.space.load::<u64>(pair.page(605)).unwrap(), 0);
    let again = pair.adopt(pair.page(598), PAGE, InPlace::Pages(Protection::READ_WRITE));
    says(again, ErrorKind::AlreadyMapped, &["has something already"]);
    // The target's pages were put there one by one and are no block, but the target still gets the question
    // about the split.
    pair.target.always(QuestionKind::Split, Some(Answer::Partly(0)));
    pair.evict_all();
    pair.agree(512, 10);
    pair.end();
}

#[test]
fn more_than_the_budget_is_adopted_by_sending_out_what_was_adopted_first() {
    let pair = pair(HugePolicy::Never, 3 * BUDGET);
    let pages = 3 * BUDGET / PAGE;
    (0..pages).for_each(|page| pair.target.put(pair.page(page), Some(page + 1), Protection::READ_WRITE));
    pair.adopt(pair.at, 3 * BUDGET, InPlace::Pages(Protection::READ_WRITE)).unwrap();
    assert!(pair.manager.stats().unwrap().used_bytes <= BUDGET);
    (0..pages).for_each(|page| assert_eq!(pair.load(page), page + 1, "page {page}"));
    pair.end();
}

#[test]
fn a_quota_counts_pages_that_are_away() {
    let pair = pair(HugePolicy::Never, 8 * MIB);
    pair.space.set_quota(Some(2 * MIB)).unwrap();
    for page in 0..2048 {
        pair.store(page, page + 1);
        assert!(pair.space.stats().unwrap().resident_bytes <= 2 * MIB);
    }
    (0..2048).for_each(|page| assert_eq!(pair.load(page), page + 1));
    pair.end();
}

#[test]
fn a_translation_that_panics_is_an_error_and_nobody_is_left_waiting() {
    let _watchdog = Watchdog::new("a translation that panics");
    let pair = pair(HugePolicy::Never, 8 * PAGE);
    let unsupported = |result: octavo::Result<()>| says(result, ErrorKind::Unsupported, &["page at"]);
    pair.target.panic_at_next(QuestionKind::Install);
    unsupported(pair.target.store(&pair.space, pair.page(0), 1));
    pair.store(0, 1);
    pair.target.panic_at_next(QuestionKind::Remove);
    unsupported(pair.space.load::<u64>(pair.page(0)).map(drop));
    assert_eq!(pair.space.load::<u64>(pair.page(0)).unwrap(), 1);
    pair.store(0, 2);
    pair.target.panic_at_next(QuestionKind::Remove);
    pair.evict_all();
    assert_eq!(pair.load(0), 2);
    pair.target.panic_at_next(QuestionKind::Harvest);
    pair.evict_all();
    assert_eq!(pair.load(0), 2);
    pair.target.panic_at_next(QuestionKind::Protect);
    let protected = pair.space.protect(pair.at, PAGE, Protection::NONE);
    says(protected, ErrorKind::Unsupported, &["translation cannot protect"]);
    assert_eq!(pair.load(0), 2);
    pair.target.panic_at_next(QuestionKind::Remove);
    pair.space.unmap(pair.at, PAGE).unwrap();
    assert_eq!(pair.target.try_load(pair.at), None, "it was asked again");
    pair.manager.validate();
    pair.end();
}

#[test]
fn an_answer_counts_though_the_translation_panics_after_it() {
    let pair = pair(HugePolicy::Always, 4 * MIB);
    let small = pair.page(512);
    pair.space.store(small, 7_u64).unwrap();
    pair.target.panic_at(QuestionKind::Install, 0, true);
    pair.target.store(&pair.space, small + 8, 8).unwrap();
    assert_eq!(pair.target.load(&pair.space, small).unwrap(), 7);
    assert_eq!(pair.space.load::<u64>(small + 8).unwrap(), 8);
    // The pages of the block for which the target answered stay installed.
    pair.target.script(QuestionKind::Install, [Answer::Partly(100)]);
    pair.target.panic_at(QuestionKind::Install, 1, false);
    pair.target.store(&pair.space, pair.page(3), 3).unwrap();
    assert_eq!(pair.target.load(&pair.space, pair.page(3)).unwrap(), 3);
    for page in [0, 99, 100, 511] {
        pair.store(page, page + 1);
        assert_eq!(pair.load(page), page + 1);
    }
    pair.manager.validate();
    pair.end();
}

#[test]
fn a_block_in_place_is_taken_page_by_page_where_a_block_cannot_be() {
    let pair = pair(HugePolicy::Never, 4 * MIB);
    let put = |pair: &TranslatedPair, page| {
        pair.target.put(pair.page(page), Some(page + 1), Protection::READ_WRITE)
    };
    (0..1024).for_each(|page| put(&pair, page));
    // An empty table node remains here.
    pair.target.store(&pair.space, pair.page(3), 4).unwrap();
    pair.adopt(pair.at, PAGE, InPlace::Pages(Protection::READ_WRITE)).unwrap();
    pair.space.advise(pair.at, PAGE, Advice::Free).unwrap();
    put(&pair, 0);
    pair.adopt(pair.at, 2 * MIB, InPlace::Blocks(Protection::READ_WRITE)).unwrap();
    pair.agree_away(512);
    // The region of the second block ends in the middle.
    pair.space.unmap(pair.page(700), 324 * PAGE).unwrap();
    let adopted = pair.adopt(pair.page(512), 2 * MIB, InPlace::Blocks(Protection::READ_WRITE));
    says(adopted, ErrorKind::NotMapped, &["0x"]);
    pair.agree_away(700);
    pair.space.unmap(pair.at, 4 * MIB).unwrap();
    pair.agree_away(0);
    // The region must permit every access that the program can make without a fault.
    let at = pair.space.map(PAGE, RegionOptions::default().protection(Protection::READ)).unwrap();
    pair.target.put(at, Some(1), Protection::READ_WRITE);
    let adopted = pair.adopt(at, PAGE, InPlace::Pages(Protection::READ_WRITE));
    says(adopted, ErrorKind::Protected, &["allows less"]);
}

#[test]
fn protection_that_could_not_be_taken_away_is_asked_for_again() {
    for huge in [HugePolicy::Never, HugePolicy::Always] {
        let pair = pair(huge, 2 * MIB);
        pair.store(0, 1);
        let protect = |protection| pair.space.protect(pair.at, 2 * MIB, protection);
        for _ in 0..2 {
            pair.target.script(QuestionKind::Protect, [Answer::Partly(0), Answer::Unsupported]);
            says(protect(Protection::READ), ErrorKind::Unsupported, &["cannot protect"]);
            assert!(pair.target.try_store(pair.at, 2), "it may be done still");
        }
        protect(Protection::READ).unwrap();
        assert!(!pair.target.try_store(pair.at, 3));
        protect(Protection::READ_WRITE).unwrap();
        pair.store(0, 4);
        pair.end();
    }
}

#[test]
fn where_protection_can_neither_be_taken_away_nor_given_back_the_next_fault_asks_anew() {
    let pair = pair(HugePolicy::Always, 2 * MIB);
    pair.store(0, 1);
    pair.target.script(QuestionKind::Protect, [Answer::Partly(10), Answer::Unsupported, Answer::Unsupported]);
    let protected = pair.space.protect(pair.at, 2 * MIB, Protection::READ);
    says(protected, ErrorKind::Unsupported, &["cannot protect"]);
    assert!(!pair.target.try_store(pair.at, 2), "the beginning of the block was done");
    pair.target.script(QuestionKind::Protect, [Answer::Unsupported, Answer::Unsupported]);
    let protected = pair.space.protect(pair.at, 2 * MIB, Protection::READ);
    says(protected, ErrorKind::Unsupported, &["cannot protect"]);
    pair.store(0, 3);
    pair.store(511, 4);
    assert_eq!((pair.load(0), pair.load(511)), (3, 4));
    pair.end();
}

#[test]
fn a_translation_that_does_part_of_a_run_at_each_call_gets_on() {
    let pair = pair(HugePolicy::Always, 4 * MIB);
    let parts = || [Answer::Partly(128); 3];
    pair.target.script(QuestionKind::Install, parts());
    assert_eq!(pair.load(0), 0);
    pair.agree(0, 512);
    pair.target.script(QuestionKind::Remove, parts());
    pair.space.store(pair.page(1), 2_u64).unwrap();
    pair.store(600, 7);
    pair.space.protect(pair.page(512), 2 * MIB, Protection::READ).unwrap();
    pair.space.protect(pair.page(512), 2 * MIB, Protection::READ_WRITE).unwrap();
    pair.target.script(QuestionKind::Protect, parts());
    pair.store(601, 8);
    assert_eq!((pair.load(1), pair.load(600), pair.load(601)), (2, 7, 8));
    // One part of the block becomes writable. The answer for the rest fails, so the part must become
    // read-only again.
    pair.space.protect(pair.page(512), 2 * MIB, Protection::READ).unwrap();
    pair.space.protect(pair.page(512), 2 * MIB, Protection::READ_WRITE).unwrap();
    let answers = [Answer::Partly(128), Answer::Busy, Answer::Done, Answer::Unsupported];
    pair.target.script(QuestionKind::Protect, answers);
    says(pair.target.store(&pair.space, pair.page(1000), 1), ErrorKind::Unsupported, &[]);
    assert!(!pair.target.try_store(pair.page(600), 1), "no more than the entry says");
    pair.store(1000, 9);
    pair.end();
}

#[test]
fn a_budget_is_lowered_below_what_is_away() {
    let pair = pair_of(builder().budget_bytes(4 * BUDGET).huge(HugePolicy::Never), Able::ALL, 3 * BUDGET);
    let pages = 3 * BUDGET / PAGE;
    (0..pages).for_each(|page| pair.store(page, page + 1));
    assert!(pair.away_pages() > 2 * BUDGET / PAGE);
    pair.manager.set_budget(BUDGET).unwrap();
    assert!(pair.manager.stats().unwrap().used_bytes <= BUDGET);
    (0..pages).for_each(|page| assert_eq!(pair.load(page), page + 1, "page {page}"));
    pair.end();
}

#[test]
fn a_block_that_is_away_is_sent_out_on_demand() {
    let pair = pair(HugePolicy::Always, 2 * MIB);
    pair.store(5, 6);
    pair.agree(512, 0);
    pair.space.advise(pair.at, 2 * MIB, Advice::PageOut).unwrap();
    pair.agree(0, 0);
    assert_eq!(pair.load(5), 6);
    pair.end();
}

#[test]
fn pages_that_the_other_side_uses_stay_longer_under_a_quota_too() {
    let pair = pair(HugePolicy::Never, 8 * MIB);
    pair.space.set_quota(Some(4 * MIB)).unwrap();
    (0..1024).for_each(|page| pair.store(page, page + 1));
    for page in 1024..2048 {
        // Every eighth page of the first half is always in use.
        (0..512).step_by(8).for_each(|used| {
            pair.target.try_load(pair.page(used));
        });
        pair.store(page, page + 1);
    }
    let stayed = |page: &u64| pair.target.try_load(pair.page(*page)).is_some();
    let used = (0..512).step_by(8).filter(stayed).count();
    let others = (0..512).filter(|page| page % 8 != 0).filter(stayed).count();
    assert!(used > 32 && others < 224, "{used} of 64 that are used stayed, {others} of 448 others");
    pair.end();
}

#[test]
fn faults_that_wait_for_one_page_do_not_keep_it_from_each_other() {
    const POLLS: u32 = 8;
    let all = [[Access::Read, Access::Write], [Access::Write, Access::Read], [Access::Write; 2]];
    for (accesses, last_first) in all.into_iter().flat_map(|both| [(both, false), (both, true)]) {
        let device = TestDevice::new(SLOTS);
        let builder = Manager::builder().budget_bytes(BUDGET).swap_device(device.boxed());
        let pair = pair_of(builder.compression(Compression::Off).background(false), Able::ALL, PAGE);
        pair.store(0, 1);
        pair.evict_all();
        device.reads().hold();
        let mut faults: Vec<_> =
            accesses.into_iter().map(|access| Box::pin(pair.space.fault_missing(pair.at, access))).collect();
        let mut context = Context::from_waker(Waker::noop());
        assert!(faults.iter_mut().all(|fault| fault.as_mut().poll(&mut context).is_pending()));
        device.reads().let_go();
        if last_first {
            faults.reverse();
        }
        // If one of the two kept a pin, it would block the other until the timeout.
        for _ in 0..POLLS {
            faults.retain_mut(|fault| match fault.as_mut().poll(&mut context) {
                Poll::Ready(result) => result.is_err(),
                Poll::Pending => true,
            });
        }
        assert!(faults.is_empty(), "{accesses:?}, the last one first: {last_first}");
        drop(faults);
        assert_eq!(pair.load(0), 1);
        pair.end();
    }
}
