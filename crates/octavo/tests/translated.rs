//! Spaces whose pages are also reached in another way: pages go away and come home, and no store is lost on the way.

mod common;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use common::device::TestDevice;
use common::target::{Able, Ask, Target};
use common::{MIB, PAGE, Random, SetOnDrop, Switches, Watchdog, assert_only_kept, says, seed_or};
use octavo::io::{SwapArea, SwapFile};
use octavo::{
    Access, Advice, Answer, Compression, Counter, ErrorKind, HugePolicy, HugeZeroWrite, InPlace, Manager,
    ManagerBuilder, Order, Protection, RegionOptions, Space, ZeroPage,
};

const BUDGET: u64 = 16 * MIB;
const SLOTS: u32 = 128 * 256;

fn builder() -> ManagerBuilder {
    let area = SwapArea::device(TestDevice::new(SLOTS).boxed());
    Manager::builder().budget_bytes(BUDGET).swap_area(area).compression(Compression::Off).background(false)
}

struct Pair {
    manager: Manager,
    target: Arc<Target>,
    space: Space,
    at: u64,
}

fn pair_of(builder: ManagerBuilder, able: Able, len: u64) -> Pair {
    let (manager, target) = (builder.build().unwrap(), Target::new(able));
    let space = manager.translated_space("translated", target.clone()).unwrap();
    let at = space.map(len, RegionOptions::default()).unwrap();
    Pair { manager, target, space, at }
}

fn pair(huge: HugePolicy, len: u64) -> Pair {
    pair_of(builder().huge(huge), Able::ALL, len)
}

impl Pair {
    fn page(&self, index: u64) -> u64 {
        self.at + index * PAGE
    }

    fn store(&self, index: u64, value: u64) {
        self.target.store(&self.space, self.page(index), value).unwrap();
    }

    fn load(&self, index: u64) -> u64 {
        self.target.load(&self.space, self.page(index)).unwrap()
    }

    fn away_pages(&self) -> u64 {
        self.manager.stats().unwrap().away_bytes / PAGE
    }

    /// What is away is what the target has.
    #[track_caller]
    fn agree(&self, pages: u64, zeros: u64) {
        assert_eq!(self.target.pages(), (pages as usize, zeros as usize));
        assert_eq!(self.away_pages(), pages);
        self.manager.validate();
    }

    /// Until nothing goes any more.
    fn evict_all(&self) {
        while self.manager.reclaim(512).unwrap() > 0 {}
    }

    fn end(self) {
        let Self { manager, target, space, .. } = self;
        drop(space);
        assert_eq!(target.pages(), (0, 0), "everything was removed");
        assert_only_kept(&manager, ZeroPage::default(), false);
        assert_eq!(manager.stats().unwrap().away_bytes, 0);
    }
}

#[test]
fn bytes_are_in_one_place_and_both_sides_see_each_others_stores() {
    let pair = pair(HugePolicy::Never, 8 * PAGE);
    pair.store(0, 1);
    pair.agree(1, 0);
    assert_eq!(pair.space.load::<u64>(pair.page(0)).unwrap(), 1, "it came home");
    pair.agree(0, 0);
    pair.space.store(pair.page(0), 2_u64).unwrap();
    assert_eq!(pair.load(0), 2, "it went away");
    pair.agree(1, 0);
    let pin = pair.space.pin(pair.page(0), 8, Access::Write).unwrap();
    pin.store(0, 3_u64).unwrap();
    drop(pin);
    assert_eq!(pair.load(0), 3);
    pair.space.write(pair.page(0), &[7; PAGE as usize]).unwrap();
    assert_eq!(pair.load(0), u64::from_le_bytes([7; 8]));
    pair.end();
}

#[test]
fn zeros_need_no_memory_at_either_side_until_they_are_written() {
    let pair = pair(HugePolicy::Never, 8 * PAGE);
    assert_eq!(pair.load(0), 0);
    pair.agree(0, 1);
    assert_eq!(pair.space.load::<u64>(pair.page(0)).unwrap(), 0, "zeros are at both sides");
    pair.agree(0, 1);
    pair.space.store(pair.page(0), 5_u64).unwrap();
    pair.agree(0, 0);
    assert_eq!(pair.load(0), 5);
    assert_eq!(pair.load(1), 0);
    pair.store(1, 6);
    pair.agree(2, 0);
    pair.end();
}

