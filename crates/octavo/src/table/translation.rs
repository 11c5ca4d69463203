//! The seam between Octavo's table and another translator of addresses: the counterpart of an architecture's
//! `set_pte` and `flush_tlb`.
//!
//! Handles translate by Octavo's own entries, and need nothing of this. A space *with a translation* is also
//! reached in another way: by a program's own addresses, for instance. Each of its pages has its bytes in one
//! place at a time:
//!
//! ```text
//!                 install
//!   at home ────────────────────► away      at home: handles reach the page; the other side reaches nothing
//!   (arena) ◄──────────────────── (there)   away: the other side reaches the page; an away frame stands for it
//!                 remove
//! ```
//!
//! A page of zeros has no bytes, and the other side may show it as well. Eviction, migration and swap-in deal
//! with pages at home only. A page that is away comes home first (`engine/homecoming.rs`), and goes away
//! again in a fault (`fault/away.rs`).
//!
//! Octavo asks in batches of [`Run`]s, and the translation answers for each run. While a page is asked about,
//! its entry is Busy: no other thread asks about the page, and no handle reaches it. Only [`Touch::Accessed`]
//! is asked of pages in use. An answer counts at once: when a call returns, the pages are as the answers say,
//! also for accesses that were under way. A call should be short, since other faults on its pages wait for
//! it. Any thread may make it. The translation must not call the space's own functions from inside. It sets
//! the answer of a run when the run is done: where it panics, an answer that is set counts.
//!
//! **Who learns of stores.** A page that is installed for reading is not written unnoticed. A store to it
//! becomes a fault for writing
//! ([`TranslatedSpace::fault_translated`](crate::translation::TranslatedSpace::fault_translated)). A
//! translation that cannot see to that answers Unsupported, and Octavo then installs the page for writing
//! too. Before such a page goes, Octavo asks for its protection, and then whether it was written
//! ([`Touch::Written`]). So no store falls in between. A device that may write to a page counts as one that
//! writes: a translation that cannot tell whether there is one answers Unsupported, and the page counts as
//! written.
#![expect(unsafe_code, reason = "who implements the trait is handed memory of which most is not theirs")]

use octavo_platform::ArenaBytes;

use crate::table::entry::Protection;
use crate::units::{FrameId, PAGE_BYTES, PageNumber};

/// What a [`Translation`] did with the pages of a [`Run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// All of it is done.
    Done,
    /// Only so many pages are done, from the start. The rest is as it was, and Octavo may ask for it again.
    Partly(u32),
    /// Nothing is done: somebody holds the memory. Try again later.
    Busy,
    /// Nothing is done, and nothing ever will be done for this run.
    Unsupported,
}

/// For a [`Translation`]: pages one after the other, the question about them, and the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run<A> {
    /// The first page.
    pub page: PageNumber,
    /// How many there are.
    pub count: u32,
    /// The question.
    pub ask: A,
    /// The answer. It is Busy until the translation says otherwise.
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

/// In an [`Install`]: what the pages are to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bytes {
    /// Zeros without memory of their own, in place of nothing or of the same. They are installed for reading.
    ZeroPages,
    /// Zeros in memory of their own, in place of nothing or of zeros without.
    Zeros,
    /// A copy of the bytes of this home frame and of those that follow it, in memory of its own.
    Frames(FrameId),
}

/// Asks a [`Translation`] to show pages at its side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Install {
    /// The bytes.
    pub bytes: Bytes,
    /// The accesses that the other side may make unnoticed.
    pub protection: Protection,
}

/// Asks a [`Translation`] to take pages away from its side, and to bring their bytes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remove {
    /// The destination of their bytes: this home frame and those that follow it. `None` means that nobody
    /// wants the bytes. The bytes and the removal are one step: no store comes between them.
    pub to: Option<FrameId>,
    /// Octavo has these bytes in a store, and counts on hearing of a store to the pages. So they must not
    /// become open to stores that go unnoticed, neither before they leave nor where they stay.
    pub is_clean: bool,
}

