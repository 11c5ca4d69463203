//! Tests that compare the three forms of the cache with one model, and count the locks that each form takes.

use std::collections::BTreeMap;

use octavo_platform::Backing;
use proptest::prelude::*;

use super::*;
use crate::frame::{FrameConfig, PageIs};
use crate::units::{CHUNK_BYTES, Order};

const FORMS: [SwapCache; 3] = [SwapCache::TaggedTree, SwapCache::Tree, SwapCache::Table];

/// Slots that became free, with their contents.
#[derive(Clone, Debug, Default)]
struct Freed(Arc<Mutex<Vec<(SwapSlot, u64)>>>);

impl FreeSlot for Freed {
    fn slot_freed(&self, _frames: &FrameAllocator, slot: SwapSlot, content: u64) {
        self.0.lock().push((slot, content));
    }
}

struct CacheSetup {
    cache: Cache,
    frames: FrameAllocator,
    freed: Freed,
    counters: Arc<Counters>,
    budget: Arc<Budget>,
}

fn setup(form: SwapCache, areas: &[u32], end: u32) -> CacheSetup {
    let budget = Arc::new(Budget::new(1 << 30));
    let counters = Arc::new(Counters::new().unwrap());
    let config = FrameConfig::one_zone(4 * CHUNK_BYTES as u64, Backing::BasePages);
    let frames = FrameAllocator::new(&config, Arc::clone(&budget), Arc::clone(&counters)).unwrap();
    let freed = Freed::default();
    let cache =
        Cache::new(form, areas, end, Box::new(freed.clone()), &budget, Arc::clone(&counters)).unwrap();
    CacheSetup { cache, frames, freed, counters, budget }
}

/// The outcome of `begin_read`.
#[derive(Debug, PartialEq, Eq)]
enum ReadSeen {
    Reading(Option<Shadow>),
    Cached(FrameId),
    Gone,
}

impl CacheSetup {
    /// Makes a dirty frame with one use, like a page that one entry shows.
    fn shown(&self) -> FrameId {
        let frame = self.frames.alloc(Order::ZERO).unwrap().into_frame();
        self.frames.words(frame).holds.begin(true);
        self.frames.words(frame).uses.set_first();
        frame
    }

    fn holds(&self, frame: FrameId) -> &crate::frame::holds::HoldWord {
        &self.frames.words(frame).holds
    }

    fn pin(&self, frame: FrameId) {
        self.holds(frame).take_pin();
    }

    /// Drops a pin. Returns whether the frame was freed as well.
    fn unpin(&self, frame: FrameId) -> bool {
        let last = self.holds(frame).drop_pin() == Dropped::Last;
        if last {
            self.frames.free(frame, Order::ZERO).unwrap();
        }
        last
    }

    /// Looks up the frame of a slot, like a fault.
    fn look_up(&self, slot: SwapSlot) -> Option<FrameId> {
        match self.cache.look_up(&self.frames, slot) {
            Found::Frame(pin) => Some(pin.into_frame()),
            Found::Nothing => None,
            Found::Moved(frame) => panic!("{frame:?} moved while nobody was at work"),
        }
    }

    /// Begins a read. The fixture keeps the pins, by the numbers of their frames.
    fn begin_read(&self, slot: SwapSlot, fresh: FrameId) -> ReadSeen {
        match self.cache.begin_read(&self.frames, slot, Block::kept(fresh)) {
            Begun::Reading(pin, shadow) => {
                assert_eq!(pin.into_frame(), fresh);
                ReadSeen::Reading(shadow)
            }
            Begun::Cached(pin, block) => {
                assert_eq!(block.into_frame(), fresh);
                ReadSeen::Cached(pin.into_frame())
            }
            Begun::Gone(block) => {
                assert_eq!(block.into_frame(), fresh);
                ReadSeen::Gone
            }
        }
    }

