//! Devices through their engines, over real files.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind as IoKind, Write};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use octavo_platform::{ArenaBytes, Backing, forbid_io_uring, run_in_forked_child};

use super::header::HEADER_BYTES;
use super::threads::ThreadsEngine;
use super::uring::UringEngine;
use super::*;
use crate::error::ErrorKind;
use crate::sync::{AtomicU32, Clock, Duration, Mutex, Ordering, Shared, thread};
use crate::units::{FrameId, PAGE_BYTES, SwapSlot};

const ENGINES: [IoEngine; 2] = [IoEngine::Uring, IoEngine::Threads];

fn disk() -> tempfile::TempDir {
    // Use a folder on a disk, since the default directory may lie in memory.
    tempfile::tempdir_in("/var/tmp").unwrap()
}

fn exercise(area: SwapArea, engine: IoEngine, frames: u32) -> Exercise {
    Exercise::new(area, engine, frames).unwrap()
}

/// The word for this place in this round.
fn mark(place: u32, round: u64) -> u64 {
    (u64::from(place) << 32) ^ round.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1
}

fn offset(frame: u32) -> usize {
    frame as usize * PAGE_BYTES
}

#[test]
fn what_many_threads_write_comes_back() {
    const THREADS: u32 = 4;
    const PAGES: u32 = 1024;
    for engine in ENGINES {
        let area = SwapArea::temporary("/var/tmp").limit_bytes(64 << 20);
        let exercise = exercise(area, engine, THREADS * PAGES);
        let work = |thread: u32| {
            let first = thread * PAGES;
            for round in 0..2 {
                for direction in [Direction::Write, Direction::Read] {
                    for frame in first..first + PAGES {
                        let word = if direction == Direction::Write { mark(frame, round) } else { 0 };
                        exercise.arena().store(offset(frame) + 16, word);
                    }
                    // Transfers of 1, 2, 3 and more pages, made in every way. Those of an odd number of pages
                    // run backwards in memory.
                    let (mut at, mut heads) = (first, Vec::new());
                    for len in 1.. {
                        let end = (at + len).min(first + PAGES);
                        let urgency = if len % 5 == 0 { Urgency::Now } else { Urgency::Queued };
                        exercise.start(direction, at, at..end, urgency);
                        heads.push(at);
                        match len % 3 {
                            0 => exercise.flush(),
                            1 => exercise.poll(),
                            _ => {}
                        }
                        at = end;
                        if at == first + PAGES {
                            break;
                        }
                    }
                    exercise.flush();
                    for (index, &head) in heads.iter().enumerate() {
                        if index % 2 == 0 { exercise.wait(head) } else { exercise.sleep(head) }.unwrap();
                    }
                }
                for frame in first..first + PAGES {
                    let word = exercise.arena().load::<u64>(offset(frame) + 16);
                    assert_eq!(word, mark(frame, round), "{engine:?}, frame {frame}");
                }
            }
        };
        thread::scope(|scope| {
            let work = &work;
            (0..THREADS).for_each(|thread| drop(scope.spawn(move || work(thread))));
        });
    }
}

#[test]
fn frames_lie_anywhere_and_more_can_be_queued_than_rings_hold() {
    const PAGES: u32 = 512;
    for engine in ENGINES {
        let area = SwapArea::temporary("/var/tmp").limit_bytes(PAGES as u64 * PAGE_BYTES as u64);
        let exercise = exercise(area, engine, 2 * PAGES);
        assert_eq!(exercise.capacity_pages(), PAGES);
        (0..2 * PAGES).for_each(|frame| exercise.arena().store(offset(frame), mark(frame, 0)));
        // Every second frame, backwards.
        let scattered = (0..256).rev().map(|frame| frame * 2);
        exercise.start_scattered(Direction::Write, 100, scattered, Urgency::Queued);
        exercise.flush();
        exercise.wait(510).unwrap();
        // Move each page by a transfer of its own, without a flush in between.
        for frame in 0..256 {
            exercise.start(Direction::Read, 100 + frame, PAGES + frame..PAGES + frame + 1, Urgency::Queued);
        }
        exercise.flush();
        for frame in 0..256 {
            exercise.wait(PAGES + frame).unwrap();
            assert_eq!(exercise.arena().load::<u64>(offset(PAGES + frame)), mark((255 - frame) * 2, 0));
        }
    }
}

