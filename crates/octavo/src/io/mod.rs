//! Devices that pages go to and come from.
//!
//! A device is a parameter of the manager: a file, or a test's own that fails, delays and tears as told. It is given
//! [`Transfer`]s, and completes each once. Completion may be inline, from a thread of the device's own, or *pulled*: by
//! whoever needs it, through [`Device::poll`] in passing or [`Device::wait`] when there is nothing else to do. A device
//! that must be pulled is told by [`Device::serve`] when somebody sleeps who cannot pull.
//!
//! Nobody holds a lock when a device is called.

mod area;
mod block;
mod engine;
mod exercise;
mod file;
mod ram;
mod threads;
mod transfer;
mod uring;

pub(crate) use area::Opened;
pub use area::SwapArea;
pub use block::BlockDevice;
pub use engine::IoEngine;
pub use exercise::Exercise;
pub use file::{FileDevice, SwapFile};
pub use ram::RamDevice;
pub use transfer::{Direction, Transfer, Urgency};
pub(crate) use transfer::{Host, Job};

/// Stands where queues are noted until one is: [`Device::wait`] then waits for any transfer.
pub(crate) const NO_QUEUE: u32 = u32::MAX;
/// Asked of [`Device::wait`] by those who wait for no transfer in particular, and who look again by themselves soon.
pub(crate) const ANY_QUEUE: u32 = u32::MAX - 2;

/// What [`Device::wait`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// Something may have been completed: look again.
    Progress,
    /// Completions come by themselves, or another thread sees to them: the caller may sleep until it is woken.
    Sleep,
}

/// A device of page-sized places. Operations may be called from several threads at once.
pub trait Device: Send + Sync {
    /// Places there are, at most 2^32 - 2.
    fn capacity_pages(&self) -> u32;

    /// Takes a transfer over. It lies inside the device's places. After a failed write any of its places may hold anything;
    /// the pages are kept in memory. After a failed read the pages' bytes are never shown to anyone.
    fn submit(&self, transfer: Transfer, urgency: Urgency);

    /// Starts what was only collected so far.
    fn flush(&self) {}

    /// Completes what has ended, without waiting. Called often: it costs a load where nothing has.
    fn poll(&self) {}

    /// Waits until something in `queue` (as noted in its transfer, `u32::MAX` before) has ended, and completes it; for as long
    /// as `still_waiting` says. Or says that the caller may sleep: only for a transfer that it knows of, or that completes by
    /// itself.
    fn wait(&self, queue: u32, still_waiting: &dyn Fn() -> bool) -> Waited {
        let _ = (queue, still_waiting);
        Waited::Sleep
    }

    /// Somebody sleeps until a transfer ends: from now on until nothing is under way, completions must come by themselves.
    fn serve(&self) {}

    /// What the device is, for messages.
    fn describe(&self) -> String;
}

#[cfg(all(test, not(loom)))]
#[path = "../../tests/common/device/mod.rs"]
#[allow(dead_code, reason = "each test uses some of it")]
pub(crate) mod test_device;
#[cfg(all(test, not(loom)))]
mod tests;