#[test]
fn two_mib_of_zeros_are_shown_at_once_and_replaced_as_the_policy_says() {
    for (write, pages) in [(HugeZeroWrite::Split, 1), (HugeZeroWrite::Allocate, 512)] {
        let pair = pair_of(builder().huge(HugePolicy::Always).huge_zero_write(write), Able::ALL, 2 * MIB);
        assert_eq!(pair.load(3), 0);
        assert_eq!(pair.target.take_asked(Ask::Install), [(pair.at / PAGE, 512)]);
        pair.agree(0, 512);
        pair.store(7, 1);
        pair.agree(pages, 512 - pages);
        assert_eq!(pair.space.load::<u64>(pair.page(7)).unwrap(), 1);
        pair.end();
    }
}

#[test]
fn a_target_without_zero_pages_gets_zeros_with_memory() {
    for huge in [HugePolicy::Never, HugePolicy::Always] {
        let able = Able { shows_zeros: false, ..Able::ALL };
        let pair = pair_of(builder().huge(huge), able, 2 * MIB);
        assert_eq!(pair.load(3), 0);
        pair.agree(1, 0);
        pair.end();
    }
}

#[test]
fn a_page_goes_out_from_where_it_is_and_comes_back_on_either_side() {
    let pair = pair(HugePolicy::Never, 64 * PAGE);
    (0..64).for_each(|page| pair.store(page, page + 1));
    pair.agree(64, 0);
    pair.evict_all();
    pair.agree(0, 0);
    assert_eq!(pair.manager.stats().unwrap().swap_slots, 64);
    for page in 0..64 {
        let (here, there) = (pair.space.load::<u64>(pair.page(page)), || pair.load(page));
        assert_eq!((here.unwrap(), there()), (page + 1, page + 1));
    }
    pair.agree(64, 0);
    pair.end();
}

#[test]
fn pages_go_in_runs() {
    let pair = pair(HugePolicy::Never, 128 * PAGE);
    (0..128).for_each(|page| pair.store(page, page + 1));
    pair.space.advise(pair.at, 128 * PAGE, Advice::PageOut).unwrap();
    let runs = pair.target.take_asked(Ask::Remove);
    assert_eq!(runs.iter().map(|(_, count)| count).sum::<u32>(), 128);
    assert!(
        runs.len() <= 16,
        "neighbours go together as far as their frames at home are neighbours: {runs:?}"
    );
    (0..128).for_each(|page| pair.store(page, page + 1));
    pair.target.take_asked(Ask::Remove);
    pair.space.unmap(pair.at, 128 * PAGE).unwrap();
    assert_eq!(pair.target.take_asked(Ask::Remove).len(), 2, "two batches of 64 pages");
    pair.end();
}

#[test]
fn a_page_that_was_only_read_keeps_its_place_and_is_not_written_again() {
    for able in [Able::ALL, Able { watches: false, ..Able::ALL }] {
        let pair = pair_of(builder().huge(HugePolicy::Never), able, 16 * PAGE);
        (0..16).for_each(|page| pair.store(page, page + 1));
        pair.evict_all();
        (0..16).for_each(|page| assert_eq!(pair.load(page), page + 1));
        pair.agree(16, 0);
        assert_eq!(pair.manager.stats().unwrap().swap_slots, 16, "clean pages keep their places");
        // Those that are stored to lose them, whether the store was told or is found out.
        (0..4).for_each(|page| pair.store(page, page + 101));
        pair.evict_all();
        pair.agree(0, 0);
        let written = pair.manager.counters().get(Counter::SwapOut);
        assert_eq!(written, 16 + 4, "{able:?}: each page was written once, and four twice");
        for page in 0..16 {
            let expected = if page < 4 { page + 101 } else { page + 1 };
            assert_eq!(pair.load(page), expected, "{able:?}, page {page}");
        }
        pair.end();
    }
}

