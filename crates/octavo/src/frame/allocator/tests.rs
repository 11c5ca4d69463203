//! The whole allocator: budget, per-CPU lists, zones, nodes and chunks together.

use super::*;
use crate::config::PercpuOrders;
use crate::frame::config::{PercpuForm, ZoneConfig};
use crate::frame::zone::Backing;
use crate::sync::{AtomicBool, AtomicU32, Cpus, thread};
use proptest::prelude::*;
use std::cell::Cell;

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
}

fn pretended_cpu() -> u32 {
    CPU.get()
}

/// Makes the options for one zone of `mib` MiB, on `cpus` pretended CPUs. Pages become present at the first
/// access.
fn config(mib: u64, cpus: usize) -> FrameConfig {
    let mut config = FrameConfig::one_zone(mib << 20, Backing::BasePages);
    config.cpus = Cpus::pretended(cpus, pretended_cpu);
    config.populate = false;
    config
}

fn allocator(mib: u64, cpus: usize) -> FrameAllocator {
    FrameAllocator::standalone(&config(mib, cpus), (mib << 20) * 2).unwrap()
}

fn take_all(frames: &FrameAllocator, order: Order) -> Vec<(FrameId, Order)> {
    std::iter::from_fn(|| frames.alloc(order)).map(|block| (block.into_frame(), order)).collect()
}

/// Drains everything and checks that every online chunk is one free block.
fn assert_wholly_free(frames: &FrameAllocator) {
    frames.drain();
    frames.validate();
    for zone in frames.zones.iter() {
        let locked = zone.lock(&frames.arena);
        assert_eq!(locked.free_frames(), CHUNK_FRAMES * locked.free_blocks(Order::MAX), "all merged");
    }
}

#[test]
fn every_order_goes_round_in_every_form() {
    for orders in [PercpuOrders::OrderZero, PercpuOrders::Costly, PercpuOrders::All] {
        for form in [PercpuForm::Sections, PercpuForm::TryLock] {
            let mut config = FrameConfig::one_zone(64 << 20, Backing::BasePages);
            (config.percpu_orders, config.form) = (orders, form);
            let frames = FrameAllocator::standalone(&config, 80 << 20).unwrap();
            for order in Order::all() {
                let blocks: Vec<_> = (0..8).map(|_| frames.alloc(order).unwrap().into_frame()).collect();
                assert!(blocks.iter().all(|frame| frame.0.is_multiple_of(order.frames())));
                frames.validate();
                for frame in blocks {
                    frames.free(frame, order).unwrap();
                    assert_eq!(frames.free(frame, order).unwrap_err().kind(), ErrorKind::InvalidFree);
                }
                frames.validate();
            }
            assert_wholly_free(&frames);
        }
    }
}

#[test]
fn a_budget_is_used_up_exactly_and_comes_back() {
    let config = FrameConfig::one_zone(64 << 20, Backing::BasePages);
    let budget = Arc::new(Budget::new(16 << 20));
    let frames = FrameAllocator::new(&config, budget.clone(), Arc::new(Counters::new().unwrap())).unwrap();
    let blocks = take_all(&frames, Order::ZERO);
    // Seven of eight chunks come online: frame words and lists take part of the eighth.
    assert_eq!(blocks.len(), 7 * CHUNK_FRAMES as usize);
    frames.free_bulk(blocks).unwrap();
    assert_eq!(frames.free_frames(), 7 * u64::from(CHUNK_FRAMES));
    assert_eq!(frames.shrink(100), 7);
    assert!(budget.used_bytes() < 1 << 20, "only frame words and lists stay charged");
    assert_eq!(take_all(&frames, Order::MAX).len(), 7, "and the chunks can come again");
    drop(frames);
    assert_eq!(budget.used_bytes(), 0);
}

#[test]
fn invalid_frees_are_refused_and_change_nothing() {
    let frames = allocator(16, 1);
    let [block, other] = [(); 2].map(|()| frames.alloc(Order(3)).unwrap().into_frame());
    let refused = |frame, order| frames.free(frame, order).unwrap_err().kind() == ErrorKind::InvalidFree;
    assert!(refused(block, Order(2)) && refused(block, Order(4)), "wrong order");
    assert!(refused(block.plus(1), Order::ZERO), "a tail");
    assert!(refused(FrameId(4000), Order::ZERO), "never online");
    assert!(refused(FrameId(u32::MAX), Order::ZERO), "outside the arena");
    frames.free(block, Order(3)).unwrap();
    assert!(refused(block, Order(3)), "twice, on a per-CPU list");
    frames.drain();
    assert!(refused(block, Order(3)), "twice, merged in its zone");
    let text = frames.free(block, Order(3)).unwrap_err().to_string();
    assert!(text.contains("order 3") && text.contains("Free"), "{text}");
    frames.free(other, Order(3)).unwrap();
    frames.drain();
    assert!(refused(block, Order(3)), "twice, merged to a whole chunk");
    assert_wholly_free(&frames);
}

