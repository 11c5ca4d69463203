//! The other side of a space's translation, with memory of its own. It stands in for a window over another
//! process.
//!
//! A program on the other side reads and writes with [`TestTarget::load`] and [`TestTarget::store`]. An
//! access that is not permitted is a fault. The target compares each question with its pages. A script or a
//! seed decides its answers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use octavo::io::SwapArea;
use octavo::translation::{
    Answer, Bytes, Home, InPlace, Install, Remove, Run, Touch, TranslatedSpace, Translation,
};
use octavo::{
    Access, Compression, Counter, HugePolicy, Manager, ManagerBuilder, PAGE_BYTES, PageNumber, Protection,
    RegionOptions, Result,
};

use super::device::TestDevice;
use super::{MIB, PAGE, Random, assert_only_kept, run_woken};

/// The abilities of the target.
#[derive(Clone, Copy, Debug)]
pub struct Able {
    /// Whether the target reports the first write to a page that is installed for reading.
    pub watches: bool,
    /// Whether the target shows zeros without memory.
    pub shows_zeros: bool,
    /// Whether the target knows which pages were touched.
    pub harvests: bool,
    /// Whether all pages of the target always look touched.
    pub is_busy: bool,
    /// Whether the target can remove permissions.
    pub protects: bool,
}

impl Able {
    pub const ALL: Self =
        Self { watches: true, shows_zeros: true, harvests: true, is_busy: false, protects: true };

    pub fn random(random: &mut Random) -> Self {
        let mut can = || !random.one_in(3);
        Self { watches: can(), shows_zeros: can(), harvests: can(), is_busy: false, protects: true }
    }
}

/// A kind of question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QuestionKind {
    Install,
    Remove,
    Protect,
    Split,
    Harvest,
}

/// A page that the target has.
#[derive(Debug)]
struct There {
    /// `None` stands for zeros without memory.
    bytes: Option<Box<[u8; PAGE_BYTES]>>,
    protection: Protection,
    accessed: bool,
    written: bool,
    /// Whether the page was installed together with the rest of its 2 MiB, and these were not split since.
    in_block: bool,
}

#[derive(Debug)]
struct State {
    able: Able,
    pages: BTreeMap<u64, There>,
    script: BTreeMap<QuestionKind, VecDeque<Answer>>,
    always: BTreeMap<QuestionKind, Answer>,
    /// One answer in this many is a refusal.
    refuses: Option<(Random, u64)>,
    /// The kind of question at which the target panics, the number of such questions before the panic, and
    /// whether the target answers first.
    panics: Option<(QuestionKind, u32, bool)>,
    /// The kind of question, the first page and the page count of each run.
    asked: Vec<(QuestionKind, u64, u32)>,
}

/// The other side.
pub struct TestTarget(Mutex<State>);

