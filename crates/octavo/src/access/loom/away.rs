//! Models of pages that go away and come home, with another side that stores to them meanwhile.
//!
//! One preemption is enough to find every bug that was put in on purpose.
#![expect(unsafe_code, reason = "it implements a trait that is handed memory")]

use std::pin::pin;
use std::task::Context;

use super::{Model, WordDevice, bounded, race};
use crate::engine::Waiter;
use crate::fault::{Via, resolve_async};
use crate::reclaim::evict_batch;
use crate::sync::park::block_until;
use crate::sync::{Arc, Mutex, Shared};
use crate::table::translation::{Answer, Bytes, Home, Install, Remove, Run, Touch, Translation};
use crate::table::{Access, Protection};
use crate::units::{FrameId, PAGE_BYTES, PageNumber};

/// The first byte of the only page at the other side, if the page is there.
#[derive(Debug, Default)]
struct OtherSide {
    page: Mutex<Option<There>>,
    /// Whether it reports the first store to a page that is installed for reading.
    watches: bool,
}

#[derive(Clone, Copy, Debug)]
struct There {
    value: u8,
    protection: Protection,
    written: bool,
}

fn only<A>(runs: &mut [Run<A>]) -> &mut Run<A> {
    let [run] = runs else { panic!("one page is one run") };
    run.answer = Answer::Done;
    run
}

// SAFETY: it copies out of the frame that the run of `install` names, and into the one that the run of
// `remove` names.
unsafe impl Translation for OtherSide {
    fn install(&self, home: Home<'_>, runs: &mut [Run<Install>]) {
        let run = only(runs);
        let Install { bytes, protection } = run.ask;
        if !self.watches && protection == Protection::READ {
            run.answer = Answer::Unsupported;
            return;
        }
        let mut copy = [0; PAGE_BYTES];
        if let Bytes::Frames(frame) = bytes {
            home.copy_out(frame, &mut copy);
        }
        let before = self.page.lock().replace(There { value: copy[0], protection, written: false });
        assert!(before.is_none(), "installed twice");
    }

    fn remove(&self, home: Home<'_>, runs: &mut [Run<Remove>]) {
        let there = self.page.lock().take();
        if let (Some(frame), Some(there)) = (only(runs).ask.to, there) {
            let mut copy = [0; PAGE_BYTES];
            copy[0] = there.value;
            home.copy_in(frame, &copy);
        }
    }

    fn protect(&self, runs: &mut [Run<Protection>]) {
        let protection = only(runs).ask;
        self.page.lock().as_mut().expect("what is protected is there").protection = protection;
    }

    fn split(&self, _: &mut [Run<()>]) {
        unreachable!("no blocks here")
    }

    fn harvest(&self, runs: &mut [Run<Touch>], touched: &mut dyn FnMut(PageNumber)) {
        let run = only(runs);
        if run.ask == Touch::Written
            && let Some(there) = &mut *self.page.lock()
            && std::mem::take(&mut there.written)
        {
            touched(run.page);
        }
    }
}

struct Sides {
    model: Arc<Model>,
    other: Shared<OtherSide>,
}

impl Sides {
    /// Makes a page that holds 7 and is away, clean or dirty.
    fn new(watches: bool, clean: bool) -> Self {
        let other = Shared::new(OtherSide { watches, ..OtherSide::default() });
        let model = Model::translated(WordDevice::new(4, false), other.clone());
        model.map(0, 0, 1);
        let sides = Self { model, other };
        assert!(sides.model.store(0, 0, 7));
        if clean {
            sides.model.evict_all();
        }
        assert_eq!(other_load(&sides.model, &sides.other), Some(7));
        sides
    }

    fn race(
        &self,
        other: impl FnOnce(&Model, &OtherSide) + Send + 'static,
        here: impl FnOnce(&Model) + Send + 'static,
    ) {
        let side = Shared::clone(&self.other);
        race(&self.model, move |model| other(model, &side), here);
    }

    /// Asserts that the bytes survive another trip, and that everything is free afterwards.
    fn assert_holds(&self, expected: u64) {
        self.model.evict_all();
        assert_eq!(other_load(&self.model, &self.other), Some(expected), "the bytes came back");
        assert_eq!(self.model.load(0, 0), Some(expected), "they came home");
        self.model.unmap(0, 0, 1);
        assert!(self.other.page.lock().is_none(), "the other side reaches nothing");
        self.model.assert_all_is_free();
    }
}

