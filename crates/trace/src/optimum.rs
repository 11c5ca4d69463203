//! Belady's optimum: evict the page whose next use is the farthest. No policy that loads each missing page
//! has fewer misses with as many frames (L. A. Belady, "A study of replacement algorithms for a
//! virtual-storage computer", 1966).
//!
//! Among pages that are never used again, it evicts clean ones first. This order saves writes and costs no
//! misses. The policy is optimal only in its misses: another policy may write less.
//!
//! Cost: O(n log n) time and O(n) memory, for n steps of the trace.

use std::collections::BinaryHeap;

use crate::Trace;

/// The next use of a page that is never used again.
const NEVER: usize = usize::MAX;

/// The result of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayOutcome {
    /// Accesses that found their page in memory.
    pub hits: u64,
    /// Accesses that did not find their page in memory.
    pub misses: u64,
    /// Evicted pages that had been written since they were loaded.
    pub write_backs: u64,
}

/// A page in memory.
#[derive(Clone, Copy, Debug)]
struct Resident {
    next_use: usize,
    is_dirty: bool,
}

/// A page that may be evicted, with what was known at its last use. The greatest candidate is evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    next_use: usize,
    is_clean: bool,
    page: u32,
}

/// Replays a trace with `frames` frames, choosing by the next uses, which a real policy cannot know.
///
/// # Panics
/// If `frames` is 0.
pub fn optimum(trace: &Trace, frames: u64) -> ReplayOutcome {
    assert!(frames > 0, "a page that is used has a frame");
    let next_uses = next_uses(trace);
    let mut residents: Vec<Option<Resident>> = vec![None; trace.pages() as usize];
    let (mut resident_pages, mut candidates) = (0, BinaryHeap::new());
    let mut outcome = ReplayOutcome::default();
    for (step, next_use) in trace.steps().iter().zip(next_uses) {
        let page = step.page() as usize;
        let was_dirty = match residents[page] {
            Some(resident) => resident.is_dirty,
            None => {
                outcome.misses += 1;
                if resident_pages == frames {
                    outcome.write_backs += u64::from(evict(&mut residents, &mut candidates));
                    resident_pages -= 1;
                }
                resident_pages += 1;
                false
            }
        };
        let is_dirty = was_dirty || step.is_write();
        residents[page] = Some(Resident { next_use, is_dirty });
        candidates.push(Candidate { next_use, is_clean: !is_dirty, page: step.page() });
    }
    outcome.hits = trace.accesses() - outcome.misses;
    outcome
}

/// Evicts the page whose next use is the farthest, and returns whether it is dirty.
fn evict(residents: &mut [Option<Resident>], candidates: &mut BinaryHeap<Candidate>) -> bool {
    loop {
        let Candidate { next_use, page, .. } = candidates.pop().expect("every page in memory was pushed");
        let resident = &mut residents[page as usize];
        // If its page was used since then, the candidate is stale: the later use has pushed a new candidate.
        if let Some(Resident { is_dirty, .. }) = resident.take_if(|resident| resident.next_use == next_use) {
            return is_dirty;
        }
    }
}