#[test]
fn what_cannot_be_learned_of_counts_as_written() {
    let able = Able { watches: false, harvests: false, ..Able::ALL };
    let pair = pair_of(builder().huge(HugePolicy::Never), able, 16 * PAGE);
    (0..16).for_each(|page| pair.store(page, page + 1));
    for round in 2..5 {
        pair.evict_all();
        pair.agree(0, 0);
        (0..16).for_each(|page| assert_eq!(pair.load(page), (round - 1) * (page + 1)));
        (0..16).for_each(|page| pair.store(page, round * (page + 1)));
    }
    pair.end();
}

#[test]
fn pages_that_the_other_side_uses_stay_longer() {
    let pair = pair(HugePolicy::Never, 512 * PAGE);
    (0..512).for_each(|page| pair.store(page, page + 1));
    // Everything was used a moment ago; then only every eighth page is.
    while pair.manager.reclaim(1).unwrap() == 0 {}
    for _ in 0..6 {
        (0..512).step_by(8).for_each(|page| assert_eq!(pair.load(page), page + 1));
        pair.manager.reclaim(48).unwrap();
    }
    let stayed = |page: &u64| pair.target.try_load(pair.page(*page)).is_some();
    let used = (0..512).step_by(8).filter(stayed).count();
    let others = (0..512).filter(|page| page % 8 != 0).filter(stayed).count();
    assert!(used * 7 > others, "{used} of 64 that are used stayed, {others} of 448 others");
    pair.end();
}

#[test]
fn more_than_the_budget_fits_and_the_budget_holds() {
    for huge in [HugePolicy::Never, HugePolicy::Always] {
        let pair = pair(huge, 3 * BUDGET);
        let pages = 3 * BUDGET / PAGE;
        for page in 0..pages {
            pair.store(page, page + 1);
            if page % 256 == 0 {
                let stats = pair.manager.stats().unwrap();
                assert!(stats.used_bytes <= BUDGET, "{} of {BUDGET} bytes", stats.used_bytes);
            }
        }
        let away = pair.away_pages() * PAGE;
        assert!(away > BUDGET / 2, "most of the budget is away: {away}");
        (0..pages).for_each(|page| assert_eq!(pair.load(page), page + 1, "page {page}"));
        // A handle's pages take the place of those that are away.
        let at = pair.space.map(2 * BUDGET, RegionOptions::default()).unwrap();
        for page in 0..2 * BUDGET / PAGE {
            pair.space.store(at + page * PAGE, page).unwrap();
        }
        assert!(pair.away_pages() * PAGE < BUDGET / 2);
        (0..pages).for_each(|page| assert_eq!(pair.load(page), page + 1, "page {page}"));
        assert!(pair.away_pages() * PAGE > BUDGET / 2, "chunks at home were given back");
        pair.manager.validate();
        pair.end();
    }
}

#[test]
fn without_swap_pages_stay_and_the_error_says_so() {
    let builder = Manager::builder().budget_bytes(BUDGET).swap_file(SwapFile::None).background(false);
    let pair = pair_of(builder.huge(HugePolicy::Never), Able::ALL, 2 * BUDGET);
    let store = |page| pair.target.store(&pair.space, pair.page(page), page + 1);
    let full = (0..2 * BUDGET / PAGE).find(|page| store(*page).is_err()).unwrap();
    says(store(full), ErrorKind::OutOfMemory, &["translated", "configure a swap file"]);
    (0..full).for_each(|page| assert_eq!(pair.load(page), page + 1));
    pair.space.unmap(pair.at, 64 * PAGE).unwrap();
    pair.target.store(&pair.space, pair.page(full), 9).unwrap();
    pair.manager.validate();
    pair.end();
}

