//! Cases that the public API does not reach yet: frames with two owners, which snapshots and files will
//! make.

mod chunks;
mod copies;
mod pin_share;
mod pinned_on_the_way_out;
mod pool_share;
mod stores;

use super::Manager;
use crate::config::{Compression, HugePolicy};
use crate::counters::Counter;
use crate::engine::{Engine, Obstacle, split_edges};
use crate::error::ErrorKind;
use crate::frame::PinnedFrame;
use crate::io::SwapFile;
use crate::lru::IsolatedFrame;
use crate::reclaim::{Migrated, block_for_pool, migrate, try_shrink};
use crate::region::RegionOptions;
use crate::rmap::Owner;
use crate::space::Space;
use crate::sync::{AtomicU32, Ordering};
use crate::table::entry::State;
use crate::table::{Access, PageNumberRange, Protection};
use crate::units::{FrameId, PAGE_BYTES, PageNumber};

const PAGE: u64 = PAGE_BYTES as u64;
const MIB: u64 = 1 << 20;

fn manager(huge: HugePolicy) -> Manager {
    Manager::builder()
        .budget_bytes(16 * MIB)
        .background(false)
        .compression(Compression::Off)
        .huge(huge)
        .build()
        .unwrap()
}

#[test]
fn the_huge_zero_page_takes_no_memory_where_no_page_is_huge() {
    let is_there = |huge| manager(huge).engine().huge_zero.frame().is_some();
    assert_eq!(
        [HugePolicy::Never, HugePolicy::Advised, HugePolicy::Always].map(is_there),
        [false, true, true]
    );
}

/// A thread that looks again does so without the layout lock.
#[test]
fn a_pinned_block_over_an_edge_is_looked_at_once() {
    let manager = manager(HugePolicy::Always);
    let space = manager.space().unwrap();
    let at = space.map(2 * MIB, RegionOptions::default()).unwrap();
    space.store(at, 7_u64).unwrap();
    let pin = space.pin_exact(at, 8, Access::Read).unwrap();
    let (engine, id, block) = (manager.engine(), space.state().id, PageNumber::containing(at));
    let version = || engine.table.walk(id, block).entry().version();
    let before = version();
    let range = PageNumberRange { start: block, end: block.plus(1) };
    assert_eq!(split_edges(engine, id, range), Err(Obstacle::Pinned(block)));
    assert_eq!(version(), before + 2, "it was busy once");
    drop(pin);
    assert_eq!(split_edges(engine, id, range), Ok(()));
}

#[test]
fn blocks_for_the_pool_that_cannot_be_made_do_not_keep_pages_from_blocks() {
    let manager = manager(HugePolicy::Never);
    let space = manager.space().unwrap();
    let at = space.map(64 * MIB, RegionOptions::default()).unwrap();
    let _all = space.pin_prefix(at, 64 << 20, Access::Write).unwrap();
    let engine = manager.engine();
    for _ in 0..5 {
        assert!(block_for_pool(engine).is_none(), "nothing can be moved");
    }
    assert!(engine.blocks_for_pool.turns_away());
    assert!(!engine.blocks_for_faults.turns_away());
}

/// Otherwise, another chunk could come online for them, and the pages would move back and forth
/// forever.
#[test]
fn no_chunk_comes_online_for_the_pages_of_one_that_is_to_go() {
    let manager = manager(HugePolicy::Never);
    let space = manager.space().unwrap();
    let at = space.map(3 * MIB, RegionOptions::default()).unwrap();
    space.populate(at, 3 * MIB, Access::Write).unwrap();
    let engine = manager.engine();
    let online = || engine.counters.snapshot().get(Counter::ChunkOnline);
    let (before, room) = (online(), engine.budget.room_bytes() as u64);
    assert!(room > engine.budget.headroom_bytes() + 4 * MIB, "another chunk could come");
    assert!(!try_shrink(engine, room + PAGE), "what the chunks hold has no room elsewhere");
    assert_eq!(online(), before);
    manager.validate();
}

// --- frames with two owners ---

fn frame_at(manager: &Manager, space: &Space, at: u64) -> Option<FrameId> {
    match manager.engine().table.walk(space.state().id, PageNumber::containing(at)).entry().state() {
        State::Present(frame) => Some(frame),
        _ => None,
    }
}

