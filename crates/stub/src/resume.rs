//! The registers with which an interrupted thread continues.
//!
//! The stop itself leaves traces, which this module removes:
//!
//! - **A system call that waited** was interrupted. Most calls return one of the kernel's restart codes, and
//!   the kernel makes the call again when the thread continues. Some return `EINTR` after any stop
//!   (`epoll_wait`, `semop`, `sigtimedwait`, sockets with a timeout). This module gives them the code for
//!   "again, unless a handler runs". A call with a timeout then waits for its whole timeout once more.
//! - **A restartable sequence** of the program must not continue, since the thread left the CPU inside it.
//!   The kernel forgets the sequence if the thread runs other code meanwhile. So this module makes the thread
//!   continue at the sequence's abort address.

use libc::user_regs_struct as Registers;

/// The kernel's code for "make the call again, unless a handler runs".
const ERESTARTNOHAND: i64 = -514;

/// `io_pgetevents`, which the libc crate does not name here.
const IO_PGETEVENTS: libc::c_long = 333;

/// Calls that return `EINTR` after a stop, if they have had no effect yet.
const NEVER_RESTARTED: [libc::c_long; 26] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    IO_PGETEVENTS,
    libc::SYS_io_uring_enter,
    libc::SYS_msgrcv,
    libc::SYS_msgsnd,
    libc::SYS_mq_timedreceive,
    libc::SYS_mq_timedsend,
    // On sockets with a timeout.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
];

/// The descriptor of a restartable sequence (`struct rseq_cs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    pub start: u64,
    pub len: u64,
    pub abort: u64,
}

impl Sequence {
    /// Reads the bytes of a descriptor.
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Self { start: word(8), len: word(16), abort: word(24) }
    }
}

/// Returns whether a system call returns `EINTR` after a stop. A thread that waits in such a call is stopped
/// only if no other thread can be stopped.
pub fn is_never_restarted(call: libc::c_long) -> bool {
    NEVER_RESTARTED.contains(&call)
}

/// Returns the registers with which a thread continues that was stopped with the registers `stopped`.
/// `sequence` is the descriptor that its rseq area points to.
pub fn registers_to_resume(stopped: &Registers, sequence: Option<Sequence>) -> Registers {
    let mut resumed = *stopped;
    let call = stopped.orig_rax as i64;
    if call >= 0 && stopped.rax as i64 == -i64::from(libc::EINTR) && is_never_restarted(call) {
        resumed.rax = ERESTARTNOHAND as u64;
    }
    if let Some(sequence) = sequence
        && stopped.rip.wrapping_sub(sequence.start) < sequence.len
    {
        resumed.rip = sequence.abort;
    }
    resumed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stopped(call: i64, answer: i64, at: u64) -> Registers {
        // SAFETY: all-zero bytes are a valid value of the structure.
        let mut registers = unsafe { std::mem::zeroed::<Registers>() };
        (registers.orig_rax, registers.rax, registers.rip) = (call as u64, answer as u64, at);
        registers
    }

    #[test]
    fn a_wait_that_the_stop_broke_off_is_made_again() {
        let resumed = registers_to_resume(&stopped(libc::SYS_epoll_wait, -4, 9), None);
        assert_eq!((resumed.rax as i64, resumed.rip), (-514, 9));
    }

    #[test]
    fn other_answers_and_other_calls_stay() {
        for (call, answer) in [(libc::SYS_epoll_wait, 1), (libc::SYS_close, -4), (-1, -4), (202, -512)] {
            let resumed = registers_to_resume(&stopped(call, answer, 9), None);
            assert_eq!(resumed.rax as i64, answer);
        }
    }

    #[test]
    fn a_restartable_sequence_is_aborted_from_its_first_to_its_last_instruction() {
        let sequence = Some(Sequence { start: 100, len: 10, abort: 500 });
        for (at, expected) in [(99, 99), (100, 500), (109, 500), (110, 110)] {
            assert_eq!(registers_to_resume(&stopped(-1, 0, at), sequence).rip, expected);
        }
    }
}
