//! Tests that compare the pool with a map of pages, page by page.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::frame::{Backing, FrameConfig};
use crate::sync::{Clock, Duration, Machine, pause, thread};

/// The contents of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    Random,
    /// Numbers between 0 and 1 in 64-bit floating point.
    Floats,
    Text,
    /// Half random bytes, then zeros.
    Half,
    /// Small 64-bit numbers.
    Words,
    /// 512 random bytes, repeated.
    Repeats,
}

const KINDS: [Fill; 6] = [Fill::Random, Fill::Floats, Fill::Text, Fill::Half, Fill::Words, Fill::Repeats];

/// Makes a page of this kind. Equal seeds give equal pages.
pub(crate) fn page(kind: Fill, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    let words: &[&str] =
        &["page ", "frame ", "slot ", "the ", "of ", "goes ", "out ", "and ", "comes ", "back ", "\n"];
    let mut bytes = Vec::with_capacity(PAGE_BYTES + 8);
    while bytes.len() < PAGE_BYTES {
        let at = bytes.len();
        match kind {
            Fill::Random => bytes.extend(random().to_le_bytes()),
            Fill::Floats => bytes.extend(((random() >> 11) as f64 / (1u64 << 53) as f64).to_le_bytes()),
            Fill::Text if random() % 4 == 0 => bytes.extend((random() >> 50).to_string().bytes()),
            Fill::Text => bytes.extend(words[(random() >> 32) as usize % words.len()].bytes()),
            Fill::Half if at >= PAGE_BYTES / 2 => bytes.extend([0; 8]),
            Fill::Half => bytes.extend(random().to_le_bytes()),
            Fill::Words => bytes.extend((random() >> 52).to_le_bytes()),
            Fill::Repeats if at >= 512 => bytes.push(bytes[at - 512]),
            Fill::Repeats => bytes.extend(random().to_le_bytes()),
        }
    }
    bytes.truncate(PAGE_BYTES);
    bytes
}

struct Fixture {
    frames: FrameAllocator,
    pool: Pool,
    budget: Arc<Budget>,
    counters: Arc<Counters>,
    from: FrameId,
    to: FrameId,
}

fn fixture(compression: Compression, limit_bytes: u64) -> Fixture {
    let budget = Arc::new(Budget::new(64 << 20));
    let counters = Arc::new(Counters::new().unwrap());
    let config = FrameConfig::one_zone(128 << 20, Backing::BasePages);
    let frames = FrameAllocator::new(&config, Arc::clone(&budget), Arc::clone(&counters)).unwrap();
    let pool = Pool::new(
        &frames,
        compression,
        limit_bytes,
        Arc::clone(&budget),
        Arc::clone(&counters),
        &Machine::real(),
    )
    .unwrap();
    let frame = || frames.alloc(Order::ZERO).unwrap().into_frame();
    let (from, to) = (frame(), frame());
    Fixture { frames, pool, budget, counters, from, to }
}

impl Fixture {
    fn store(&self, slot: u32, page: &[u8]) -> Stored {
        self.frames.bytes().copy_in(self.from.home_offset(), page);
        self.pool.store(&self.frames, self.pool.weights(None), SwapSlot(slot), self.from, 0)
    }

    fn load(&self, slot: u32, handle: Handle) -> Result<Vec<u8>, LoadFailure> {
        self.pool.load(&self.frames, self.pool.weights(None), SwapSlot(slot), handle, self.to)?;
        let mut page = vec![0; PAGE_BYTES];
        self.frames.bytes().copy_out(self.to.home_offset(), &mut page);
        Ok(page)
    }

    fn kept(&self, slot: u32, page: &[u8]) -> Handle {
        match self.store(slot, page) {
            Stored::Kept(handle) => handle,
            other => panic!("slot {slot}: {other:?}"),
        }
    }
}

