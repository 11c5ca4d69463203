//! Models of the cache in its three forms. Pages are inserted, looked up, written and removed. Meanwhile
//! faults bring them back, programs write to them, and their last entries are unmapped.
//!
//! The cache, the trees, and the words of frames are the real ones. The steps are the steps of reclaim and
//! faults, in their order. The bytes of a frame are one relaxed word, as are the bytes of a slot on the
//! device. A cell of the checker guards each frame. There are no entries: comments say what the entries would
//! guarantee.

use ::loom::cell::UnsafeCell;

use super::*;
use crate::frame::holds::HoldWord;
use crate::frame::{FrameConfig, PageIs};
use crate::mapping::Tag;
use crate::sync::{AtomicU32, AtomicU64, Ordering, Shared, bounded, fence, thread};
use crate::units::Order;

const FORMS: [SwapCache; 3] = [SwapCache::TaggedTree, SwapCache::Tree, SwapCache::Table];
const SLOTS: u32 = 8;
const SLOT: SwapSlot = SwapSlot(0);
/// The page's bytes before and after a program writes to the page.
const OLD: u64 = 7;
const NEW: u64 = 8;

/// The state of the slots.
#[derive(Debug, Default)]
struct SlotStates {
    writing: [AtomicU32; SLOTS as usize],
    in_use: [AtomicU32; SLOTS as usize],
}

#[derive(Debug)]
struct Sink(Shared<SlotStates>);

impl FreeSlot for Sink {
    fn slot_freed(&self, _frames: &FrameAllocator, slot: SwapSlot, _content: u64) {
        assert_eq!(self.0.writing[slot.0 as usize].load(Ordering::Relaxed), 0, "freed while it is written");
        assert_eq!(self.0.in_use[slot.0 as usize].swap(0, Ordering::Relaxed), 1, "freed twice");
    }
}

struct Model {
    cache: Cache,
    frames: FrameAllocator,
    slots: Shared<SlotStates>,
    device: [AtomicU64; SLOTS as usize],
    /// By frame.
    bytes: Vec<AtomicU64>,
    /// A thread that holds the frame reads its cell. A thread that has the frame alone writes to the cell.
    held: Vec<UnsafeCell<()>>,
    alive: Vec<AtomicU32>,
}

fn in_all_forms(preemptions: usize, model: impl Fn(SwapCache) + Copy + Send + Sync + 'static) {
    FORMS.into_iter().for_each(|form| bounded(preemptions, move || model(form)));
}

/// Runs both at once.
fn race(model: &Arc<Model>, other: impl FnOnce(&Model) + Send + 'static, here: impl FnOnce(&Model)) {
    let theirs = Arc::clone(model);
    let thread = thread::spawn(move || other(&theirs));
    here(model);
    thread.join().unwrap();
}

impl Model {
    fn new(form: SwapCache) -> Arc<Self> {
        let budget = Arc::new(Budget::new(1 << 20));
        let counters = Arc::new(Counters::new().unwrap());
        let frames =
            FrameAllocator::new(&FrameConfig::tiny(), Arc::clone(&budget), Arc::clone(&counters)).unwrap();
        let slots = Shared::new(SlotStates::default());
        let sink = Box::new(Sink(Shared::clone(&slots)));
        let count = frames.end_frame().index();
        Arc::new(Self {
            cache: Cache::new(form, &[0], SLOTS, sink, &budget, counters).unwrap(),
            frames,
            slots,
            device: Default::default(),
            bytes: (0..count).map(|_| AtomicU64::new(0)).collect(),
            held: (0..count).map(|_| UnsafeCell::new(())).collect(),
            alive: (0..count).map(|_| AtomicU32::new(0)).collect(),
        })
    }

    fn holds(&self, frame: FrameId) -> &HoldWord {
        &self.frames.words(frame).holds
    }

    fn fresh(&self) -> FrameId {
        let frame = self.frames.alloc(Order::ZERO).unwrap().into_frame();
        self.alive[frame.index()].store(1, Ordering::Relaxed);
        frame
    }

