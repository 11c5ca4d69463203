//! The choice of the pages that stay in memory if the accesses of the other side are invisible, and a run of
//! pages that does not wait.

mod common;

use std::time::Duration;

use common::target::{Able, BUDGET, QuestionKind, TranslatedPair, builder, pair_of};
use common::{PAGE, Watchdog};
use octavo::translation::Answer;
use octavo::{Access, Compression, ErrorKind, HugePolicy, Machine, ReclaimPolicy};

fn unseen(len: u64) -> TranslatedPair {
    let builder = builder().huge(HugePolicy::Never).compression(Compression::Off);
    pair_of(builder, Able { harvests: false, ..Able::ALL }, len)
}

/// Returns whether the other side has a page.
fn is_there(pair: &TranslatedPair, page: u64) -> bool {
    pair.target.try_load(pair.page(page)).is_some()
}

#[test]
fn pages_that_come_back_stay_while_others_pass_through_once() {
    let pages = BUDGET / PAGE;
    let (hot, scan) = (pages / 4, pages);
    let pair = unseen(7 * BUDGET);
    let mut missed = Vec::new();
    for round in 0..12 {
        missed.push((0..hot).filter(|page| !is_there(&pair, *page)).count());
        (0..hot).for_each(|page| _ = pair.load(page));
        // The scanned pages come back after six rounds, later than any other.
        let start = hot + round % 6 * scan;
        (start..start + scan).for_each(|page| pair.store(page, page));
    }
    let late: usize = missed[6..].iter().sum();
    assert!(late < 6 * hot as usize / 2, "of {hot} pages that are used in each round, {missed:?} were gone");
    pair.end();
}

/// The hint that all pages are in use does not block reclaim.
#[test]
fn pages_that_always_look_used_go_all_the_same() {
    let _watchdog = Watchdog::new("more pages than memory has, which all look used");
    for policy in [ReclaimPolicy::S3Fifo, ReclaimPolicy::Reuse, ReclaimPolicy::Clock] {
        let builder = builder().huge(HugePolicy::Never).reclaim_policy(policy);
        let pair = pair_of(builder, Able { is_busy: true, ..Able::ALL }, 2 * BUDGET);
        let pages = 2 * BUDGET / PAGE;
        (0..pages).for_each(|page| pair.store(page, page + 1));
        (0..pages).for_each(|page| assert_eq!(pair.load(page), page + 1, "{policy:?}"));
        pair.end();
    }
}

/// This holds even if the scan has to consider hot pages because the cold pages cannot go out.
#[test]
fn a_scan_that_looks_in_vain_asks_no_more_about_the_use_of_pages() {
    let _watchdog = Watchdog::new("pages that the other side holds");
    let budget = 4 * BUDGET;
    let builder =
        builder().budget_bytes(budget).huge(HugePolicy::Never).reclaim_policy(ReclaimPolicy::S3Fifo);
    let pair = pair_of(builder, Able { is_busy: true, ..Able::ALL }, 2 * budget);
    pair.target.always(QuestionKind::Remove, Some(Answer::Busy));
    let store = |page| pair.target.store(&pair.space, pair.page(page), page);
    let refused = (0..2 * budget / PAGE).find_map(|page| store(page).err());
    let asked = pair.target.pages_asked_since(QuestionKind::Harvest);
    pair.target.always(QuestionKind::Remove, None);
    assert_eq!(refused.map(|error| error.kind()), Some(ErrorKind::OutOfMemory));
    assert!(asked > 1000, "{asked} pages were to go since the last question about use");
    pair.end();
}

/// The thread that installs pages may be the thread whose other faults hold these pages.
#[test]
fn what_shows_pages_does_not_wait_until_others_let_go_of_them() {
    let _watchdog = Watchdog::new("pages are shown while one is pinned");
    // By this clock, a wait with a timeout would never end.
    let machine = Machine::real().with_clock(|| Duration::ZERO);
    let pair = pair_of(builder().huge(HugePolicy::Never).machine(machine), Able::ALL, 16 * PAGE);
    (0..16).for_each(|page| pair.store(page, page + 1));
    let pin = pair.space.pin_exact(pair.page(2), 8, Access::Read).unwrap();
    assert_eq!(pair.space.show(pair.at, 16 * PAGE, Access::Read).unwrap(), 2, "up to the pinned one");
    drop(pin);
    assert_eq!(pair.space.show(pair.at, 16 * PAGE, Access::Read).unwrap(), 16);
    pair.end();
}
