//! Guards: bytes of guarded regions, lent to one writer or to many readers while pages go out and come back.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use octavo::io::SwapArea;
use octavo::{
    Access, Advice, Compression, ErrorKind, ExclusiveGuard, HugePolicy, Manager, ManagerBuilder,
    OwnedExclusiveGuard, OwnedSharedGuard, Protection, RegionOptions, SharedGuard, Space,
};
use proptest::prelude::*;

use common::device::TestDevice;
use common::{MIB, PAGE, Random, Watchdog, assert_only_kept, run_woken, says};

const BUDGET: u64 = 16 * MIB;

fn builder() -> ManagerBuilder {
    Manager::builder().budget_bytes(BUDGET)
}

fn guarded() -> RegionOptions {
    RegionOptions::new().guarded(true)
}

/// The word that a test keeps at each index.
fn word(index: u64) -> u64 {
    index.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1
}

#[test]
fn what_is_lent_is_there_after_four_times_the_budget() {
    for huge in [HugePolicy::Never, HugePolicy::Always] {
        let manager = builder().huge(huge).build().unwrap();
        let space = manager.space().unwrap();
        let len = 4 * BUDGET;
        let at = space.map(len, guarded()).unwrap();
        for page in 0..len / PAGE {
            let mut words = space.exclusive::<u64>(at + page * PAGE, 512).unwrap();
            assert!(words.iter().all(|word| *word == 0));
            words.iter_mut().zip(page * 512..).for_each(|(to, index)| *to = word(index));
        }
        for page in 0..len / PAGE {
            let words = space.shared::<u64>(at + page * PAGE, 512).unwrap();
            assert!(
                words.iter().zip(page * 512..).all(|(found, index)| *found == word(index)),
                "page {page}"
            );
        }
        let mut copy = vec![0_u64; 4096];
        space.read_guarded(at + 8 * 1000, bytemuck::cast_slice_mut(&mut copy)).unwrap();
        assert!(copy.iter().zip(1000..).all(|(found, index)| *found == word(index)));
        drop(space);
        drop(manager);
    }
}

#[test]
fn plain_accesses_of_a_guarded_region_are_refused_and_guards_of_a_plain_one() {
    let manager = builder().build().unwrap();
    let space = manager.space().unwrap();
    let (at, plain) = (space.map(MIB, guarded()).unwrap(), space.map(MIB, RegionOptions::default()).unwrap());
    // The loop runs once while the page is out, and once while it is in memory.
    for _ in 0..2 {
        let words = ["guarded", "exclusive()"];
        says(space.load::<u64>(at), ErrorKind::Protected, &words);
        says(space.store(at, 1_u64), ErrorKind::Protected, &words);
        says(space.swap(at, 1_u64), ErrorKind::Protected, &words);
        says(space.read(at, &mut [0; 9]), ErrorKind::Protected, &words);
        says(space.write(at, &[1; PAGE as usize]), ErrorKind::Protected, &words);
        says(space.pin_exact(at, 8, Access::Read), ErrorKind::Protected, &words);
        says(space.pin_prefix(at, 8, Access::Write), ErrorKind::Protected, &words);
        says(run_woken(space.pin_async(at, 8, Access::Write)).0, ErrorKind::Protected, &words);
        says(run_woken(space.fault_async(at, Access::Read)).0, ErrorKind::Protected, &words);
        space.populate(at, PAGE, Access::Read).unwrap();
        assert_eq!(space.shared::<u64>(at, 1).unwrap()[..], [0]);
        assert_eq!(space.range_stats(at, PAGE).unwrap().resident_bytes, PAGE);
    }
    let words = ["not guarded", "guarded(true)"];
    space.store(plain, 7_u64).unwrap();
    says(space.shared::<u64>(plain, 1), ErrorKind::Protected, &words);
    says(space.exclusive::<u64>(plain, 1), ErrorKind::Protected, &words);
    says(space.optimistic(plain), ErrorKind::Protected, &words);
    says(space.read_guarded(plain, &mut [0]), ErrorKind::Protected, &words);
    says(space.shared::<u64>(1 << 40, 1), ErrorKind::NotMapped, &["map()"]);
    says(space.protect(at, PAGE, Protection::READ), ErrorKind::Unsupported, &["guarded"]);
    says(space.map(MIB, guarded().protection(Protection::READ)), ErrorKind::Unsupported, &["writable"]);
    let stats = space.region_stats().unwrap();
    assert_eq!(stats.iter().map(|region| region.guarded).collect::<Vec<_>>(), [true, false]);
    assert_eq!(space.load::<u64>(plain).unwrap(), 7);
}

