//! The gate between what a program does to its mappings and what Octavo does to its pages.
//!
//! The kernel reports `munmap`, `mremap`, `madvise` and `fork` by events. The program's call continues as
//! soon as its event is read. Meanwhile, Octavo may move a page out or in without knowing of the event. It
//! may then hit a mapping that has been replaced, or bring back bytes that the program has dropped. So:
//!
//! ```text
//!   a copy, a move, a change of protection      shared: no event is read meanwhile
//!   reading events                              exclusive: keeps them in order, and notes their ranges
//!   looking for pages to adopt                  exclusive: a page that is seen then does not leave meanwhile
//!   until Octavo has taken the events in        pages of their ranges are refused, and asked for again later
//! ```
//!
//! While an event is unread, the kernel itself refuses copies and moves with EAGAIN. That answer goes back to
//! the engine, which asks again later. A retry in place could run after the event was read, without taking it
//! into account.
//!
//! **Reading is not taking in.** Any thread may read, and the program's call then continues. Only the driver
//! takes changes in, in the order in which they were read.
//!
//! ```text
//!   read ─► told ─► the driver takes it ─► taken ─► it has taken in all that it took ─► settled
//! ```
//!
//! A change concerns its range from the moment when it is read until it is settled. Only changes that the
//! driver has taken are settled. Other changes may have been read meanwhile, and stay unsettled.
//!
//! Costs: one lock, taken shared, per call of the kernel.

use crate::events::dropped::DroppedRanges;
use crate::sync::{RwLock, RwLockReadGuard};

/// The most events that other threads read for the driver. A program with more events waits for its driver.
const MOST_TOLD: usize = 4096;

/// The pages that changes concern.
#[derive(Debug, Default)]
struct Concerns {
    ranges: Vec<(u64, u64)>,
    /// Whether the changes concern all pages, as a fork does.
    is_all: bool,
}

impl Concerns {
    fn has(&self, start: u64, len: u64) -> bool {
        self.is_all || self.ranges.iter().any(|(from, to)| *from < start + len && start < *to)
    }

    fn is_empty(&self) -> bool {
        self.ranges.is_empty() && !self.is_all
    }

    fn append(&mut self, others: &mut Self) {
        self.ranges.append(&mut others.ranges);
        self.is_all |= std::mem::take(&mut others.is_all);
    }

    fn clear(&mut self) {
        self.ranges.clear();
        self.is_all = false;
    }
}

/// Events of type `E` that were read, and that Octavo has not taken in.
#[derive(Debug)]
pub(crate) struct Unsettled<E> {
    /// Events that were read and that the driver has not taken, in order.
    told: Vec<E>,
    told_of: Concerns,
    /// The pages of changes that the driver has taken, but not settled.
    taken: Concerns,
    dropped: DroppedRanges,
    /// Whether the driver has ended.
    is_closed: bool,
}

impl<E> Default for Unsettled<E> {
    fn default() -> Self {
        Self {
            told: Vec::new(),
            told_of: Concerns::default(),
            taken: Concerns::default(),
            dropped: DroppedRanges::default(),
            is_closed: false,
        }
    }
}

impl<E> Unsettled<E> {
    /// Returns whether a change that Octavo has not taken in concerns the range.
    pub(crate) fn concerns(&self, start: u64, len: u64) -> bool {
        self.told_of.has(start, len) || self.taken.has(start, len)
    }

    fn is_empty(&self) -> bool {
        self.told_of.is_empty() && self.taken.is_empty()
    }

    /// Returns the events that were read and not taken. More may be added.
    pub(crate) fn told(&mut self) -> &mut Vec<E> {
        &mut self.told
    }

    /// Returns whether others may read for the driver. After a fork they may not: the program would continue,
    /// and the child's memory could no longer be derived from its parent's.
    pub(crate) fn takes_more(&self) -> bool {
        !self.is_closed && !self.told_of.is_all && self.told.len() < MOST_TOLD
    }

    /// Takes the events that were read, for the driver.
    pub(crate) fn take(&mut self, events: &mut Vec<E>) {
        events.append(&mut self.told);
        self.taken.append(&mut self.told_of);
    }

    /// Takes the events that were read, before the driver ends. After this call, no thread reads for the
    /// driver: the program's next call waits.
    pub(crate) fn take_last(&mut self, events: &mut Vec<E>) {
        self.is_closed = true;
        self.take(events);
    }

    /// Settles all changes that the driver has taken, once Octavo has taken them in.
    fn settle(&mut self) {
        self.taken.clear();
    }

    /// Notes a change of a range.
    pub(crate) fn add(&mut self, start: u64, end: u64) {
        self.told_of.ranges.push((start, end));
    }

    /// Notes that the pages of a range are about to go. The kernel drops them at any time after the event was
    /// read.
    pub(crate) fn add_dropped(&mut self, start: u64, end: u64) {
        self.add(start, end);
        self.dropped.add(start, end);
    }

    /// Returns whether a page that is unexpectedly present may be a dropped one that is about to go.
    pub(crate) fn may_be_dropped(&self, page: u64) -> bool {
        self.dropped.has(page)
    }

    /// Returns the ranges whose pages the program has dropped. The event comes before the pages go.
    pub(crate) fn dropped(&mut self) -> &mut DroppedRanges {
        &mut self.dropped
    }

    /// Notes a change of everything.
    pub(crate) fn add_all(&mut self) {
        self.told_of.is_all = true;
    }
}

/// The gate of one program.
#[derive(Debug)]
pub(crate) struct Gate<E>(RwLock<Unsettled<E>>);

impl<E> Default for Gate<E> {
    fn default() -> Self {
        Self(RwLock::new(Unsettled::default()))
    }
}

impl<E> Gate<E> {
    /// Keeps events from being read while the guard lives.
    pub(crate) fn hold(&self) -> RwLockReadGuard<'_, Unsettled<E>> {
        self.0.read().expect("nobody panics here")
    }

    /// Calls `act` while no copy, move or change of protection is in progress. If `act` reads events, it
    /// notes what they change.
    pub(crate) fn alone<T>(&self, act: impl FnOnce(&mut Unsettled<E>) -> T) -> T {
        act(&mut self.0.write().expect("nobody panics here"))
    }

    /// Like [`Gate::alone`], without waiting. Returns `None` if something is in progress.
    pub(crate) fn try_alone<T>(&self, act: impl FnOnce(&mut Unsettled<E>) -> T) -> Option<T> {
        self.0.try_write().ok().map(|mut unsettled| act(&mut unsettled))
    }

    /// Settles all changes that the driver took, after it has taken them in.
    pub(crate) fn settle(&self) {
        self.alone(Unsettled::settle);
    }

    /// Returns whether Octavo has taken in all events that were read.
    pub(crate) fn is_settled(&self) -> bool {
        self.hold().is_empty()
    }

    /// Like [`Gate::is_settled`], without waiting. Returns false if that is unknown at the moment.
    pub(crate) fn is_known_settled(&self) -> bool {
        self.0.try_read().is_ok_and(|unsettled| unsettled.is_empty())
    }
}

#[cfg(all(test, loom))]
mod loom;
