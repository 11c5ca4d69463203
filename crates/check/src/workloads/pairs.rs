//! Two or three threads that meet once, on a manager of their own. The meetings are short enough to try all
//! schedules with few preemptions.
//!
//! The first thread prepares the meeting, waits for the others, and checks what is left. The device is
//! memory, so only these threads make the schedules differ.

use std::sync::Arc;

use octavo_sim::thread::JoinHandle;

use super::super::octavo::translation::TranslatedSpace;
use super::super::octavo::{
    Access, Advice, Compression, ErrorKind, HugePolicy, MIN_BUDGET_BYTES, Manager, ManagerBuilder,
    Protection, RegionOptions, Result, Space, SwapArea, ZeroPage,
};
use super::other_side::OtherSide;
use super::{HUGE, PAGE, assert_nothing_is_left, named};
use crate::Pair;

const AT: u64 = PAGE;

fn insist<T>(operation: impl FnMut() -> Result<T>) -> T {
    super::insist(false, operation)
}

fn builder() -> ManagerBuilder {
    Manager::builder()
        .budget_bytes(MIN_BUDGET_BYTES)
        .compression(Compression::Off)
        .zero_page(ZeroPage::PerSpace)
        .background(false)
        .swap_area(SwapArea::ram(1 << 20))
}

/// Makes a manager, and a space of it with a region.
fn space_at(at: u64, len: u64) -> (Manager, Arc<Space>) {
    let manager = builder().build().expect("a manager");
    let space = Arc::new(manager.space().expect("a space"));
    space.map_at(at, len, RegionOptions::new()).expect("room for a region");
    (manager, space)
}

/// Runs one meeting. Panics if a check fails.
pub(crate) fn run(pair: Pair) {
    match pair {
        Pair::StoreAndPageOut => on_a_page(|_| {}, store, page_out),
        Pair::StoreToCleanAndPageOut => on_a_page(bring_back, store, page_out),
        Pair::StoreAndReturn => on_a_page(send_out, store, page_out),
        Pair::PinAndPageOut => on_a_page(|_| {}, pin, page_out),
        Pair::PinOfCleanAndPageOut => on_a_page(bring_back, pin, page_out),
        Pair::OverwriteUnderPin => overwrite_under_pin(),
        Pair::LoadAndReuse => load_and_reuse(),
        Pair::TwoReturns => {
            on_a_page(send_out, store, |space| assert!(insist(|| space.load::<u64>(AT)) <= 2))
        }
        Pair::UnmapAndPageOut => unmap_beside(AT, store_one, page_out),
        Pair::UnmapAndReturn => {
            unmap_beside(AT, store_one_and_send_out, |space| match space.load::<u64>(AT) {
                Ok(found) => assert_eq!(found, 1),
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotMapped),
            })
        }
        Pair::ProtectAndReturn => protect_and_return(),
        Pair::FirstStoreAndUnmap => first_store_and_unmap(AT),
        Pair::FirstStoreFarAndUnmap => first_store_and_unmap(1 << 34),
        Pair::TwoFirstStores => two_first_stores(),
        Pair::ZeroPageAndShrinker => zero_page_and_shrinker(),
        Pair::ForkAndFault => fork_and_fault(),
        Pair::SharedPageAndUnmap => shared_page_and_unmap(),
    }
}

/// Prepares a page that holds 1. Then two threads run, one of which stores 2.
fn on_a_page(prepare: fn(&Space), one: fn(&Space), other: fn(&Space)) {
    let (manager, space) = space_at(AT, PAGE);
    store_one(&space);
    prepare(&space);
    let threads = [one, other].map(|work| {
        let space = Arc::clone(&space);
        move || work(&space)
    });
    meet(threads.into_iter().enumerate().map(|(number, work)| named(&format!("thread {number}"), work)));
    assert_eq!(insist(|| space.load::<u64>(AT)), 2);
    page_out(&space);
    assert_eq!(insist(|| space.load::<u64>(AT)), 2, "and from the device");
    drop(space);
    assert_nothing_is_left(&manager);
}

/// Unmaps a prepared page while another thread runs.
fn unmap_beside(at: u64, prepare: fn(&Space), other: impl FnOnce(&Space) + Send + 'static) {
    let (manager, space) = space_at(at, PAGE);
    prepare(&space);
    let (working, unmapping) = (Arc::clone(&space), Arc::clone(&space));
    let work = named("thread 0", move || other(&working));
    let unmap = named("thread 1", move || insist(|| unmapping.unmap(at, PAGE)));
    meet([work, unmap]);
    insist(|| space.map_at(at, PAGE, RegionOptions::new()));
    assert_eq!(insist(|| space.load::<u64>(at)), 0, "a fresh page");
    drop(space);
    assert_nothing_is_left(&manager);
}