#[test]
fn what_shrinks_comes_back_and_what_does_not_is_refused() {
    for compression in [Compression::Lz4, Compression::Zstd] {
        let fixture = fixture(compression, 8 << 20);
        for (slot, kind) in KINDS.into_iter().enumerate() {
            let (slot, bytes) = (slot as u32, page(kind, 7));
            match fixture.store(slot, &bytes) {
                Stored::Kept(handle) => assert_eq!(fixture.load(slot, handle).unwrap(), bytes, "{kind:?}"),
                refused => {
                    assert_eq!(refused, Stored::Incompressible);
                    assert!(matches!(kind, Fill::Random | Fill::Floats), "{kind:?} was refused");
                }
            }
        }
        let counters = fixture.counters.snapshot();
        let of = |counter| counters.get(counter);
        assert_eq!((of(Counter::PoolSwapOut), of(Counter::PoolSwapIn)), (4, 4));
        assert_eq!(of(Counter::PoolRejectIncompressible), 2);
    }
}

#[test]
fn the_pool_grows_further_where_pages_shrink_more() {
    let fixture = fixture(Compression::Lz4, 16 << 20);
    let kept = |kind, slots: std::ops::Range<u32>| -> Vec<_> {
        slots.map(|slot| fixture.kept(slot, &page(kind, slot.into()))).collect()
    };
    let wanted_mib = || {
        fixture.pool.turnover();
        fixture.pool.used_and_wanted_bytes().1 >> 20
    };
    let halves = kept(Fill::Half, 0..400);
    assert_eq!(wanted_mib(), 16, "so few tell nothing");
    let more = kept(Fill::Half, 400..1000);
    assert_eq!(wanted_mib(), 4, "a frame holds two");
    halves.into_iter().chain(more).for_each(|handle| fixture.pool.free(&fixture.frames, handle));
    assert_eq!(wanted_mib(), 4, "none tell nothing");
    kept(Fill::Repeats, 0..1000);
    assert_eq!(wanted_mib(), 16, "a frame holds seven");
}

#[test]
fn a_pool_is_to_give_way_to_pages_that_a_program_mostly_waits_for() {
    let fixture = fixture(Compression::Lz4, 8 << 20);
    let pool = &fixture.pool;
    let mut slots = 0..;
    while let Stored::Kept(_) = fixture.store(slots.next().unwrap(), &page(Fill::Repeats, 1)) {}
    let judge = |evictions| {
        pool.judge_share(
            Shadow::at(evictions),
            FaultPath { fault_ns: 1e9, ..FaultPath::BY_HANDLES },
            pool.turnover(),
        );
        pool.used_and_wanted_bytes().1
    };
    let wanted_bytes = judge(0);
    assert!(wanted_bytes > 7 << 20);
    assert_eq!(judge(64 << 10), wanted_bytes, "nothing returned");
    for page in 0..8000 {
        pool.share().note(Shadow::at(64 << 10), Shadow::at((64 << 10) + page % 2048), false);
    }
    assert!(4 * judge(72 << 10) < 3 * wanted_bytes && pool.is_crowded(), "{pool:?}");
}

#[test]
fn a_pool_into_which_no_second_block_fits_may_have_more_parts() {
    let fixture = fixture(Compression::Lz4, Pool::share_of(64 << 20));
    let pool = &fixture.pool;
    for slot in 0..1000 {
        fixture.kept(slot, &page(Fill::Repeats, 1));
    }
    pool.parts.store(3, Ordering::Relaxed);
    let judge = |evictions| {
        pool.judge_share(Shadow::at(evictions), FaultPath::BY_HANDLES, pool.turnover());
        pool.used_and_wanted_bytes()
    };
    let (used_bytes, wanted_bytes) = judge(0);
    assert!(used_bytes == CHUNK_BYTES as u64 && wanted_bytes < 2 * used_bytes, "{pool:?}");
    for page in 0..8000 {
        pool.share().note(Shadow::at(0), Shadow::at(2500 + page % 1024), true);
    }
    assert!(judge(8192).1 > wanted_bytes, "{pool:?}");
}