impl TestTarget {
    pub fn new(able: Able) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            able,
            pages: BTreeMap::new(),
            script: BTreeMap::new(),
            always: BTreeMap::new(),
            refuses: None,
            panics: None,
            asked: Vec::new(),
        })))
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses one run in `n`, at random.
    pub fn refuse_one_in(&self, n: u64, seed: u64) {
        self.state().refuses = Some((Random::new(seed), n));
    }

    /// Sets the answers to the next runs.
    pub fn script(&self, ask: QuestionKind, answers: impl IntoIterator<Item = Answer>) {
        self.state().script.entry(ask).or_default().extend(answers);
    }

    /// Sets the answer to every run from now on. `None` restores the usual answers.
    pub fn always(&self, ask: QuestionKind, answer: Option<Answer>) {
        let mut state = self.state();
        match answer {
            Some(answer) => drop(state.always.insert(ask, answer)),
            None => drop(state.always.remove(&ask)),
        }
    }

    /// Panics at the next question of this kind.
    pub fn panic_at_next(&self, ask: QuestionKind) {
        self.panic_at(ask, 0, false);
    }

    /// Panics at a question of this kind, after `before` others of this kind. If `answers` is true, the
    /// target first answers the question.
    pub fn panic_at(&self, ask: QuestionKind, before: u32, answers: bool) {
        self.state().panics = Some((ask, before, answers));
    }

    /// Returns the runs of this kind of question since the last call, and forgets them.
    pub fn take_asked(&self, ask: QuestionKind) -> Vec<(u64, u32)> {
        let mut state = self.state();
        let (these, others) =
            std::mem::take(&mut state.asked).into_iter().partition(|(which, ..)| *which == ask);
        state.asked = others;
        these.into_iter().map(|(_, page, count)| (page, count)).collect()
    }

    /// Returns how many pages were named in other questions since the last question of this kind.
    pub fn pages_asked_since(&self, ask: QuestionKind) -> u64 {
        let state = self.state();
        let since = state.asked.iter().rev().take_while(|(which, ..)| *which != ask);
        since.map(|(_, _, count)| u64::from(*count)).sum()
    }

    /// Returns the number of pages with memory, and the number of zero pages without memory.
    pub fn pages(&self) -> (usize, usize) {
        let state = self.state();
        let with_memory = state.pages.values().filter(|page| page.bytes.is_some()).count();
        (with_memory, state.pages.len() - with_memory)
    }

    /// Adds a page without a report to Octavo.
    pub fn put(&self, at: u64, word: Option<u64>, protection: Protection) {
        let bytes = word.map(|word| {
            let mut bytes = Box::new([0; PAGE_BYTES]);
            bytes[..8].copy_from_slice(&word.to_le_bytes());
            bytes
        });
        let there = There { bytes, protection, accessed: true, written: true, in_block: false };
        self.state().pages.insert(at / PAGE, there);
    }

    /// Drops the program's pages in a range. The caller must report this to Octavo.
    pub fn drop_range(&self, at: u64, len: u64) {
        self.state().pages.retain(|page, _| !(at / PAGE..(at + len) / PAGE).contains(page));
    }

    /// Moves the program's pages to other addresses. The caller must report this to Octavo.
    pub fn move_range(&self, from: u64, len: u64, to: u64) {
        self.drop_range(to, len);
        let state = &mut *self.state();
        for page in from / PAGE..(from + len) / PAGE {
            if let Some(there) = state.pages.remove(&page) {
                state.pages.insert(page - from / PAGE + to / PAGE, there);
            }
        }
    }

    /// Loads for the program. Returns `None` on a fault.
    pub fn try_load(&self, at: u64) -> Option<u64> {
        let mut state = self.state();
        let page = state.pages.get_mut(&(at / PAGE)).filter(|page| page.protection.read)?;
        page.accessed = true;
        let offset = (at % PAGE) as usize;
        let word =
            |bytes: &[u8; PAGE_BYTES]| u64::from_le_bytes(bytes[offset..offset + 8].try_into().unwrap());
        Some(page.bytes.as_deref().map_or(0, word))
    }

    /// Stores for the program. Returns `false` on a fault.
    pub fn try_store(&self, at: u64, value: u64) -> bool {
        let mut state = self.state();
        let Some(page) = state.pages.get_mut(&(at / PAGE)).filter(|page| page.protection.write) else {
            return false;
        };
        (page.accessed, page.written) = (true, true);
        let offset = (at % PAGE) as usize;
        let bytes = page.bytes.as_mut().expect("zero pages are not written unnoticed");
        bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        true
    }

    /// Loads for the program, with all necessary faults.
    pub fn load(&self, space: &TranslatedSpace, at: u64) -> Result<u64> {
        loop {
            if let Some(value) = self.try_load(at) {
                return Ok(value);
            }
            self.fault(space, at, Access::Read)?;
        }
    }

    /// Stores for the program, with all necessary faults.
    pub fn store(&self, space: &TranslatedSpace, at: u64, value: u64) -> Result<()> {
        while !self.try_store(at, value) {
            self.fault(space, at, Access::Write)?;
        }
        Ok(())
    }

    /// Reports a fault, and whether the page was missing, like the kernel.
    fn fault(&self, space: &TranslatedSpace, at: u64, access: Access) -> Result<()> {
        let is_there = self.state().pages.contains_key(&(at / PAGE));
        if is_there {
            return run_woken(space.fault_translated(at, access)).0;
        }
        run_woken(space.fault_missing(at, access)).0
    }

    /// Answers each run, and calls `each` for each page that is done.
    fn answer<A: Copy>(
        &self,
        ask: QuestionKind,
        runs: &mut [Run<A>],
        mut each: impl FnMut(&mut State, u64, u32, A),
    ) {
        let state = &mut *self.state();
        let panics = match &mut state.panics {
            Some((at, before, answers)) if *at == ask => match before.checked_sub(1) {
                None => Some(*answers),
                Some(left) => {
                    *before = left;
                    None
                }
            },
            _ => None,
        };
        if panics.is_some() {
            state.panics = None;
        }
        assert!(panics != Some(false), "the test asked for a panic");
        assert!(runs.windows(2).all(|pair| pair[0].page != pair[1].page), "runs do not overlap");
        for run in runs {
            assert!(run.count > 0, "an empty run");
            let first = run.page.address() / PAGE;
            state.asked.push((ask, first, run.count));
            let scripted = state.script.get_mut(&ask).and_then(VecDeque::pop_front);
            let chosen = scripted.or_else(|| state.always.get(&ask).copied());
            run.answer = chosen.or_else(|| state.refusal(ask, run.count)).unwrap_or(Answer::Done);
            for index in 0..run.done() {
                each(state, first + u64::from(index), index, run.ask);
            }
        }
        assert!(panics.is_none(), "the test asked for a panic after the answer");
    }
}

