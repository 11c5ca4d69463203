//! The other side of a space's translation: pages with memory of their own, which a program reaches by its
//! own addresses.
//!
//! A program loads and stores there. An access that it may not make is a fault. The program knows each word
//! that it must find. The bytes and the expected words are under one lock, so that a fork copies both at one
//! moment.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use octavo_sim::lock::{Mutex, MutexGuard};
use octavo_sim::{Random, thread};

use super::super::octavo::translation::{
    Answer, Bytes, Home, Install, Remove, Run, Touch, TranslatedSpace, Translation,
};
use super::super::octavo::{Access, PAGE_BYTES, PageNumber, Protection, Result};
use super::PAGE;

/// A page that the program has.
#[derive(Clone)]
struct There {
    /// The page's bytes. `None` stands for zeros without memory.
    bytes: Option<Box<[u8; PAGE_BYTES]>>,
    protection: Protection,
    is_accessed: bool,
    is_written: bool,
}

struct State {
    pages: BTreeMap<u64, There>,
    /// The first word of each page, unless it is zero.
    expected: BTreeMap<u64, u64>,
    /// While it is set, no page is installed or removed.
    is_changing: bool,
    random: Random,
    /// Two answers in this many are refusals.
    refuses: u64,
    /// The first request of Octavo that it must not make. It is recorded here and checked later, since Octavo
    /// treats a panic as a refusal.
    wrong: Option<&'static str>,
}

pub(crate) struct OtherSide(Mutex<State>);

impl OtherSide {
    pub(crate) fn new(seed: u64, refuses: u64) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            pages: BTreeMap::new(),
            expected: BTreeMap::new(),
            is_changing: false,
            random: Random::new(seed),
            refuses,
            wrong: None,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Forks the program: the child has the same pages. Until [`OtherSide::has_forked`], no page is installed
    /// or removed.
    pub(crate) fn fork(&self, seed: u64) -> Arc<Self> {
        let mut state = self.state();
        state.is_changing = true;
        // Both share the pages that have memory. The child gets the other pages by faults.
        let shared = |there: &There| {
            let is_there = there.bytes.is_some();
            is_there.then(|| There {
                protection: Protection::READ_WRITE,
                is_accessed: true,
                is_written: true,
                ..there.clone()
            })
        };
        let pages = state.pages.iter().filter_map(|(page, there)| Some((*page, shared(there)?))).collect();
        let child = State {
            pages,
            expected: state.expected.clone(),
            is_changing: false,
            random: Random::new(seed),
            refuses: state.refuses,
            wrong: None,
        };
        Arc::new(Self(Mutex::new(child)))
    }

    pub(crate) fn has_forked(&self) {
        self.state().is_changing = false;
    }

    /// Returns the addresses of the pages that the program has.
    pub(crate) fn pages(&self) -> Vec<u64> {
        self.state().pages.keys().map(|page| page * PAGE).collect()
    }

    /// Drops a page's bytes. The caller has to tell Octavo. Until [`OtherSide::has_dropped`], no page is
    /// installed or removed: on a fault of another thread, Octavo would bring back the bytes that it still
    /// has.
    pub(crate) fn drop_page(&self, at: u64) {
        let mut state = self.state();
        state.is_changing = true;
        state.pages.remove(&(at / PAGE));
        state.expected.remove(&at);
    }

    /// Notes that Octavo has been told.
    pub(crate) fn has_dropped(&self) {
        self.state().is_changing = false;
    }

    /// Loads the first word of a page. Panics if it is not the word that the program expects.
    pub(crate) fn load(&self, space: &TranslatedSpace, at: u64) -> Result<()> {
        loop {
            let mut state = self.state();
            assert_eq!(state.wrong, None);
            let expected = state.expected.get(&at).copied().unwrap_or(0);
            if let Some(there) = state.pages.get_mut(&(at / PAGE)).filter(|there| there.protection.read) {
                there.is_accessed = true;
                let word = |bytes: &[u8; PAGE_BYTES]| bytes[..8].try_into().expect("eight bytes");
                let found = there.bytes.as_deref().map_or(0, |bytes| u64::from_le_bytes(word(bytes)));
                assert_eq!(found, expected, "the first word at {at:#x}");
                return Ok(());
            }
            drop(state);
            self.fault(space, at, Access::Read)?;
        }
    }

