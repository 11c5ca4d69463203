//! Models of guards: against each other, against eviction, against reuse of their frames, and while pages are
//! brought together.
//!
//! The bytes of each frame are a cell of the checker, which a guard borrows when its slice is borrowed. So
//! the checker reports two guards that have one frame.

use ::loom::cell::UnsafeCell;

use super::{Model, WordDevice, bounded};
use crate::access::{SharedGuard, Taker, lend};
use crate::error::ErrorKind;
use crate::frame::latch::Hold;
use crate::region::{Region, RegionOptions};
use crate::sync::{Arc, thread};
use crate::units::{FrameId, PAGE_BYTES, PageNumber};

struct Lending {
    model: Arc<Model>,
    frames: Vec<UnsafeCell<()>>,
}

const WORDS: usize = PAGE_BYTES / 8;

impl Lending {
    /// A space with a guarded region of two pages.
    fn new() -> Arc<Self> {
        Self::of(Model::on(WordDevice::new(4, false)), false)
    }

    /// The same, and both pages in a block.
    fn with_block() -> Arc<Self> {
        let lending = Self::of(Model::with_blocks(WordDevice::new(4, false)), true);
        assert!(lending.add(0, 2));
        assert_eq!(lending.model.engine.table.walk(lending.model.spaces[0].id, PageNumber(0)).level, 1);
        lending
    }

    fn of(model: Arc<Model>, huge: bool) -> Arc<Self> {
        let frames = (0..model.engine.frames.end_frame().0).map(|_| UnsafeCell::new(())).collect();
        let lending = Self { model, frames };
        lending.map(huge);
        Arc::new(lending)
    }

    fn map(&self, huge: bool) {
        let options = RegionOptions::new().guarded(true).huge(huge);
        let region = Region { start: PageNumber(0), end: PageNumber(2), options };
        self.model.spaces[0].regions.writer().insert(region).unwrap();
    }

    /// Unmaps the region, and asserts that nothing is left.
    fn end(&self) {
        self.model.unmap(0, 0, 2);
        self.model.assert_all_is_free();
    }

    fn frame_of(&self, word: &u64) -> &UnsafeCell<()> {
        let at = std::ptr::from_ref(word).addr() - self.model.engine.frames.bytes().pointer(0).addr();
        let frame = (0..).map(FrameId).find(|frame| frame.home_offset() + PAGE_BYTES > at);
        &self.frames[frame.expect("the word is in some frame").0 as usize]
    }

    /// Adds one to the first word of each page. Returns `false` if the pages are not mapped.
    fn add(&self, first: u64, pages: usize) -> bool {
        let (engine, space) = (&self.model.engine, &self.model.spaces[0]);
        let address = PageNumber(first).address();
        let lent = match lend::<u64>(engine, space, address, pages * WORDS, Hold::Exclusive, Taker::Thread) {
            Ok(lent) => lent,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NotMapped, "{error}");
                return false;
            }
        };
        let mut guard = lent.exclusive();
        for page in 0..pages {
            self.frame_of(&guard[page * WORDS]).with_mut(|_| ());
            guard[page * WORDS] += 1;
        }
        true
    }

    /// Reads the first word of each page.
    fn read(&self, first: u64, pages: usize) -> Option<Vec<u64>> {
        let (engine, space) = (&self.model.engine, &self.model.spaces[0]);
        let address = PageNumber(first).address();
        let lent = lend::<u64>(engine, space, address, pages * WORDS, Hold::Shared, Taker::Thread).ok()?;
        let guard: SharedGuard<'_, u64> = lent.shared();
        let words = guard.iter().step_by(WORDS);
        Some(
            words
                .map(|word| {
                    self.frame_of(word).with(|_| ());
                    *word
                })
                .collect(),
        )
    }
}

fn run(lending: &Arc<Lending>, others: &[fn(&Lending)], own: fn(&Lending)) {
    let others: Vec<_> = others
        .iter()
        .map(|work| {
            let (lending, work) = (Arc::clone(lending), *work);
            thread::spawn(move || work(&lending))
        })
        .collect();
    own(lending);
    for other in others {
        other.join().unwrap();
    }
}

/// Two writers, while the page goes out. No addition is lost.
#[test]
fn loom_guards_of_a_page_exclude_each_other_while_it_goes_out() {
    bounded(1, || {
        let lending = Lending::new();
        assert!(lending.add(0, 1));
        let add = |lending: &Lending| assert!(lending.add(0, 1));
        run(&lending, &[add], |lending| {
            lending.model.evict_all();
            assert!(lending.add(0, 1));
        });
        assert_eq!(lending.read(0, 1).unwrap(), [3]);
        lending.end();
    });
}

/// A page is unmapped, and its frame may be reused, while a writer waits for its latch or has it.
#[test]
fn loom_a_frame_that_is_lent_is_nobody_elses() {
    bounded(1, || {
        let lending = Lending::new();
        assert!(lending.add(0, 1));
        run(
            &lending,
            &[|lending| {
                lending.add(0, 1);
            }],
            |lending| {
                lending.model.unmap(0, 0, 2);
                lending.map(false);
                assert!(lending.add(1, 1));
                assert!(lending.read(0, 1).is_some_and(|words| words[0] <= 1));
            },
        );
        lending.end();
    });
}

/// Two pages are brought together, while another writer adds to one of them.
#[test]
fn loom_pages_that_are_brought_together_lose_nothing() {
    bounded(1, || {
        let lending = Lending::new();
        // In this order, their frames are not in the order of their addresses.
        assert!(lending.add(1, 1) && lending.add(0, 1));
        let add = |lending: &Lending| assert!(lending.add(1, 1));
        run(&lending, &[add], |lending| assert!(lending.add(0, 2)));
        assert_eq!(lending.read(0, 2).unwrap(), [2, 3]);
        lending.end();
    });
}

/// Both pages of a block are lent by one pin, while another writer adds to one of them, and the block goes
/// out.
#[test]
fn loom_pages_of_a_block_are_lent_by_one_pin() {
    bounded(1, || {
        let lending = Lending::with_block();
        let add = |lending: &Lending| assert!(lending.add(1, 1));
        run(&lending, &[add], |lending| {
            assert!(lending.add(0, 2));
            lending.model.evict_all();
        });
        assert_eq!(lending.read(0, 2).unwrap(), [2, 3]);
        lending.end();
    });
}

/// A block is unmapped, and its pages get other frames, while a writer takes both of them or has them.
#[test]
fn loom_a_block_that_is_lent_is_nobody_elses() {
    bounded(1, || {
        let lending = Lending::with_block();
        run(
            &lending,
            &[|lending| {
                lending.add(0, 2);
            }],
            |lending| {
                lending.model.unmap(0, 0, 2);
                lending.map(false);
                assert!(lending.add(1, 1));
            },
        );
        // The other thread's additions went to the block, or to the pages that came after it.
        assert!(matches!(lending.read(0, 2).unwrap()[..], [0, 1] | [1, 2]));
        lending.end();
    });
}