#[test]
fn a_block_is_split_before_its_pages_go_and_its_split_is_told() {
    let pair = pair(HugePolicy::Always, 4 * MIB);
    pair.store(5, 6);
    pair.agree(512, 0);
    assert_eq!(pair.target.take_asked(Ask::Install), [(pair.at / PAGE, 512)]);
    // To a handle page by page.
    assert_eq!(pair.space.load::<u64>(pair.page(5)).unwrap(), 6);
    assert_eq!(pair.target.take_asked(Ask::Split), [(pair.at / PAGE, 512)]);
    pair.agree(511, 0);
    // Over an edge.
    pair.store(512, 7);
    pair.space.unmap(pair.page(512 + 100), PAGE).unwrap();
    assert_eq!(pair.target.take_asked(Ask::Split), [(pair.at / PAGE + 512, 512)]);
    pair.agree(511 + 511, 0);
    // On its way out. One that may not be split stays.
    let (at, first) = (pair.space.map(2 * MIB, RegionOptions::default()).unwrap(), pair.away_pages());
    pair.target.store(&pair.space, at, 8).unwrap();
    pair.agree(first + 512, 0);
    pair.target.always(Ask::Split, Some(Answer::Busy));
    pair.evict_all();
    pair.agree(512, 0);
    says(pair.space.unmap(at, PAGE), ErrorKind::Busy, &["2 MiB block"]);
    pair.target.always(Ask::Split, None);
    pair.evict_all();
    pair.agree(0, 0);
    assert_eq!(pair.target.load(&pair.space, at).unwrap(), 8);
    assert_eq!((pair.load(5), pair.load(512)), (6, 7));
    pair.end();
}

#[test]
fn of_a_block_the_part_stays_that_was_installed() {
    for zeros_first in [false, true] {
        let write = HugeZeroWrite::Allocate;
        let pair = pair_of(builder().huge(HugePolicy::Always).huge_zero_write(write), Able::ALL, 2 * MIB);
        if zeros_first {
            assert_eq!(pair.load(0), 0);
        }
        pair.target.script(Ask::Install, [Answer::Partly(100)]);
        pair.store(300, 7);
        pair.agree(101, if zeros_first { 411 } else { 0 });
        assert_eq!(pair.manager.stats().unwrap().huge_zero_users, 0);
        (0..512).for_each(|page| assert_eq!(pair.load(page), if page == 300 { 7 } else { 0 }));
        (0..512).for_each(|page| pair.store(page, page));
        pair.agree(512, 0);
        pair.end();
    }
}

#[test]
fn a_refusal_leaves_the_page_as_it_was_and_is_an_error_in_the_end() {
    let pair = pair(HugePolicy::Never, 8 * PAGE);
    // Zeros, a copy, and a way home: each in its turn.
    let always = |ask, answer| pair.target.always(ask, answer);
    for (answer, kind) in [(Answer::Busy, ErrorKind::Busy), (Answer::Unsupported, ErrorKind::Unsupported)] {
        always(Ask::Install, Some(answer));
        says(pair.target.store(&pair.space, pair.page(0), 1), kind, &["page at"]);
        pair.agree(0, 0);
        pair.space.store(pair.page(1), 2_u64).unwrap();
        says(pair.target.load(&pair.space, pair.page(1)), kind, &["page at"]);
        assert_eq!(pair.space.load::<u64>(pair.page(1)).unwrap(), 2);
        always(Ask::Install, None);
        pair.store(2, 3);
        always(Ask::Remove, Some(answer));
        says(pair.space.load::<u64>(pair.page(2)), kind, &["page at"]);
        pair.evict_all();
        assert_eq!(pair.load(2), 3, "it stayed");
        always(Ask::Remove, None);
        assert_eq!(pair.space.load::<u64>(pair.page(2)).unwrap(), 3);
        pair.manager.validate();
    }
    pair.target.script(Ask::Install, [Answer::Busy; 5]);
    pair.store(3, 4);
    assert_eq!(pair.load(3), 4);
    pair.end();
}

#[test]
fn a_pinned_page_goes_when_its_pin_is_gone() {
    let pair = pair(HugePolicy::Never, PAGE);
    pair.space.store(pair.at, 1_u64).unwrap();
    let pin = pair.space.pin(pair.at, 8, Access::Write).unwrap();
    says(pair.target.load(&pair.space, pair.at), ErrorKind::Busy, &["drop what holds"]);
    pin.store(0, 2_u64).unwrap();
    drop(pin);
    assert_eq!(pair.load(0), 2);
    pair.end();
}