#[test]
fn a_guard_of_a_range_that_cannot_be_lent_says_which_can() {
    let manager = builder().build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(4 * MIB, guarded()).unwrap();
    let refuse = |address, len| {
        says(space.shared::<u64>(address, len), ErrorKind::InvalidRange, &["2 MiB", "aligned to 8"]);
        says(space.exclusive::<u64>(address, len), ErrorKind::InvalidRange, &["2 MiB"]);
    };
    refuse(at, 0);
    refuse(at + 4, 1);
    refuse(at, 1 + (2 << 20) / 8);
    refuse(at + 2 * MIB - 8, 2);
    refuse(at, usize::MAX);
    says(space.shared::<()>(at, 1), ErrorKind::InvalidRange, &["0 bytes"]);
    let optimistic = space.optimistic(at + 8).unwrap();
    says(optimistic.load::<u64>(PAGE as usize - 8), ErrorKind::InvalidRange, &["one page"]);
    says(optimistic.copy_out(usize::MAX, &mut [0; 2]), ErrorKind::InvalidRange, &["one page"]);
    assert_eq!(optimistic.load::<u64>(PAGE as usize - 16).unwrap(), 0);
    assert_eq!(space.exclusive::<u8>(at, 2 << 20).unwrap().len(), 2 << 20);
}

/// Pages that were touched in random order lie in scattered frames. They are still lent as one slice of any
/// length.
#[test]
fn scattered_pages_are_lent_as_one_slice() {
    let manager = builder().huge(HugePolicy::Never).build().unwrap();
    let space = manager.space().unwrap();
    let len = 4 * MIB;
    let at = space.map(len, guarded()).unwrap();
    let mut random = Random::new(7);
    let mut pages: Vec<u64> = (0..len / PAGE).collect();
    pages.sort_by_cached_key(|_| random.next());
    for page in pages {
        space.exclusive::<u64>(at + page * PAGE + 8 * (page % 512), 1).unwrap()[0] = word(page);
    }
    for _ in 0..60 {
        let most = if random.one_in(8) { 512 } else { 20 };
        let pages = 1 + random.below(most);
        let first = 512 * random.below(2) + random.below(513 - pages);
        let check = |words: &[u64]| {
            for page in 0..pages {
                let (page, place) = (first + page, page * 512 + (first + page) % 512);
                assert_eq!(words[place as usize], word(page), "page {page}");
            }
        };
        let (from, count) = (at + first * PAGE, (pages * 512) as usize);
        if random.one_in(2) {
            check(&space.shared(from, count).unwrap());
        } else {
            let mut guard = space.exclusive(from, count).unwrap();
            check(&guard);
            let last = guard.len() - 1;
            guard[last] ^= 0;
            let guard = guard.downgrade();
            check(&guard);
            assert_eq!(space.try_shared::<u64>(from, count).unwrap().len(), count);
        }
        if random.one_in(3) {
            space.advise(at, len, Advice::PageOut).unwrap();
        }
    }
    manager.validate();
    drop(space);
    assert_only_kept(&manager, false, false);
}

