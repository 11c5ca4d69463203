//! What the driver of a target cannot deal with by itself: forks, the layout, lost pages, and work beside
//! faults.

use std::time::Duration;

use octavo::Error;
use rustix::fd::OwnedFd;

/// Hears of what the driver cannot deal with by itself.
pub trait Listener {
    /// The target has forked. The descriptor serves the child's faults. Octavo's pages are as they were at
    /// the fork, and nothing is shown or taken until this returns.
    fn forked(&mut self, child: OwnedFd);

    /// A fault has come from an address that the space does not map. Returns whether it does now.
    fn unknown(&mut self, address: u64) -> bool;

    /// The target drops, unmaps or moves a range.
    fn changed(&mut self, start: u64, end: u64);

    /// Returns whether a part of a range is mapped in the space.
    fn is_mapped(&self, start: u64, end: u64) -> bool;

    /// The target has unmapped a range.
    fn unmapped(&mut self, start: u64, end: u64);

    /// The target has moved a range.
    fn moved(&mut self, from: u64, len: u64, to: u64);

    /// The page at `address` could not be had. The thread that wants it waits, and must not go on. Returns
    /// whether the fault is to be tried again.
    fn failed(&mut self, address: u64, error: Error) -> bool;

    /// A fault at a page waits, and none that waited has been served for long.
    fn stuck(&mut self, _address: u64) {}

    /// A change of the target's mappings cannot be followed. The target must not go on.
    fn lost(&mut self, error: Error);

    /// Hears what has been counted so far, now and then and at the end.
    fn counted(&mut self, served: Served);

    /// Does a piece of other work, which waits for nothing.
    fn work(&mut self) -> Work {
        Work::Done
    }

    /// The room for which [`Work::Waits`] has waited was made, or not.
    fn made_room(&mut self, _result: octavo::Result<()>) {}
}

/// What is left of other work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Nothing.
    Done,
    /// There is more.
    More,
    /// It goes on when room was made for so many bytes, or a part of them.
    Waits(u64),
}

/// What the driver counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Faults at missing pages.
    pub missing: u64,
    /// First stores to clean pages.
    pub stores: u64,
    /// Pages that came along with faults.
    pub along: u64,
    /// Faults that waited for a device or for room.
    pub waited: u64,
    /// Faults that the driver served beside the thread that met them.
    pub beside: u64,
    /// Changes of mappings.
    pub changes: u64,
    /// How long they took. No fault is served meanwhile.
    pub changing: Duration,
}
