//! Touches memory as usemem does, the same on both sides.
//!
//! A thread maps its memory piece by piece (`-u`) and goes through each piece `-r` times, accessing 8 bytes
//! at each step. A write stores the index of the word in its piece. The thread counts the bytes of every
//! access. The count of usemem itself adds an eighth of each mapping. The unmapping at the end is timed
//! separately.
//!
//! With `--verify`, a write stores the index mixed with a stamp of task, thread, piece and repeat. Before a
//! thread stores, it checks the stamp of the last repeat. So the check also detects a page of the wrong
//! space, or an old version of the right page. Random repeats then visit the same places again.

use std::hint::black_box;
use std::sync::atomic::Ordering;

use octavo_measure::random::{Random, mix};
use serde::{Deserialize, Serialize};

use crate::worker::{Mismatch, Toucher, WorkerFlags, now_ns};

/// Accesses between two checks of the watch.
const BATCH: u64 = 4096;
const WORD_BYTES: u64 = 8;

/// The work of each thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TouchPlan {
    pub bytes: u64,
    pub unit_bytes: u64,
    pub step_words: u64,
    pub repeats: u32,
    /// Threads of a task.
    pub threads: u32,
    pub random: bool,
    pub readonly: bool,
    pub verify: bool,
}

impl TouchPlan {
    /// Returns the sizes of the pieces that a thread maps.
    fn units(&self) -> impl Iterator<Item = u64> + use<> {
        let (whole, unit) = (self.bytes, self.unit_bytes);
        (0..whole.div_ceil(unit)).map(move |number| unit.min(whole - number * unit))
    }

    fn accesses_of_pass(&self, unit_bytes: u64) -> u64 {
        (unit_bytes / WORD_BYTES).div_ceil(self.step_words)
    }

    /// Returns the accesses of one thread.
    pub fn accesses(&self) -> u64 {
        let all_of = |unit_bytes| self.accesses_of_pass(unit_bytes).saturating_mul(u64::from(self.repeats));
        let full = (self.bytes / self.unit_bytes).saturating_mul(all_of(self.unit_bytes));
        full.saturating_add(all_of(self.bytes % self.unit_bytes))
    }
}

/// Memory that can be mapped, touched by the word and unmapped.
pub trait TouchedMemory {
    /// A mapped piece.
    type Unit;
    type Error;

    fn map(&self, bytes: u64) -> Result<Self::Unit, Self::Error>;
    fn load(&self, unit: &Self::Unit, index: u64) -> Result<u64, Self::Error>;
    fn store(&self, unit: &Self::Unit, index: u64, value: u64) -> Result<(), Self::Error>;
    fn unmap(&self, unit: Self::Unit) -> Result<(), Self::Error>;
}

/// The outcome of a thread. Times are from CLOCK_MONOTONIC, so that processes can be compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TouchOutcome {
    pub mapped_bytes: u64,
    /// Bytes loaded or stored, counted at every access.
    pub touched_bytes: u64,
    pub start_ns: u64,
    pub end_ns: u64,
    pub free_ns: u64,
    pub mismatches: u64,
    pub first_mismatch: Option<Mismatch>,
}

impl TouchOutcome {
    /// Returns usemem's count: the bytes touched, and an eighth of each mapping.
    pub fn usemem_bytes(&self) -> u64 {
        self.mapped_bytes / 8 + self.touched_bytes
    }
}

/// Maps, touches, and unmaps memory according to the plan. `after_touch` runs before the unmapping, untimed.
pub fn touch<M: TouchedMemory>(
    memory: &M,
    plan: &TouchPlan,
    toucher: Toucher,
    watch: WorkerFlags<'_>,
    after_touch: impl FnOnce(),
) -> Result<TouchOutcome, M::Error> {
    let mut units = Vec::new();
    let mut outcome = TouchOutcome { start_ns: now_ns(), ..TouchOutcome::default() };
    for (number, unit_bytes) in plan.units().enumerate() {
        let unit = memory.map(unit_bytes)?;
        outcome.mapped_bytes += unit_bytes;
        let mut pass = Pass {
            memory,
            unit: &unit,
            plan,
            words: unit_bytes / WORD_BYTES,
            seed: mix(u64::from(toucher.task) << 32 | u64::from(toucher.thread)) ^ mix(!(number as u64)),
            repeat: 0,
            watch,
            outcome: &mut outcome,
        };
        for repeat in 0..plan.repeats {
            pass.repeat = repeat;
            match (plan.readonly, plan.verify) {
                (true, _) => pass.run::<true, false>()?,
                (false, false) => pass.run::<false, false>()?,
                (false, true) => pass.run::<false, true>()?,
            }
        }
        units.push(unit);
        if watch.stop.load(Ordering::Relaxed) {
            break;
        }
    }
    outcome.end_ns = now_ns();
    after_touch();
    let freeing = now_ns();
    for unit in units {
        memory.unmap(unit)?;
    }
    outcome.free_ns = now_ns() - freeing;
    Ok(outcome)
}

