//! The mailbox through which runner and mover talk. This file defines its words.
//!
//! ```text
//!    0  request   the number of the last batch ordered: written by the runner
//!    4  reply     the number of the last batch done: written by the mover
//!    8  count     the calls of the batch
//!   12  waiting   the runner sleeps until the reply
//!   16  interval  how long the mover sleeps between two looks at `watched` (a timespec)
//!   32  watched   the runner's and the program's pidfd, as the mover polls them
//!   64  calls     number, six arguments, answer: 64 bytes each
//! 8192  scratch   whatever calls point to
//! ```
//!
//! The runner writes the calls and their count, and then the request (release). The mover's loop loads the
//! request before anything that depends on it, which is enough on x86-64. The mover writes answers, then the
//! reply by an exchange (a full fence); the runner loads the reply with acquire. Before it sleeps, the runner
//! sets `waiting` and loads the reply again, both sequentially consistent; the mover loads `waiting` after
//! its exchange. So at least one of the two sees the other's store.
//!
//! The program can write to the whole mailbox. The runner trusts only the answers, and only as far as it
//! would trust an answer of the program itself: it takes no address and no length from the mailbox.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex;

use crate::error::MoverError;
use crate::layout::{CODE_BYTES, MAILBOX_BYTES};

pub const REPLY_AT: usize = 4;
pub const COUNT_AT: usize = 8;
pub const WAITING_AT: usize = 12;
pub const INTERVAL_AT: usize = 16;
pub const WATCHED_AT: usize = 32;
pub const CALLS_AT: usize = 64;
/// The most calls of one batch.
pub const CALLS: usize = 127;
/// The offset and the length of the scratch memory.
pub const SCRATCH_AT: usize = 8192;
pub const SCRATCH_BYTES: usize = MAILBOX_BYTES as usize - SCRATCH_AT;

/// A filter that the runner puts into a program lets a call pass whose sixth argument is this number. A
/// mapper in a forked process has the filter, too, and its calls must not be reported to a runner that waits
/// for them. The calls for which that matters have fewer arguments.
pub const UNREPORTED: u64 = 0x6f63_7461_766f_2d6d;

/// How often the runner checks the reply before it sleeps.
const LOOKS: usize = 200;
/// The interval at which a sleeping runner checks whether the mover lives.
const CHECK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// The time after which the runner gives up a mover that lives but does not answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// One system call for a mover to make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// The call's number.
    pub number: i64,
    /// The call's arguments. Pointers are addresses in the program.
    pub arguments: [u64; 6],
    /// The kernel's answer, or an error number below zero.
    pub answer: i64,
}

impl Call {
    /// Makes a call with up to six arguments.
    pub fn new<const N: usize>(number: libc::c_long, arguments: [u64; N]) -> Self {
        let mut six = [0; 6];
        six[..N].copy_from_slice(&arguments);
        Self { number, arguments: six, answer: 0 }
    }

    /// Returns the answer, or the error.
    pub fn result(&self) -> Result<u64, Errno> {
        if (-4095..0).contains(&self.answer) {
            Err(Errno::from_raw_os_error(-self.answer as i32))
        } else {
            Ok(self.answer as u64)
        }
    }
}

/// The runner's side.
#[derive(Debug)]
pub struct Mailbox {
    base: NonNull<u8>,
    last: u32,
}

// SAFETY: the mapping belongs to the value, and only atomics access it.
unsafe impl Send for Mailbox {}