/// Stores 1 to the page.
fn store_one(space: &Space) {
    space.store(AT, 1_u64).expect("room for a page");
}

/// Stores 1 to the page, and sends it out.
fn store_one_and_send_out(space: &Space) {
    store_one(space);
    send_out(space);
}

/// A page that is out comes back for a thread that stores to it, while another thread makes it read-only.
fn protect_and_return() {
    let (manager, space) = space_at(AT, PAGE);
    store_one(&space);
    send_out(&space);
    let (storing, protecting) = (Arc::clone(&space), Arc::clone(&space));
    let store = named("thread 0", move || {
        if let Err(error) = storing.store(AT, 2_u64) {
            assert_eq!(error.kind(), ErrorKind::Protected);
        }
    });
    let protect = named("thread 1", move || insist(|| protecting.protect(AT, PAGE, Protection::READ)));
    meet([store, protect]);
    let refused = space.store(AT, 3_u64).expect_err("a page that may only be read");
    assert_eq!(refused.kind(), ErrorKind::Protected);
    assert!([1, 2].contains(&insist(|| space.load::<u64>(AT))));
    drop(space);
    assert_nothing_is_left(&manager);
}

/// A page is pinned while it is asked to go out. After that, it is written whole, and the pin shows the new
/// bytes.
fn overwrite_under_pin() {
    let (manager, space) = space_at(AT, PAGE);
    store_one(&space);
    let (evicting, pinning) = (Arc::clone(&space), Arc::clone(&space));
    let evict = named("thread 1", move || page_out(&evicting));
    let overwrite = named("thread 0", move || {
        let pin = insist(|| pinning.pin_exact(AT, 8, Access::Write));
        evict.join().expect("no panic");
        insist(|| pinning.write(AT, &[2; PAGE as usize]));
        let written = u64::from_ne_bytes([2; 8]);
        assert_eq!(pin.load::<u64>(0).expect("a word of the pin"), written, "what was written under the pin");
        pin.store(0, 3_u64).expect("a word of the pin");
        assert_eq!(insist(|| pinning.load::<u64>(AT)), 3, "what the pin has stored");
    });
    meet([overwrite]);
    drop(space);
    assert_nothing_is_left(&manager);
}

/// A page that holds 1 is loaded while it goes out, and another page gets its frame.
fn load_and_reuse() {
    let (manager, space) = space_at(AT, 2 * PAGE);
    store_one(&space);
    bring_back(&space);
    let (loading, reusing) = (Arc::clone(&space), Arc::clone(&space));
    let load = named("thread 0", move || assert_eq!(insist(|| loading.load::<u64>(AT)), 1));
    let reuse = named("thread 1", move || {
        page_out(&reusing);
        insist(|| reusing.store(AT + PAGE, 9_u64));
    });
    meet([load, reuse]);
    drop(space);
    assert_nothing_is_left(&manager);
}

