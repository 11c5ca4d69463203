//! jemalloc by its Rust crate, with the crate's defaults: arenas, per-thread caches of small sizes only,
//! timed decay.

use super::FrameBench;
use super::global_alloc::Global;
use crate::peers::compare::Side;
use crate::peers::versions;

pub(super) const NAME: &str = "jemalloc";

pub(super) fn side(_arena_bytes: usize) -> Side<dyn FrameBench> {
    let version =
        versions::of_crate("tikv-jemalloc-sys").map(|version| format!("tikv-jemalloc-sys {version}"));
    super::side(NAME, version, Ok(Global(tikv_jemallocator::Jemalloc)))
}
