//! Hits: nanoseconds to read or hold a page that is in memory.
//!
//! Key types: [`PageHits`], what a side has to offer; [`Working`], which pages are hit in which order; [`Bench`], a side
//! over a working set.
//!
//! Each hit reads (or writes) one 8-byte word of one page, at an offset that varies from page to page, in a random order
//! that is worked out beforehand and is the same for all sides. Three kinds are told apart, and each side is set against
//! Octavo's operation of its kind:
//!
//! | kind | the page may be evicted meanwhile | Octavo |
//! |---|---|---|
//! | read | yes: the reader finds out and tries again | `load` |
//! | hold | no, until it is let go | `pin` |
//! | write | no, and nobody else reads | `store` |
//!
//! Hits that do not depend on each other overlap in the processor, as a program's would: the figure is a throughput, told as
//! nanoseconds, and may be less than the time of a single hit.
//!
//! Every page is in memory before the clock starts, and each side has been seen to return the right word of every page.
//! Misses, faults and eviction are not measured. The caches keep pages as `Arc<Page>` and share one set of them, with room
//! for twice as many; what they do to keep their eviction order is part of their hit, as it is in use.

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

use crate::compare::Side;
use crate::options::Options;
use crate::worker::{self, Plan, Work};

pub use working::{Page, Place, WORDS, Working};

/// Operations of a batch.
const BATCH: usize = 1024;

/// Octavo's operations by name, for the others to be set against.
const OCTAVO_LOAD: &str = "Octavo load";
const OCTAVO_PIN: &str = "Octavo pin + unpin";
const OCTAVO_STORE: &str = "Octavo store";

/// A side that keeps pages in memory.
pub trait PageHits: Sync {
    /// Hits the place's page. Answers the word there; a side that writes, writes [`Place::word_written`] and answers it.
    fn hit(&self, place: Place) -> u64;
}

/// A side over a working set.
pub trait Bench {
    /// Mean nanoseconds for a hit, of `threads` threads.
    fn measure(&self, working: &Working, threads: usize, plan: Plan) -> Option<f64>;

    /// What is wrong with what it answers, if anything.
    fn check(&self, working: &Working) -> Result<(), String>;
}

impl<P: PageHits> Bench for P {
    fn measure(&self, working: &Working, threads: usize, plan: Plan) -> Option<f64> {
        worker::run(threads, plan, |worker| Hits {
            side: self,
            order: working.order(),
            // Far apart, so that two workers do not follow in each other's cached footsteps.
            next: working.order().len() / threads * worker,
        })
    }

    fn check(&self, working: &Working) -> Result<(), String> {
        for &place in working.order() {
            let found = self.hit(place);
            if found != place.word_written() {
                return Err(format!("answers {found:#x} at {place:?}"));
            }
        }
        Ok(())
    }
}

struct Hits<'a, P> {
    side: &'a P,
    order: &'a [Place],
    next: usize,
}

impl<P: PageHits> Work for Hits<'_, P> {
    fn batch(&mut self) -> Option<u64> {
        let places = &self.order[self.next..self.next + BATCH];
        for &place in places {
            black_box(self.side.hit(place));
        }
        self.next = (self.next + BATCH) % self.order.len();
        Some(BATCH as u64)
    }
}

/// Every side that `options` asks for, holding all pages of `working`, in table order. A side that answers wrongly is
/// reported in place of being measured.
pub fn sides(options: &Options, working: &Working) -> Vec<Side<dyn Bench>> {
    let pages: Vec<Arc<Page>> = (0..working.pages()).map(Page::filled).map(Arc::new).collect();
    let mut sides: Vec<Side<dyn Bench>> = octavo::sides(working).into();
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
) -> Side<dyn Bench> {
    let version = crate::versions::of_crate(crate_name).map(|version| format!("{crate_name} {version}"));
    Side { name, version, against, subject: peer.map(|peer| Box::new(peer) as Box<dyn Bench>) }
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
