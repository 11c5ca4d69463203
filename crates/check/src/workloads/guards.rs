//! Pages of a guarded region: writers add to both ends of pages through exclusive guards, while pages go out,
//! are brought together, and are read.

use std::sync::Arc;
use std::time::Duration;

use octavo_sim::atomic::{AtomicU64, Ordering};
use octavo_sim::{Random, thread};

use super::super::octavo::{
    Advice, Compression, HugePolicy, MIN_BUDGET_BYTES, Manager, RegionOptions, Result, Space,
};
use super::device::{Manners, SlowDevice};
use super::{PAGE, named};

const PAGES: u64 = 3;
const WORDS: usize = PAGE as usize / 8;
const WRITERS: u64 = 2;

fn insist<T>(operation: impl FnMut() -> Result<T>) -> T {
    super::insist(true, operation)
}

/// Adds one to both ends of pages, and lets other threads run in between. Returns the pages it took.
fn add(space: &Space, random: &mut Random) -> std::ops::Range<u64> {
    let first = random.below(PAGES);
    let pages = first..first + 1 + random.below(PAGES - first);
    let len = WORDS * (pages.end - pages.start) as usize;
    let mut words = insist(|| space.exclusive::<u64>(PAGE * (1 + first), len));
    for page in words.chunks_exact_mut(WORDS) {
        page[0] += 1;
        thread::yield_now();
        page[WORDS - 1] += 1;
    }
    pages
}

fn read(space: &Space, random: &mut Random) {
    let at = PAGE * (1 + random.below(PAGES));
    let ends = match random.below(3) {
        0 => {
            let mut copy = [0; PAGE as usize];
            insist(|| space.read_guarded(at, &mut copy));
            let word =
                |from: usize| u64::from_ne_bytes(copy[from..from + 8].try_into().expect("eight bytes"));
            [word(0), word(PAGE as usize - 8)]
        }
        1 => {
            let words = insist(|| space.shared::<u64>(at, WORDS));
            [words[0], words[WORDS - 1]]
        }
        _ => {
            let guard = insist(|| space.optimistic(at));
            let first = guard.load(0).expect("a word of the page");
            thread::yield_now();
            let last = guard.load(PAGE as usize - 8).expect("a word of the page");
            if !guard.is_valid() {
                return;
            }
            [first, last]
        }
    };
    assert_eq!(ends[0], ends[1], "the copy of {at:#x} is torn");
}

pub(crate) fn run(seed: u64) {
    let mut random = Random::new(seed);
    let (device, serving) = SlowDevice::new(Manners::for_few_pages(&mut random), seed);
    let compression = [Compression::Off, Compression::Off, Compression::Lz4][random.below(3) as usize];
    let builder = Manager::builder().budget_bytes(MIN_BUDGET_BYTES).huge(HugePolicy::Never).background(false);
    let builder = builder.compression(compression).swap_device(Box::new(device.clone()));
    let manager = Arc::new(builder.build().expect("a manager"));
    let space = Arc::new(manager.space().expect("a space"));
    space.map_at(PAGE, PAGES * PAGE, RegionOptions::new().guarded(true)).expect("room for a region");
    let left = Arc::new(AtomicU64::new(WRITERS));
    let mut writers = Vec::new();
    for lane in 0..WRITERS {
        let (space, left) = (Arc::clone(&space), Arc::clone(&left));
        let mut random = Random::new(seed ^ (lane + 1) << 32);
        writers.push(named(&format!("writer {lane}"), move || {
            let mut added = [0; PAGES as usize];
            for _ in 0..25 {
                thread::sleep(Duration::from_nanos(random.below(20_000)));
                add(&space, &mut random).for_each(|page| added[page as usize] += 1);
            }
            left.fetch_sub(1, Ordering::AcqRel);
            added
        }));
    }
    let mut others = Vec::new();
    let (reading, until) = (Arc::clone(&space), Arc::clone(&left));
    others.push(named("reader", move || {
        for _ in 0..500 {
            read(&reading, &mut random);
            if until.load(Ordering::Acquire) == 0 {
                break;
            }
            thread::yield_now();
        }
    }));
    let evicting = (Arc::clone(&manager), Arc::clone(&space), left);
    others.push(named("evictor", move || {
        let (manager, space, left) = evicting;
        for round in 0..500 {
            if round % 4 == 0 {
                manager.reclaim(1).expect("reclaim gives no error of a device");
            } else {
                space.advise(PAGE, PAGES * PAGE, Advice::PageOut).expect("advice");
            }
            if left.load(Ordering::Acquire) == 0 {
                break;
            }
        }
    }));
    let mut sums = [0_u64; PAGES as usize];
    for writer in writers {
        let added = writer.join().expect("no panic");
        sums.iter_mut().zip(added).for_each(|(sum, added)| *sum += added);
    }
    others.into_iter().for_each(|thread| thread.join().expect("no panic"));
    device.heal();
    for (page, sum) in (1..).zip(sums) {
        let words = insist(|| space.shared::<u64>(PAGE * page, WORDS));
        assert_eq!((words[0], words[WORDS - 1]), (sum, sum), "page {page}");
    }
    manager.validate();
    drop(space);
    super::assert_nothing_is_left(&manager);
    drop(manager);
    device.end();
    serving.join().expect("no panic");
}
