//! Pins that are exact, owned, or awaited.

mod common;

use std::future::Future;
use std::sync::Arc;
use std::thread;

use octavo::{Access, Advice, Compression, ErrorKind, Manager, OwnedPin, Pin, RegionOptions, Result, Space};

use common::{MIB, PAGE, assert_nothing_is_left, run_woken};

fn manager() -> Manager {
    Manager::builder().budget_bytes(16 * MIB).compression(Compression::Off).build().unwrap()
}

/// Pages that hold their numbers, all of which are out.
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
        let (pin, polls, wakes) = run_woken(space.pin_async(at, 300 * PAGE as usize, access));
        let pin = pin.unwrap();
        println!("{polls} polls, {wakes} wakes");
        assert_shows(&pin, 300);
        assert_eq!(manager.reclaim(1000).unwrap(), 0, "all pages are pinned");
        assert_eq!(pin.store(0, 1_u8).is_ok(), access == Access::Write);
        drop(pin);
        let (again, polls, _) = run_woken(space.read_async(at, 300 * PAGE as usize));
        assert_shows(&again.unwrap(), 300);
        assert_eq!(polls, 1, "all of it was there");
        drop(space);
        assert_nothing_is_left(&manager);
    }
}

#[test]
fn a_pin_that_is_given_up_holds_nothing() {
    let manager = manager();
    let (space, at) = pages_out(&manager, 64);
    // Polled once, each at another length, and dropped.
    for pages in 1..64 {
        let mut future = Box::pin(space.pin_async(at, (pages * PAGE) as usize, Access::Write));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        drop(future.as_mut().poll(&mut context));
    }
    space.advise(at, 64 * PAGE, Advice::PageOut).unwrap();
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
