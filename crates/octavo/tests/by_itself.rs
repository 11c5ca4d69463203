//! Actions that the other side of a translation takes on its own and then reports to Octavo, and pages that
//! go to the other side in runs.

mod common;

use std::sync::Arc;
use std::thread;

use octavo::translation::Answer;
use octavo::{Access, ErrorKind, HugePolicy, Protection, RegionOptions};

use common::target::{Able, BUDGET, QuestionKind, TestTarget, TranslatedPair, builder, pair, pair_of};
use common::{MIB, PAGE, stay_on_this_cpu};

const PAGES: u64 = 600;

fn small() -> TranslatedPair {
    pair(HugePolicy::Never, PAGES * PAGE)
}

/// Returns the page counts of the runs installed since the last call.
fn installed(pair: &TranslatedPair) -> Vec<u32> {
    pair.target.take_asked(QuestionKind::Install).into_iter().map(|(_, count)| count).collect()
}

#[test]
fn dropped_pages_read_as_zeros_and_their_neighbours_stay() {
    let pair = small();
    (0..32).for_each(|page| pair.store(page, page + 1));
    pair.evict_all();
    // Some pages are away, some are out, some are at home, and one page was never touched.
    (0..16).for_each(|page| assert_eq!(pair.load(page), page + 1));
    assert_eq!(pair.space.load::<u64>(pair.page(12)).unwrap(), 13);
    pair.target.drop_range(pair.page(8), 16 * PAGE);
    let asked = pair.target.take_asked(QuestionKind::Remove).len();
    assert!(asked > 0, "the test looks at removals");
    pair.space.forget(pair.page(8), 16 * PAGE).unwrap();
    assert_eq!(
        pair.target.take_asked(QuestionKind::Remove),
        [],
        "nothing is asked about pages that are gone"
    );
    pair.agree(8, 0);
    for page in 0..32 {
        let expected = if (8..24).contains(&page) { 0 } else { page + 1 };
        assert_eq!(pair.load(page), expected, "page {page}");
    }
    pair.end();
}

#[test]
fn dropped_blocks_lose_only_what_was_dropped() {
    let pair = pair(HugePolicy::Always, 3 * 2 * MIB);
    (0..1536).for_each(|page| pair.store(page, page + 1));
    pair.target.drop_range(pair.page(300), 700 * PAGE);
    pair.space.forget(pair.page(300), 700 * PAGE).unwrap();
    for page in 0..1536 {
        let expected = if (300..1000).contains(&page) { 0 } else { page + 1 };
        assert_eq!(pair.load(page), expected, "page {page}");
    }
    pair.manager.validate();
    pair.end();
}

#[test]
fn a_mapping_that_is_gone_there_is_gone_here() {
    let pair = small();
    (0..8).for_each(|page| pair.store(page, 7));
    pair.target.drop_range(pair.page(2), 4 * PAGE);
    pair.space.forget_mapping(pair.page(2), 4 * PAGE).unwrap();
    let error = pair.target.load(&pair.space, pair.page(3)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotMapped);
    assert_eq!((pair.load(1), pair.load(6)), (7, 7));
    pair.space.map_at(pair.page(2), 4 * PAGE, RegionOptions::default()).unwrap();
    assert_eq!(pair.load(3), 0);
    pair.end();
}

#[test]
fn a_fault_that_finds_nothing_asks_whether_the_page_is_there() {
    let pair = small();
    (0..4).for_each(|page| pair.store(page, 9));
    // No call reports this to Octavo.
    pair.target.drop_range(pair.page(1), PAGE);
    assert_eq!(pair.load(1), 0);
    assert_eq!(pair.load(2), 9);
    pair.agree(3, 1);
    pair.store(1, 5);
    pair.agree(4, 0);
    pair.end();
}

#[test]
fn a_fault_that_finds_nothing_in_a_block_loses_that_page_only() {
    let pair = pair(HugePolicy::Always, 2 * 2 * MIB);
    (0..512).for_each(|page| pair.store(page, 9));
    pair.target.drop_range(pair.page(100), PAGE);
    assert_eq!((pair.load(100), pair.load(99), pair.load(101)), (0, 9, 9));
    pair.manager.validate();
    pair.end();
}

