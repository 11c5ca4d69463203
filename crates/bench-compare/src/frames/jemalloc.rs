//! jemalloc by its Rust crate, with the crate's defaults: arenas, per-thread caches of small sizes only, timed decay.

use super::Bench;
#[cfg(feature = "c-peers")]
use super::global_alloc::Global;
use crate::compare::Side;
use crate::versions;

pub(super) const NAME: &str = "jemalloc";

pub(super) fn side(_arena_bytes: usize) -> Side<dyn Bench> {
    let version =
        versions::of_crate("tikv-jemalloc-sys").map(|version| format!("tikv-jemalloc-sys {version}"));
    super::side(NAME, version, peer())
}

#[cfg(feature = "c-peers")]
fn peer() -> Result<Global<tikv_jemallocator::Jemalloc>, String> {
    Ok(Global(tikv_jemallocator::Jemalloc))
}

#[cfg(not(feature = "c-peers"))]
use super::global_alloc::not_built as peer;
