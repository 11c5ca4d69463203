//! Pages that are written as a whole. Their frames are not zeroed, and the old contents are not read.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use octavo::{Advice, Counter, Manager, Pin, RegionOptions, Space};

const PAGE: usize = 4096;
const MIB: u64 = 1 << 20;

fn small() -> Manager {
    Manager::builder().budget_bytes(24 * MIB).compression(octavo::Compression::Off).build().unwrap()
}

/// Makes a page in which each word holds its page, its turn, and its place in the page.
fn stamped(page: u64, turn: u64) -> Vec<u8> {
    (0..PAGE as u64 / 8).flat_map(|index| (page << 32 | turn << 16 | index).to_le_bytes()).collect()
}

fn in_and_read(manager: &Manager) -> u64 {
    let counters = manager.counters();
    counters.get(Counter::SwapIn) + counters.get(Counter::ReadAhead)
}

#[test]
fn a_page_that_is_out_is_overwritten_without_being_read() {
    let (manager, pages) = (small(), 16384);
    let space = manager.space().unwrap();
    let base = space.map(pages * PAGE as u64, RegionOptions::default()).unwrap();
    let address = |page: u64| base + page * PAGE as u64;
    for page in 0..pages {
        space.write(address(page), &stamped(page, 1)).unwrap();
    }
    let before = in_and_read(&manager);
    for page in 0..pages / 2 {
        space.write(address(page), &stamped(page, 2)).unwrap();
    }
    assert_eq!(in_and_read(&manager), before, "nothing was read for what was overwritten");
    let mut found = vec![0; PAGE];
    for page in 0..pages {
        space.read(address(page), &mut found).unwrap();
        assert!(found == stamped(page, if page < pages / 2 { 2 } else { 1 }), "page {page}");
    }
    assert!(in_and_read(&manager) > before, "the others were");
    drop(space);
    assert_eq!(manager.stats().unwrap().swap_slots, 0);
    manager.validate();
}

#[test]
fn a_page_that_was_never_touched_is_not_zeroed_first() {
    let manager = small();
    let space = manager.space().unwrap();
    let base = space.map(2 * MIB, RegionOptions::default()).unwrap();
    let zeroed = || {
        let counters = manager.counters();
        counters.get(Counter::FrameZeroed) + counters.get(Counter::FrameZeroedAhead)
    };
    let before = zeroed();
    for page in 0..512 {
        space.write(base + page * PAGE as u64, &stamped(page, 1)).unwrap();
    }
    assert_eq!(zeroed(), before);
    space.store(base + MIB, 5_u64).unwrap();
    assert_eq!(space.load::<u64>(base + MIB + 8).unwrap(), 256 << 32 | 1 << 16 | 1);
}

/// Threads write whole pages, read, pin, and page out, in too little memory. Every byte that is read from a
/// page was written to this page, and no pin shows bytes of the frame's next owner.
#[test]
fn whole_pages_are_overwritten_under_concurrency() {
    const PAGES: u64 = 3000;
    const TURNS: u64 = 12;
    let manager =
        Manager::builder().budget_bytes(16 * MIB).compression(octavo::Compression::Off).build().unwrap();
    let space = manager.space().unwrap();
    let base = space.map(4 * PAGES * PAGE as u64, RegionOptions::default()).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let space = &space;
                scope.spawn(move || write_in_turns(space, base, writer * PAGES..(writer + 1) * PAGES, TURNS))
            })
            .collect();
        let (space, stop) = (&space, &stop);
        scope.spawn(move || {
            let mut found = vec![0; PAGE];
            for page in (0..4 * PAGES).step_by(7).cycle() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                space.read(base + page * PAGE as u64, &mut found).unwrap();
                check(&found, page, TURNS);
            }
        });
        scope.spawn(move || {
            for page in (0..4 * PAGES).step_by(256).cycle() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let address = base + page * PAGE as u64;
                space.advise(address, MIB.min((4 * PAGES - page) * PAGE as u64), Advice::PageOut).unwrap();
                let pin: Pin<'_> = space.pin_exact(address, PAGE, octavo::Access::Read).unwrap();
                let mut found = vec![0; PAGE];
                pin.copy_out(0, &mut found).unwrap();
                check(&found, page, TURNS);
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        stop.store(true, Ordering::Relaxed);
    });
    let mut found = vec![0; PAGE];
    for page in 0..4 * PAGES {
        space.read(base + page * PAGE as u64, &mut found).unwrap();
        assert!(found == stamped(page, TURNS), "page {page}");
    }
    drop(space);
    manager.validate();
}

fn write_in_turns(space: &Space, base: u64, pages: std::ops::Range<u64>, turns: u64) {
    for turn in 1..=turns {
        for page in pages.clone() {
            space.write(base + page * PAGE as u64, &stamped(page, turn)).unwrap();
        }
    }
}

/// Checks that each word is zero, or from some turn of this page and place.
fn check(found: &[u8], page: u64, turns: u64) {
    for (index, bytes) in found.chunks_exact(8).enumerate() {
        let word = u64::from_le_bytes(bytes.try_into().unwrap());
        let (turn, place) = (word >> 16 & 0xFFFF, word & 0xFFFF);
        let is_stamp = word >> 32 == page && (1..=turns).contains(&turn) && place == index as u64;
        assert!(word == 0 || is_stamp, "page {page}: {word:#x}");
    }
}
