//! Several swap areas under one manager: the order in which areas are filled, the error when all are full,
//! and the release of all slots at the end.

mod common;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use common::device::TestDevice;
use common::{MIB, PAGE, Random, assert_nothing_is_left, seed_or};
use octavo::io::{Direction, IoEngine, Transfer};
use octavo::{
    Advice, Compression, Counter, ErrorKind, Manager, ManagerBuilder, RegionOptions, Space, SwapArea,
    SwapCache,
};

const FORMS: [SwapCache; 3] = [SwapCache::TaggedTree, SwapCache::Tree, SwapCache::Table];

/// The writes to all areas.
type Log = Arc<Mutex<Vec<SlotWrite>>>;

#[derive(Clone, Copy)]
struct SlotWrite {
    name: &'static str,
    place: u32,
    pages: u32,
}

/// The first word of each written page, by its place.
type FirstWords = Arc<Mutex<HashMap<u32, u64>>>;

fn area(log: &Log, name: &'static str, pages: u32, priority: i32) -> SwapArea {
    let log = Arc::clone(log);
    let device = TestDevice::new(pages).named(&format!("the {name} device")).watched(move |transfer| {
        if transfer.direction() == Direction::Write {
            let (place, pages) = (transfer.place(), transfer.len() as u32);
            log.lock().unwrap().push(SlotWrite { name, place, pages });
        }
    });
    SwapArea::device(device.boxed()).priority(priority)
}

fn note_words(words: &FirstWords, transfer: &Transfer) {
    if transfer.direction() == Direction::Write {
        for (place, page) in (transfer.place()..).zip(transfer.pages()) {
            let mut bytes = [0; PAGE as usize];
            page.copy_out(&mut bytes);
            let word = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            words.lock().unwrap().insert(place, word);
        }
    }
}

fn builder() -> ManagerBuilder {
    Manager::builder().budget_bytes(16 * MIB).background(false).readahead_bytes(0)
}

fn value(page: u64) -> u64 {
    page.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1
}

fn check(space: &Space, at: u64, pages: std::ops::Range<u64>) {
    for page in pages {
        assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), value(page), "page {page}");
    }
}

#[test]
fn writes_are_short_while_single_pages_are_asked_for() {
    let log = Log::default();
    let manager = builder()
        .budget_bytes(64 * MIB)
        .compression(Compression::Off)
        .swap_area(area(&log, "only", 1 << 16, 0))
        .build()
        .unwrap();
    let space = manager.space().unwrap();
    let pages = 60_000;
    let at = space.map(pages * PAGE, RegionOptions::default()).unwrap();
    let store = |pages: std::ops::Range<u64>| {
        pages.for_each(|page| space.store(at + page * PAGE, value(page)).unwrap());
        log.lock().unwrap().drain(..).map(|write| write.pages).collect::<Vec<_>>()
    };
    let before = store(0..25_000);
    assert!(before.iter().any(|pages| *pages > 32), "{before:?}");
    // The pages are read in reverse order, and so without readahead.
    (0..20).rev().for_each(|page| check(&space, at, 100 * page..100 * page + 1));
    let short = store(25_000..25_500);
    assert!(!short.is_empty() && short.iter().all(|pages| *pages <= 32), "{short:?}");
    let after = store(25_500..pages);
    assert!(after.iter().any(|pages| *pages > 32), "nobody asks any more: {after:?}");
    manager.validate();
}

