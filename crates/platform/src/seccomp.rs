//! A seccomp filter that forbids io_uring to a thread, as container runtimes do, for tests.

use std::io;

/// Makes io_uring's system calls fail with `EPERM` from now on, in the calling thread and in all threads and
/// processes that it starts. The filter cannot be removed, so a caller installs it in a forked child.
///
/// Fails with the kernel's error if the kernel does not support filters.
pub fn forbid_io_uring() -> io::Result<()> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let jump_if_equal = |k: libc::c_long, jt: u8| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt,
        jf: 0,
        k: k as u32,
    };
    let mut program = [
        // The filter's input begins with the number of the system call.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        jump_if_equal(libc::SYS_io_uring_setup, 3),
        jump_if_equal(libc::SYS_io_uring_enter, 2),
        jump_if_equal(libc::SYS_io_uring_register, 1),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the first call takes numbers only. The second reads the filter and its program, which live
    // across the call. A filter that makes system calls fail touches no memory.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter, 0, 0) == 0
    };
    if installed { Ok(()) } else { Err(io::Error::last_os_error()) }
}
