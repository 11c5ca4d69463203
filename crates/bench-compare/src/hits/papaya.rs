//! papaya: a lock-free hash map only, without eviction. Each hit pins the map's epoch and looks the page up; the page stays
//! readable while the guard lives, and its count is not touched.

use std::sync::Arc;

use super::{Bench, OCTAVO_PIN, Page, PageHits, Place};
use crate::compare::Side;

pub(super) fn side(pages: &[Arc<Page>]) -> Side<dyn Bench> {
    let map = ::papaya::HashMap::with_capacity(pages.len());
    for (page, held) in (0..).zip(pages) {
        map.pin().insert(page, Arc::clone(held));
    }
    super::side("papaya (map only)", "papaya", Some(OCTAVO_PIN), Ok(Map(map)))
}

struct Map(::papaya::HashMap<u32, Arc<Page>>);

impl PageHits for Map {
    #[inline]
    fn hit(&self, place: Place) -> u64 {
        let map = self.0.pin();
        map.get(&place.page()).expect("every page was inserted").word(place)
    }
}
