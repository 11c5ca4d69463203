//! Rings of io_uring for one file. A transfer that has several parts under way takes a ring for itself, so
//! that no thread waits for another's completions, and gives it back.
//!
//! The rings are made when they are first needed, as many as transfers go on at once. Beyond [`MOST`], or
//! where io_uring is refused, a transfer moves its parts one after the other.
//!
//! One word a lane: free or taken. Acquire where it is taken, Release where it is given back: who takes the
//! lane sees that its ring is empty. Cost: one exchange to take a lane, mostly that of the thread's CPU, and
//! one store to give it back.

use std::fs::File;

use crossbeam_utils::CachePadded;
use octavo_platform::uring::{Payload, Ring};

use crate::sync::{AtomicBool, Cpus, OnceLock, Ordering, Shared};

/// The most transfers with a ring of their own.
const MOST: usize = 64;
/// The parts that a transfer has under way, at the most.
pub(super) const DEPTH: u32 = 8;

pub(super) struct Lanes<T> {
    file: Shared<File>,
    cpus: Cpus,
    all: Box<[CachePadded<Lane<T>>]>,
}

struct Lane<T> {
    is_taken: AtomicBool,
    /// `None`: io_uring was refused.
    ring: OnceLock<Option<Ring<T>>>,
}

/// A ring that nobody else uses meanwhile.
pub(super) struct TakenLane<'l, T: Payload> {
    lane: &'l Lane<T>,
    ring: &'l Ring<T>,
}

impl<T: Payload> Lanes<T> {
    pub(super) fn new(file: Shared<File>) -> Self {
        let lane = |_| CachePadded::new(Lane { is_taken: AtomicBool::new(false), ring: OnceLock::new() });
        Self { file, cpus: Cpus::real(), all: (0..MOST).map(lane).collect() }
    }

    /// Takes a free lane. `None`: all are taken, or there is no io_uring.
    pub(super) fn take(&self) -> Option<TakenLane<'_, T>> {
        let own = self.cpus.current() % MOST;
        let is_free = |lane: &&CachePadded<Lane<T>>| {
            !lane.is_taken.load(Ordering::Relaxed) && !lane.is_taken.swap(true, Ordering::Acquire)
        };
        let lane = (own..MOST).chain(0..own).map(|index| &self.all[index]).find(is_free)?;
        let ring = lane.ring.get_or_init(|| Ring::new(Shared::clone(&self.file), DEPTH).ok());
        match ring {
            Some(ring) => Some(TakenLane { lane, ring }),
            None => {
                lane.is_taken.store(false, Ordering::Release);
                None
            }
        }
    }
}

impl<T: Payload> TakenLane<'_, T> {
    pub(super) fn ring(&self) -> &Ring<T> {
        self.ring
    }
}

impl<T: Payload> Drop for TakenLane<'_, T> {
    fn drop(&mut self) {
        // After a panic, transfers may still be under way. Their completions are nobody else's, and the ring
        // keeps what they move.
        if self.ring.in_flight() == 0 {
            self.lane.is_taken.store(false, Ordering::Release);
        }
    }
}
