//! Misses: loads of random words of data that is larger than memory.
//!
//! | side | a load |
//! |---|---|
//! | O_DIRECT pread | a read of the word's page past the page cache: the device, and nothing kept in memory |
//! | vmcache's scheme | an optimistic read; the thread that finds a page missing reads it into its place |
//! | Octavo | `load` |
//!
//! All sides load the same random series, which changes from turn to turn, and each word is checked. A side
//! that keeps pages in memory keeps `memory_bytes` of them, and is filled before it is measured. So the share
//! of its loads that are hits is the share of the data that fits in memory. The kernel's swap is not a side
//! here: the lab measures it, since only the lab can limit a control group
//! (`octavo-lab swap-r-rand --against kernel`).

mod file;
mod octavo;
mod vmcache;

use std::hint::black_box;
use std::path::PathBuf;

use octavo_measure::random::{self, Random};
use octavo_measure::workers::{self, Plan, Work};

pub use file::DataFile;

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
const PAGE_WORDS: usize = PAGE_BYTES / 8;
/// Loads between two reads of the clock.
const BATCH: u64 = 32;
/// Threads that fill the memory.
const FILLERS: u64 = 64;
/// The turn number for the random series of the fillers. No measured turn has this number.
const FILLING: u64 = u32::MAX as u64;

/// The data that the sides read.
#[derive(Clone, Debug)]
pub struct DataSet {
    /// Pages of data.
    pub pages: u64,
    /// Bytes of the data that a side may keep in memory.
    pub memory_bytes: u64,
    /// The folder for files.
    pub folder: PathBuf,
}

/// A side that returns words of its data.
pub trait Loads: Sync {
    /// Whether pages stay in memory.
    const KEEPS_PAGES: bool = true;

    /// The scratch memory of a thread.
    type Scratch;

    /// Makes the scratch memory of one thread.
    fn scratch(&self) -> Self::Scratch;

    /// Returns the word at `index` of `page`.
    fn load(&self, scratch: &mut Self::Scratch, page: u64, index: usize) -> u64;
}

/// A side that can be measured.
pub trait MissBench {
    /// Returns the loads a second by `threads` threads, or `None` if a word was wrong. In the same turn, all
    /// sides load the same words.
    fn measure(&self, data: &DataSet, threads: usize, plan: Plan, turn: u64) -> Option<f64>;

    /// Fills the side's memory with random pages, as if it had run for long. Returns `false` if a word was
    /// wrong.
    fn fill(&self, data: &DataSet) -> bool;
}

impl<L: Loads> MissBench for L {
    fn measure(&self, data: &DataSet, threads: usize, plan: Plan, turn: u64) -> Option<f64> {
        // Pages loaded in one turn are in memory in the next. So each turn loads other pages: the same pages
        // would all be hits.
        let ns = workers::batches(threads, plan, |worker| {
            LoadSeries::new(self, data, turn << 16 | worker as u64)
        })?;
        Some(threads as f64 * 1e9 / ns)
    }

    fn fill(&self, data: &DataSet) -> bool {
        if !L::KEEPS_PAGES {
            return true;
        }
        // The fillers load more pages than fit, because some pages are loaded twice.
        let loads = 2 * data.memory_bytes / PAGE_BYTES as u64 / FILLERS;
        let fill = |worker| {
            let mut series = LoadSeries::new(self, data, FILLING << 16 | worker);
            (0..loads.div_ceil(BATCH)).all(|_| series.batch().is_some())
        };
        std::thread::scope(|scope| {
            let fillers: Vec<_> = (0..FILLERS).map(|worker| scope.spawn(move || fill(worker))).collect();
            fillers.into_iter().all(|filler| filler.join().expect("a worker does not panic"))
        })
    }
}

struct LoadSeries<'a, L: Loads> {
    side: &'a L,
    scratch: L::Scratch,
    random: Random,
    pages: usize,
}

impl<'a, L: Loads> LoadSeries<'a, L> {
    fn new(side: &'a L, data: &DataSet, stream: u64) -> Self {
        let (scratch, random) = (side.scratch(), Random::new(stream));
        Self { side, scratch, random, pages: data.pages as usize }
    }
}

impl<L: Loads> Work for LoadSeries<'_, L> {
    fn batch(&mut self) -> Option<u64> {
        for _ in 0..BATCH {
            let page = self.random.below(self.pages) as u64;
            let index = self.random.below(PAGE_WORDS);
            let word = black_box(self.side.load(&mut self.scratch, page, index));
            if word != word_of(page, index) {
                return None;
            }
        }
        Some(BATCH)
    }
}

/// Returns the word that the data holds at a place. It follows from the place, and the words do not compress.
pub fn word_of(page: u64, index: usize) -> u64 {
    random::word(page << 9 | index as u64)
}

/// Fills the buffer with pages from `page` on.
fn fill(buffer: &mut [u8], page: u64) {
    for (number, bytes) in buffer.chunks_exact_mut(PAGE_BYTES).enumerate() {
        for (index, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = word_of(page + number as u64, index).to_le_bytes();
        }
    }
}

/// A side's name, and the side, or the reason why it is missing.
pub type Named = (&'static str, Result<Box<dyn MissBench>, String>);

/// Makes every side for which `wants` returns true. Each side writes its own copy of the data.
pub fn sides(data: &DataSet, wants: impl Fn(&str) -> bool) -> Vec<Named> {
    let boxed = |bench: Result<Box<dyn MissBench>, std::io::Error>| bench.map_err(|error| error.to_string());
    let names = ["O_DIRECT pread", "vmcache's scheme", "Octavo"];
    let mut sides = Vec::new();
    for name in names.into_iter().filter(|name| wants(name)) {
        let side = match name {
            "Octavo" => octavo::SpacePages::new(data).map(|side| Box::new(side) as Box<dyn MissBench>),
            "vmcache's scheme" => boxed(vmcache::BufferPool::new(data).map(|side| Box::new(side) as _)),
            _ => boxed(DataFile::new(data).map(|side| Box::new(side) as _)),
        };
        sides.push((name, side));
    }
    sides
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_side_answers_every_word_with_a_quarter_of_the_data_in_memory() {
        let folder = std::env::temp_dir();
        let data = DataSet { pages: 16 << 10, memory_bytes: 16 << 20, folder };
        let sides = sides(&data, |_| true);
        assert_eq!(sides.len(), 3);
        for (name, side) in sides {
            let side = side.unwrap_or_else(|error| panic!("{name}: {error}"));
            // A missing rate would mean a wrong word.
            assert!(side.fill(&data), "{name}");
            for threads in [1, 4] {
                let rate = side.measure(&data, threads, Plan::of_millis(60), threads as u64);
                assert!(rate.is_some_and(|rate| rate > 0.0), "{name} by {threads}");
            }
        }
    }
}
