//! Octavo by its public interface: `load`, `store` and `pin`.
//!
//! - load: bounds, region and software page table, then an optimistic read of the frame.
//! - pin + unpin: the lock-free walk pins the page, a load reads the word, and the pin is dropped.
//! - store: like a load, but it also checks the right to write and marks the page dirty.
//!
//! One space serves all three. Its budget is far larger than its pages, so that no page is evicted during the
//! measurement.

use std::sync::Arc;

use octavo::{Access, Manager, RegionOptions, Space};

use super::{HitBench, HitTarget, OCTAVO_LOAD, OCTAVO_PIN, OCTAVO_STORE, PageHits, WORDS, Working, side};
use crate::peers::compare::Side;

const WORD_BYTES: usize = size_of::<u64>();
const PAGE_BYTES: usize = WORDS * WORD_BYTES;

pub(super) fn sides(working: &Working) -> [Side<dyn HitBench>; 3] {
    let pages = WorkingPages::new(working).map(Arc::new).map_err(|error| error.to_string());
    [
        side(OCTAVO_LOAD, "octavo", None, pages.clone().map(LoadSide)),
        side(OCTAVO_PIN, "octavo", None, pages.clone().map(HoldSide)),
        side(OCTAVO_STORE, "octavo", None, pages.map(Store)),
    ]
}

struct WorkingPages {
    space: Space,
    base: u64,
}

impl WorkingPages {
    fn new(working: &Working) -> octavo::Result<Self> {
        let bytes = u64::from(working.pages()) * PAGE_BYTES as u64;
        let manager = Manager::builder().budget_bytes(2 * bytes + (256 << 20)).build()?;
        let space = manager.space()?;
        let base = space.map(bytes, RegionOptions::default())?;
        let pages = Self { space, base };
        for target in working.targets() {
            pages.space.store::<u64>(pages.word(target), target.word_written())?;
        }
        Ok(pages)
    }

    #[inline]
    fn page(&self, target: HitTarget) -> u64 {
        self.base + u64::from(target.page()) * PAGE_BYTES as u64
    }

    #[inline]
    fn word(&self, target: HitTarget) -> u64 {
        self.base + (target.flat_word() * WORD_BYTES) as u64
    }
}

struct LoadSide(Arc<WorkingPages>);

impl PageHits for LoadSide {
    #[inline]
    fn hit(&self, target: HitTarget) -> u64 {
        self.0.space.load::<u64>(self.0.word(target)).expect("the page is mapped")
    }
}

struct HoldSide(Arc<WorkingPages>);

impl PageHits for HoldSide {
    #[inline]
    fn hit(&self, target: HitTarget) -> u64 {
        let pin = self
            .0
            .space
            .pin_exact(self.0.page(target), PAGE_BYTES, Access::Read)
            .expect("the page is mapped");
        pin.load::<u64>(target.word() * WORD_BYTES).expect("the word is inside the pin")
    }
}

struct Store(Arc<WorkingPages>);

impl PageHits for Store {
    #[inline]
    fn hit(&self, target: HitTarget) -> u64 {
        self.0.space.store::<u64>(self.0.word(target), target.word_written()).expect("the page is mapped");
        target.word_written()
    }
}
