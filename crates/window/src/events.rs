//! The events by which the kernel reports changes of mappings.
//!
//! | module | what it holds |
//! |---|---|
//! | `gate` | keeps events unread while pages are in transit, and refuses pages of unsettled events |
//! | `changes` | the order in which changes are taken in |
//! | `dropped` | ranges whose pages the program has dropped, and that may still be present |

pub(crate) mod changes;
pub(crate) mod dropped;
pub(crate) mod gate;