fn take_and_migrate(engine: &Engine, frame: FrameId) -> Migrated {
    let (pin, before) = PinnedFrame::take(frame, engine.frames.words(frame));
    assert!(before.is_live());
    engine.lru.drain_all(&engine.frames);
    assert!(engine.lru.take(&engine.frames, frame));
    migrate(engine, IsolatedFrame::new(pin))
}

/// Also shows the frame of `from` at `to`, where only the zero page is.
fn share(manager: &Manager, from: (&Space, u64), to: (&Space, u64)) {
    let engine = manager.engine();
    let frame = frame_at(manager, from.0, from.1).expect("the page has a frame");
    to.0.populate(to.1, PAGE, Access::Read).unwrap();
    let page = PageNumber::containing(to.1);
    let walk = engine.table.walk(to.0.state().id, page);
    assert!(walk.entry().is_zero() && walk.level == 0);
    assert!(engine.frames.words(frame).uses.try_add());
    engine.rmap.add(&engine.frames, frame, Owner { space: to.0.state().id, page });
    walk.word().change(walk.entry(), walk.entry().to_present(frame, Protection::READ_WRITE)).unwrap();
}

struct Pair {
    manager: Manager,
    first: Space,
    second: Space,
    at: u64,
}

/// One frame in two spaces, at different addresses.
fn pair() -> Pair {
    let manager = manager(HugePolicy::Never);
    let (first, second) = (manager.space().unwrap(), manager.space().unwrap());
    let at = first.map(PAGE, RegionOptions::default()).unwrap();
    second.map_at(at + (1 << 32), PAGE, RegionOptions::default()).unwrap();
    first.store(at, 1_u64).unwrap();
    share(&manager, (&first, at), (&second, at + (1 << 32)));
    Pair { manager, first, second, at }
}

impl Pair {
    fn other(&self) -> u64 {
        self.at + (1 << 32)
    }

    fn uses(&self, frame: FrameId) -> u32 {
        self.manager.engine().frames.words(frame).uses.get()
    }

    fn evict(&self) {
        while self.manager.reclaim(8).unwrap() > 0 {}
        assert_eq!(frame_at(&self.manager, &self.first, self.at), None);
        assert_eq!(frame_at(&self.manager, &self.second, self.other()), None);
        assert_eq!(self.manager.stats().unwrap().swap_slots, 1, "one slot for both");
        self.manager.validate();
    }
}

#[test]
fn two_owners_see_each_others_stores_and_share_one_slot() {
    let pair = pair();
    let frame = frame_at(&pair.manager, &pair.first, pair.at).unwrap();
    assert_eq!(pair.uses(frame), 2);
    pair.second.store(pair.other() + 8, 2_u64).unwrap();
    assert_eq!(pair.first.load::<u64>(pair.at + 8).unwrap(), 2);
    for round in 3..6 {
        pair.evict();
        // Read once, found in the cache by the other.
        let read = pair.manager.counters().get(crate::Counter::SwapIn);
        assert_eq!(pair.first.load::<u64>(pair.at + 8).unwrap(), round - 1);
        assert_eq!(pair.second.load::<u64>(pair.other() + 8).unwrap(), round - 1);
        assert_eq!(pair.manager.counters().get(crate::Counter::SwapIn), read + 1);
        let frame = frame_at(&pair.manager, &pair.first, pair.at).unwrap();
        assert_eq!(frame_at(&pair.manager, &pair.second, pair.other()), Some(frame), "the same frame again");
        let cached = u32::from(crate::swap::slot_of(&pair.manager.engine().frames, frame).is_some());
        assert_eq!(pair.uses(frame), 2 + cached);
        pair.first.store(pair.at + 8, round).unwrap();
        assert_eq!(pair.second.load::<u64>(pair.other() + 8).unwrap(), round);
    }
    pair.manager.validate();
}

