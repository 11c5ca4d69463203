//! The test device: plain memory, or a file. By order or by its seed, it fails, delays or holds transfers
//! back, tears writes, returns wrong bytes, and panics.
//!
//! It also checks that callers keep the contract: they do not touch a place while it is written, read only
//! places that were written completely, and wait only for flushed transfers.
//!
//! | manner | who completes a transfer | time |
//! |---|---|---|
//! | `Inline` | the thread that submits it | the clock's |
//! | `AtFlush` | the thread that flushes it, or submits it as `Now` | the clock's |
//! | `Driven` | the thread that calls `poll`, `wait` or [`TestDevice::advance`]; with one thread, exactly repeatable | its own |
//! | `Served` | the thread that calls `poll` or `wait`; after `serve`, a thread of the device, until nothing is under way | the clock's |
//! | `Threads` | threads of the device | the clock's |
//!
//! Unit tests of the crate include this folder too.

mod bytes;
mod crash;
mod file;
mod orders;
mod queue;
mod random;
mod whims;

use std::fs::File;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use octavo::io::{Device, Direction, Submitted, Transfer, Urgency, Waited};

#[allow(unused_imports, reason = "each test uses some of it")]
pub use crash::{CrashDisk, SECTOR, Sector, sector_of};
#[allow(unused_imports, reason = "each test uses some of it")]
pub use file::TestFile;
pub use orders::DeviceSide;
use queue::DeviceQueue;
#[allow(unused_imports, reason = "each test uses some of it")]
pub use random::{Random, Raw};
pub use whims::{Happened, Whims};

pub const EIO: i32 = 5;
pub const ENOSPC: i32 = 28;

/// The thread that completes transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    Inline,
    AtFlush,
    Driven,
    Served,
    Threads(usize),
}

/// The device. Clones are handles to the same device.
#[derive(Clone)]
pub struct TestDevice {
    queue: Arc<DeviceQueue>,
    /// The device's threads end when the last handle is dropped.
    handle: Arc<QueueHandle>,
    name: Arc<str>,
    watch: Option<TransferHook>,
}

type TransferHook = Arc<dyn Fn(&Transfer) + Send + Sync>;

struct QueueHandle(Arc<DeviceQueue>);

impl Drop for QueueHandle {
    fn drop(&mut self) {
        // The threads are not joined: the last handle may be dropped inside a completion.
        self.0.stop();
    }
}

impl TestDevice {
    /// Makes a device that does each transfer at once and correctly, until it gets different orders.
    pub fn new(capacity: u32) -> Self {
        Self::with_manner(capacity, Manner::Inline)
    }

    pub fn with_manner(capacity: u32, manner: Manner) -> Self {
        Self::simulated(capacity, 0, manner, Whims::default())
    }

    /// Makes a device whose whims and seed decide its behaviour.
    pub fn simulated(capacity: u32, seed: u64, manner: Manner, whims: Whims) -> Self {
        let queue = Arc::new(DeviceQueue::new(capacity, seed, manner, whims));
        let threads = match manner {
            Manner::Inline | Manner::AtFlush | Manner::Driven => 0,
            Manner::Served => 1,
            Manner::Threads(threads) => threads,
        };
        for _ in 0..threads {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.work());
        }
        let handle = Arc::new(QueueHandle(Arc::clone(&queue)));
        Self { queue, handle, name: "the test device".into(), watch: None }
    }

    /// Sets the name in messages.
    pub fn named(self, name: &str) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Keeps the device's bytes in this file instead of memory.
    pub fn in_file(self, file: File) -> Self {
        self.queue.set_file(file);
        self
    }

    /// Shows each transfer to `watch` when it is submitted to this handle, or to a later clone of it.
    pub fn watched(self, watch: impl Fn(&Transfer) + Send + Sync + 'static) -> Self {
        Self { watch: Some(Arc::new(watch)), ..self }
    }

    pub fn boxed(&self) -> Box<dyn Device> {
        Box::new(self.clone())
    }

    /// Returns the handle for orders about reads.
    pub fn reads(&self) -> DeviceSide<'_> {
        DeviceSide { queue: &self.queue, direction: Direction::Read }
    }

    /// Returns the handle for orders about writes.
    pub fn writes(&self) -> DeviceSide<'_> {
        DeviceSide { queue: &self.queue, direction: Direction::Write }
    }

    /// Stays silent in both directions.
    pub fn hold(&self) {
        self.reads().hold();
        self.writes().hold();
    }

    /// Answers all kept transfers, and ends the silence.
    pub fn let_go(&self) {
        self.reads().let_go();
        self.writes().let_go();
    }

    pub fn set_whims(&self, whims: Whims) {
        self.queue.with_whims(|old| *old = whims);
    }

    pub fn whims(&self) -> Whims {
        self.queue.with_whims(|whims| *whims)
    }

    /// Makes the device slow. With `faults`, it also fails.
    pub fn trouble(&self, random: &mut Random, faults: bool) {
        let mut whims = Whims::random(random);
        // The thread that will later repair the device may need room itself.
        whims.failed_writes = whims.failed_writes.min(300);
        self.set_whims(if faults { whims } else { whims.honest() });
    }

    /// Stops all errors.
    pub fn heal(&self) {
        self.reads().fail_every(0, 0);
        self.writes().fail_every(0, 0);
        self.queue.with_whims(|whims| *whims = whims.honest());
    }

    pub fn happened(&self) -> Happened {
        self.queue.happened()
    }

    /// Sets how many transfers the device has room for at once. With more transfers, it is full. With no room
    /// at all, it breaks the contract.
    pub fn set_room(&self, transfers: usize) {
        self.queue.set_room(transfers);
    }

    /// Returns the number of transfers that were refused because the device was full.
    pub fn refused(&self) -> u64 {
        self.queue.happened().refused
    }

    /// Returns the number of transfers submitted and not completed.
    pub fn under_way(&self) -> usize {
        self.queue.under_way()
    }

    /// Returns whether there is another handle. If so, a manager has it.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.handle) > 1
    }

    /// Completes the next transfer. Returns `false` if nothing is under way.
    pub fn advance(&self) -> bool {
        self.queue.complete_next(u64::MAX)
    }

    /// Completes everything, including unflushed and kept transfers.
    pub fn drain(&self) {
        self.let_go();
        self.queue.flush();
        while self.queue.manner() == Manner::Driven && self.advance() {}
        while self.under_way() > 0 {
            self.queue.serve();
            thread::sleep(Duration::from_micros(100));
        }
    }
}

impl Device for TestDevice {
    fn capacity_pages(&self) -> u32 {
        self.queue.capacity()
    }

    fn submit(&self, transfer: Transfer, urgency: Urgency) -> Submitted {
        if let Some(watch) = &self.watch {
            watch(&transfer);
        }
        self.queue.submit(transfer, urgency)
    }

    fn flush(&self) {
        self.queue.flush();
    }

    fn poll(&self) {
        self.queue.poll();
    }

    fn wait(&self, _queue: u32, still_waiting: &dyn Fn() -> bool) -> Waited {
        self.queue.wait(still_waiting)
    }

    fn serve(&self) {
        self.queue.serve();
    }

    fn describe(&self) -> String {
        self.name.to_string()
    }
}