#[test]
fn guards_of_a_page_exclude_each_other_as_their_kinds_say() {
    for huge in [HugePolicy::Never, HugePolicy::Always] {
        let manager = builder().huge(huge).build().unwrap();
        let space = manager.space().unwrap();
        let at = space.map(4 * MIB, guarded()).unwrap();
        let busy = |page: u64| {
            says(space.try_exclusive::<u8>(at + page * PAGE, 1), ErrorKind::Busy, &["another guard"]);
        };
        let reader = space.shared::<u64>(at, 1).unwrap();
        let other = space.try_shared::<u64>(at + 8, 1).unwrap();
        busy(0);
        // The guard does not cover the next page, even if both are in one block.
        let mut writer = space.try_exclusive::<u64>(at + PAGE, 2).unwrap();
        writer[1] = 7;
        busy(1);
        says(space.try_shared::<u8>(at + PAGE, 1), ErrorKind::Busy, &["another guard"]);
        says(space.try_shared::<u8>(at, 2 * PAGE as usize), ErrorKind::Busy, &["another guard"]);
        let reader_of_what_was_written = writer.downgrade();
        busy(1);
        assert_eq!(space.try_shared::<u64>(at + PAGE, 2).unwrap()[..], [0, 7]);
        drop((reader, reader_of_what_was_written));
        busy(0);
        drop(other);
        space.try_exclusive::<u8>(at, 2 * PAGE as usize).unwrap();
        drop(space);
    }
}

#[test]
fn an_optimistic_guard_is_valid_until_a_writer_or_an_eviction_comes() {
    let manager = builder().build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(MIB, guarded()).unwrap();
    space.exclusive::<u64>(at, 1).unwrap()[0] = 1;
    let guard = space.optimistic(at).unwrap();
    assert_eq!(guard.load::<u64>(0).unwrap(), 1);
    drop(space.shared::<u64>(at, 1).unwrap());
    space.read_guarded(at, &mut [0; 64]).unwrap();
    space.exclusive::<u64>(at + PAGE, 1).unwrap()[0] = 5;
    assert!(guard.is_valid(), "readers, and writers elsewhere, change nothing");
    let writer = space.exclusive::<u64>(at, 1).unwrap();
    assert!(!guard.is_valid());
    drop(writer);
    assert!(!guard.is_valid());
    let guard = space.optimistic(at).unwrap();
    assert!(guard.is_valid());
    // The pages are freed, and new pages take their place.
    space.advise(at, MIB, Advice::Free).unwrap();
    assert!(!guard.is_valid());
    let guard = space.optimistic(at).unwrap();
    assert_eq!(guard.load::<u64>(0).unwrap(), 0);
    assert!(guard.is_valid());
    space.unmap(at, MIB).unwrap();
    assert!(!guard.is_valid());
}

#[test]
fn a_guard_outlives_the_unmapping_of_its_pages() {
    let manager = builder().huge(HugePolicy::Never).build().unwrap();
    let space = manager.space().unwrap();
    space.map_at(0x1000_0000, MIB, guarded()).unwrap();
    let at = 0x1000_0000;
    let mut guard = space.exclusive::<u64>(at, 1024).unwrap();
    guard.fill(3);
    space.unmap(at, MIB).unwrap();
    space.map_at(at, MIB, RegionOptions::default()).unwrap();
    space.store(at, 4_u64).unwrap();
    guard[0] = 5;
    assert_eq!((space.load::<u64>(at).unwrap(), guard[0], guard[1023]), (4, 5, 3));
    drop(guard);
    drop(space);
    assert_only_kept(&manager, false, false);
}

#[test]
fn owned_guards_keep_their_space_and_go_to_other_threads() {
    let manager = builder().build().unwrap();
    let space = Arc::new(manager.space().unwrap());
    let at = space.map(MIB, guarded()).unwrap();
    let mut writer: OwnedExclusiveGuard<u32> = space.exclusive_owned(at, 2000).unwrap();
    let reader: OwnedSharedGuard<u32> = space.shared_owned(at + 4 * PAGE, 10).unwrap();
    let later = run_woken(space.exclusive_owned_async::<u32>(at + 8 * PAGE, 10)).0.unwrap();
    let last = run_woken(space.shared_owned_async::<u32>(at + 9 * PAGE, 10)).0.unwrap();
    drop(space);
    let writer = thread::spawn(move || {
        writer.fill(9);
        writer
    });
    assert!(writer.join().unwrap().iter().all(|number| *number == 9));
    assert!(reader.iter().chain(&later[..]).chain(&last[..]).all(|number| *number == 0));
    drop((reader, later, last));
    assert_only_kept(&manager, true, false);
}