    /// Makes a frame look like a page that one entry shows: live, dirty, with one use.
    fn begin(&self, frame: FrameId, bytes: u64) {
        self.bytes[frame.index()].store(bytes, Ordering::Relaxed);
        self.holds(frame).begin(true);
        self.frames.words(frame).uses.set_first();
    }

    /// The caller dropped the last hold, so it has the frame alone.
    fn freed(&self, frame: FrameId) {
        self.held[frame.index()].with_mut(|_| ());
        assert_eq!(self.alive[frame.index()].swap(0, Ordering::Relaxed), 1, "a frame was freed twice");
    }

    fn drop_pin(&self, frame: FrameId) {
        if self.holds(frame).drop_pin() == Dropped::Last {
            self.freed(frame);
        }
    }

    fn unpin_orphan(&self, orphan: Orphan) {
        if let Orphan::Frame(pin) = orphan {
            self.drop_pin(pin.into_frame());
        }
    }

    /// These are the steps of `Engine::disown`.
    fn end_use(&self, frame: FrameId) {
        match self.frames.words(frame).uses.remove() {
            0 if self.holds(frame).release() == Dropped::Last => self.freed(frame),
            1 => self.unpin_orphan(self.cache.forget_orphan(&self.frames, frame)),
            _ => {}
        }
    }

    /// Puts a frame that reclaim has pinned into the cache, and makes its one entry lead to the slot.
    fn add(&self, slot: SwapSlot, frame: FrameId) {
        self.cache.reserve(SlotRun { first: slot, count: 1 });
        self.slots.in_use[slot.0 as usize].store(1, Ordering::Relaxed);
        assert!(self.cache.insert(&self.frames, slot, frame));
        assert!(self.cache.add_reference(&self.frames, slot, frame));
        assert_ne!(self.frames.words(frame).uses.remove(), 0);
    }

    /// Makes a page that is on its way out: in the cache, dirty, pinned by reclaim, with one entry that leads
    /// to its slot.
    fn page_on_its_way_out(form: SwapCache) -> (Arc<Self>, FrameId) {
        let model = Self::new(form);
        let frame = model.fresh();
        model.begin(frame, OLD);
        model.holds(frame).take_pin();
        model.add(SLOT, frame);
        (model, frame)
    }

    /// Makes a page that is on its way out and already written, so that its frame is clean.
    fn clean_page(form: SwapCache) -> (Arc<Self>, FrameId) {
        let (model, frame) = Self::page_on_its_way_out(form);
        assert!(model.write(SLOT, frame));
        (model, frame)
    }

    /// Returns false if another thread holds the frame, or if the frame has left the cache.
    fn write(&self, slot: SwapSlot, frame: FrameId) -> bool {
        match self.cache.start_writeback(&self.frames, slot, frame, PageIs::Dirty) {
            Started::Yes => {}
            Started::Refused => return false,
            Started::RefusedAndAwaited => panic!("nobody waits in these models"),
        }
        let at = slot.0 as usize;
        assert_eq!(self.slots.writing[at].swap(1, Ordering::Relaxed), 0, "two writes to one place");
        self.device[at].store(self.bytes[frame.index()].load(Ordering::Relaxed), Ordering::Relaxed);
        self.slots.writing[at].store(0, Ordering::Relaxed);
        assert!(!self.cache.end_writeback(&self.frames, slot, frame, true));
        true
    }

    fn evict_or_keep(&self, frame: FrameId) -> bool {
        if self.cache.try_evict(&self.frames, frame, Some(Shadow::at(1))) == Evicted::Freed {
            self.freed(frame);
            return true;
        }
        self.keep(frame);
        false
    }

