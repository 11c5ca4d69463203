//! The device trait: the calls that swap makes to a device for pages.

use super::transfer::{Transfer, Urgency};
use crate::error::{Error, ErrorKind, Result};
use crate::units::{PAGE_SHIFT, StoredPage, bytes_for_people};

/// The places that slots can name.
pub(super) const MOST_PAGES: u32 = StoredPage::MOST;
/// The queue of a transfer whose own queue is not noted yet. For it, [`Device::wait`] waits for any transfer.
pub(crate) const NO_QUEUE: u32 = u32::MAX;
/// The queue for threads that wait for no transfer in particular, and that soon look again.
pub(crate) const ANY_QUEUE: u32 = u32::MAX - 2;

/// The outcome for a transfer that was handed to [`Device::submit`].
#[derive(Debug)]
#[must_use = "a transfer that comes back has to be put back or tried again"]
pub enum Submitted {
    /// The device has the transfer, and completes it. Perhaps it has already.
    Accepted,
    /// The device has no room for the transfer now, and gives it back. This is no failure. Only a device that
    /// has other transfers in flight may be full: when any of them ends, the caller tries again. The device
    /// makes room before it completes a transfer.
    Full(Transfer),
}

/// The outcome of [`Device::wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// A transfer may have been completed: look again.
    Progress,
    /// The device or another thread completes the transfers. The caller may sleep until it is woken.
    Sleep,
}

/// Implement this to swap to a place of your own ([`SwapArea::device`](super::SwapArea::device)): numbered
/// places of 4 KiB. Several threads may call it at once. A device that completes transfers in `submit`, or
/// from threads of its own, needs the required methods only. The others are for a device whose completions
/// have to be fetched.
pub trait Device: Send + Sync {
    /// Returns how many places there are. Octavo uses at most 2^31 - 1.
    fn capacity_pages(&self) -> u32;

    /// Takes a transfer over, or says that there is no room for it. The transfer lies inside the device's
    /// places. After a failed write, any of its places may hold anything, and the pages are kept in memory.
    /// After a failed read, nobody ever sees the pages' bytes.
    fn submit(&self, transfer: Transfer, urgency: Urgency) -> Submitted;

    /// Starts the transfers that were only collected so far.
    fn flush(&self) {}

    /// Completes the transfers that have ended, without waiting. Called often: it costs a load if none has
    /// ended.
    fn poll(&self) {}

    /// Waits until a transfer in `queue` has ended, and completes it, for as long as `still_waiting` returns
    /// true. The queue is the one noted in the transfer, or `u32::MAX` before that. Instead, it may return
    /// that the caller may sleep. It may do so only if the device knows of the transfer, or completes it
    /// without further calls.
    fn wait(&self, queue: u32, still_waiting: &dyn Fn() -> bool) -> Waited {
        let _ = (queue, still_waiting);
        Waited::Sleep
    }

    /// Tells the device that a thread sleeps until a transfer ends. From now on until nothing is in flight,
    /// the device must complete transfers without further calls.
    fn serve(&self) {}

    /// Returns the device's name, for messages. A manager asks for it once, when it opens the area, and with
    /// no lock held.
    fn describe(&self) -> String;
}

/// Returns the whole pages in `bytes`, at most [`MOST_PAGES`].
///
/// # Errors
/// [`ErrorKind::SwapUnavailable`] if there is none.
pub(super) fn capacity_pages(bytes: u64) -> Result<u32> {
    match (bytes >> PAGE_SHIFT).min(u64::from(MOST_PAGES)) as u32 {
        0 => {
            let bytes = bytes_for_people(bytes);
            let message = format!("a swap limit of {bytes} holds no page; give at least 4 KiB");
            Err(Error::new(ErrorKind::SwapUnavailable, message))
        }
        pages => Ok(pages),
    }
}
