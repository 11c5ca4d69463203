//! mimalloc (its third major version) by its Rust crate: per-thread pages of small sizes, larger ones from
//! arenas.

use super::FrameBench;
use super::global_alloc::without_assertions;
use crate::peers::compare::Side;
use crate::peers::versions;

pub(super) const NAME: &str = "mimalloc";

pub(super) fn side(_arena_bytes: usize) -> Side<dyn FrameBench> {
    let version = versions::of_crate("libmimalloc-sys").map(|version| format!("libmimalloc-sys {version}"));
    super::side(NAME, version, without_assertions(::mimalloc::MiMalloc))
}