#[test]
fn one_short_write_is_under_way_while_single_pages_are_asked_for() {
    let log = Log::default();
    let written = Arc::clone(&log);
    let device = TestDevice::new(1 << 16).watched(move |transfer| {
        if transfer.direction() == Direction::Write {
            let (place, pages) = (transfer.place(), transfer.len() as u32);
            written.lock().unwrap().push(SlotWrite { name: "only", place, pages });
        }
    });
    let manager = builder()
        .budget_bytes(64 * MIB)
        .compression(Compression::Off)
        .swap_area(SwapArea::device(device.boxed()))
        .build()
        .unwrap();
    let space = manager.space().unwrap();
    let at = space.map(60_000 * PAGE, RegionOptions::default()).unwrap();
    (0..20_000).for_each(|page| space.store(at + page * PAGE, value(page)).unwrap());
    // Holds the writes of a reclaimer until there are `least` writes, and some time longer. Returns their
    // page counts.
    let under_way = |least| {
        device.writes().hold();
        log.lock().unwrap().clear();
        thread::scope(|scope| {
            let reclaimer = scope.spawn(|| manager.reclaim(2000).unwrap());
            let are_there = device.writes().wait_held(least);
            thread::sleep(Duration::from_millis(100));
            let pages: Vec<_> = log.lock().unwrap().iter().map(|write| write.pages).collect();
            device.writes().let_go();
            reclaimer.join().unwrap();
            assert!(are_there, "{} of {least}", pages.len());
            pages
        })
    };
    (0..20).rev().for_each(|page| check(&space, at, 100 * page..100 * page + 1));
    let pages = under_way(1);
    assert!(
        pages.iter().sum::<u32>() <= 2 * 32,
        "another begins only where no more than the pages of one are under way: {pages:?}"
    );
    // The writes of these pages displace the earlier reads.
    (20_000..60_000).for_each(|page| space.store(at + page * PAGE, value(page)).unwrap());
    under_way(4);
    manager.validate();
}

#[test]
fn areas_are_filled_by_priority_and_equal_ones_in_turn() {
    for form in FORMS {
        let log = Log::default();
        let manager = builder()
            .swap_cache(form)
            // The areas have whole clusters, so the slots of one area end where the slots of the next might
            // begin.
            .swap_area(area(&log, "left", 2048, 5))
            .swap_area(area(&log, "right", 2048, 5))
            .swap_area(area(&log, "fast", 1024, 10))
            .swap_area(area(&log, "slow", 16384, -1))
            .build()
            .unwrap();
        let space = manager.space().unwrap();
        let pages = 14_000;
        let at = space.map(pages * PAGE, RegionOptions::default()).unwrap();
        (0..pages).for_each(|page| space.store(at + page * PAGE, value(page)).unwrap());

        let written = |log: &[SlotWrite], name: &str| -> u32 {
            log.iter().filter(|write| write.name == name).map(|write| write.pages).sum()
        };
        let before = |name: &str| {
            let log = log.lock().unwrap();
            let first = log.iter().position(|write| write.name == name);
            log[..first.unwrap_or_else(|| panic!("{name} was never written"))].to_vec()
        };
        // A batch is sorted by slots before it is written, and may lie in two areas.
        const BATCH: u32 = 256;
        for equal in ["left", "right"] {
            assert!(written(&before(equal), "fast") >= 1024 - BATCH, "{form:?}: fast goes first");
        }
        let first = before("slow");
        assert!(written(&first, "fast") == 1024, "{form:?}");
        let (left, right) = (written(&first, "left"), written(&first, "right"));
        assert!(
            left + right >= 4096 - BATCH && left.abs_diff(right) <= 512 + BATCH,
            "{form:?}: {left}, {right}"
        );
        // Any CPU may take the next cluster. The first page of each cluster shows its area.
        let (mut begun, mut ahead) = (HashSet::new(), 0_i32);
        for SlotWrite { name, place, pages } in first.into_iter().filter(|write| write.name != "fast") {
            for cluster in place / 512..=(place + pages - 1) / 512 {
                let step = if name == "left" { 1 } else { -1 };
                ahead += i32::from(begun.insert((name, cluster))) * step;
            }
            assert!(ahead.abs() <= 2, "{form:?}: {begun:?} were begun, not by turns");
        }
        assert_eq!(begun.len(), 8, "{form:?}: {begun:?}");

        check(&space, at, 0..pages);
        manager.validate();
        drop(space);
        assert_eq!(manager.stats().unwrap().swap_slots, 0);
        assert_nothing_is_left(&manager);
    }
}

