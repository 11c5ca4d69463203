//! The engine of threads: a queue of fixed size, and a few threads that take transfers from it.
//!
//! This engine is for machines and containers that forbid io_uring. As many transfers are in flight as there
//! are threads, and up to [`CAPACITY`] wait for a thread. If more come, the engine says that it is full. It
//! allocates nothing.
//!
//! Locking: `queue`, for a push or a pop. No transfer is moved or completed under it.

use std::collections::VecDeque;
use std::fs::File;
use std::io;

use octavo_platform::ForkCanary;

use super::device::{Device, MOST_PAGES, Submitted};
use super::pending::{PendingTransfer, counted, join_if_other};
use super::transfer::{Transfer, Urgency};
use crate::sync::{Condvar, Duration, Mutex, Shared, thread};

/// Threads.
const THREADS: usize = 8;
/// Transfers that wait for a thread.
const CAPACITY: usize = 256;

/// Threads that move transfers.
pub(super) struct ThreadsEngine {
    pool: Shared<ThreadPool>,
    threads: Vec<thread::JoinHandle<()>>,
    canary: ForkCanary,
}

struct ThreadPool {
    file: Shared<File>,
    queue: Mutex<TransferQueue>,
    changed: Condvar,
}

struct TransferQueue {
    waiting: VecDeque<PendingTransfer>,
    sleeping_threads: usize,
    stop: bool,
}

impl ThreadsEngine {
    /// # Errors
    /// The kernel's error, if it cannot start a thread.
    pub(super) fn start(file: &Shared<File>) -> io::Result<Self> {
        let canary = ForkCanary::new()?;
        let waiting = VecDeque::with_capacity(CAPACITY);
        let queue = Mutex::new(TransferQueue { waiting, sleeping_threads: 0, stop: false });
        let pool = Shared::new(ThreadPool { file: Shared::clone(file), queue, changed: Condvar::default() });
        let mut engine = Self { pool, threads: Vec::with_capacity(THREADS), canary };
        for number in 0..THREADS {
            let pool = Shared::clone(&engine.pool);
            let name = format!("octavo-io-{number}");
            // After a failure, the threads that already run end with `engine`.
            engine.threads.push(thread::Builder::new().name(name).spawn(move || pool.work())?);
        }
        Ok(engine)
    }
}

impl Device for ThreadsEngine {
    fn capacity_pages(&self) -> u32 {
        MOST_PAGES
    }

    fn submit(&self, transfer: Transfer, urgency: Urgency) -> Submitted {
        if urgency == Urgency::Now {
            PendingTransfer::new(transfer).in_place(&self.pool.file);
            return Submitted::Accepted;
        }
        let mut queue = self.pool.queue.lock();
        if queue.waiting.len() == CAPACITY {
            return Submitted::Full(transfer);
        }
        queue.waiting.push_back(PendingTransfer::new(transfer));
        let wake = queue.sleeping_threads > 0;
        drop(queue);
        if wake {
            self.pool.changed.notify_one();
        }
        Submitted::Accepted
    }

    fn describe(&self) -> String {
        format!("{} of preadv/pwritev", counted(self.threads.len(), "thread"))
    }
}

impl ThreadPool {
    fn work(&self) {
        while let Some(pending) = self.next() {
            pending.in_place(&self.file);
        }
    }

    fn next(&self) -> Option<PendingTransfer> {
        let mut queue = self.queue.lock();
        loop {
            if let Some(pending) = queue.waiting.pop_front() {
                return Some(pending);
            }
            if queue.stop {
                return None;
            }
            queue.sleeping_threads += 1;
            queue = self.changed.wait_for(queue, Duration::from_secs(3600));
            queue.sleeping_threads -= 1;
        }
    }
}

impl Drop for ThreadsEngine {
    fn drop(&mut self) {
        if !self.canary.is_original_process() {
            // A forked child has no such threads, and the lock may be held forever.
            return std::mem::forget(std::mem::take(&mut self.threads));
        }
        self.pool.queue.lock().stop = true;
        for thread in self.threads.drain(..) {
            // Wake once for each thread that may sleep.
            for _ in 0..THREADS {
                self.pool.changed.notify_one();
            }
            join_if_other(thread);
        }
    }
}
