//! How long accesses wait while pages go out as fast as the pager can send them: refaults and new pages, in a
//! space of Octavo and in plain memory that the kernel swaps.
//!
//! One thread writes fresh pages in order, as fast as it can or at a given pace. When it has written several
//! times the memory, it starts again with new pages. So swap-out never pauses, and no page that this thread
//! wrote is read again. A second thread alternates: it loads a word of a page that is out, chosen at random
//! among old ones, and stores a word to a page that was never used. The check that a page is out is not
//! timed.

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use memmap2::{Advice, MmapMut};
use octavo::{Protection, RegionOptions, Space};
use octavo_measure::random::{self, Random};

const PAGE: usize = 4096;
/// The old pages, and the pages of one area of the writer, in multiples of the budget.
const COLD_BUDGETS: usize = 1;
const STREAM_BUDGETS: usize = 4;
/// New pages in an area. Then a new area is made.
const NEW_PAGES: usize = 4096;
/// Pages that the writer writes between checks of its pace.
const PAGES_AT_ONCE: u64 = 64;

type LatencyResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// A page of incompressible bytes.
type RandomPage = [u8; PAGE];

/// Memory in which each thread maps its pages. Dropping [`ThreadPages`] unmaps them.
pub trait MemoryUnderTest: Sync {
    /// The pages of one thread.
    type Pages<'m>: ThreadPages
    where
        Self: 'm;

    /// Maps `pages` pages.
    ///
    /// # Errors
    /// The memory's own errors.
    fn map(&self, pages: usize) -> LatencyResult<Self::Pages<'_>>;
}

/// Pages of one thread.
pub trait ThreadPages {
    /// Writes a whole page.
    ///
    /// # Errors
    /// The memory's own errors.
    fn write(&mut self, page: usize, bytes: &RandomPage) -> LatencyResult<()>;
    /// Loads the first word of a page.
    ///
    /// # Errors
    /// The memory's own errors.
    fn load(&self, page: usize) -> LatencyResult<u64>;
    /// Stores the first word of a page.
    ///
    /// # Errors
    /// The memory's own errors.
    fn store(&mut self, page: usize, word: u64) -> LatencyResult<()>;
    /// Returns whether a page is in swap.
    ///
    /// # Errors
    /// The memory's own errors.
    fn is_out(&self, page: usize) -> LatencyResult<bool>;
}

/// A region of a space.
#[derive(Debug)]
pub struct SpaceRegion<'s> {
    space: &'s Space,
    at: u64,
    pages: usize,
}

impl SpaceRegion<'_> {
    fn address(&self, page: usize) -> u64 {
        self.at + (page * PAGE) as u64
    }
}

impl Drop for SpaceRegion<'_> {
    fn drop(&mut self) {
        // An error does no harm: the region is also unmapped when the space ends.
        let _ = self.space.unmap(self.at, (self.pages * PAGE) as u64);
    }
}

impl MemoryUnderTest for Space {
    type Pages<'m> = SpaceRegion<'m>;

    fn map(&self, pages: usize) -> LatencyResult<SpaceRegion<'_>> {
        let options = RegionOptions::new().protection(Protection::READ_WRITE);
        Ok(SpaceRegion { space: self, at: Space::map(self, (pages * PAGE) as u64, options)?, pages })
    }
}

impl ThreadPages for SpaceRegion<'_> {
    fn write(&mut self, page: usize, bytes: &RandomPage) -> LatencyResult<()> {
        Ok(self.space.write(self.address(page), bytes)?)
    }

    fn load(&self, page: usize) -> LatencyResult<u64> {
        Ok(self.space.load(self.address(page))?)
    }

    fn store(&mut self, page: usize, word: u64) -> LatencyResult<()> {
        Ok(self.space.store(self.address(page), word)?)
    }

    fn is_out(&self, page: usize) -> LatencyResult<bool> {
        Ok(self.space.range_stats(self.address(page), PAGE as u64)?.swapped_bytes > 0)
    }
}

/// Plain memory of the process, with pages of 4 KiB. The kernel swaps it.
#[derive(Debug)]
pub struct PlainPages {
    pagemap: File,
}

impl PlainPages {
    /// Opens the kernel's map of where pages are.
    ///
    /// # Errors
    /// Fails if the kernel does.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { pagemap: File::open("/proc/self/pagemap")? })
    }
}

/// A mapping without a file.
#[derive(Debug)]
pub struct AnonymousMapping<'m> {
    memory: &'m PlainPages,
    bytes: MmapMut,
}

impl MemoryUnderTest for PlainPages {
    type Pages<'m> = AnonymousMapping<'m>;

    fn map(&self, pages: usize) -> LatencyResult<AnonymousMapping<'_>> {
        let bytes = MmapMut::map_anon(pages * PAGE)?;
        bytes.advise(Advice::NoHugePage)?;
        Ok(AnonymousMapping { memory: self, bytes })
    }
}

impl ThreadPages for AnonymousMapping<'_> {
    fn write(&mut self, page: usize, bytes: &RandomPage) -> LatencyResult<()> {
        self.bytes[page * PAGE..][..PAGE].copy_from_slice(bytes);
        Ok(())
    }

    fn load(&self, page: usize) -> LatencyResult<u64> {
        let word = self.bytes[page * PAGE..][..8].first_chunk().expect("a page has a word");
        Ok(u64::from_ne_bytes(*std::hint::black_box(word)))
    }

    fn store(&mut self, page: usize, word: u64) -> LatencyResult<()> {
        self.bytes[page * PAGE..][..8].copy_from_slice(std::hint::black_box(&word.to_ne_bytes()));
        Ok(())
    }

    fn is_out(&self, page: usize) -> LatencyResult<bool> {
        const SWAPPED: u64 = 1 << 62;
        let mut entry = [0; 8];
        let number = (self.bytes.as_ptr() as usize / PAGE + page) as u64;
        self.memory.pagemap.read_exact_at(&mut entry, number * 8)?;
        Ok(u64::from_ne_bytes(entry) & SWAPPED != 0)
    }
}

