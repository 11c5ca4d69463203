//! The events by which the kernel tells of changes of mappings.
//!
//! | module | what it holds |
//! |---|---|
//! | `gate` | keeps events unread while pages are on their way, and refuses pages of events that are not taken in |
//! | `changes` | the order in which changes are taken in |
//! | `dropped` | ranges whose pages the program has dropped, and that may be there still |

pub(crate) mod changes;
pub(crate) mod dropped;
pub(crate) mod gate;