#[test]
fn each_owner_may_go_first_wherever_the_page_is() {
    for second_first in [false, true] {
        for (out, back) in [(false, false), (true, false), (true, true)] {
            let pair = pair();
            if out {
                pair.evict();
            }
            if back {
                assert_eq!(pair.first.load::<u64>(pair.at).unwrap(), 1);
            }
            let Pair { manager, first, second, at } = pair;
            let other = at + (1 << 32);
            if second_first {
                second.unmap(other, PAGE).unwrap();
                assert_eq!(first.load::<u64>(at).unwrap(), 1);
                assert_eq!(second.load::<u64>(other).unwrap_err().kind(), ErrorKind::NotMapped);
            } else {
                drop(first);
                assert_eq!(second.load::<u64>(other).unwrap(), 1);
                second.store(other, 5_u64).unwrap();
                while manager.reclaim(8).unwrap() > 0 {}
                assert_eq!(second.load::<u64>(other).unwrap(), 5);
            }
            manager.validate();
            drop(second);
            if !second_first {
                assert_eq!(manager.stats().unwrap().swap_slots, 0);
                assert_eq!(manager.stats().unwrap().table_nodes, 0);
                assert_eq!(manager.stats().unwrap().lru_pages, (0, 0));
            }
            manager.validate();
        }
    }
}

#[test]
fn a_frame_with_two_owners_moves_for_both() {
    let pair = pair();
    let engine = pair.manager.engine();
    let before = frame_at(&pair.manager, &pair.first, pair.at).unwrap();
    {
        let _pin = pair.second.pin_exact(pair.other(), 8, Access::Read).unwrap();
        assert_eq!(take_and_migrate(engine, before), Migrated::Kept, "a pin of either owner holds it");
    }
    assert_eq!(take_and_migrate(engine, before), Migrated::Moved);
    let after = frame_at(&pair.manager, &pair.first, pair.at).unwrap();
    assert_ne!(before, after);
    assert_eq!(frame_at(&pair.manager, &pair.second, pair.other()), Some(after));
    assert_eq!(pair.uses(after), 2);
    assert_eq!(engine.rmap.owners(&engine.frames, after).len(), 2);
    pair.first.store(pair.at, 9_u64).unwrap();
    assert_eq!(pair.second.load::<u64>(pair.other()).unwrap(), 9);
    pair.evict();
    assert_eq!(pair.second.load::<u64>(pair.other()).unwrap(), 9);
    pair.manager.validate();
}

#[test]
fn a_pin_of_one_owner_keeps_the_frame_when_both_are_gone() {
    let Pair { manager, first, second, at } = pair();
    let other = at + (1 << 32);
    let keeper = manager.space().unwrap();
    let keeper_at = keeper.map(PAGE, RegionOptions::default()).unwrap();
    share(&manager, (&first, at), (&keeper, keeper_at));
    let frame = frame_at(&manager, &keeper, keeper_at).unwrap();
    let pin = keeper.pin_exact(keeper_at, 8, Access::Write).unwrap();
    drop(first);
    second.unmap(other, PAGE).unwrap();
    keeper.unmap(keeper_at, PAGE).unwrap();
    assert!(manager.engine().frames.words(frame).holds.load().is_dying());
    pin.copy_in(0, &[5; 8]).unwrap();
    manager.reclaim(8).unwrap();
    let mut bytes = [0; 8];
    pin.copy_out(0, &mut bytes).unwrap();
    assert_eq!(bytes, [5; 8]);
    drop(pin);
    assert!(!manager.engine().frames.words(frame).holds.load().is_dying());
    manager.validate();
}

/// Also shows the block of `from` at `to`, where only the huge zero page is.
fn share_block(manager: &Manager, from: (&Space, u64), to: (&Space, u64)) {
    let engine = manager.engine();
    let head = frame_at(manager, from.0, from.1).expect("the page has a block");
    to.0.populate(to.1, PAGE, Access::Read).unwrap();
    let (space, page) = (to.0.state().id, PageNumber::containing(to.1));
    let walk = engine.table.walk(space, page);
    assert!(walk.entry().is_zero() && walk.level == 1);
    assert!(engine.frames.words(head).uses.try_add());
    engine.rmap.add(&engine.frames, head, Owner { space, page });
    engine.space_use.add(space, crate::engine::Figure::Resident, 512);
    walk.word().change(walk.entry(), walk.entry().to_present(head, Protection::READ_WRITE)).unwrap();
    engine.huge_zero.put(1);
}