/// Waits of one run, in nanoseconds.
#[derive(Debug)]
pub struct WaitTimes {
    /// Loads of pages that were out.
    pub refaults: Histogram<u64>,
    /// First stores to pages.
    pub new_pages: Histogram<u64>,
    /// Bytes a second written by the writer meanwhile.
    pub written_per_s: f64,
}

/// The work of a run.
#[derive(Clone, Copy, Debug)]
pub struct LatencyWork {
    /// The memory, in bytes.
    pub budget_bytes: usize,
    /// How long waits are timed.
    pub length: Duration,
    /// The most bytes a second that the writer writes.
    pub pace: Option<f64>,
}

/// Runs both threads.
///
/// # Errors
/// Fails if the memory does, or if a word is not the one that was stored.
pub fn run<M: MemoryUnderTest>(memory: &M, work: LatencyWork) -> LatencyResult<WaitTimes> {
    let budget_pages = work.budget_bytes / PAGE;
    let mut cold = memory.map(COLD_BUDGETS * budget_pages)?;
    let mut bytes = random_page();
    for page in 0..COLD_BUDGETS * budget_pages {
        number(&mut bytes, page);
        cold.write(page, &bytes)?;
    }
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let pages = STREAM_BUDGETS * budget_pages;
    thread::scope(|scope| {
        let writer = scope.spawn(|| write_on(memory, pages, work.pace, &stop, &written));
        let is_writing = || !writer.is_finished();
        let waits = probe(memory, &cold, COLD_BUDGETS * budget_pages, work.length, &written, is_writing);
        stop.store(true, Ordering::Relaxed);
        writer.join().expect("the writer does not panic")?;
        waits
    })
}

fn write_on<M: MemoryUnderTest>(
    memory: &M,
    pages: usize,
    pace: Option<f64>,
    stop: &AtomicBool,
    written: &AtomicU64,
) -> LatencyResult<()> {
    let (began, mut bytes) = (Instant::now(), random_page());
    loop {
        let mut stream = memory.map(pages)?;
        for page in 0..pages {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            number(&mut bytes, page);
            stream.write(page, &bytes)?;
            let all = written.fetch_add(1, Ordering::Relaxed);
            if let Some(pace) = pace.filter(|_| all.is_multiple_of(PAGES_AT_ONCE)) {
                let due = began + Duration::from_secs_f64((all * PAGE as u64) as f64 / pace);
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        }
    }
}

fn probe<M: MemoryUnderTest>(
    memory: &M,
    cold: &M::Pages<'_>,
    cold_pages: usize,
    length: Duration,
    written: &AtomicU64,
    is_writing: impl Fn() -> bool,
) -> LatencyResult<WaitTimes> {
    let histogram = || Histogram::new(3).expect("three digits are allowed");
    let (mut refaults, mut new_pages) = (histogram(), histogram());
    // Nothing goes out until the writer has filled the memory.
    while written.load(Ordering::Relaxed) < cold_pages as u64 && is_writing() {
        thread::sleep(Duration::from_millis(1));
    }
    let (began, written_before) = (Instant::now(), written.load(Ordering::Relaxed));
    let mut random = Random::new(0);
    'all: loop {
        let mut fresh = memory.map(NEW_PAGES)?;
        for new in 0..NEW_PAGES {
            if began.elapsed() >= length || !is_writing() {
                break 'all;
            }
            let page = random.below(cold_pages);
            if cold.is_out(page)? {
                let at = Instant::now();
                let word = cold.load(page)?;
                refaults.record(at.elapsed().as_nanos() as u64)?;
                if word != page as u64 {
                    return Err(format!("page {page} has the word {word}").into());
                }
            }
            let word = random.next_u64();
            let at = Instant::now();
            fresh.store(new, word)?;
            new_pages.record(at.elapsed().as_nanos() as u64)?;
        }
    }
    let pages = written.load(Ordering::Relaxed) - written_before;
    let written_per_s = (pages * PAGE as u64) as f64 / began.elapsed().as_secs_f64();
    Ok(WaitTimes { refaults, new_pages, written_per_s })
}

fn random_page() -> RandomPage {
    let mut bytes = [0; PAGE];
    for (number, word) in (0..).zip(bytes.chunks_exact_mut(8)) {
        word.copy_from_slice(&random::word(number).to_ne_bytes());
    }
    bytes
}

fn number(bytes: &mut RandomPage, page: usize) {
    bytes[..8].copy_from_slice(&(page as u64).to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_find_what_was_written_and_count_their_waits() {
        let budget_bytes = 16 << 20;
        let work = LatencyWork { budget_bytes, length: Duration::from_millis(300), pace: None };
        let manager = octavo::Manager::builder().budget_bytes(budget_bytes as u64).build().unwrap();
        let waits = run(&manager.space().unwrap(), work).unwrap();
        assert!(!waits.refaults.is_empty() && !waits.new_pages.is_empty(), "{waits:?}");
        // The pages need not be out here.
        let waits = run(&PlainPages::new().unwrap(), LatencyWork { pace: Some(1e8), ..work }).unwrap();
        assert!(!waits.new_pages.is_empty() && waits.written_per_s > 0.0, "{waits:?}");
    }
}