#[test]
fn a_file_that_was_cut_short_is_told_from_what_is_still_there() {
    for engine in ENGINES {
        let directory = disk();
        let path = directory.path().join("swap");
        let exercise = exercise(SwapArea::file(&path), engine, 64);
        (0..64).for_each(|frame| exercise.arena().store(offset(frame), mark(frame, 0)));
        exercise.start(Direction::Write, 0, 0..64, Urgency::Queued);
        exercise.flush();
        exercise.wait(0).unwrap();
        OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(HEADER_BYTES + 32 * PAGE_BYTES as u64 + 1000)
            .unwrap();
        for urgency in [Urgency::Now, Urgency::Queued] {
            for (place, there) in [(0, true), (24, false), (32, false), (40, false)] {
                exercise.arena().zero(0, 64 * PAGE_BYTES);
                exercise.start(Direction::Read, place, 0..16, urgency);
                exercise.flush();
                match exercise.wait(0) {
                    Ok(()) => assert!(there, "{engine:?}, {urgency:?}, from {place}"),
                    Err(error) => assert!(
                        !there && error.kind() == IoKind::UnexpectedEof,
                        "{engine:?}, {urgency:?}, from {place}: {error}"
                    ),
                }
                if place < 32 {
                    assert_eq!(exercise.arena().load::<u64>(0), mark(place, 0));
                }
            }
        }
    }
}

#[test]
fn an_engine_may_be_used_by_threads_that_end() {
    for engine in ENGINES {
        let exercise = exercise(SwapArea::temporary("/var/tmp"), engine, 4096);
        for direction in [Direction::Write, Direction::Read] {
            for frame in 0..4096 {
                let word = if direction == Direction::Write { mark(frame, 3) } else { 0 };
                exercise.arena().store(offset(frame), word);
            }
            for first in (0..4096).step_by(64) {
                thread::scope(|scope| {
                    scope.spawn(|| {
                        exercise.start(direction, first, first..first + 64, Urgency::Queued);
                        exercise.flush();
                    });
                });
            }
            (0..4096).step_by(64).for_each(|first| exercise.wait(first).unwrap());
        }
        for frame in 0..4096 {
            assert_eq!(exercise.arena().load::<u64>(offset(frame)), mark(frame, 3));
        }
    }
}

#[test]
fn what_was_flushed_ends_though_nobody_waits_for_it() {
    for engine in ENGINES {
        let exercise = exercise(SwapArea::temporary("/var/tmp"), engine, 256);
        exercise.start(Direction::Write, 0, 0..256, Urgency::Queued);
        exercise.flush();
        let clock = Clock::default();
        let patience = clock.now() + Duration::from_secs(60);
        while exercise.is_in_flight(0) {
            assert!(clock.now() < patience, "{engine:?}: it is in flight still");
            exercise.poll();
            thread::yield_now();
        }
        exercise.wait(0).unwrap();
    }
}

#[test]
fn what_its_thread_waits_for_is_done_in_place() {
    for engine in ENGINES {
        let exercise = exercise(SwapArea::temporary("/var/tmp"), engine, 256);
        for direction in [Direction::Write, Direction::Read] {
            exercise.start(direction, 0, 0..256, Urgency::Now);
            assert!(!exercise.is_in_flight(0), "{engine:?}");
            exercise.wait(0).unwrap();
        }
    }
}

#[test]
fn who_cannot_pull_is_served() {
    for engine in ENGINES {
        let exercise = exercise(SwapArea::temporary("/var/tmp"), engine, 256);
        for round in 0..200 {
            // Another thread starts the transfer, and then does other work.
            thread::scope(|scope| {
                scope.spawn(|| {
                    exercise.start(Direction::Write, round, round..round + 1, Urgency::Queued);
                    exercise.flush();
                });
            });
            exercise.sleep(round).unwrap();
        }
    }
}

#[test]
fn waiters_of_one_transfer_all_wake() {
    for engine in ENGINES {
        let exercise = exercise(SwapArea::temporary("/var/tmp"), engine, 256);
        for round in 0..100 {
            thread::scope(|scope| {
                exercise.start(Direction::Write, 0, 0..256, Urgency::Queued);
                let exercise = &exercise;
                (0..4).for_each(|_| drop(scope.spawn(move || exercise.wait(0).unwrap())));
                if round % 2 == 0 {
                    exercise.flush();
                }
            });
        }
    }
}

