//! A word that tells a forked child from its parent, by one load.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::ZeroedArray;

/// A canary reads true in the process that made it, and false in every child forked from that process.
/// `MADV_WIPEONFORK` makes the difference.
#[derive(Debug)]
pub struct ForkCanary {
    word: ZeroedArray<AtomicU64>,
}

impl ForkCanary {
    /// Makes a canary. Fails with the kernel's error if it cannot wipe memory on fork (before Linux 4.14).
    pub fn new() -> io::Result<Self> {
        let word = ZeroedArray::<AtomicU64>::wiped_on_fork(1)?;
        word[0].store(1, Ordering::Relaxed);
        Ok(Self { word })
    }

    /// Returns whether this process made the canary. Costs one load.
    #[inline]
    pub fn is_original_process(&self) -> bool {
        self.word[0].load(Ordering::Relaxed) != 0
    }
}

/// Runs `child` in a forked child, waits for the child's end, and returns its exit code. The code is the
/// result of `child`, or 128 plus the signal's number if a signal ends the child. Tests use this function to
/// check that a forked child behaves as documented.
///
/// Fails with the kernel's error if it cannot start a process.
pub fn run_in_forked_child(child: impl FnOnce() -> u8) -> io::Result<u8> {
    // SAFETY: the child of a process with several threads keeps only the thread that forked. A lock that
    // another thread held stays locked and may block the child for ever. But the child reads no torn memory:
    // its memory is a copy made at one moment, and glibc readies its own allocator for the child.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(101);
            // SAFETY: this call ends the process at once, without the parent's exit handlers.
            unsafe { libc::_exit(i32::from(code)) }
        }
        pid => {
            let mut status = 0;
            // SAFETY: `status` is a live integer. The child is ours, and nobody else waits for it.
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
