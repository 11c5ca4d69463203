//! Threads that start and end, and memory that the kernel accesses for them: futexes, robust mutexes, signal
//! frames.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::thread;

use crate::finding::{insist, last_errno, last_error, report};
use crate::memory::PAGE;
use crate::patterned::Patterned;
use crate::random::{Random, mix};
use crate::robust::RobustMutex;
use crate::signals::{AlternateStack, on_alternate_stack, set_handler};
use crate::work::{Team, WorkerState};

pub const OPERATIONS: &[&str] = &[
    "threads with large stacks",
    "threads that ended at once",
    "robust mutexes handed on",
    "futexes passed to and fro",
    "signals on an alternate stack",
    "thread-locals read again",
    "idle times",
];

const STACK_BYTES: usize = 4 << 20;
/// The words of one frame of a deep stack.
const FRAME_WORDS: usize = 1024;
const CROWD: usize = 12;
const SIGNAL_PAGES: usize = 8;
/// A wait that takes this many seconds is a finding.
const PATIENCE_SECONDS: i64 = 60;

thread_local! {
    static LOCALS: [Cell<u64>; 256] = const { [const { Cell::new(0) }; 256] };
    /// How many signals this thread has handled.
    static HANDLED: Cell<u64> = const { Cell::new(0) };
}

pub fn run(team: Team<'_>) {
    set_handler(libc::SIGUSR1, count_signal);
    team.run(|work| {
        // The other half is for stacks.
        let mut memory = Patterned::new((work.bytes / 2).max(4 * SIGNAL_PAGES * PAGE));
        memory.fill_all(work);
        let key = work.new_generation();
        set_locals(key);
        while work.goes_on() {
            match work.random.below(12) {
                0..3 => large_stacks(work),
                3 => crowd(work),
                4..6 => robust_mutex(work, &mut memory),
                6..8 => futexes(work, &mut memory),
                8..10 => signals(work, &mut memory),
                10 => {
                    check_locals(key);
                    work.count("thread-locals read again");
                }
                _ => {
                    work.idle(60);
                    work.count("idle times");
                }
            }
            let run = work.random.run(memory.pages(), 512);
            memory.check(run.clone(), "beside threads");
            memory.fill(work, run);
        }
        memory.check_all("at the end");
    });
}

fn set_locals(key: u64) {
    LOCALS.with(|cells| cells.iter().enumerate().for_each(|(i, cell)| cell.set(mix(key + i as u64))));
}

fn check_locals(key: u64) {
    LOCALS.with(|cells| {
        for (index, cell) in cells.iter().enumerate() {
            let (found, expected) = (cell.get(), mix(key + index as u64));
            insist!(
                found == expected,
                "the thread-local at {:p} is {found:#018x} and should be {expected:#018x}.",
                cell.as_ptr()
            );
        }
    });
}

/// Fills a frame, calls itself, and checks the frame.
#[inline(never)]
fn deep(levels: usize, random: &mut Random) -> u64 {
    let key = random.next();
    let frame: [AtomicU64; FRAME_WORDS] =
        std::array::from_fn(|index| AtomicU64::new(mix(key + index as u64)));
    // Hide the frame's content from the compiler.
    let frame = std::hint::black_box(&frame);
    let below = match levels {
        0 => {
            thread::yield_now();
            0
        }
        _ => deep(levels - 1, random),
    };
    for (index, word) in frame.iter().enumerate() {
        let (found, expected) = (word.load(Relaxed), mix(key + index as u64));
        insist!(
            found == expected,
            "the word of a stack at {:p} is {found:#018x} and should be {expected:#018x}.",
            word.as_ptr()
        );
    }
    below + 1
}

fn start<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    stack_bytes: usize,
    body: impl FnOnce() + Send + 'scope,
) -> thread::ScopedJoinHandle<'scope, ()> {
    thread::Builder::new()
        .stack_size(stack_bytes)
        .spawn_scoped(scope, body)
        .unwrap_or_else(|error| report(format_args!("a thread was refused: {error}")))
}

fn large_stacks(work: &mut WorkerState<'_>) {
    // Together, the stacks stay within this worker's share.
    let threads = (work.bytes / 4 / STACK_BYTES).clamp(1, 4);
    let levels = 1 + work.random.below(STACK_BYTES / 2 / (FRAME_WORDS * 8));
    let seeds: Vec<u64> = (0..threads).map(|_| work.random.next()).collect();
    thread::scope(|scope| {
        for seed in seeds {
            start(scope, STACK_BYTES, move || {
                set_locals(seed >> 1);
                let mut random = Random::new(seed);
                insist!(deep(levels, &mut random) == levels as u64 + 1, "a deep call lost its count.");
                check_locals(seed >> 1);
            });
        }
    });
    work.team.tally.add("threads with large stacks", threads as u64);
}

