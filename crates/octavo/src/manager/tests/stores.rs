//! A second store under the same transfers and the same eviction: pages without slots, whose entries become
//! empty.

use super::{MIB, PAGE, frame_at, take_and_migrate};
use crate::Advice;
use crate::Counter;
use crate::Manager;
use crate::config::HugePolicy;
use crate::engine::{Engine, Figure};
use crate::frame::PinnedFrame;
use crate::io::Urgency;
use crate::io::test_device::{EIO, Manner, TestDevice};
use crate::policy::Arrival;
use crate::reclaim::Migrated;
use crate::region::RegionOptions;
use crate::rmap::Owner;
use crate::space::Space;
use crate::store::double::Double;
use crate::table::Protection;
use crate::units::{FrameId, Order, PageNumber, StoredPage};

const PAGES: u32 = 24;

struct Shown {
    /// How the pages' device completes transfers.
    manner: Manner,
    manager: Manager,
    space: Space,
    at: u64,
}

/// A space that shows pages of the second store, each with its own number in its first word.
fn shown(manner: Manner) -> Shown {
    let manager = super::manager(HugePolicy::Never);
    let space = manager.space().unwrap();
    let at = space.map(MIB, RegionOptions::default()).unwrap();
    let shown = Shown { manner, manager, space, at };
    for index in 0..PAGES {
        let engine = shown.engine();
        // A new page has no bytes to be read yet.
        let (pin, shadow) =
            engine.begin_read_ahead(shown.page(index), engine.frames.alloc(Order::ZERO).unwrap()).unwrap();
        assert_eq!(shadow, None, "a new page has left nothing behind");
        let frame = pin.frame();
        engine.frames.bytes().zero(frame.home_offset(), PAGE as usize);
        engine.frames.words(frame).holds.mark_dirty();
        let (ours, _) = PinnedFrame::take(frame, engine.frames.words(frame));
        engine.end_read_of(shown.page(index), pin, None);
        shown.show(index, ours);
        shown.space.store(shown.address(index), u64::from(index)).unwrap();
    }
    shown
}

impl Shown {
    fn engine(&self) -> &Engine {
        self.manager.engine()
    }

    fn double(&self) -> &Double {
        &self.engine().double
    }

    fn page(&self, index: u32) -> StoredPage {
        Double::page(self.manner, index)
    }

    fn device(&self) -> TestDevice {
        self.double().device_of(self.page(0))
    }

    fn address(&self, index: u32) -> u64 {
        self.at + u64::from(index) * PAGE
    }

    fn frame(&self, index: u32) -> Option<FrameId> {
        frame_at(&self.manager, &self.space, self.address(index))
    }

    /// An entry shows the page, as a fault on a file will make it.
    fn show(&self, index: u32, pin: PinnedFrame) {
        let (engine, frame) = (self.engine(), pin.frame());
        let (words, page) = (engine.frames.words(frame), PageNumber::containing(self.address(index)));
        let owner = Owner { space: self.space.state().id, page };
        // Makes an empty place in the table.
        self.space.populate(page.address(), PAGE, crate::table::Access::Read).unwrap();
        let walk = engine.table.walk(owner.space, page);
        assert!(walk.level == 0 && words.uses.try_add());
        engine.rmap.add(&engine.frames, frame, owner);
        engine.space_use.add(owner.space, Figure::Resident, 1);
        walk.word().change(walk.entry(), walk.entry().to_present(frame, Protection::READ_WRITE)).unwrap();
        engine.unpin(pin);
    }

    /// Brings the page in by a transfer, if it is out. Returns `None` if the device does not give it.
    fn bring(&self, index: u32) -> Option<PinnedFrame> {
        let (engine, page) = (self.engine(), self.page(index));
        let (pin, shadow) = engine.begin_read_ahead(page, engine.frames.alloc(Order::ZERO).unwrap())?;
        assert!(shadow.is_some(), "a page that went left something behind");
        engine.admit(pin.frame(), Arrival::of(shadow, false));
        let (ours, _) = PinnedFrame::take(pin.frame(), engine.frames.words(pin.frame()));
        engine.start_read(page, [pin], Urgency::Now);
        let holds = engine.frames.words(ours.frame()).holds.load();
        assert!(!holds.is_reading(), "the device answers at once");
        if holds.was_read_in_vain() {
            engine.unpin(ours);
            return None;
        }
        Some(ours)
    }

    fn bring_all(&self) {
        for index in 0..PAGES {
            let pin = self.bring(index).expect("the page comes back");
            self.show(index, pin);
        }
    }

    fn evict(&self) {
        while self.manager.reclaim(u64::from(PAGES)).unwrap() > 0 {}
    }
}

