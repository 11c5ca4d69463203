//! The compressed pool in a whole manager: the pages that count as pages which came back from the pool, and
//! the pages that do not try the pool.

mod common;

use std::time::Duration;

use common::device::TestDevice;
use common::{MIB, PAGE};
use octavo::{Advice, Counter, CounterSnapshot, Manager, RegionOptions, Space, SwapArea};

/// Returns the bytes of a page that compresses to less than half, and is not a repeated word.
fn page(tell: u64) -> Vec<u8> {
    let word = |at: u64| if at.is_multiple_of(4) { tell << 16 | at } else { at % 8 };
    (0..PAGE / 8).flat_map(|at| word(at).to_ne_bytes()).collect()
}

fn write(space: &Space, at: u64, len: u64) {
    for offset in (0..len).step_by(PAGE as usize) {
        space.write(at + offset, &page(offset / PAGE)).unwrap();
    }
}

fn fill(space: &Space, len: u64) -> u64 {
    let at = space.map(len, RegionOptions::default()).unwrap();
    write(space, at, len);
    at
}

/// Checks the pages in an order that causes no readahead.
fn check(space: &Space, at: u64, len: u64) {
    let pages = len / PAGE;
    let mut seen = vec![0; PAGE as usize];
    for n in (0..pages).map(|n| n * 373 % pages) {
        space.read(at + n * PAGE, &mut seen).unwrap();
        assert!(seen == page(n), "page {n}");
    }
}

/// Returns the counts of all counters during a step.
fn counted(manager: &Manager, step: impl FnOnce()) -> CounterDelta {
    let before = manager.counters();
    step();
    CounterDelta { before, after: manager.counters() }
}

struct CounterDelta {
    before: CounterSnapshot,
    after: CounterSnapshot,
}

impl CounterDelta {
    fn of(&self, counter: Counter) -> u64 {
        self.after.get(counter) - self.before.get(counter)
    }
}

/// Makes a manager whose pool pays off.
fn before_a_slow_device() -> Manager {
    let device = TestDevice::new(64 << 10);
    device.reads().delay(Duration::from_micros(500));
    Manager::builder()
        .budget_bytes(64 * MIB)
        .background(false)
        .swap_area(SwapArea::device(device.boxed()))
        .build()
        .unwrap()
}

#[test]
fn what_the_shrinker_unpacks_has_not_come_back() {
    let manager = before_a_slow_device();
    let space = manager.space().unwrap();
    let at = space.map(24 * MIB, RegionOptions::default()).unwrap();
    for part in 0..12 {
        // Pages that come back at once are worth compressing.
        write(&space, at + part * 2 * MIB, 2 * MIB);
        space.advise(at + part * 2 * MIB, 2 * MIB, Advice::PageOut).unwrap();
        check(&space, at + part * 2 * MIB, 2 * MIB);
    }
    space.advise(at, 24 * MIB, Advice::PageOut).unwrap();
    let shrunk = counted(&manager, || manager.set_budget(octavo::MIN_BUDGET_BYTES).unwrap());
    assert!(shrunk.of(Counter::PoolWriteback) > 0, "nothing left the pool: {:?}", manager.stats().unwrap());
    assert_eq!(shrunk.of(Counter::PoolSwapIn), 0, "nobody came back");
    (0..12).for_each(|part| check(&space, at + part * 2 * MIB, 2 * MIB));
    manager.validate();
}

#[test]
fn a_device_as_quick_as_memory_is_not_spared() {
    let area = SwapArea::ram(128 * MIB);
    let manager =
        Manager::builder().budget_bytes(64 * MIB).background(false).swap_area(area).build().unwrap();
    let space = manager.space().unwrap();
    let at = fill(&space, 4 * MIB);
    let turn = || {
        write(&space, at, 4 * MIB);
        space.advise(at, 4 * MIB, Advice::PageOut).unwrap();
        check(&space, at, 4 * MIB);
    };
    // The manager measures time. So on a busy machine, a device may seem slow for a while.
    let goes_past = |_| {
        let turns = counted(&manager, || (0..10).for_each(|_| turn()));
        turns.of(Counter::SwapOut) > 5 * turns.of(Counter::PoolSwapOut)
    };
    assert!((0..100).any(goes_past), "most pages are packed: {:?}", manager.stats().unwrap());
    manager.validate();
}

#[test]
fn a_space_that_streams_does_not_keep_anothers_pages_out_of_the_pool() {
    const ROUNDS: u64 = 40;
    const STEP: u64 = MIB;
    let manager = before_a_slow_device();
    let (again, once) = (manager.space().unwrap(), manager.space().unwrap());
    let reused = again.map(STEP, RegionOptions::default()).unwrap();
    let streamed = once.map(ROUNDS * STEP, RegionOptions::default()).unwrap();
    let send_out = |space: &Space, at: u64| {
        write(space, at, STEP);
        let sent = counted(&manager, || space.advise(at, STEP, Advice::PageOut).map(|_| ()).unwrap());
        sent.of(Counter::PoolSwapOut)
    };
    let (mut reused_packed, mut streamed_packed) = (0, 0);
    for round in 0..ROUNDS {
        let counts = round >= ROUNDS / 2;
        reused_packed += u64::from(counts) * send_out(&again, reused);
        streamed_packed += u64::from(counts) * send_out(&once, streamed + round * STEP);
        check(&again, reused, STEP);
        // Pages that stay longer in the pool leave it.
        manager.set_budget(octavo::MIN_BUDGET_BYTES).unwrap();
        manager.set_budget(64 * MIB).unwrap();
    }
    let all = ROUNDS / 2 * STEP / PAGE;
    assert!(reused_packed * 2 > all, "{reused_packed} of {all} pages that come back are packed");
    assert!(streamed_packed * 10 < all, "{streamed_packed} of {all} pages that do not are");
    manager.validate();
}
