//! Tests of rings over real files, and over pipes, whose reads take as long as a test wants.

use std::io::Write;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use super::*;
use crate::{forbid_io_uring, run_in_forked_child};

const PAGE: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(20);

struct Job {
    arena: ArenaBytes,
    segments: Vec<Range<usize>>,
    tag: usize,
}

impl Payload for Job {
    fn arena(&self) -> &ArenaBytes {
        &self.arena
    }

    fn segments(&self) -> impl Iterator<Item = Range<usize>> {
        self.segments.iter().cloned()
    }
}

fn ring(file: File, entries: u32) -> Ring<Job> {
    Ring::new(Arc::new(file), entries).unwrap()
}

fn arena() -> ArenaBytes {
    ArenaBytes::new(16 << 20).unwrap()
}

fn job(arena: &ArenaBytes, tag: usize, pages: impl IntoIterator<Item = usize>) -> Job {
    let segments = pages.into_iter().map(|page| page * PAGE..(page + 1) * PAGE).collect();
    Job { arena: arena.clone(), segments, tag }
}

fn accepted(queued: Result<(), Full<Job>>) {
    assert!(queued.is_ok(), "the ring has room");
}

/// Leads until no transfer is in flight.
fn drain(ring: &Ring<Job>, mut hand_back: impl FnMut(Job, io::Result<usize>)) {
    ring.submit().unwrap();
    let began = Instant::now();
    while ring.in_flight() > 0 {
        assert!(began.elapsed() < PATIENCE, "transfers end");
        ring.try_lead(|| true, Duration::from_millis(50), &mut hand_back);
    }
}

fn pipe() -> (File, File) {
    let (reader, writer) = std::io::pipe().unwrap();
    (File::from(std::os::fd::OwnedFd::from(reader)), File::from(std::os::fd::OwnedFd::from(writer)))
}

#[test]
fn pages_come_back_by_one_run_and_by_many() {
    let (arena, back) = (arena(), arena());
    let ring = ring(tempfile::tempfile().unwrap(), 64);
    for page in 0..1024 {
        arena.store(page * PAGE, page as u64 + 1);
    }
    // One write is of adjacent pages, and one of every second page. The last has more runs than there is room
    // for in the scratch beside the others.
    accepted(ring.queue(0, Direction::Write, job(&arena, 256 * PAGE, 0..256)));
    for tag in 0..4 {
        let pages = (0..400).map(|page| page * 2);
        let offset = (256 + tag * 400) * PAGE;
        accepted(ring.queue(offset as u64, Direction::Write, job(&arena, 400 * PAGE, pages)));
    }
    drain(&ring, |job, moved| assert_eq!(moved.unwrap(), job.tag));
    accepted(ring.queue(0, Direction::Read, job(&back, 0, (0..256).rev())));
    accepted(ring.queue(656 * PAGE as u64, Direction::Read, job(&back, 0, 256..656)));
    drain(&ring, |_, moved| assert!(moved.unwrap() > 0));
    for page in 0..256 {
        assert_eq!(back.load::<u64>((255 - page) * PAGE), page as u64 + 1);
    }
    for page in 0..400 {
        assert_eq!(back.load::<u64>((256 + page) * PAGE), page as u64 * 2 + 1);
    }
}

#[test]
fn more_completions_than_one_look_takes_are_all_handed_back() {
    const JOBS: usize = 4 * BATCH;
    let arena = arena();
    let file = tempfile::tempfile().unwrap();
    file.set_len((JOBS * PAGE) as u64).unwrap();
    let ring = ring(file, JOBS as u32);
    for round in 0..8 {
        let mut handed_back = [false; JOBS];
        for tag in 0..JOBS {
            accepted(ring.queue((tag * PAGE) as u64, Direction::Read, job(&arena, tag, [tag])));
        }
        ring.submit().unwrap();
        // In every second round, all completions are there already. In the other rounds, they come one by
        // one.
        if round % 2 == 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
        drain(&ring, |job, moved| {
            assert_eq!(moved.unwrap(), PAGE);
            assert!(!std::mem::replace(&mut handed_back[job.tag], true), "once");
        });
        assert!(handed_back.iter().all(|&once| once));
    }
}

