//! Threads of other processes: where they keep their lists of robust mutexes, and signals to them.

/// Sends a signal to one thread of a process. Returns whether the thread was there, and this process may send it signals.
pub fn signal_thread(pid: u32, tid: u32, signal: i32) -> bool {
    // SAFETY: the call takes numbers only.
    unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) == 0 }
}

/// Returns where a thread keeps its list of robust mutexes, if it has one. The GNU C library keeps it in the thread's descriptor,
/// right behind the number that the kernel clears at the thread's end. The kernel tells whoever may trace the thread.
pub fn robust_list(tid: u32) -> Option<u64> {
    let (mut head, mut bytes) = (0u64, 0usize);
    // SAFETY: the kernel writes to these two numbers only, which are live for the call.
    let answer = unsafe { libc::syscall(libc::SYS_get_robust_list, tid, &raw mut head, &raw mut bytes) };
    (answer == 0 && head != 0).then_some(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> u32 {
        rustix::thread::gettid().as_raw_nonzero().get() as u32
    }

    #[test]
    fn a_thread_of_the_c_library_has_a_list_and_one_that_has_ended_has_none() {
        let (tid, list) = std::thread::spawn(|| (own(), robust_list(own()))).join().unwrap();
        assert!(list.expect("the C library makes one").is_multiple_of(8));
        while signal_thread(std::process::id(), tid, 0) {
            std::thread::yield_now();
        }
        assert_eq!(robust_list(tid), None);
    }

    #[test]
    fn signals_reach_threads_of_their_process_only() {
        // No signal is sent, but the thread is looked for.
        assert!(signal_thread(std::process::id(), own(), 0));
        assert!(!signal_thread(u32::MAX >> 1, own(), 0));
    }
}
