//! quick_cache: CLOCK-Pro, sharded. Each hit takes a shard's lock shared, notes the use, and clones the
//! `Arc`.

use std::sync::Arc;

use ::quick_cache::sync::Cache;

use super::{CachedPage, HitBench, HitTarget, OCTAVO_PIN, PageHits};
use crate::peers::compare::Side;

pub(super) fn side(pages: &[Arc<CachedPage>]) -> Side<dyn HitBench> {
    let cache = Cache::new(2 * pages.len());
    for (page, held) in (0..).zip(pages) {
        cache.insert(page, Arc::clone(held));
    }
    super::side("quick_cache", "quick_cache", Some(OCTAVO_PIN), Ok(Quick(cache)))
}

struct Quick(Cache<u32, Arc<CachedPage>>);

impl PageHits for Quick {
    #[inline]
    fn hit(&self, target: HitTarget) -> u64 {
        self.0.get(&target.page()).expect("there is room for every page").word(target)
    }
}