#[test]
fn a_pool_that_is_worth_less_gives_its_blocks_back() {
    let fixture = fixture(Compression::Lz4, 6 << 20);
    let kept: Vec<_> = (0..2600).map(|slot| fixture.kept(slot, &page(Fill::Half, slot.into()))).collect();
    fixture.pool.turnover();
    let (used_bytes, wanted_bytes) = fixture.pool.used_and_wanted_bytes();
    assert!(used_bytes > 2 * wanted_bytes && fixture.pool.is_crowded(), "{used_bytes} of {wanted_bytes}");
    // Each block keeps some objects.
    let leaving = kept.into_iter().filter(|handle| !handle.span().is_multiple_of(5));
    leaving.for_each(|handle| fixture.pool.free(&fixture.frames, handle));
    assert!(!fixture.pool.is_crowded() && fixture.pool.used_and_wanted_bytes().0 == used_bytes);
    while fixture.pool.close_holes(&fixture.frames, |_, _, _| true) {}
    let (used_bytes, _) = fixture.pool.used_and_wanted_bytes();
    assert!(used_bytes <= wanted_bytes + CHUNK_BYTES as u64, "{used_bytes} of {wanted_bytes}");
    fixture.frames.validate();
}

#[test]
fn a_small_pool_is_judged_once_it_is_half_full() {
    let fixture = fixture(Compression::Lz4, 1 << 20);
    for slot in 0..400 {
        let _ = fixture.store(slot, &page(Fill::Half, slot.into()));
    }
    fixture.pool.turnover();
    assert_eq!(fixture.pool.used_and_wanted_bytes().1 >> 10, 256);
}

#[test]
fn a_page_for_which_there_is_no_scratch_says_nothing_of_pages() {
    // Without a compression method, no scratch can be made.
    let fixture = fixture(Compression::Off, 8 << 20);
    assert_eq!(fixture.store(1, &page(Fill::Text, 7)), Stored::Full);
    let counters = fixture.counters.snapshot();
    let refused = (Counter::PoolRejectFull, Counter::PoolRejectIncompressible);
    assert_eq!((counters.get(refused.0), counters.get(refused.1)), (1, 0));
}

#[test]
fn a_pool_that_finds_room_again_is_not_starved() {
    let fixture = fixture(Compression::Lz4, 16 << 20);
    let store = |slot: u32| fixture.store(slot, &page(Fill::Text, slot.into()));
    let mut kept: Vec<_> = (0..1000).map(|slot| fixture.kept(slot, &page(Fill::Text, slot.into()))).collect();
    let taken: Vec<_> = std::iter::from_fn(|| fixture.frames.alloc(Order::ZERO)).collect();
    let refused = (1000..).find(|slot| match store(*slot) {
        Stored::Kept(handle) => {
            kept.push(handle);
            false
        }
        _ => true,
    });
    assert!(fixture.pool.is_starved() && fixture.pool.is_short(), "memory is full: {refused:?}");
    kept.drain(..600).for_each(|handle| fixture.pool.free(&fixture.frames, handle));
    let slots = 5000..5100;
    assert!(slots.clone().all(|slot| matches!(store(slot), Stored::Kept(_))), "there is room in its spans");
    assert!(!fixture.pool.is_starved() && !fixture.pool.is_short());
    taken.into_iter().for_each(|block| fixture.frames.give_back(block));
}

#[test]
fn everything_freed_gives_all_memory_back() {
    let fixture = fixture(Compression::Lz4, 16 << 20);
    let kinds = [Fill::Text, Fill::Half, Fill::Words, Fill::Repeats];
    let kept: Vec<_> =
        (0..3000).map(|slot| fixture.kept(slot, &page(kinds[slot as usize % 4], slot.into()))).collect();
    let stats = fixture.pool.stats();
    assert_eq!(stats.pages, 3000);
    let waste = 1.0 - stats.packed_bytes as f64 / stats.used_bytes as f64;
    assert!(stats.used_bytes <= stats.limit_bytes && waste < 0.35, "{stats:?} wastes {waste:.2}");
    kept.into_iter().for_each(|handle| fixture.pool.free(&fixture.frames, handle));
    let stats = fixture.pool.stats();
    assert_eq!((stats.pages, stats.packed_bytes, stats.used_bytes), (0, 0, 0));
    let Fixture { frames, pool, budget, .. } = fixture;
    frames.shrink(1000);
    assert!(
        budget.used_bytes() < 3 << 20,
        "the chunk of two other frames, and words: {}",
        budget.used_bytes()
    );
    drop(pool);
    drop(frames);
    assert_eq!(budget.used_bytes(), 0, "nothing stays charged");
}