#[test]
fn memory_is_no_place_to_swap_to_unless_forced() {
    let refused = Exercise::new(SwapArea::temporary("/dev/shm"), IoEngine::Probe, 8).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::SwapUnavailable);
    assert!(refused.to_string().contains("allow_tmpfs(true)"), "{refused}");
    for engine in ENGINES {
        let exercise = exercise(SwapArea::temporary("/dev/shm").allow_tmpfs(true), engine, 8);
        exercise.arena().store(offset(3), 77u64);
        exercise.start(Direction::Write, 9, 3..4, Urgency::Queued);
        exercise.flush();
        exercise.wait(3).unwrap();
        exercise.start(Direction::Read, 9, 5..6, Urgency::Queued);
        exercise.flush();
        exercise.wait(5).unwrap();
        assert_eq!(exercise.arena().load::<u64>(offset(5)), 77);
    }
}

#[test]
fn a_named_file_keeps_its_blocks_and_serves_one_manager() {
    let directory = disk();
    let path = directory.path().join("swap");
    let fresh = exercise(SwapArea::file(&path), IoEngine::Probe, 8);
    fresh.start(Direction::Write, 100, 0..1, Urgency::Now);
    fresh.wait(0).unwrap();
    drop(fresh);
    let len = std::fs::metadata(&path).unwrap().len();
    let first = exercise(SwapArea::file(&path), IoEngine::Probe, 8);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), len);
    let second = Exercise::new(SwapArea::file(&path), IoEngine::Probe, 8).unwrap_err();
    assert_eq!(second.kind(), ErrorKind::SwapUnavailable);
    assert!(second.to_string().contains("another manager"), "{second}");
    drop(first);
    exercise(SwapArea::file(&path), IoEngine::Probe, 8);
}

#[test]
fn a_file_that_holds_something_is_refused_and_kept_unless_it_may_be_overwritten() {
    let directory = disk();
    let path = directory.path().join("precious");
    let mut almost_ours = b"Octavo swap area, version 1\n".to_vec();
    almost_ours.resize(2 << 20, 7);
    let texts = [b"a line of text\n".to_vec(), vec![0; PAGE_BYTES], vec![1; 2 << 20], almost_ours];
    for bytes in texts {
        std::fs::write(&path, &bytes).unwrap();
        let refusals = [
            Exercise::new(SwapArea::file(&path), IoEngine::Probe, 8).unwrap_err(),
            SwapArea::file(&path).check().unwrap_err(),
            FileDevice::open(&SwapFile::Named(path.clone()), 1 << 20).unwrap_err(),
        ];
        for refused in refusals {
            assert_eq!(refused.kind(), ErrorKind::SwapNotEmpty, "{refused}");
            let said = refused.to_string();
            let words =
                [path.to_str().unwrap(), "left as it is", "not there yet", "overwrite(true)", "--force"];
            assert!(words.into_iter().all(|word| said.contains(word)), "{said}");
        }
        assert!(std::fs::read(&path).unwrap() == bytes, "the file has other bytes");
        let forced = || SwapArea::file(&path).overwrite(true);
        forced().check().unwrap();
        for area in [forced(), SwapArea::file(&path)] {
            area.check().unwrap();
            let exercise = exercise(area, IoEngine::Probe, 8);
            exercise.start(Direction::Write, 3, 0..1, Urgency::Now);
            exercise.wait(0).unwrap();
        }
    }
}

#[test]
fn the_header_stays_before_the_pages() {
    for engine in ENGINES {
        let directory = disk();
        let path = directory.path().join("swap");
        File::create(&path).unwrap();
        let exercise = exercise(SwapArea::file(&path), engine, 256);
        (0..256).for_each(|frame| exercise.arena().store(offset(frame), mark(frame, 5)));
        exercise.start(Direction::Write, 0, 0..256, Urgency::Queued);
        exercise.flush();
        exercise.wait(0).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.starts_with(b"Octavo swap area"));
        let first = HEADER_BYTES as usize;
        assert_eq!(bytes[first..first + 8], mark(0, 5).to_ne_bytes());
        drop(exercise);
        SwapArea::file(&path).check().unwrap();
    }
}

