//! Quotas: a space at its own limit evicts its own pages, and no pages of other spaces.

use octavo::{Access, ErrorKind, HugePolicy, Manager, RegionOptions, Space, SwapArea};

const PAGE: u64 = octavo::PAGE_BYTES as u64;
const MIB: u64 = 1 << 20;

fn manager() -> Manager {
    Manager::builder().budget_bytes(64 * MIB).build().unwrap()
}

fn fill(space: &Space, len: u64) -> u64 {
    let at = space.map(len, RegionOptions::default()).unwrap();
    for offset in (0..len).step_by(PAGE as usize) {
        space.store(at + offset, offset | 1).unwrap();
    }
    at
}

fn check(space: &Space, at: u64, len: u64) {
    for offset in (0..len).step_by(PAGE as usize) {
        assert_eq!(space.load::<u64>(at + offset).unwrap(), offset | 1, "offset {offset:#x}");
    }
}

#[test]
fn a_space_at_its_quota_pushes_out_its_own_pages_only() {
    let manager = manager();
    let (small, other) = (manager.space_named("query").unwrap(), manager.space().unwrap());
    let kept = fill(&other, 16 * MIB);
    small.set_quota(Some(8 * MIB)).unwrap();
    let at = fill(&small, 48 * MIB);
    for _ in 0..2 {
        check(&small, at, 48 * MIB);
        let stats = small.stats().unwrap();
        assert!(stats.resident_bytes <= 8 * MIB + 64 * PAGE, "{stats:?}");
        assert!(stats.quota_out_bytes >= 32 * MIB && stats.swapped_in_bytes >= 32 * MIB, "{stats:?}");
    }
    let stats = other.stats().unwrap();
    assert_eq!(
        (stats.resident_bytes, stats.swapped_out_bytes),
        (16 * MIB, 0),
        "the other space lost nothing"
    );
    check(&other, kept, 16 * MIB);
    manager.validate();
}

#[test]
fn pages_in_use_stay_under_a_quota() {
    let manager = Manager::builder()
        .budget_bytes(64 * MIB)
        .background(false)
        .readahead_bytes(0)
        .swap_area(SwapArea::ram(128 * MIB))
        .build()
        .unwrap();
    let space = manager.space().unwrap();
    space.set_quota(Some(4 * MIB)).unwrap();
    let at = space.map(64 * MIB, RegionOptions::default()).unwrap();
    let (used, passing) = (16, 2048);
    let went_in = || space.stats().unwrap().swapped_in_bytes / PAGE;
    let mut back = 0;
    for turn in 0..8 {
        for page in used..passing {
            space.store(at + page * PAGE, page + turn).unwrap();
            let before = went_in();
            for page in 0..used {
                space.store(at + page * PAGE, page + turn).unwrap();
            }
            back += went_in() - before;
        }
    }
    assert!(went_in() > 4 * passing, "the others went out and came back in each turn");
    // If eviction went in order and ignored use, each page would have been out in all eight turns.
    assert!(back <= 4 * used, "{back} times a page in use was out");
    for page in 0..passing {
        assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), page + 7);
    }
}

#[test]
fn a_space_begins_with_figures_of_its_own() {
    let manager = manager();
    for turn in 0..3 {
        let space = manager.space().unwrap();
        let stats = space.stats().unwrap();
        let figures =
            (stats.resident_bytes, stats.swapped_in_bytes, stats.swapped_out_bytes, stats.quota_out_bytes);
        assert_eq!(figures, (0, 0, 0, 0), "space {turn}");
        space.set_quota(Some(2 * MIB)).unwrap();
        let at = fill(&space, 4 * MIB);
        check(&space, at, 4 * MIB);
        let stats = space.stats().unwrap();
        assert!(stats.swapped_in_bytes > 0 && stats.quota_out_bytes > 0, "{stats:?}");
    }
}

#[test]
fn a_quota_can_be_lowered_and_lifted_while_the_space_is_in_use() {
    let manager = manager();
    let space = manager.space().unwrap();
    let at = fill(&space, 32 * MIB);
    space.set_quota(Some(4 * MIB)).unwrap();
    assert!(space.stats().unwrap().resident_bytes <= 4 * MIB);
    check(&space, at, 32 * MIB);
    space.set_quota(None).unwrap();
    check(&space, at, 32 * MIB);
    assert_eq!(space.stats().unwrap().resident_bytes, 32 * MIB, "all of it has room again");
    manager.validate();
}

#[test]
fn a_space_whose_pages_are_all_pinned_is_told_so_by_name() {
    let manager = manager();
    let space = manager.space_named("pinned query").unwrap();
    space.set_quota(Some(2 * MIB)).unwrap();
    let at = space.map(8 * MIB, RegionOptions::default()).unwrap();
    let pins: Vec<_> =
        (0..512).map(|page| space.pin_exact(at + page * PAGE, 4096, Access::Write).unwrap()).collect();
    let error = space.store(at + 4 * MIB, 1_u64).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QuotaExceeded);
    for part in ["pinned query", "2 MiB", "raise its quota"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    drop(pins);
    space.store(at + 4 * MIB, 1_u64).unwrap();
    assert_eq!(space.set_quota(Some(PAGE)).unwrap_err().kind(), ErrorKind::InvalidBudget);
}

#[test]
fn blocks_count_all_their_pages() {
    let manager = Manager::builder().budget_bytes(64 * MIB).huge(HugePolicy::Always).build().unwrap();
    let space = manager.space().unwrap();
    // The quota is not a multiple of a block.
    space.set_quota(Some(13 * MIB)).unwrap();
    let at = space.map(48 * MIB, RegionOptions::default()).unwrap();
    for offset in (0..48 * MIB).step_by(PAGE as usize) {
        space.store(at + offset, offset | 1).unwrap();
        assert!(space.stats().unwrap().resident_bytes <= 13 * MIB, "at offset {offset:#x}");
    }
    assert!(manager.counters().get(octavo::Counter::HugeFaultAllocated) > 0);
    check(&space, at, 48 * MIB);
    manager.validate();
    space.set_quota(None).unwrap();
    space.unmap(at, 48 * MIB).unwrap();
    assert_eq!(space.stats().unwrap().resident_bytes, 0);
    let at = fill(&space, 8 * MIB);
    assert_eq!(space.stats().unwrap().resident_bytes, 8 * MIB);
    space.unmap(at, 8 * MIB).unwrap();
    assert_eq!(space.stats().unwrap().resident_bytes, 0);
}

#[test]
fn where_a_block_does_not_fit_under_the_quota_pages_do() {
    let manager = Manager::builder().budget_bytes(64 * MIB).huge(HugePolicy::Always).build().unwrap();
    let space = manager.space().unwrap();
    space.set_quota(Some(2 * MIB)).unwrap();
    let at = space.map(8 * MIB, RegionOptions::default()).unwrap();
    let pin = space.pin_exact(at, 4096, Access::Write).unwrap();
    for block in 1..4 {
        space.store(at + block * 2 * MIB, block).unwrap();
        assert_eq!(space.load::<u64>(at + block * 2 * MIB).unwrap(), block);
    }
    drop(pin);
}