/// A fault of the other side. Returns `false` if the page is not mapped, or does not allow the access.
fn fault(model: &Model, access: Access) -> bool {
    let mut fault = pin!(resolve_async(
        Waiter::task(&model.engine),
        &model.engine,
        &model.spaces[0],
        0,
        access,
        Via::Translation { is_missing: false }
    ));
    block_until(|waker| fault.as_mut().poll(&mut Context::from_waker(waker))).is_ok()
}

fn other_load(model: &Model, other: &OtherSide) -> Option<u64> {
    loop {
        if let Some(there) = other.page.lock().filter(|there| there.protection.read) {
            return Some(u64::from(there.value));
        }
        if !fault(model, Access::Read) {
            return None;
        }
    }
}

fn other_store(model: &Model, other: &OtherSide, value: u8) -> bool {
    loop {
        if let Some(there) = other.page.lock().as_mut().filter(|there| there.protection.write) {
            (there.value, there.written) = (value, true);
            return true;
        }
        if !fault(model, Access::Write) {
            return false;
        }
    }
}

/// A page that goes out takes the last store along, whether the other side reports stores or the harvest
/// finds them.
#[test]
fn loom_a_store_at_the_other_side_against_eviction() {
    for (watches, clean) in [(true, true), (false, true), (true, false)] {
        bounded(1, move || {
            let sides = Sides::new(watches, clean);
            let batch = sides.model.isolate();
            sides.race(
                |model, other| assert!(other_store(model, other, 8)),
                move |model| {
                    evict_batch(&model.engine, batch);
                },
            );
            sides.assert_holds(8);
        });
    }
}

/// A handle's load brings the page home during a store.
#[test]
fn loom_a_store_at_the_other_side_against_a_load_here() {
    for clean in [true, false] {
        bounded(1, move || {
            let sides = Sides::new(true, clean);
            sides.race(
                |model, other| assert!(other_store(model, other, 8)),
                |model| assert!(matches!(model.load(0, 0), Some(7 | 8))),
            );
            sides.assert_holds(8);
        });
    }
}

/// A store here and a load there: the page goes from one side to the other, and is never at both.
#[test]
fn loom_a_store_here_against_a_load_at_the_other_side() {
    bounded(1, || {
        let sides = Sides::new(true, true);
        sides.race(
            |model, other| assert!(matches!(other_load(model, other), Some(7 | 8))),
            |model| assert!(model.store(0, 0, 8)),
        );
        sides.assert_holds(8);
    });
}

/// Nothing can be stored once `protect` has returned, and nothing that was stored before is lost.
#[test]
fn loom_a_store_at_the_other_side_against_protect() {
    bounded(1, || {
        let sides = Sides::new(true, false);
        let side = Shared::clone(&sides.other);
        sides.race(
            |model, other| {
                other_store(model, other, 8);
            },
            move |model| {
                model.protect(0, 0, 1, Protection::READ);
                let seen = side.page.lock().map(|there| there.value);
                let again = other_store(model, &side, 9);
                assert!(!again, "a store after protect");
                let now = side.page.lock().map(|there| there.value);
                assert!(seen.is_none() || now.is_none() || seen == now, "{seen:?} became {now:?}");
            },
        );
        let last = other_load(&sides.model, &sides.other).unwrap();
        assert!(matches!(last, 7 | 8));
        sides.assert_holds(last);
    });
}

/// A page that is unmapped while it goes away, or out, leaves nothing behind on either side.
#[test]
fn loom_unmap_against_a_fault_at_the_other_side_and_eviction() {
    for evicts in [false, true] {
        bounded(1, move || {
            let sides = Sides::new(true, true);
            let batch = evicts.then(|| sides.model.isolate());
            sides.race(
                move |model, other| match batch {
                    Some(batch) => {
                        evict_batch(&model.engine, batch);
                    }
                    None => assert!(matches!(other_load(model, other), None | Some(7))),
                },
                |model| model.unmap(0, 0, 1),
            );
            assert_eq!(other_load(&sides.model, &sides.other), None);
            assert!(sides.other.page.lock().is_none(), "the other side reaches nothing");
            sides.model.assert_all_is_free();
        });
    }
}

/// Frames that are away are numbered behind those at home.
#[test]
fn loom_an_away_frame_is_allocated_once() {
    bounded(2, || {
        let sides = Sides::new(true, false);
        let first = sides.model.engine.frames.end_frame();
        let take = move |model: &Model| {
            let block = model.engine.frames.alloc_away(crate::units::Order::ZERO).expect("there are two");
            let frame: FrameId = block.frame();
            model.engine.frames.give_back(block);
            assert!(frame >= first);
        };
        let take_too = take;
        sides.race(move |model, _| take(model), take_too);
        sides.assert_holds(7);
    });
}