    /// Does the steps of `Engine::evict_or_keep`. Returns which frames were freed.
    fn evict_or_keep_run(&self, run: [(SwapSlot, FrameId); 2]) -> [bool; 2] {
        let mut outcomes = Vec::new();
        self.cache.evict_run(&self.frames, run, Some(Shadow::at(1)), |frame, evicted| {
            outcomes.push((frame, evicted == Evicted::Freed));
        });
        for &(frame, is_free) in &outcomes {
            if is_free { self.freed(frame) } else { self.keep(frame) }
        }
        [outcomes[0].1, outcomes[1].1]
    }

    fn keep(&self, frame: FrameId) {
        self.unpin_orphan(self.cache.forget_orphan(&self.frames, frame));
        self.drop_pin(frame);
    }

    /// Does the rest of a page's way out. Returns whether its frame was freed.
    fn go_out(&self, slot: SwapSlot, frame: FrameId) -> bool {
        if self.holds(frame).load().is_dirty() && !self.write(slot, frame) {
            self.keep(frame);
            return false;
        }
        self.evict_or_keep(frame)
    }

    /// Returns the pinned frame of a slot that an entry leads to. The frame is found in the cache, or it is
    /// `fresh` with the bytes read into it.
    fn bring_in(&self, slot: SwapSlot, fresh: FrameId) -> FrameId {
        loop {
            match self.cache.look_up(&self.frames, slot) {
                Found::Frame(pin) => return pin.into_frame(),
                Found::Moved(pin) => self.drop_pin(pin.into_frame()),
                Found::Nothing => break,
            }
        }
        match self.cache.begin_read(&self.frames, slot, Block::kept(fresh)) {
            Begun::Cached(pin, block) => {
                block.into_frame();
                pin.into_frame()
            }
            Begun::Gone(_) => panic!("an entry leads to the slot"),
            Begun::Reading(pin, _) => {
                assert_eq!(pin.into_frame(), fresh);
                let bytes = self.device[slot.0 as usize].load(Ordering::Relaxed);
                self.bytes[fresh.index()].store(bytes, Ordering::Relaxed);
                assert!(!self.holds(fresh).end_read(true));
                fresh
            }
        }
    }

    /// Makes the entry show the frame instead of leading to the slot. This is the end of a fault.
    fn show(&self, slot: SwapSlot, frame: FrameId, crowded: bool) {
        self.held[frame.index()].with(|_| ());
        assert_eq!(self.bytes[frame.index()].load(Ordering::Relaxed), OLD, "the bytes of another page");
        assert!(self.frames.words(frame).uses.try_add(), "a cached frame is in use");
        self.unpin_orphan(self.cache.drop_reference(&self.frames, slot));
        if crowded {
            self.cache.detach(&self.frames, frame);
        }
        self.drop_pin(frame);
    }

    /// Writes to the page like `access::write_through`, while the entry shows the frame.
    fn store(&self, frame: FrameId) {
        let before = self.holds(frame).take_pin();
        fence(Ordering::Release);
        self.bytes[frame.index()].store(NEW, Ordering::Relaxed);
        if !before.is_dirty() {
            self.holds(frame).mark_dirty();
        }
        self.drop_pin(frame);
    }

    fn validate(&self, used: u32) {
        assert_eq!(self.cache.validate(&self.frames, 0..SLOTS / 2), used);
        let in_use: u32 = self.slots.in_use.iter().map(|slot| slot.load(Ordering::Relaxed)).sum();
        assert_eq!(in_use, used, "slots in use are those that were not freed");
    }

    fn is_alive(&self, frame: FrameId) -> bool {
        self.alive[frame.index()].load(Ordering::Relaxed) == 1
    }
}

/// The entry that leads to a page is unmapped while the page is on its way out. The slot and the frame are
/// freed once, and not during the write.
#[test]
fn loom_cache_the_way_out_against_the_last_reference() {
    in_all_forms(3, |form| {
        let (model, frame) = Model::page_on_its_way_out(form);
        race(
            &model,
            |model| model.unpin_orphan(model.cache.drop_reference(&model.frames, SLOT)),
            |model| {
                model.go_out(SLOT, frame);
            },
        );
        model.validate(0);
        assert!(!model.is_alive(frame), "nothing leads to the frame, and it is still there");
    });
}

