//! The test device: plain memory, or a file, that fails, delays, holds back, tears, lies and panics, as told
//! or as its seed says.
//!
//! It also minds the other side of the contract: a place is not touched while it is written, nothing is read
//! that was not written whole, nothing is waited for that was never flushed.
//!
//! | manner | who completes a transfer | time |
//! |---|---|---|
//! | `Inline` | the thread that submits it | the clock's |
//! | `AtFlush` | the thread that flushes it, or submits it as `Now` | the clock's |
//! | `Driven` | the thread that calls `poll`, `wait` or [`TestDevice::advance`]; one thread, exactly repeatable | its own |
//! | `Served` | the thread that calls `poll` or `wait`; one of its own from `serve` on until nothing is under way | the clock's |
//! | `Threads` | threads of its own | the clock's |
//!
//! Unit tests of the crate include this folder too.

mod bytes;
mod orders;
mod queue;
mod random;
mod whims;

use std::fs::File;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use octavo::io::{Device, Direction, Submitted, Transfer, Urgency, Waited};

pub use orders::Side;
use queue::Queue;
pub use random::Random;
pub use whims::{Happened, Whims};

pub const EIO: i32 = 5;
pub const ENOSPC: i32 = 28;

/// Who completes transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    Inline,
    AtFlush,
    Driven,
    Served,
    Threads(usize),
}

/// The device; clones are handles on the same one.
#[derive(Clone)]
pub struct TestDevice {
    queue: Arc<Queue>,
    /// The device's threads end when the last handle is gone.
    handle: Arc<Handle>,
    name: Arc<str>,
    watch: Option<Watch>,
}

type Watch = Arc<dyn Fn(&Transfer) + Send + Sync>;

struct Handle(Arc<Queue>);

impl Drop for Handle {
    fn drop(&mut self) {
        // Not joined: the last handle may go inside a completion.
        self.0.stop();
    }
}

impl TestDevice {
    /// Does each transfer at once and well, until it is told otherwise.
    pub fn new(capacity: u32) -> Self {
        Self::with_manner(capacity, Manner::Inline)
    }

    pub fn with_manner(capacity: u32, manner: Manner) -> Self {
        Self::simulated(capacity, 0, manner, Whims::default())
    }

    /// Behaves as its whims and its seed say.
    pub fn simulated(capacity: u32, seed: u64, manner: Manner, whims: Whims) -> Self {
        let queue = Arc::new(Queue::new(capacity, seed, manner, whims));
        let threads = match manner {
            Manner::Inline | Manner::AtFlush | Manner::Driven => 0,
            Manner::Served => 1,
            Manner::Threads(threads) => threads,
        };
        for _ in 0..threads {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.work());
        }
        let handle = Arc::new(Handle(Arc::clone(&queue)));
        Self { queue, handle, name: "the test device".into(), watch: None }
    }

    /// The name in messages.
    pub fn named(self, name: &str) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Keeps its bytes in this file, and not in memory.
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

    /// Orders for its reads.
    pub fn reads(&self) -> Side<'_> {
        Side { queue: &self.queue, direction: Direction::Read }
    }

    /// Orders for its writes.
    pub fn writes(&self) -> Side<'_> {
        Side { queue: &self.queue, direction: Direction::Write }
    }

    /// Stays silent in both directions.
    pub fn hold(&self) {
        self.reads().hold();
        self.writes().hold();
    }

    /// Answers all that it kept, and is silent no more.
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

    /// Behaves another way from now on: slow, and with `faults` also failing.
    pub fn trouble(&self, random: &mut Random, faults: bool) {
        let mut whims = Whims::random(random);
        // Whoever is to change it back may need room itself.
        whims.failed_writes = whims.failed_writes.min(300);
        self.set_whims(if faults { whims } else { whims.honest() });
    }

    /// No errors from now on.
    pub fn heal(&self) {
        self.reads().fail_every(0, 0);
        self.writes().fail_every(0, 0);
        self.queue.with_whims(|whims| *whims = whims.honest());
    }

    pub fn happened(&self) -> Happened {
        self.queue.happened()
    }

    /// Has room for so many transfers at once, and is full beyond. With room for none it breaks the contract.
    pub fn set_room(&self, transfers: usize) {
        self.queue.set_room(transfers);
    }

    /// Transfers that it was too full for.
    pub fn refused(&self) -> u64 {
        self.queue.happened().refused
    }

    /// Transfers submitted and not completed.
    pub fn under_way(&self) -> usize {
        self.queue.under_way()
    }

    /// Whether there is another handle on it: a manager's.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.handle) > 1
    }

    /// Completes the transfer that is next. False: nothing is under way.
    pub fn advance(&self) -> bool {
        self.queue.complete_next(u64::MAX)
    }

    /// Completes everything, also what nobody flushed and what it was told to keep.
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