#[test]
fn a_file_grows_in_steps_up_to_its_limit() {
    let directory = disk();
    let path = directory.path().join("swap");
    let limit_bytes = 40 << 20;
    let exercise = exercise(SwapArea::file(&path).limit_bytes(limit_bytes), IoEngine::Probe, 8);
    let len = || std::fs::metadata(&path).unwrap().len();
    assert_eq!(len(), HEADER_BYTES);
    for (place, expected) in [(0, 32 << 20), (8191, 32 << 20), (8192, limit_bytes), (10239, limit_bytes)] {
        exercise.start(Direction::Write, place, 0..1, Urgency::Now);
        exercise.wait(0).unwrap();
        assert_eq!(len(), HEADER_BYTES + expected);
    }
}

#[test]
fn what_is_no_place_for_pages_is_refused() {
    let directory = disk();
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    // The device is mounted, or only root may open it.
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let mounted =
        mounts.lines().filter(|line| line.starts_with("/dev/")).filter_map(|line| line.split(' ').next());
    let mut areas: Vec<SwapArea> = mounted.map(SwapArea::block_device).collect();
    areas.extend([
        SwapArea::block_device(&file),
        SwapArea::block_device("/dev/null"),
        SwapArea::block_device(directory.path().join("missing")),
        SwapArea::file(directory.path()),
        SwapArea::file("/dev/null"),
        SwapArea::file(directory.path().join("missing/file")),
        SwapArea::temporary(&file),
        SwapArea::temporary(directory.path()).limit_bytes(4095),
        SwapArea::ram(100),
    ]);
    for area in areas {
        let place = format!("{area:?}");
        match Exercise::new(area, IoEngine::Probe, 8) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::SwapUnavailable, "{place}: {error}"),
            Ok(_) => panic!("{place} was taken"),
        }
    }
}

#[test]
fn memory_as_a_device_completes_inline() {
    let exercise = exercise(SwapArea::ram(1 << 20).limit_bytes(512 << 10), IoEngine::Probe, 64);
    assert_eq!(exercise.capacity_pages(), 128);
    (0..32).for_each(|frame| exercise.arena().store(offset(frame), mark(frame, 0)));
    exercise.start_scattered(Direction::Write, 96, (0..32).rev(), Urgency::Queued);
    assert!(!exercise.is_in_flight(31));
    exercise.start(Direction::Read, 96, 32..64, Urgency::Queued);
    (0..32).for_each(|frame| {
        assert_eq!(exercise.arena().load::<u64>(offset(32 + frame)), mark(31 - frame, 0));
    });
}

#[test]
fn where_io_uring_is_forbidden_threads_take_its_place() {
    let code = run_in_forked_child(|| {
        forbid_io_uring().unwrap();
        let refused = Exercise::new(SwapArea::temporary("/var/tmp"), IoEngine::Uring, 8).unwrap_err();
        if refused.kind() != ErrorKind::Unsupported || !refused.to_string().contains("EPERM") {
            return 1;
        }
        let exercise = exercise(SwapArea::temporary("/var/tmp"), IoEngine::Probe, 8);
        let described = exercise.describe_engine().unwrap();
        if described != "io_uring is forbidden here (EPERM): 8 threads of preadv/pwritev" {
            eprintln!("{described}");
            return 2;
        }
        exercise.start(Direction::Write, 0, 0..8, Urgency::Queued);
        exercise.flush();
        u8::from(exercise.wait(0).is_err()) * 3
    });
    assert_eq!(code.unwrap(), 0);
}

/// A host that decides when the engine's threads may continue after a transfer.
struct Gated {
    arena: ArenaBytes,
    open: Mutex<bool>,
    ended: AtomicU32,
}

impl Gated {
    fn new() -> Shared<Self> {
        let arena = ArenaBytes::new(PAGE_BYTES).unwrap();
        arena.bring_online(0..PAGE_BYTES, Backing::BasePages).unwrap();
        Shared::new(Self { arena, open: Mutex::new(false), ended: AtomicU32::new(0) })
    }

    fn transfer(self: &Shared<Self>, direction: Direction) -> Transfer {
        let frame = FrameId(0);
        let job = Job { direction, first: SwapSlot(0).stored(), count: 1, head: frame, bytes: frame };
        Transfer::new(Shared::clone(self) as Shared<dyn Host>, job, 0)
    }

