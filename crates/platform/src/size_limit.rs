//! The limit of a process on the size of files, met as an error and never as a signal.
//!
//! Beyond `RLIMIT_FSIZE` a write, or a call that makes a file longer, fails with `EFBIG`. The kernel also
//! sends `SIGXFSZ` to the thread that makes the call, and that ends the process unless the program has said
//! otherwise (Linux: `generic_write_check_limits`, `inode_newsize_ok`). The limit may be lowered at any time,
//! and below what a file has already, so nobody can ask ahead.
//!
//! A library may not change what a program does with a signal. So this thread holds the signal back for the
//! time of the call, and takes it before it lets signals through again. The kernel's own threads, to which a
//! ring may hand a write, hold back all signals.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// Calls `act`. A file-size signal that it draws upon this thread is taken, and nobody sees it.
///
/// Where the program holds the signal back itself, it stays pending, as the program would have it.
///
/// Cost: three system calls.
pub fn without_size_signal<T>(act: impl FnOnce() -> T) -> T {
    let _held = HeldBack::hold();
    act()
}

/// The signal is held back, by this and not by the program; or it was before, and nothing is to be done.
struct HeldBack(bool);

impl HeldBack {
    fn hold() -> Self {
        let mut before = MaybeUninit::uninit();
        // SAFETY: both sets are live for the call, and the second is written by it. Only this thread's mask
        // changes.
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
        // The signal was let through before, so none was pending then. There may be one for this thread now,
        // and one for the whole process, which somebody else would have to have sent meanwhile.
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

/// A set of the one signal.
fn the_signal() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` makes the set, `sigaddset` adds a signal that there is.
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
            // Made here, as no child inherits one.
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
