//! Small cases: few pages, few threads, many meetings.

use std::sync::Arc;
use std::time::Duration;

use octavo_sim::atomic::{AtomicU64, Ordering};
use octavo_sim::{Random, thread};

use super::super::octavo::{
    Access, Advice, Compression, ErrorKind, HugePolicy, MIN_BUDGET_BYTES, Manager, ManagerBuilder,
    RegionOptions, Result, Space, SwapArea, SwapCache, ZeroPage,
};
use super::device::{Manners, SlowDevice};
use super::{HUGE, PAGE, assert_nothing_is_left, is_passing, named};

/// The number of threads that write the page, and the longest rest of a thread in nanoseconds.
const WRITERS: u64 = 3;
const REST: u64 = 20_000;

/// The device of these cases may fail.
fn insist<T>(operation: impl FnMut() -> Result<T>) -> T {
    super::insist(true, operation)
}

fn builder(random: &mut Random) -> ManagerBuilder {
    Manager::builder()
        .budget_bytes(MIN_BUDGET_BYTES)
        .swap_cache([SwapCache::TaggedTree, SwapCache::Tree, SwapCache::Table][random.below(3) as usize])
        .zero_page(ZeroPage::PerSpace)
        .background(false)
}

/// One page that goes out and comes back all the time. Threads write words of their own into it now and then,
/// and one thread only reads it.
pub(crate) fn one_page(seed: u64) {
    let mut random = Random::new(seed);
    let (device, serving) = SlowDevice::new(Manners::for_few_pages(&mut random), seed);
    let compression = [Compression::Off, Compression::Off, Compression::Lz4][random.below(3) as usize];
    let builder = builder(&mut random).compression(compression).swap_device(Box::new(device.clone()));
    let manager = Arc::new(builder.build().expect("a manager"));
    let space = Arc::new(manager.space().expect("a space"));
    space.map_at(PAGE, PAGE, RegionOptions::new()).expect("room for a region");
    let left = Arc::new(AtomicU64::new(WRITERS));
    let mut threads = Vec::new();
    for lane in 0..WRITERS {
        let (space, left) = (Arc::clone(&space), Arc::clone(&left));
        let mut random = Random::new(seed ^ (lane + 1) << 32);
        let at = PAGE + 8 * (1 + lane);
        let work = move || {
            for value in 1..=40 {
                // Meanwhile, the page goes out and comes back several times, and becomes clean.
                thread::sleep(Duration::from_nanos(random.below(REST)));
                if random.below(4) == 0 {
                    let pin = insist(|| space.pin_exact(at, 8, Access::Write));
                    pin.store(0, value).expect("a word of the pin");
                } else {
                    insist(|| space.store(at, value));
                }
                thread::sleep(Duration::from_nanos(random.below(REST)));
                assert_eq!(insist(|| space.load::<u64>(at)), value, "lane {lane}");
            }
            left.fetch_sub(1, Ordering::AcqRel);
        };
        threads.push(named(&format!("writer {lane}"), work));
    }
    let reading = (Arc::clone(&space), Arc::clone(&left));
    threads.push(named("reader", move || {
        let (space, left) = reading;
        for _ in 0..2000 {
            assert_eq!(insist(|| space.load::<u64>(PAGE)), 0, "nobody writes there");
            if left.load(Ordering::Acquire) == 0 {
                break;
            }
            thread::yield_now();
        }
    }));
    let evicting = (Arc::clone(&manager), Arc::clone(&space), left);
    threads.push(named("evictor", move || {
        let (manager, space, left) = evicting;
        for round in 0..2000 {
            if round % 4 == 0 {
                manager.reclaim(1).expect("reclaim gives no error of a device");
            } else {
                space.advise(PAGE, PAGE, Advice::PageOut).expect("advice that can be followed or left");
            }
            if left.load(Ordering::Acquire) == 0 {
                break;
            }
        }
    }));
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    device.heal();
    manager.validate();
    drop(space);
    assert_nothing_is_left(&manager);
    drop(manager);
    device.end();
    serving.join().expect("no panic");
}

/// The huge zero page, which is freed when nobody uses it, and made again for the next user.
pub(crate) fn zero_page(seed: u64) {
    let mut random = Random::new(seed);
    let mode = [ZeroPage::PerUse, ZeroPage::PerSpace][random.below(2) as usize];
    let device = SwapArea::ram(1 << 20);
    let builder = builder(&mut random).huge(HugePolicy::Always).zero_page(mode).swap_area(device);
    let manager = Arc::new(builder.build().expect("a manager"));
    let show = |manager: Arc<Manager>| {
        move || {
            for _ in 0..12 {
                let space = manager.space().expect("a space");
                space.map_at(HUGE, HUGE, RegionOptions::new().huge(true)).expect("room for a region");
                assert_eq!(insist(|| space.load::<u64>(HUGE + 8)), 0, "nobody has written it");
            }
        }
    };
    let mut threads: Vec<_> =
        (0..2).map(|number| named(&format!("reader {number}"), show(Arc::clone(&manager)))).collect();
    let shrinking = Arc::clone(&manager);
    threads.push(named("shrinker", move || {
        for _ in 0..100 {
            shrinking.reclaim(1).expect("reclaim gives no error of a device");
        }
    }));
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    assert_nothing_is_left(&manager);
}