const _: () = {
    const fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<SharedGuard<'static, u64>>();
    is_send_and_sync::<ExclusiveGuard<'static, u64>>();
};

/// Threads add to counters without atomics while pages are evicted. No addition is lost, and no reader sees a
/// wrong sum.
#[test]
fn additions_of_many_threads_are_all_there_under_pressure() {
    let _watchdog = Watchdog::new("additions under pressure");
    for huge in [HugePolicy::Never, HugePolicy::Always] {
        let manager = builder().huge(huge).build().unwrap();
        let space = manager.space().unwrap();
        let len = 2 * BUDGET;
        let at = space.map(len, guarded()).unwrap();
        let (threads, rounds, hot) = (4, 3000, 64);
        let done = AtomicBool::new(false);
        // A page has two counters that are always equal, at its start and at its end. The pages of a run are
        // written together.
        let place = |random: &mut Random| match random.one_in(2) {
            true => random.below(hot),
            false => random.below(len / PAGE),
        };
        thread::scope(|scope| {
            let writers: Vec<_> = (0..threads)
                .map(|thread| {
                    let space = &space;
                    scope.spawn(move || {
                        let mut random = Random::new(thread);
                        let mut added = BTreeMap::<u64, u64>::new();
                        for _ in 0..rounds {
                            let page = place(&mut random);
                            let pages = if random.one_in(20) { 1 + random.below(8) } else { 1 };
                            let pages = pages.min(512 - page % 512);
                            let mut words =
                                space.exclusive::<u64>(at + page * PAGE, 512 * pages as usize).unwrap();
                            for (index, words) in words.chunks_exact_mut(512).enumerate() {
                                words[0] += 1;
                                words[511] += 1;
                                *added.entry(page + index as u64).or_default() += 1;
                            }
                        }
                        added
                    })
                })
                .collect();
            let readers: Vec<_> = (0..2)
                .map(|thread| {
                    let (space, done) = (&space, &done);
                    scope.spawn(move || {
                        let mut random = Random::new(100 + thread);
                        let mut copy = vec![0_u64; 512];
                        while !done.load(Ordering::Relaxed) {
                            let page = at + place(&mut random) * PAGE;
                            match random.below(3) {
                                0 => space.read_guarded(page, bytemuck::cast_slice_mut(&mut copy)).unwrap(),
                                1 => copy.copy_from_slice(&space.shared(page, 512).unwrap()),
                                _ => {
                                    let guard = space.optimistic(page).unwrap();
                                    (copy[0], copy[511]) =
                                        (guard.load(0).unwrap(), guard.load(PAGE as usize - 8).unwrap());
                                    if !guard.is_valid() {
                                        continue;
                                    }
                                }
                            }
                            assert_eq!(copy[0], copy[511], "a copy of the page at {page:#x} is torn");
                        }
                    })
                })
                .collect();
            let mut sums = BTreeMap::<u64, u64>::new();
            for writer in writers {
                for (page, added) in writer.join().unwrap() {
                    *sums.entry(page).or_default() += added;
                }
            }
            done.store(true, Ordering::Relaxed);
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            for page in 0..len / PAGE {
                let words = space.shared::<u64>(at + page * PAGE, 512).unwrap();
                let sum = sums.get(&page).copied().unwrap_or_default();
                assert_eq!((words[0], words[511]), (sum, sum), "page {page}");
            }
        });
        manager.validate();
        drop(space);
        assert_only_kept(&manager, huge == HugePolicy::Always, false);
    }
}

