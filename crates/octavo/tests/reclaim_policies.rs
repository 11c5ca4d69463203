//! The reclaim policies in the engine. No policy loses a byte, and the default policy keeps the right pages.

mod common;

use std::thread;
use std::time::{Duration, Instant};

use octavo::{
    Compression, Counter, HugePolicy, Manager, ManagerBuilder, ReclaimPolicy, RegionOptions, Space, SwapArea,
};

use common::{MIB, PAGE, stay_on_this_cpu};

const POLICIES: [ReclaimPolicy; 7] = [
    ReclaimPolicy::Reuse,
    ReclaimPolicy::Returns,
    ReclaimPolicy::Generations,
    ReclaimPolicy::S3Fifo,
    ReclaimPolicy::Sieve,
    ReclaimPolicy::Clock,
    ReclaimPolicy::Fifo,
];

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) % n
    }
}

fn builder(policy: ReclaimPolicy) -> ManagerBuilder {
    let area = SwapArea::ram(256 * MIB);
    Manager::builder()
        .budget_bytes(16 * MIB)
        .reclaim_policy(policy)
        .swap_area(area)
        .compression(Compression::Off)
}

/// Makes a manager in which only the accesses decide which pages are in memory.
fn deterministic(policy: ReclaimPolicy) -> Manager {
    stay_on_this_cpu();
    builder(policy).background(false).readahead_bytes(0).build().unwrap()
}

fn map(manager: &Manager, pages: u64) -> (Space, u64) {
    let space = manager.space().unwrap();
    let at = space.map(pages * PAGE, RegionOptions::default()).unwrap();
    for page in 0..pages {
        space.store(at + page * PAGE, page).unwrap();
    }
    (space, at)
}

fn major_faults(manager: &Manager, accesses: impl FnOnce()) -> u64 {
    let before = manager.counters();
    accesses();
    manager.counters().since(&before).get(Counter::MajorFault)
}

#[test]
fn no_policy_loses_a_byte() {
    for policy in POLICIES {
        let manager = builder(policy).huge(HugePolicy::Always).build().unwrap();
        let pages = 8192;
        let space = manager.space().unwrap();
        let at = space.map(pages * PAGE, RegionOptions::default()).unwrap();
        thread::scope(|scope| {
            for lane in 0..2 {
                let space = &space;
                scope.spawn(move || {
                    let (mut random, mut model) = (Random(lane + 1), vec![0_u64; pages as usize]);
                    for step in 1..20_000 {
                        // Half of the accesses go to a tenth of the pages.
                        let page = random.below(if step % 2 == 0 { pages } else { pages / 10 });
                        let address = at + page * PAGE + lane * 8;
                        assert_eq!(space.load::<u64>(address).unwrap(), model[page as usize], "{policy:?}");
                        if step % 3 == 0 {
                            space.store(address, step).unwrap();
                            model[page as usize] = step;
                        }
                    }
                });
            }
        });
        assert!(manager.counters().get(Counter::SwapOut) > 0, "{policy:?} had to evict");
        manager.validate();
        drop(space);
        manager.validate();
        // Pages that were just leaving the pool are freed when their writes end.
        let begun = Instant::now();
        while manager.stats().unwrap().lru_pages != (0, 0) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{policy:?}: {:?}", manager.stats());
            thread::yield_now();
        }
    }
}

/// Returns the major faults in a hundred accesses to a hot set of half the memory, while the same number of
/// other accesses scan a far larger range.
fn hot_faults_under_a_scan(policy: ReclaimPolicy) -> u64 {
    let manager = deterministic(policy);
    let (hot, all) = (1800, 16384);
    let (space, at) = map(&manager, all);
    let (mut random, mut next) = (Random(5), 0);
    let mut round = |accesses: u64| {
        let mut faults = 0;
        for _ in 0..accesses {
            let page = random.below(hot);
            faults +=
                major_faults(&manager, || assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), page));
            let scanned = hot + next;
            next = (next + 1) % (all - hot);
            assert_eq!(space.load::<u64>(at + scanned * PAGE).unwrap(), scanned);
        }
        faults * 100 / accesses
    };
    round(30_000);
    round(10_000)
}

#[test]
fn a_scan_does_not_evict_the_hot_set() {
    let (fifo, reuse) =
        (hot_faults_under_a_scan(ReclaimPolicy::Fifo), hot_faults_under_a_scan(ReclaimPolicy::Reuse));
    assert!(fifo > 20, "{fifo} in a hundred: the trace would tell");
    assert!(reuse <= 2, "{reuse} in a hundred hot pages were gone");
}

/// Returns the major faults in a hundred accesses of a loop over pages that are a third larger than memory.
fn loop_faults(policy: ReclaimPolicy) -> u64 {
    let manager = deterministic(policy);
    let pages = 5000;
    let (space, at) = map(&manager, pages);
    let turn = || {
        for page in 0..pages {
            assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), page);
        }
    };
    (0..4).for_each(|_| turn());
    let faults = major_faults(&manager, || (0..4).for_each(|_| turn()));
    assert!(manager.counters().get(Counter::WorkingsetRefault) > 0, "shadows come back");
    faults * 100 / (4 * pages)
}

#[test]
fn a_loop_larger_than_memory_is_kept_in_part() {
    let (clock, reuse) = (loop_faults(ReclaimPolicy::Clock), loop_faults(ReclaimPolicy::Reuse));
    assert!(clock > 95, "{clock} in a hundred: a clock keeps nothing");
    assert!(reuse < 50, "{reuse} in a hundred pages of the loop were gone");
}
