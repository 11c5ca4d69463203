//! Chunks that are emptied to be given back, or to become a block.

use super::{MIB, Manager, PAGE, frame_at, manager, take_and_migrate};
use crate::config::HugePolicy;
use crate::counters::Counter;
use crate::engine::Engine;
use crate::frame::Block;
use crate::reclaim::{Migrated, block_for_pool, try_shrink};
use crate::region::RegionOptions;
use crate::space::Space;
use crate::sync::{AtomicU64, Ordering, Shared};
use crate::table::Access;
use crate::units::{CHUNK_BYTES, CHUNK_FRAMES, Order};

/// Maps `bytes` bytes, of which every fourth page is in memory.
fn map_sparse(space: &Space, bytes: u64) {
    let at = space.map(bytes, RegionOptions::default()).unwrap();
    space.populate(at, bytes, Access::Write).unwrap();
    let pages = (0..bytes / PAGE).filter(|page| page % 4 != 0);
    pages.for_each(|page| space.unmap(at + page * PAGE, PAGE).unwrap());
}

fn count(engine: &Engine, counter: Counter) -> u64 {
    engine.counters.snapshot().get(counter)
}

fn moves(engine: &Engine) -> (u64, u64) {
    (count(engine, Counter::FrameMigrated), count(engine, Counter::FrameMigrateFailed))
}

/// Asks for a page more than there is room for.
fn shrink_by_one(engine: &Engine) -> bool {
    try_shrink(engine, engine.budget.room_bytes() as u64 + PAGE)
}

fn all_free(engine: &Engine) -> Vec<Block> {
    std::iter::from_fn(|| engine.frames.alloc_online(Order::ZERO)).collect()
}

fn give_back(engine: &Engine, blocks: Vec<Block>) {
    blocks.into_iter().for_each(|block| engine.frames.give_back(block));
}

#[test]
fn pages_do_not_move_from_chunk_to_chunk_where_none_can_be_emptied() {
    let manager = manager(HugePolicy::Never);
    let (engine, space) = (manager.engine(), manager.space().unwrap());
    let at = space.map(8 * MIB, RegionOptions::default()).unwrap();
    space.populate(at, 8 * MIB, Access::Write).unwrap();
    let kept = all_free(engine);
    // Some of each chunk.
    let unmap_one_in_five = |rest| {
        let pages = (0..8 * MIB / PAGE).filter(|page| page % 5 == rest);
        pages.for_each(|page| space.unmap(at + page * PAGE, PAGE).unwrap());
    };
    unmap_one_in_five(0);
    let free = engine.frames.free_frames();
    assert!(free > u64::from(CHUNK_FRAMES) / 2 && free < u64::from(CHUNK_FRAMES), "{free}");
    let before = moves(engine);
    assert!(!shrink_by_one(engine));
    assert_eq!(moves(engine), before);
    unmap_one_in_five(1);
    assert!(shrink_by_one(engine), "now there is room for what one of them holds");
    assert!(moves(engine).0 > before.0);
    give_back(engine, kept);
    manager.validate();
}

#[test]
fn pages_that_were_read_for_nobody_need_no_room_elsewhere() {
    let manager = manager(HugePolicy::Never);
    let (engine, space) = (manager.engine(), manager.space().unwrap());
    let at = space.map(3 * MIB, RegionOptions::default()).unwrap();
    (0..3 * MIB / PAGE).for_each(|page| space.store(at + page * PAGE, page + 1).unwrap());
    while manager.reclaim(512).unwrap() > 0 {}
    // This thread may have been on several CPUs. No chunk must come online for frames on another CPU's
    // list.
    while shrink_by_one(engine) {}
    engine.frames.drain();
    assert_eq!(space.prefetch(at, 3 * MIB).unwrap(), 3 * MIB / PAGE);
    while engine.transfers.reading_pages() > 0 {
        engine.poll_transfers();
    }
    let free = engine.frames.free_frames();
    assert!(free < u64::from(CHUNK_FRAMES), "no chunk's pages could all move: {free}");
    assert!(shrink_by_one(engine));
    manager.validate();
}

/// A device transfers to memory in one piece much faster.
#[test]
fn pages_that_are_read_together_lie_in_a_row() {
    let manager = manager(HugePolicy::Never);
    let (engine, space) = (manager.engine(), manager.space().unwrap());
    let at = space.map(2 * MIB, RegionOptions::default()).unwrap();
    (0..2 * MIB / PAGE).for_each(|page| space.store(at + page * PAGE, page + 1).unwrap());
    while manager.reclaim(512).unwrap() > 0 {}
    assert_eq!(space.prefetch(at, 2 * MIB).unwrap(), 2 * MIB / PAGE);
    while engine.transfers.reading_pages() > 0 {
        engine.poll_transfers();
    }
    let frames: Vec<_> = (0..2 * MIB / PAGE)
        .map(|page| {
            space.load::<u64>(at + page * PAGE).unwrap();
            frame_at(&manager, &space, at + page * PAGE).unwrap()
        })
        .collect();
    let in_a_row = frames.windows(2).filter(|pair| pair[0].plus(1) == pair[1]).count();
    assert!(in_a_row > 500, "{in_a_row} of {} follow each other", frames.len());
    manager.validate();
}