/// Some tasks wait for a guard and are woken. Other tasks are dropped while they wait.
#[test]
fn a_task_waits_for_a_guard_and_a_dropped_one_holds_nothing() {
    let _watchdog = Watchdog::new("tasks that wait for guards");
    let manager = builder().build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(MIB, guarded()).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let writer = space.exclusive::<u64>(at + PAGE, 1).unwrap();
    {
        // The future has the first page, and waits for the second.
        let mut given_up = Box::pin(space.exclusive_async::<u64>(at, 1024));
        assert!(matches!(given_up.as_mut().poll(&mut context), Poll::Pending));
        says(space.try_shared::<u64>(at, 1), ErrorKind::Busy, &["another guard"]);
    }
    assert_eq!(space.try_exclusive::<u64>(at, 1).unwrap()[0], 0);
    thread::scope(|scope| {
        let waiting = [(); 3].map(|()| {
            scope.spawn(|| {
                let (guard, ..) = run_woken(space.exclusive_async::<u64>(at, 1024));
                guard.unwrap()[512] += 1;
            })
        });
        let reading = scope.spawn(|| run_woken(space.shared_async::<u64>(at + PAGE, 1)).0.unwrap()[0]);
        drop(writer);
        waiting.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(reading.join().unwrap() <= 3);
    });
    assert_eq!(space.shared::<u64>(at + PAGE, 1).unwrap()[0], 3);
}

#[test]
fn a_forked_child_is_told_and_can_drop_its_guards() {
    let manager = builder().build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(MIB, guarded()).unwrap();
    let writer = space.exclusive::<u64>(at, 1024).unwrap();
    let optimistic = space.optimistic(at + 8 * PAGE).unwrap();
    let guards = (writer, space.shared::<u64>(at + 4 * PAGE, 1).unwrap());
    let code = octavo_platform::run_in_forked_child(|| {
        let is_told = |kind: Option<ErrorKind>| kind == Some(ErrorKind::ForkedChild);
        let answers = [
            space.shared::<u64>(at, 1).err(),
            space.try_exclusive::<u64>(at + 8 * PAGE, 1).err(),
            space.exclusive::<u64>(at + 3, 1).err(),
            space.optimistic(at).err(),
            space.read_guarded(at, &mut [0]).err(),
            optimistic.load::<u64>(0).err(),
        ];
        let wrong = answers.into_iter().position(|answer| !is_told(answer.map(|error| error.kind())));
        drop(guards);
        wrong.map_or(0, |index| 1 + index as u8)
    });
    assert_eq!(code.unwrap(), 0, "the first call that did not answer ForkedChild, or a signal + 128");
    space.shared::<u64>(at + 8 * PAGE, 1).unwrap();
    manager.validate();
}

/// Touches pages so that pages 0 and 1 are not neighbours in memory.
fn scattered(space: &Space) -> u64 {
    let at = space.map(2 * MIB, guarded()).unwrap();
    for page in [0, 7, 1, 9, 2, 3] {
        space.exclusive::<u64>(at + page * PAGE, 1).unwrap()[0] = word(page);
    }
    at
}

/// A reader may hold a page that another reader would have to move. Both may be on the same thread.
#[test]
fn pages_that_cannot_be_moved_are_an_error_and_no_hang() {
    let _watchdog = Watchdog::new("pages that cannot be moved");
    let manager = builder().huge(HugePolicy::Never).build().unwrap();
    let space = manager.space().unwrap();
    let at = scattered(&space);
    let one = space.shared::<u64>(at, 1).unwrap();
    for _ in 0..2 {
        says(space.try_shared::<u64>(at, 1024), ErrorKind::Busy, &["do not lie together"]);
        says(space.shared::<u64>(at, 1024), ErrorKind::Busy, &["do not lie together", "fewer"]);
        says(run_woken(space.shared_async::<u64>(at, 1024)).0, ErrorKind::Busy, &["do not lie together"]);
    }
    assert_eq!(space.try_shared::<u64>(at + PAGE, 1).unwrap()[0], word(1), "nothing is held");
    drop(one);
    assert_eq!(space.shared::<u64>(at, 1024).unwrap()[512], word(1));
    let one = space.shared::<u64>(at, 1).unwrap();
    assert_eq!(space.shared::<u64>(at, 1024).unwrap()[0], one[0], "pages that lie together are shared");
}

