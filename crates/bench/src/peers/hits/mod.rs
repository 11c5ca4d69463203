//! Hits: nanoseconds to read or hold a page that is in memory.
//!
//! Key types: [`PageHits`], the operation of a side; [`Working`], the pages that are hit, and their order;
//! [`HitBench`], a side over a working set.
//!
//! Each hit reads (or writes) one 8-byte word of one page, at an offset that varies from page to page. The
//! random order is computed beforehand and is the same for all sides. There are three kinds of hits, and each
//! side is compared with Octavo's operation of its kind:
//!
//! | kind | may the page be evicted meanwhile? | Octavo |
//! |---|---|---|
//! | read | yes: the reader finds out and tries again | `load` |
//! | hold | no, until it is released | `pin` |
//! | write | no, and nobody else reads | `store` |
//!
//! Hits that do not depend on each other overlap in the processor, as a program's would. So the figure is a
//! throughput, given as nanoseconds per hit. It may be less than the time of a single hit.
//!
//! Every page is in memory before the clock starts, and a check has seen each side return the right word of
//! every page. The bench does not measure misses, faults or eviction. The caches keep pages as `Arc<Page>`
//! and share one set of them, with room for twice as many. A hit includes their work to keep an eviction
//! order, as it does in real use.

mod array;
mod foyer;
mod moka;
mod octavo;
mod papaya;
mod quick_cache;
mod vmcache;
mod working;

use std::hint::black_box;
use std::sync::Arc;

use octavo_measure::workers::{self, Plan, Work};

use crate::peers::compare::Side;
use crate::peers::options::Options;

pub use working::{CachedPage, HitTarget, WORDS, Working};

/// Operations of a batch.
const BATCH: usize = 1024;

/// The names of Octavo's operations, which the others are compared with.
const OCTAVO_LOAD: &str = "Octavo load";
const OCTAVO_PIN: &str = "Octavo pin + unpin";
const OCTAVO_STORE: &str = "Octavo store";

/// A side that keeps pages in memory.
pub trait PageHits: Sync {
    /// Hits the page of the target, and returns the word there. A side that writes, writes
    /// [`HitTarget::word_written`] and returns it.
    fn hit(&self, target: HitTarget) -> u64;
}

/// A side over a working set.
pub trait HitBench {
    /// Returns the mean nanoseconds for a hit, by `threads` threads.
    fn measure(&self, working: &Working, threads: usize, plan: Plan) -> Option<f64>;

    /// Reports a wrong answer of the side, if there is one.
    fn check(&self, working: &Working) -> Result<(), String>;
}

impl<P: PageHits> HitBench for P {
    fn measure(&self, working: &Working, threads: usize, plan: Plan) -> Option<f64> {
        workers::batches(threads, plan, |worker| Hits {
            side: self,
            order: working.order(),
            // Workers start far apart, so that no worker finds the pages that another has just cached.
            next: working.order().len() / threads * worker,
        })
    }

    fn check(&self, working: &Working) -> Result<(), String> {
        for &target in working.order() {
            let found = self.hit(target);
            if found != target.word_written() {
                return Err(format!("answers {found:#x} at {target:?}"));
            }
        }
        Ok(())
    }
}

struct Hits<'a, P> {
    side: &'a P,
    order: &'a [HitTarget],
    next: usize,
}

impl<P: PageHits> Work for Hits<'_, P> {
    fn batch(&mut self) -> Option<u64> {
        let targets = &self.order[self.next..self.next + BATCH];
        for &target in targets {
            black_box(self.side.hit(target));
        }
        self.next = (self.next + BATCH) % self.order.len();
        Some(BATCH as u64)
    }
}

/// Makes every side that `options` asks for, in table order, with all pages of `working`. A side that gives a
/// wrong answer is reported instead of measured.
pub fn sides(options: &Options, working: &Working) -> Vec<Side<dyn HitBench>> {
    let pages: Vec<Arc<CachedPage>> = (0..working.pages()).map(CachedPage::filled).map(Arc::new).collect();
    let mut sides: Vec<Side<dyn HitBench>> = octavo::sides(working).into();
    sides.extend(array::sides(working));
    sides.extend(vmcache::sides(working));
    sides.extend([papaya::side(&pages), quick_cache::side(&pages)]);
    sides.extend(foyer::sides(&pages));
    sides.push(moka::side(&pages));
    sides.retain(|side| options.wants(side.name));
    for side in &mut sides {
        let Ok(bench) = &side.subject else { continue };
        if let Err(wrong) = bench.check(working) {
            side.subject = Err(wrong);
        }
    }
    sides
}

fn side<P: PageHits + 'static>(
    name: &'static str,
    crate_name: &str,
    against: Option<&'static str>,
    peer: Result<P, String>,
) -> Side<dyn HitBench> {
    let version =
        crate::peers::versions::of_crate(crate_name).map(|version| format!("{crate_name} {version}"));
    Side { name, version, against, subject: peer.map(|peer| Box::new(peer) as Box<dyn HitBench>) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_side_answers_the_right_word_of_every_page() {
        let options = Options { rounds: 1, millis: 1, only: vec![], json: None };
        for working in [Working::random(1024), Working::hot(1024)] {
            for side in sides(&options, &working) {
                let wrong = side.subject.err().unwrap_or_default();
                assert!(!wrong.contains("answers"), "{}: {wrong}", side.name);
            }
        }
    }
}
