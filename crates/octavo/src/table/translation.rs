//! The interface between Octavo's table and another translation of addresses. It corresponds to an
//! architecture's `set_pte` and `flush_tlb`.
//!
//! Handles translate by Octavo's own entries, and do not need this. A space *with a translation* can also be
//! reached in another way, for instance by a program's own addresses. Each of its pages has its bytes in one
//! place at a time:
//!
//! ```text
//!                 install
//!   at home ────────────────────► away      at home: handles reach the page; the other side does not
//!   (arena) ◄──────────────────── (there)   away: the other side reaches the page; an away frame stands for it
//!                 remove
//! ```
//!
//! A page of zeros has no bytes, and both sides may show it. Eviction, migration and swap-in handle only
//! pages at home. A page that is away comes home first (`engine/homecoming.rs`), and goes away again in a
//! fault (`fault/away.rs`).
//!
//! Octavo asks in batches of [`Run`]s, and the translation answers for each run. During a call, the entries
//! of its pages are Busy: no other thread asks about them, and no handle reaches them. The exception is
//! [`Touch::Accessed`], which is asked about pages in use. An answer takes effect at once: when a call
//! returns, the pages are as the answers say, even for accesses that were under way. A call should be short,
//! since other faults on its pages wait for it. Any thread may make it. The translation must not call the
//! space's own functions from inside a call. It sets the answer of a run as soon as the run is done: if it
//! panics, the answers already set count.
//!
//! **How Octavo learns of stores.** A page that is installed for reading is not written unnoticed. A store to
//! it becomes a write fault
//! ([`TranslatedSpace::fault_translated`](crate::translation::TranslatedSpace::fault_translated)). A
//! translation that cannot ensure this answers Unsupported, and Octavo then installs the page for writing
//! too. Before such a page goes, Octavo first asks to protect it, and then whether it was written
//! ([`Touch::Written`]), so no store is missed. A device that may write to a page counts as one that does: a
//! translation that cannot tell whether there is such a device answers Unsupported, and the page counts as
//! written.
#![expect(unsafe_code, reason = "who implements the trait is handed memory of which most is not theirs")]

use octavo_platform::ArenaBytes;

use crate::table::entry::Protection;
use crate::units::{FrameId, PAGE_BYTES, PageNumber};

/// What a [`Translation`] did with the pages of a [`Run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The whole run is done.
    Done,
    /// Only this many pages, from the start, are done. The rest is unchanged, and Octavo may ask for it
    /// again.
    Partly(u32),
    /// Nothing is done: the memory is in use. Try again later.
    Busy,
    /// Nothing is done, and the same request will never succeed.
    Unsupported,
}

/// For a [`Translation`]: consecutive pages, the request for them, and the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run<A> {
    /// The first page.
    pub page: PageNumber,
    /// How many pages there are.
    pub count: u32,
    /// The request.
    pub ask: A,
    /// The answer. It is Busy until the translation sets it.
    pub answer: Answer,
}

impl Answer {
    /// Returns how many of `count` pages are done, from the start.
    pub(crate) fn done_of(self, count: u32) -> u32 {
        match self {
            Self::Done => count,
            Self::Partly(done) => done.min(count),
            Self::Busy | Self::Unsupported => 0,
        }
    }
}

impl<A> Run<A> {
    /// Returns how many pages are done, from the start.
    pub fn done(&self) -> u32 {
        self.answer.done_of(self.count)
    }
}

/// In an [`Install`]: the bytes that the pages will show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bytes {
    /// Zeros without memory of their own. The pages show nothing yet, or such zeros. Installed for reading.
    ZeroPages,
    /// Zeros in memory of their own. The pages show nothing yet, or zeros without memory.
    Zeros,
    /// A copy of the bytes of this home frame and the frames that follow it, in memory of its own.
    Frames(FrameId),
}

/// Asks a [`Translation`] to show pages on its side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Install {
    /// The bytes.
    pub bytes: Bytes,
    /// The accesses that the translation's side may make without a fault.
    pub protection: Protection,
}

/// Asks a [`Translation`] to remove pages from its side, and to bring their bytes home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remove {
    /// The destination of the bytes: this home frame and the frames that follow it. `None` discards the
    /// bytes. Copying and removing are one step: no store comes between them.
    pub to: Option<FrameId>,
    /// Octavo has these bytes elsewhere, and relies on noticing each store to the pages. So the pages must
    /// not become open to unnoticed stores, neither before they are removed nor if they stay.
    pub is_clean: bool,
}

