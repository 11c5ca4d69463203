//! A device that does not answer. Waiting accesses get an error in time, and nothing is lost if the device
//! answers later.

mod common;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use common::device::TestDevice;
use common::futures::PendingFault;
use common::{MIB, PAGE};
use octavo::io::SwapArea;
use octavo::{
    Access, Advice, Compression, Counter, ErrorKind, Machine, Manager, ManagerBuilder, Protection,
    RegionOptions, Space,
};

const PAGES: u64 = 16384;

fn silent_device() -> TestDevice {
    TestDevice::new(2 * PAGES as u32)
}

fn builder(device: &TestDevice, encrypt: bool) -> ManagerBuilder {
    let area = SwapArea::device(device.boxed());
    Manager::builder()
        .budget_bytes(16 * MIB)
        .max_budget_bytes(64 * MIB)
        .swap_area(area)
        .compression(Compression::Off)
        .encrypt(encrypt)
}

fn manager(device: &TestDevice, encrypt: bool) -> Manager {
    builder(device, encrypt).io_timeout(Duration::from_millis(30)).build().unwrap()
}

fn map(space: &Space) -> u64 {
    space.map(PAGES * PAGE, RegionOptions::default()).unwrap()
}

fn value(page: u64) -> u64 {
    (page + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[test]
fn a_page_that_does_not_come_is_an_error_in_time_and_is_there_when_it_has_come() {
    let device = silent_device();
    let manager = manager(&device, false);
    let space = manager.space().unwrap();
    let at = map(&space);
    for page in 0..64 {
        space.store(at + page * PAGE, value(page)).unwrap();
    }
    space.advise(at, 64 * PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.stats().unwrap().resident_bytes, 0, "all is out");
    device.hold();
    for _ in 0..2 {
        let error = space.load::<u64>(at + 5 * PAGE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(
            error.to_string().contains("the test device") && error.to_string().contains("try"),
            "{error}"
        );
    }
    device.let_go();
    for page in 0..64 {
        assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), value(page), "page {page}");
    }
    manager.validate();
}

#[test]
fn room_that_a_write_does_not_make_is_an_error_in_time_and_no_page_is_lost() {
    for encrypt in [false, true] {
        let device = silent_device();
        let manager = manager(&device, encrypt);
        let space = manager.space().unwrap();
        let at = map(&space);
        device.hold();
        let refused = (0..PAGES).find_map(|page| {
            let error = space.store(at + page * PAGE, value(page)).err()?;
            Some((page, error))
        });
        let (first, error) = refused.expect("memory is smaller than what is stored");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(device.writes().held() > 0, "writes were asked for");
        for page in 0..first {
            assert_eq!(
                space.load::<u64>(at + page * PAGE).unwrap(),
                value(page),
                "page {page} is in memory still"
            );
        }
        device.let_go();
        for page in first..PAGES {
            space.store(at + page * PAGE, value(page)).unwrap();
        }
        for page in 0..PAGES {
            assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), value(page), "page {page}");
        }
        manager.validate();
    }
}

/// The manager's background thread waits for the device without a timeout.
#[test]
fn a_manager_ends_though_its_device_does_not_answer() {
    for (encrypt, impatient) in [(false, false), (false, true), (true, false), (true, true)] {
        let device = silent_device();
        let patience = Duration::from_millis(if impatient { 30 } else { 20_000 });
        let manager = builder(&device, encrypt).io_timeout(patience).build().unwrap();
        let space = manager.space().unwrap();
        let at = map(&space);
        device.hold();
        // Writes pages until the background thread has submitted a transfer, and waits. The pause gives the
        // background thread time: an access that finds no room would itself wait.
        for page in 0.. {
            let stats = manager.stats().unwrap();
            if stats.free_frames + (stats.budget_bytes - stats.used_bytes) / PAGE < 700 {
                thread::sleep(Duration::from_millis(1));
            }
            if device.writes().held() > 0 || space.store(at + page * PAGE, value(page)).is_err() {
                break;
            }
        }
        drop(space);
        drop(manager);
        // Pending transfers keep their memory until then.
        device.let_go();
    }
}

