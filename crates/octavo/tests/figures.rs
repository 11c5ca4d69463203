//! The statistics of a space about its pages.

mod common;

use octavo::io::SwapArea;
use octavo::{
    AccessPattern, Advice, Compression, Counter, ErrorKind, HugePolicy, Latency, Manager, Protection,
    RegionOptions,
};

use common::device::TestDevice;
use common::{MIB, PAGE};

#[test]
fn each_page_of_a_range_is_counted_where_it_is() {
    let manager = Manager::builder()
        .budget_bytes(32 * MIB)
        .huge(HugePolicy::Advised)
        .compression(Compression::Off)
        .background(false)
        .build()
        .unwrap();
    let space = manager.space().unwrap();
    assert_eq!(space.region_stats().unwrap(), []);
    assert_eq!(space.range_stats(0, 1 << 40).unwrap(), Default::default(), "nothing was touched");
    space.map_at(4 * MIB, MIB, RegionOptions::new().pattern(AccessPattern::Random)).unwrap();
    space.map_at(8 * MIB, 4 * MIB, RegionOptions::new().huge(true)).unwrap();
    (0..20).for_each(|page| space.store(4 * MIB + page * PAGE, page + 1).unwrap());
    (20..25).for_each(|page| assert_eq!(space.load::<u64>(4 * MIB + page * PAGE).unwrap(), 0));
    space.store(8 * MIB, 1_u8).unwrap();
    space.protect(8 * MIB, 2 * MIB, Protection::READ).unwrap();
    space.advise(4 * MIB, 8 * PAGE, Advice::PageOut).unwrap();
    let [small, block, untouched] = space.region_stats().unwrap().try_into().unwrap();
    assert_eq!((small.address, small.bytes, small.pattern), (4 * MIB, MIB, AccessPattern::Random));
    assert_eq!((small.pages.swapped_bytes, small.pages.resident_bytes), (8 * PAGE, 12 * PAGE));
    assert_eq!((small.pages.zero_bytes, small.pages.huge_bytes, small.pages.away_bytes), (5 * PAGE, 0, 0));
    assert_eq!((block.address, block.bytes, block.protection), (8 * MIB, 2 * MIB, Protection::READ));
    assert_eq!((block.pages.resident_bytes, block.pages.huge_bytes), (2 * MIB, 2 * MIB));
    assert_eq!((untouched.protection, untouched.pages), (Protection::READ_WRITE, Default::default()));
    // The range is a part of a region and a part of a block.
    let part = space.range_stats(4 * MIB + 7 * PAGE, 2 * PAGE).unwrap();
    assert_eq!((part.swapped_bytes, part.resident_bytes), (PAGE, PAGE));
    assert_eq!(space.range_stats(8 * MIB + PAGE, PAGE).unwrap().huge_bytes, PAGE);
    assert_eq!(space.range_stats(1, PAGE).unwrap_err().kind(), ErrorKind::InvalidRange);
    let all = space.range_stats(0, 1 << 40).unwrap();
    assert_eq!(all.resident_bytes, space.stats().unwrap().resident_bytes);
}

#[cfg(feature = "serde")]
#[test]
fn figures_are_serialised_by_their_names() {
    let manager = Manager::builder().budget_bytes(16 * MIB).build().unwrap();
    let space = manager.space().unwrap();
    space.map_at(0, PAGE, RegionOptions::default()).unwrap();
    space.store(0, 1_u8).unwrap();
    let json = |value: serde_json::Result<serde_json::Value>| value.unwrap();
    assert_eq!(json(serde_json::to_value(manager.stats().unwrap()))["budget_bytes"], 16 * MIB);
    assert!(json(serde_json::to_value(manager.counters()))["pgfault"].as_u64().unwrap() >= 1);
    assert_eq!(json(serde_json::to_value(space.stats().unwrap()))["resident_bytes"], PAGE);
    let regions = json(serde_json::to_value(space.region_stats().unwrap()));
    assert_eq!(regions[0]["pages"]["resident_bytes"], PAGE);
    assert_eq!(regions[0]["protection"]["write"], true);
    assert_eq!(json(serde_json::to_value(ErrorKind::SwapFull)), "SwapFull");
    assert!(json(serde_json::to_value(manager.latencies()))["new_page"]["count"].as_u64().unwrap() >= 1);
}

/// Returns how many waits of a kind were timed.
fn timed(manager: &Manager, latency: Latency) -> u64 {
    manager.latencies().quantiles(latency).count
}

#[test]
fn each_kind_of_wait_is_timed() {
    let device = TestDevice::new(1 << 16);
    let build = |compression| {
        let area = SwapArea::device(device.boxed());
        let builder = Manager::builder().budget_bytes(16 * MIB).background(false).compression(compression);
        builder.swap_area(area).huge(HugePolicy::Never).readahead_bytes(0).build().unwrap()
    };
    let manager = build(Compression::Off);
    let space = manager.space().unwrap();
    space.map_at(0, 64 * MIB, RegionOptions::default()).unwrap();
    let pages = 1024;
    (0..pages).for_each(|page| space.store(page * PAGE + 8, page + 1).unwrap());
    let sampled = timed(&manager, Latency::NewPage);
    assert!((pages / 128..=pages / 32).contains(&sampled), "{sampled} of {pages}: one in 64");
    assert_eq!(timed(&manager, Latency::Device) + timed(&manager, Latency::Stall), 0);
    while manager.reclaim(512).unwrap() > 0 {}
    (0..pages).for_each(|page| assert_eq!(space.load::<u64>(page * PAGE + 8).unwrap(), page + 1));
    assert_eq!(timed(&manager, Latency::Device), pages, "all of them");
    assert_eq!(manager.latencies().histogram(Latency::Device).len(), pages);
    // An access to a page in memory is not a wait.
    (0..pages).for_each(|page| space.store(page * PAGE + 8, page + 2).unwrap());
    assert_eq!(timed(&manager, Latency::Device), pages);
    assert_eq!(timed(&manager, Latency::NewPage), sampled);
    (0..8 * pages).for_each(|page| space.store(page * PAGE, 1_u64).unwrap());
    let counters = manager.counters();
    let (stalls, throttles) =
        (counters.get(Counter::AllocationStall), counters.get(Counter::AllocationThrottle));
    assert!(stalls > 0 && timed(&manager, Latency::Stall) == stalls + throttles, "{stalls} and {throttles}");
    let before = manager.latencies();
    assert_eq!(manager.latencies().since(&before).quantiles(Latency::Stall).count, 0);

    let manager = build(Compression::Lz4);
    let space = manager.space().unwrap();
    space.map_at(0, 64 * MIB, RegionOptions::default()).unwrap();
    (0..pages).for_each(|page| space.store(page * PAGE + 8, page + 1).unwrap());
    while manager.reclaim(512).unwrap() > 0 {}
    (0..pages).for_each(|page| assert_eq!(space.load::<u64>(page * PAGE + 8).unwrap(), page + 1));
    let packed = manager.counters().get(Counter::PoolSwapIn);
    let (unpacked, device) = (timed(&manager, Latency::Unpacked), timed(&manager, Latency::Device));
    assert!(unpacked > 0 && unpacked <= sampled, "{unpacked} of {packed}");
    assert!(packed + device <= pages, "{packed} and {device}");
}
