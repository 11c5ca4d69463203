//! moka's synchronous cache, which evicts by W-TinyLFU. Each hit clones the `Arc` and records the use in a
//! log. The thread that finds the log full processes it. That time is part of the figure.

use std::sync::Arc;

use ::moka::sync::Cache;

use super::{CachedPage, HitBench, HitTarget, OCTAVO_PIN, PageHits};
use crate::peers::compare::Side;

pub(super) fn side(pages: &[Arc<CachedPage>]) -> Side<dyn HitBench> {
    let cache = Cache::new(2 * pages.len() as u64);
    for (page, held) in (0..).zip(pages) {
        cache.insert(page, Arc::clone(held));
    }
    cache.run_pending_tasks();
    super::side("moka", "moka", Some(OCTAVO_PIN), Ok(Moka(cache)))
}

struct Moka(Cache<u32, Arc<CachedPage>>);

impl PageHits for Moka {
    #[inline]
    fn hit(&self, target: HitTarget) -> u64 {
        self.0.get(&target.page()).expect("there is room for every page").word(target)
    }
}