#[test]
fn protection_is_told_and_a_fault_finds_what_is_allowed() {
    for huge in [HugePolicy::Never, HugePolicy::Always] {
        let pair = pair(huge, 2 * MIB);
        (0..512).for_each(|page| pair.store(page, page + 1));
        pair.space.protect(pair.at, 4 * PAGE, Protection::READ).unwrap();
        assert_eq!(pair.target.take_asked(Ask::Protect), [(pair.at / PAGE, 4)]);
        assert_eq!(pair.load(0), 1);
        assert!(!pair.target.try_store(pair.at, 9));
        says(pair.target.store(&pair.space, pair.at, 9), ErrorKind::Protected, &[]);
        pair.store(4, 9);
        pair.space.protect(pair.at, 4 * PAGE, Protection::READ_WRITE).unwrap();
        assert!(!pair.target.try_store(pair.at, 9), "a fault allows more");
        pair.store(0, 9);
        pair.space.protect(pair.at, 4 * PAGE, Protection::NONE).unwrap();
        assert_eq!(pair.target.try_load(pair.at), None);
        says(pair.target.load(&pair.space, pair.at), ErrorKind::Protected, &[]);
        pair.space.protect(pair.at, 4 * PAGE, Protection::READ).unwrap();
        assert_eq!(pair.load(0), 9);
        pair.manager.validate();
        pair.end();
    }
}

#[test]
fn protection_that_the_translation_cannot_give_is_an_error_and_changes_no_region() {
    let able = Able { protects: false, ..Able::ALL };
    let pair = pair_of(builder().huge(HugePolicy::Never), able, 8 * PAGE);
    (0..4).for_each(|page| pair.store(page, page + 1));
    pair.space.store(pair.page(4), 5_u64).unwrap();
    let protect = |protection| pair.space.protect(pair.at, 8 * PAGE, protection);
    says(protect(Protection::READ), ErrorKind::Unsupported, &["translation cannot protect"]);
    // All may be done that could be done before, on both sides.
    (0..4).for_each(|page| assert!(pair.target.try_store(pair.page(page), page + 11)));
    pair.space.store(pair.page(4), 15_u64).unwrap();
    pair.evict_all();
    (0..5).for_each(|page| assert_eq!(pair.space.load::<u64>(pair.page(page)).unwrap(), page + 11));
    protect(Protection::READ).unwrap();
    pair.end();
}

#[test]
fn what_is_in_place_becomes_pages_that_count_and_go() {
    let pair = pair(HugePolicy::Never, 4 * MIB);
    let put = |page, word| pair.target.put(pair.page(page), word, Protection::READ_WRITE);
    (0..600).for_each(|page| put(page, Some(page + 1)));
    (600..610).for_each(|page| pair.target.put(pair.page(page), None, Protection::READ));
    pair.space.adopt(pair.at, 600 * PAGE, InPlace::Blocks(Protection::READ_WRITE)).unwrap();
    pair.space.adopt(pair.page(600), 10 * PAGE, InPlace::Zeros).unwrap();
    assert_eq!(pair.target.take_asked(Ask::Install), [], "nothing was asked");
    pair.agree(600, 10);
    assert_eq!(pair.space.load::<u64>(pair.page(599)).unwrap(), 600);
    assert_eq!(pair.space.load::<u64>(pair.page(605)).unwrap(), 0);
    let again = pair.space.adopt(pair.page(598), PAGE, InPlace::Pages(Protection::READ_WRITE));
    says(again, ErrorKind::AlreadyMapped, &["has something already"]);
    // The block is no block at the other side, as it was put there: its split is told all the same.
    pair.target.always(Ask::Split, Some(Answer::Partly(0)));
    pair.evict_all();
    pair.agree(512, 10);
    pair.end();
}

