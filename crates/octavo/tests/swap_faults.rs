//! Swap on a device that fails, is full, or is slow. Room may be lost, but never a byte.

mod common;

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;

use common::device::{EIO, ENOSPC, TestDevice};
use common::{MIB, PAGE, Watchdog, run_woken};
use octavo::{Access, Advice, Compression, Counter, ErrorKind, Manager, RegionOptions, Space};

fn manager(device: &TestDevice) -> Manager {
    Manager::builder()
        .budget_bytes(16 * MIB)
        .background(false)
        .compression(Compression::Off)
        .readahead_bytes(0)
        .swap_device(device.boxed())
        .build()
        .unwrap()
}

fn map(space: &Space, pages: u64) -> u64 {
    space.map(pages * PAGE, RegionOptions::default()).unwrap()
}

fn value(page: u64) -> u64 {
    page.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1
}

/// Writes to the first pages, in order, until a write fails. Returns the page that failed, and the error.
fn fill(space: &Space, at: u64, pages: u64) -> (u64, Option<octavo::Error>) {
    for page in 0..pages {
        if let Err(error) = space.store(at + page * PAGE, value(page)) {
            return (page, Some(error));
        }
    }
    (pages, None)
}

fn check(space: &Space, at: u64, pages: std::ops::Range<u64>) {
    for page in pages {
        assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), value(page), "page {page}");
    }
}

#[test]
fn pages_that_cannot_be_written_stay_and_the_access_that_needs_the_room_is_told() {
    for (errno, kind) in [(EIO, ErrorKind::SwapWrite), (ENOSPC, ErrorKind::SwapFull)] {
        let device = TestDevice::new(16384);
        let manager = manager(&device);
        let space = manager.space().unwrap();
        let at = map(&space, 8192);
        device.writes().fail_every(1, errno);
        let (stored, error) = fill(&space, at, 8192);
        let error = error.expect("8192 pages do not fit in 16 MiB");
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains("the test device") && error.to_string().contains("drop a space"));
        assert!(stored > 2000, "only {stored} pages were stored in 16 MiB");
        check(&space, at, 0..stored);
        assert!(manager.counters().get(Counter::SwapWriteError) > 0);
        assert_eq!(manager.counters().get(Counter::SwapOut), 0);
        // A page in memory needs no room.
        space.store(at, value(0)).unwrap();
        device.writes().fail_every(0, 0);
        assert!(fill(&space, at, 8192).1.is_none(), "the device works again");
        check(&space, at, 0..8192);
        manager.validate();
    }
}

#[test]
fn some_failing_writes_only_slow_things_down() {
    let device = TestDevice::new(16384);
    let manager = manager(&device);
    let space = manager.space().unwrap();
    let at = map(&space, 8192);
    for (every, errno) in [(2, EIO), (3, ENOSPC), (7, EIO)] {
        device.writes().fail_every(every, errno);
        let (_, error) = fill(&space, at, 8192);
        assert!(error.is_none(), "every {every}th write fails: {error:?}");
        check(&space, at, 0..8192);
    }
    assert!(device.writes().failed() > 10);
    manager.validate();
}

#[test]
fn a_failed_read_is_the_error_of_that_access_and_a_later_one_gets_the_bytes() {
    let device = TestDevice::new(16384);
    let manager = manager(&device);
    let space = manager.space().unwrap();
    let at = map(&space, 8192);
    assert!(fill(&space, at, 8192).1.is_none());
    device.reads().fail_every(1, EIO);
    let (mut failed, mut served) = (0, 0);
    for page in 0..8192 {
        let mut bytes = [0; 8];
        match space.read(at + page * PAGE, &mut bytes) {
            Ok(()) => {
                assert_eq!(u64::from_le_bytes(bytes), value(page), "page {page}");
                served += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::SwapRead);
                assert!(error.to_string().contains("try the access again"), "{error}");
                failed += 1;
            }
        }
    }
    assert!(failed > 3000 && served > 2000, "{failed} failed, {served} served from memory");
    let free = manager.stats().unwrap().free_frames;
    manager.validate();
    for errno in [EIO, ENOSPC] {
        device.reads().fail_every(3, errno);
        for page in 0..8192 {
            // Every third transfer fails, so at most one of two in a row fails.
            let found = space.load::<u64>(at + page * PAGE).or_else(|_| space.load(at + page * PAGE));
            assert_eq!(found.unwrap(), value(page), "page {page}, {free} frames were free");
        }
    }
    assert!(manager.counters().get(Counter::SwapReadError) > 3000);
    manager.validate();
}