    /// Puts a frame into the cache, makes its one entry lead to the slot instead of the frame, and writes the
    /// page.
    fn move_out(&self, slot: SwapSlot, frame: FrameId, content: u64) {
        let Self { cache, frames, .. } = self;
        self.pin(frame);
        cache.reserve(SlotRun { first: slot, count: 1 });
        assert!(cache.insert(frames, slot, frame));
        self.unmap(slot, frame);
        assert_eq!(cache.start_writeback(frames, slot, frame, PageIs::Dirty), Started::Yes);
        assert_eq!(cache.set_content(slot, content), 0);
        assert!(!cache.end_writeback(frames, slot, frame, true));
    }

    fn unmap(&self, slot: SwapSlot, frame: FrameId) {
        assert!(self.cache.add_reference(&self.frames, slot, frame));
        assert_ne!(self.frames.words(frame).uses.remove(), 0);
    }

    fn locks(&self) -> [u64; 5] {
        let counted = self.counters.snapshot();
        [
            Counter::SwapLockAdd,
            Counter::SwapLockStartWriteback,
            Counter::SwapLockEndWriteback,
            Counter::SwapLockRemove,
            Counter::SwapLockOther,
        ]
        .map(|counter| counted.get(counter))
    }
}

#[test]
fn a_page_on_its_way_out_takes_the_lock_four_times_twice_and_by_the_cluster() {
    const PAGES: u32 = 64;
    let expected = [[64, 64, 64, 64, 0], [64, 0, 0, 64, 0], [1, 0, 0, 1, 0]];
    for (form, expected) in FORMS.into_iter().zip(expected) {
        let setup = setup(form, &[0], 512);
        let CacheSetup { cache, frames, .. } = &setup;
        let pages: Vec<_> = (0..PAGES).map(|_| setup.shown()).collect();
        pages.iter().for_each(|frame| setup.pin(*frame));
        cache.reserve(SlotRun { first: SwapSlot(0), count: PAGES });
        let mut inserted = 0;
        cache
            .insert_run(frames, SwapSlot(0), pages.iter().copied(), |_, _, done| inserted += u32::from(done));
        assert_eq!(inserted, PAGES);
        for (slot, &frame) in pages.iter().enumerate() {
            let slot = SwapSlot(slot as u32);
            setup.unmap(slot, frame);
            assert_eq!(cache.start_writeback(frames, slot, frame, PageIs::Dirty), Started::Yes);
            assert!(!cache.end_writeback(frames, slot, frame, true));
        }
        let run = (0..).map(SwapSlot).zip(pages);
        cache.evict_run(frames, run, None, |_, evicted| assert_eq!(evicted, Evicted::Freed));
        assert_eq!(setup.locks(), expected, "{form:?}");
        assert_eq!(cache.validate(frames, 0..1), PAGES);
    }
}

#[test]
fn a_run_across_clusters_takes_the_lock_of_each() {
    let setup = setup(SwapCache::Table, &[0], 1024);
    let pages: Vec<_> = (0..4).map(|_| setup.shown()).collect();
    setup.cache.reserve(SlotRun { first: SwapSlot(510), count: 4 });
    setup.cache.insert_run(&setup.frames, SwapSlot(510), pages, |_, _, done| assert!(done));
    assert_eq!(setup.locks()[0], 2);
    assert_eq!(setup.cache.validate(&setup.frames, 0..2), 4);
}

