//! The rules of the protocol, each with a switch.

/// The rules of the protocol. The model keeps a rule if its switch is true.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// No event is read while a page is in transit.
    pub(super) holds_the_gate: bool,
    /// The kernel's EAGAIN goes back to the engine.
    pub(super) hands_back: bool,
    /// A page that an unsettled change concerns is refused.
    pub(super) refuses_unsettled: bool,
    /// A fork concerns all pages.
    pub(super) forks_concern_all: bool,
    /// A range that the program drops counts as empty, even if pages are still present.
    pub(super) dropped_is_empty: bool,
    /// A page that is found where none should be stays outside.
    pub(super) leaves_what_it_finds: bool,
    /// A range is registered before its pages are taken.
    pub(super) registers_first: bool,
    /// A clean page is protected.
    pub(super) protects_clean: bool,
    /// A page is never made clean in place.
    pub(super) never_cleans: bool,
    /// A page is not made clean in place even if it is protected before its bytes are copied.
    pub(super) never_cleans_protected: bool,
    /// A clean page is shown and protected by one call.
    pub(super) shows_in_one_call: bool,
    /// A clean page that a fork shares is not opened to stores to make it movable. It counts as written if it
    /// stays.
    pub(super) keeps_clean_closed: bool,
    /// A range that arrives where another is still mapped waits for the other's event.
    pub(super) waits_for_late_events: bool,
    /// No page is moved out during a search for pages to adopt.
    pub(super) looks_alone: bool,
    /// No change settles before all events that others have read are taken in.
    pub(super) settles_last: bool,
    /// The search for pages to adopt skips a range with a change that others have read.
    pub(super) adopts_settled: bool,
}

/// All rules kept.
pub(super) const ALL: Rules = Rules {
    holds_the_gate: true,
    hands_back: true,
    refuses_unsettled: true,
    forks_concern_all: true,
    dropped_is_empty: true,
    leaves_what_it_finds: true,
    registers_first: true,
    protects_clean: true,
    never_cleans: true,
    never_cleans_protected: true,
    shows_in_one_call: true,
    keeps_clean_closed: true,
    waits_for_late_events: true,
    looks_alone: true,
    settles_last: true,
    adopts_settled: true,
};
