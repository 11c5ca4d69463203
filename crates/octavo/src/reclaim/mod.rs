//! Reclaim makes room: it sends cold pages out, and moves warm ones together.
//!
//! | file | what |
//! |---|---|
//! | `room` | makes room for an access that found no frame or no table node |
//! | `background` | the thread that keeps ahead, from the low watermark to the high one |
//! | `reserve` | how far ahead it keeps: the watermarks follow the time that accesses stall |
//! | `throttle` | a thread that takes much memory makes room before there is none |
//! | `signal` | tells the background thread to work, to rest and to end |
//! | `scan` | one scan for cold pages, by an access (direct) or by the thread (background) |
//! | `evict` | a batch of cold frames, on its way to the stores of their pages |
//! | `away` | pages that are away: which of them are in use, and how they come home to be evicted |
//! | `quota` | a space at its own limit makes room among its own pages |
//! | `advise` | pages that programs declare cold |
//! | `shrink_pool` | the coldest compressed pages go on to the areas |
//! | `compact` | a block of 2 MiB for a huge page or for the pool |
//! | `shrink` | gives chunks back until the charged bytes fit the budget |
//! | `empty_chunk` | moves everything out of a chunk, for `compact` and `shrink` |
//! | `migrate` | moves a page to another frame |
//!
//! Reclaim never faults, never waits for a busy entry, and needs no allocation to make progress. Batches lie
//! on the stack. Slots and their words may exceed the budget by a page. Devices read and write the frames
//! directly, without a copy.

mod advise;
mod away;
mod background;
mod compact;
mod empty_chunk;
mod evict;
mod migrate;
mod quota;
mod reserve;
mod room;
mod scan;
mod shrink;
mod shrink_pool;
mod signal;
mod throttle;

pub(crate) use advise::{cool, page_out};
pub(crate) use background::Running;
#[cfg(all(test, not(loom)))]
pub(crate) use compact::block_for_pool;
pub(crate) use compact::{block_for_fault, frames_together};
#[cfg(all(test, loom))]
pub(crate) use evict::evict_batch;
#[cfg(all(test, not(loom)))]
pub(crate) use evict::{Outcome, send_out, take_in};
pub(crate) use migrate::move_pinned;
#[cfg(all(test, not(loom)))]
pub(crate) use migrate::{Migrated, migrate};
pub(crate) use quota::make_room_under_quota;
pub(crate) use room::{make_room, make_room_away, make_room_for_away, make_room_for_node, make_room_to_grow};
pub(crate) use scan::{Reclaimer, reclaim, reclaim_and_wait};
pub(crate) use shrink::shrink_to_budget;
#[cfg(all(test, not(loom)))]
pub(crate) use shrink::try_shrink;
#[cfg(all(test, not(loom)))]
pub(crate) use shrink_pool::shrink_pool;
pub(crate) use throttle::{must_throttle, note_taken, throttle};