#[test]
fn a_split_block_comes_back_frame_by_frame() {
    let frames = allocator(16, 1);
    let block = frames.alloc(Order::MAX).unwrap().into_frame();
    frames.split(block, Order::MAX).unwrap();
    assert!(frames.free(block, Order::MAX).is_err() && frames.split(block, Order::MAX).is_err());
    frames.free_bulk((0..CHUNK_FRAMES).map(|at| (block.plus(at), Order::ZERO))).unwrap();
    assert_wholly_free(&frames);
}

#[test]
fn every_cpu_is_drained_before_anyone_is_told_none() {
    let frames = allocator(64, 4);
    let all = take_all(&frames, Order::ZERO);
    for (index, &(frame, order)) in all.iter().enumerate() {
        CPU.set(index as u32 % 4);
        frames.free(frame, order).unwrap();
    }
    let zeroed = frames.zero_some(64);
    assert!(zeroed > 0, "some frames are in the reserve");
    CPU.set(3);
    assert_eq!(take_all(&frames, Order::ZERO).len(), all.len());
    CPU.set(0);
    frames.free_bulk(all).unwrap();
    CPU.set(1);
    assert_eq!(take_all(&frames, Order::MAX).len(), 32, "drained frames merge into whole chunks");
}

#[test]
fn frames_not_at_hand_stay_on_other_cpus() {
    let frames = allocator(16, 2);
    let all = take_all(&frames, Order::ZERO);
    let listed = all[0].0;
    frames.free(listed, Order::ZERO).unwrap();
    CPU.set(1);
    assert!(frames.alloc_if_at_hand(Order::ZERO).is_none());
    assert_eq!(frames.alloc(Order::ZERO).map(Block::into_frame), Some(listed));
}

#[test]
fn a_tiny_budget_is_not_hoarded() {
    let frames = allocator(16, 2);
    let all = take_all(&frames, Order::ZERO);
    frames.free_bulk(all).unwrap();
    assert!(frames.lists.frames() <= 256, "a sixteenth at most: {}", frames.lists.frames());
}

#[test]
fn pages_are_counted_as_one_shifted_by_order_in_every_mode() {
    for orders in [PercpuOrders::OrderZero, PercpuOrders::Costly, PercpuOrders::All] {
        let mut config = config(64, 1);
        config.percpu_orders = orders;
        let frames = FrameAllocator::standalone(&config, 128 << 20).unwrap();
        let mut expected = 0;
        for order in Order::all() {
            for _ in 0..5 {
                let block = frames.alloc(order).unwrap();
                frames.give_back(block);
                expected += u64::from(order.frames());
            }
        }
        let counters = frames.counters();
        assert_eq!(counters.get(Counter::PagesAllocated), expected, "{orders:?}");
        assert_eq!(counters.get(Counter::PagesFreed), expected, "{orders:?}");
    }
}

#[test]
fn frames_freed_are_used_again_before_more_memory_comes() {
    let frames = allocator(64, 1);
    for _ in 0..50 {
        let blocks: Vec<_> =
            (0..400).map(|_| (frames.alloc(Order::ZERO).unwrap().into_frame(), Order::ZERO)).collect();
        frames.free_bulk(blocks).unwrap();
    }
    assert_eq!(frames.counters().get(Counter::ChunkOnline), 1);
}

#[test]
fn fresh_chunks_and_zeroed_frames_are_zero_and_used_ones_are_not_claimed_to_be() {
    let frames = allocator(16, 1);
    let block = frames.alloc(Order::MAX).unwrap();
    assert!(block.is_zeroed());
    let (frame, home) = (block.frame(), block.frame().home_offset());
    frames.bytes().store(home + 8, 1u64);
    frames.give_back(block);
    assert!(frames.alloc_zeroed().is_none(), "nothing was zeroed yet");
    let again = frames.alloc(Order::MAX).unwrap();
    assert_eq!((again.frame(), again.is_zeroed()), (frame, false));
    frames.give_back(again);
    frames.drain();
    assert!(frames.zero_some(40) == 40);
    frames.validate();
    let before = frames.free_frames();
    for taken in 1..=40 {
        let frame = frames.alloc_zeroed().expect("the reserve holds 40").into_frame();
        assert!(frames.bytes().is_zero(frame.home_offset(), PAGE_BYTES));
        assert_eq!(frames.free_frames(), before - taken, "the reserve counts as free");
    }
    assert!(frames.alloc_zeroed().is_none());
}