#[test]
fn moved_pages_are_found_at_their_new_addresses_wherever_they_were() {
    let pair = small();
    (0..64).for_each(|page| pair.store(page, page + 1));
    pair.evict_all();
    (0..32).for_each(|page| assert_eq!(pair.load(page), page + 1));
    assert_eq!(pair.space.load::<u64>(pair.page(20)).unwrap(), 21);
    let (from, to, len) = (pair.page(8), pair.page(1 << 20), 48 * PAGE);
    pair.target.move_range(from, len, to);
    pair.space.relocate(from, len, to).unwrap();
    pair.manager.validate();
    for page in 0..64 {
        if (8..56).contains(&page) {
            let at = to + (page - 8) * PAGE;
            assert_eq!(pair.target.load(&pair.space, at).unwrap(), page + 1, "page {page}");
            let error = pair.target.load(&pair.space, pair.page(page)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotMapped);
        } else {
            assert_eq!(pair.load(page), page + 1, "page {page}");
        }
    }
    // The moved pages go out from their new addresses, and come back.
    pair.evict_all();
    assert_eq!(pair.target.load(&pair.space, to).unwrap(), 9);
    pair.end();
}

#[test]
fn moved_blocks_are_found_and_what_was_there_is_gone() {
    let pair = pair(HugePolicy::Always, 4 * 2 * MIB);
    (0..1024).for_each(|page| pair.store(page, page + 1));
    (1024..2048).for_each(|page| pair.store(page, 1));
    let (from, to, len) = (pair.page(100), pair.page(1300), 600 * PAGE);
    pair.target.move_range(from, len, to);
    pair.space.relocate(from, len, to).unwrap();
    pair.manager.validate();
    (0..600).for_each(|page| assert_eq!(pair.load(1300 + page), 101 + page));
    assert_eq!((pair.load(99), pair.load(700), pair.load(1299), pair.load(1900)), (100, 701, 1, 1));
    assert!(pair.space.relocate(from, len, from + PAGE).is_err(), "ranges that overlap");
    pair.end();
}

#[test]
fn a_fork_gets_what_its_parent_had_and_each_writes_its_own() {
    let pair = small();
    (0..96).for_each(|page| pair.store(page, page + 1));
    pair.evict_all();
    // Some pages are away, where both sides would show them. One page is at home.
    (0..8).for_each(|page| assert_eq!(pair.load(page), page + 1));
    assert_eq!(pair.space.load::<u64>(pair.page(40)).unwrap(), 41);
    let target = TestTarget::new(Able::ALL);
    let child = pair.manager.translated_space("child", target.clone()).unwrap();
    child.fork_from(&pair.space).unwrap();
    pair.manager.validate();
    (0..8).for_each(|page| target.put(pair.page(page), Some(page + 1), Protection::READ_WRITE));
    for page in 8..96 {
        let at = pair.page(page);
        if page % 3 == 0 {
            pair.store(page, 1000 + page);
            assert_eq!(target.load(&child, at).unwrap(), page + 1, "page {page}");
        } else {
            target.store(&child, at, 2000 + page).unwrap();
            assert_eq!(pair.load(page), page + 1, "page {page}");
        }
    }
    pair.evict_all();
    for page in 8..96 {
        let (parents, childs) = if page % 3 == 0 { (1000 + page, page + 1) } else { (page + 1, 2000 + page) };
        assert_eq!(pair.load(page), parents, "page {page}");
        assert_eq!(target.load(&child, pair.page(page)).unwrap(), childs, "page {page}");
    }
    pair.manager.validate();
    drop(child);
    (8..96).for_each(|page| assert_eq!(pair.load(page), if page % 3 == 0 { 1000 + page } else { page + 1 }));
    pair.end();
}