    /// Stores the first word of a page.
    pub(crate) fn store(&self, space: &TranslatedSpace, at: u64, value: u64) -> Result<()> {
        loop {
            let mut guard = self.state();
            let state = &mut *guard;
            if let Some(there) = state.pages.get_mut(&(at / PAGE)).filter(|there| there.protection.write) {
                (there.is_accessed, there.is_written) = (true, true);
                let bytes = there.bytes.as_mut().expect("zeros without memory are not written unnoticed");
                bytes[..8].copy_from_slice(&value.to_le_bytes());
                state.expected.insert(at, value);
                return Ok(());
            }
            drop(guard);
            self.fault(space, at, Access::Write)?;
        }
    }

    /// Reports a fault, and whether the page was missing, as the kernel does.
    fn fault(&self, space: &TranslatedSpace, at: u64, access: Access) -> Result<()> {
        let is_there = self.state().pages.contains_key(&(at / PAGE));
        if is_there {
            return wait_for(space.fault_translated(at, access));
        }
        wait_for(space.fault_missing(at, access))
    }

    /// Answers each run, and calls `each` for each page that is done, up to the first for which it returns
    /// `false`.
    fn answer<A: Copy>(&self, runs: &mut [Run<A>], mut each: impl FnMut(&mut State, u64, u32, A) -> bool) {
        let mut state = self.state();
        for run in runs {
            let first = run.page.address() / PAGE;
            run.answer = state.answer(run.count);
            let count = run.done();
            let refused =
                (0..count).find(|index| !each(&mut state, first + u64::from(*index), *index, run.ask));
            match refused {
                None => {}
                Some(0) => run.answer = Answer::Unsupported,
                Some(done) => run.answer = Answer::Partly(done),
            }
        }
    }
}

impl State {
    fn answer(&mut self, count: u32) -> Answer {
        if self.is_changing {
            return Answer::Busy;
        }
        match self.random.below(self.refuses) {
            0 => Answer::Partly(self.random.below(u64::from(count) + 1) as u32),
            1 => Answer::Busy,
            _ => Answer::Done,
        }
    }
}

// SAFETY: the code copies out of the frames that runs of `install` name, and into those that runs of `remove`
// name, and keeps no `Home`.
unsafe impl Translation for OtherSide {
    fn install(&self, home: Home<'_>, runs: &mut [Run<Install>]) {
        self.answer(runs, |state, page, index, Install { bytes, protection }| {
            let bytes = match (bytes, state.pages.get_mut(&page)) {
                // If the program has the page from a fork, and Octavo does not know of it, the page keeps its
                // bytes.
                (Bytes::Zeros, Some(there)) if there.bytes.is_some() => {
                    there.protection = protection;
                    return true;
                }
                (Bytes::ZeroPages, Some(there)) if there.bytes.is_some() => return false,
                (Bytes::ZeroPages, _) => None,
                (Bytes::Zeros, _) => Some(Box::new([0; PAGE_BYTES])),
                (Bytes::Frames(frame), there) => {
                    if there.is_some_and(|there| there.bytes.is_some()) {
                        state.wrong = Some("bytes came to a page that had some");
                    }
                    let mut bytes = Box::new([0; PAGE_BYTES]);
                    home.copy_out(frame.plus(index), &mut bytes);
                    Some(bytes)
                }
            };
            let there = There { bytes, protection, is_accessed: true, is_written: false };
            state.pages.insert(page, there);
            true
        });
    }

    fn remove(&self, home: Home<'_>, runs: &mut [Run<Remove>]) {
        self.answer(runs, |state, page, index, ask| {
            let there = state.pages.remove(&page);
            if let Some(frame) = ask.to {
                let bytes = there.and_then(|there| there.bytes).unwrap_or_else(|| Box::new([0; PAGE_BYTES]));
                home.copy_in(frame.plus(index), &bytes);
            }
            true
        });
    }

    fn protect(&self, runs: &mut [Run<Protection>]) {
        self.answer(runs, |state, page, _, protection| {
            // The program may have just dropped the page.
            if let Some(there) = state.pages.get_mut(&page) {
                there.protection = protection;
            }
            true
        });
    }

    fn split(&self, runs: &mut [Run<()>]) {
        self.answer(runs, |_, _, _, ()| true);
    }

    fn harvest(&self, runs: &mut [Run<Touch>], touched: &mut dyn FnMut(PageNumber)) {
        let mut found = Vec::new();
        self.answer(runs, |state, page, _, touch| {
            let Some(there) = state.pages.get_mut(&page) else { return true };
            let is_touched = match touch {
                Touch::There => true,
                Touch::Accessed => std::mem::take(&mut there.is_accessed),
                Touch::Written => std::mem::take(&mut there.is_written),
            };
            if is_touched {
                found.push(page);
            }
            true
        });
        found.into_iter().for_each(|page| touched(PageNumber::containing(page * PAGE)));
    }
}

/// Waits for a future on a virtual thread.
pub(crate) fn wait_for<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}
