//! A full device. No thread spins on it. A thread that needs room on the device waits until a transfer ends,
//! at most until a deadline.

mod common;

use std::task::Poll;
use std::thread;
use std::time::Duration;

use common::device::{Manner, TestDevice, Whims};
use common::futures::PendingFault;
use common::{MIB, PAGE};
use octavo::{
    Access, Advice, Compression, Counter, ErrorKind, Manager, ManagerBuilder, RegionOptions, Space,
};

const PAGES: u64 = 8192;

fn builder(device: &TestDevice) -> ManagerBuilder {
    let builder = Manager::builder().budget_bytes(16 * MIB).swap_device(device.boxed());
    builder.compression(Compression::Off).background(false)
}

fn map(space: &Space) -> u64 {
    space.map(PAGES * PAGE, RegionOptions::default()).unwrap()
}

fn value(page: u64) -> u64 {
    (page + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn fill(space: &Space, at: u64, pages: std::ops::Range<u64>) {
    for page in pages {
        space.store(at + page * PAGE, value(page)).unwrap();
    }
}

fn check(space: &Space, at: u64, pages: std::ops::Range<u64>) {
    for page in pages {
        assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), value(page), "page {page}");
    }
}

/// Makes a space whose first 64 pages are out.
fn with_pages_out(manager: &Manager) -> (Space, u64) {
    let space = manager.space().unwrap();
    let at = map(&space);
    fill(&space, at, 0..64);
    space.advise(at, 64 * PAGE, Advice::PageOut).unwrap();
    while space.stats().unwrap().resident_bytes > 0 {
        manager.reclaim(64).unwrap();
    }
    (space, at)
}

#[test]
fn pages_that_find_no_room_stay_and_are_written_when_there_is_some() {
    for encrypt in [false, true] {
        let whims = Whims { delay: 200, ..Whims::default() };
        let device = TestDevice::simulated(2 * PAGES as u32, 3, Manner::Threads(1), whims);
        device.set_room(1);
        let manager = builder(&device).encrypt(encrypt).build().unwrap();
        let space = manager.space().unwrap();
        let at = map(&space);
        fill(&space, at, 0..PAGES);
        check(&space, at, 0..PAGES);
        assert!(device.refused() > 0, "it was full now and then");
        let counters = manager.counters();
        assert_eq!(counters.get(Counter::SwapWriteError) + counters.get(Counter::SwapReadError), 0);
        device.drain();
        manager.validate();
    }
}

#[test]
fn all_of_a_range_is_sent_out_though_there_is_room_for_little_at_once() {
    let whims = Whims { delay: 200, ..Whims::default() };
    let device = TestDevice::simulated(2 * PAGES as u32, 4, Manner::Served, whims);
    device.set_room(1);
    let manager = builder(&device).build().unwrap();
    let space = manager.space().unwrap();
    let at = map(&space);
    fill(&space, at, 0..2048);
    space.advise(at, 2048 * PAGE, Advice::PageOut).unwrap();
    // The last transfers are still under way.
    device.drain();
    assert_eq!(space.stats().unwrap().resident_bytes, 0);
    assert!(device.refused() > 0);
    check(&space, at, 0..2048);
}

#[test]
fn no_room_on_a_silent_device_is_an_error_in_time_and_no_page_is_lost() {
    let device = TestDevice::new(2 * PAGES as u32);
    let manager = builder(&device).io_timeout(Duration::from_millis(30)).readahead_bytes(0).build().unwrap();
    let (space, at) = with_pages_out(&manager);
    device.hold();
    device.set_room(1);
    // The first read takes the whole room of the device.
    for page in 0..3 {
        let error = space.load::<u64>(at + page * PAGE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    }
    assert!(device.refused() > 0);
    let full = (64..PAGES).find_map(|page| {
        let error = space.store(at + page * PAGE, value(page)).err()?;
        Some((page, error))
    });
    let (first, error) = full.expect("memory is smaller than what is stored");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert_eq!(device.under_way(), 1);
    check(&space, at, 64..first);
    device.let_go();
    fill(&space, at, first..PAGES);
    check(&space, at, 0..PAGES);
    manager.validate();
}

#[test]
fn a_future_that_finds_no_room_is_woken_when_a_transfer_ends() {
    let device = TestDevice::new(2 * PAGES as u32);
    let manager = builder(&device).readahead_bytes(0).build().unwrap();
    let (space, at) = with_pages_out(&manager);
    device.hold();
    device.set_room(1);
    let mut faults: Vec<_> =
        (0..8).map(|page| PendingFault::new(&space, at / PAGE + page, Access::Read)).collect();
    assert!(faults.iter_mut().all(|fault| fault.poll().is_pending()));
    assert_eq!((device.under_way(), device.refused()), (1, 7));
    assert!(faults.iter().all(|fault| !fault.is_woken()), "nothing has ended");
    device.let_go();
    for fault in &mut faults {
        assert!(fault.is_woken(), "page {} waits for ever", fault.page);
        assert!(matches!(fault.poll(), Poll::Ready(Ok(()))), "page {}", fault.page);
    }
    check(&space, at, 0..64);
}

#[test]
fn what_is_read_ahead_is_left_out_where_there_is_no_room() {
    let device = TestDevice::new(2 * PAGES as u32);
    let manager = builder(&device).build().unwrap();
    let (space, at) = with_pages_out(&manager);
    device.hold();
    device.set_room(1);
    thread::scope(|scope| {
        let load = scope.spawn(|| space.load::<u64>(at + 63 * PAGE).unwrap());
        assert!(device.reads().wait_held(1));
        assert_eq!(space.prefetch(at, 32 * PAGE).unwrap(), 0);
        assert_eq!(device.reads().held(), 1);
        device.let_go();
        assert_eq!(load.join().unwrap(), value(63));
    });
    assert_eq!(space.prefetch(at, 32 * PAGE).unwrap(), 32);
    assert_eq!(manager.counters().get(Counter::SwapReadError), 0);
    check(&space, at, 0..64);
    manager.validate();
}

#[test]
fn a_device_that_says_it_is_full_and_has_nothing_to_do_fails_the_access() {
    let device = TestDevice::new(2 * PAGES as u32);
    let manager = builder(&device).readahead_bytes(0).build().unwrap();
    let (space, at) = with_pages_out(&manager);
    device.set_room(0);
    let error = space.load::<u64>(at).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SwapRead);
    assert!(error.to_string().contains("says that it is full"), "{error}");
    device.set_room(1);
    check(&space, at, 0..64);
}
