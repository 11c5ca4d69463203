//! The page cache under the same transfers and the same eviction as swap: pages without slots, whose entries
//! become empty.

use super::{MIB, PAGE, frame_at, take_and_migrate};
use crate::config::HugePolicy;
use crate::engine::Engine;
use crate::error::ErrorKind;
use crate::file::{File, FileOptions, Sharing};
use crate::io::test_device::{EIO, Manner, TestDevice, TestFile};
use crate::reclaim::Migrated;
use crate::region::RegionOptions;
use crate::space::Space;
use crate::units::FrameId;
use crate::{Advice, Counter, Manager};

const PAGES: u64 = 24;

struct Shown {
    manager: Manager,
    backing: TestFile,
    file: File,
    space: Space,
    at: u64,
}

/// A space that shows the pages of a file, each with its own number in its first word. The file's device
/// completes transfers in this manner.
fn shown(manner: Manner) -> Shown {
    let manager = super::manager(HugePolicy::Never);
    let backing = TestFile::new(TestDevice::with_manner(64, manner).named("the file's device"));
    let options = FileOptions::new().write(true);
    let file = manager.open_backing("a file", backing.boxed(), options).unwrap();
    file.set_len_bytes(PAGES * PAGE).unwrap();
    let space = manager.space().unwrap();
    let at = space.map_file(&file, 0, MIB, Sharing::Shared, RegionOptions::default()).unwrap();
    let shown = Shown { manager, backing, file, space, at };
    (0..PAGES).for_each(|index| shown.space.store(shown.address(index), index).unwrap());
    shown
}

impl Shown {
    fn engine(&self) -> &Engine {
        self.manager.engine()
    }

    fn address(&self, index: u64) -> u64 {
        self.at + index * PAGE
    }

    fn frame(&self, index: u64) -> Option<FrameId> {
        frame_at(&self.manager, &self.space, self.address(index))
    }

    fn written(&self) -> u64 {
        self.backing.device.writes().begun()
    }

    /// Pages of the file that have a frame.
    fn in_memory(&self) -> u64 {
        let (engine, cache) = (self.engine(), &self.engine().page_cache);
        let inode = &cache.files().next().unwrap();
        let (mut from, mut count) = (0, 0);
        while let Some((at, _, pin)) = cache.next_cached(&engine.frames, inode, from..u64::MAX) {
            engine.unpin(pin);
            (from, count) = (at + 1, count + 1);
        }
        count
    }

    fn evict(&self) {
        while self.manager.reclaim(PAGES).unwrap() > 0 {}
    }
}

#[test]
fn pages_of_a_file_go_out_and_come_back_by_the_same_transfers() {
    let shown = shown(Manner::Inline);
    for round in 0..3_u64 {
        shown.evict();
        assert_eq!(shown.in_memory(), 0, "round {round}: every page went");
        for index in 0..PAGES {
            assert_eq!(shown.frame(index), None);
        }
        shown.manager.validate();
        let transfers = shown.written();
        for index in 0..PAGES {
            let expected = index + round * 100;
            assert_eq!(shown.space.load::<u64>(shown.address(index)).unwrap(), expected, "page {index}");
        }
        shown.manager.validate();
        // A page that was not changed goes without a write.
        shown.evict();
        assert_eq!((shown.in_memory(), shown.written()), (0, transfers));
        for index in 0..PAGES {
            shown.space.store(shown.address(index), index + (round + 1) * 100).unwrap();
        }
    }
    assert!(shown.written() > 0);
    assert!(shown.manager.counters().get(Counter::WorkingsetRefault) > 0, "pages left shadows");
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
        shown.space.store(at + page * PAGE, 1000 + page).unwrap();
    }
    shown.evict();
    assert_eq!(shown.in_memory(), 0);
    assert_eq!(shown.manager.stats().unwrap().swap_slots, PAGES);
    for page in 0..PAGES {
        assert_eq!(shown.space.load::<u64>(shown.address(page)).unwrap(), page);
        assert_eq!(shown.space.load::<u64>(at + page * PAGE).unwrap(), 1000 + page);
    }
    shown.manager.validate();
}