#[test]
fn neither_the_limit_nor_the_budget_is_exceeded() {
    let fixture = fixture(Compression::Lz4, 5 << 20);
    let mut full = 0;
    for slot in 0..8000 {
        full += u32::from(fixture.store(slot, &page(Fill::Half, slot.into())) == Stored::Full);
        assert!(fixture.pool.stats().used_bytes <= 5 << 20);
    }
    assert!(full > 4000, "{full}");
    assert!(fixture.pool.stats().used_bytes > 5 << 20 >> 1 && fixture.pool.is_crowded());
    // The pool uses new room at once.
    let mut named = Vec::new();
    fixture.pool.coldest(&fixture.frames, 64, &mut named);
    named.iter().for_each(|&(_, handle)| fixture.pool.free(&fixture.frames, handle));
    assert!(matches!(fixture.store(9000, &page(Fill::Half, 1)), Stored::Kept(_)));
    // The pool takes no memory that the frame allocator does not have.
    fixture.pool.set_limit_bytes(1 << 30);
    (8000..40_000).for_each(|slot| {
        let _ = fixture.store(slot, &page(Fill::Half, slot.into()));
    });
    assert!(fixture.budget.used_bytes() <= fixture.budget.limit_bytes());
    assert!(fixture.counters.snapshot().get(Counter::PoolRejectFull) > u64::from(full));
}

#[test]
fn damage_of_any_byte_is_told() {
    for compression in [Compression::Lz4, Compression::Zstd] {
        let fixture = fixture(compression, 8 << 20);
        let bytes = page(Fill::Text, 3);
        let handle = fixture.kept(9, &bytes);
        let at = fixture.pool.spans.span(handle.span()).place().home_offset()
            + handle.object() as usize * classes::size(handle.class());
        let len = classes::HEADER_BYTES + fixture.pool.stats().packed_bytes as usize;
        for damaged in at..at + len {
            let byte: u8 = fixture.frames.bytes().load(damaged);
            fixture.frames.bytes().store(damaged, byte ^ 0x10);
            let failure = fixture.load(9, handle).expect_err("damage");
            // If the slot or the generation is damaged, the object looks like another page's object to the
            // pool, and the caller finds its content unchanged.
            let named = damaged - at < 8;
            assert!(failure == LoadFailure::Corrupt || named, "byte {}: {failure:?}", damaged - at);
            fixture.frames.bytes().store(damaged, byte);
        }
        assert_eq!(fixture.load(9, handle), Ok(bytes));
    }
}

#[test]
fn a_freed_handle_is_gone_also_when_its_place_is_used_again() {
    let fixture = fixture(Compression::Lz4, 8 << 20);
    let bytes = page(Fill::Half, 1);
    let first = fixture.kept(5, &bytes);
    let stays = fixture.kept(6, &bytes);
    fixture.pool.free(&fixture.frames, first);
    assert_eq!(fixture.load(5, first), Err(LoadFailure::Gone));
    let second = fixture.kept(5, &page(Fill::Half, 2));
    assert_eq!((first.span(), first.object()), (second.span(), second.object()));
    assert_eq!(fixture.load(5, first), Err(LoadFailure::Gone));
    assert_eq!(fixture.load(7, second), Err(LoadFailure::Gone), "another slot's");
    assert_eq!(fixture.load(6, stays), Ok(bytes));
}

