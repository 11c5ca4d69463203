//! The work of one thread in a phase, over any memory.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use octavo_measure::random::{Random, mix};
use serde::{Deserialize, Serialize};

use super::data::{PAGE_BYTES, PAGE_WORDS, PageWords};
use super::plan::{Length, Phase, Shuffle, TaskPattern, TaskPlan};
use crate::worker::{Mismatch, Toucher, WorkerFlags, now_ns};

/// Accesses between two checks of the clock and the watch.
const BATCH: u64 = 64;

/// Memory of one task, by the page.
pub trait PagedMemory {
    type Error;

    /// Writes the words of a page, in order.
    fn write_page(&self, page: u64, words: &PageWords<'_>) -> Result<(), Self::Error>;

    /// Reads the words of a page, in order.
    fn read_page(&self, page: u64, take: impl FnMut(usize, u64)) -> Result<(), Self::Error>;

    /// Loads one word.
    fn load(&self, page: u64, word: usize) -> Result<u64, Self::Error>;

    /// Sends the first `pages` pages out, as far as possible.
    fn push_out(&self, pages: u64) -> Result<(), Self::Error>;

    /// Says that a page will be needed soon.
    fn prefetch(&self, page: u64) -> Result<(), Self::Error>;
}

/// The outcome of a thread in a phase. Times are from CLOCK_MONOTONIC, so that processes can be compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseOutcome {
    /// Pages or loads.
    pub accesses: u64,
    /// Words that were stored or loaded.
    pub words: u64,
    pub start_ns: u64,
    pub end_ns: u64,
    pub mismatches: u64,
    pub first_mismatch: Option<Mismatch>,
}

/// Does the work of a phase.
pub fn work<M: PagedMemory>(
    memory: &M,
    plan: &TaskPlan,
    phase: Phase,
    toucher: Toucher,
    watch: WorkerFlags<'_>,
) -> Result<PhaseOutcome, M::Error> {
    let seed = plan.seed_of(toucher.task);
    let mut thread = WorkThread { memory, plan, seed, watch, outcome: PhaseOutcome::default() };
    thread.outcome.start_ns = now_ns();
    match phase {
        Phase::Write => {
            thread.write()?;
            if plan.pattern == TaskPattern::ReadSequential {
                // Push all pages out now: the next phase reads every page and writes none.
                memory.push_out(plan.pages())?;
            }
        }
        Phase::ReadBack => thread.read_back()?,
        Phase::Loads => thread.load_at_random(mix(seed ^ u64::from(toucher.thread)))?,
    }
    thread.outcome.end_ns = now_ns();
    Ok(thread.outcome)
}

struct WorkThread<'a, M> {
    memory: &'a M,
    plan: &'a TaskPlan,
    seed: u64,
    watch: WorkerFlags<'a>,
    outcome: PhaseOutcome,
}

impl<M: PagedMemory> WorkThread<'_, M> {
    fn write(&mut self) -> Result<(), M::Error> {
        let shuffle = Shuffle::new(self.plan.pages(), self.seed);
        for number in 0..self.plan.pages() {
            let page = self.plan.page_written(&shuffle, number);
            self.memory.write_page(page, &self.plan.data.page(self.seed, page))?;
            self.outcome.words += PAGE_WORDS as u64;
            if !self.go_on() {
                break;
            }
        }
        Ok(())
    }

    fn read_back(&mut self) -> Result<(), M::Error> {
        for page in 0..self.plan.pages() {
            match self.plan.verify {
                true => self.check_page(page)?,
                false => {
                    let mut sum = 0u64;
                    self.memory.read_page(page, |_, word| sum = sum.wrapping_add(word))?;
                    black_box(sum);
                }
            }
            self.outcome.words += PAGE_WORDS as u64;
            if !self.go_on() {
                break;
            }
        }
        Ok(())
    }

    fn check_page(&mut self, page: u64) -> Result<(), M::Error> {
        let expected = self.plan.data.page(self.seed, page);
        let mut wrong = None;
        let mut mismatches = 0;
        self.memory.read_page(page, |index, found| {
            let expected = expected.word(index);
            if found != expected {
                mismatches += 1;
                let offset = page * PAGE_BYTES as u64 + index as u64 * 8;
                wrong.get_or_insert(Mismatch { offset, expected, found });
            }
        })?;
        self.note(mismatches, wrong);
        Ok(())
    }

    fn load_at_random(&mut self, seed: u64) -> Result<(), M::Error> {
        let pages = self.plan.pages() as usize;
        // A page, and a word of it.
        let place = |random: &mut Random| (random.below(pages) as u64, random.below(PAGE_WORDS));
        let mut random = Random::new(seed);
        // The prefetches follow the series of the loads, `prefetch` places ahead.
        let mut ahead = random.clone();
        for _ in 0..self.plan.prefetch {
            self.memory.prefetch(place(&mut ahead).0)?;
        }
        let deadline_ns = match self.plan.length {
            Length::Loads(_) => u64::MAX,
            Length::Nanoseconds(ns) => now_ns().saturating_add(ns),
        };
        let limit = match self.plan.length {
            Length::Loads(loads) => loads,
            Length::Nanoseconds(_) => u64::MAX,
        };
        while self.outcome.accesses < limit {
            if self.plan.prefetch > 0 {
                self.memory.prefetch(place(&mut ahead).0)?;
            }
            let (page, index) = place(&mut random);
            let found = self.memory.load(page, index)?;
            self.outcome.words += 1;
            if self.plan.verify {
                let expected = self.plan.data.page(self.seed, page).word(index);
                let offset = page * PAGE_BYTES as u64 + index as u64 * 8;
                let wrong = (found != expected).then_some(Mismatch { offset, expected, found });
                self.note(u64::from(wrong.is_some()), wrong);
            }
            if !self.go_on() || now_ns() >= deadline_ns {
                break;
            }
        }
        Ok(())
    }

    fn note(&mut self, mismatches: u64, first: Option<Mismatch>) {
        self.outcome.mismatches += mismatches;
        if let Some(first) = first {
            self.outcome.first_mismatch.get_or_insert(first);
        }
    }

    /// Counts an access. Returns `false` if the rest of the work is not worth doing.
    #[inline]
    fn go_on(&mut self) -> bool {
        self.outcome.accesses += 1;
        if !self.outcome.accesses.is_multiple_of(BATCH) {
            return true;
        }
        // Both accesses are relaxed: they order nothing, and one batch more or less does no harm.
        if let Some(progress) = self.watch.progress {
            progress.fetch_add(BATCH, Ordering::Relaxed);
        }
        !self.watch.stop.load(Ordering::Relaxed)
    }
}

