//! Which pages come along with a fault, and which stay, where nobody sees the accesses of the other side.

mod common;

use std::time::Duration;

use common::target::{Able, BUDGET, Pair, builder, pair_of};
use common::{PAGE, Watchdog};
use octavo::io::SwapFile;
use octavo::{Access, Compression, Counter, HugePolicy, Machine};

fn unseen(len: u64) -> Pair {
    let builder = builder().huge(HugePolicy::Never).compression(Compression::Off);
    pair_of(builder, Able { harvests: false, ..Able::ALL }, len)
}

/// Returns whether the other side has a page.
fn is_there(pair: &Pair, page: u64) -> bool {
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
        // They come back after six rounds, later than any other.
        let start = hot + round % 6 * scan;
        (start..start + scan).for_each(|page| pair.store(page, page));
    }
    let late: usize = missed[6..].iter().sum();
    assert!(late < 6 * hot as usize / 2, "of {hot} pages that are used in each round, {missed:?} were gone");
    pair.end();
}

const BLOCKS: u64 = 50;

#[test]
fn neighbours_of_a_page_come_with_it_but_for_one() {
    let pair = unseen(2560 * PAGE);
    (0..2560).for_each(|page| pair.store(page, page + 1));
    pair.evict_all();
    pair.agree(0, 0);
    let mut along = 0;
    // Not in order, and not beside each other.
    for block in (0..BLOCKS).map(|index| 3 * (index * 37 % 101)) {
        let page = block * 8 + block % 5;
        assert_eq!(pair.load(page), page + 1);
        let (addresses, shown) = pair.space.show_around(pair.page(page), Access::Read).unwrap();
        assert_eq!(addresses, pair.page(block * 8)..pair.page(block * 8 + 8));
        let there: Vec<_> = (block * 8..block * 8 + 8).filter(|page| is_there(&pair, *page)).collect();
        assert_eq!(there.len() as u64, shown + 1, "{there:?}");
        assert!(shown >= 6, "all but the probe: {there:?}");
        along += shown;
        // All of them are wanted.
        (block * 8..block * 8 + 8).for_each(|page| assert_eq!(pair.load(page), page + 1));
    }
    assert!(along >= 6 * BLOCKS);
    let faults = pair.manager.counters().get(Counter::MajorFault);
    assert_eq!(faults, BLOCKS, "the probes were there as well");
    pair.manager.validate();
    pair.end();
}

#[test]
fn neighbours_that_nobody_wants_come_no_more() {
    let pages = 4 * BUDGET / PAGE;
    let pair = unseen(pages * PAGE);
    (0..pages).for_each(|page| pair.store(page, page + 1));
    let (mut state, mut shown) = (1_u64, Vec::new());
    for _ in 0..20 {
        let mut along = 0;
        for _ in 0..500 {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            let page = (state >> 33) % pages;
            if !is_there(&pair, page) {
                assert_eq!(pair.load(page), page + 1);
                along += pair.space.show_around(pair.page(page), Access::Read).unwrap().1;
            }
        }
        shown.push(along);
    }
    let late: u64 = shown[15..].iter().sum();
    assert!(late < 5 * 500, "{shown:?}");
    pair.end();
}

#[test]
fn a_space_without_a_translation_has_no_neighbours_to_show() {
    let manager = builder().swap_file(SwapFile::None).build().unwrap();
    let space = manager.space().unwrap();
    let error = space.show_around(0, Access::Read).unwrap_err();
    common::says(Err::<(), _>(error), octavo::ErrorKind::Unsupported, &["translated_space"]);
}

/// The thread that shows pages may be the one whose other faults hold them.
#[test]
fn what_shows_pages_does_not_wait_until_others_let_go_of_them() {
    let _watchdog = Watchdog::new("pages are shown while one is pinned");
    // A wait with an end would have none by this clock.
    let machine = Machine::real().with_clock(|| Duration::ZERO);
    let pair = pair_of(builder().huge(HugePolicy::Never).machine(machine), Able::ALL, 16 * PAGE);
    (0..16).for_each(|page| pair.store(page, page + 1));
    let pin = pair.space.pin(pair.page(2), 8, Access::Read).unwrap();
    assert_eq!(pair.space.show(pair.at, 16 * PAGE, Access::Read).unwrap(), 2, "up to the pinned one");
    drop(pin);
    assert_eq!(pair.space.show(pair.at, 16 * PAGE, Access::Read).unwrap(), 16);
    pair.end();
}