impl Mailbox {
    /// Writes the code into a new shared memory file, and maps the file's mailbox, which follows the code.
    pub fn new(file: BorrowedFd<'_>, code: &[u8]) -> io::Result<Self> {
        rustix::fs::ftruncate(file, CODE_BYTES + MAILBOX_BYTES)?;
        let written = rustix::io::pwrite(file, code, 0)?;
        if written < code.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        // SAFETY: a fresh mapping at an address that the kernel chooses. The file is as long as the mapping.
        let base = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap(std::ptr::null_mut(), MAILBOX_BYTES as usize, access, MapFlags::SHARED, file, CODE_BYTES)?
        };
        let mailbox = Self { base: NonNull::new(base.cast()).expect("a mapping is not at zero"), last: 0 };
        // The mover checks every second, and has no descriptors to check yet.
        mailbox.word(INTERVAL_AT).store(1, Ordering::Relaxed);
        mailbox.watch([u32::MAX; 2]);
        Ok(mailbox)
    }

    /// Makes the mover end if one of these descriptors becomes readable. Each descriptor is named by its
    /// number in the mover.
    pub fn watch(&self, descriptors: [u32; 2]) {
        for (index, descriptor) in descriptors.into_iter().enumerate() {
            let events = (libc::POLLIN as u64) << 32;
            self.word(WATCHED_AT + 8 * index).store(u64::from(descriptor) | events, Ordering::Relaxed);
        }
    }

    fn half(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at < MAILBOX_BYTES as usize);
        // SAFETY: the word is inside the mapping and aligned (both asserted), lives as long as `self`, and
        // only atomics access it.
        unsafe { self.base.add(at).cast().as_ref() }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at < MAILBOX_BYTES as usize);
        // SAFETY: as above.
        unsafe { self.base.add(at).cast().as_ref() }
    }

    /// Writes words into the scratch memory. `at` is the offset there, a multiple of 8.
    pub fn write_scratch(&self, at: usize, words: &[u64]) {
        assert!(at + size_of_val(words) <= SCRATCH_BYTES, "inside the scratch memory");
        for (index, word) in words.iter().enumerate() {
            // Relaxed: the store of the next request releases it.
            self.word(SCRATCH_AT + at + 8 * index).store(*word, Ordering::Relaxed);
        }
    }

    /// Reads a word of the scratch memory. Relaxed: the load of the reply has acquired it.
    pub fn scratch(&self, at: usize) -> u64 {
        assert!(at + 8 <= SCRATCH_BYTES, "inside the scratch memory");
        self.word(SCRATCH_AT + at).load(Ordering::Relaxed)
    }

    /// Makes the calls in order, and fills in their answers. `mover` is the pidfd of the mover.
    pub fn call(&mut self, mover: BorrowedFd<'_>, calls: &mut [Call]) -> Result<(), MoverError> {
        if calls.len() > CALLS {
            return Err(MoverError::TooLarge);
        }
        for (index, call) in calls.iter().enumerate() {
            let at = CALLS_AT + 64 * index;
            self.word(at).store(call.number as u64, Ordering::Relaxed);
            for (place, argument) in call.arguments.iter().enumerate() {
                self.word(at + 8 + 8 * place).store(*argument, Ordering::Relaxed);
            }
        }
        self.half(COUNT_AT).store(calls.len() as u32, Ordering::Relaxed);
        self.last = self.last.wrapping_add(1);
        // Releases the calls and the scratch memory to the mover's load of the request.
        self.half(0).store(self.last, Ordering::Release);
        futex::wake(self.half(0), futex::Flags::empty(), 1).map_err(MoverError::System)?;
        self.wait(mover)?;
        for (index, call) in calls.iter_mut().enumerate() {
            call.answer = self.word(CALLS_AT + 64 * index + 56).load(Ordering::Relaxed) as i64;
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        // Acquires the answers, which the mover wrote before its exchange.
        self.half(REPLY_AT).load(Ordering::Acquire) == self.last
    }

    fn wait(&self, mover: BorrowedFd<'_>) -> Result<(), MoverError> {
        for _ in 0..LOOKS {
            if self.is_done() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let start = Instant::now();
        let waiting = self.half(WAITING_AT);
        loop {
            waiting.store(1, Ordering::SeqCst);
            let seen = self.half(REPLY_AT).load(Ordering::SeqCst);
            if seen == self.last {
                break;
            }
            match futex::wait(self.half(REPLY_AT), futex::Flags::empty(), seen, Some(&CHECK)) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(Errno::TIMEDOUT) => {
                    if has_ended(mover).map_err(MoverError::System)? {
                        if self.is_done() {
                            break;
                        }
                        return Err(MoverError::Ended);
                    }
                    if start.elapsed() > PATIENCE {
                        return Err(MoverError::Silent);
                    }
                    // The program may have overwritten the request.
                    self.half(0).store(self.last, Ordering::Release);
                    futex::wake(self.half(0), futex::Flags::empty(), 1).map_err(MoverError::System)?;
                }
                Err(error) => return Err(MoverError::System(error)),
            }
        }
        waiting.store(0, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and no reference into it outlives `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), MAILBOX_BYTES as usize) };
    }
}

/// Returns whether the process of a pidfd has ended.
pub fn has_ended(process: BorrowedFd<'_>) -> Result<bool, Errno> {
    let mut ready = [PollFd::new(&process, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(poll(&mut ready, Some(&now))? > 0)
}