/// Makes a watch without a progress bar.
pub fn alone(stop: &AtomicBool) -> WorkerFlags<'_> {
    WorkerFlags { stop, progress: None::<&AtomicU64> }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::convert::Infallible;

    use super::super::data::Data;
    use super::super::plan::{TaskPattern, small};
    use super::*;

    struct Noted {
        words: RefCell<Vec<u64>>,
        written: RefCell<Vec<u64>>,
        prefetched: RefCell<Vec<u64>>,
        loaded: RefCell<Vec<u64>>,
    }

    impl PagedMemory for Noted {
        type Error = Infallible;

        fn write_page(&self, page: u64, words: &PageWords<'_>) -> Result<(), Infallible> {
            let mut memory = self.words.borrow_mut();
            words.each(|index, word| memory[page as usize * PAGE_WORDS + index] = word);
            self.written.borrow_mut().push(page);
            Ok(())
        }

        fn read_page(&self, page: u64, mut take: impl FnMut(usize, u64)) -> Result<(), Infallible> {
            let memory = self.words.borrow();
            (0..PAGE_WORDS).for_each(|index| take(index, memory[page as usize * PAGE_WORDS + index]));
            Ok(())
        }

        fn load(&self, page: u64, word: usize) -> Result<u64, Infallible> {
            self.loaded.borrow_mut().push(page);
            Ok(self.words.borrow()[page as usize * PAGE_WORDS + word])
        }

        fn push_out(&self, _pages: u64) -> Result<(), Self::Error> {
            Ok(())
        }

        fn prefetch(&self, page: u64) -> Result<(), Infallible> {
            self.prefetched.borrow_mut().push(page);
            Ok(())
        }
    }

    fn memory(plan: &TaskPlan) -> Noted {
        Noted {
            words: RefCell::new(vec![0; plan.pages() as usize * PAGE_WORDS]),
            written: RefCell::default(),
            prefetched: RefCell::default(),
            loaded: RefCell::default(),
        }
    }

    fn go(memory: &Noted, plan: &TaskPlan, phase: Phase) -> PhaseOutcome {
        let stop = AtomicBool::new(false);
        let Ok(outcome) = work(memory, plan, phase, Toucher { task: 2, thread: 0 }, alone(&stop));
        outcome
    }

    #[test]
    fn every_page_is_written_once_in_its_order() {
        for pattern in [TaskPattern::WriteSequential, TaskPattern::WriteRandom] {
            let plan = small(pattern);
            let memory = memory(&plan);
            let outcome = go(&memory, &plan, Phase::Write);
            assert_eq!((outcome.accesses, outcome.words), (16, 16 * 512));
            let mut order = memory.written.take();
            assert_eq!(order == (0..16).collect::<Vec<_>>(), pattern == TaskPattern::WriteSequential);
            order.sort_unstable();
            assert_eq!(order, (0..16).collect::<Vec<_>>());
        }
    }

    #[test]
    fn checking_finds_a_wrong_word_and_nothing_else() {
        for data in [Data::Random, Data::Text, Data::Zero] {
            let plan = TaskPlan { data, ..small(TaskPattern::ReadSequential) };
            let memory = memory(&plan);
            go(&memory, &plan, Phase::Write);
            assert_eq!(go(&memory, &plan, Phase::ReadBack).mismatches, 0);
            assert_eq!(go(&memory, &plan, Phase::Loads).mismatches, 0);
            memory.words.borrow_mut()[3 * PAGE_WORDS + 5] ^= 1;
            let outcome = go(&memory, &plan, Phase::ReadBack);
            assert_eq!(outcome.mismatches, 1);
            assert_eq!(outcome.first_mismatch.unwrap().offset, 3 * 4096 + 40);
        }
    }

    #[test]
    fn pages_are_asked_for_ahead_in_the_order_in_which_they_are_loaded() {
        let plan = TaskPlan { prefetch: 5, ..small(TaskPattern::ReadRandom) };
        let memory = memory(&plan);
        go(&memory, &plan, Phase::Write);
        assert_eq!(go(&memory, &plan, Phase::Loads).accesses, 100);
        let (prefetched, loaded) = (memory.prefetched.take(), memory.loaded.take());
        assert_eq!(prefetched.len(), 105);
        assert_eq!(prefetched[..100], loaded[..]);
    }

    #[test]
    fn loads_end_when_their_time_is_over() {
        let plan = TaskPlan { length: Length::Nanoseconds(2_000_000), ..small(TaskPattern::ReadRandom) };
        let memory = memory(&plan);
        go(&memory, &plan, Phase::Write);
        let outcome = go(&memory, &plan, Phase::Loads);
        assert!(outcome.end_ns - outcome.start_ns >= 2_000_000 && outcome.accesses > 0);
    }
}
