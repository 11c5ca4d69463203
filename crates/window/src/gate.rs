//! The gate between what a program does to its mappings and what Octavo does to its pages.
//!
//! The kernel tells of `munmap`, `mremap`, `madvise` and `fork` by events. The program's call goes on as soon
//! as its event is read. A page that is moved out, or copied in, on the strength of what was known before the
//! event may then hit a mapping that has been replaced, or bring bytes back that the program has dropped. So:
//!
//! ```text
//!   a copy, a move, a change of protection      shared: no event is read meanwhile
//!   reading events                              exclusive: keeps them in order, and notes the ranges that they change
//!   looking for pages to adopt                  exclusive: a page that is seen there does not leave meanwhile
//!   until Octavo has taken these in             pages of these ranges are refused, and asked for again later
//! ```
//!
//! While an event is unread, the kernel itself refuses copies and moves with EAGAIN. That answer goes back to
//! the engine, which asks again later. A retry in place would come after the event was read.
//!
//! **Reading is not taking in.** Any thread may read, and the program's call goes on. Only the driver takes changes in, in the order in
//! which they were read. Nothing settles before it has taken all of them.
//!
//! Costs: one lock, taken shared, for a call of the kernel.

use crate::dropped::Dropped;
use crate::sync::{RwLock, RwLockReadGuard};

/// What a program has told, of events `E`, and Octavo has not taken in.
#[derive(Debug)]
pub(crate) struct Unsettled<E> {
    /// What was read and the driver has not taken, in order.
    told: Vec<E>,
    ranges: Vec<(u64, u64)>,
    /// A fork concerns all pages.
    is_all: bool,
    dropped: Dropped,
}

impl<E> Default for Unsettled<E> {
    fn default() -> Self {
        Self { told: Vec::new(), ranges: Vec::new(), is_all: false, dropped: Dropped::default() }
    }
}

impl<E> Unsettled<E> {
    /// Returns whether a change that Octavo has not taken in concerns the range.
    pub(crate) fn concerns(&self, start: u64, len: u64) -> bool {
        self.is_all || self.ranges.iter().any(|(from, to)| *from < start + len && start < *to)
    }

    fn is_empty(&self) -> bool {
        self.ranges.is_empty() && !self.is_all
    }

    /// No change concerns anything any more.
    fn clear(&mut self) {
        self.ranges.clear();
        self.is_all = false;
    }

    /// Returns what was read and not taken, to which more may be added.
    pub(crate) fn told(&mut self) -> &mut Vec<E> {
        &mut self.told
    }

    /// Notes a change of a range.
    pub(crate) fn add(&mut self, start: u64, end: u64) {
        self.ranges.push((start, end));
    }

    /// Notes that the pages of a range are about to go. The kernel takes them after the event was read, at any time.
    pub(crate) fn add_dropped(&mut self, start: u64, end: u64) {
        self.add(start, end);
        self.dropped.add(start, end);
    }

    /// Returns whether a page that is found where none should be may be one that is about to go.
    pub(crate) fn may_be_dropped(&self, page: u64) -> bool {
        self.dropped.has(page)
    }

    /// Returns the ranges whose pages the program has dropped. The event comes before the pages go.
    pub(crate) fn dropped(&mut self) -> &mut Dropped {
        &mut self.dropped
    }

    /// Notes a change of everything.
    pub(crate) fn add_all(&mut self) {
        self.is_all = true;
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
    /// Keeps events from being read, as long as the guard lives.
    pub(crate) fn hold(&self) -> RwLockReadGuard<'_, Unsettled<E>> {
        self.0.read().expect("nobody panics here")
    }

    /// Acts while no copy, move or change of protection is under way. Whoever reads events here notes what they change.
    pub(crate) fn alone<T>(&self, act: impl FnOnce(&mut Unsettled<E>) -> T) -> T {
        act(&mut self.0.write().expect("nobody panics here"))
    }

    /// The driver has taken in all that it took, unless others have read more meanwhile.
    pub(crate) fn settle(&self) {
        let mut unsettled = self.0.write().expect("nobody panics here");
        if unsettled.told.is_empty() {
            unsettled.clear();
        }
    }

    /// Returns whether Octavo has taken in all that was read.
    pub(crate) fn is_settled(&self) -> bool {
        self.hold().is_empty()
    }

    /// As [`Gate::is_settled`], without waiting for anybody: false where that is not known just now.
    pub(crate) fn is_known_settled(&self) -> bool {
        self.0.try_read().is_ok_and(|unsettled| unsettled.is_empty())
    }
}

#[cfg(all(test, loom))]
mod loom;