#[test]
fn full_areas_are_named_with_what_helps() {
    for form in FORMS {
        let log = Log::default();
        let manager = builder()
            .swap_cache(form)
            .swap_area(area(&log, "small", 300, 1))
            .swap_area(area(&log, "large", 1024, 0))
            .build()
            .unwrap();
        let space = manager.space().unwrap();
        let at = space.map(64 * MIB, RegionOptions::default()).unwrap();
        let pages = 64 * MIB / PAGE;
        let stored = (0..pages).find_map(|page| match space.store(at + page * PAGE, value(page)) {
            Ok(()) => None,
            Err(error) => Some((page, error)),
        });
        let (stored, error) = stored.expect("64 MiB do not fit in 16 and 5.2");
        assert_eq!(error.kind(), ErrorKind::SwapFull, "{error}");
        let text = error.to_string();
        for part in [
            "the small device is full (1.2 MiB of at most 1.2 MiB in use)",
            "the large device is full (4 MiB of at most 4 MiB in use)",
            "raise",
            "add an area",
            "drop a space or unmap a range",
        ] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
        assert_eq!(manager.stats().unwrap().swap_slots, 1324);
        // The advice in the error helps. (A page that comes in needs room for another page, which goes out.)
        space.unmap(at, 2 * MIB).unwrap();
        check(&space, at, 2 * MIB / PAGE..stored);
        let more = stored..stored + 200;
        more.clone().for_each(|page| space.store(at + page * PAGE, value(page)).unwrap());
        check(&space, at, 2 * MIB / PAGE..more.end);
        assert_sound_and_left_empty(&manager, space);
    }
}

const BLOCK: u64 = 2 * MIB / PAGE;

/// Makes blocks of 2 MiB, and writes to all of them.
fn blocks(manager: &Manager, count: u64) -> (Space, u64) {
    let space = manager.space().unwrap();
    let at = space.map(count * 2 * MIB, RegionOptions::new().huge(true)).unwrap();
    (0..count * BLOCK).for_each(|page| space.store(at + page * PAGE, value(page)).unwrap());
    (space, at)
}

#[test]
fn blocks_go_out_to_whole_clusters_and_come_back_in_order() {
    for form in FORMS {
        let words = FirstWords::default();
        let device = TestDevice::new(8 * BLOCK as u32).watched({
            let words = Arc::clone(&words);
            move |transfer| note_words(&words, transfer)
        });
        let manager = builder()
            .readahead_bytes(MIB)
            .compression(Compression::Off)
            .swap_cache(form)
            .swap_area(SwapArea::device(device.boxed()))
            .build()
            .unwrap();
        let count = 4;
        let (space, at) = blocks(&manager, count);
        let counters = manager.counters();
        assert_eq!(counters.get(Counter::HugeFaultAllocated), count, "{form:?}");
        space.advise(at, count * 2 * MIB, Advice::PageOut).unwrap();
        let out = manager.counters().since(&counters);
        assert_eq!(
            (out.get(Counter::HugeSwapOut), out.get(Counter::HugeSwapOutFallback)),
            (count, 0),
            "{form:?}"
        );
        assert_eq!(space.stats().unwrap().resident_bytes, 0, "{form:?}");
        assert_eq!(manager.stats().unwrap().swap_slots, count * BLOCK);
        {
            let words = words.lock().unwrap();
            assert_eq!(
                words.len() as u64,
                count * BLOCK,
                "{form:?}: each page was written to its place once"
            );
            for block in 0..count {
                let of = |page: u64| {
                    let word = value(block * BLOCK + page);
                    *words.iter().find(|entry| *entry.1 == word).expect("it went out").0
                };
                let first = of(0);
                assert!(first.is_multiple_of(BLOCK as u32), "{form:?}: block {block} begins at {first}");
                assert!((0..BLOCK).all(|page| of(page) == first + page as u32), "{form:?}: block {block}");
            }
        }
        let before = manager.counters();
        check(&space, at, 0..count * BLOCK);
        let back = manager.counters().since(&before);
        assert_eq!(back.get(Counter::SwapIn), count * BLOCK, "{form:?}: each page was read once");
        assert!(back.get(Counter::ReadAheadHit) > count * BLOCK / 2, "{form:?}: most were read ahead");
        assert_sound_and_left_empty(&manager, space);
    }
}