#[test]
fn a_transfer_past_the_end_or_of_too_many_runs_is_short() {
    let arena = arena();
    let ring = ring(tempfile::tempfile().unwrap(), 8);
    let pages = (0..VECTORS + 10).map(|page| page * 2);
    accepted(ring.queue(0, Direction::Write, job(&arena, 0, pages)));
    drain(&ring, |_, moved| assert_eq!(moved.unwrap(), VECTORS * PAGE));
    let last = (VECTORS - 1) * PAGE;
    accepted(ring.queue(last as u64, Direction::Read, job(&arena, 0, 0..4)));
    accepted(ring.queue(1 << 30, Direction::Read, job(&arena, 1, 0..4)));
    drain(&ring, |job, moved| assert_eq!(moved.unwrap(), [PAGE, 0][job.tag]));
}

#[test]
fn an_error_is_handed_back_with_its_payload() {
    let arena = arena();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, [1; PAGE]).unwrap();
    let ring = ring(File::open(path).unwrap(), 8);
    accepted(ring.queue(0, Direction::Write, job(&arena, 5, 0..1)));
    drain(&ring, |job, moved| {
        assert_eq!((job.tag, moved.unwrap_err().raw_os_error()), (5, Some(libc::EBADF)));
    });
}

#[test]
fn a_full_ring_gives_the_payload_back_and_takes_more_later() {
    let arena = arena();
    let (reader, mut writer) = pipe();
    let ring = ring(reader, 4);
    for tag in 0..4 {
        accepted(ring.queue(0, Direction::Read, job(&arena, tag, [tag])));
    }
    let Err(Full(back)) = ring.queue(0, Direction::Read, job(&arena, 9, [9])) else { panic!("no room") };
    assert_eq!(back.tag, 9);
    ring.submit().unwrap();
    assert_eq!(ring.reap(|_, _| panic!("the pipe is empty")), 0);
    writer.write_all(&[7; 8]).unwrap();
    let mut done = 0;
    while done == 0 {
        ring.try_lead(|| true, PATIENCE, |_, _| done += 1);
    }
    accepted(ring.queue(0, Direction::Read, back));
    drop(writer);
    drain(&ring, |_, moved| {
        done += 1;
        assert_eq!(moved.unwrap(), 0);
    });
    assert_eq!(done, 5);
}

#[test]
fn leading_waits_and_says_when_there_is_no_need() {
    let arena = arena();
    let (reader, mut writer) = pipe();
    let ring = ring(reader, 4);
    let lead = |timeout| ring.try_lead(|| true, timeout, |_, moved| assert_eq!(moved.unwrap(), 3));
    assert_eq!(lead(PATIENCE), Lead::Idle);
    accepted(ring.queue(0, Direction::Read, job(&arena, 0, [1])));
    let began = Instant::now();
    assert_eq!(ring.try_lead(|| false, PATIENCE, |_, _| panic!("nothing")), Lead::Reaped(0));
    assert!(began.elapsed() < PATIENCE / 2);
    assert_eq!(lead(Duration::from_millis(20)), Lead::Reaped(0));
    assert!(began.elapsed() >= Duration::from_millis(20), "it slept");
    // The transfer was only queued before: the leader submits it.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while ring.in_flight() > 0 {
                lead(PATIENCE);
            }
        });
        while lead(Duration::ZERO) != Lead::Busy {
            assert!(began.elapsed() < PATIENCE, "the other thread leads");
            std::thread::yield_now();
        }
        assert_eq!(ring.reap(|_, _| panic!("the leader has the lock")), 0);
        writer.write_all(&[8; 3]).unwrap();
    });
    assert_eq!(arena.load::<u8>(PAGE + 2), 8);
    assert_eq!(lead(PATIENCE), Lead::Idle);
}