#[test]
fn a_shadow_is_found_by_the_next_read_and_goes_with_its_slot() {
    for form in FORMS {
        let setup = setup(form, &[0], 512);
        let CacheSetup { cache, frames, freed, .. } = &setup;
        let slot = SwapSlot(7);
        for round in 1..3 {
            let frame = if round == 1 { setup.shown() } else { setup.look_up(slot).unwrap() };
            if round == 1 {
                setup.move_out(slot, frame, 99);
            }
            assert_eq!(cache.try_evict(frames, frame, Some(Shadow::at(16 * round))), Evicted::Freed);
            frames.free(frame, Order::ZERO).unwrap();
            assert_eq!(setup.look_up(slot), None);
            let fresh = frames.alloc(Order::ZERO).unwrap().into_frame();
            assert_eq!(setup.begin_read(slot, fresh), ReadSeen::Reading(Some(Shadow::at(16 * round))));
            assert_eq!(cache.content(slot), 99);
            let second = frames.alloc(Order::ZERO).unwrap().into_frame();
            assert_eq!(setup.begin_read(slot, second), ReadSeen::Cached(fresh), "one reads");
            assert!(!setup.unpin(fresh));
            setup.holds(fresh).end_read(true);
            assert!(!setup.unpin(fresh));
        }
        let frame = setup.look_up(slot).unwrap();
        assert_eq!(cache.try_evict(frames, frame, Some(Shadow::at(3))), Evicted::Freed);
        assert_eq!(cache.drop_reference(frames, slot), Orphan::None);
        assert_eq!(*freed.0.lock(), [(slot, 99)]);
        assert!(!cache.is_used(slot), "the shadow is gone");
        assert_eq!(cache.validate(frames, 0..1), 0);
    }
}

#[test]
fn a_page_that_is_out_again_leaves_a_fresh_shadow_unless_others_have_it() {
    let (before, after) = (Shadow::at(16), Shadow::at(32));
    for (form, is_shared) in FORMS.into_iter().flat_map(|form| [(form, false), (form, true)]) {
        let setup = setup(form, &[0], 512);
        let CacheSetup { cache, frames, .. } = &setup;
        let (slot, frame) = (SwapSlot(7), setup.shown());
        setup.move_out(slot, frame, 99);
        if is_shared {
            assert!(cache.add_reference(frames, slot, frame));
        }
        cache.leave(slot, after);
        assert_eq!(setup.look_up(slot), Some(frame), "its frame is there");
        assert!(!setup.unpin(frame));
        assert_eq!(cache.try_evict(frames, frame, Some(before)), Evicted::Freed);
        frames.free(frame, Order::ZERO).unwrap();
        cache.leave(slot, after);
        let fresh = frames.alloc(Order::ZERO).unwrap().into_frame();
        let shadow = if is_shared { before } else { after };
        assert_eq!(setup.begin_read(slot, fresh), ReadSeen::Reading(Some(shadow)), "{form:?}");
    }
}

#[test]
fn a_page_under_writeback_stays_with_its_slot() {
    for form in FORMS {
        let setup = setup(form, &[0], 512);
        let CacheSetup { cache, frames, freed, .. } = &setup;
        let (slot, frame) = (SwapSlot(3), setup.shown());
        setup.pin(frame);
        cache.reserve(SlotRun { first: slot, count: 1 });
        assert!(cache.insert(frames, slot, frame));
        setup.unmap(slot, frame);
        assert_eq!(cache.start_writeback(frames, slot, frame, PageIs::Dirty), Started::Yes);
        cache.validate(frames, 0..1);
        assert_eq!(cache.start_writeback(frames, slot, frame, PageIs::Dirty), Started::Refused, "once");
        assert_eq!(cache.drop_reference(frames, slot), Orphan::None, "its last entry goes");
        assert_eq!(cache.forget_orphan(frames, frame), Orphan::None);
        assert_eq!(cache.try_evict(frames, frame, None), Evicted::Kept);
        assert!(freed.0.lock().is_empty());
        assert!(!cache.end_writeback(frames, slot, frame, false));
        assert_eq!(cache.try_evict(frames, frame, None), Evicted::Kept, "it was not written");
        let Orphan::Frame(pin) = cache.forget_orphan(frames, frame) else { panic!("nothing leads to it") };
        assert_eq!(pin.into_frame(), frame);
        assert!(!setup.unpin(frame));
        assert!(setup.unpin(frame), "the writer's pin was the last");
        assert_eq!(*freed.0.lock(), [(slot, 0)]);
        assert_eq!(cache.validate(frames, 0..1), 0);
    }
}

