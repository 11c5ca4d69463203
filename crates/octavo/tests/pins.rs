//! Pins that are exact, owned, or awaited.

mod common;

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;

use octavo::io::SwapArea;
use octavo::{
    Access, AccessPattern, Advice, Compression, Counter, ErrorKind, Manager, OwnedPin, Pin, PinPath,
    Protection, RegionOptions, Result, Space,
};

use common::device::TestDevice;
use common::{MIB, PAGE, assert_nothing_is_left, run_woken};

fn manager() -> Manager {
    Manager::builder().budget_bytes(16 * MIB).compression(Compression::Off).build().unwrap()
}

/// Makes pages that hold their numbers, all of them out.
fn pages_out(manager: &Manager, pages: u64) -> (Arc<Space>, u64) {
    let space = Arc::new(manager.space().unwrap());
    let at = space.map(pages * PAGE, RegionOptions::default()).unwrap();
    (0..pages).for_each(|page| space.store(at + page * PAGE + 8, page + 1).unwrap());
    while manager.reclaim(512).unwrap() > 0 {}
    assert_eq!(space.stats().unwrap().resident_bytes, 0);
    (space, at)
}

fn assert_shows<H: octavo::PinHolder>(pin: &octavo::PinOf<H>, pages: u64) {
    assert_eq!(pin.len() as u64, pages * PAGE);
    (0..pages).for_each(|page| assert_eq!(pin.load::<u64>((page * PAGE) as usize + 8).unwrap(), page + 1));
}

#[test]
fn owned_pins_and_futures_may_go_anywhere() {
    fn anywhere<T: Send + Sync + 'static>(_: &T) {}
    fn sent<T: Send + 'static>(future: T) -> T {
        future
    }
    let manager = manager();
    let (space, at) = pages_out(&manager, 40);
    let pin = space.pin_owned(at, 40 * PAGE as usize, Access::Write).unwrap();
    anywhere(&pin);
    let faulting = sent(space.fault_owned_async(at, Access::Read));
    let pinning = sent(space.pin_owned_async(at + 8 * PAGE, 8, Access::Read));
    drop(space);
    let other = thread::spawn(move || {
        run_woken(faulting).0.unwrap();
        run_woken(pinning).0.unwrap()
    });
    let other: OwnedPin = other.join().unwrap();
    assert_eq!(other.load::<u64>(0).unwrap(), 0);
    assert_shows(&pin, 40);
    pin.store(0, 7_u64).unwrap();
    let changed = thread::spawn(move || {
        let changed = pin.load::<u64>(0).unwrap();
        drop(pin);
        changed
    });
    assert_eq!(changed.join().unwrap(), 7);
    assert!(manager.stats().unwrap().table_nodes > 0, "the other pin has the space still");
    drop(other);
    assert_nothing_is_left(&manager);
}

#[test]
fn an_awaited_pin_has_all_pages_and_keeps_them() {
    for access in [Access::Read, Access::Write] {
        let manager = manager();
        let (space, at) = pages_out(&manager, 300);
        let (pin, ..) = run_woken(space.pin_async(at, 300 * PAGE as usize, access));
        let pin = pin.unwrap();
        assert_shows(&pin, 300);
        assert_eq!(manager.reclaim(1000).unwrap(), 0, "all pages are pinned");
        assert_eq!(pin.store(0, 1_u8).is_ok(), access == Access::Write);
        drop(pin);
        let (again, polls, _) = run_woken(space.read_async(at, 300 * PAGE as usize));
        assert_shows(&again.unwrap(), 300);
        assert_eq!(polls, 3, "all of it is there, and others may run after 128 pages");
        drop(space);
        assert_nothing_is_left(&manager);
    }
}

