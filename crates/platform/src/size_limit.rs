//! Makes the process's limit on file sizes an error, never a signal.
//!
//! A write beyond `RLIMIT_FSIZE`, or a call that makes a file longer than this limit, fails with `EFBIG`. The
//! kernel also sends `SIGXFSZ` to the calling thread, which ends the process unless the program handles or
//! ignores the signal (Linux: `generic_write_check_limits`, `inode_newsize_ok`). The limit may fall at any
//! time, even below a file's present size, so a check before the call does not help.
//!
//! A library may not change how a program handles a signal. So the thread blocks the signal during the call,
//! and takes a pending one before it unblocks the signal. The kernel's own threads, to which a ring may hand
//! a write, block all signals.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// Calls `act`, and hides the file-size signal that `act` may raise on this thread.
///
/// If the program blocks the signal itself, the signal stays pending, as the program expects.
///
/// Cost: three system calls.
pub fn without_size_signal<T>(act: impl FnOnce() -> T) -> T {
    let _held = HeldBack::hold();
    act()
}

/// Blocks the signal while this value lives. The field is false if the program had blocked the signal before.
/// In that case, drop changes nothing.
struct HeldBack(bool);

impl HeldBack {
    fn hold() -> Self {
        let mut before = MaybeUninit::uninit();
        // SAFETY: both sets are live for the call, which writes the second. Only this thread's mask changes.
        let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &the_signal(), before.as_mut_ptr()) };
        assert_eq!(failed, 0, "one signal of a set can be held back");
        // SAFETY: written by the call above.
        Self(unsafe { libc::sigismember(before.as_ptr(), libc::SIGXFSZ) } == 0)
    }
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        if !self.0 {
            return;
        }
        let (signal, no_time) = (the_signal(), libc::timespec { tv_sec: 0, tv_nsec: 0 });
        // The signal was unblocked before, so none was pending. Now one may be pending for this thread, and
        // one for the whole process if someone else sent it meanwhile.
        loop {
            // SAFETY: the set and the time are live for the call; nothing is written.
            let taken = unsafe { libc::sigtimedwait(&raw const signal, ptr::null_mut(), &raw const no_time) };
            if taken < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                break;
            }
        }
        // SAFETY: as above. Only this thread's mask changes.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const signal, ptr::null_mut()) };
    }
}

/// The set of this one signal.
fn the_signal() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initializes the set, and `sigaddset` adds a signal that exists.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGXFSZ);
        set.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::{ArenaBytes, Backing, Direction, PAGE_BYTES, run_in_forked_child};

    const PAGE: u64 = PAGE_BYTES as u64;

    /// A file of 64 KiB, in a process that may write the first half of it.
    fn in_a_child_with_a_limit(child: impl FnOnce(File) -> u8) -> u8 {
        let file = tempfile::tempfile_in("/var/tmp").unwrap();
        file.set_len(16 * PAGE).unwrap();
        let code = run_in_forked_child(|| {
            let limit = libc::rlimit { rlim_cur: 8 * PAGE, rlim_max: libc::RLIM_INFINITY };
            // SAFETY: the limit is live for the call; the process is a test's own.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
            child(file)
        });
        code.unwrap()
    }

    fn arena() -> ArenaBytes {
        let arena = ArenaBytes::new(PAGE_BYTES).unwrap();
        arena.bring_online(0..PAGE_BYTES, Backing::BasePages).unwrap();
        arena
    }

    #[test]
    fn a_write_beyond_the_limit_is_an_error() {
        let code = in_a_child_with_a_limit(|file| {
            // The arena is made here, since a child inherits none.
            let arena = arena();
            let write = |page| {
                let pages = std::iter::once(0..PAGE_BYTES);
                arena.transfer_some(file.as_fd(), page * PAGE, Direction::Write, pages)
            };
            assert_eq!(write(7).unwrap(), PAGE_BYTES);
            for _ in 0..3 {
                assert_eq!(write(8).unwrap_err().raw_os_error(), Some(libc::EFBIG));
            }
            0
        });
        assert_eq!(code, 0);
    }

    #[test]
    fn what_the_program_writes_itself_draws_the_signal_as_before() {
        let code = in_a_child_with_a_limit(|file| {
            without_size_signal(|| file.write_at(&[1], 8 * PAGE)).unwrap_err();
            file.write_at(&[1], 8 * PAGE).unwrap_err();
            0
        });
        assert_eq!(code, 128 + libc::SIGXFSZ as u8);
    }

    #[test]
    fn a_program_that_holds_the_signal_back_finds_it_pending() {
        let code = in_a_child_with_a_limit(|file| {
            let signal = the_signal();
            let mut pending = signal;
            // SAFETY: all sets are live for the calls.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signal, ptr::null_mut()) };
            without_size_signal(|| file.write_at(&[1], 8 * PAGE)).unwrap_err();
            // SAFETY: as above.
            unsafe {
                libc::sigpending(&raw mut pending);
                u8::from(libc::sigismember(&raw const pending, libc::SIGXFSZ) != 1)
            }
        });
        assert_eq!(code, 0);
    }
}