/// A space's first page: one thread makes it, and another unmaps it.
pub(crate) fn first_page(seed: u64) {
    let mut random = Random::new(seed);
    let manager = builder(&mut random).swap_area(SwapArea::ram(1 << 20)).build().expect("a manager");
    for _ in 0..8 {
        let space = Arc::new(manager.space().expect("a space"));
        // A higher address makes the table taller.
        let at = [PAGE, 1 << 22, 1 << 34][random.below(3) as usize];
        space.map_at(at, PAGE, RegionOptions::new()).expect("room for a region");
        let (storing, unmapping) = (Arc::clone(&space), Arc::clone(&space));
        let one = named("writer", move || drop(storing.store(at, 7_u64)));
        let other = named("unmapper", move || insist(|| unmapping.unmap(at, PAGE)));
        other.join().expect("no panic");
        one.join().expect("no panic");
        let gone = space.load::<u64>(at).expect_err("a page that is not mapped");
        assert_eq!(gone.kind(), ErrorKind::NotMapped);
        insist(|| space.map_at(at, PAGE, RegionOptions::new()));
        assert_eq!(insist(|| space.load::<u64>(at)), 0, "a fresh page");
    }
    assert_nothing_is_left(&manager);
}

/// The used pages of a range that is mapped and unmapped whole.
const USED: u64 = 3;
/// The offset in a page at which the late thread writes.
const LATE: u64 = 16;

/// Two ranges of one table node each. Both are mapped most of the time, but only one has a node. Unmapping it
/// gives the node to the other range. Other threads store to both, and check for words that belong to the
/// other range.
pub(crate) fn nodes(seed: u64) {
    let mut random = Random::new(seed);
    let builder = builder(&mut random).huge(HugePolicy::Never).swap_area(SwapArea::ram(1 << 20));
    let manager = Arc::new(builder.build().expect("a manager"));
    let space = Arc::new(manager.space().expect("a space"));
    let ranges = [4 * HUGE, 6 * HUGE];
    let tag = |range: u64| 1 << 40 | range;
    let map = |space: &Space, at: u64| insist(|| space.map_at(at, HUGE, RegionOptions::new()));
    ranges.iter().for_each(|at| map(&space, *at));
    let left = Arc::new(AtomicU64::new(1));
    let mut threads = Vec::new();
    for number in 0..2 {
        let (space, left) = (Arc::clone(&space), Arc::clone(&left));
        let mut random = Random::new(seed ^ (number + 1) << 32);
        threads.push(named(&format!("late {number}"), move || {
            for _ in 0..400 {
                let range = ranges[random.below(2) as usize];
                let at = range + random.below(USED) * PAGE + LATE + 8 * number;
                let found = match random.below(2) {
                    0 => space.store(at, tag(range)).map(|()| tag(range)),
                    _ => space.load::<u64>(at),
                };
                match found {
                    Ok(value) => assert!(value == 0 || value == tag(range), "{value:#x} at {at:#x}"),
                    Err(error) => {
                        let is_known = error.kind() == ErrorKind::NotMapped || is_passing(&error, true);
                        assert!(is_known, "unexpected: {:?}: {error}", error.kind());
                    }
                }
                if left.load(Ordering::Acquire) == 0 {
                    break;
                }
            }
        }));
    }
    let [mut here, mut there] = ranges;
    for round in 1..=24_u64 {
        for page in 0..USED {
            let at = here + page * PAGE;
            if random.below(3) != 0 {
                insist(|| space.store(at, round));
                assert_eq!(insist(|| space.load::<u64>(at)), round, "page {page}");
            }
            for late in 0..2 {
                let found = insist(|| space.load::<u64>(at + LATE + 8 * late));
                assert!(found == 0 || found == tag(here), "{found:#x} in page {page} of {here:#x}");
            }
        }
        if random.below(4) == 0 {
            manager.reclaim(2).expect("reclaim gives no error of a device");
        }
        insist(|| space.unmap(here, HUGE));
        map(&space, here);
        (here, there) = (there, here);
    }
    left.store(0, Ordering::Release);
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    manager.validate();
    drop(space);
    assert_nothing_is_left(&manager);
}