#[test]
fn blocks_under_pressure_go_out_and_come_back_right() {
    for form in FORMS {
        let device = TestDevice::new(40_000);
        let manager = builder()
            .readahead_bytes(MIB)
            .swap_cache(form)
            .swap_area(SwapArea::device(device.boxed()))
            .build()
            .unwrap();
        let (space, at) = blocks(&manager, 24);
        let pages = 24 * BLOCK;
        let counters = manager.counters();
        assert!(counters.get(Counter::HugeSwapOut) >= 16, "{form:?}: memory holds less than eight");
        assert_eq!(
            counters.get(Counter::HugeFaultAllocated),
            24,
            "{form:?}: a block goes for each that comes"
        );
        check(&space, at, 0..pages);
        (0..pages).step_by(5).for_each(|page| space.store(at + page * PAGE + 8, page).unwrap());
        for page in (0..pages).rev() {
            let second = if page.is_multiple_of(5) { page } else { 0 };
            let address = at + page * PAGE;
            let found = (space.load::<u64>(address).unwrap(), space.load::<u64>(address + 8).unwrap());
            assert_eq!(found, (value(page), second), "{form:?}: page {page}");
        }
        assert_sound_and_left_empty(&manager, space);
    }
}

#[test]
fn blocks_without_a_cluster_are_split_and_come_back_right() {
    for form in FORMS {
        let log = Log::default();
        let manager = builder()
            .swap_cache(form)
            .swap_area(area(&log, "clusters", 2 * BLOCK as u32, 1))
            // Each area has less than a cluster.
            .swap_area(area(&log, "left", 400, 0))
            .swap_area(area(&log, "right", 400, 0))
            .build()
            .unwrap();
        let (space, at) = blocks(&manager, 3);
        let huge = || {
            let counters = manager.counters();
            (counters.get(Counter::HugeSwapOut), counters.get(Counter::HugeSwapOutFallback))
        };
        // The split pages of the last block go out when they are next scanned.
        for expected in [(2, 1), (2, 1)] {
            space.advise(at, 6 * MIB, Advice::PageOut).unwrap();
            assert_eq!(huge(), expected, "{form:?}");
        }
        assert_eq!(space.stats().unwrap().resident_bytes, 0, "{form:?}");
        assert_eq!(manager.stats().unwrap().swap_slots, 3 * BLOCK);
        check(&space, at, 0..3 * BLOCK);
        assert_sound_and_left_empty(&manager, space);
    }
}

#[test]
fn blocks_that_fill_the_swap_lose_nothing() {
    for form in FORMS {
        let log = Log::default();
        let places = 3 * BLOCK + 100;
        let manager =
            builder().swap_cache(form).swap_area(area(&log, "small", places as u32, 0)).build().unwrap();
        let space = manager.space().unwrap();
        let at = space.map(64 * MIB, RegionOptions::new().huge(true)).unwrap();
        let refused = (0..64 * MIB / PAGE)
            .find_map(|page| Some((page, space.store(at + page * PAGE, value(page)).err()?)));
        let (stored, error) = refused.expect("64 MiB do not fit in 16 and 6.4");
        assert_eq!(error.kind(), ErrorKind::SwapFull, "{form:?}: {error}");
        assert_eq!(manager.stats().unwrap().swap_slots, places, "{form:?}: filled to the last slot");
        let counters = manager.counters();
        let (whole, split) = (counters.get(Counter::HugeSwapOut), counters.get(Counter::HugeSwapOutFallback));
        assert!((1..=3).contains(&whole) && split > 0, "{form:?}: {whole} went whole, {split} were split");
        // A page that comes in needs room for another page, which goes out.
        space.unmap(at, 2 * MIB).unwrap();
        check(&space, at, BLOCK..stored);
        let more = stored..stored + 200;
        more.clone().for_each(|page| space.store(at + page * PAGE, value(page)).unwrap());
        check(&space, at, BLOCK..more.end);
        assert_sound_and_left_empty(&manager, space);
    }
}