#[test]
fn pages_of_a_second_store_go_out_and_come_back_by_the_same_transfers() {
    let shown = shown(Manner::Inline);
    let written = || shown.device().writes().begun();
    for round in 0..3_u64 {
        shown.evict();
        assert_eq!(shown.double().in_memory(), 0, "round {round}: every page went");
        for index in 0..PAGES {
            assert_eq!(shown.frame(index), None);
            assert!(shown.double().has_shadow(shown.page(index)));
        }
        shown.manager.validate();
        let transfers = written();
        shown.bring_all();
        for index in 0..PAGES {
            let expected = u64::from(index) + round * 100;
            assert_eq!(shown.space.load::<u64>(shown.address(index)).unwrap(), expected, "page {index}");
        }
        shown.manager.validate();
        // A page that was not changed goes without a write.
        shown.evict();
        assert_eq!((shown.double().in_memory(), written()), (0, transfers));
        shown.bring_all();
        for index in 0..PAGES {
            shown.space.store(shown.address(index), u64::from(index) + (round + 1) * 100).unwrap();
        }
    }
    assert!(written() > 0);
    let stats = shown.manager.stats().unwrap();
    assert_eq!(
        (stats.swap_slots, shown.manager.counters().get(Counter::SwapOut)),
        (0, 0),
        "swap took no part"
    );
}

#[test]
fn pages_of_both_stores_go_out_in_one_batch() {
    let shown = shown(Manner::Inline);
    let at = shown.space.map(MIB, RegionOptions::default()).unwrap();
    for page in 0..PAGES {
        shown.space.store(at + u64::from(page) * PAGE, 1000 + u64::from(page)).unwrap();
    }
    shown.evict();
    assert_eq!(shown.double().in_memory(), 0);
    assert_eq!(shown.manager.stats().unwrap().swap_slots, u64::from(PAGES));
    shown.bring_all();
    for page in 0..PAGES {
        let (ours, swapped) = (shown.address(page), at + u64::from(page) * PAGE);
        assert_eq!(shown.space.load::<u64>(ours).unwrap(), u64::from(page));
        assert_eq!(shown.space.load::<u64>(swapped).unwrap(), 1000 + u64::from(page));
    }
    shown.manager.validate();
}

#[test]
fn a_page_that_a_second_store_could_not_write_stays_its_own_and_is_written_later() {
    let shown = shown(Manner::Inline);
    shown.device().writes().fail_every(1, EIO);
    let _ = shown.manager.reclaim(u64::from(PAGES));
    assert_eq!(shown.double().in_memory(), PAGES as usize, "no page is lost");
    shown.device().heal();
    shown.evict();
    assert_eq!(shown.double().in_memory(), 0);
    shown.device().reads().fail_every(1, EIO);
    assert!(shown.bring(0).is_none());
    assert_eq!(shown.double().in_memory(), 0, "a failed read leaves no frame");
    shown.device().heal();
    // The frame of the failed read took the shadow with it.
    let (engine, page) = (shown.engine(), shown.page(0));
    let (pin, _) = engine.begin_read_ahead(page, engine.frames.alloc(Order::ZERO).unwrap()).unwrap();
    let (ours, _) = PinnedFrame::take(pin.frame(), engine.frames.words(pin.frame()));
    engine.start_read(page, [pin], Urgency::Now);
    shown.show(0, ours);
    assert_eq!(shown.space.load::<u64>(shown.address(0)).unwrap(), 0);
    shown.manager.validate();
}

#[test]
fn a_page_stays_with_its_store_when_nothing_shows_it_and_is_not_migrated() {
    let shown = shown(Manner::Inline);
    let frame = shown.frame(3).unwrap();
    assert_eq!(take_and_migrate(shown.engine(), frame), Migrated::Kept, "its store keeps it");
    shown.space.unmap(shown.at, MIB).unwrap();
    assert_eq!(shown.double().in_memory(), PAGES as usize);
    shown.evict();
    assert_eq!(shown.double().in_memory(), 0, "written, and gone");
    shown.manager.validate();
}

/// The second store's own devices, and not only swap's, are flushed and served.
#[test]
fn devices_of_a_second_store_end_what_they_only_collect_and_what_nobody_waits_for_in_place() {
    for manner in [Manner::AtFlush, Manner::Served] {
        let shown = shown(manner);
        shown.evict();
        assert_eq!(shown.double().in_memory(), 0, "{manner:?}: every page went");
        // A device with threads of its own reports an end before it counts it.
        while shown.device().under_way() > 0 {
            crate::sync::thread::yield_now();
        }
        assert!(shown.device().writes().begun() > 0);
        shown.manager.validate();
    }
}

#[test]
fn a_device_of_a_second_store_is_asked_in_passing_what_has_ended() {
    let shown = shown(Manner::Driven);
    shown.space.advise(shown.at, u64::from(PAGES) * PAGE, Advice::PageOut).unwrap();
    assert!(shown.device().under_way() > 0, "the writes were started");
    shown.engine().poll_transfers();
    assert_eq!((shown.device().under_way(), shown.double().in_memory()), (0, 0));
    shown.manager.validate();
}