#[test]
fn a_page_on_its_way_out_is_served_from_the_swap_cache_and_a_store_to_it_is_not_lost() {
    let device = TestDevice::new(16384);
    let manager = manager(&device);
    let space = manager.space().unwrap();
    let at = map(&space, 64);
    assert!(fill(&space, at, 64).1.is_none());
    device.writes().hold();
    thread::scope(|scope| {
        scope.spawn(|| manager.reclaim(64).unwrap());
        assert!(device.writes().wait_held(1), "reclaim writes");
        check(&space, at, 0..64);
        assert!(manager.counters().get(Counter::SwapCacheHit) >= 16, "pages under the write were served");
        for page in 0..32 {
            space.store(at + page * PAGE + 8, page + 7).unwrap();
            let pin = space.pin_exact(at + (page + 32) * PAGE + 8, 8, Access::Write).unwrap();
            pin.copy_in(0, &(page + 7).to_le_bytes()).unwrap();
        }
        device.writes().let_go();
    });
    assert_eq!(device.reads().begun(), 0, "nothing was read from the device");
    while manager.reclaim(64).unwrap() > 0 {}
    assert_eq!(space.stats().unwrap().resident_bytes, 0, "all is out");
    check(&space, at, 0..64);
    for page in 0..64 {
        assert_eq!(space.load::<u64>(at + page * PAGE + 8).unwrap(), page % 32 + 7, "page {page}");
    }
    manager.validate();
}

#[test]
fn a_place_is_not_given_to_another_page_while_an_old_write_to_it_is_under_way() {
    // During the write, a page may stop needing its place in two ways: it is unmapped, or it comes back into
    // memory and loses its slot to another page.
    for unmap in [true, false] {
        let device = TestDevice::new(if unmap { 40 } else { 60 });
        let manager = manager(&device);
        let space = manager.space().unwrap();
        let (old, new) = (map(&space, 32), map(&space, 64));
        assert!(fill(&space, old, 32).1.is_none());
        device.writes().hold();
        thread::scope(|scope| {
            scope.spawn(|| manager.reclaim(32).unwrap());
            assert!(device.writes().wait_held(1), "reclaim writes");
            device.writes().hold_no_more();
            if unmap {
                space.unmap(old, 32 * PAGE).unwrap();
            } else {
                check(&space, old, 0..32);
            }
            for page in 0..64 {
                space.store(new + page * PAGE, value(page + 1000)).unwrap();
            }
            for _ in 0..4 {
                manager.reclaim(64).unwrap();
            }
            device.writes().let_go();
        });
        for page in 0..64 {
            assert_eq!(space.load::<u64>(new + page * PAGE).unwrap(), value(page + 1000), "page {page}");
        }
        drop(space);
        manager.validate();
        assert_eq!(manager.stats().unwrap().swap_slots, 0);
        assert_eq!(manager.stats().unwrap().lru_pages, (0, 0));
    }
}

#[test]
fn a_space_dropped_during_a_write_leaves_nothing_behind_even_if_the_write_fails() {
    for errno in [0, EIO] {
        let device = TestDevice::new(64);
        let manager = manager(&device);
        let space = manager.space().unwrap();
        let at = map(&space, 32);
        assert!(fill(&space, at, 32).1.is_none());
        device.writes().hold();
        device.writes().fail_every(u64::from(errno != 0), errno);
        thread::scope(|scope| {
            scope.spawn(|| manager.reclaim(32).unwrap());
            assert!(device.writes().wait_held(1), "reclaim writes");
            drop(space);
            device.writes().let_go();
        });
        assert_eq!(manager.stats().unwrap().swap_slots, 0);
        assert_eq!(manager.stats().unwrap().lru_pages, (0, 0));
        manager.validate();
    }
}

#[test]
fn a_full_area_is_an_error_that_says_so_and_room_again_is_used() {
    let device = TestDevice::new(1024);
    let manager = manager(&device);
    let space = manager.space().unwrap();
    let at = map(&space, 8192);
    let (stored, error) = fill(&space, at, 8192);
    let error = error.unwrap();
    assert_eq!(error.kind(), ErrorKind::SwapFull, "{error}");
    assert!(error.to_string().contains("is full (4 MiB of at most 4 MiB in use)"), "{error}");
    assert!(error.to_string().contains("unmap a range"), "{error}");
    // If pages that are out are unmapped, the device has room again.
    space.unmap(at, 1500 * PAGE).unwrap();
    assert!(manager.stats().unwrap().swap_slots < 1024);
    check(&space, at, 1500..stored);
    for page in stored..stored + 500 {
        space.store(at + page * PAGE, value(page)).unwrap();
    }
    check(&space, at, 1500..stored + 500);
    manager.validate();
}

