//! The whole engine over the test device: late, reordered, failed, short and torn transfers, from a seed.
//!
//! `OCTAVO_SEEDS` sets the number of seeds, and `OCTAVO_TEST_SEED` the first seed.
//! `cargo xtask soak --simulated` runs the same tests, optimised.

mod common;
mod oracle;

use common::device::{Manner, TestDevice, Whims};
use common::futures::PendingFault;
use common::{MIB, PAGE, Watchdog, number_from, seed_or};
use octavo::{Access, Compression, ErrorKind, Manager, RegionOptions, Space};
use oracle::simulation;

const SEEDS: u64 = 32;
/// The seeds are divided among this many tests, so that they run in parallel.
const SHARES: u64 = 2;

fn seeds(share: u64) -> impl Iterator<Item = u64> {
    let first = seed_or(1);
    (first..first + number_from("OCTAVO_SEEDS").unwrap_or(SEEDS)).filter(move |seed| seed % SHARES == share)
}

#[test]
fn one_thread_agrees_with_the_model_whatever_the_device_does_first_half() {
    seeds(0).for_each(|seed| println!("{seed}: {:?}", simulation::run_driven(seed)));
}

#[test]
fn threads_find_their_lanes_whatever_the_device_does() {
    seeds(0).for_each(simulation::run_threaded);
}

fn driven() -> (TestDevice, Manager) {
    let device = TestDevice::simulated(16384, 1, Manner::Driven, Whims::default());
    let builder = Manager::builder().budget_bytes(16 * MIB).background(false).compression(Compression::Off);
    let manager = builder.swap_device(device.boxed()).build().unwrap();
    (device, manager)
}

/// Transfers end only when a thread waits.
const STILL: Whims = Whims {
    inline: 0,
    failed_reads: 0,
    failed_writes: 0,
    full: false,
    lying_reads: 0,
    lost_writes: 0,
    delay: 1 << 40,
    refused: 0,
};

/// Makes a range of pages, writes to them, and sends them out.
fn swapped_out(manager: &Manager, space: &Space, pages: u64) -> u64 {
    let at = space.map(pages * PAGE, RegionOptions::default()).unwrap();
    (0..pages).for_each(|page| space.store(at + page * PAGE, page + 1).unwrap());
    while manager.reclaim(pages).unwrap() > 0 {}
    at
}

#[test]
fn a_crowd_of_futures_on_one_page_is_served_by_the_one_thread_that_polls_them() {
    let _watchdog = Watchdog::new("a crowd of futures");
    let (device, manager) = driven();
    let space = manager.space().unwrap();
    let at = swapped_out(&manager, &space, 1);
    device.set_whims(STILL);
    let fault = |_| PendingFault::new(&space, at / PAGE, Access::Read);
    let mut crowd: Vec<_> = (0..200).map(fault).collect();
    assert!(crowd.iter_mut().all(|fault| fault.poll().is_pending()), "the page is still on its way");
    // Some waiters are dropped. The waiter that reads the page is among them.
    crowd.drain(..7);
    device.drain();
    while !crowd.is_empty() {
        let woken = crowd.iter().position(PendingFault::is_woken).expect("somebody is woken");
        if crowd[woken].poll().is_ready() {
            crowd.swap_remove(woken);
        } else {
            device.advance();
        }
    }
    assert_eq!(device.happened().reads, 1);
    assert_eq!(space.load::<u64>(at).unwrap(), 1);
}

#[test]
fn memory_that_reads_under_way_will_give_back_is_waited_for() {
    let _watchdog = Watchdog::new("memory under reads");
    let (device, manager) = driven();
    let space = manager.space().unwrap();
    let pages = 6000;
    let at = swapped_out(&manager, &space, pages);
    let fresh = space.map(8 * PAGE, RegionOptions::default()).unwrap();
    device.set_whims(STILL);
    // All memory is taken by reads that no fault needs any more.
    let mut page = 0;
    while manager.stats().unwrap().free_frames > 0 && page < pages {
        let _ = PendingFault::new(&space, at / PAGE + page, Access::Read).poll();
        page += 1;
    }
    assert!(device.under_way() > 0 && page > 1000, "{page} pages, {:?}", manager.stats());
    for page in 0..8 {
        space.store(fresh + page * PAGE, page).unwrap();
    }
    for page in 0..pages {
        assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), page + 1);
    }
    manager.validate();
}

#[test]
fn a_manager_that_goes_while_transfers_are_under_way_is_gone_when_they_end() {
    let _watchdog = Watchdog::new("a manager goes");
    let (device, manager) = driven();
    let space = manager.space().unwrap();
    let at = swapped_out(&manager, &space, 8);
    device.set_whims(STILL);
    for page in 0..8 {
        assert!(PendingFault::new(&space, at / PAGE + page, Access::Write).poll().is_pending());
    }
    drop(space);
    drop(manager);
    assert!(device.under_way() > 0 && device.is_shared());
    device.drain();
    assert!(!device.is_shared(), "somebody keeps the manager's device");
}

#[test]
fn a_device_that_fails_all_writes_costs_neither_memory_nor_much_time() {
    let _watchdog = Watchdog::new("all writes fail");
    let whims = Whims { failed_writes: 1000, full: true, ..Whims::default() };
    let device = TestDevice::simulated(1 << 28, 1, Manner::Driven, whims);
    let builder = Manager::builder().budget_bytes(16 * MIB).background(false).compression(Compression::Off);
    let manager = builder.swap_device(device.boxed()).build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(8192 * PAGE, RegionOptions::default()).unwrap();
    let stored = (0..8192).find(|page| space.store(at + page * PAGE, page + 1).is_err()).unwrap();
    let (used, writes) = (manager.stats().unwrap().used_bytes, device.happened().writes);
    for _ in 0..100 {
        let error = space.store(at + stored * PAGE, 1_u64).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SwapFull, "{error}");
    }
    let grown = manager.stats().unwrap().used_bytes.saturating_sub(used);
    assert!(grown <= MIB / 8, "{grown} bytes more are charged");
    let each = (device.happened().writes - writes) / 100;
    assert!(each < 200, "{each} writes for each access that failed");
    assert!((0..stored).all(|page| space.load::<u64>(at + page * PAGE).unwrap() == page + 1));
    device.heal();
    (stored..8192).for_each(|page| space.store(at + page * PAGE, page + 1).unwrap());
    assert!((0..8192).all(|page| space.load::<u64>(at + page * PAGE).unwrap() == page + 1));
    manager.validate();
}

/// Slow tests, which run with `cargo xtask test --all`.
mod slow {
    use super::*;

    #[test]
    fn one_thread_agrees_with_the_model_whatever_the_device_does_second_half() {
        seeds(1).for_each(|seed| println!("{seed}: {:?}", simulation::run_driven(seed)));
    }

    #[test]
    fn a_seed_is_repeated_exactly() {
        for seed in (1..).filter(|seed| simulation::repeats_exactly(*seed)).take(4) {
            assert_eq!(simulation::run_driven(seed), simulation::run_driven(seed), "seed {seed}");
        }
    }
}
