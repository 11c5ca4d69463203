//! Helpers for tests of spaces: seeded randomness, switches, watchdogs, and a device that fails on order.
//!
//! The soak command of `octavo-bench` includes this folder too.
#![allow(dead_code, reason = "each test uses some of it")]

pub mod device;
pub mod futures;
pub mod mounted;
pub mod target;

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

pub use device::Random;
use octavo::io::IoEngine;
use octavo::{
    Compression, Counter, Error, ErrorKind, HugePolicy, HugeZeroWrite, Manager, ManagerBuilder, PercpuOrders,
    PinPath, Result, SwapCache, ZeroPage,
};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

pub const PAGE: u64 = octavo::PAGE_BYTES as u64;
pub const MIB: u64 = 1 << 20;

/// Keeps the calling thread on its CPU.
///
/// Each CPU keeps batches of frames and charges, so a thread that changes its CPU on a busy machine finds
/// fewer of both.
pub fn stay_on_this_cpu() {
    let mut here = CpuSet::new();
    here.set(sched_getcpu());
    sched_setaffinity(None, &here).unwrap();
}

/// Asserts that a result is an error of this kind, whose text contains these words.
#[track_caller]
pub fn says<T>(result: Result<T>, kind: ErrorKind, words: &[&str]) -> Error {
    let Err(error) = result else { panic!("expected {kind:?}") };
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in: {text}");
    }
    error
}

/// A combination of every switch of a manager.
#[derive(Clone, Copy, Debug)]
pub struct Switches {
    pub huge: HugePolicy,
    pub huge_zero_write: HugeZeroWrite,
    pub zero_page: ZeroPage,
    pub pin_path: PinPath,
    pub percpu_orders: PercpuOrders,
    pub swap_cache: SwapCache,
    pub io_engine: IoEngine,
    pub compression: Compression,
    pub encrypt: bool,
}

impl Switches {
    pub fn random(random: &mut Random) -> Self {
        Self {
            huge: random.pick(&[HugePolicy::Always, HugePolicy::Advised, HugePolicy::Never]),
            huge_zero_write: random.pick(&[HugeZeroWrite::Split, HugeZeroWrite::Allocate]),
            zero_page: random.pick(&[ZeroPage::PerUse, ZeroPage::PerSpace, ZeroPage::Persistent]),
            pin_path: random.pick(&[PinPath::Locked, PinPath::LockFree]),
            percpu_orders: random.pick(&[PercpuOrders::OrderZero, PercpuOrders::Costly, PercpuOrders::All]),
            swap_cache: random.pick(&[SwapCache::TaggedTree, SwapCache::Tree, SwapCache::Table]),
            // The engine is not chosen at random: one more random number would change the runs of seeds that
            // bring their own devices.
            io_engine: IoEngine::Probe,
            compression: random.pick(&[Compression::Off, Compression::Lz4, Compression::Zstd]),
            encrypt: random.one_in(3),
        }
    }

    /// Returns whether the huge zero page is permanent.
    pub fn keeps_huge_zero(&self) -> bool {
        self.zero_page == ZeroPage::Persistent && self.huge != HugePolicy::Never
    }

    pub fn builder(self) -> ManagerBuilder {
        Manager::builder()
            .huge(self.huge)
            .huge_zero_write(self.huge_zero_write)
            .zero_page(self.zero_page)
            .pin_path(self.pin_path)
            .percpu_orders(self.percpu_orders)
            .swap_cache(self.swap_cache)
            .io_engine(self.io_engine)
            .compression(self.compression)
            .encrypt(self.encrypt)
    }
}

/// Checks a manager whose spaces are all dropped, with huge pages and without encryption.
pub fn assert_nothing_is_left(manager: &Manager) {
    assert_only_kept(manager, true, false);
}