/// The device answers only on order, so that nothing depends on timing.
#[test]
fn one_poll_asks_for_all_pages_near_and_waits_for_none() {
    for path in [PinPath::LockFree, PinPath::Locked] {
        let device = TestDevice::new(4096);
        let manager = Manager::builder()
            .budget_bytes(16 * MIB)
            .compression(Compression::Off)
            .background(false)
            .pin_path(path)
            .swap_area(SwapArea::device(device.boxed()))
            .build()
            .unwrap();
        let (space, at) = pages_out(&manager, 300);
        // Nothing is read ahead of a fault.
        space.advise(at, 300 * PAGE, Advice::Random).unwrap();
        device.hold();
        let asked_before = manager.counters().get(Counter::ReadAhead);
        let mut future = Box::pin(space.read_async(at, 300 * PAGE as usize));
        let waker = std::task::Waker::noop();
        assert!(future.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
        assert!(manager.counters().get(Counter::ReadAhead) - asked_before >= 100);
        assert!(device.under_way() > 0);
        let pin = loop {
            device.let_go();
            device.hold();
            if let Poll::Ready(pin) = future.as_mut().poll(&mut Context::from_waker(waker)) {
                break pin.unwrap();
            }
        };
        assert_shows(&pin, 300);
        device.let_go();
        drop((future, pin));
        drop(space);
        assert_nothing_is_left(&manager);
    }
}

#[test]
fn a_pin_that_cannot_be_had_is_an_error_and_reads_nothing_that_may_not_be_read() {
    let manager = manager();
    let (space, at) = pages_out(&manager, 300);
    space.protect(at, 300 * PAGE, Protection::NONE).unwrap();
    let asked_before = manager.counters().get(Counter::ReadAhead);
    let kind = |len, access| run_woken(space.pin_async(at, len, access)).0.unwrap_err().kind();
    assert_eq!(kind(300 * PAGE as usize, Access::Read), ErrorKind::Protected);
    assert_eq!(manager.counters().get(Counter::ReadAhead), asked_before);
    space.protect(at, 300 * PAGE, Protection::READ).unwrap();
    assert_eq!(kind(8, Access::Write), ErrorKind::Protected);
    let all = space.map(64 * MIB, RegionOptions::new().pattern(AccessPattern::Sequential)).unwrap();
    let result = run_woken(space.pin_async(all, 64 << 20, Access::Write)).0;
    assert_eq!(result.unwrap_err().kind(), ErrorKind::OutOfMemory);
    space.set_quota(Some(4 * MIB)).unwrap();
    let result = run_woken(space.pin_async(all, 8 << 20, Access::Write)).0;
    assert_eq!(result.unwrap_err().kind(), ErrorKind::QuotaExceeded);
    let fits = run_woken(space.pin_async(all, 2 << 20, Access::Write)).0;
    assert_eq!(fits.unwrap().len(), 2 << 20);
    drop(space);
    assert_nothing_is_left(&manager);
}

#[test]
fn a_pin_that_is_given_up_holds_nothing() {
    let manager = manager();
    let (space, at) = pages_out(&manager, 64);
    // Futures of different lengths are polled once and dropped.
    for pages in 1..64 {
        let mut future = Box::pin(space.pin_async(at, (pages * PAGE) as usize, Access::Write));
        drop(future.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())));
    }
    while manager.reclaim(512).unwrap() > 0 {}
    let (pin, ..) = run_woken(space.read_async(at, 64 * PAGE as usize));
    assert_shows(&pin.unwrap(), 64);
    drop(space);
    assert_nothing_is_left(&manager);
}

#[test]
fn a_prefix_is_for_those_who_ask_for_it() {
    let manager = manager();
    let (space, at) = pages_out(&manager, 2);
    let len = 3 * PAGE as usize;
    let unmapped = |result: Result<Pin<'_>>| assert_eq!(result.unwrap_err().kind(), ErrorKind::NotMapped);
    assert_shows(&space.pin_prefix(at, len, Access::Read).unwrap(), 2);
    unmapped(space.pin_exact(at, len, Access::Read));
    unmapped(run_woken(space.pin_async(at, len, Access::Read)).0);
    unmapped(space.pin_prefix(at + 2 * PAGE, 8, Access::Read));
    assert_eq!(space.pin_owned(at, len, Access::Read).unwrap_err().kind(), ErrorKind::NotMapped);
    for empty in [
        space.pin_exact(at, 0, Access::Write),
        space.pin_prefix(at, 0, Access::Write),
        run_woken(space.pin_async(at, 0, Access::Write)).0,
    ] {
        assert!(empty.unwrap().is_empty());
    }
    drop(space);
    assert_nothing_is_left(&manager);
}
