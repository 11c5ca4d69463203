//! The device trait: what swap asks of a place where pages go.

use super::transfer::{Transfer, Urgency};
use crate::error::{Error, ErrorKind, Result};
use crate::units::{PAGE_SHIFT, StoredPage, bytes_for_people};

/// Places that slots can name.
pub(super) const MOST_PAGES: u32 = StoredPage::MOST;
/// Stands where queues are noted until one is: [`Device::wait`] then waits for any transfer.
pub(crate) const NO_QUEUE: u32 = u32::MAX;
/// Asked of [`Device::wait`] by those who wait for no transfer in particular, and who look again by themselves soon.
pub(crate) const ANY_QUEUE: u32 = u32::MAX - 2;

/// What became of a transfer that was handed to [`Device::submit`].
#[derive(Debug)]
#[must_use = "a transfer that comes back has to be put back or tried again"]
pub enum Submitted {
    /// The device has it, and completes it; perhaps it has already.
    Accepted,
    /// The device has no room for it now, and gives it back. That is no failure. Only a device that has other transfers under
    /// way may be full: the end of any of them is the sign to try again. It makes the room first, and completes then.
    Full(Transfer),
}

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

    /// Takes a transfer over, or says that there is no room for it. It lies inside the device's places. After a failed write
    /// any of its places may hold anything; the pages are kept in memory. After a failed read the pages' bytes are never shown
    /// to anyone.
    fn submit(&self, transfer: Transfer, urgency: Urgency) -> Submitted;

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

/// Whole pages in `bytes`, as many as can be named.
///
/// # Errors
/// [`ErrorKind::SwapUnavailable`] when there is none.
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
