//! foyer's sharded in-memory cache, once with S3-FIFO and once with LRU. Each hit returns an entry with a
//! reference count.

use std::sync::Arc;

use foyer_memory::{Cache, EvictionConfig, LruConfig, S3FifoConfig};

use super::{CachedPage, HitBench, HitTarget, OCTAVO_PIN, PageHits, side};
use crate::peers::compare::Side;

pub(super) fn sides(pages: &[Arc<CachedPage>]) -> [Side<dyn HitBench>; 2] {
    let of = |name, eviction| side(name, "foyer-memory", Some(OCTAVO_PIN), Ok(Foyer::new(pages, eviction)));
    [of("foyer S3-FIFO", S3FifoConfig::default().into()), of("foyer LRU", LruConfig::default().into())]
}

struct Foyer(Cache<u32, Arc<CachedPage>>);

impl Foyer {
    fn new(pages: &[Arc<CachedPage>], eviction: EvictionConfig) -> Self {
        let cache = Cache::builder(2 * pages.len()).with_eviction_config(eviction).build();
        for (page, held) in (0..).zip(pages) {
            cache.insert(page, Arc::clone(held));
        }
        Self(cache)
    }
}

impl PageHits for Foyer {
    #[inline]
    fn hit(&self, target: HitTarget) -> u64 {
        self.0.get(&target.page()).expect("there is room for every page").value().word(target)
    }
}
