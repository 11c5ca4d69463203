//! vmcache's page states, after Leis, Alhomssi, Ziegler, Loeck and Dietrich, "Virtual-Memory Assisted Buffer
//! Management" (SIGMOD 2023). The code follows the paper. It is not the authors' program, whose figures may
//! differ.
//!
//! Each page has a place of its own in one mapping: the page's number determines its address, and the
//! kernel's page table is the translation. Each page also has one word beside the mapping:
//!
//! ```text
//!   63       56 55                                0
//!  +-----------+-----------------------------------+
//!  |   state   |              version              |   state: 0 unlocked, 1..=252 that many readers, 253 locked,
//!  +-----------+-----------------------------------+          254 marked for eviction, 255 evicted
//! ```
//!
//! - An optimistic read looks at the state, reads from the page, and looks at the version and state again.
//! - A shared fix is a compare-and-swap that counts a reader in, and one that counts it out.
//! - An exclusive fix is a compare-and-swap to locked, and a store that unlocks with the next version.
//!
//! A hit clears the mark that a clock hand may have left. The mapping has no huge pages, because vmcache
//! evicts single 4 KiB pages. The bench does not measure vmcache's faults, clock or I/O, since no page is
//! ever evicted here.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::array::flat_pages;
use super::{HitBench, HitTarget, OCTAVO_LOAD, OCTAVO_PIN, OCTAVO_STORE, PageHits, Working, side};
use crate::peers::compare::Side;
use crate::peers::mapping::{BenchMapping, HugePages};

pub(super) fn sides(working: &Working) -> [Side<dyn HitBench>; 3] {
    let pool = || BufferPool::new(working);
    [
        side("vmcache optimistic", "", Some(OCTAVO_LOAD), pool().map(Optimistic)),
        side("vmcache shared fix + unfix", "", Some(OCTAVO_PIN), pool().map(SharedSide)),
        side("vmcache exclusive fix, write", "", Some(OCTAVO_STORE), pool().map(ExclusiveSide)),
    ]
}

const STATE_SHIFT: u32 = 56;
const UNLOCKED: u64 = 0;
const MOST_READERS: u64 = 252;
const LOCKED: u64 = 253;
const MARKED: u64 = 254;
const EVICTED: u64 = 255;

const fn state(word: u64) -> u64 {
    word >> STATE_SHIFT
}

const fn version(word: u64) -> u64 {
    word & ((1 << STATE_SHIFT) - 1)
}

/// Returns the word with the same version in another state.
const fn with_state(word: u64, state: u64) -> u64 {
    version(word) | state << STATE_SHIFT
}

/// Returns the next version, unlocked, which a writer leaves.
const fn next_version(word: u64) -> u64 {
    version(word.wrapping_add(1)) | UNLOCKED << STATE_SHIFT
}

#[derive(Debug)]
struct PageState(AtomicU64);

impl PageState {
    /// Runs `read` until no writer interfered.
    #[inline]
    fn optimistic<T>(&self, read: impl Fn() -> T) -> T {
        loop {
            // Acquire: the page is read after its state.
            let before = self.0.load(Ordering::Acquire);
            match state(before) {
                LOCKED => spin_loop(),
                // The hit clears the mark first and starts again. Another hit may have cleared the mark
                // already.
                MARKED => drop(self.exchange(before, with_state(before, UNLOCKED))),
                EVICTED => fault(),
                _ => {
                    let value = read();
                    // Acquire: the state is read again after the page.
                    fence(Ordering::Acquire);
                    let after = self.0.load(Ordering::Relaxed);
                    if after == before || (version(after) == version(before) && state(after) <= MOST_READERS)
                    {
                        return value;
                    }
                }
            }
        }
    }

    #[inline]
    fn fix_shared(&self) {
        loop {
            let word = self.0.load(Ordering::Relaxed);
            let readers = match state(word) {
                LOCKED | MOST_READERS => {
                    spin_loop();
                    continue;
                }
                MARKED => 0,
                EVICTED => fault(),
                readers => readers,
            };
            if self.exchange(word, with_state(word, readers + 1)).is_ok() {
                return;
            }
        }
    }

    #[inline]
    fn unfix_shared(&self) {
        loop {
            let word = self.0.load(Ordering::Relaxed);
            if self.exchange(word, with_state(word, state(word) - 1)).is_ok() {
                return;
            }
        }
    }