/// One entry shows a page, and another entry leads to the page's slot. Both are unmapped while the page is
/// being written.
#[test]
fn loom_cache_the_way_out_against_both_entries() {
    in_all_forms(2, |form| {
        let (model, frame) = Model::page_on_its_way_out(form);
        assert!(model.frames.words(frame).uses.try_add());
        let theirs = Arc::clone(&model);
        let dropping = thread::spawn(move || {
            theirs.unpin_orphan(theirs.cache.drop_reference(&theirs.frames, SLOT));
        });
        race(
            &model,
            move |model| {
                // These are the steps of `Engine::disown`.
                assert_ne!(model.frames.words(frame).uses.remove(), 0, "the cache is a use");
                model.unpin_orphan(model.cache.forget_orphan(&model.frames, frame));
            },
            |model| {
                model.go_out(SLOT, frame);
            },
        );
        dropping.join().unwrap();
        model.validate(0);
        assert!(!model.is_alive(frame), "nothing leads to the frame, and it is still there");
    });
}

/// An entry has just been made to lead to its slot, and its use of the frame has not ended yet. Meanwhile a
/// fault shows the page again, so that the page gives up its slot. Then the page is unmapped. The thread that
/// ends the last use frees the frame, once.
#[test]
fn loom_cache_the_end_of_a_use_against_a_return_that_is_unmapped() {
    in_all_forms(2, |form| {
        let (model, frame) = Model::page_on_its_way_out(form);
        assert!(model.frames.words(frame).uses.try_add(), "that of the entry");
        let fresh = model.fresh();
        race(
            &model,
            move |model| {
                let found = model.bring_in(SLOT, fresh);
                model.show(SLOT, found, true);
                model.end_use(found);
            },
            |model| {
                // Here `unmap_owners` would unmap the entry.
                if model.frames.words(frame).uses.remove() == 0 {
                    assert_eq!(model.holds(frame).release(), Dropped::Kept, "pinned");
                }
                model.go_out(SLOT, frame);
            },
        );
        assert!(!model.is_alive(frame), "nothing leads to the frame, and it is still there");
        model.validate(0);
    });
}

/// A program reads a page and writes to it while the page is on its way out. The read finds the old bytes.
/// The written bytes are in a dirty frame or on the device afterwards. If slots are few, the frame leaves the
/// cache, and another page takes the slot at once.
fn refault_with_a_store(crowded: bool) {
    in_all_forms(2, move |form| {
        let (model, frame) = Model::page_on_its_way_out(form);
        let (fresh, next) = (model.fresh(), model.fresh());
        model.begin(next, 9);
        let shown = Arc::new(AtomicU32::new(u32::MAX));
        let said = Arc::clone(&shown);
        race(
            &model,
            move |model| {
                let found = model.bring_in(SLOT, fresh);
                model.show(SLOT, found, crowded);
                model.store(found);
                if crowded && model.slots.in_use[0].load(Ordering::Relaxed) == 0 {
                    model.add(SLOT, next);
                }
                said.store(found.0, Ordering::Relaxed);
            },
            |model| {
                model.go_out(SLOT, frame);
            },
        );
        let found = FrameId(shown.load(Ordering::Relaxed));
        assert!(model.is_alive(found) && (found == frame || !model.is_alive(frame)));
        assert_eq!(model.bytes[found.index()].load(Ordering::Relaxed), NEW);
        let cached = slot_of(model.frames.words(found)) == Some(SLOT);
        let on_device = cached && model.device[0].load(Ordering::Relaxed) == NEW;
        assert!(on_device || model.holds(found).load().is_dirty(), "the store would be lost");
        assert!(!model.holds(found).load().is_writeback());
        let taken = slot_of(model.frames.words(next)) == Some(SLOT);
        assert!(!(cached && taken), "two pages have one slot");
        model.validate(u32::from(cached || taken));
    });
}