/// Checks a manager whose spaces are all dropped. It must free everything without further calls.
pub fn assert_only_kept(manager: &Manager, keeps_huge_zero: bool, encrypt: bool) {
    // The frames that the manager keeps: the small zero page, the huge zero page if it is permanent, and the
    // frames for encrypted pages.
    let kept = 1 + 512 * i64::from(keeps_huge_zero) + 256 * i64::from(encrypt);
    // The background thread may still have a batch, and a device may still have a write. No call hurries
    // them.
    wait_until_only_kept(manager, |owned| owned == kept || owned == kept + 512);
    // An unused huge zero page may have stayed, until a thread needs room.
    manager.reclaim(1).unwrap();
    wait_until_only_kept(manager, |owned| owned == kept);
    manager.validate();
}

fn wait_until_only_kept(manager: &Manager, is_kept: impl Fn(i64) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Some(left) = what_is_left(manager, &is_kept) {
        assert!(Instant::now() < deadline, "something is left, {left}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Describes the frames in use, unless their number is expected.
fn what_is_left(manager: &Manager, is_kept: impl Fn(i64) -> bool) -> Option<String> {
    let stats = manager.stats().unwrap();
    let counters = manager.counters();
    let online = (counters.get(Counter::ChunkOnline) - counters.get(Counter::ChunkOffline)) * 512;
    // The pool may keep an empty block of its own.
    let owned = online as i64 - stats.free_frames as i64 - (stats.pool_bytes / PAGE) as i64;
    let left = (stats.swap_slots, stats.table_nodes, stats.lru_pages, stats.huge_zero_users);
    let is_all = left == (0, 0, (0, 0), 0) && is_kept(owned);
    (!is_all).then(|| format!("{owned} frames in use: {stats:?}"))
}

struct CountingWaker {
    wakes: AtomicUsize,
    thread: Thread,
}

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::Release);
        self.thread.unpark();
    }
}

/// Polls a future until it is ready, each time only after it was woken. Returns its result, and the numbers
/// of polls and wakes. A lost wake-up is a panic.
pub fn run_woken<T>(future: impl Future<Output = T>) -> (T, usize, usize) {
    let counting = Arc::new(CountingWaker { wakes: AtomicUsize::new(0), thread: thread::current() });
    let waker = Waker::from(Arc::clone(&counting));
    let mut future = std::pin::pin!(future);
    let mut polls = 0;
    loop {
        let wakes = counting.wakes.load(Ordering::Acquire);
        polls += 1;
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return (value, polls, counting.wakes.load(Ordering::Acquire));
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        while counting.wakes.load(Ordering::Acquire) == wakes {
            assert!(Instant::now() < deadline, "a future was not woken for a minute");
            thread::park_timeout(Duration::from_millis(100));
        }
    }
}

/// Sets a flag when it is dropped, even by a panic. Threads that run until others have ended watch the flag.
pub struct SetOnDrop<'a>(pub &'a std::sync::atomic::AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Returns the seed in `OCTAVO_TEST_SEED`, or `default`.
pub fn seed_or(default: u64) -> u64 {
    number_from("OCTAVO_TEST_SEED").unwrap_or(default)
}

/// Reads a number from an environment variable.
pub fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// If this is not dropped within minutes, ends the process with a message: a test that hangs has failed. On a
/// busy machine, a test may take many times as long as on a quiet one.
pub struct Watchdog(#[allow(dead_code, reason = "dropping it is the signal")] mpsc::Sender<()>);

impl Watchdog {
    pub fn new(what: impl Into<String>) -> Self {
        Self::with_patience(what, Duration::from_secs(300))
    }

    pub fn with_patience(what: impl Into<String>, patience: Duration) -> Self {
        let (what, (sender, receiver)) = (what.into(), mpsc::channel());
        thread::spawn(move || {
            if receiver.recv_timeout(patience) == Err(mpsc::RecvTimeoutError::Timeout) {
                // The message is written directly to the descriptor: the captured output of tests is lost in
                // an abort.
                let _ = writeln!(std::io::stderr(), "HANGS for {patience:?}: {what}");
                std::process::abort();
            }
        });
        Self(sender)
    }
}