#[test]
fn after_a_fork_handles_store_to_their_own_pages_only() {
    let pair = small();
    (0..96).for_each(|page| pair.store(page, page + 1));
    pair.evict_all();
    let target = TestTarget::new(Able::ALL);
    let child = pair.manager.translated_space("child", target.clone()).unwrap();
    child.fork_from(&pair.space).unwrap();
    let whole = 7_u64.to_ne_bytes().repeat(PAGE as usize / 8);
    for page in 0..96 {
        let at = pair.page(page);
        let (from, to) = if page % 2 == 0 { (&pair.space, &child) } else { (&child, &pair.space) };
        // One space has read the page, or pins it, when the other space writes to it.
        let pin = (page % 3 == 0).then(|| from.pin_exact(at, PAGE as usize, Access::Read).unwrap());
        if page % 3 == 1 {
            assert_eq!(from.load::<u64>(at).unwrap(), page + 1);
            from.protect(at, PAGE, Protection::READ).unwrap();
            from.protect(at, PAGE, Protection::READ_WRITE).unwrap();
        }
        match page % 4 {
            0 => to.write(at, &whole).unwrap(),
            _ => to.store(at, 1000 + page).unwrap(),
        }
        let mut word = [0; 8];
        pin.iter().for_each(|pin| {
            pin.copy_out(0, &mut word).unwrap();
            assert_eq!(u64::from_ne_bytes(word), page + 1, "page {page}");
        });
        assert_eq!(from.load::<u64>(at).unwrap(), page + 1, "page {page}");
    }
    pair.manager.validate();
    pair.evict_all();
    for page in 0..96 {
        let stored = if page % 4 == 0 { 7 } else { 1000 + page };
        let (parents, childs) = if page % 2 == 0 { (page + 1, stored) } else { (stored, page + 1) };
        assert_eq!(pair.load(page), parents, "page {page}");
        assert_eq!(target.load(&child, pair.page(page)).unwrap(), childs, "page {page}");
    }
    drop(child);
    pair.end();
}

#[test]
fn a_fork_gets_blocks_that_handles_have_made() {
    let pair = pair(HugePolicy::Always, 2 * 2 * MIB);
    (0..1024).for_each(|page| pair.space.store(pair.page(page), page + 1).unwrap());
    let target = TestTarget::new(Able::ALL);
    let child = pair.manager.translated_space("child", target.clone()).unwrap();
    child.fork_from(&pair.space).unwrap();
    for page in 0..1024 {
        assert_eq!(target.load(&child, pair.page(page)).unwrap(), page + 1, "page {page}");
    }
    drop(child);
    pair.end();
}

#[test]
fn a_fault_that_takes_one_read_at_most_is_served_at_once_and_others_are_not() {
    let pair = small();
    (0..64).for_each(|page| pair.store(page, page + 1));
    pair.evict_all();
    for page in 0..8 {
        pair.space.fault_now(pair.page(page), Access::Read).unwrap().unwrap();
        assert_eq!(pair.target.try_load(pair.page(page)), Some(page + 1));
    }
    pair.target.script(QuestionKind::Install, [Answer::Busy]);
    assert!(pair.space.fault_now(pair.page(20), Access::Read).is_none(), "it does not wait for others");
    assert_eq!(pair.load(20), 21);
    let error = pair.space.fault_now(pair.page(PAGES), Access::Read).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotMapped);
    pair.manager.validate();
    pair.end();
}

#[test]
fn a_run_of_zeros_goes_there_with_one_call() {
    let pair = small();
    assert_eq!(pair.space.show(pair.page(0), 64 * PAGE, Access::Write).unwrap(), 64);
    assert_eq!(installed(&pair), [64]);
    assert_eq!(pair.space.show(pair.page(32), 64 * PAGE, Access::Write).unwrap(), 64);
    assert_eq!(installed(&pair), [32], "pages that are there are left alone");
    (0..96).for_each(|page| assert!(pair.target.try_store(pair.page(page), page + 1)));
    assert!(!pair.target.try_store(pair.page(96), 1));
    pair.evict_all();
    (0..96).for_each(|page| assert_eq!(pair.load(page), page + 1));
    pair.end();
}

#[test]
fn pages_that_were_read_ahead_go_there_together() {
    let pair = small();
    (0..PAGES).for_each(|page| pair.store(page, page + 1));
    pair.evict_all();
    installed(&pair);
    assert_eq!(
        pair.space.show(pair.page(0), PAGES * PAGE, Access::Read).unwrap(),
        0,
        "nothing is read for a run"
    );
    let (mut page, mut runs) = (0, 0);
    while page < PAGES {
        assert_eq!(pair.load(page), page + 1);
        page += 1;
        let rest = (PAGES - page) * PAGE;
        if rest > 0 {
            let shown = pair.space.show(pair.page(page), rest, Access::Read).unwrap();
            (page..page + shown).for_each(|page| {
                assert_eq!(pair.target.try_load(pair.page(page)), Some(page + 1));
            });
            page += shown;
        }
        runs += 1;
    }
    assert!(runs < PAGES / 4, "{runs} faults for {PAGES} pages");
    // The pages are clean: the first store to each is a fault, and a run of stores takes one call.
    assert!(!pair.target.try_store(pair.page(5), 1));
    pair.target.take_asked(QuestionKind::Protect);
    assert_eq!(pair.space.show(pair.page(0), 64 * PAGE, Access::Write).unwrap(), 64);
    assert_eq!(pair.target.take_asked(QuestionKind::Protect).len(), 1);
    assert!(pair.target.try_store(pair.page(5), 1));
    pair.evict_all();
    assert_eq!((pair.load(5), pair.load(6)), (1, 7));
    pair.end();
}

