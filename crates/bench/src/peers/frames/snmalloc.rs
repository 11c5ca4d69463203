//! snmalloc by its Rust crate, with the crate's default features: thread-local slabs, remote frees by
//! message.

use super::FrameBench;
use super::global_alloc::without_assertions;
use crate::peers::compare::Side;
use crate::peers::versions;

pub(super) const NAME: &str = "snmalloc";

pub(super) fn side(_arena_bytes: usize) -> Side<dyn FrameBench> {
    let version = versions::of_crate("snmalloc-sys").map(|version| format!("snmalloc-sys {version}"));
    super::side(NAME, version, without_assertions(snmalloc_rs::SnMalloc))
}