/// One pass through one piece.
struct Pass<'a, M: TouchedMemory> {
    memory: &'a M,
    unit: &'a M::Unit,
    plan: &'a TouchPlan,
    words: u64,
    seed: u64,
    repeat: u32,
    watch: WorkerFlags<'a>,
    outcome: &'a mut TouchOutcome,
}

impl<M: TouchedMemory> Pass<'_, M> {
    fn run<const READ: bool, const VERIFY: bool>(&mut self) -> Result<(), M::Error> {
        let mut left = self.plan.accesses_of_pass(self.words * WORD_BYTES);
        let mut places = self.places();
        while left > 0 {
            let batch = left.min(BATCH);
            for _ in 0..batch {
                let index = places.next_place();
                if READ {
                    black_box(self.memory.load(self.unit, index)?);
                } else if VERIFY {
                    self.check(index)?;
                    self.memory.store(self.unit, index, index ^ self.stamp(self.repeat))?;
                } else {
                    self.memory.store(self.unit, index, index)?;
                }
            }
            left -= batch;
            self.outcome.touched_bytes += batch * WORD_BYTES;
            // Both accesses are relaxed: they order nothing, and one batch more or less does no harm.
            if let Some(progress) = self.watch.progress {
                progress.fetch_add(batch, Ordering::Relaxed);
            }
            if self.watch.stop.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(())
    }

    fn places(&self) -> WordIndices {
        // A check must visit the words that the last repeat wrote.
        let fresh = if self.plan.verify { 0 } else { u64::from(self.repeat) };
        WordIndices {
            random: self.plan.random.then(|| Random::new(self.seed ^ mix(fresh))),
            next: 0,
            step: self.plan.step_words,
            words: self.words,
        }
    }

    fn check(&mut self, index: u64) -> Result<(), M::Error> {
        if self.repeat == 0 {
            return Ok(());
        }
        let expected = index ^ self.stamp(self.repeat - 1);
        let found = self.memory.load(self.unit, index)?;
        // A random place may occur twice in one repeat.
        let twice = self.plan.random && found == index ^ self.stamp(self.repeat);
        if found != expected && !twice {
            self.outcome.mismatches += 1;
            let mismatch = Mismatch { offset: index * WORD_BYTES, expected, found };
            self.outcome.first_mismatch.get_or_insert(mismatch);
        }
        Ok(())
    }

    #[inline]
    fn stamp(&self, repeat: u32) -> u64 {
        mix(self.seed.wrapping_add(u64::from(repeat)))
    }
}

/// The indices of the words to access: every `step` bytes in order, or as many random words.
struct WordIndices {
    random: Option<Random>,
    next: u64,
    step: u64,
    words: u64,
}