#[test]
fn a_clean_page_without_a_frame_to_move_to_keeps_its_place_on_swap() {
    let manager = manager(HugePolicy::Never);
    let (engine, space) = (manager.engine(), manager.space().unwrap());
    let at = space.map(PAGE, RegionOptions::default()).unwrap();
    space.store(at, 7_u64).unwrap();
    while manager.reclaim(8).unwrap() > 0 {}
    assert_eq!(space.load::<u64>(at).unwrap(), 7);
    let frame = frame_at(&manager, &space, at).unwrap();
    let slot = crate::swap::slot_of(&engine.frames, frame);
    assert!(slot.is_some(), "its bytes are on swap too");
    let kept = all_free(engine);
    assert_eq!(take_and_migrate(engine, frame), Migrated::NoFrame);
    assert_eq!(crate::swap::slot_of(&engine.frames, frame), slot);
    assert!(!engine.frames.words(frame).holds.load().is_dirty());
    give_back(engine, kept);
    let free = engine.frames.free_frames();
    {
        let _pin = space.pin_exact(at, 8, Access::Read).unwrap();
        assert_eq!(take_and_migrate(engine, frame), Migrated::Kept);
        assert_eq!(engine.frames.free_frames(), free, "the frame that it did not take is free");
    }
    assert_eq!(take_and_migrate(engine, frame), Migrated::Moved);
    assert_eq!(space.load::<u64>(at).unwrap(), 7);
    manager.validate();
}

/// Other threads take the room of each chunk that was given back.
#[test]
fn one_call_gives_back_what_was_missing_and_one_chunk_more() {
    let manager = Manager::builder()
        .budget_bytes(32 * MIB)
        .background(false)
        .compression(crate::config::Compression::Off)
        .huge(HugePolicy::Never)
        .build()
        .unwrap();
    let (engine, space) = (manager.engine(), manager.space().unwrap());
    map_sparse(&space, 20 * MIB);
    engine.frames.shrink(16);
    // The hook is called on each search for frames while little can be away.
    let away = engine.frames.alloc_away(Order::ZERO).unwrap();
    engine.budget.set_limit_bytes(engine.budget.used_bytes());
    let (budget, counters) = (engine.budget.clone(), engine.counters.clone());
    let (seen, taken) = (AtomicU64::new(u64::MAX), Shared::new(AtomicU64::new(0)));
    let in_hook = Shared::clone(&taken);
    engine.frames.set_low_hook(move || {
        let gone = counters.snapshot().get(Counter::ChunkOffline);
        if seen.swap(gone, Ordering::Relaxed) != gone {
            budget.charge_over(CHUNK_BYTES as u64);
            in_hook.fetch_add(CHUNK_BYTES as u64, Ordering::Relaxed);
        }
    });
    let gone = count(engine, Counter::ChunkOffline);
    assert!(!try_shrink(engine, PAGE));
    assert_eq!(count(engine, Counter::ChunkOffline) - gone, 2);
    engine.budget.uncharge(taken.load(Ordering::Relaxed));
    engine.frames.give_back(away);
    manager.validate();
}

/// Otherwise, the first to give up would clear the other's marks.
#[test]
fn a_chunk_that_another_thread_empties_is_left_to_it() {
    let manager = manager(HugePolicy::Never);
    let (engine, space) = (manager.engine(), manager.space().unwrap());
    map_sparse(&space, 10 * MIB);
    let ticket = engine.shrinking.lock();
    let chunks: Vec<_> = engine.frames.reached_chunks().collect();
    let left = || chunks.iter().map(|&chunk| engine.frames.isolate(chunk)).collect::<Vec<_>>();
    let (before, moved) = (left(), moves(engine));
    assert!(block_for_pool(engine).is_none());
    assert_eq!((left(), moves(engine)), (before, moved));
    assert_eq!(count(engine, Counter::CompactFail), 0);
    drop(ticket);
    chunks.iter().for_each(|&chunk| engine.frames.putback(chunk));
    let block = block_for_pool(engine).expect("what was left to another thread is no failure");
    engine.frames.give_back(block);
    manager.validate();
}