#[test]
fn the_coldest_are_those_stored_first_and_each_is_named_once() {
    let fixture = fixture(Compression::Lz4, 16 << 20);
    let handles: Vec<_> = (0..2000).map(|slot| fixture.kept(slot, &page(Fill::Half, slot.into()))).collect();
    let mut named = Vec::new();
    fixture.pool.coldest(&fixture.frames, 256, &mut named);
    assert!((256..256 + 64).contains(&named.len()), "{}", named.len());
    assert!(named.is_sorted_by_key(|(slot, _)| slot.0));
    assert!(named.iter().all(|&(slot, handle)| slot.0 < 400 && handles[slot.0 as usize] == handle));
    let mut more = Vec::new();
    fixture.pool.coldest(&fixture.frames, 256, &mut more);
    assert!(more.iter().all(|one| !named.contains(one)));
    // Pages that could not be written are named again. Pages that were written free their memory.
    let used = fixture.pool.stats().used_bytes;
    more.iter().for_each(|&(_, handle)| fixture.pool.stays(handle));
    named.iter().for_each(|&(_, handle)| fixture.pool.free(&fixture.frames, handle));
    let mut rest = Vec::new();
    while rest.len() < 2000 - named.len() {
        let before = rest.len();
        fixture.pool.coldest(&fixture.frames, 256, &mut rest);
        assert!(rest.len() > before, "all are named in the end");
    }
    assert!(more.iter().all(|one| rest.contains(one)));
    rest.iter().for_each(|&(_, handle)| fixture.pool.free(&fixture.frames, handle));
    assert!(used > 0 && fixture.pool.stats().used_bytes == 0);
}

#[test]
fn sparse_blocks_are_emptied_by_moving() {
    let fixture = fixture(Compression::Lz4, 32 << 20);
    let mut map: HashMap<u32, Handle> =
        (0..6000).map(|slot| (slot, fixture.kept(slot, &page(Fill::Half, slot.into())))).collect();
    // Two of every three pages are freed.
    for slot in (0..6000).filter(|slot| slot % 3 != 0) {
        fixture.pool.free(&fixture.frames, map.remove(&slot).unwrap());
    }
    let before = fixture.pool.stats();
    let mut given = 0;
    loop {
        let now = fixture.pool.give_back(&fixture.frames, 1, |slot, from, to| {
            let content = map.get_mut(&slot.0).expect("a live slot");
            assert_eq!(*content, from);
            *content = to;
            true
        });
        given += now;
        if now == 0 {
            break;
        }
    }
    let after = fixture.pool.stats();
    assert!(given >= 2 && after.used_bytes <= before.used_bytes / 2, "{given}: {before:?}, {after:?}");
    assert_eq!((after.pages, after.packed_bytes), (before.pages, before.packed_bytes));
    for (&slot, &handle) in &map {
        assert_eq!(fixture.load(slot, handle), Ok(page(Fill::Half, slot.into())));
    }
}

#[test]
fn a_page_of_a_rare_size_keeps_no_block_from_closing() {
    let fixture = fixture(Compression::Lz4, 32 << 20);
    // One page in 800 has a size that no other span has room for, so that a block has a span with one page.
    let rare = |slot: u32| slot.is_multiple_of(800);
    let sized = |slot: u32| {
        let mut page = page(Fill::Half, slot.into());
        let random = if rare(slot) { 256 + slot as usize / 800 * 192 } else { PAGE_BYTES / 2 };
        page[random..].fill(0);
        page
    };
    let mut map: HashMap<u32, Handle> =
        (0..6400).map(|slot| (slot, fixture.kept(slot, &sized(slot)))).collect();
    for slot in (0..6400).filter(|&slot| !rare(slot) && slot % 4 != 1) {
        fixture.pool.free(&fixture.frames, map.remove(&slot).unwrap());
    }
    let mut retarget = |slot: SwapSlot, from, to| map.insert(slot.0, to) == Some(from);
    while fixture.pool.close_holes(&fixture.frames, &mut retarget) {}
    let stats = fixture.pool.stats();
    assert!(stats.used_bytes < stats.packed_bytes * 5 / 4 + 2 * CHUNK_BYTES as u64, "{stats:?}");
    for (&slot, &handle) in &map {
        assert_eq!(fixture.load(slot, handle), Ok(sized(slot)));
    }
}

#[test]
fn a_block_that_was_never_used_goes_back() {
    let fixture = fixture(Compression::Lz4, 8 << 20);
    // The block is once the only one, and once beside another.
    for pages in [0, 100] {
        (0..pages).for_each(|slot| _ = fixture.kept(slot, &page(Fill::Half, slot.into())));
        let used_bytes = fixture.pool.stats().used_bytes;
        let block = fixture.frames.alloc(Order::MAX).unwrap();
        assert!(fixture.pool.feed(block).is_none(), "there is room for it");
        let given = fixture.pool.give_back(&fixture.frames, 1, |slot, _, _| panic!("{slot:?} is changed"));
        assert_eq!((given, fixture.pool.stats().used_bytes), (1, used_bytes));
    }
}

