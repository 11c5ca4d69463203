//! A whole trace in memory. Its pages are numbered in the order of their first uses, whatever their names in
//! the file.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

use crate::TraceError;

/// The most accesses: more than any recording has, and few enough that a damaged file cannot exhaust memory.
const MOST_ACCESSES: u64 = 1 << 40;

/// The most pages that a step can number.
const MOST_NUMBERS: u64 = 1 << 31;

/// Accesses to one page, with none to another page in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The page's number, shifted left by one; the lowest bit says whether the accesses write.
    packed: u32,
    times: u32,
}

impl Step {
    /// The page's number.
    pub fn page(self) -> u32 {
        self.packed >> 1
    }

    /// Whether the accesses write.
    pub fn is_write(self) -> bool {
        self.packed & 1 != 0
    }

    /// The number of accesses.
    pub fn times(self) -> u32 {
        self.times
    }
}

/// A trace in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    steps: Vec<Step>,
    pages: u32,
    accesses: u64,
    writes: u64,
}

impl Trace {
    /// Makes a trace that reads these pages in order.
    ///
    /// # Errors
    /// Fails if there are too many.
    pub fn of_reads(pages: &[u32]) -> Result<Self, TraceError> {
        let mut numbering = Numbering::default();
        pages.iter().try_for_each(|page| numbering.add(page, false, 1))?;
        Ok(numbering.finish())
    }

    /// The steps, in order. At its first use, a page's number is the number of pages used before it.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The number of pages.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// The number of accesses.
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// The number of accesses that write.
    pub fn writes(&self) -> u64 {
        self.writes
    }
}

/// A trace that is being made. It gives each page a number for its name in the file.
#[derive(Debug)]
pub struct Numbering<K> {
    numbers: HashMap<K, u32>,
    trace: Trace,
}

impl<K> Default for Numbering<K> {
    fn default() -> Self {
        Self { numbers: HashMap::new(), trace: Trace::default() }
    }
}

impl<K: Eq + Hash> Numbering<K> {
    /// Adds accesses to the page of this name.
    ///
    /// # Errors
    /// Fails if there are too many pages or accesses.
    pub fn add<Q>(&mut self, name: &Q, is_write: bool, times: u64) -> Result<(), TraceError>
    where
        K: Borrow<Q>,
        Q: ?Sized + Eq + Hash + ToOwned<Owned = K>,
    {
        if times > MOST_ACCESSES - self.trace.accesses {
            return Err(TraceError::TooManyAccesses);
        }
        let page = match self.numbers.get(name) {
            Some(page) => *page,
            None if u64::from(self.trace.pages) == MOST_NUMBERS => return Err(TraceError::TooManyPages),
            None => {
                let page = self.trace.pages;
                self.numbers.insert(name.to_owned(), page);
                self.trace.pages += 1;
                page
            }
        };
        let trace = &mut self.trace;
        trace.accesses += times;
        trace.writes += if is_write { times } else { 0 };
        let packed = page << 1 | u32::from(is_write);
        let mut left = times;
        if let Some(last) = trace.steps.last_mut().filter(|last| last.packed == packed) {
            let more = left.min((u32::MAX - last.times).into());
            last.times += more as u32;
            left -= more;
        }
        while left > 0 {
            let times = left.min(u32::MAX.into());
            trace.steps.push(Step { packed, times: times as u32 });
            left -= times;
        }
        Ok(())
    }

    /// Returns the trace.
    pub fn finish(self) -> Trace {
        self.trace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_numbered_by_their_first_uses_and_neighbours_join() {
        let trace = Trace::of_reads(&[7, 7, 3, 7, 9, 9, 9]).unwrap();
        let steps: Vec<_> = trace.steps().iter().map(|step| (step.page(), step.times())).collect();
        assert_eq!(steps, [(0, 2), (1, 1), (0, 1), (2, 3)]);
        assert_eq!((trace.pages(), trace.accesses(), trace.writes()), (3, 7, 0));
    }

    #[test]
    fn reads_and_writes_do_not_join_and_counts_may_be_large() {
        let mut numbering = Numbering::<u64>::default();
        for (is_write, times) in [(false, 1), (true, 1 << 33), (true, 5)] {
            numbering.add(&1, is_write, times).unwrap();
        }
        let trace = numbering.finish();
        assert_eq!((trace.accesses(), trace.writes()), ((1 << 33) + 6, (1 << 33) + 5));
        assert_eq!(trace.steps().iter().map(|step| u64::from(step.times())).sum::<u64>(), trace.accesses());
        assert_eq!(trace.steps().len(), 4);
    }

    #[test]
    fn what_a_damaged_file_says_takes_no_memory() {
        let mut numbering = Numbering::<u64>::default();
        numbering.add(&1, false, 7).unwrap();
        for times in [MOST_ACCESSES - 6, 1 << 62, u64::MAX] {
            assert!(matches!(numbering.add(&1, false, times), Err(TraceError::TooManyAccesses)), "{times}");
        }
        assert_eq!(numbering.finish().accesses(), 7);
    }
}