impl Remove {
    /// Asks for pages to go whose bytes nobody wants.
    pub const DROP: Self = Self { to: None, is_clean: false };
}

/// Asks a [`Translation`] whether pages were used, were written, or are there: Octavo did not notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// The page was read or written. This is a hint, by which reclaim tells which pages are in use.
    Accessed,
    /// The page was written, or a device may be writing to it, which no protection stops. Octavo relies on
    /// it.
    Written,
    /// The page is there. This is no touch, and nothing is forgotten. Octavo asks where the other side has
    /// found nothing
    /// ([`TranslatedSpace::fault_missing`](crate::translation::TranslatedSpace::fault_missing)).
    There,
}

/// Lets a [`Translation`] reach the bytes that it moves, during a call.
#[derive(Clone, Copy, Debug)]
pub struct Home<'a>(&'a ArenaBytes);

impl<'a> Home<'a> {
    pub(crate) fn new(bytes: &'a ArenaBytes) -> Self {
        Self(bytes)
    }

    /// Returns the address of a frame's bytes, for a system call. Others may be reading them.
    ///
    /// # Panics
    /// When the frame is not at home.
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

/// Implement this to have the pages of a space reached at addresses of your own too, by
/// [`Manager::translated_space`](crate::Manager::translated_space). (`octavo-window` does, by userfaultfd.)
///
/// A page has its bytes in one place at a time: *at home*, in the manager's memory, where handles reach it;
/// or *away*, at your side. A page of zeros has no bytes, and may be shown on both. Octavo asks in batches of
/// [`Run`]s, and each is answered for itself. An answer counts at once: when a call returns, the pages are as
/// it says, also for accesses that were under way. Calls come from any thread, and should be short, since
/// other faults on these pages wait. They must not call functions of the space from inside. Where a call
/// panics, the answers that are set count.
///
/// A page that is installed for reading is not written unnoticed: a store to it becomes a fault for writing
/// ([`TranslatedSpace::fault_translated`](crate::translation::TranslatedSpace::fault_translated)). A
/// translation that cannot see to that answers Unsupported, and Octavo installs the page for writing too.
/// Before such a page goes, Octavo asks for its protection, and then whether it was written
/// ([`Touch::Written`]).
///
/// # Safety
/// What is done with [`Home`] touches only frames that the runs of the call name, while the call lasts: it
/// reads those of an [`Install`], and writes those of a [`Remove`]. Any other frame may be lent by a guard.
pub unsafe trait Translation: Send + Sync {
    /// Makes pages show bytes. The pages reach nothing so far, or zero pages that were installed.
    fn install(&self, home: Home<'_>, runs: &mut [Run<Install>]);

    /// Makes pages reach nothing, and brings their bytes home where they are wanted. A page that reaches
    /// nothing already is done, and the frame that wants its bytes is filled with zeros. A removal without
    /// bytes is never Unsupported.
    fn remove(&self, home: Home<'_>, runs: &mut [Run<Remove>]);

    /// Changes the accesses that installed pages allow unnoticed.
    fn protect(&self, runs: &mut [Run<Protection>]);

    /// Takes note that the 512 pages of a run, which were installed together, are asked for one by one from
    /// now on. It is all of a run or nothing.
    fn split(&self, runs: &mut [Run<()>]);

    /// Tells `touched` which pages of the runs were touched since they were installed or last harvested, and
    /// forgets it. A translation that knows nothing of a run answers Unsupported. To forget the one touch
    /// leaves the other. A run may hold pages that are not there, and they are untouched. [`Touch::Accessed`]
    /// is a hint: it may be told late or not, and of pages outside of the runs.
    fn harvest(&self, runs: &mut [Run<Touch>], touched: &mut dyn FnMut(PageNumber));
}