/// One block in two spaces, at different addresses; the first word of each page is its number.
fn block_pair() -> Pair {
    let manager = manager(HugePolicy::Always);
    let (first, second) = (manager.space().unwrap(), manager.space().unwrap());
    let at = first.map(2 * MIB, RegionOptions::default()).unwrap();
    second.map_at(at + (1 << 32), 2 * MIB, RegionOptions::default()).unwrap();
    (0..512).for_each(|page| first.store(at + page * PAGE, page).unwrap());
    share_block(&manager, (&first, at), (&second, at + (1 << 32)));
    Pair { manager, first, second, at }
}

#[test]
fn a_block_with_two_owners_is_split_for_both() {
    let pair = block_pair();
    let Pair { manager, first, second, at } = &pair;
    let block = frame_at(manager, first, *at).unwrap();
    assert_eq!((frame_at(manager, second, pair.other()), pair.uses(block)), (Some(block), 2));
    {
        let _pin = second.pin_exact(pair.other(), 8, Access::Read).unwrap();
        assert_eq!(
            first.unmap(*at, PAGE).unwrap_err().kind(),
            ErrorKind::Busy,
            "a pin of either owner holds it"
        );
    }
    let nodes = manager.stats().unwrap().table_nodes;
    second.unmap(pair.other() + 7 * PAGE, PAGE).unwrap();
    assert_eq!(manager.stats().unwrap().table_nodes, nodes + 2, "a node for each owner");
    for page in 0..512 {
        let frame = frame_at(manager, first, at + page * PAGE).unwrap();
        assert_eq!(frame, block.plus(page as u32));
        assert_eq!(pair.uses(frame), if page == 7 { 1 } else { 2 });
        assert_eq!(first.load::<u64>(at + page * PAGE).unwrap(), page);
        if page != 7 {
            second.store(pair.other() + page * PAGE, page + 1).unwrap();
            assert_eq!(first.load::<u64>(at + page * PAGE).unwrap(), page + 1);
        }
    }
    assert_eq!(second.load::<u64>(pair.other() + 7 * PAGE).unwrap_err().kind(), ErrorKind::NotMapped);
    manager.validate();
    let Pair { manager, first, second, .. } = pair;
    drop(first);
    manager.validate();
    drop(second);
    assert_eq!(manager.stats().unwrap().lru_pages, (0, 0));
    manager.validate();
}

#[test]
fn a_block_with_two_owners_goes_out_for_both_and_comes_back_for_each() {
    let pair = block_pair();
    let Pair { manager, first, second, at } = &pair;
    while manager.reclaim(512).unwrap() > 0 {}
    assert_eq!(manager.counters().get(crate::Counter::HugeSwapOut), 1, "to a cluster of its own");
    assert_eq!(manager.stats().unwrap().swap_slots, 512, "one slot for both");
    manager.validate();
    for page in 0..512 {
        assert_eq!(second.load::<u64>(pair.other() + page * PAGE).unwrap(), page);
        first.store(at + page * PAGE, page + 1).unwrap();
        assert_eq!(second.load::<u64>(pair.other() + page * PAGE).unwrap(), page + 1, "the same frame again");
    }
    manager.validate();
}

#[test]
fn without_swap_a_page_with_two_owners_stays() {
    let manager = Manager::builder()
        .budget_bytes(16 * MIB)
        .background(false)
        .huge(HugePolicy::Never)
        .swap_file(SwapFile::None)
        .build()
        .unwrap();
    let (first, second) = (manager.space().unwrap(), manager.space().unwrap());
    let at = first.map(PAGE, RegionOptions::default()).unwrap();
    second.map_at(at, PAGE, RegionOptions::default()).unwrap();
    first.store(at, 1_u64).unwrap();
    share(&manager, (&first, at), (&second, at));
    assert_eq!(manager.reclaim(8).unwrap(), 0);
    assert_eq!(second.load::<u64>(at).unwrap(), 1);
    manager.validate();
}

/// Another thread may begin a transfer again right after the awaited one has ended.
#[test]
fn a_wait_is_over_though_what_it_was_for_begins_anew() {
    let manager = Manager::builder().budget_bytes(16 << 20).background(false).build().unwrap();
    let asked = AtomicU32::new(0);
    let waits = || asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
    assert!(manager.engine().wait_while_devices_may_take(&waits), "it is not too late");
}