/// Guards hold half of the memory while all other pages pass through the other half. Scans do not touch held
/// pages. A thread that needs adjacent frames waits for the writes from these frames.
#[test]
fn half_of_the_budget_is_lent_while_pages_go_out_slowly() {
    const BLOCK: u64 = 2 * MIB;
    for compression in [Compression::Off, Compression::Lz4] {
        let device = TestDevice::new(65536);
        device.writes().delay(Duration::from_millis(2));
        let area = SwapArea::device(device.boxed());
        let manager =
            builder().huge(HugePolicy::Never).compression(compression).swap_area(area).build().unwrap();
        let space = manager.space().unwrap();
        let len = 3 * BUDGET;
        let at = space.map(len, guarded()).unwrap();
        for page in 0..len / PAGE {
            space.exclusive::<u64>(at + page * PAGE, 1).unwrap()[0] = word(page);
        }
        let words = (BLOCK / 8) as usize;
        let mut held: Vec<_> = (0..BUDGET / 2 / BLOCK)
            .map(|block| space.exclusive::<u64>(at + block * BLOCK, words).unwrap())
            .collect();
        for page in 0..len / PAGE {
            let (block, offset) = ((page * PAGE / BLOCK) as usize, page * PAGE % BLOCK);
            let found = match held.get_mut(block) {
                Some(words) => words[offset as usize / 8],
                None => space.shared::<u64>(at + page * PAGE, 1).unwrap()[0],
            };
            assert_eq!(found, word(page), "page {page}");
        }
        drop(held);
        manager.validate();
    }
}

/// A future that has waited for a read keeps its pin until it is polled or dropped.
#[test]
fn a_future_that_is_not_polled_keeps_pages_where_they_are_and_hangs_nobody() {
    let _watchdog = Watchdog::new("a future that is not polled");
    let device = TestDevice::new(4096);
    let area = SwapArea::device(device.boxed());
    let small = builder().huge(HugePolicy::Never).background(false).compression(Compression::Off);
    let manager = small.readahead_bytes(0).swap_area(area).build().unwrap();
    let space = manager.space().unwrap();
    let at = scattered(&space);
    space.exclusive::<u64>(at, 512).unwrap().iter_mut().zip(0..).for_each(|(to, index)| *to = word(index));
    space.advise(at, PAGE, Advice::PageOut).unwrap();
    while space.range_stats(at, PAGE).unwrap().swapped_bytes == 0 || device.under_way() > 0 {
        thread::yield_now();
    }
    manager.reclaim(1).unwrap();
    device.hold();
    let mut stale = Box::pin(space.shared_async::<u64>(at, 1));
    let mut context = Context::from_waker(Waker::noop());
    assert!(stale.as_mut().poll(&mut context).is_pending());
    device.let_go();
    assert_eq!(space.exclusive::<u64>(at, 512).unwrap()[9], word(9), "one page needs no move");
    says(space.try_exclusive::<u64>(at, 1024), ErrorKind::Busy, &["do not lie together"]);
    drop(stale);
    assert_eq!(space.try_exclusive::<u64>(at, 1024).unwrap()[512], word(1));
}