#[test]
fn a_page_that_could_not_be_written_stays_and_a_sync_writes_it_later() {
    let shown = shown(Manner::Inline);
    shown.backing.device.writes().fail_every(1, EIO);
    let _ = shown.manager.reclaim(PAGES);
    assert_eq!(shown.in_memory(), PAGES, "no page is lost");
    let begun = shown.written();
    let _ = shown.manager.reclaim(PAGES);
    assert_eq!(shown.written(), begun, "reclaim leaves a file alone that takes no pages");
    let refused = shown.file.sync().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::FileWrite, "{refused}");
    shown.backing.device.heal();
    shown.file.sync().unwrap();
    shown.evict();
    assert_eq!(shown.in_memory(), 0);
    shown.backing.device.reads().fail_every(1, EIO);
    let refused = shown.space.load::<u64>(shown.address(0)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::FileRead, "{refused}");
    assert_eq!(shown.in_memory(), 0, "a failed read leaves no frame");
    shown.backing.device.heal();
    assert_eq!(shown.space.load::<u64>(shown.address(0)).unwrap(), 0);
    shown.manager.validate();
}

#[test]
fn each_opener_learns_of_an_error_once() {
    let shown = shown(Manner::Inline);
    let other = shown.file.clone();
    shown.backing.fail_syncs(true);
    shown.file.sync().unwrap_err();
    shown.backing.fail_syncs(false);
    other.sync().expect("a clone is the same opener");
    shown.space.store(shown.at, 5_u64).unwrap();
    shown.file.sync().unwrap();
    assert_eq!(shown.backing.syncs(), 2);
}

#[test]
fn a_page_moves_to_another_frame_and_stays_in_the_cache_when_nothing_shows_it() {
    let shown = shown(Manner::Inline);
    let frame = shown.frame(3).unwrap();
    assert_eq!(take_and_migrate(shown.engine(), frame), Migrated::Moved);
    assert!(shown.frame(3).is_some_and(|now| now != frame), "its entry shows the other frame");
    assert_eq!(shown.space.load::<u64>(shown.address(3)).unwrap(), 3);
    shown.manager.validate();
    shown.space.unmap(shown.at, MIB).unwrap();
    assert_eq!(shown.in_memory(), PAGES);
    shown.evict();
    assert_eq!(shown.in_memory(), 0, "written, and gone");
    shown.manager.validate();
}

/// The devices of files, and not only swap's, are flushed and served.
#[test]
fn devices_of_files_end_what_they_only_collect_and_what_nobody_waits_for_in_place() {
    for manner in [Manner::AtFlush, Manner::Served] {
        let shown = shown(manner);
        shown.evict();
        assert_eq!(shown.in_memory(), 0, "{manner:?}: every page went");
        // A device with threads of its own reports an end before it counts it.
        while shown.backing.device.under_way() > 0 {
            crate::sync::thread::yield_now();
        }
        assert!(shown.written() > 0);
        shown.manager.validate();
    }
}

#[test]
fn a_sync_waits_in_every_manner_of_a_device() {
    for manner in [Manner::Inline, Manner::AtFlush, Manner::Served, Manner::Driven, Manner::Threads(2)] {
        let shown = shown(manner);
        shown.file.sync().unwrap();
        assert_eq!(shown.engine().page_cache.dirty_pages(), 0, "{manner:?}");
        for index in (0..PAGES).step_by(3) {
            shown.space.store(shown.address(index), index + 500).unwrap();
        }
        let begun = shown.written();
        shown.file.sync().unwrap();
        assert_eq!(shown.written() - begun, PAGES / 3, "{manner:?}: pages apart are writes apart");
        shown.evict();
        for index in 0..PAGES {
            let expected = index + if index % 3 == 0 { 500 } else { 0 };
            assert_eq!(shown.space.load::<u64>(shown.address(index)).unwrap(), expected, "{manner:?}");
        }
        shown.manager.validate();
    }
}

#[test]
fn a_device_of_a_file_is_asked_in_passing_what_has_ended() {
    let shown = shown(Manner::Driven);
    shown.space.advise(shown.at, PAGES * PAGE, Advice::PageOut).unwrap();
    assert!(shown.backing.device.under_way() > 0, "the writes were started");
    shown.engine().poll_transfers();
    assert_eq!((shown.backing.device.under_way(), shown.in_memory()), (0, 0));
    shown.manager.validate();
}