#[test]
fn more_than_the_budget_is_adopted_by_sending_out_what_was_adopted_first() {
    let pair = pair(HugePolicy::Never, 3 * BUDGET);
    let pages = 3 * BUDGET / PAGE;
    (0..pages).for_each(|page| pair.target.put(pair.page(page), Some(page + 1), Protection::READ_WRITE));
    pair.space.adopt(pair.at, 3 * BUDGET, InPlace::Pages(Protection::READ_WRITE)).unwrap();
    assert!(pair.manager.stats().unwrap().used_bytes <= BUDGET);
    (0..pages).for_each(|page| assert_eq!(pair.load(page), page + 1, "page {page}"));
    pair.end();
}

#[test]
fn a_space_without_a_translation_says_so() {
    let manager = builder().build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(PAGE, RegionOptions::default()).unwrap();
    let fault = common::run_woken(space.fault_translated(at, Access::Read)).0;
    says(fault, ErrorKind::Unsupported, &["translated_space"]);
    says(space.adopt(at, PAGE, InPlace::Zeros), ErrorKind::Unsupported, &["translated_space"]);
}

#[test]
fn a_quota_counts_pages_that_are_away() {
    let pair = pair(HugePolicy::Never, 8 * MIB);
    pair.space.set_quota(Some(2 * MIB)).unwrap();
    for page in 0..2048 {
        pair.store(page, page + 1);
        assert!(pair.space.stats().unwrap().resident_bytes <= 2 * MIB);
    }
    (0..2048).for_each(|page| assert_eq!(pair.load(page), page + 1));
    pair.end();
}

#[test]
fn a_translation_that_panics_is_an_error_and_nobody_is_left_waiting() {
    let _watchdog = Watchdog::new("a translation that panics");
    let pair = pair(HugePolicy::Never, 8 * PAGE);
    let unsupported = |result: octavo::Result<()>| says(result, ErrorKind::Unsupported, &["page at"]);
    pair.target.panic_at_next(Ask::Install);
    unsupported(pair.target.store(&pair.space, pair.page(0), 1));
    pair.store(0, 1);
    pair.target.panic_at_next(Ask::Remove);
    unsupported(pair.space.load::<u64>(pair.page(0)).map(drop));
    assert_eq!(pair.space.load::<u64>(pair.page(0)).unwrap(), 1);
    pair.store(0, 2);
    pair.target.panic_at_next(Ask::Remove);
    pair.evict_all();
    assert_eq!(pair.load(0), 2);
    pair.target.panic_at_next(Ask::Harvest);
    pair.evict_all();
    assert_eq!(pair.load(0), 2);
    pair.target.panic_at_next(Ask::Protect);
    let protected = pair.space.protect(pair.at, PAGE, Protection::NONE);
    says(protected, ErrorKind::Unsupported, &["translation cannot protect"]);
    assert_eq!(pair.load(0), 2);
    pair.manager.validate();
    pair.end();
}

// --- many at once ---

/// Wakes by putting its number into a list.
struct Woken(usize, Arc<Mutex<Vec<usize>>>);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.1.lock().unwrap().push(self.0);
    }
}

/// No poll may block: the device answers only when this thread lets it.
#[test]
fn one_thread_drives_many_faults_at_once() {
    let _watchdog = Watchdog::new("many faults on one thread");
    const FAULTS: usize = 300;
    let device = TestDevice::new(SLOTS);
    let area = SwapArea::device(device.boxed());
    let builder =
        Manager::builder().budget_bytes(BUDGET).swap_area(area).background(false).readahead_bytes(0);
    let pair = pair_of(builder.compression(Compression::Off).huge(HugePolicy::Never), Able::ALL, 4 * MIB);
    (0..1024).for_each(|page| pair.store(page, page + 1));
    pair.evict_all();
    pair.target.refuse_one_in(5, 7);
    device.hold();
    let woken = Arc::new(Mutex::new((0..FAULTS).collect::<Vec<_>>()));
    let mut faults: Vec<_> = (0..FAULTS)
        .map(|index| Some(Box::pin(pair.space.fault_translated(pair.page(3 * index as u64), Access::Read))))
        .collect();
    let mut most_under_way = 0;
    while faults.iter().any(Option::is_some) {
        let ready = std::mem::take(&mut *woken.lock().unwrap());
        if ready.is_empty() {
            most_under_way = most_under_way.max(device.under_way());
            assert!(device.under_way() > 0, "nothing is under way, and nobody was woken");
            device.let_go();
            device.hold();
        }
        for index in ready {
            let Some(fault) = faults[index].as_mut() else { continue };
            let waker = Waker::from(Arc::new(Woken(index, Arc::clone(&woken))));
            if let Poll::Ready(done) = pin!(fault).as_mut().poll(&mut Context::from_waker(&waker)) {
                done.unwrap();
                faults[index] = None;
            }
        }
    }
    device.let_go();
    assert!(most_under_way > 64, "their reads were under way together: {most_under_way}");
    drop(faults);
    (0..1024).for_each(|page| assert_eq!(pair.load(page), page + 1));
    pair.end();
}

