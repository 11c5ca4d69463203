//! Telling a forked child from its parent, by one load.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::ZeroedArray;

/// Reads true in the process that made it and false in any child forked from it, by `MADV_WIPEONFORK`.
#[derive(Debug)]
pub struct ForkCanary {
    word: ZeroedArray<AtomicU64>,
}

impl ForkCanary {
    /// # Errors
    /// The kernel's, when it cannot wipe on fork (before Linux 4.14).
    pub fn new() -> io::Result<Self> {
        let word = ZeroedArray::<AtomicU64>::wiped_on_fork(1)?;
        word[0].store(1, Ordering::Relaxed);
        Ok(Self { word })
    }

    /// Whether this is the process that made the canary. One load.
    #[inline]
    pub fn is_original_process(&self) -> bool {
        self.word[0].load(Ordering::Relaxed) != 0
    }
}

/// Runs `child` in a forked child, which then exits with what it answers, and waits for it. The exit code; 128 + signal
/// for a child that a signal ended. For tests of what a child may do.
///
/// # Errors
/// The kernel's, when it has no process to give.
pub fn run_in_forked_child(child: impl FnOnce() -> u8) -> io::Result<u8> {
    // SAFETY: a child of a process with several threads has only the one that forked. What the others held stays
    // held: a lock of theirs can block it, for good, but nothing it reads is torn, as its memory is a copy made at one
    // moment, and glibc readies its own allocator for the child.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(101);
            // SAFETY: ends the process at once, without the parent's exit handlers.
            unsafe { libc::_exit(i32::from(code)) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: `status` is a live integer; the child is ours and nobody else waits for it.
            while unsafe { libc::waitpid(pid, &raw mut status, 0) } != pid {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            let code = if libc::WIFEXITED(status) {
                libc::WEXITSTATUS(status)
            } else {
                128 + libc::WTERMSIG(status)
            };
            Ok(code as u8)
        }
    }
}