impl WordIndices {
    #[inline]
    fn next_place(&mut self) -> u64 {
        let index = self.next;
        self.next += self.step;
        match &mut self.random {
            None => index,
            Some(random) => random.below(self.words as usize) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    /// Memory that notes each call, and can lose a write.
    #[derive(Default)]
    struct NotingMemory {
        pieces: RefCell<Vec<Vec<u64>>>,
        loads: RefCell<Vec<u64>>,
        stores: RefCell<Vec<(u64, u64)>>,
        forget_store: Option<usize>,
    }

    impl TouchedMemory for NotingMemory {
        type Unit = usize;
        type Error = Infallible;

        fn map(&self, bytes: u64) -> Result<usize, Infallible> {
            let mut pieces = self.pieces.borrow_mut();
            pieces.push(vec![0; bytes as usize / 8]);
            Ok(pieces.len() - 1)
        }

        fn load(&self, &unit: &usize, index: u64) -> Result<u64, Infallible> {
            self.loads.borrow_mut().push(index);
            Ok(self.pieces.borrow()[unit][index as usize])
        }

        fn store(&self, &unit: &usize, index: u64, value: u64) -> Result<(), Infallible> {
            let number = self.stores.borrow().len();
            self.stores.borrow_mut().push((index, value));
            if self.forget_store != Some(number) {
                self.pieces.borrow_mut()[unit][index as usize] = value;
            }
            Ok(())
        }

        fn unmap(&self, _: usize) -> Result<(), Infallible> {
            Ok(())
        }
    }

    fn plan() -> TouchPlan {
        TouchPlan {
            bytes: 4096 * 3 + 8,
            unit_bytes: 4096,
            step_words: 128,
            repeats: 2,
            threads: 1,
            random: false,
            readonly: false,
            verify: false,
        }
    }

    fn go(memory: &NotingMemory, plan: &TouchPlan) -> TouchOutcome {
        let stop = AtomicBool::new(false);
        let progress = AtomicU64::new(0);
        let watch = WorkerFlags { stop: &stop, progress: Some(&progress) };
        let Ok(outcome) = touch(memory, plan, Toucher { task: 3, thread: 1 }, watch, || ());
        assert_eq!(progress.into_inner(), plan.accesses());
        outcome
    }

    #[test]
    fn writes_store_the_index_of_every_step() {
        let memory = NotingMemory::default();
        let outcome = go(&memory, &plan());
        let stores = memory.stores.into_inner();
        assert!(stores.iter().all(|&(index, value)| index == value));
        let first: Vec<u64> = stores[..8].iter().map(|&(index, _)| index).collect();
        assert_eq!(first, [0, 128, 256, 384, 0, 128, 256, 384]);
        assert_eq!(stores.len() as u64, plan().accesses());
        // There are three pieces with four accesses and one piece with one access, all twice. An eighth of
        // each mapping is added.
        assert_eq!(stores.len(), 26);
        assert_eq!((outcome.touched_bytes, outcome.usemem_bytes()), (26 * 8, (4096 * 3 + 8) / 8 + 26 * 8));
        assert!(memory.loads.into_inner().is_empty());
    }

    #[test]
    fn the_bytes_of_the_patch_to_the_huge_zero_page_are_counted_as_usemem_counts_them() {
        // *thp: reduce usage of huge zero page's atomic counter* (Linux 4.9, commit 6fcb52a56ff6).
        let plan =
            TouchPlan { bytes: 100 << 30, unit_bytes: 100 << 30, step_words: 1 << 18, repeats: 1, ..plan() };
        assert_eq!(plan.accesses(), 51_200);
        let outcome = TouchOutcome {
            mapped_bytes: plan.bytes,
            touched_bytes: plan.accesses() * 8,
            ..TouchOutcome::default()
        };
        assert_eq!(outcome.usemem_bytes(), 13_422_182_400);
    }

    #[test]
    fn reading_only_never_stores() {
        let memory = NotingMemory::default();
        go(&memory, &TouchPlan { readonly: true, ..plan() });
        assert_eq!(memory.loads.into_inner().len(), 26);
        assert!(memory.stores.into_inner().is_empty());
    }

    #[test]
    fn random_places_stay_inside_and_differ() {
        let memory = NotingMemory::default();
        go(&memory, &TouchPlan { random: true, unit_bytes: 1 << 20, bytes: 1 << 20, ..plan() });
        let places: std::collections::BTreeSet<u64> =
            memory.stores.into_inner().iter().map(|s| s.0).collect();
        assert!(places.len() > 1900, "{} places of 2048", places.len());
        assert!(places.last().is_some_and(|&last| last < 1 << 17));
    }

    #[test]
    fn verification_finds_a_lost_write_and_nothing_else() {
        for random in [false, true] {
            let plan = TouchPlan { verify: true, repeats: 4, random, ..plan() };
            assert_eq!(go(&NotingMemory::default(), &plan).mismatches, 0);
            // A write of the second repeat is lost: the word keeps the value of the first repeat.
            let outcome = go(&NotingMemory { forget_store: Some(5), ..NotingMemory::default() }, &plan);
            assert_eq!(outcome.mismatches, 1, "random: {random}");
            let mismatch = outcome.first_mismatch.unwrap();
            assert_ne!(mismatch.found, mismatch.expected);
        }
    }

    #[test]
    fn a_stop_ends_the_work_within_a_batch() {
        let memory = NotingMemory::default();
        let stop = AtomicBool::new(true);
        let plan = TouchPlan { bytes: 1 << 20, unit_bytes: 1 << 20, step_words: 1, ..plan() };
        let watch = WorkerFlags { stop: &stop, progress: None };
        let Ok(_) = touch(&memory, &plan, Toucher { task: 0, thread: 0 }, watch, || ());
        assert!(memory.stores.into_inner().len() as u64 <= 2 * BATCH);
    }
}