#[test]
fn an_area_smaller_than_the_reclaim_batch_works() {
    let device = TestDevice::new(5);
    let manager = manager(&device);
    let space = manager.space().unwrap();
    let at = map(&space, 64);
    assert!(fill(&space, at, 64).1.is_none());
    for _ in 0..20 {
        manager.reclaim(64).unwrap();
        assert!(manager.stats().unwrap().swap_slots <= 5);
        check(&space, at, 0..64);
    }
    drop(space);
    assert_eq!(manager.stats().unwrap().swap_slots, 0);
}

#[test]
fn a_future_waits_for_anothers_read_and_one_that_is_dropped_leaves_the_page() {
    let device = TestDevice::new(1024);
    let manager = manager(&device);
    let space = manager.space().unwrap();
    let at = map(&space, 8);
    assert!(fill(&space, at, 8).1.is_none());
    while manager.reclaim(8).unwrap() > 0 {}
    device.reads().hold();
    thread::scope(|scope| {
        scope.spawn(|| check(&space, at, 0..1));
        assert!(device.reads().wait_held(1), "a load reads");
        let mut dropped = Box::pin(space.fault_async(at, Access::Write));
        assert!(dropped.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(dropped);
        // Accesses to other pages do not wait.
        assert_eq!(space.load::<u64>(at + 100).unwrap_err().kind(), ErrorKind::InvalidRange);
        let waiting = scope.spawn(|| run_woken(space.fault_async(at, Access::Write)));
        while !waiting.is_finished() && device.reads().begun() == 1 {
            thread::yield_now();
            device.reads().let_go();
        }
        let (result, polls, wakes) = waiting.join().unwrap();
        result.unwrap();
        assert!(polls <= wakes + 1, "{polls} polls for {wakes} wakes");
    });
    check(&space, at, 0..8);
    assert!(matches!(
        Box::pin(space.fault_async(at, Access::Write)).as_mut().poll(&mut Context::from_waker(Waker::noop())),
        Poll::Ready(Ok(()))
    ));
    manager.validate();
}

#[test]
fn threads_on_one_absent_page_read_it_once() {
    let device = TestDevice::new(1024);
    let manager = Arc::new(manager(&device));
    let space = manager.space().unwrap();
    let at = map(&space, 1);
    assert!(fill(&space, at, 1).1.is_none());
    while manager.reclaim(8).unwrap() > 0 {}
    device.reads().hold();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| check(&space, at, 0..1));
        }
        assert!(device.reads().wait_held(1));
        thread::sleep(std::time::Duration::from_millis(20));
        device.reads().let_go();
    });
    assert_eq!(device.reads().begun(), 1);
}

/// The device is the caller's code. Its panic does not propagate to the access, and no other thread waits for
/// the failed transfer forever.
#[test]
fn a_device_that_panics_is_an_error_and_leaves_nobody_waiting() {
    let _watchdog = Watchdog::new("accesses beside a device that panics");
    let device = TestDevice::new(4096);
    let manager = manager(&device);
    let space = manager.space().unwrap();
    let at = space.map(64 * PAGE, RegionOptions::default()).unwrap();
    for page in 0..64 {
        space.store(at + page * PAGE, page + 1).unwrap();
    }
    device.writes().panic_every(1);
    space.advise(at, 64 * PAGE, Advice::PageOut).unwrap();
    for page in 0..64 {
        assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), page + 1, "page {page} stays in memory");
    }
    device.writes().panic_every(0);
    space.advise(at, 64 * PAGE, Advice::PageOut).unwrap();
    device.reads().panic_every(1);
    thread::scope(|scope| {
        for page in 0..8 {
            let space = &space;
            scope.spawn(move || {
                let error = space.load::<u64>(at + page % 2 * PAGE).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::SwapRead, "{error}");
            });
        }
    });
    device.reads().panic_every(0);
    for page in 0..64 {
        assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), page + 1, "page {page}");
    }
    manager.validate();
}

/// A device that answers "timed out" has answered, so it counts as failing, not as silent.
#[test]
fn a_device_that_says_that_it_timed_out_fails_and_is_used_again_when_it_is_well() {
    const ETIMEDOUT: i32 = 110;
    let device = TestDevice::new(16384);
    let manager = manager(&device);
    let space = manager.space().unwrap();
    let at = map(&space, 8192);
    device.writes().fail_every(1, ETIMEDOUT);
    let (first, error) = (0..8192)
        .find_map(|page| Some((page, space.store(at + page * PAGE, value(page)).err()?)))
        .expect("memory is smaller than what is stored");
    assert_eq!(error.kind(), ErrorKind::SwapWrite, "{error}");
    device.writes().fail_every(0, 0);
    assert!(manager.reclaim(64).unwrap() >= 64, "it writes again, though no access asks");
    for page in first..8192 {
        space.store(at + page * PAGE, value(page)).unwrap();
    }
    for page in 0..8192 {
        assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), value(page), "page {page}");
    }
    manager.validate();
}
