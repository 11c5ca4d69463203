//! The compressed pool in a whole manager: what is counted as having come back from it, and who goes past it.

use octavo::{Advice, Counter, Manager, RegionOptions, Space};

const PAGE: u64 = octavo::PAGE_BYTES as u64;
const MIB: u64 = 1 << 20;

/// Words of a page that shrinks to less than half, and repeats no word.
fn page(tell: u64) -> Vec<u8> {
    let word = |at: u64| if at.is_multiple_of(4) { tell << 16 | at } else { at % 8 };
    (0..PAGE / 8).flat_map(|at| word(at).to_ne_bytes()).collect()
}

fn fill(space: &Space, len: u64) -> u64 {
    let at = space.map(len, RegionOptions::default()).unwrap();
    for offset in (0..len).step_by(PAGE as usize) {
        space.write(at + offset, &page(offset / PAGE)).unwrap();
    }
    at
}

fn check(space: &Space, at: u64, len: u64) {
    let mut seen = vec![0; PAGE as usize];
    for offset in (0..len).step_by(PAGE as usize) {
        space.read(at + offset, &mut seen).unwrap();
        assert!(seen == page(offset / PAGE), "offset {offset:#x}");
    }
}

#[test]
fn what_the_shrinker_unpacks_has_not_come_back() {
    let manager = Manager::builder().budget_bytes(64 * MIB).background(false).build().unwrap();
    let space = manager.space().unwrap();
    let at = fill(&space, 24 * MIB);
    for part in 0..12 {
        // What comes back at once is worth packing.
        space.advise(at + part * 2 * MIB, 2 * MIB, Advice::PageOut).unwrap();
        for offset in (0..2 * MIB).step_by(PAGE as usize) {
            space.load::<u64>(at + part * 2 * MIB + offset).unwrap();
        }
    }
    space.advise(at, 24 * MIB, Advice::PageOut).unwrap();
    let before = manager.counters();
    manager.set_budget(octavo::MIN_BUDGET_BYTES).unwrap();
    let after = manager.counters();
    let of = |counter| after.get(counter) - before.get(counter);
    assert!(of(Counter::PoolWriteback) > 0, "nothing left the pool: {:?}", manager.stats().unwrap());
    assert_eq!(of(Counter::PoolSwapIn), 0, "nobody came back");
    check(&space, at, 24 * MIB);
    manager.validate();
}