#[test]
fn patience_without_end_is_no_error() {
    let device = silent_device();
    let manager = builder(&device, false).io_timeout(Duration::MAX).build().unwrap();
    let space = manager.space().unwrap();
    let at = map(&space);
    for page in 0..PAGES {
        space.store(at + page * PAGE, value(page)).unwrap();
    }
    for page in 0..PAGES {
        assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), value(page), "page {page}");
    }
}

#[test]
fn a_budget_that_is_lowered_over_a_silent_device_is_refused_in_time() {
    let device = silent_device();
    let manager = manager(&device, false);
    let space = manager.space().unwrap();
    let at = map(&space);
    manager.set_budget(64 * MIB).unwrap();
    for page in 0..12_000 {
        space.store(at + page * PAGE, value(page)).unwrap();
    }
    device.hold();
    let error = manager.set_budget(16 * MIB).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    device.let_go();
    for page in 0..12_000 {
        assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), value(page), "page {page}");
    }
    manager.validate();
}

/// A memory that is full of blocks of 2 MiB, with a silent device.
struct FullOfBlocks {
    device: TestDevice,
    /// Pages that the device was asked to write.
    asked: Arc<AtomicUsize>,
    manager: Manager,
    space: Space,
    at: u64,
}

fn full_of_blocks() -> FullOfBlocks {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let device = silent_device().watched(move |transfer| {
        counted.fetch_add(transfer.len(), Ordering::Relaxed);
    });
    let patience = Duration::from_millis(30);
    let manager = builder(&device, false).background(false).io_timeout(patience).build().unwrap();
    manager.set_budget(64 * MIB).unwrap();
    let space = manager.space().unwrap();
    let at = space.map(48 * MIB, RegionOptions::new().huge(true)).unwrap();
    for page in 0..48 * MIB / PAGE {
        space.store(at + page * PAGE, value(page)).unwrap();
    }
    assert_eq!(manager.counters().get(Counter::HugeFaultAllocated), 24);
    device.hold();
    FullOfBlocks { device, asked, manager, space, at }
}

impl FullOfBlocks {
    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    fn assert_that_nothing_is_lost(self) {
        self.device.let_go();
        for page in 0..48 * MIB / PAGE {
            assert_eq!(self.space.load::<u64>(self.at + page * PAGE).unwrap(), value(page), "page {page}");
        }
        self.manager.validate();
    }
}

#[test]
fn blocks_on_their_way_to_a_silent_device_are_no_more_than_were_asked_for() {
    let full = full_of_blocks();
    full.manager.reclaim(32).unwrap();
    assert_eq!(full.asked(), 512, "one block has all the pages, and more");
    full.assert_that_nothing_is_lost();
}

#[test]
fn blocks_stay_whole_while_the_device_is_known_to_be_silent() {
    let full = full_of_blocks();
    full.manager.reclaim(32).unwrap();
    let seen = || (full.manager.counters().get(Counter::HugeSplit), full.asked());
    let before = seen();
    for _ in 0..3 {
        assert_eq!(full.manager.reclaim(32).unwrap(), 0, "nothing is clean");
    }
    assert_eq!(seen(), before, "nothing was split or written in vain");
    full.assert_that_nothing_is_lost();
}

/// Makes some pages that are out, on a device that has just fallen silent.
fn pages_that_are_out(device: &TestDevice, space: &Space) -> u64 {
    let at = map(space);
    for page in 0..64 {
        space.store(at + page * PAGE, value(page)).unwrap();
    }
    space.advise(at, 64 * PAGE, Advice::PageOut).unwrap();
    assert_eq!(space.stats().unwrap().resident_bytes, 0, "all is out");
    device.hold();
    at
}