    #[inline]
    fn fix_exclusive(&self) {
        loop {
            let word = self.0.load(Ordering::Relaxed);
            match state(word) {
                UNLOCKED | MARKED if self.exchange(word, with_state(word, LOCKED)).is_ok() => {
                    // Release: an optimistic reader that sees the page's new bytes sees the lock as well.
                    fence(Ordering::Release);
                    return;
                }
                EVICTED => fault(),
                _ => spin_loop(),
            }
        }
    }

    #[inline]
    fn unfix_exclusive(&self) {
        let word = self.0.load(Ordering::Relaxed);
        // Release: the page's new bytes come before the new version.
        self.0.store(next_version(word), Ordering::Release);
    }

    /// This exchange both enters and leaves a state: acquire to enter, release to leave.
    #[inline]
    fn exchange(&self, from: u64, to: u64) -> Result<u64, u64> {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
    }
}

#[cold]
fn fault() -> ! {
    panic!("every page is in memory before the clock starts")
}

struct BufferPool {
    pages: BenchMapping,
    states: Vec<PageState>,
}

impl BufferPool {
    fn new(working: &Working) -> Result<Self, String> {
        let states = (0..working.pages()).map(|_| PageState(AtomicU64::new(0))).collect();
        Ok(Self { pages: flat_pages(working, HugePages::Refused)?, states })
    }

    #[inline]
    fn state(&self, target: HitTarget) -> &PageState {
        &self.states[target.page() as usize]
    }

    #[inline]
    fn word(&self, target: HitTarget) -> &AtomicU64 {
        &self.pages.words()[target.flat_word()]
    }
}

struct Optimistic(BufferPool);

impl PageHits for Optimistic {
    #[inline]
    fn hit(&self, target: HitTarget) -> u64 {
        self.0.state(target).optimistic(|| self.0.word(target).load(Ordering::Relaxed))
    }
}

struct SharedSide(BufferPool);

impl PageHits for SharedSide {
    #[inline]
    fn hit(&self, target: HitTarget) -> u64 {
        let state = self.0.state(target);
        state.fix_shared();
        let word = self.0.word(target).load(Ordering::Relaxed);
        state.unfix_shared();
        word
    }
}

struct ExclusiveSide(BufferPool);

impl PageHits for ExclusiveSide {
    #[inline]
    fn hit(&self, target: HitTarget) -> u64 {
        let state = self.0.state(target);
        state.fix_exclusive();
        self.0.word(target).store(target.word_written(), Ordering::Relaxed);
        state.unfix_exclusive();
        target.word_written()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_count_in_and_out_and_leave_the_version() {
        let page = PageState(AtomicU64::new(with_state(7, MARKED)));
        page.fix_shared();
        page.fix_shared();
        assert_eq!(page.0.load(Ordering::Relaxed), with_state(7, 2));
        page.unfix_shared();
        page.unfix_shared();
        assert_eq!(page.0.load(Ordering::Relaxed), with_state(7, UNLOCKED));
    }

    #[test]
    fn a_writer_leaves_the_next_version() {
        let page = PageState(AtomicU64::new(version(u64::MAX)));
        page.fix_exclusive();
        assert_eq!(state(page.0.load(Ordering::Relaxed)), LOCKED);
        page.unfix_exclusive();
        assert_eq!(page.0.load(Ordering::Relaxed), 0, "the version wraps without touching the state");
    }

    #[test]
    fn an_optimistic_reader_clears_the_mark_and_repeats_after_a_writer() {
        let page = PageState(AtomicU64::new(with_state(1, MARKED)));
        let tries = std::cell::Cell::new(0);
        page.optimistic(|| {
            if tries.replace(tries.get() + 1) == 0 {
                page.fix_exclusive();
                page.unfix_exclusive();
            }
        });
        assert_eq!(tries.get(), 2);
        assert_eq!(page.0.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_reader_does_not_disturb_an_optimistic_one() {
        let page = PageState(AtomicU64::new(1));
        let tries = std::cell::Cell::new(0);
        page.optimistic(|| {
            tries.set(tries.get() + 1);
            page.fix_shared();
        });
        assert_eq!(tries.get(), 1);
    }
}