impl State {
    fn refusal(&mut self, ask: QuestionKind, count: u32) -> Option<Answer> {
        let (random, n) = self.refuses.as_mut()?;
        let done = random.below(u64::from(count) + 1) as u32;
        let partly = if ask == QuestionKind::Split { Answer::Busy } else { Answer::Partly(done) };
        random.one_in(*n).then(|| random.pick(&[Answer::Busy, partly]))
    }
}

// SAFETY: the code copies out of the frames that runs of `install` name, and into those that runs of `remove`
// name, and keeps no `Home`.
unsafe impl Translation for TestTarget {
    fn install(&self, home: Home<'_>, runs: &mut [Run<Install>]) {
        let able = self.state().able;
        for run in runs {
            let refuses = match run.ask.bytes {
                Bytes::ZeroPages => !able.shows_zeros,
                Bytes::Zeros => false,
                Bytes::Frames(_) => !able.watches && !run.ask.protection.write,
            };
            if refuses {
                run.answer = Answer::Unsupported;
                continue;
            }
            let in_block = run.count == 512;
            self.answer(QuestionKind::Install, std::slice::from_mut(run), |state, page, index, ask| {
                let bytes = match ask.bytes {
                    Bytes::ZeroPages => None,
                    Bytes::Zeros => Some(Box::new([0; PAGE_BYTES])),
                    Bytes::Frames(frame) => {
                        let mut bytes = Box::new([0; PAGE_BYTES]);
                        home.copy_out(frame.plus(index), &mut bytes);
                        Some(bytes)
                    }
                };
                let (protection, in_block) = (ask.protection, in_block && bytes.is_some());
                let there = There { bytes, protection, accessed: true, written: false, in_block };
                let before = state.pages.insert(page, there);
                let was_zeros = before.is_none_or(|before| before.bytes.is_none());
                assert!(was_zeros, "page {page:#x} was installed over one with memory");
            });
        }
    }

    fn remove(&self, home: Home<'_>, runs: &mut [Run<Remove>]) {
        self.answer(QuestionKind::Remove, runs, |state, page, index, ask| {
            let bytes = state.pages.remove(&page).inspect(|page| {
                assert!(ask.to.is_none() || !page.in_block, "a block is split before its pages go");
            });
            if let Some(frame) = ask.to {
                let bytes = bytes.and_then(|page| page.bytes).unwrap_or(Box::new([0; PAGE_BYTES]));
                home.copy_in(frame.plus(index), &bytes);
            }
        });
    }

    fn protect(&self, runs: &mut [Run<Protection>]) {
        let able = self.state().able;
        if !able.protects {
            return runs.iter_mut().for_each(|run| run.answer = Answer::Unsupported);
        }
        self.answer(QuestionKind::Protect, runs, |state, page, _, protection| {
            let there = state.pages.get_mut(&page).expect("what is protected is there");
            there.protection = protection;
        });
    }