#[test]
fn loom_cache_the_way_out_against_a_store() {
    refault_with_a_store(false);
}

#[test]
fn loom_cache_the_way_out_against_a_store_in_a_crowded_area() {
    refault_with_a_store(true);
}

/// A clean page loses its frame to another page, in another slot, while a program touches the first page. The
/// look-up finds the first page's bytes, in either frame.
#[test]
fn loom_cache_a_look_up_never_has_a_frame_that_moved_to_another_slot() {
    in_all_forms(3, |form| {
        let (model, frame) = Model::clean_page(form);
        let fresh = model.fresh();
        race(
            &model,
            move |model| {
                let found = model.bring_in(SLOT, fresh);
                model.show(SLOT, found, false);
            },
            |model| {
                if model.evict_or_keep(frame) {
                    model.alive[frame.index()].store(1, Ordering::Relaxed);
                    model.begin(frame, 9);
                    model.add(SwapSlot(1), frame);
                }
            },
        );
        let moved = slot_of(model.frames.words(frame)) == Some(SwapSlot(1));
        model.validate(1 + u32::from(moved));
    });
}

/// Neighbours of a page are inserted and removed, the tree grows, and nodes are reused. A page that stays is
/// always found without the lock. A page that comes and goes is found in its own slot or not at all.
#[test]
fn loom_cache_a_page_that_is_there_is_found_while_its_neighbours_come_and_go() {
    in_all_forms(2, |form| {
        let (model, frame) = Model::clean_page(form);
        let (second, third) = (model.fresh(), model.fresh());
        model.begin(second, 9);
        model.begin(third, 9);
        model.holds(second).take_pin();
        race(
            &model,
            move |model| {
                let Found::Frame(pin) = model.cache.look_up(&model.frames, SLOT) else {
                    panic!("it is there")
                };
                assert_eq!(pin.frame(), frame);
                model.drop_pin(pin.into_frame());
                match model.cache.look_up(&model.frames, SwapSlot(3)) {
                    Found::Frame(pin) => {
                        let found = pin.into_frame();
                        // The page may have left since, but `third` was never in another slot.
                        assert_eq!(found, third);
                        model.drop_pin(found);
                    }
                    Found::Moved(pin) => model.drop_pin(pin.into_frame()),
                    Found::Nothing => {}
                }
            },
            |model| {
                // This slot has a leaf of its own, which is freed and reused for another slot.
                model.add(SwapSlot(2), second);
                model.unpin_orphan(model.cache.drop_reference(&model.frames, SwapSlot(2)));
                model.add(SwapSlot(3), third);
            },
        );
        model.drop_pin(second);
        assert!(!model.is_alive(second) && model.is_alive(third));
        model.validate(2);
    });
}

/// A read begins while a neighbour of the slot is removed, and the node above both is reused elsewhere. A
/// word in that node does not count as the frame of the slot.
#[test]
fn loom_cache_a_read_begins_whatever_becomes_of_the_nodes_on_its_way() {
    in_all_forms(2, |form| {
        let (model, neighbour) = Model::clean_page(form);
        let pages = [2, 4].map(|slot| {
            let (slot, frame) = (SwapSlot(slot), model.fresh());
            model.begin(frame, 9);
            model.holds(frame).take_pin();
            model.add(slot, frame);
            assert!(model.write(slot, frame));
            frame
        });
        // One page is out and leaves no shadow. The other page keeps the tree's height.
        assert_eq!(model.cache.try_evict(&model.frames, pages[0], None), Evicted::Freed);
        let (fresh, last) = (model.fresh(), model.fresh());
        model.begin(last, 9);
        race(
            &model,
            move |model| match model.cache.begin_read(&model.frames, SwapSlot(2), Block::kept(fresh)) {
                Begun::Reading(pin, None) => assert_eq!(pin.into_frame(), fresh),
                other => panic!("{other:?}"),
            },
            |model| {
                model.unpin_orphan(model.cache.drop_reference(&model.frames, SLOT));
                model.drop_pin(neighbour);
                model.add(SwapSlot(7), last);
            },
        );
        assert!(!model.is_alive(neighbour));
        model.validate(3);
    });
}