fn crowd(work: &mut WorkerState<'_>) {
    let ended = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..CROWD {
            start(scope, 256 << 10, || {
                ended.fetch_add(1, Relaxed);
            });
        }
    });
    insist!(ended.load(Relaxed) == CROWD as u64, "only {} of {CROWD} threads ran.", ended.load(Relaxed));
    work.team.tally.add("threads that ended at once", CROWD as u64);
}

/// A thread ends while it holds a mutex in the memory. The kernel must mark the mutex, and the next owner
/// must get the error.
fn robust_mutex(work: &mut WorkerState<'_>, memory: &mut Patterned) {
    let page = work.random.below(memory.pages());
    memory.check(page..page + 1, "before a mutex lay here");
    let mutex = RobustMutex::new(&memory.mapping, page * PAGE + 64 * work.random.below(32));
    let seed = work.random.next();
    let end = work.team.end;
    let locked = Barrier::new(2);
    thread::scope(|scope| {
        let (mutex, locked) = (&mutex, &locked);
        let owner = start(scope, 256 << 10, move || {
            mutex.lock();
            locked.wait();
            // A pager may take the mutex's page before the thread ends.
            let pause = std::time::Duration::from_millis(Random::new(seed).below(80) as u64);
            thread::sleep(pause.min(end.saturating_duration_since(std::time::Instant::now())));
        });
        locked.wait();
        if seed.is_multiple_of(2) {
            let _ = owner.join();
        }
        mutex.take_over(PATIENCE_SECONDS);
    });
    memory.fill(work, page..page + 1);
    work.count("robust mutexes handed on");
}

/// Two threads pass a word of the memory back and forth, and sleep in the kernel meanwhile.
fn futexes(work: &mut WorkerState<'_>, memory: &mut Patterned) {
    const TURNS: u32 = 40;
    let page = work.random.below(memory.pages());
    memory.check(page..page + 1, "before a futex lay here");
    let offset = page * PAGE + 4 * work.random.below(PAGE / 4);
    let word = memory.mapping.short_word(offset);
    word.store(0, SeqCst);
    let pause = std::time::Duration::from_micros(work.random.below(2000) as u64);
    thread::scope(|scope| {
        start(scope, 256 << 10, move || {
            for turn in (0..TURNS).step_by(2) {
                pass(word, turn);
            }
        });
        for turn in (1..TURNS).step_by(2) {
            if turn % 16 == 1 {
                thread::sleep(pause);
            }
            pass(word, turn);
        }
    });
    insist!(
        word.load(SeqCst) == TURNS,
        "the futex at {:p} ended at {} and should have ended at {TURNS}.",
        word.as_ptr(),
        word.load(SeqCst)
    );
    memory.fill(work, page..page + 1);
    work.team.tally.add("futexes passed to and fro", u64::from(TURNS));
}

/// Waits until the word has the value of this turn, and then stores the next turn.
fn pass(word: &AtomicU32, turn: u32) {
    loop {
        let now = word.load(SeqCst);
        if now == turn {
            break;
        }
        let patience = libc::timespec { tv_sec: PATIENCE_SECONDS, tv_nsec: 0 };
        // SAFETY: the word is borrowed for the call, which only compares it.
        let result =
            unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, now, &patience) };
        let error = if result == 0 { 0 } else { last_errno() };
        insist!(
            [0, libc::EAGAIN, libc::EINTR].contains(&error),
            "a wait for the futex at {:p} failed: {}",
            word.as_ptr(),
            last_error()
        );
    }
    word.store(turn + 1, SeqCst);
    // SAFETY: the word is borrowed for the call, which takes only its address.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}

extern "C" fn count_signal(_: i32, _: *mut libc::siginfo_t, _: *mut c_void) {
    insist!(on_alternate_stack(), "a signal handler is not on the alternate stack.");
    HANDLED.with(|handled| handled.set(handled.get() + 1));
}

/// Raises signals whose frames the kernel writes into the memory.
fn signals(work: &mut WorkerState<'_>, memory: &mut Patterned) {
    const SIGNALS: u64 = 16;
    let first = work.random.below(memory.pages() - SIGNAL_PAGES);
    let stack = first..first + SIGNAL_PAGES;
    memory.check(stack.clone(), "before signals were handled here");
    let before = HANDLED.get();
    let alternate = AlternateStack::new(&memory.mapping, first * PAGE, SIGNAL_PAGES * PAGE);
    for number in 0..SIGNALS {
        if number == SIGNALS / 2 {
            work.idle(40);
        }
        // SAFETY: the call sends this thread a signal that has a handler.
        unsafe { libc::raise(libc::SIGUSR1) };
    }
    drop(alternate);
    let handled = HANDLED.get() - before;
    insist!(handled == SIGNALS, "{handled} of {SIGNALS} signals were handled.");
    if first > 0 {
        memory.check(first - 1..first, "below an alternate stack");
    }
    memory.fill(work, stack);
    work.team.tally.add("signals on an alternate stack", SIGNALS);
}
