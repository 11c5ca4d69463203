//! Processes: forks that run a closure, this program started anew, and waiting for both.

use std::ffi::{CStr, c_int, c_void};
use std::io::{PipeReader, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use crate::finding::{insist, last_errno, last_error};
use crate::memory::OwnMapping;

/// The hidden option that makes this program run a short check.
pub const FRESH: &CStr = c"--fresh";
const THIS_PROGRAM: &CStr = c"/proc/self/exe";
/// The exit status of a process that panicked.
const PANICKED: c_int = 101;

/// A process to wait for.
#[derive(Debug)]
#[must_use = "a child that nobody waits for stays as a zombie"]
pub struct Child(libc::pid_t);

impl Child {
    /// Waits for the child to end successfully. A child that fails has reported why.
    pub fn wait(self, who: &str) {
        let mut status = 0;
        loop {
            // SAFETY: the status is ours to write.
            match unsafe { libc::waitpid(self.0, &mut status, 0) } {
                pid if pid == self.0 => break,
                _ => insist!(last_errno() == libc::EINTR, "waitpid for {who} failed: {}", last_error()),
            }
        }
        insist!(
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
            "{who} (process {}) ended badly, with wait status {status:#x}.",
            self.0
        );
    }
}

/// Forks. The child runs the closure on a copy of everything, and exits without destructors. It ends with its
/// parent.
pub fn fork(child: impl FnOnce()) -> Child {
    fork_and(|| {
        end_with_parent();
        child();
    })
}

/// A child whose parent has ended.
#[derive(Debug)]
#[must_use = "nobody else hears of its end"]
pub struct OrphanChild(PipeReader);

/// Forks a child that forks again and ends at once, as daemons do. The child's child runs the closure.
pub fn fork_orphan(orphan: impl FnOnce()) -> OrphanChild {
    let Ok((reader, mut writer)) = std::io::pipe() else {
        crate::finding::report(format_args!("pipe failed: {}", last_error()))
    };
    let child = fork(|| {
        let Child(_) = fork_and(|| {
            orphan();
            // The waiting process may have ended.
            let _ = writer.write_all(b"!");
        });
    });
    child.wait("a child that leaves an orphan");
    OrphanChild(reader)
}

impl OrphanChild {
    /// Waits for the orphan to end successfully. An orphan that fails has reported why.
    pub fn wait(mut self) {
        insist!(self.0.read_exact(&mut [0]).is_ok(), "an orphan ended badly.");
    }
}

fn fork_and(child: impl FnOnce()) -> Child {
    // SAFETY: the child runs on this thread alone. It uses memory, system calls and libc's allocator, which
    // libc makes usable in a child. It takes no lock of this program, and leaves by `_exit`.
    match unsafe { libc::fork() } {
        -1 => crate::finding::report(format_args!("fork failed: {}", last_error())),
        0 => {
            let result = catch_unwind(AssertUnwindSafe(child));
            // SAFETY: this ends the process.
            unsafe { libc::_exit(if result.is_ok() { 0 } else { PANICKED }) }
        }
        pid => Child(pid),
    }
}

/// Has the kernel kill this process when the thread that made it ends.
pub fn end_with_parent() {
    // SAFETY: the call takes no memory.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Starts this program again by `posix_spawn`.
pub fn spawn_anew() -> Child {
    let (arguments, environment) = (fresh_arguments(), [ptr::null_mut()]);
    let mut pid = 0;
    // SAFETY: strings and arrays end in zero and outlive the call.
    let error = unsafe {
        libc::posix_spawn(
            &mut pid,
            THIS_PROGRAM.as_ptr(),
            ptr::null(),
            ptr::null(),
            arguments.as_ptr(),
            environment.as_ptr(),
        )
    };
    insist!(error == 0, "posix_spawn failed with error {error}.");
    Child(pid)
}

fn fresh_arguments() -> [*mut libc::c_char; 3] {
    [c"octavo-torture".as_ptr().cast_mut(), FRESH.as_ptr().cast_mut(), ptr::null_mut()]
}

/// Starts this program again as `vfork` and `exec` do: the child shares the memory until it executes, and
/// this thread sleeps until then. The child's stack is in the given mapping.
pub fn vfork_and_exec(stack: &OwnMapping) -> Child {
    extern "C" fn exec(arguments: *mut c_void) -> c_int {
        let environment: [*const libc::c_char; 1] = [ptr::null()];
        // SAFETY: the argument is the array below, which lives while the parent sleeps.
        unsafe {
            libc::execve(THIS_PROGRAM.as_ptr(), arguments.cast(), environment.as_ptr());
            libc::_exit(127)
        }
    }
    let mut arguments = fresh_arguments();
    let top = stack.pointer(stack.bytes(), 0);
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the child runs `exec` on a stack of its own, which no reference borrows, while this thread
    // sleeps.
    let pid = unsafe { libc::clone(exec, top.cast(), flags, arguments.as_mut_ptr().cast()) };
    insist!(pid > 0, "clone with CLONE_VFORK failed: {}", last_error());
    Child(pid)
}