fn meet(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    let threads: Vec<_> = threads.into_iter().collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

fn store(space: &Space) {
    insist(|| space.store(AT, 2_u64));
    assert_eq!(insist(|| space.load::<u64>(AT)), 2, "what was just stored");
}

fn pin(space: &Space) {
    let pin = insist(|| space.pin_exact(AT, 8, Access::Write));
    pin.store(0, 2_u64).expect("a word of the pin");
    assert_eq!(insist(|| space.load::<u64>(AT)), 2, "what the pin has stored");
    drop(pin);
    assert_eq!(insist(|| space.load::<u64>(AT)), 2, "what the pin has left");
}

fn page_out(space: &Space) {
    space.advise(AT, PAGE, Advice::PageOut).expect("advice that can be followed or left");
}

fn reclaim_one(manager: &Manager) {
    manager.reclaim(1).expect("reclaim gives no error of a device");
}

fn send_out(space: &Space) {
    // The first call writes the page, the second one takes its frame.
    (0..2).for_each(|_| page_out(space));
}

/// Sends the page out and loads it back, so that it is clean.
fn bring_back(space: &Space) {
    send_out(space);
    assert_eq!(insist(|| space.load::<u64>(AT)), 1);
}

/// Makes the first page of a space while another thread unmaps it. A higher address makes the table taller.
fn first_store_and_unmap(at: u64) {
    unmap_beside(at, |_| {}, move |space| drop(space.store(at, 7_u64)));
}

fn two_first_stores() {
    let (manager, space) = space_at(AT, PAGE);
    let lane = |lane: u64| {
        let space = Arc::clone(&space);
        named(&format!("thread {lane}"), move || insist(|| space.store(AT + 8 * lane, lane + 1)))
    };
    meet([lane(0), lane(1)]);
    for lane in 0..2 {
        assert_eq!(insist(|| space.load::<u64>(AT + 8 * lane)), lane + 1);
    }
    drop(space);
    assert_nothing_is_left(&manager);
}

/// The last user of the huge zero page leaves, the next user comes, and the shrinker looks for the page.
fn zero_page_and_shrinker() {
    let manager = Arc::new(builder().huge(HugePolicy::Always).build().expect("a manager"));
    let user = |manager: &Manager| {
        let space = manager.space().expect("a space");
        space.map_at(HUGE, HUGE, RegionOptions::new().huge(true)).expect("room for a region");
        space
    };
    let (last, next) = (user(&manager), user(&manager));
    assert_eq!(insist(|| last.load::<u64>(HUGE)), 0);
    let shrinking = Arc::clone(&manager);
    let threads = [
        named("last user", move || drop(last)),
        named("next user", move || {
            assert_eq!(insist(|| next.load::<u64>(HUGE + 8)), 0, "nobody has written it")
        }),
        named("shrinker", move || reclaim_one(&shrinking)),
    ];
    meet(threads);
    assert_nothing_is_left(&manager);
}

/// A parent whose page's slot a child can share.
struct ParentPage {
    manager: Manager,
    parent: TranslatedSpace,
    there: Arc<OtherSide>,
}

/// Makes a space with a translation, whose page holds 1 and is out.
fn family() -> ParentPage {
    let manager = builder().build().expect("a manager");
    let there = OtherSide::new(1, u64::MAX);
    let parent = manager.translated_space("parent", there.clone()).expect("a space");
    parent.map_at(AT, PAGE, RegionOptions::new()).expect("room for a region");
    insist(|| there.store(&parent, AT, 1));
    while manager.reclaim(1).expect("reclaim gives no error of a device") > 0 {}
    ParentPage { manager, parent, there }
}

/// The parent's other thread stores to its page while the process forks. The child has the page as it was
/// when it forked.
fn fork_and_fault() {
    let ParentPage { manager, parent, there } = family();
    let (forking, storing) = (parent.clone(), parent.clone());
    let (left, right) = (Arc::clone(&there), Arc::clone(&there));
    let manager = Arc::new(manager);
    let making = Arc::clone(&manager);
    let fork = named("forker", move || {
        let child = left.fork(1);
        let space = making.translated_space("child", child.clone()).expect("a space");
        insist(|| space.fork_from(&forking));
        left.has_forked();
        insist(|| child.load(&space, AT));
        insist(|| child.store(&space, AT, 3));
    });
    let store = named("writer", move || {
        insist(|| right.store(&storing, AT, 2));
        insist(|| right.load(&storing, AT));
    });
    meet([fork, store]);
    insist(|| there.load(&parent, AT));
    drop(parent);
    assert_nothing_is_left(&manager);
}

/// Parent and child share a page that is out. One process brings the page back and unmaps it, the other
/// process needs it, and it goes out again.
fn shared_page_and_unmap() {
    let ParentPage { manager, parent, there } = family();
    let manager = Arc::new(manager);
    let childs = there.fork(1);
    let child = manager.translated_space("child", childs.clone()).expect("a space");
    insist(|| child.fork_from(&parent));
    there.has_forked();
    let (wanting, evicting) = (child.clone(), Arc::clone(&manager));
    let threads = [
        named("parent", move || {
            insist(|| parent.load::<u64>(AT).map(|found| assert_eq!(found, 1)));
            insist(|| parent.unmap(AT, PAGE));
        }),
        named("child", move || assert_eq!(insist(|| wanting.load::<u64>(AT)), 1)),
        named("evictor", move || reclaim_one(&evicting)),
    ];
    meet(threads);
    assert_eq!(insist(|| child.load::<u64>(AT)), 1);
    insist(|| child.protect(AT, PAGE, Protection::READ_WRITE));
    insist(|| child.store(AT, 4_u64));
    drop(child);
    assert_nothing_is_left(&manager);
}
