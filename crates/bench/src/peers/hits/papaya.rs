//! papaya: only a lock-free hash map, without eviction. Each hit takes a guard of the map and looks the page
//! up. While the guard lives, the page stays readable. No reference count changes.

use std::sync::Arc;

use super::{CachedPage, HitBench, HitTarget, OCTAVO_PIN, PageHits};
use crate::peers::compare::Side;

pub(super) fn side(pages: &[Arc<CachedPage>]) -> Side<dyn HitBench> {
    let map = ::papaya::HashMap::with_capacity(pages.len());
    for (page, held) in (0..).zip(pages) {
        map.pin().insert(page, Arc::clone(held));
    }
    super::side("papaya (map only)", "papaya", Some(OCTAVO_PIN), Ok(Map(map)))
}

struct Map(::papaya::HashMap<u32, Arc<CachedPage>>);

impl PageHits for Map {
    #[inline]
    fn hit(&self, target: HitTarget) -> u64 {
        let map = self.0.pin();
        map.get(&target.page()).expect("every page was inserted").word(target)
    }
}
