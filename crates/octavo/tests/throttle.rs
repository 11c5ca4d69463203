//! One thread takes much memory while others read single pages. This thread makes room early, and leaves free
//! frames to the others.

mod common;

use std::thread;

use common::device::TestDevice;
use common::{MIB, PAGE};
use octavo::{Advice, Compression, Counter, HugePolicy, Manager, RegionOptions, Space, SwapArea};

struct FullManager {
    manager: Manager,
    space: Space,
    at: u64,
    /// The next unused page.
    next: u64,
}

impl FullManager {
    fn new() -> Self {
        let manager = Manager::builder()
            .budget_bytes(16 * MIB)
            .background(false)
            .readahead_bytes(0)
            .huge(HugePolicy::Never)
            .compression(Compression::Off)
            .swap_area(SwapArea::device(TestDevice::new(1 << 17).boxed()))
            .build()
            .unwrap();
        let space = manager.space().unwrap();
        let at = space.map(100_000 * PAGE, RegionOptions::default()).unwrap();
        let mut full = Self { manager, space, at, next: 0 };
        full.store(6000);
        full
    }

    /// Writes unused pages.
    fn store(&mut self, pages: u64) {
        for page in self.next..self.next + pages {
            self.space.store(self.at + page * PAGE, page + 1).unwrap();
        }
        self.next += pages;
    }

    /// Loads old pages out of order.
    fn read(&self, pages: u64) {
        for page in (0..pages).rev().map(|page| 37 * page) {
            assert_eq!(self.space.load::<u64>(self.at + page * PAGE).unwrap(), page + 1);
        }
    }

    /// Frees recently written pages. So some frames are free, but fewer than the manager tries to keep free.
    fn leave_frames(&self, pages: u64) {
        self.space.advise(self.at + (self.next - pages) * PAGE, pages * PAGE, Advice::Free).unwrap();
    }

    /// Returns the number of pages that `work` sends out. `work` always finds free frames.
    fn sends_out(&mut self, work: impl FnOnce(&mut Self)) -> u64 {
        let figures = |manager: &Manager| {
            let counters = manager.counters();
            [Counter::StealDirect, Counter::AllocationStall].map(|counter| counters.get(counter))
        };
        let before = figures(&self.manager);
        work(self);
        let after = figures(&self.manager);
        assert_eq!(after[1], before[1], "there were frames");
        after[0] - before[0]
    }
}

#[test]
fn who_takes_much_makes_room_before_there_is_none() {
    let mut full = FullManager::new();
    full.read(16);
    full.leave_frames(140);
    let paid = full.sends_out(|full| full.store(130));
    assert!((64..=192).contains(&paid), "{paid} pages for 130");
    full.manager.validate();
}

#[test]
fn who_takes_little_pays_nothing() {
    let mut full = FullManager::new();
    full.read(16);
    full.leave_frames(140);
    let paid = full.sends_out(|full| {
        for _ in 0..4 {
            // Each thread takes fewer pages than trigger a check.
            thread::scope(|scope| scope.spawn(|| full.store(31)).join().unwrap());
        }
    });
    assert_eq!(paid, 0);
    full.manager.validate();
}

#[test]
fn where_nobody_reads_single_pages_nobody_pays() {
    let mut full = FullManager::new();
    let throttles = |full: &FullManager| full.manager.counters().get(Counter::AllocationThrottle);
    assert_eq!(throttles(&full), 0, "many pages went out");
    full.read(16);
    full.store(20_000);
    let paid = throttles(&full);
    assert!(paid > 0);
    // By now, the writes have displaced the reads.
    full.store(20_000);
    assert_eq!(throttles(&full), paid);
    full.manager.validate();
}