/// Under the lock of a mapping with tags, a page is tagged if and only if its frame says that it is being
/// written.
#[test]
fn loom_cache_tag_and_flag_agree_whenever_the_lock_is_free() {
    bounded(3, || {
        let (model, frame) = Model::page_on_its_way_out(SwapCache::TaggedTree);
        race(
            &model,
            move |model| {
                let (mapping, index) = model.cache.index.mapping(SLOT).unwrap();
                for _ in 0..2 {
                    let changes = mapping.lock();
                    let place = changes.find(index).expect("nobody removes it");
                    let flag = model.holds(frame).load().is_writeback();
                    assert_eq!(changes.has_tag(&place, Tag::Writeback), flag);
                    assert_eq!(changes.any_tagged(Tag::Writeback), flag);
                }
            },
            |model| assert!(model.write(SLOT, frame)),
        );
        model.validate(1);
    });
}

/// Two pages, in one cluster or in two, are evicted in one call. Meanwhile the entry of the first page is
/// unmapped, and a program touches the second page. The slot and the frame of the first page are freed once.
/// The bytes of the second page are found, in its old frame or a new one.
#[test]
fn loom_cache_a_run_goes_out_against_a_drop_and_a_look_up_in_it() {
    for next in [SwapSlot(1), SwapSlot(CLUSTER_SLOTS as u32)] {
        in_all_forms(2, move |form| {
            let (model, first) = Model::clean_page(form);
            let (second, fresh) = (model.fresh(), model.fresh());
            model.begin(second, OLD);
            model.holds(second).take_pin();
            model.add(next, second);
            assert!(model.write(next, second));
            let theirs = Arc::clone(&model);
            let dropping = thread::spawn(move || {
                theirs.unpin_orphan(theirs.cache.drop_reference(&theirs.frames, SLOT));
            });
            let freed = Arc::new(AtomicU32::new(0));
            race(
                &model,
                move |model| {
                    let found = model.bring_in(next, fresh);
                    model.show(next, found, false);
                },
                |model| {
                    let [_, is_free] = model.evict_or_keep_run([(SLOT, first), (next, second)]);
                    freed.store(u32::from(is_free), Ordering::Relaxed);
                },
            );
            dropping.join().unwrap();
            assert!(!model.is_alive(first), "nothing leads to it");
            assert_eq!(model.is_alive(second), freed.load(Ordering::Relaxed) == 0);
            model.validate(1);
        });
    }
}

/// Two faults on one slot, by two entries, race with an eviction. At most one fault reads the page, and both
/// end with the same frame.
#[test]
fn loom_cache_two_faults_share_one_frame() {
    in_all_forms(2, |form| {
        let (model, frame) = Model::clean_page(form);
        assert!(model.cache.add_reference(&model.frames, SLOT, frame));
        assert!(model.evict_or_keep(frame));
        let fresh = [model.fresh(), model.fresh()];
        let shown = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let fault = |at: usize| {
            let shown = Arc::clone(&shown);
            move |model: &Model| {
                let found = model.bring_in(SLOT, fresh[at]);
                while model.holds(found).load().is_reading() {
                    thread::yield_now();
                }
                model.show(SLOT, found, false);
                shown[at].store(found.0, Ordering::Relaxed);
            }
        };
        race(&model, fault(0), fault(1));
        let [one, other] = [0, 1].map(|at| shown[at].load(Ordering::Relaxed));
        assert_eq!(one, other);
        assert_eq!(model.frames.words(FrameId(one)).uses.get(), 3, "two entries and the cache");
        model.validate(1);
    });
}