#[test]
fn nobody_sleeps_while_a_completion_is_being_handed_back() {
    let arena = arena();
    let (reader, mut writer) = pipe();
    let ring = ring(reader, 4);
    accepted(ring.queue(0, Direction::Read, job(&arena, 0, [0])));
    accepted(ring.queue(0, Direction::Read, job(&arena, 1, [1])));
    ring.submit().unwrap();
    writer.write_all(&[1]).unwrap();
    // The byte may go to either of the two.
    let (mut tags, mut first) = (0, true);
    while first {
        ring.reap(|job, _| {
            first = false;
            tags += job.tag;
            // The other transfer never ends. A thread may be waiting for the transfer that it is handing back
            // itself.
            let second = ring.try_lead(|| true, PATIENCE, |_, _| panic!("nothing is done"));
            assert_eq!(second, Lead::Busy);
            assert_eq!(ring.in_flight(), 2);
        });
    }
    drop(writer);
    drain(&ring, |job, _| tags += job.tag);
    assert_eq!(tags, 1);
}

#[test]
fn many_threads_share_a_ring() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 300;
    let arena = ArenaBytes::new(64 << 20).unwrap();
    let ring = ring(tempfile::tempfile().unwrap(), 16);
    // The thread that gets a job back sets the bit of its number.
    let done: Vec<AtomicBool> = (0..THREADS * ROUNDS).map(|_| AtomicBool::new(false)).collect();
    let hand_back = |job: Job, moved: io::Result<usize>| {
        assert_eq!(moved.unwrap(), PAGE);
        assert!(!done[job.tag].swap(true, Ordering::AcqRel), "handed back once");
    };
    let run = |thread: usize, direction: Direction| {
        for round in 0..ROUNDS {
            let page = thread * ROUNDS + round;
            let mut next = job(&arena, page, [page]);
            while let Err(Full(back)) = ring.queue((page * PAGE) as u64, direction, next) {
                let _ = ring.submit();
                ring.try_lead(|| true, PATIENCE, hand_back);
                next = back;
            }
            if round % 3 == 0 {
                ring.submit().unwrap();
                while !done[page].load(Ordering::Acquire) {
                    ring.try_lead(|| !done[page].load(Ordering::Acquire), PATIENCE, hand_back);
                }
            } else if round % 3 == 1 {
                ring.reap(hand_back);
            }
        }
    };
    for direction in [Direction::Write, Direction::Read] {
        for (page, done) in done.iter().enumerate() {
            let value = if direction == Direction::Write { page as u64 ^ 0x55 } else { 0 };
            arena.store(page * PAGE + 8, value);
            done.store(false, Ordering::Relaxed);
        }
        std::thread::scope(|scope| {
            (0..THREADS).for_each(|thread| drop(scope.spawn(move || run(thread, direction))))
        });
        drain(&ring, hand_back);
        assert!(done.iter().all(|done| done.load(Ordering::Acquire)));
        assert!((0..THREADS * ROUNDS).all(|page| arena.load::<u64>(page * PAGE + 8) == page as u64 ^ 0x55));
    }
}

#[test]
fn what_an_ended_thread_submitted_is_handed_back() {
    let arena = arena();
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 20).unwrap();
    let ring = ring(file, 32);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for tag in 0..32 {
                accepted(ring.queue((tag * PAGE) as u64, Direction::Read, job(&arena, tag, [tag])));
            }
            ring.submit().unwrap();
        });
    });
    let mut count = 0;
    drain(&ring, |_, moved| {
        count += 1;
        // The kernel may have cancelled transfers that it had not started.
        match moved {
            Ok(moved) => assert_eq!(moved, PAGE),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ECANCELED)),
        }
    });
    assert_eq!(count, 32);
}

