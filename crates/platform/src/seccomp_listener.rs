//! The listener of a seccomp filter: it gets system calls of other processes before they are made, and
//! answers them.
//!
//! A thread whose call was received waits until it is answered, and only a fatal signal ends that wait. If
//! the last copy of the descriptor is closed, waiting and later calls fail with `ENOSYS`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The kernel's name for x86-64.
pub const X86_64: u32 = 0xc000_003e;
/// The kernel's name for 32-bit x86.
pub const X86: u32 = 0x4000_0003;

/// The flags with which a filter for [`Listener`] is installed: in all threads of the process or in none; the
/// call returns the descriptor; a thread whose call was received takes no signal until it is answered.
pub const FILTER_FLAGS: u64 = TSYNC | NEW_LISTENER | TSYNC_ESRCH | WAIT_KILLABLE;
const TSYNC: u64 = 1;
const NEW_LISTENER: u64 = 1 << 3;
const TSYNC_ESRCH: u64 = 1 << 4;
const WAIT_KILLABLE: u64 = 1 << 5;

const RECEIVE: u64 = request(3, 0, size_of::<Notification>());
const SEND: u64 = request(3, 1, size_of::<Response>());
const IS_VALID: u64 = request(1, 2, size_of::<u64>());
/// A response's flag: make the call as it is.
const GO_ON: u32 = 1;

const fn request(direction: u64, number: u64, bytes: usize) -> u64 {
    direction << 30 | (bytes as u64) << 16 | (b'!' as u64) << 8 | number
}

/// `struct seccomp_notif`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Notification {
    id: u64,
    tid: u32,
    flags: u32,
    number: i32,
    architecture: u32,
    instruction: u64,
    arguments: [u64; 6],
}

/// `struct seccomp_notif_resp`.
#[repr(C)]
#[derive(Debug)]
struct Response {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// A call that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    id: u64,
    /// The thread that makes the call.
    pub tid: u32,
    /// The number of the call, in its architecture.
    pub number: i64,
    /// [`X86_64`] or [`X86`].
    pub architecture: u32,
    /// The arguments.
    pub arguments: [u64; 6],
}

/// The descriptor of a filter.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Listener {
    fn from(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }
}

impl Listener {
    /// Waits for a call, and receives it.
    ///
    /// Fails with `NotFound` if the caller has ended meanwhile, and with the kernel's error otherwise.
    pub fn receive(&self) -> io::Result<Asked> {
        let mut told = Notification::default();
        self.control(RECEIVE, &raw mut told as usize)?;
        let Notification { id, tid, number, architecture, arguments, .. } = told;
        Ok(Asked { id, tid, number: number.into(), architecture, arguments })
    }

    /// Answers a call by a value, or by an error number below zero. The call itself is not made.
    ///
    /// Fails with `NotFound` if the caller has ended.
    pub fn answer(&self, asked: &Asked, value: i64) -> io::Result<()> {
        let is_error = (-4095..0).contains(&value);
        let (value, error) = if is_error { (0, value as i32) } else { (value, 0) };
        self.send(&Response { id: asked.id, value, error, flags: 0 })
    }

    /// Lets the kernel make a call as it is.
    ///
    /// Fails with `NotFound` if the caller has ended.
    pub fn let_go_on(&self, asked: &Asked) -> io::Result<()> {
        self.send(&Response { id: asked.id, value: 0, error: 0, flags: GO_ON })
    }

    /// Returns whether the caller still waits. Only then is [`Asked::tid`] the thread that asked.
    pub fn is_waiting(&self, asked: &Asked) -> bool {
        self.control(IS_VALID, &raw const asked.id as usize).is_ok()
    }

    fn send(&self, response: &Response) -> io::Result<()> {
        self.control(SEND, std::ptr::from_ref(response) as usize)
    }

    fn control(&self, request: u64, data: usize) -> io::Result<()> {
        // SAFETY: each caller passes the address of a live value of the type that the request number stands
        // for.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), request, data) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Returns whether this process may install a filter with a listener: Linux 5.19 or later, and no filter that
/// forbids it. Installs nothing.
///
/// Fails with the kernel's error.
pub fn may_listen() -> io::Result<()> {
    const SET_MODE_FILTER: libc::c_long = 1;
    // SAFETY: the kernel finds that there is no program at zero, and does nothing.
    let answer = unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, FILTER_FLAGS, 0) };
    let error = io::Error::last_os_error();
    // The kernel looks at the flags first.
    if answer == -1 && error.raw_os_error() == Some(libc::EFAULT) { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_kernel() {
        assert_eq!((size_of::<Notification>(), size_of::<Response>()), (80, 24));
        assert_eq!((RECEIVE, SEND, IS_VALID), (0xc050_2100, 0xc018_2101, 0x4008_2102));
    }

    #[test]
    fn the_probe_answers_and_installs_nothing() {
        let count = || {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            status.lines().find(|line| line.starts_with("Seccomp_filters:")).map(str::to_owned)
        };
        let before = count();
        let _ = may_listen();
        assert_eq!(count(), before);
    }
}