/// Returns, for each step, the next step that uses its page.
fn next_uses(trace: &Trace) -> Vec<usize> {
    let mut later = vec![NEVER; trace.pages() as usize];
    let mut next_uses = vec![NEVER; trace.steps().len()];
    for (at, step) in trace.steps().iter().enumerate().rev() {
        next_uses[at] = std::mem::replace(&mut later[step.page() as usize], at);
    }
    next_uses
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;
    use crate::{Numbering, published};

    fn trace(accesses: &[(u32, bool)]) -> Trace {
        let mut numbering = Numbering::<u32>::default();
        accesses.iter().for_each(|(page, is_write)| numbering.add(page, *is_write, 1).unwrap());
        numbering.finish()
    }

    /// Follows the same rule, but finds each next use by searching the rest of the trace.
    fn slow_optimum(trace: &Trace, frames: usize) -> ReplayOutcome {
        let steps = trace.steps();
        let (mut resident, mut outcome) = (BTreeMap::<u32, bool>::new(), ReplayOutcome::default());
        for (at, step) in steps.iter().enumerate() {
            outcome.hits += u64::from(step.times());
            if !resident.contains_key(&step.page()) {
                outcome.misses += 1;
                outcome.hits -= 1;
                if resident.len() == frames {
                    let next_use = |page: u32| steps[at..].iter().position(|later| later.page() == page);
                    let farthest =
                        |(page, dirty): &(u32, bool)| (next_use(*page).unwrap_or(NEVER), !dirty, *page);
                    let (page, dirty) =
                        resident.iter().map(|(page, dirty)| (*page, *dirty)).max_by_key(farthest).unwrap();
                    resident.remove(&page);
                    outcome.write_backs += u64::from(dirty);
                }
            }
            *resident.entry(step.page()).or_default() |= step.is_write();
        }
        outcome
    }

    /// Returns the fewest misses among all ways to choose the evicted pages.
    fn fewest_misses(trace: &Trace, frames: usize) -> u64 {
        let mut ways = BTreeMap::from([(BTreeSet::<u32>::new(), 0)]);
        for step in trace.steps() {
            let mut next = BTreeMap::new();
            let mut reach = |resident: BTreeSet<u32>, misses: u64| {
                let best = next.entry(resident).or_insert(misses);
                *best = misses.min(*best);
            };
            for (mut resident, misses) in ways {
                if resident.contains(&step.page()) {
                    reach(resident, misses);
                } else if resident.len() < frames {
                    resident.insert(step.page());
                    reach(resident, misses + 1);
                } else {
                    for page in &resident {
                        let mut without = resident.clone();
                        without.remove(page);
                        without.insert(step.page());
                        reach(without, misses + 1);
                    }
                }
            }
            ways = next;
        }
        ways.into_values().min().unwrap_or(0)
    }

    proptest! {
        #[test]
        fn nothing_has_fewer_misses(accesses in prop::collection::vec((0..7_u32, any::<bool>()), 0..40), frames in 1..5_usize) {
            let trace = trace(&accesses);
            prop_assert_eq!(optimum(&trace, frames as u64).misses, fewest_misses(&trace, frames));
        }

        #[test]
        fn the_quick_way_is_the_slow_one(accesses in prop::collection::vec((0..40_u32, any::<bool>()), 0..300), frames in 1..30_usize) {
            let trace = trace(&accesses);
            prop_assert_eq!(optimum(&trace, frames as u64), slow_optimum(&trace, frames));
        }

        #[test]
        fn no_policy_beats_it(pages in prop::collection::vec(0..60_u32, 0..600), frames in 1..40_u32) {
            let misses = optimum(&Trace::of_reads(&pages).unwrap(), frames.into()).misses;
            for policy in [published::lru_misses, published::sieve_misses, published::s3_fifo_misses] {
                prop_assert!(policy(&pages, frames) >= misses);
            }
        }

        #[test]
        fn more_frames_do_no_harm(accesses in prop::collection::vec((0..40_u32, any::<bool>()), 0..300), frames in 1..30_u64) {
            let trace = trace(&accesses);
            prop_assert!(optimum(&trace, frames + 1).misses <= optimum(&trace, frames).misses);
        }
    }

    #[test]
    fn the_textbook_example_has_nine_misses() {
        let pages = [7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1];
        assert_eq!(
            optimum(&Trace::of_reads(&pages).unwrap(), 3),
            ReplayOutcome { hits: 11, misses: 9, write_backs: 0 }
        );
    }

    #[test]
    fn a_page_is_written_back_once_for_each_stay_in_which_it_was_written() {
        let (read, write) = (false, true);
        let accesses = [(1, write), (1, write), (2, read), (1, read), (2, write), (1, read)];
        assert_eq!(optimum(&trace(&accesses), 1), ReplayOutcome { hits: 1, misses: 5, write_backs: 2 });
        assert_eq!(optimum(&trace(&accesses), 2), ReplayOutcome { hits: 4, misses: 2, write_backs: 0 });
    }

    #[test]
    fn of_pages_that_are_never_used_again_clean_ones_go_first() {
        let (read, write) = (false, true);
        let accesses = [(1, read), (2, write), (3, read), (4, read)];
        assert_eq!(optimum(&trace(&accesses), 2).write_backs, 0);
    }
}