#[test]
fn dropping_waits_for_the_kernel_and_drops_what_was_only_queued() {
    let arena = arena();
    let (reader, mut writer) = pipe();
    let ring = ring(reader, 4);
    accepted(ring.queue(0, Direction::Read, job(&arena, 0, [0])));
    ring.submit().unwrap();
    accepted(ring.queue(0, Direction::Read, job(&arena, 1, [1])));
    let written = Arc::new(AtomicBool::new(false));
    let writing = std::thread::spawn({
        let written = Arc::clone(&written);
        move || {
            std::thread::sleep(Duration::from_millis(50));
            written.store(true, Ordering::Release);
            writer.write_all(&[9; 2]).unwrap();
            writer
        }
    });
    drop(ring);
    assert!(written.load(Ordering::Acquire), "the kernel would have written into the arena after");
    assert_eq!(arena.load::<u8>(1), 9);
    assert_eq!(arena.load::<u8>(PAGE), 0);
    drop(writing.join().unwrap());
}

#[test]
fn a_forked_child_has_no_ring() {
    let arena = arena();
    let (reader, mut writer) = pipe();
    let ring = ring(reader, 4);
    accepted(ring.queue(0, Direction::Read, job(&arena, 0, [0])));
    let code = run_in_forked_child(|| {
        let refused = ring.queue(0, Direction::Read, job(&arena, 1, [1])).is_err()
            && ring.submit().is_err()
            && ring.reap(|_, _| ()) == 0
            && ring.try_lead(|| true, PATIENCE, |_, _| ()) == Lead::Idle;
        u8::from(!refused)
    });
    assert_eq!(code.unwrap(), 0);
    writer.write_all(&[1; 4]).unwrap();
    drain(&ring, |_, moved| assert_eq!(moved.unwrap(), 4));
}

#[test]
fn a_childs_copy_is_dropped_without_the_kernel() {
    let arena = arena();
    let (reader, mut writer) = pipe();
    let ring = ring(reader, 4);
    accepted(ring.queue(0, Direction::Read, job(&arena, 0, [0])));
    ring.submit().unwrap();
    let mut ring = Some(ring);
    let code = run_in_forked_child(|| {
        let began = Instant::now();
        drop(ring.take());
        u8::from(began.elapsed() > PATIENCE / 2)
    });
    assert_eq!(code.unwrap(), 0, "it neither waits for the parent's transfers nor dies of them");
    writer.write_all(&[1; 4]).unwrap();
    drain(ring.as_ref().unwrap(), |_, moved| assert_eq!(moved.unwrap(), 4));
}

#[test]
fn a_filter_and_a_limit_are_told_or_do_not_matter() {
    let code = run_in_forked_child(|| {
        forbid_io_uring().unwrap();
        let error = Ring::<Job>::new(Arc::new(tempfile::tempfile().unwrap()), 8).unwrap_err();
        u8::from(error.to_string() != "io_uring is forbidden here (EPERM)")
    });
    assert_eq!(code.unwrap(), 0);
    let code = run_in_forked_child(|| {
        let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
        rustix::process::setrlimit(rustix::process::Resource::Memlock, none).unwrap();
        let arena = arena();
        let ring = ring(tempfile::tempfile().unwrap(), 64);
        accepted(ring.queue(0, Direction::Write, job(&arena, 0, 0..256)));
        let mut whole = false;
        drain(&ring, |_, moved| whole = moved.is_ok_and(|moved| moved == 256 * PAGE));
        u8::from(!whole)
    });
    assert_eq!(code.unwrap(), 0);
}

#[test]
fn the_ring_is_readable_for_poll_when_something_is_done() {
    let arena = arena();
    let (reader, mut writer) = pipe();
    let ring = ring(reader, 4);
    let readable = |timeout_ms: i32| {
        let mut poll = libc::pollfd { fd: ring.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the call gets one live entry.
        unsafe { libc::poll(&raw mut poll, 1, timeout_ms) > 0 }
    };
    accepted(ring.queue(0, Direction::Read, job(&arena, 0, [0])));
    ring.submit().unwrap();
    assert!(!readable(0));
    writer.write_all(&[1]).unwrap();
    assert!(readable(20_000));
    assert_eq!(ring.reap(|_, moved| assert_eq!(moved.unwrap(), 1)), 1);
    assert!(!readable(0));
}