    /// Submits transfers until one comes back. Returns how many were accepted.
    fn fill(self: &Shared<Self>, engine: &dyn Device, direction: Direction) -> u32 {
        for accepted in 0.. {
            if let Submitted::Full(back) = engine.submit(self.transfer(direction), Urgency::Queued) {
                assert_eq!((back.direction(), back.place(), back.len()), (direction, 0, 1));
                back.take_back();
                return accepted;
            }
        }
        unreachable!()
    }

    fn open(&self) {
        *self.open.lock() = true;
    }

    fn wait_for_ends(&self, count: u32) {
        while self.ended.load(Ordering::Acquire) < count {
            thread::yield_now();
        }
    }
}

impl Host for Gated {
    fn arena(&self) -> &ArenaBytes {
        &self.arena
    }

    fn chained(&self, frame: FrameId) -> FrameId {
        frame
    }

    fn note_queue(&self, _: FrameId, _: u32) {}

    fn ended(&self, _: Job, _: std::io::Result<()>) {
        while !*self.open.lock() {
            thread::yield_now();
        }
        self.ended.fetch_add(1, Ordering::Release);
    }
}

#[test]
fn a_device_changes_the_pages_that_it_reads_and_no_others() {
    let gated = Gated::new();
    gated.open();
    let read = gated.transfer(Direction::Read);
    read.pages().for_each(|page| page.copy_in(&[7; PAGE_BYTES]));
    read.complete(Ok(()));
    let write = gated.transfer(Direction::Write);
    let mut bytes = [0; PAGE_BYTES];
    for page in write.pages() {
        page.copy_out(&mut bytes);
        let changed = catch_unwind(AssertUnwindSafe(|| page.copy_in(&[9; PAGE_BYTES])));
        assert!(changed.is_err(), "others may be reading this page");
    }
    write.complete(Ok(()));
    assert_eq!(bytes, [7; PAGE_BYTES]);
    assert_eq!(gated.arena.load::<u64>(0), u64::from_ne_bytes([7; 8]));
}

#[test]
fn the_engine_of_threads_gives_back_what_its_queue_does_not_hold() {
    let file = Shared::new(tempfile::tempfile_in("/var/tmp").unwrap());
    let engine = ThreadsEngine::start(&file).unwrap();
    let host = Gated::new();
    // The host keeps the engine's threads waiting at the ends of their transfers.
    let accepted = host.fill(&engine, Direction::Read);
    assert!(accepted >= 256, "{accepted} transfers were accepted");
    host.open();
    host.wait_for_ends(accepted);
    let accepted_at_last =
        matches!(engine.submit(host.transfer(Direction::Write), Urgency::Queued), Submitted::Accepted);
    assert!(accepted_at_last, "there is room again");
    host.wait_for_ends(accepted + 1);
}

#[test]
fn full_rings_give_back_what_they_do_not_hold() {
    // Reads of a pipe end when something is written to it.
    let (reader, mut writer) = std::io::pipe().unwrap();
    let file = Shared::new(std::fs::File::from(OwnedFd::from(reader)));
    let engine = UringEngine::start(&file).unwrap();
    let host = Gated::new();
    host.open();
    let accepted = host.fill(&engine, Direction::Read);
    assert!(accepted >= 128, "{accepted} transfers were accepted");
    assert_eq!(host.ended.load(Ordering::Acquire), 0);
    engine.flush();
    let page = [7; PAGE_BYTES];
    writer.write_all(&page).unwrap();
    while host.ended.load(Ordering::Acquire) < 1 {
        engine.wait(NO_QUEUE, &|| true);
    }
    assert_eq!(host.fill(&engine, Direction::Read), 1, "there is room for one again");
    engine.flush();
    for _ in 0..accepted {
        writer.write_all(&page).unwrap();
        engine.poll();
    }
    while host.ended.load(Ordering::Acquire) <= accepted {
        engine.wait(NO_QUEUE, &|| host.ended.load(Ordering::Acquire) <= accepted);
    }
}

#[test]
fn a_forked_child_drops_its_copy_of_a_device() {
    for engine in ENGINES {
        let mut exercise = Some(exercise(SwapArea::temporary("/var/tmp"), engine, 8));
        let code = run_in_forked_child(|| {
            drop(exercise.take());
            0
        });
        assert_eq!(code.unwrap(), 0);
        let exercise = exercise.unwrap();
        exercise.start(Direction::Write, 0, 0..8, Urgency::Queued);
        exercise.flush();
        exercise.wait(0).unwrap();
    }
}