#[test]
fn everything_is_free_after_the_last_space_is_dropped() {
    let seed = seed_or(30);
    for form in FORMS {
        let manager = builder()
            .background(true)
            .swap_cache(form)
            .swap_area(SwapArea::ram(7 * MIB).priority(3))
            .swap_area(SwapArea::ram(20 * MIB).limit_bytes(10 * MIB + 5 * PAGE))
            .swap_area(SwapArea::device(TestDevice::new(40_000).boxed()))
            .build()
            .unwrap();
        thread::scope(|scope| {
            for lane in 0..4 {
                let manager = &manager;
                scope.spawn(move || come_and_go(manager, Random::new(seed + lane)));
            }
        });
        assert_nothing_is_left(&manager);
    }
}

/// A thread that waits for a page waits on the file that has the page.
#[test]
fn several_files_by_either_engine_bring_every_page_back() {
    let seed = seed_or(31);
    for engine in [IoEngine::Probe, IoEngine::Threads] {
        let directory = tempfile::tempdir().unwrap();
        let file = |name| SwapArea::file(directory.path().join(name)).limit_bytes(40 * MIB).allow_tmpfs(true);
        let manager = builder()
            .background(true)
            .io_engine(engine)
            .compression(Compression::Off)
            .swap_area(file("one"))
            .swap_area(file("other"))
            .build()
            .unwrap();
        thread::scope(|scope| {
            for lane in 0..4 {
                let manager = &manager;
                scope.spawn(move || come_and_go(manager, Random::new(seed + lane)));
            }
        });
        assert!(manager.counters().get(Counter::SwapIn) > 0, "{engine:?}: pages came from the files");
        for name in ["one", "other"] {
            let used = std::fs::metadata(directory.path().join(name)).unwrap().len();
            assert!(used > 0, "{engine:?}: {name} was used");
        }
        assert_nothing_is_left(&manager);
    }
}

/// Checks that everything is consistent, and that nothing is left when the space is dropped.
fn assert_sound_and_left_empty(manager: &Manager, space: Space) {
    manager.validate();
    drop(space);
    assert_nothing_is_left(manager);
}

/// Makes three spaces one after the other. In each, pages are stored, checked and unmapped here and there.
fn come_and_go(manager: &Manager, mut random: Random) {
    const PAGES: u64 = 4000;
    for _ in 0..3 {
        let space = manager.space().unwrap();
        let at = space.map(PAGES * PAGE, RegionOptions::new().huge(random.one_in(2))).unwrap();
        let mut stored = vec![0_u64; PAGES as usize];
        for _ in 0..40 {
            let first = random.below(PAGES);
            let range = first..(first + 1 + random.below(700)).min(PAGES);
            match random.below(5) {
                0 => {
                    let (start, len) = (at + range.start * PAGE, (range.end - range.start) * PAGE);
                    space.unmap(start, len).unwrap();
                    space.map_at(start, len, RegionOptions::default()).unwrap();
                    stored[range.start as usize..range.end as usize].fill(0);
                }
                1..3 => {
                    for page in range {
                        stored[page as usize] = random.next() | 1;
                        space.store(at + page * PAGE, stored[page as usize]).unwrap();
                    }
                }
                _ => {
                    for page in range {
                        assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), stored[page as usize]);
                    }
                }
            }
        }
    }
}