#[test]
fn a_small_block_goes_back_where_its_pages_fit_elsewhere() {
    let fixture = fixture(Compression::Lz4, 8 << 20);
    let (large, eighth) = (CHUNK_BYTES as u64, Order(Order::MAX.0 - 3));
    let small = eighth.bytes() as u64;
    let mut map: HashMap<u32, Handle> = HashMap::new();
    let fill = |map: &mut HashMap<u32, Handle>, used_bytes: u64| {
        while fixture.pool.stats().used_bytes < used_bytes {
            let slot = map.len() as u32;
            map.insert(slot, fixture.kept(slot, &page(Fill::Half, slot.into())));
        }
    };
    fill(&mut map, 1);
    assert_eq!(fixture.pool.stats().used_bytes, large);
    // The rest of the memory is in small pieces.
    let pieces = fixture.frames.alloc(eighth).unwrap();
    let taken: Vec<_> = std::iter::from_fn(|| fixture.frames.alloc(Order::ZERO)).collect();
    fixture.frames.give_back(pieces);
    // The thread may be on another CPU now, and the pool does not take frames from the lists of other CPUs.
    fixture.frames.drain();
    fill(&mut map, large + small);
    assert!(!fixture.pool.give_small_back(&fixture.frames), "the large block is full");
    for slot in 0..300 {
        fixture.pool.free(&fixture.frames, map.remove(&slot).unwrap());
    }
    assert!(fixture.pool.give_small_back(&fixture.frames));
    assert_eq!(fixture.pool.stats().used_bytes, large);
    assert!(!fixture.pool.give_small_back(&fixture.frames), "there is no other");
    for (&slot, &handle) in &map {
        assert_eq!(fixture.load(slot, handle), Ok(page(Fill::Half, slot.into())));
    }
    taken.into_iter().for_each(|block| fixture.frames.give_back(block));
}