/// Each lane has a word of its own in every page; lanes of both sides, reclaim, and changes of protection run side by side.
#[test]
fn no_store_is_lost_between_the_sides() {
    const PAGES: u64 = 64;
    const LANES: u64 = 4;
    const STORES: u64 = 3000;
    for (seed, able) in [
        (1, Able::ALL),
        (2, Able { watches: false, ..Able::ALL }),
        (3, Able { watches: false, harvests: false, shows_zeros: false, ..Able::ALL }),
    ] {
        let _watchdog = Watchdog::with_patience("stores of both sides", std::time::Duration::from_secs(300));
        let pair = &pair_of(builder().huge(HugePolicy::Never), able, PAGES * PAGE);
        pair.target.refuse_one_in(10, seed);
        let ended = &AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random::new(seed);
                while !ended.load(Ordering::Acquire) {
                    pair.manager.reclaim(random.below(32)).unwrap();
                    let page = pair.page(random.below(PAGES));
                    let narrow = random.pick(&[Protection::READ, Protection::NONE, Protection::READ_WRITE]);
                    pair.space.protect(page, PAGE, narrow).unwrap();
                    pair.space.protect(page, PAGE, Protection::READ_WRITE).unwrap();
                    thread::yield_now();
                }
            });
            let lanes: Vec<_> = (0..LANES)
                .map(|lane| {
                    scope.spawn(move || {
                        let mut random = Random::new(seed * 100 + lane);
                        let mut model = [0; PAGES as usize];
                        for value in 1..=STORES {
                            let page = random.below(PAGES);
                            let at = pair.page(page) + lane * 8;
                            let (away, write) = ((lane + value / 50) % 2 == 0, random.one_in(2));
                            // What is protected just now, or held by the other side for long, is tried again. A target that
                            // cannot watch shows no page that may only be read.
                            let again = |kind| {
                                matches!(kind, ErrorKind::Protected | ErrorKind::Busy)
                                    || kind == ErrorKind::Unsupported && !able.watches
                            };
                            loop {
                                let done = match (away, write) {
                                    (true, true) => pair.target.store(&pair.space, at, value).map(|()| value),
                                    (true, false) => pair.target.load(&pair.space, at),
                                    (false, true) => pair.space.store(at, value).map(|()| value),
                                    (false, false) => pair.space.load(at),
                                };
                                match done {
                                    Ok(found) => {
                                        if write {
                                            model[page as usize] = value;
                                        }
                                        assert_eq!(
                                            found, model[page as usize],
                                            "seed {seed}, lane {lane}, page {page}, {away} {write}"
                                        );
                                        break;
                                    }
                                    Err(error) => assert!(again(error.kind()), "{error}"),
                                }
                            }
                        }
                        model
                    })
                })
                .collect();
            let _ended = SetOnDrop(ended);
            for (lane, model) in lanes.into_iter().enumerate() {
                let model = model.join().unwrap();
                for (page, expected) in model.into_iter().enumerate() {
                    let at = pair.page(page as u64) + lane as u64 * 8;
                    loop {
                        match pair.space.load::<u64>(at) {
                            Ok(found) => break assert_eq!(found, expected, "seed {seed}, lane {lane}"),
                            Err(error) => assert_eq!(error.kind(), ErrorKind::Protected),
                        }
                    }
                }
            }
        });
        pair.manager.validate();
    }
}