#[test]
fn as_many_guards_as_can_be_counted_leave_nothing_behind() {
    let _watchdog = Watchdog::new("as many guards as can be counted");
    let manager = builder().huge(HugePolicy::Always).build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(2 * MIB, guarded()).unwrap();
    drop(space.exclusive::<u8>(at, 2 << 20).unwrap());
    // A guard has one pin on the block, however many pages it covers.
    let mut all = Vec::new();
    let refused = loop {
        match space.shared::<u8>(at + PAGE, 2 * PAGE as usize) {
            Ok(guard) => all.push(guard),
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), ErrorKind::TooManyPins);
    assert_eq!(all.len(), 1 << 20);
    says(space.shared::<u8>(at + 9 * PAGE, 1), ErrorKind::TooManyPins, &["drop some"]);
    says(space.exclusive::<u8>(at, 1), ErrorKind::TooManyPins, &["drop some"]);
    drop(all);
    assert_eq!(space.try_exclusive::<u8>(at, 2 << 20).unwrap().len(), 2 << 20);
}

/// A guard takes all pages of a block together, or none.
#[test]
fn a_page_of_a_block_that_another_guard_has_is_waited_for() {
    let manager = builder().huge(HugePolicy::Always).build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(2 * MIB, guarded()).unwrap();
    let six = space.exclusive::<u64>(at + 6 * PAGE, 1).unwrap();
    says(space.try_exclusive::<u8>(at, 2 << 20), ErrorKind::Busy, &["another guard"]);
    let before = space.try_exclusive::<u8>(at, 6 * PAGE as usize).expect("nothing of the attempt is left");
    drop(before);
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let mut all = space.exclusive::<u64>(at, 512 * 512).unwrap();
            all[6 * 512] += 1;
            all.downgrade().len()
        });
        while space.try_shared::<u8>(at + 5 * PAGE, 1).is_ok() && !waits.is_finished() {
            thread::yield_now();
        }
        let mut six = six;
        six[0] = 41;
        drop(six);
        assert_eq!(waits.join().unwrap(), 512 * 512);
    });
    assert_eq!(space.try_exclusive::<u64>(at + 6 * PAGE, 1).unwrap()[0], 42);
    // All pins are dropped, so the block goes out.
    space.advise(at, 2 * MIB, Advice::PageOut).unwrap();
    assert_eq!(space.range_stats(at, 2 * MIB).unwrap().resident_bytes, 0);
}

/// A task has one page of a block and waits for the next page. Meanwhile the region is unmapped, and mapped
/// again with small pages.
#[test]
fn pages_that_become_others_while_a_guard_waits_are_taken_anew() {
    let manager = builder().huge(HugePolicy::Advised).background(false).build().unwrap();
    let space = manager.space().unwrap();
    let at = 0x1000_0000;
    space.map_at(at, 2 * MIB, guarded().huge(true)).unwrap();
    let six = space.exclusive::<u8>(at + 6 * PAGE, 1).unwrap();
    let mut both = Box::pin(space.exclusive_async::<u8>(at + 5 * PAGE, 2 * PAGE as usize));
    let mut context = Context::from_waker(Waker::noop());
    assert!(both.as_mut().poll(&mut context).is_pending());
    space.unmap(at, 2 * MIB).unwrap();
    space.map_at(at, 2 * MIB, guarded()).unwrap();
    space.exclusive::<u8>(at + 6 * PAGE, 1).unwrap()[0] = 6;
    drop(six);
    let guard = loop {
        if let Poll::Ready(guard) = both.as_mut().poll(&mut context) {
            break guard.unwrap();
        }
    };
    assert_eq!((guard[0], guard[PAGE as usize]), (0, 6));
    says(space.try_shared::<u8>(at + 5 * PAGE, 1), ErrorKind::Busy, &["another guard"]);
}

/// A writer that gave up is forgotten: readers do not wait for it forever.
#[test]
fn a_writer_that_waits_is_woken_though_readers_have_forgotten_it() {
    let _watchdog = Watchdog::new("a writer that waits");
    let manager = builder().build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(MIB, guarded()).unwrap();
    let reader = space.shared::<u64>(at, 1).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    assert!(Box::pin(space.exclusive_async::<u64>(at, 1)).as_mut().poll(&mut context).is_pending());
    thread::scope(|scope| {
        let writer = scope.spawn(|| space.exclusive::<u64>(at, 1).unwrap()[0] = 1);
        for _ in 0..200 {
            assert_eq!(space.shared::<u64>(at, 1).unwrap()[0], 0);
        }
        drop(reader);
        writer.join().unwrap();
    });
    assert_eq!(space.shared::<u64>(at, 1).unwrap()[0], 1);
}