#[test]
fn own_node_first_and_frames_of_others_bypass_the_lists() {
    let mut config = config(8, 2);
    config.cpu_nodes = vec![0, 1];
    config.zones =
        (0..2).map(|node| ZoneConfig { bytes: 8 << 20, backing: Backing::BasePages, node }).collect();
    let frames = FrameAllocator::standalone(&config, 64 << 20).unwrap();
    let node_of = |frame: FrameId| frames.zones.of(frame).node;
    for cpu in [1, 0] {
        CPU.set(cpu);
        let all: Vec<_> =
            (0..2048).map(|_| (frames.alloc(Order::ZERO).unwrap().into_frame(), Order::ZERO)).collect();
        assert!(all.iter().all(|&(frame, _)| u32::from(node_of(frame)) == cpu), "own node first");
        let foreign = frames.alloc(Order::ZERO).unwrap().into_frame();
        assert_ne!(u32::from(node_of(foreign)), cpu, "then the other");
        let before = frames.lists.frames();
        frames.free(foreign, Order::ZERO).unwrap();
        assert_eq!(frames.lists.frames(), before, "a foreign frame goes to its zone");
        frames.free_bulk(all).unwrap();
        frames.drain();
    }
    CPU.set(0);
    assert_wholly_free(&frames);
}

#[test]
fn orders_prefer_their_backing_and_fall_back() {
    let mut config = config(8, 1);
    config.zones = [Backing::BasePages, Backing::HugePages]
        .map(|backing| ZoneConfig { bytes: 8 << 20, backing, node: 0 })
        .into();
    let frames = FrameAllocator::standalone(&config, 64 << 20).unwrap();
    let backing = |block: Block| frames.zones.of(block.into_frame()).backing;
    assert_eq!(backing(frames.alloc(Order::MAX).unwrap()), Backing::HugePages);
    assert_eq!(backing(frames.alloc(Order(4)).unwrap()), Backing::BasePages);
    assert_eq!(take_all(&frames, Order::MAX).len(), 6, "both zones are used up");
}

#[test]
fn an_isolated_chunk_only_empties_and_can_leave_come_back_or_be_claimed() {
    let frames = allocator(64, 2);
    let all = take_all(&frames, Order::ZERO);
    let chunk = ChunkId::of(all[0].0);
    let (inside, outside): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|&(frame, _)| ChunkId::of(frame) == chunk);
    // Some of the chunk's frames are on another CPU's list.
    CPU.set(1);
    frames.free_bulk(inside[..20].iter().copied()).unwrap();
    CPU.set(0);
    assert_eq!(frames.isolate(chunk), Some(CHUNK_FRAMES - 20), "remote lists are drained into it");
    assert!(frames.alloc(Order::ZERO).is_none(), "frames aside are not handed out");
    frames.free_bulk(inside[20..].iter().copied()).unwrap();
    assert!(frames.alloc(Order::ZERO).is_none(), "nor are frames that were freed since");
    frames.validate();
    assert_eq!(frames.isolate(chunk), Some(0));

    let block = frames.claim_isolated(chunk).expect("all of it is free");
    assert_eq!(block.frame(), chunk.first());
    frames.give_back(block);
    assert_eq!(frames.isolate(chunk), Some(0));
    frames.putback(chunk);
    let again = frames.alloc(Order::MAX).expect("frames that were put back can be allocated");
    assert_eq!(frames.isolate(chunk), Some(CHUNK_FRAMES));
    assert!(!frames.take_offline(chunk), "not while it is used");
    frames.give_back(again);
    let used = frames.arena.budget.used_bytes();
    assert!(frames.take_offline(chunk));
    assert_eq!(frames.arena.budget.used_bytes(), used - CHUNK_BYTES as u64);
    assert_eq!(frames.isolate(chunk), None, "it is offline");
    frames.free_bulk(outside).unwrap();
    assert_wholly_free(&frames);
}

