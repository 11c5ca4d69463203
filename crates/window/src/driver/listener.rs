//! What a target's driver leaves to others: forks, the layout, lost pages, and work other than faults.

use std::time::Duration;

use octavo::Error;
use rustix::fd::OwnedFd;

/// Handles what the driver cannot handle itself.
pub trait Listener {
    /// The target has forked. The descriptor serves the child's faults. Octavo's pages are as they were at
    /// the fork. Until this call returns, no page is shown to the target or taken from it.
    fn forked(&mut self, child: OwnedFd);

    /// A fault has come from an address that the space does not map. Returns whether the space maps it now.
    fn unknown(&mut self, address: u64) -> bool;

    /// The target drops, unmaps or moves a range.
    fn changed(&mut self, start: u64, end: u64);

    /// Returns whether a part of a range is mapped in the space.
    fn is_mapped(&self, start: u64, end: u64) -> bool;

    /// The target has unmapped a range.
    fn unmapped(&mut self, start: u64, end: u64);

    /// The target has moved a range.
    fn moved(&mut self, from: u64, len: u64, to: u64);

    /// The page at `address` could not be had. The thread that needs it waits, and must not continue. Returns
    /// whether to try the fault again.
    fn failed(&mut self, address: u64, error: Error) -> bool;

    /// A fault waits at this page, and no waiting fault has been served for long.
    fn stuck(&mut self, _address: u64) {}

    /// A change of the target's mappings cannot be followed. The target must not continue.
    fn lost(&mut self, error: Error);

    /// Called now and then, and at the end, with the counts so far.
    fn counted(&mut self, served: Served);

    /// Does a piece of other work, without waiting.
    fn work(&mut self) -> RemainingWork {
        RemainingWork::Done
    }

    /// The room that [`RemainingWork::Waits`] asked for was made, or could not be made.
    fn made_room(&mut self, _result: octavo::Result<()>) {}
}

/// What is left of other work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemainingWork {
    /// Nothing.
    Done,
    /// There is more work.
    More,
    /// The work can continue when there is room for this many bytes, or for a part of them.
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
    /// Faults that ended with their page.
    pub ended: u64,
    /// Faults that the driver served beside the thread that met them.
    pub beside: u64,
    /// Changes of mappings.
    pub changes: u64,
    /// How long the changes took. No fault is served meanwhile.
    pub changing: Duration,
}