#[test]
fn a_run_of_the_pages_that_are_to_spare_leaves_room_for_single_ones() {
    stay_on_this_cpu();
    let pair = pair(HugePolicy::Never, 2 * BUDGET);
    let mut next = 0;
    while let spare @ 1.. = pair.space.spare_pages() {
        let shown = pair.space.show(pair.page(next), spare * PAGE, Access::Write).unwrap();
        assert!(shown > 0, "{spare} pages are to spare");
        next += shown;
        assert!(next * PAGE < BUDGET, "nothing goes out meanwhile");
    }
    let left = pair.space.show(pair.page(next), BUDGET, Access::Write).unwrap();
    assert!(left >= 16, "{left} pages are left");
    pair.end();
}

#[test]
fn a_run_that_is_refused_leaves_its_pages_as_they_were() {
    let pair = small();
    pair.target.script(QuestionKind::Install, [Answer::Partly(10)]);
    assert_eq!(pair.space.show(pair.page(0), 64 * PAGE, Access::Write).unwrap(), 10);
    pair.agree(10, 0);
    pair.target.script(QuestionKind::Install, [Answer::Busy]);
    assert_eq!(pair.space.show(pair.page(10), 64 * PAGE, Access::Write).unwrap(), 0);
    pair.agree(10, 0);
    pair.target.panic_at_next(QuestionKind::Install);
    assert_eq!(pair.space.show(pair.page(10), 64 * PAGE, Access::Write).unwrap(), 0);
    pair.agree(10, 0);
    (0..64).for_each(|page| pair.store(page, 3));
    pair.end();
}

#[test]
fn a_run_ends_where_the_budget_or_the_region_ends() {
    let pair = pair(HugePolicy::Never, 2 * BUDGET);
    let shown = pair.space.show(pair.page(0), 2 * BUDGET, Access::Write).unwrap();
    assert!(shown > 0 && shown * PAGE < BUDGET, "{shown} pages");
    pair.manager.validate();
    pair.space.unmap(pair.page(4), 2 * BUDGET - 4 * PAGE).unwrap();
    assert_eq!(pair.space.show(pair.page(0), 64 * PAGE, Access::Write).unwrap(), 4);
    pair.end();
}

/// Faults, runs, evictions and drops happen at the same time. Each page holds its own number, or zeros after
/// a drop.
#[test]
fn runs_and_drops_against_faults_and_eviction_lose_nothing() {
    let pair = Arc::new(pair_of(builder(), Able::ALL, PAGES * PAGE));
    thread::scope(|scope| {
        for worker in 0..2_u64 {
            let pair = Arc::clone(&pair);
            scope.spawn(move || {
                let mut random = common::Random::new(worker + 1);
                let mine = worker * 300..(worker + 1) * 300;
                let mut holds = vec![0; PAGES as usize];
                for _ in 0..4000 {
                    let page = mine.start + random.below(300);
                    match random.below(8) {
                        0 => {
                            let len = (1 + random.below(16)).min(mine.end - page);
                            pair.target.drop_range(pair.page(page), len * PAGE);
                            pair.space.forget(pair.page(page), len * PAGE).unwrap();
                            holds[page as usize..(page + len) as usize].fill(0);
                        }
                        1 | 2 => {
                            let len = (1 + random.below(64)).min(mine.end - page);
                            let access = random.pick(&[Access::Read, Access::Write]);
                            pair.space.show(pair.page(page), len * PAGE, access).unwrap();
                        }
                        3 | 4 => {
                            let value = random.below(u64::MAX);
                            pair.store(page, value);
                            holds[page as usize] = value;
                        }
                        _ => assert_eq!(pair.load(page), holds[page as usize], "page {page}"),
                    }
                }
                mine.for_each(|page| assert_eq!(pair.load(page), holds[page as usize], "page {page}"));
            });
        }
        let pair = Arc::clone(&pair);
        scope.spawn(move || (0..300).for_each(|_| drop(pair.manager.reclaim(64))));
    });
    Arc::into_inner(pair).unwrap().end();
}