#[test]
fn putback_clears_the_marks_of_owned_frames() {
    let frames = allocator(16, 1);
    let kept = frames.alloc(Order::ZERO).unwrap().into_frame();
    frames.isolate(ChunkId::of(kept)).unwrap();
    assert!(frames.words(kept).state.load().isolating());
    frames.putback(ChunkId::of(kept));
    assert!(!frames.words(kept).state.load().isolating());
    frames.free(kept, Order::ZERO).unwrap();
    assert_wholly_free(&frames);
}

#[test]
fn falling_below_low_calls_the_hook_with_nothing_held() {
    let frames = Arc::new(allocator(16, 1));
    let calls = Arc::new(AtomicU32::new(0));
    let (weak, counted) = (Arc::downgrade(&frames), calls.clone());
    frames.set_low_hook(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        // No lock is held, so the allocator can be used.
        weak.upgrade().unwrap().drain();
    });
    let low = frames.watermarks().low_frames;
    let mut blocks = Vec::new();
    while frames.available_frames() >= low {
        assert_eq!(calls.load(Ordering::Relaxed), 0, "not above the mark");
        blocks.push((frames.alloc(Order::ZERO).unwrap().into_frame(), Order::ZERO));
    }
    blocks.extend(take_all(&frames, Order::ZERO));
    assert!(calls.load(Ordering::Relaxed) > 0);
    frames.free_bulk(blocks).unwrap();
}

#[test]
fn a_lowered_budget_lowers_the_lists() {
    let frames = allocator(256, 1);
    let before = frames.lists.tuning();
    frames.arena.budget.set_limit_bytes(32 << 20);
    frames.decay();
    let after = frames.lists.tuning();
    assert!(after.high_max < before.high_max && after.high_min < before.high_min, "{before:?} {after:?}");
}

/// The steps of random threads on one allocator.
#[derive(Clone, Debug)]
enum Step {
    Alloc(u8),
    Free(prop::sample::Index),
    Split(prop::sample::Index),
    Bulk(u8, u8),
    Zero,
    Drain,
    Decay,
    Shrink,
    Isolate(prop::sample::Index, u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        30 => (0u8..10).prop_map(Step::Alloc),
        30 => any::<prop::sample::Index>().prop_map(Step::Free),
        3 => any::<prop::sample::Index>().prop_map(Step::Split),
        4 => (0u8..4, 0u8..60).prop_map(|(order, n)| Step::Bulk(order, n)),
        2 => Just(Step::Zero),
        1 => Just(Step::Drain),
        1 => Just(Step::Decay),
        1 => Just(Step::Shrink),
        1 => (any::<prop::sample::Index>(), any::<u8>()).prop_map(|(chunk, end)| Step::Isolate(chunk, end)),
    ]
}

/// The reference model: for each frame, the thread that owns it. It detects a thread that takes another's
/// frame.
struct FrameOwners(Vec<AtomicU32>);

impl FrameOwners {
    fn take(&self, frame: FrameId, order: Order, who: u32) {
        for at in frame.index()..frame.plus(order.frames()).index() {
            assert_eq!(self.0[at].swap(who, Ordering::Relaxed), 0, "frame {at:#x} has two owners");
        }
    }

    fn release(&self, frame: FrameId, order: Order, who: u32) {
        for at in frame.index()..frame.plus(order.frames()).index() {
            assert_eq!(self.0[at].swap(0, Ordering::Relaxed), who, "frame {at:#x} was taken away");
        }
    }
}