impl Remove {
    /// Removes pages and discards their bytes.
    pub const DROP: Self = Self { to: None, is_clean: false };
}

/// Asks a [`Translation`] whether pages were used, were written, or are installed, since Octavo does not
/// notice this itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// The page was read or written. This is a hint, which reclaim uses to find pages in use.
    Accessed,
    /// The page was written, or a device may be writing to it, which no protection stops. Octavo relies on
    /// this answer.
    Written,
    /// The page is installed. This is not a use, and no touch is forgotten. Octavo asks this if the
    /// translation's side has found nothing
    /// ([`TranslatedSpace::fault_missing`](crate::translation::TranslatedSpace::fault_missing)).
    There,
}

/// Lets a [`Translation`] reach the bytes that it moves during a call.
#[derive(Clone, Copy, Debug)]
pub struct Home<'a>(&'a ArenaBytes);

impl<'a> Home<'a> {
    pub(crate) fn new(bytes: &'a ArenaBytes) -> Self {
        Self(bytes)
    }

    /// Returns the address of a frame's bytes, for a system call. Other threads may be reading them.
    ///
    /// # Panics
    /// If the frame is not at home.
    pub fn pointer(self, frame: FrameId) -> *mut u8 {
        self.0.pointer(frame.home_offset())
    }

    /// Copies bytes out of a frame.
    ///
    /// # Panics
    /// As for [`Home::pointer`].
    pub fn copy_out(self, frame: FrameId, to: &mut [u8; PAGE_BYTES]) {
        self.0.copy_out(frame.home_offset(), to);
    }

    /// Copies bytes into a frame.
    ///
    /// # Panics
    /// As for [`Home::pointer`].
    pub fn copy_in(self, frame: FrameId, from: &[u8; PAGE_BYTES]) {
        self.0.copy_in(frame.home_offset(), from);
    }
}

/// Implement this to reach the pages of a space at addresses of your own too, with
/// [`Manager::translated_space`](crate::Manager::translated_space). (`octavo-window` does, by userfaultfd.)
///
/// A page has its bytes in one place at a time: *at home*, in the manager's memory, where handles reach it;
/// or *away*, on your side. A page of zeros has no bytes, and both sides may show it. Octavo asks in batches
/// of [`Run`]s, and you answer each run. An answer takes effect at once: when a call returns, the pages are
/// as the answers say, even for accesses that were under way. Calls come from any thread, and should be
/// short, since other faults on these pages wait. Do not call functions of the space from inside a call. If a
/// call panics, the answers already set count.
///
/// A page that is installed for reading is not written unnoticed: a store to it becomes a write fault
/// ([`TranslatedSpace::fault_translated`](crate::translation::TranslatedSpace::fault_translated)). A
/// translation that cannot ensure this answers Unsupported, and Octavo installs the page for writing too.
/// Before such a page goes, Octavo first asks to protect it, and then whether it was written
/// ([`Touch::Written`]).
///
/// # Safety
/// Use [`Home`] only while the call lasts, and only for frames that the runs of the call name: read those of
/// an [`Install`], and write those of a [`Remove`]. Any other frame may be lent by a guard.
pub unsafe trait Translation: Send + Sync {
    /// Makes pages show bytes. So far, the pages show nothing, or zero pages that were installed.
    fn install(&self, home: Home<'_>, runs: &mut [Run<Install>]);

    /// Makes pages show nothing, and brings their bytes home if `to` names frames. A page that already shows
    /// nothing counts as done, and its frame is filled with zeros. A removal that discards the bytes is never
    /// Unsupported.
    fn remove(&self, home: Home<'_>, runs: &mut [Run<Remove>]);

    /// Changes the accesses that installed pages allow without a fault.
    fn protect(&self, runs: &mut [Run<Protection>]);

    /// Tells you that Octavo asks for the 512 pages of a run, which were installed together, one by one from
    /// now on. The answer is for the whole run: it is never Partly.
    fn split(&self, runs: &mut [Run<()>]);

    /// Passes to `touched` the pages of the runs that were touched since they were installed or last
    /// harvested, and forgets those touches. A translation that knows nothing of a run answers Unsupported.
    /// Each kind of touch is forgotten separately. A run may hold pages that are not installed, which count
    /// as untouched. [`Touch::Accessed`] is a hint: it may be reported late, not at all, or for pages outside
    /// of the runs.
    fn harvest(&self, runs: &mut [Run<Touch>], touched: &mut dyn FnMut(PageNumber));
}
