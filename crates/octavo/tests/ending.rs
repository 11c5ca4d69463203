//! The end of spaces and of their manager: everything is freed without further calls, and pending transfers
//! are waited for.

mod common;

use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use common::device::{Manner, TestDevice};
use common::{MIB, PAGE, Watchdog, assert_nothing_is_left};
use octavo::io::{Device, Submitted, Transfer, Urgency, Waited};
use octavo::{
    Advice, Compression, Counter, ErrorKind, IoEngine, Manager, ManagerBuilder, RegionOptions,
    ShutdownRefused, Space, SwapArea,
};

fn builder() -> ManagerBuilder {
    Manager::builder().budget_bytes(16 * MIB).compression(Compression::Off)
}

/// Makes a device that completes transfers only when a thread polls it or waits for it.
fn pulled_device() -> TestDevice {
    TestDevice::with_manner(16384, Manner::Served)
}

fn fill(space: &Space, pages: u64) -> u64 {
    let at = space.map(pages * PAGE, RegionOptions::default()).unwrap();
    (0..pages).for_each(|page| space.store(at + page * PAGE, page + 1).unwrap());
    at
}

/// Waits only by reading the statistics, which triggers no work.
fn wait_until_slots_are_free(manager: &Manager) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while manager.stats().unwrap().swap_slots > 0 {
        assert!(Instant::now() < deadline, "{:?}", manager.stats().unwrap());
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn slots_of_writes_and_reads_under_way_are_free_soon_after_the_last_space_is_dropped() {
    for background in [false, true] {
        for engine in [None, Some(IoEngine::Probe), Some(IoEngine::Threads)] {
            let builder = builder().background(background);
            let manager = match engine {
                None => builder.swap_area(SwapArea::device(pulled_device().boxed())),
                Some(engine) => builder.io_engine(engine),
            };
            let manager = manager.build().unwrap();
            let (written, read) = (manager.space().unwrap(), manager.space().unwrap());
            let read_at = fill(&read, 512);
            read.advise(read_at, 512 * PAGE, Advice::PageOut).unwrap();
            let written_at = fill(&written, 512);
            read.prefetch(read_at, 512 * PAGE).unwrap();
            written.advise(written_at, 512 * PAGE, Advice::PageOut).unwrap();
            drop((written, read));
            wait_until_slots_are_free(&manager);
            assert_nothing_is_left(&manager);
        }
    }
}

/// Blocks the background thread when that thread submits a write, or when it flushes.
#[derive(Clone)]
struct Barrier(Arc<(Mutex<BarrierState>, Condvar)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BarrierState {
    Open,
    Closed,
    /// The background thread waits at the barrier.
    Awaited,
}

impl Barrier {
    fn closed() -> Self {
        Self(Arc::new((Mutex::new(BarrierState::Closed), Condvar::new())))
    }

    fn set(&self, to: BarrierState) {
        *self.0.0.lock().unwrap() = to;
        self.0.1.notify_all();
    }

    fn is_awaited(&self) -> bool {
        *self.0.0.lock().unwrap() == BarrierState::Awaited
    }

    fn pass(&self) {
        if thread::current().name() != Some("octavo-background") {
            return;
        }
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap();
        if *state == BarrierState::Closed {
            *state = BarrierState::Awaited;
        }
        while *state == BarrierState::Awaited {
            state = changed.wait(state).unwrap();
        }
    }
}

/// Writes pages until the background thread waits at the barrier. The writes are slow, so that the background
/// thread makes the room.
fn store_until_awaited(manager: &Manager, space: &Space, barrier: &Barrier, word: impl Fn(u64) -> u64) {
    let at = space.map(64 * MIB, RegionOptions::default()).unwrap();
    for page in 0..64 * MIB / PAGE {
        space.store(at + page * PAGE, word(page)).unwrap();
        let stats = manager.stats().unwrap();
        if stats.free_frames + (stats.budget_bytes - stats.used_bytes) / PAGE < 200 {
            thread::sleep(Duration::from_millis(1));
        }
        if barrier.is_awaited() {
            return;
        }
    }
    panic!("the background thread has not come by");
}

#[test]
fn slots_of_a_write_that_begins_after_the_last_space_is_dropped_are_free_soon() {
    let _watchdog = Watchdog::new("a write that begins late");
    let (barrier, device) = (Barrier::closed(), pulled_device());
    let before = barrier.clone();
    let device = device.watched(move |_| before.pass());
    let manager = builder().swap_area(SwapArea::device(device.boxed())).build().unwrap();
    let space = manager.space().unwrap();
    store_until_awaited(&manager, &space, &barrier, |page| page + 1);
    drop(space);
    barrier.set(BarrierState::Open);
    wait_until_slots_are_free(&manager);
    assert_nothing_is_left(&manager);
}

/// A device whose flush may block the background thread.
struct HeldAtFlush(TestDevice, Barrier);

impl Device for HeldAtFlush {
    fn capacity_pages(&self) -> u32 {
        self.0.capacity_pages()
    }

    fn submit(&self, transfer: Transfer, urgency: Urgency) -> Submitted {
        self.0.submit(transfer, urgency)
    }

    fn flush(&self) {
        self.1.pass();
        self.0.flush();
    }

    fn poll(&self) {
        self.0.poll();
    }

    fn wait(&self, queue: u32, still_waiting: &dyn Fn() -> bool) -> Waited {
        self.0.wait(queue, still_waiting)
    }

    fn serve(&self) {
        self.0.serve();
    }

    fn describe(&self) -> String {
        self.0.describe()
    }
}

/// Pages that repeat a word are put away without a write. The background thread has pinned them while it
/// flushes their batch.
#[test]
fn a_manager_is_shut_down_when_its_background_thread_has_let_go_of_the_last_page() {
    let _watchdog = Watchdog::new("a manager shut down beside its background thread");
    let barrier = Barrier::closed();
    let device = HeldAtFlush(TestDevice::new(16384), barrier.clone());
    let manager = builder().swap_area(SwapArea::device(Box::new(device))).build().unwrap();
    let space = manager.space().unwrap();
    store_until_awaited(&manager, &space, &barrier, |_| 0);
    let in_hand = || {
        let counters = manager.counters();
        let [put_away, direct, background] =
            [Counter::ZeroSwapOut, Counter::StealDirect, Counter::StealBackground].map(|of| counters.get(of));
        put_away - direct - background
    };
    while in_hand() == 0 {
        // This is a batch in which all pages were in use.
        barrier.set(BarrierState::Closed);
        store_until_awaited(&manager, &space, &barrier, |_| 0);
    }
    drop(space);
    let (sender, receiver) = mpsc::channel();
    let last = manager.clone();
    thread::spawn(move || sender.send(last.shutdown()));
    let early = receiver.recv_timeout(Duration::from_millis(300));
    barrier.set(BarrierState::Open);
    assert!(early.is_err(), "it did not wait: {early:?}");
    receiver.recv().unwrap().unwrap();
}

/// The compiler finds the error's type by itself only if exactly one conversion applies.
#[test]
fn closures_that_use_question_marks_need_no_type_for_their_errors() {
    let work = || {
        let manager = builder().build()?;
        let space = manager.space()?;
        let at = space.map(PAGE, RegionOptions::default())?;
        space.store(at, 1_u64)?;
        drop(space);
        manager.shutdown().map_err(ShutdownRefused::into_error)?;
        Ok(())
    };
    let whole = || -> octavo::Result<()> {
        work()?;
        Ok(())
    };
    whole().unwrap();
}

#[test]
fn a_manager_that_is_refused_its_end_works_on_and_ends_later() {
    for background in [false, true] {
        let manager = builder().background(background).build().unwrap();
        let space = manager.space_named("in use").unwrap();
        let at = fill(&space, 100);
        let refused = manager.shutdown().unwrap_err();
        assert_eq!(refused.error().kind(), ErrorKind::Busy, "{refused}");
        assert!(refused.to_string().contains("in use"), "{refused}");
        let manager = refused.into_manager();
        // These are more pages than fit into memory, so background work continues as well.
        let more = fill(&space, 10_000);
        (0..10_000).for_each(|page| assert_eq!(space.load::<u64>(more + page * PAGE).unwrap(), page + 1));
        (0..100).for_each(|page| assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), page + 1));
        drop(space);
        manager.shutdown().unwrap();
    }
}
