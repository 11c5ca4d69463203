//! The seam between Octavo's table and whatever else translates addresses: the counterpart of an
//! architecture's `set_pte` and `flush_tlb`.
//!
//! Handles translate by Octavo's own entries, so for them both operations are nothing. A window will move the
//! frame's memory to a real address here, and back. A fault installs after it has the frame and before it
//! publishes the entry; eviction, unmap and migration remove after the entry has become busy and before the
//! frame is used for anything else.

use crate::units::{FrameId, PageNumber};

/// `count` consecutive frames at `count` consecutive pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First page.
    pub page: PageNumber,
    /// First frame.
    pub frame: FrameId,
    /// How many of each.
    pub count: u32,
}

/// What came of installing or removing a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// All of it.
    Done,
    /// Only this many pages, from the start.
    Partly(u32),
    /// Nothing now: somebody holds the memory. Try again later.
    Busy,
    /// Never, for this run.
    Unsupported,
}

/// Someone who must know which frame stands at which page.
pub trait Translation: Send + Sync {
    /// Makes the pages reach the frames.
    fn install(&self, run: Run) -> Installed;
    /// Makes the pages reach nothing.
    fn remove(&self, run: Run) -> Installed;
}