fn run_steps(frames: &FrameAllocator, owners: &FrameOwners, who: u32, steps: &[Step]) {
    let mut owned: Vec<(FrameId, Order)> = Vec::new();
    for step in steps {
        match step {
            Step::Alloc(order) => {
                let order = Order(*order);
                let Some(block) = frames.alloc(order) else { continue };
                owners.take(block.frame(), order, who);
                owned.push((block.into_frame(), order));
            }
            Step::Free(which) if !owned.is_empty() => {
                let (frame, order) = owned.swap_remove(which.index(owned.len()));
                owners.release(frame, order, who);
                frames.free(frame, order).unwrap();
            }
            Step::Split(which) if !owned.is_empty() => {
                let (frame, order) = owned.swap_remove(which.index(owned.len()));
                frames.split(frame, order).unwrap();
                owned.extend((0..order.frames()).map(|at| (frame.plus(at), Order::ZERO)));
            }
            Step::Bulk(order, n) => {
                let order = Order(*order);
                let mut blocks = Vec::new();
                frames.alloc_bulk(order, usize::from(*n), |block| {
                    owners.take(block.frame(), order, who);
                    blocks.push((block.into_frame(), order));
                });
                blocks.iter().for_each(|&(frame, order)| owners.release(frame, order, who));
                frames.free_bulk(blocks).unwrap();
            }
            Step::Zero => {
                frames.zero_some(10);
                if let Some(frame) = frames.alloc_zeroed().map(Block::into_frame) {
                    owners.take(frame, Order::ZERO, who);
                    assert!(frames.bytes().is_zero(frame.home_offset(), PAGE_BYTES));
                    frames.bytes().store(frame.home_offset(), 1u64);
                    owned.push((frame, Order::ZERO));
                }
            }
            Step::Drain => frames.drain(),
            Step::Decay => frames.decay(),
            Step::Shrink => drop(frames.shrink(1)),
            Step::Isolate(chunk, end) => {
                let chunk = ChunkId(chunk.index((frames.end_frame().0 / CHUNK_FRAMES) as usize) as u32);
                frames.isolate(chunk);
                match (end % 3, frames.claim_isolated(chunk)) {
                    (0, Some(block)) => {
                        owners.take(block.frame(), Order::MAX, who);
                        owned.push((block.into_frame(), Order::MAX));
                    }
                    (_, Some(block)) => frames.give_back(block),
                    (1, None) if frames.take_offline(chunk) => {}
                    (_, None) => frames.putback(chunk),
                }
            }
            Step::Free(_) | Step::Split(_) => {}
        }
    }
    for (frame, order) in owned {
        owners.release(frame, order, who);
        frames.free(frame, order).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn no_frame_has_two_owners_whatever_threads_do(
        steps in prop::collection::vec(prop::collection::vec(step(), 1..300), 3),
        sections in any::<bool>(),
        tight in any::<bool>(),
    ) {
        let mut config = config(32, 2);
        if sections {
            config.form = PercpuForm::Sections;
        }
        let budget_bytes = if tight { 12 << 20 } else { 64 << 20 };
        let frames = FrameAllocator::standalone(&config, budget_bytes).unwrap();
        let owners = FrameOwners((0..frames.end_frame().0).map(|_| AtomicU32::new(0)).collect());
        thread::scope(|scope| {
            for (index, steps) in steps.iter().enumerate() {
                let (frames, owners) = (&frames, &owners);
                scope.spawn(move || {
                    CPU.set(index as u32 % 2);
                    run_steps(frames, owners, index as u32 + 1, steps);
                });
            }
        });
        // Two isolations of one chunk may have overlapped. This putback comes last.
        (0..frames.end_frame().0 / CHUNK_FRAMES).for_each(|chunk| frames.putback(ChunkId(chunk)));
        assert_wholly_free(&frames);
        let counters = frames.counters();
        prop_assert_eq!(counters.get(Counter::PagesAllocated), counters.get(Counter::PagesFreed));
        prop_assert!(frames.arena.budget.used_bytes() <= budget_bytes);
    }
}

/// Threads on every real CPU use restartable sections, while another thread drains all lists again and again.
#[test]
fn sections_and_remote_drains_keep_every_frame_single() {
    let mut config = config(64, 1);
    config.form = PercpuForm::Sections;
    let frames = FrameAllocator::standalone(&config, 128 << 20).unwrap();
    let owners = FrameOwners((0..frames.end_frame().0).map(|_| AtomicU32::new(0)).collect());
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (1..=3u32)
            .map(|who| {
                let (frames, owners) = (&frames, &owners);
                scope.spawn(move || {
                    let mut owned = Vec::new();
                    for turn in 0..60_000u32 {
                        let order = Order((turn.wrapping_mul(2_654_435_761) >> 16) as u8 % 5);
                        if let Some(block) = frames.alloc(order) {
                            owners.take(block.frame(), order, who);
                            owned.push((block.into_frame(), order));
                        }
                        if owned.len() > 40 {
                            let (frame, order) = owned.swap_remove(turn as usize % 40);
                            owners.release(frame, order, who);
                            frames.free(frame, order).unwrap();
                        }
                    }
                    for (frame, order) in owned {
                        owners.release(frame, order, who);
                        frames.free(frame, order).unwrap();
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                frames.drain();
                frames.decay();
            }
        });
        let ends: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        over.store(true, Ordering::Relaxed);
        assert!(ends.iter().all(Result::is_ok));
    });
    assert_wholly_free(&frames);
}

#[test]
#[should_panic(expected = "was lost")]
fn a_block_that_is_lost_is_noticed() {
    drop(allocator(16, 1).alloc(Order::ZERO));
}