#[test]
fn a_detached_frame_is_dirty_and_its_slot_free() {
    for form in FORMS {
        let setup = setup(form, &[0], 512);
        let CacheSetup { cache, frames, freed, .. } = &setup;
        let (slot, frame) = (SwapSlot(3), setup.shown());
        setup.move_out(slot, frame, 5);
        cache.detach(frames, frame);
        assert_eq!(slot_of(frames.words(frame)), Some(slot), "an entry still leads to the slot");
        assert!(frames.words(frame).uses.try_add(), "a fault shows it");
        assert_eq!(cache.drop_reference(frames, slot), Orphan::None);
        cache.detach(frames, frame);
        assert_eq!(slot_of(frames.words(frame)), None);
        assert!(setup.holds(frame).load().is_dirty());
        assert_eq!(*freed.0.lock(), [(slot, 5)]);
        assert_eq!(setup.look_up(slot), None);
        assert_eq!(
            cache.start_writeback(frames, slot, frame, PageIs::Dirty),
            Started::Refused,
            "it is not there any more"
        );
        assert!(setup.holds(frame).load().is_dirty());
    }
}

#[test]
fn a_frame_at_its_end_is_not_inserted() {
    for form in FORMS {
        let setup = setup(form, &[0], 512);
        let (slot, frame) = (SwapSlot(0), setup.shown());
        assert_eq!(setup.frames.words(frame).uses.remove(), 0);
        setup.cache.reserve(SlotRun { first: slot, count: 1 });
        assert!(!setup.cache.insert(&setup.frames, slot, frame));
        assert_eq!(setup.look_up(slot), None);
        setup.cache.free_unused(&setup.frames, slot);
        assert_eq!(*setup.freed.0.lock(), [(slot, 0)]);
        assert!(!setup.cache.is_used(slot));
    }
}

#[test]
fn each_area_has_a_tree_and_an_empty_one_costs_nothing() {
    let setup = setup(SwapCache::TaggedTree, &[0, 512], 1024);
    let before = setup.budget.used_bytes();
    let pages = [(SwapSlot(511), setup.shown()), (SwapSlot(512), setup.shown())];
    let grown_for_frames = setup.budget.used_bytes();
    setup.move_out(pages[0].0, pages[0].1, 0);
    let one = setup.budget.used_bytes() - grown_for_frames;
    setup.move_out(pages[1].0, pages[1].1, 0);
    assert!(one > 0 && before <= grown_for_frames);
    assert_eq!(setup.budget.used_bytes() - grown_for_frames, 2 * one);
    for (slot, frame) in pages {
        assert_eq!(setup.look_up(slot), Some(frame));
    }
    assert_eq!(setup.cache.validate(&setup.frames, 0..2), 2);
}

// --- against a model ---

/// The slots that the steps use. They lie in several leaves, clusters and areas.
const SLOTS: [u32; 8] = [0, 1, 63, 64, 511, 512, 1023, 1024];

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Puts a shown page into the cache. If the flag is set, its entry then leads to the slot.
    Add(usize, bool),
    Write(usize, bool),
    Evict(usize, u32),
    /// Makes an entry that leads to the slot show the frame, and reads the page if necessary.
    Fault(usize),
    /// Removes an entry that leads to the slot, or an entry that shows the frame.
    Drop(usize, bool),
    Store(usize),
    Detach(usize),
    /// Makes another entry lead to the slot.
    Share(usize),
    ReadAhead(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let at = 0..SLOTS.len();
    prop_oneof![
        3 => (at.clone(), any::<bool>()).prop_map(|(at, unmap)| Step::Add(at, unmap)),
        3 => (at.clone(), prop::bool::weighted(0.8)).prop_map(|(at, well)| Step::Write(at, well)),
        3 => (at.clone(), any::<u32>()).prop_map(|(at, shadow)| Step::Evict(at, shadow)),
        3 => at.clone().prop_map(Step::Fault),
        3 => (at.clone(), any::<bool>()).prop_map(|(at, swapped)| Step::Drop(at, swapped)),
        1 => at.clone().prop_map(Step::Store),
        1 => at.clone().prop_map(Step::Detach),
        1 => at.clone().prop_map(Step::Share),
        2 => at.prop_map(Step::ReadAhead),
    ]
}

