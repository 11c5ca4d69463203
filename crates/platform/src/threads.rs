//! Threads: their lists of robust mutexes, signals to them, their state in `/proc`, and the idle and
//! real-time scheduling policies.

use std::io;

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

/// Sends a signal to one thread of a process. Returns whether the thread exists and this process may signal
/// it.
pub fn signal_thread(pid: u32, tid: u32, signal: i32) -> bool {
    // SAFETY: the call takes numbers only.
    unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) == 0 }
}

/// Gives a signal its default action in this process, whose parent may have had it ignored.
pub fn use_default_action(signal: i32) {
    // SAFETY: the default action is not a function of this program.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Returns the threads of a process.
///
/// # Errors
/// The kernel's error if the process has ended or no descriptors are left.
pub fn of_process(pid: u32) -> io::Result<Vec<u32>> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))?;
    Ok(tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok()).collect())
}

/// Returns where a thread keeps its list of robust mutexes, if it has one. The GNU C library keeps it in the
/// thread's descriptor, right behind the number that the kernel clears at the thread's end. The kernel
/// answers only a process that may trace the thread.
pub fn robust_list(tid: u32) -> Option<u64> {
    let (mut head, mut bytes) = (0u64, 0usize);
    // SAFETY: the kernel writes to these two numbers only, which are live for the call.
    let answer = unsafe { libc::syscall(libc::SYS_get_robust_list, tid, &raw mut head, &raw mut bytes) };
    (answer == 0 && head != 0).then_some(head)
}

/// Returns a field of the `stat` of a process or a thread, numbered as in `proc(5)`. The first field that
/// this function finds is 3, the state. The name before it may hold anything, but ends at the last
/// parenthesis.
pub fn stat_field(stat: &[u8], number: usize) -> Option<&[u8]> {
    let rest = stat.get(stat.iter().rposition(|byte| *byte == b')')? + 2..)?;
    rest.split(|byte| *byte == b' ').nth(number.checked_sub(3)?)
}

/// Returns whether a thread of a process has a CPU or waits for one.
pub fn runs(pid: u32, thread: u32) -> bool {
    let stat = std::fs::read(format!("/proc/{pid}/task/{thread}/stat"));
    stat.is_ok_and(|stat| stat_field(&stat, 3) == Some(b"R"))
}

/// Gives this thread the lowest real-time priority (`SCHED_RR`), ahead of all ordinary threads, or makes it
/// ordinary again. Threads and processes that it starts are ordinary.
///
/// # Errors
/// The kernel's error if this process may not have such threads. They need `CAP_SYS_NICE` or a limit for
/// real-time priorities (`RLIMIT_RTPRIO`), and a control group that has time for them.
pub fn set_real_time(on: bool) -> io::Result<()> {
    // Both policies have the second flag, since an unprivileged thread cannot clear it.
    let policy = if on { libc::SCHED_RR } else { libc::SCHED_OTHER } | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the call takes a number only.
    let lowest = if on { unsafe { libc::sched_get_priority_min(libc::SCHED_RR) } } else { 0 };
    set_policy(0, policy, lowest)
}

/// Gives the calling thread short slices of CPU time, so that it gets a CPU soon after it wakes, before
/// threads that use theirs all the time (Linux 6.12). Needs no right.
///
/// Fails with the kernel's error.
pub fn set_short_slices() -> io::Result<()> {
    /// `struct sched_attr`, in its first size.
    #[repr(C)]
    #[derive(Default)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime_ns: u64,
        deadline_ns: u64,
        period_ns: u64,
    }
    const SHORTEST_NS: u64 = 100_000;
    let size = size_of::<Attributes>() as u32;
    let wanted = Attributes { size, runtime_ns: SHORTEST_NS, ..Attributes::default() };
    // SAFETY: the structure is live for the call, and tells its own size.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const wanted, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns whether this thread has a real-time priority ([`set_real_time`]).
pub fn is_real_time() -> bool {
    // SAFETY: the call takes a number only.
    let policy = unsafe { libc::sched_getscheduler(0) };
    policy >= 0 && policy & !libc::SCHED_RESET_ON_FORK == libc::SCHED_RR
}

/// Makes a thread of this process run only while no other wants its CPU (`SCHED_IDLE`), or makes it ordinary
/// again. When the kernel looks for a CPU for another thread, it counts a CPU with an idle thread as free.
///
/// # Errors
/// The kernel's error if the thread has ended, or if this process may not change it back
/// ([`may_leave_idle`]).
pub fn set_idle(thread: u32, on: bool) -> io::Result<()> {
    let policy = if on { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    set_policy(thread, policy, 0)
}

/// Sets the policy of a thread; 0 is the calling thread.
fn set_policy(thread: u32, policy: i32, priority: i32) -> io::Result<()> {
    let priority = libc::sched_param { sched_priority: priority };
    // SAFETY: the kernel reads the number, which is live for the call.
    let answer = unsafe { libc::sched_setscheduler(thread as libc::pid_t, policy, &raw const priority) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns whether this thread may undo [`set_idle`].
pub fn may_leave_idle() -> bool {
    // An ordinary thread has a nice value of 0, which is 20 for this limit.
    let may_be_nice = getrlimit(Resource::Nice).current.is_none_or(|most| most >= 20);
    may_be_nice || capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_NICE))
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
    fn a_thread_that_gives_way_to_all_others_can_be_called_back() {
        std::thread::spawn(|| {
            if may_leave_idle() {
                // SAFETY: the call takes a number only.
                let policy = || unsafe { libc::sched_getscheduler(own() as libc::pid_t) };
                let before = policy();
                set_idle(own(), true).unwrap();
                assert_eq!(policy(), libc::SCHED_IDLE);
                set_idle(own(), false).unwrap();
                assert_eq!(policy(), before);
            }
        })
        .join()
        .unwrap();
        assert!(set_idle(u32::MAX >> 1, true).is_err());
    }

    #[test]
    fn a_thread_before_all_others_starts_threads_that_are_not() {
        std::thread::spawn(|| {
            if set_real_time(true).is_ok() {
                assert!(is_real_time());
                assert!(!std::thread::spawn(is_real_time).join().unwrap());
                set_real_time(false).unwrap();
            }
            assert!(!is_real_time());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn fields_are_found_behind_any_name() {
        let stat = b"42 (a ) name) R 1 2 3";
        assert_eq!(stat_field(stat, 3), Some(&b"R"[..]));
        assert_eq!(stat_field(stat, 6), Some(&b"3"[..]));
        assert_eq!(stat_field(stat, 39), None);
    }

    #[test]
    fn signals_reach_threads_of_their_process_only() {
        // Signal 0 only checks that the thread exists.
        assert!(signal_thread(std::process::id(), own(), 0));
        assert!(!signal_thread(u32::MAX >> 1, own(), 0));
    }
}