/// Everything that both sides can do, beside a plain array.
#[test]
fn both_sides_agree_with_a_plain_array() {
    for seed in seed_or(0)..seed_or(0) + 24 {
        side_by_side(seed);
    }
}

fn side_by_side(seed: u64) {
    const PAGES: u64 = 1536;
    let mut random = Random::new(seed);
    let (able, switches) = (Able::random(&mut random), Switches::random(&mut random));
    let area = SwapArea::device(TestDevice::new(SLOTS).boxed());
    let builder = switches.builder().budget_bytes(BUDGET).swap_area(area).background(false);
    let pair = pair_of(builder, able, PAGES * PAGE);
    if random.one_in(2) {
        pair.target.refuse_one_in(20, seed);
    }
    // What is left has room for part of the pages.
    let taken: Vec<_> = (0..4).filter_map(|_| pair.manager.alloc_block(Order::MAX).unwrap()).collect();
    let mut model = vec![Some(0_u64); PAGES as usize];
    for step in 0..4000 {
        let context = || format!("seed {seed}, step {step}, {able:?}, {switches:?}");
        let page = random.below(PAGES);
        let (at, index) = (pair.page(page), page as usize);
        match random.below(100) {
            0..30 => {
                let result = pair.target.store(&pair.space, at, step);
                expect(result.map(|()| step), model[index].map(|_| step), &context);
                model[index] = model[index].map(|_| step);
            }
            30..55 => expect(pair.target.load(&pair.space, at), model[index], &context),
            55..70 => {
                let result = pair.space.store(at, step);
                expect(result.map(|()| step), model[index].map(|_| step), &context);
                model[index] = model[index].map(|_| step);
            }
            70..85 => expect(pair.space.load(at), model[index], &context),
            85..90 => drop(pair.manager.reclaim(random.below(600)).unwrap()),
            kind => {
                let most = if random.one_in(4) { 700 } else { 20 };
                let len = (1 + random.below(most)).min(PAGES - page);
                let range = index..index + len as usize;
                let len = len * PAGE;
                let done = match kind {
                    90 => pair.space.unmap(at, len).map(|()| model[range].fill(None)),
                    91..94 => {
                        if model[range.clone()].iter().all(Option::is_none) {
                            pair.space.map_at(at, len, RegionOptions::default()).unwrap();
                            model[range].fill(Some(0));
                        }
                        Ok(())
                    }
                    94 => pair.space.advise(at, len, Advice::Free).map(|()| {
                        model[range].iter_mut().flatten().for_each(|word| *word = 0);
                    }),
                    95 => pair.space.advise(at, len, Advice::PageOut),
                    96 => pair.space.advise(at, len, Advice::WillNeed),
                    97 => pair.space.advise(at, len, Advice::Cold),
                    _ if model[range].iter().all(Option::is_some) => pair
                        .space
                        .protect(at, len, Protection::READ)
                        .and_then(|()| pair.space.protect(at, len, Protection::READ_WRITE)),
                    _ => Ok(()),
                };
                if let Err(error) = done {
                    assert_eq!(error.kind(), ErrorKind::Busy, "{}: {error}", context());
                }
            }
        }
        if step % 500 == 0 {
            pair.manager.validate();
        }
    }
    for (page, expected) in (0..).zip(&model) {
        expect(pair.space.load(pair.page(page)), *expected, &|| format!("seed {seed}, at the end, {able:?}"));
    }
    pair.manager.validate();
    taken.into_iter().for_each(|frame| pair.manager.free_block(frame, Order::MAX).unwrap());
    let Pair { manager, target, space, .. } = pair;
    drop(space);
    assert_eq!(target.pages(), (0, 0), "seed {seed}");
    assert_only_kept(&manager, switches.zero_page, switches.encrypt);
}

#[track_caller]
fn expect(found: octavo::Result<u64>, expected: Option<u64>, context: &dyn Fn() -> String) {
    match (found, expected) {
        (Ok(found), Some(expected)) => assert_eq!(found, expected, "{}", context()),
        (Err(error), None) => assert_eq!(error.kind(), ErrorKind::NotMapped, "{}", context()),
        (found, expected) => panic!("{}: found {found:?}, expected {expected:?}", context()),
    }
}
