//! The seam under every window: what it needs to reach the memory of its target.
//!
//! Two implementations use userfaultfd: [`Target`](crate::Target), with a mover inside another program, and
//! the one for this process's own windows. Machines without userfaultfd will need another.

use std::io;

use octavo_platform::userfaultfd::{CallProgress, Event};

/// Pages to take out of the target's memory.
#[derive(Clone, Copy, Debug)]
pub struct Taking {
    /// The address of the first page.
    pub address: u64,
    /// Bytes, in whole pages.
    pub len: u64,
    /// The destination of the bytes; null if nobody wants them.
    pub to: *mut u8,
    /// Whether the pages count as clean. A store to a clean page must be noticed before the page leaves, and
    /// also if the page stays.
    pub is_clean: bool,
}

impl Taking {
    /// Returns whether the pages may be opened to stores before they leave. They may if they are not clean
    /// and their bytes are wanted: Octavo treats such pages as written anyway.
    pub(crate) fn may_be_opened(&self) -> bool {
        !self.is_clean && !self.to.is_null()
    }
}

/// The result for pages that should leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeOutcome {
    /// All of them are gone, and their bytes are at their destination.
    All,
    /// This many bytes from the start are gone. The rest could not be taken for now.
    Part(u64),
    /// No page was moved, since an event of the target is unread.
    Unread,
    /// The kernel will never let them go.
    Never,
}

impl TakeOutcome {
    /// Returns how many of `len` bytes are gone.
    pub fn bytes(self, len: u64) -> u64 {
        match self {
            Self::All => len,
            Self::Part(bytes) => bytes,
            Self::Unread | Self::Never => 0,
        }
    }
}

/// Reaches the memory of a process.
pub trait Reach: Send + Sync {
    /// Copies `len` bytes to pages that are missing. The first store to a `protected` page is a fault. Wakes
    /// no thread.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes.
    unsafe fn copy_in(&self, to: u64, from: *const u8, len: u64, protected: bool) -> CallProgress;

    /// Protects pages against stores if `on`. Otherwise ends the protection, and wakes the threads that wait
    /// for that.
    ///
    /// # Errors
    /// The kernel's error.
    fn protect(&self, start: u64, len: u64, on: bool) -> io::Result<()>;

    /// Takes pages out of the target's memory, each with its bytes in one step. `runs` are in order and do
    /// not overlap. Returns an outcome for each. A page that is missing is gone already, and reads as zeros.
    ///
    /// # Safety
    /// Each `to` is null, or writable for `len` bytes.
    unsafe fn take_out(&self, runs: &[Taking], outcomes: &mut Vec<TakeOutcome>);

    /// Calls `there` for each page of the range that is present.
    ///
    /// # Errors
    /// The kernel's error.
    fn look(&self, start: u64, len: u64, there: &mut dyn FnMut(u64)) -> io::Result<()>;

    /// Calls `used` for each page that is known to have been used since it was last reported: those of the
    /// runs, and possibly others. A page that has come in since the last report may look used. `runs` hold
    /// addresses and lengths in bytes, in order. This is a hint.
    ///
    /// # Errors
    /// `Unsupported` if use cannot be known; otherwise the kernel's error.
    fn harvest(&self, runs: &[(u64, u64)], used: &mut dyn FnMut(u64)) -> io::Result<()>;

    /// Adds the pages that the kernel will write to without waiting until they are usable. They must come
    /// back, open to stores. Costs a load if no page has left since the last call.
    fn add_wanted(&self, _pages: &mut Vec<u64>) {}

    /// Notes that a [wanted](Self::add_wanted) page could not be brought back for now.
    fn still_wanted(&self, _page: u64) {}

    /// Wakes threads that wait for pages, so that they try again.
    fn wake(&self, start: u64, len: u64);

    /// Reads events: faults, and changes of mappings. Returns at once.
    ///
    /// # Errors
    /// The kernel's error.
    fn read_events(&self, events: &mut Vec<Event>) -> io::Result<usize>;

    /// Notes that this many fork events were just read. No thread reads more events before this returns.
    /// Returns a function that asks about the memory, for facts that a fork event does not carry. The caller
    /// calls it as soon as other threads may continue.
    fn has_forked(&self, _forks: usize) -> impl FnOnce() {
        || {}
    }

    /// Returns whether the target's memory is known to be gone. Costs a load.
    fn is_gone(&self) -> bool;

    /// Checks whether the target's memory is gone.
    fn look_whether_gone(&self) -> bool {
        self.is_gone()
    }
}
