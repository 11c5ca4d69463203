//! What a window needs of whoever reaches the memory of its target: the seam under every window.
//!
//! Two implementations use userfaultfd: [`Target`](crate::Target) with a mover inside another program, and
//! the one of this process's own windows. Machines that do not allow userfaultfd will have another.

use std::io;

use octavo_platform::userfaultfd::{Event, Progress};

/// Pages that are to leave the target's memory.
#[derive(Clone, Copy, Debug)]
pub struct Taking {
    /// The address of the first page.
    pub address: u64,
    /// Bytes, in whole pages.
    pub len: u64,
    /// The destination of the bytes; null where nobody wants them.
    pub to: *mut u8,
    /// A store to them must not go unnoticed, neither before they leave nor where they stay.
    pub is_clean: bool,
}

impl Taking {
    /// Returns whether the pages may become open to stores before they leave: Octavo gets their bytes, and
    /// counts them as written anyway.
    pub(crate) fn may_be_opened(&self) -> bool {
        !self.is_clean && !self.to.is_null()
    }
}

/// The outcome for pages that were to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// All of them are gone, and their bytes are where they were wanted.
    All,
    /// So many bytes are gone, from the start. Somebody holds the rest for now.
    Part(u64),
    /// None of them: the target tells of a change that nobody has read.
    Unread,
    /// The kernel will never let them go.
    Never,
}

impl Taken {
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
    /// Copies `len` bytes to pages that are missing. A `protected` page tells of its first store. Wakes
    /// nobody.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes.
    unsafe fn copy_in(&self, to: u64, from: *const u8, len: u64, protected: bool) -> Progress;

    /// Protects pages against stores, or ends that and wakes those who wait.
    ///
    /// # Errors
    /// The kernel's.
    fn protect(&self, start: u64, len: u64, on: bool) -> io::Result<()>;

    /// Takes pages out of the target's memory, each with its bytes in one step. `runs` are in order and do
    /// not overlap. Returns an outcome for each. A page that is missing is gone already, and reads as zeros.
    ///
    /// # Safety
    /// Each `to` is null, or writable for `len` bytes.
    unsafe fn take_out(&self, runs: &[Taking], outcomes: &mut Vec<Taken>);

    /// Calls `there` for each page of the range that is present.
    ///
    /// # Errors
    /// The kernel's.
    fn look(&self, start: u64, len: u64, there: &mut dyn FnMut(u64)) -> io::Result<()>;

    /// Calls `used` for each page of the runs that was used since it was last told, as far as that is known,
    /// and for others that were. A page that has come since may look used. `runs` have addresses and lengths
    /// in bytes, in order. This is a hint.
    ///
    /// # Errors
    /// Unsupported where nobody knows; the kernel's.
    fn harvest(&self, runs: &[(u64, u64)], used: &mut dyn FnMut(u64)) -> io::Result<()>;

    /// Adds pages that the kernel will want to write to, and that will not be waited for then. They have to
    /// come back, open to stores. Costs a load where nothing has left since the last call.
    fn add_wanted(&self, _pages: &mut Vec<u64>) {}

    /// A page that was [wanted](Self::add_wanted) could not be had just now.
    fn still_wanted(&self, _page: u64) {}

    /// Wakes threads that wait at pages, so that they try again.
    fn wake(&self, start: u64, len: u64);

    /// Reads what happened: faults, and changes of mappings. Returns at once.
    ///
    /// # Errors
    /// The kernel's.
    fn read_events(&self, events: &mut Vec<Event>) -> io::Result<usize>;

    /// The events of so many forks were just read, and nobody reads more before this returns. Returns a
    /// question that the caller asks as soon as others may go on: what has to be known of the memory as it
    /// is, of which such an event tells nothing.
    fn has_forked(&self, _forks: usize) -> impl FnOnce() {
        || {}
    }

    /// Returns whether the target's memory is known to be gone. Costs a load.
    fn is_gone(&self) -> bool;

    /// Looks whether the target's memory is gone.
    fn look_whether_gone(&self) -> bool {
        self.is_gone()
    }
}