/// What must be true of a slot in use.
#[derive(Clone, Debug, Default)]
struct Known {
    frame: Option<FrameId>,
    /// The number of entries that show the frame.
    shown: u32,
    swapped: u32,
    dirty: bool,
    shadow: Option<Shadow>,
    content: u64,
}

fn run(form: SwapCache, steps: &[Step]) {
    let setup = setup(form, &[0, 1024], 2048);
    let CacheSetup { cache, frames, .. } = &setup;
    let mut model = BTreeMap::<usize, Known>::new();
    let mut expected_free = Vec::new();
    for (time, &step) in steps.iter().enumerate() {
        let (Step::Add(at, _)
        | Step::Write(at, _)
        | Step::Evict(at, _)
        | Step::Fault(at)
        | Step::Drop(at, _)
        | Step::Store(at)
        | Step::Detach(at)
        | Step::Share(at)
        | Step::ReadAhead(at)) = step;
        let slot = SwapSlot(SLOTS[at]);
        match (step, model.get_mut(&at)) {
            (Step::Add(_, unmap), None) => {
                let frame = setup.shown();
                cache.reserve(SlotRun { first: slot, count: 1 });
                assert!(cache.insert(frames, slot, frame));
                if unmap {
                    setup.unmap(slot, frame);
                }
                let (shown, swapped) = (u32::from(!unmap), u32::from(unmap));
                let known =
                    Known { frame: Some(frame), shown, swapped, dirty: true, shadow: None, content: 0 };
                model.insert(at, known);
            }
            (Step::Write(_, well), Some(known)) => {
                let Some(frame) = known.frame else { continue };
                setup.pin(frame);
                let started = cache.start_writeback(frames, slot, frame, PageIs::Dirty);
                assert_eq!(started == Started::Yes, known.dirty);
                if started == Started::Yes {
                    assert_eq!(cache.set_content(slot, time as u64), known.content);
                    known.content = time as u64;
                    assert!(!cache.end_writeback(frames, slot, frame, well));
                    known.dirty = !well;
                }
                assert!(!setup.unpin(frame));
            }
            (Step::Evict(_, shadow), Some(known)) => {
                let Some(frame) = known.frame else { continue };
                setup.pin(frame);
                let shadow = Shadow::at(shadow.into());
                let goes = known.shown == 0 && !known.dirty;
                let evicted = cache.try_evict(frames, frame, Some(shadow));
                assert_eq!(evicted == Evicted::Freed, goes);
                if goes {
                    frames.free(frame, Order::ZERO).unwrap();
                    (known.frame, known.shadow) = (None, Some(shadow));
                } else {
                    assert!(!setup.unpin(frame));
                }
            }
            (Step::Fault(_), Some(known)) if known.swapped > 0 => {
                let frame = setup.look_up(slot).unwrap_or_else(|| {
                    let fresh = frames.alloc(Order::ZERO).unwrap().into_frame();
                    assert_eq!(setup.begin_read(slot, fresh), ReadSeen::Reading(known.shadow.take()));
                    setup.holds(fresh).end_read(true);
                    known.frame = Some(fresh);
                    fresh
                });
                assert_eq!(Some(frame), known.frame);
                assert_eq!(cache.content(slot), known.content);
                assert!(frames.words(frame).uses.try_add());
                known.shown += 1;
                known.swapped -= 1;
                assert_eq!(cache.drop_reference(frames, slot), Orphan::None);
                assert!(!setup.unpin(frame));
            }
            (Step::Drop(_, swapped), Some(known)) => {
                let orphan = if swapped && known.swapped > 0 {
                    known.swapped -= 1;
                    cache.drop_reference(frames, slot)
                } else if !swapped && known.shown > 0 {
                    known.shown -= 1;
                    let frame = known.frame.unwrap();
                    assert_ne!(frames.words(frame).uses.remove(), 0, "the cache is a use");
                    cache.forget_orphan(frames, frame)
                } else {
                    continue;
                };
                let ends = known.shown == 0 && known.swapped == 0;
                if ends {
                    expected_free.push((slot, known.content));
                }
                match orphan {
                    Orphan::Frame(pin) => {
                        let frame = pin.into_frame();
                        assert_eq!((ends, known.frame), (true, Some(frame)));
                        assert!(setup.unpin(frame), "nobody else holds it");
                    }
                    Orphan::None => assert!(!ends || known.frame.is_none()),
                }
                if ends {
                    model.remove(&at);
                }
            }
            (Step::Store(_), Some(known)) if known.shown > 0 => {
                let frame = known.frame.unwrap();
                setup.holds(frame).mark_dirty();
                known.dirty = true;
            }
            (Step::Detach(_), Some(known)) => {
                let Some(frame) = known.frame else { continue };
                setup.pin(frame);
                cache.detach(frames, frame);
                let goes = known.shown > 0 && known.swapped == 0;
                assert_eq!(slot_of(frames.words(frame)), (!goes).then_some(slot));
                assert!(!setup.unpin(frame));
                if goes {
                    assert!(setup.holds(frame).load().is_dirty());
                    expected_free.push((slot, known.content));
                    model.remove(&at);
                }
            }
            (Step::ReadAhead(_), known) => {
                let fresh = frames.alloc(Order::ZERO).unwrap().into_frame();
                let begun = setup.begin_read(slot, fresh);
                match known {
                    Some(known) if known.swapped > 0 && known.frame.is_none() => {
                        assert_eq!(begun, ReadSeen::Reading(known.shadow.take()));
                        setup.holds(fresh).end_read(true);
                        known.frame = Some(fresh);
                        assert!(!setup.unpin(fresh));
                    }
                    Some(known) if known.swapped > 0 => {
                        let cached = known.frame.expect("the arm above");
                        assert_eq!(begun, ReadSeen::Cached(cached));
                        assert!(!setup.unpin(cached));
                        frames.free(fresh, Order::ZERO).unwrap();
                    }
                    _ => {
                        assert_eq!(begun, ReadSeen::Gone);
                        frames.free(fresh, Order::ZERO).unwrap();
                    }
                }
            }
            (Step::Share(_), Some(known)) => {
                let Some(frame) = known.frame else { continue };
                assert!(cache.add_reference(frames, slot, frame));
                known.swapped += 1;
            }
            _ => {}
        }
        assert_eq!(*setup.freed.0.lock(), expected_free, "a slot is free when nothing leads to it");
    }
    for (at, slot) in SLOTS.into_iter().enumerate() {
        let slot = SwapSlot(slot);
        assert_eq!(cache.is_used(slot), model.contains_key(&at));
        assert_eq!(cache.is_out(slot), model.get(&at).is_none_or(|known| known.frame.is_none()));
        assert_eq!(setup.look_up(slot), model.get(&at).and_then(|known| known.frame));
    }
    assert_eq!(cache.validate(frames, 0..4), model.len() as u32);
    let swapped =
        model.iter().map(|(at, known)| (SwapSlot(SLOTS[*at]), known.swapped)).collect::<HashMap<_, _>>();
    let slots = || SLOTS.into_iter().map(SwapSlot);
    assert_eq!(cache.contradicted_by(slots(), &swapped), None);
    if let Some((at, _)) = model.first_key_value() {
        let mut wrong = swapped;
        *wrong.get_mut(&SwapSlot(SLOTS[*at])).unwrap() += 1;
        assert!(cache.contradicted_by(slots(), &wrong).is_some());
    }
}

proptest! {
    #[test]
    fn all_forms_agree_with_one_model(steps in prop::collection::vec(step(), 0..150)) {
        FORMS.into_iter().for_each(|form| run(form, &steps));
    }
}