#[test]
fn whole_spans_move_unnoticed() {
    let fixture = fixture(Compression::Lz4, 32 << 20);
    let handles: Vec<_> = (0..4000).map(|slot| fixture.kept(slot, &page(Fill::Half, slot.into()))).collect();
    // Runs of pages that fill more than two spans are freed, so that whole spans are free in every block.
    let stays = |slot: usize| (slot / 50).is_multiple_of(2);
    (0..4000).filter(|&slot| !stays(slot)).for_each(|slot| fixture.pool.free(&fixture.frames, handles[slot]));
    let before = fixture.pool.stats().used_bytes;
    let given = fixture.pool.give_back(&fixture.frames, 1, |slot, _, _| panic!("{slot:?} was to be changed"));
    assert!(given == 1 && fixture.pool.stats().used_bytes < before);
    for slot in (0..4000).filter(|&slot| stays(slot)) {
        assert_eq!(fixture.load(slot as u32, handles[slot]), Ok(page(Fill::Half, slot as u64)));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Store { slot: u32, kind: usize, seed: u64 },
    Load { slot: u32 },
    Free { slot: u32 },
    Shrink { n: usize, written: u64 },
    GiveBack { n: usize, refused: u64 },
    Limit { kib: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let slot = || 0..600u32;
    prop_oneof![
        12 => (slot(), 0..KINDS.len(), 0..1000u64).prop_map(|(slot, kind, seed)| Step::Store { slot, kind, seed }),
        6 => slot().prop_map(|slot| Step::Load { slot }),
        5 => slot().prop_map(|slot| Step::Free { slot }),
        1 => (1..100usize, any::<u64>()).prop_map(|(n, written)| Step::Shrink { n, written }),
        1 => (1..3usize, any::<u64>()).prop_map(|(n, refused)| Step::GiveBack { n, refused }),
        1 => (32..1500u64).prop_map(|kib| Step::Limit { kib }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn bytes_are_right_whatever_happens(steps in prop::collection::vec(step(), 1..1500), zstd in prop::bool::weighted(0.2)) {
        let fixture = fixture(if zstd { Compression::Zstd } else { Compression::Lz4 }, 300 << 10);
        let mut map: HashMap<u32, (Handle, usize, u64)> = HashMap::new();
        // A small limit makes the pool take several small blocks.
        let mut limit = 300 << 10;
        for step in steps {
            let used = fixture.pool.stats().used_bytes;
            match step {
                Step::Store { slot, kind, seed } => {
                    if let Some((handle, ..)) = map.remove(&slot) {
                        fixture.pool.free(&fixture.frames, handle);
                    }
                    if let Stored::Kept(handle) = fixture.store(slot, &page(KINDS[kind], seed)) {
                        map.insert(slot, (handle, kind, seed));
                    }
                }
                Step::Load { slot } => if let Some(&(handle, kind, seed)) = map.get(&slot) {
                    prop_assert_eq!(fixture.load(slot, handle), Ok(page(KINDS[kind], seed)));
                },
                Step::Free { slot } => if let Some((handle, ..)) = map.remove(&slot) {
                    fixture.pool.free(&fixture.frames, handle);
                    prop_assert_eq!(fixture.load(slot, handle), Err(LoadFailure::Gone));
                },
                Step::Shrink { n, written } => {
                    let mut named = Vec::new();
                    fixture.pool.coldest(&fixture.frames, n, &mut named);
                    prop_assert!(named.len() >= n.min(map.len()));
                    for (at, (slot, handle)) in named.into_iter().enumerate() {
                        prop_assert_eq!(map.get(&slot.0).map(|kept| kept.0), Some(handle));
                        if written >> (at % 64) & 1 != 0 {
                            map.remove(&slot.0);
                            fixture.pool.free(&fixture.frames, handle);
                        } else {
                            fixture.pool.stays(handle);
                        }
                    }
                }
                Step::GiveBack { n, refused } => {
                    let mut asked = 0;
                    fixture.pool.give_back(&fixture.frames, n, |slot, from, to| {
                        asked += 1;
                        // The content may have changed meanwhile. Then the object is freed.
                        if refused >> (asked % 64) & 1 != 0 && asked % 7 == 0 {
                            let (handle, ..) = map.remove(&slot.0).expect("a live slot");
                            assert_eq!(handle, from);
                            fixture.pool.free(&fixture.frames, from);
                            return false;
                        }
                        let content = map.get_mut(&slot.0).expect("a live slot");
                        assert_eq!(content.0, from);
                        content.0 = to;
                        true
                    });
                }
                Step::Limit { kib } => {
                    limit = kib << 10;
                    fixture.pool.set_limit_bytes(limit);
                }
            }
            let now = fixture.pool.stats();
            prop_assert!(now.used_bytes <= limit.max(used), "it never grows beyond its limit");
            prop_assert_eq!(now.pages, map.len() as u64);
            prop_assert!(fixture.budget.used_bytes() <= fixture.budget.limit_bytes());
        }
        for (&slot, &(handle, kind, seed)) in &map {
            prop_assert_eq!(fixture.load(slot, handle), Ok(page(KINDS[kind], seed)));
        }
        for (handle, ..) in map.into_values() {
            fixture.pool.free(&fixture.frames, handle);
        }
        prop_assert_eq!(fixture.pool.stats().used_bytes, 0);
        fixture.frames.validate();
    }
}

/// The test keeps the contents of slots like the swap cache: each is a word that is changed by
/// compare-and-swap. Beside each word is the seed of the slot's page.
#[test]
fn threads_store_load_free_shrink_and_move_at_once() {
    const SLOTS: u32 = 2048;
    let fixture = fixture(Compression::Lz4, 4 << 20);
    let contents: Vec<AtomicU64> = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
    // In place of the cache's lock, a thread that gives a slot to another page locks the slot's owner.
    let owners: Vec<Mutex<u64>> = (0..SLOTS).map(|_| Mutex::new(0)).collect();
    let (loads, moved, left) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let clock = Clock::default();
    let began = clock.now();
    // The test runs for some time, and until every event has happened at least once.
    let goes_on = || {
        let missing = || [&loads, &moved, &left].iter().any(|count| count.load(Ordering::Relaxed) == 0);
        clock.since(began) < Duration::from_secs(2)
            || clock.since(began) < Duration::from_secs(60) && missing()
    };
    let change = |slot: u32, from: u64, to: u64| {
        contents[slot as usize].compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    };
    thread::scope(|scope| {
        for thread in 0..3u64 {
            let (fixture, contents, owners, loads, goes_on) =
                (&fixture, &contents, &owners, &loads, &goes_on);
            scope.spawn(move || {
                let (pool, frames) = (&fixture.pool, &fixture.frames);
                let frame = || frames.alloc(Order::ZERO).unwrap().into_frame();
                let (from, to) = (frame(), frame());
                let mut state = thread * 7919 + 12345;
                while goes_on() {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let slot = (state >> 33) as u32 % SLOTS;
                    let mut seed = owners[slot as usize].lock();
                    let content = &contents[slot as usize];
                    if state >> 60 < 7 {
                        let before = content.swap(0, Ordering::AcqRel);
                        if before != 0 {
                            pool.free(frames, Handle::from_bits(before));
                        }
                        *seed = state;
                        let kind = [Fill::Text, Fill::Half, Fill::Repeats][state as usize >> 20 & 1];
                        frames.bytes().copy_in(from.home_offset(), &page(kind, *seed));
                        if let Stored::Kept(handle) =
                            pool.store(frames, pool.weights(None), SwapSlot(slot), from, 0)
                        {
                            content.store(handle.bits(), Ordering::Release);
                        }
                        continue;
                    }
                    loop {
                        let word = content.load(Ordering::Acquire);
                        if word == 0 {
                            break;
                        }
                        let handle = Handle::from_bits(word);
                        match pool.load(frames, pool.weights(None), SwapSlot(slot), handle, to) {
                            Ok(()) => {
                                let kind = [Fill::Text, Fill::Half, Fill::Repeats][*seed as usize >> 20 & 1];
                                let mut bytes = vec![0; PAGE_BYTES];
                                frames.bytes().copy_out(to.home_offset(), &mut bytes);
                                assert_eq!(bytes, page(kind, *seed), "slot {slot}");
                                loads.fetch_add(1, Ordering::Relaxed);
                                break;
                            }
                            Err(LoadFailure::Gone) => {
                                assert_ne!(
                                    content.load(Ordering::Acquire),
                                    word,
                                    "gone, and its content unchanged"
                                );
                            }
                            Err(LoadFailure::Corrupt) => panic!("slot {slot} is corrupt"),
                        }
                    }
                }
            });
        }
        scope.spawn(|| {
            let bounce = fixture.frames.alloc(Order::ZERO).unwrap().into_frame();
            let mut turns = 0..;
            while goes_on() {
                let mut named = Vec::new();
                // Not in each round. Otherwise, if the other threads rarely run, no page is left to move.
                if turns.next().is_some_and(|turn: u32| turn.is_multiple_of(64)) {
                    fixture.pool.coldest(&fixture.frames, 32, &mut named);
                }
                for (slot, handle) in named {
                    let unpacked = fixture.pool.unpack(&fixture.frames, slot, handle, bounce);
                    if unpacked == Err(LoadFailure::Gone) {
                        continue;
                    }
                    assert_eq!(unpacked, Ok(()));
                    if change(slot.0, handle.bits(), 0) {
                        fixture.pool.free(&fixture.frames, handle);
                        left.fetch_add(1, Ordering::Relaxed);
                    }
                }
                fixture.pool.give_back(&fixture.frames, 1, |slot, from, to| {
                    let changed = change(slot.0, from.bits(), to.bits());
                    moved.fetch_add(u64::from(changed), Ordering::Relaxed);
                    changed
                });
                pause(Duration::from_millis(1));
            }
        });
    });
    let counts = [&loads, &moved, &left].map(|count| count.load(Ordering::Relaxed));
    assert!(counts.iter().all(|&count| count > 0), "loads, moves, writebacks: {counts:?}");
    for content in &contents {
        let word = content.load(Ordering::Acquire);
        if word != 0 {
            fixture.pool.free(&fixture.frames, Handle::from_bits(word));
        }
    }
    let stats = fixture.pool.stats();
    assert_eq!((stats.pages, stats.packed_bytes, stats.used_bytes), (0, 0, 0));
    fixture.frames.validate();
}
