//! The engine's entries: where each page is.

/// Stands for the place of a page that was written since it came in: its place no longer has its bytes.
pub(super) const DIRTY: Option<u8> = None;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModelEntry {
    Empty,
    /// The program has the page. It is clean if its place still has its bytes.
    Away(Option<u8>),
    Out(u8),
    Busy,
}

#[derive(Debug)]
pub(super) struct ModelEngine {
    pub(super) entries: [ModelEntry; 2],
    pub(super) is_mapped: [bool; 2],
    pub(super) child: [ModelEntry; 2],
}

impl ModelEngine {
    pub(super) fn new(entries: [ModelEntry; 2]) -> Self {
        Self { entries, is_mapped: [true; 2], child: [ModelEntry::Empty; 2] }
    }
}