#[test]
fn a_forked_child_wakes_nobody() {
    let manager = builder().build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(MIB, guarded()).unwrap();
    let guard = space.exclusive::<u64>(at, 1).unwrap();
    let mut waiting = Box::pin(space.shared_async::<u64>(at, 1));
    let told = Arc::new(WakeFlag::default());
    let waker = Waker::from(Arc::clone(&told));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let code = octavo_platform::run_in_forked_child(|| {
        drop(guard);
        u8::from(told.0.load(Ordering::Acquire))
    });
    assert_eq!(code.unwrap(), 0, "the child wakes a task of its parent");
    // The guard of the closure was also dropped here.
    assert!(
        told.0.load(Ordering::Acquire) && waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
    );
}

/// A waker that records whether it was called.
#[derive(Default)]
struct WakeFlag(AtomicBool);

impl std::task::Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write { from: usize, bytes: Vec<u8> },
    Read { from: usize, len: usize, how: u8 },
    Unmap { page: u64, pages: u64 },
    PageOut,
}

const MODEL_PAGES: u64 = 40;

fn step() -> impl Strategy<Value = Step> {
    let bytes = MODEL_PAGES as usize * PAGE as usize;
    prop_oneof![
        4 => (0..bytes, prop::collection::vec(any::<u8>(), 1..20_000)).prop_map(|(from, bytes)| Step::Write { from, bytes }),
        4 => (0..bytes, 1..20_000_usize, 0..3_u8).prop_map(|(from, len, how)| Step::Read { from, len, how }),
        1 => (0..MODEL_PAGES, 1..5_u64).prop_map(|(page, pages)| Step::Unmap { page, pages }),
        1 => Just(Step::PageOut),
    ]
}

fn read_all(space: &Space, address: u64, len: usize, how: u8) -> Vec<u8> {
    let mut copy = vec![0xAA; len];
    match how {
        0 => space.read_guarded(address, &mut copy).unwrap(),
        1 => copy.copy_from_slice(&space.shared(address, len).unwrap()),
        _ => copy.copy_from_slice(&space.exclusive(address, len).unwrap()),
    }
    copy
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn guards_do_what_a_vector_does(steps in prop::collection::vec(step(), 0..60), huge in any::<bool>()) {
        let huge = if huge { HugePolicy::Always } else { HugePolicy::Never };
        let manager = builder().huge(huge).background(false).build().unwrap();
        let space = manager.space().unwrap();
        let at = space.map(2 * MIB, guarded()).unwrap();
        let mut model = vec![0_u8; (MODEL_PAGES * PAGE) as usize];
        for step in steps {
            match step {
                Step::Write { from, bytes } => {
                    let len = bytes.len().min(model.len() - from);
                    model[from..from + len].copy_from_slice(&bytes[..len]);
                    space.exclusive(at + from as u64, len).unwrap().copy_from_slice(&bytes[..len]);
                }
                Step::Read { from, len, how } => {
                    let len = len.min(model.len() - from);
                    prop_assert!(read_all(&space, at + from as u64, len, how) == model[from..from + len]);
                }
                Step::Unmap { page, pages } => {
                    let pages = pages.min(MODEL_PAGES - page);
                    let bytes = (page * PAGE) as usize..((page + pages) * PAGE) as usize;
                    model[bytes].fill(0);
                    space.advise(at + page * PAGE, pages * PAGE, Advice::Free).unwrap();
                }
                Step::PageOut => space.advise(at, 2 * MIB, Advice::PageOut).unwrap(),
            }
        }
        prop_assert!(read_all(&space, at, model.len(), 0) == model);
        manager.validate();
    }
}