    fn split(&self, runs: &mut [Run<()>]) {
        self.answer(QuestionKind::Split, runs, |state, page, _, ()| {
            let there = state.pages.get_mut(&page).expect("what is split is there");
            assert!(std::mem::take(&mut there.in_block), "it is no block");
        });
    }

    fn harvest(&self, runs: &mut [Run<Touch>], touched: &mut dyn FnMut(PageNumber)) {
        let able = self.state().able;
        if !able.harvests {
            return runs.iter_mut().for_each(|run| run.answer = Answer::Unsupported);
        }
        let mut found = Vec::new();
        self.answer(QuestionKind::Harvest, runs, |state, page, _, touch| {
            let Some(there) = state.pages.get_mut(&page) else { return };
            let mark = match touch {
                Touch::There => return found.push(PageNumber::containing(page * PAGE)),
                Touch::Accessed => &mut there.accessed,
                Touch::Written => &mut there.written,
            };
            if std::mem::take(mark) || able.is_busy && touch == Touch::Accessed {
                found.push(PageNumber::containing(page * PAGE));
            }
        });
        found.into_iter().for_each(touched);
    }
}

// --- a space with this target ---

pub const BUDGET: u64 = 16 * MIB;
pub const SLOTS: u32 = 128 * 256;

pub fn builder() -> ManagerBuilder {
    let area = SwapArea::device(TestDevice::new(SLOTS).boxed());
    Manager::builder().budget_bytes(BUDGET).swap_area(area).compression(Compression::Off).background(false)
}

/// A space and the other side of its translation.
pub struct TranslatedPair {
    pub manager: Manager,
    pub target: Arc<TestTarget>,
    pub space: TranslatedSpace,
    pub at: u64,
}

pub fn pair_of(builder: ManagerBuilder, able: Able, len: u64) -> TranslatedPair {
    let (manager, target) = (builder.build().unwrap(), TestTarget::new(able));
    let space = manager.translated_space("translated", target.clone()).unwrap();
    let at = space.map(len, RegionOptions::default()).unwrap();
    TranslatedPair { manager, target, space, at }
}

pub fn pair(huge: HugePolicy, len: u64) -> TranslatedPair {
    pair_of(builder().huge(huge), Able::ALL, len)
}

impl TranslatedPair {
    pub fn page(&self, index: u64) -> u64 {
        self.at + index * PAGE
    }

    pub fn store(&self, index: u64, value: u64) {
        self.target.store(&self.space, self.page(index), value).unwrap();
    }

    pub fn load(&self, index: u64) -> u64 {
        self.target.load(&self.space, self.page(index)).unwrap()
    }

    /// Adopts the target's pages in a range, and makes the necessary room for them.
    pub fn adopt(&self, at: u64, len: u64, what: InPlace) -> Result<()> {
        let mut done = 0;
        while done < len {
            match self.space.adopt(at + done, len - done, what)? {
                0 => run_woken(self.space.make_room(len - done)).0?,
                pages => done += pages * PAGE,
            }
        }
        Ok(())
    }

    pub fn away_pages(&self) -> u64 {
        self.manager.stats().unwrap().away_bytes / PAGE
    }

    /// Asserts that the target has exactly these numbers of pages and zero pages, and that the manager counts
    /// the same numbers.
    #[track_caller]
    pub fn agree(&self, pages: u64, zeros: u64) {
        assert_eq!(self.target.pages(), (pages as usize, zeros as usize));
        assert_eq!(self.away_pages(), pages);
        self.manager.validate();
    }

    #[track_caller]
    pub fn agree_away(&self, pages: u64) {
        assert_eq!(self.away_pages(), pages);
        self.manager.validate();
    }

    /// Evicts until no page goes out any more.
    pub fn evict_all(&self) {
        while self.manager.reclaim(512).unwrap() > 0 {}
    }

    pub fn end(self) {
        let Self { manager, target, space, .. } = self;
        drop(space);
        assert_eq!(target.pages(), (0, 0), "everything was removed");
        // A manager without huge pages has not allocated the huge zero page.
        let keeps_huge_zero = manager.counters().get(Counter::HugeZeroAllocated) > 0;
        assert_only_kept(&manager, keeps_huge_zero, false);
        assert_eq!(manager.stats().unwrap().away_bytes, 0);
    }
}