/// Each thread has a deadline of its own. The deadlines run at the same time, not one after the other.
#[test]
fn many_who_wait_for_one_page_give_up_side_by_side() {
    const THREADS: usize = 8;
    let patience = Duration::from_secs(2);
    let (late, looks) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(HashMap::new())));
    let looks_since = Arc::new(AtomicU32::new(0));
    let (is_late, lookers, since) = (Arc::clone(&late), Arc::clone(&looks), Arc::clone(&looks_since));
    // Time stands still, then jumps past all deadlines. After that, it advances slowly, so that nobody waits
    // forever.
    let machine = Machine::real().with_clock(move || {
        *lookers.lock().unwrap().entry(thread::current().id()).or_insert(0_u32) += 1;
        if is_late.load(Ordering::SeqCst) {
            patience + Duration::from_micros(100) * (since.fetch_add(1, Ordering::SeqCst) + 1)
        } else {
            Duration::ZERO
        }
    });
    let device = silent_device();
    let manager = builder(&device, false).io_timeout(patience).machine(machine).build().unwrap();
    let space = manager.space().unwrap();
    let at = pages_that_are_out(&device, &space);
    thread::scope(|scope| {
        let waiting: Vec<_> =
            (0..THREADS).map(|_| scope.spawn(|| space.load::<u64>(at).unwrap_err().kind())).collect();
        // A thread that waits for a moment reads such a clock again and again.
        let waits = |thread: ThreadId| looks.lock().unwrap().get(&thread).is_some_and(|looks| *looks > 5);
        while !waiting.iter().all(|thread| thread.is_finished() || waits(thread.thread().id())) {
            thread::sleep(Duration::from_millis(1));
        }
        late.store(true, Ordering::SeqCst);
        waiting.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), ErrorKind::TimedOut));
    });
    // If the threads had waited one after the other, each would have read the clock until its own timeout.
    let looks_since = looks_since.load(Ordering::SeqCst);
    assert!(Duration::from_micros(100) * looks_since < patience, "{looks_since} looks");
    device.let_go();
    assert_eq!(space.load::<u64>(at).unwrap(), value(0));
}

#[test]
fn a_future_that_nobody_polls_keeps_nobody_waiting() {
    let device = silent_device();
    let manager = manager(&device, false);
    let space = manager.space().unwrap();
    let at = pages_that_are_out(&device, &space);
    let mut asleep = PendingFault::new(&space, at / PAGE, Access::Read);
    assert!(asleep.poll().is_pending());
    assert_eq!(space.load::<u64>(at).unwrap_err().kind(), ErrorKind::TimedOut);
    device.let_go();
    assert_eq!(space.load::<u64>(at).unwrap(), value(0));
    drop(asleep);
    manager.validate();
}

#[test]
fn a_future_is_woken_at_its_deadline() {
    let device = silent_device();
    let manager = manager(&device, false);
    let space = manager.space().unwrap();
    let at = pages_that_are_out(&device, &space);
    let mut faults: Vec<_> =
        (0..3).map(|page| PendingFault::new(&space, at / PAGE + page, Access::Read)).collect();
    for fault in &mut faults {
        assert!(fault.poll().is_pending());
    }
    let began = Instant::now();
    for mut fault in faults {
        let outcome = loop {
            if fault.is_woken()
                && let Poll::Ready(outcome) = fault.poll()
            {
                break outcome;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "nobody wakes it");
            thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::TimedOut);
    }
    device.let_go();
    manager.validate();
}

/// There is no timeout here. So a call that waited for the device would wait forever.
#[test]
fn unmap_protect_and_drop_do_not_wait_for_a_page_that_is_read() {
    let device = silent_device();
    let manager = builder(&device, false).build().unwrap();
    let space = manager.space().unwrap();
    let at = pages_that_are_out(&device, &space);
    let mut faults: Vec<_> =
        (0..3).map(|page| PendingFault::new(&space, at / PAGE + page, Access::Read)).collect();
    for fault in &mut faults {
        assert!(fault.poll().is_pending());
    }
    space.unmap(at, PAGE).unwrap();
    space.protect(at + PAGE, PAGE, Protection::NONE).unwrap();
    device.let_go();
    let kinds: Vec<_> = faults
        .iter_mut()
        .map(|fault| match fault.poll() {
            Poll::Ready(outcome) => outcome.err().map(|error| error.kind()),
            Poll::Pending => panic!("the device has answered"),
        })
        .collect();
    assert_eq!(kinds, [Some(ErrorKind::NotMapped), Some(ErrorKind::Protected), None]);
    drop(faults);
    let other = manager.space().unwrap();
    let elsewhere = pages_that_are_out(&device, &other);
    let mut fault = PendingFault::new(&other, elsewhere / PAGE, Access::Read);
    assert!(fault.poll().is_pending());
    drop(fault);
    drop(other);
    device.let_go();
    manager.validate();
}
