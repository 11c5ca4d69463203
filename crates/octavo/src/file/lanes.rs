//! Rings of io_uring for one file. A transfer that has several parts under way takes a ring for itself, so
//! that no thread waits for another's completions, and gives it back.
//!
//! A ring is made when all that are there are taken, so there are as many as transfers have gone on at once.
//! Beyond [`MOST`], or if io_uring is refused, a transfer moves its parts one after the other.
//!
//! One word for each lane: free or taken. Acquire to take it, Release to give it back: the next taker sees
//! an empty ring. Cost: one exchange to take a lane, one store to give it back. Threads begin their search by
//! their CPU.

use std::fs::File;

use crossbeam_utils::CachePadded;
use octavo_platform::uring::{Payload, Ring};

use super::LEAD;
use crate::sync::{AtomicBool, AtomicUsize, Cpus, OnceLock, Ordering, Shared};

/// The most transfers with a ring of their own.
const MOST: usize = 64;
/// The most parts that a transfer has under way.
pub(super) const DEPTH: u32 = 8;

pub(super) struct Lanes<T> {
    file: Shared<File>,
    cpus: Cpus,
    all: Box<[CachePadded<Lane<T>>]>,
    /// The lanes with a ring are the first ones.
    made: AtomicUsize,
}

struct Lane<T> {
    is_taken: AtomicBool,
    ring: OnceLock<Ring<T>>,
}

/// A ring that nobody else uses meanwhile.
pub(super) struct TakenLane<'l, T: Payload> {
    is_taken: &'l AtomicBool,
    ring: &'l Ring<T>,
}

impl<T: Payload> Lanes<T> {
    pub(super) fn new(file: Shared<File>) -> Self {
        let lane = |_| CachePadded::new(Lane { is_taken: AtomicBool::new(false), ring: OnceLock::new() });
        Self { file, cpus: Cpus::real(), all: (0..MOST).map(lane).collect(), made: AtomicUsize::new(0) }
    }

    /// Takes a free lane. Returns `None` if all are taken or io_uring is refused.
    pub(super) fn take(&self) -> Option<TakenLane<'_, T>> {
        // Relaxed: a thread that sees fewer makes a ring too many.
        let made = self.made.load(Ordering::Relaxed);
        let own = if made == 0 { 0 } else { self.cpus.current() % made };
        for index in (own..made).chain(0..own).chain(made..MOST) {
            let lane = &self.all[index];
            if lane.is_taken.load(Ordering::Relaxed) || lane.is_taken.swap(true, Ordering::Acquire) {
                continue;
            }
            let ring = match lane.ring.get() {
                Some(ring) => ring,
                None => {
                    let Ok(ring) = Ring::new(Shared::clone(&self.file), DEPTH) else {
                        lane.is_taken.store(false, Ordering::Release);
                        return None;
                    };
                    self.made.fetch_max(index + 1, Ordering::Relaxed);
                    lane.ring.get_or_init(|| ring)
                }
            };
            return Some(TakenLane { is_taken: &lane.is_taken, ring });
        }
        None
    }
}

impl<T: Payload> TakenLane<'_, T> {
    pub(super) fn ring(&self) -> &Ring<T> {
        self.ring
    }
}

impl<T: Payload> Drop for TakenLane<'_, T> {
    fn drop(&mut self) {
        // Only after a panic. The device ends what it has begun.
        while self.ring.in_flight() > 0 {
            let _ = self.ring.submit();
            self.ring.try_lead(|| true, LEAD, |_, _| ());
        }
        self.is_taken.store(false, Ordering::Release);
    }
}
