//! Paging of a process's memory through a descriptor of the kernel (`userfaultfd`).
//!
//! A [`Userfaultfd`] belongs to the memory of the process whose task made it. Any process that holds the
//! descriptor may register ranges there, read [events](Event) and fill pages. [`Userfaultfd::move_pages`] is
//! the exception: it works in the owning process alone. Elsewhere, the kernel refuses it with `EINVAL`.
//!
//! **Parts.** A call on a long range may stop in the middle. [`CallProgress`] then holds the number of bytes
//! done and the error. If the kernel stops after a part, it does not say why: the error is `EAGAIN`. A call
//! on the rest then fails with the actual reason.
//!
//! **Waking.** A thread that waits for a page sleeps until it is woken. Filling a page wakes its waiters,
//! unless the caller asks not to wake them. [`Userfaultfd::wake`] only wakes.
//!
//! **Unread events.** While an event of a descriptor is unread, the kernel answers `EAGAIN` to its copies,
//! moves and protections. A caller must read the events before it tries again.
//!
//! Costs: a copy of 4 KiB takes about 1 µs, and zeros take 0.3 µs. A move takes 1 µs for a single page, and
//! 42 ns for each page of a long range.

use std::ffi::CStr;
use std::io;
use std::ops::BitOr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;

mod event;
pub mod wire;

pub use event::{Event, MESSAGES_AT_ONCE};

/// The features that a descriptor should offer, joined by `|`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(u64);

impl Features {
    /// Faults and nothing else.
    pub const NONE: Self = Self(0);
    /// Faults say whether they are stores to write-protected pages (`UFFD_FEATURE_PAGEFAULT_FLAG_WP`).
    pub const WRITE_PROTECT: Self = Self(1);
    /// A fork is an event. The caller needs `CAP_SYS_PTRACE`.
    pub const EVENT_FORK: Self = Self(1 << 1);
    /// The move of a range to another address is an event.
    pub const EVENT_REMAP: Self = Self(1 << 2);
    /// The return of pages to the kernel is an event.
    pub const EVENT_REMOVE: Self = Self(1 << 3);
    /// The unmapping of a range is an event.
    pub const EVENT_UNMAP: Self = Self(1 << 6);
    /// Faults name their thread.
    pub const THREAD_ID: Self = Self(1 << 8);
    /// Faults tell the exact address, not only the page.
    pub const EXACT_ADDRESS: Self = Self(1 << 11);
    /// Write protection also holds for pages that are not present yet.
    pub const PROTECTS_UNPOPULATED: Self = Self(1 << 13);
    /// Pages can be moved (`UFFDIO_MOVE`, Linux 6.8).
    pub const MOVE: Self = Self(1 << 16);

    const NAMES: [(Self, &str); 9] = [
        (Self::WRITE_PROTECT, "write protection"),
        (Self::EVENT_FORK, "fork events"),
        (Self::EVENT_REMAP, "remap events"),
        (Self::EVENT_REMOVE, "remove events"),
        (Self::EVENT_UNMAP, "unmap events"),
        (Self::THREAD_ID, "thread numbers"),
        (Self::EXACT_ADDRESS, "exact addresses"),
        (Self::PROTECTS_UNPOPULATED, "write protection of missing pages"),
        (Self::MOVE, "moving pages (Linux 6.8)"),
    ];

    /// Returns whether all features of `other` are among these.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    fn names(self) -> String {
        let named: Vec<_> =
            Self::NAMES.iter().filter(|(one, _)| self.contains(*one)).map(|(_, n)| *n).collect();
        if named.is_empty() { format!("features {:#x}", self.0) } else { named.join(", ") }
    }
}

impl BitOr for Features {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The link target of a userfaultfd in `/proc/self/fd`.
pub const KIND: &CStr = c"anon_inode:[userfaultfd]";

/// The accesses to a registered range that become faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterMode {
    /// Accesses to missing pages.
    pub missing: bool,
    /// Stores to write-protected pages.
    pub write_protect: bool,
}

/// How far a call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallProgress {
    /// The bytes that are done, from the start of the range.
    pub done_bytes: u64,
    /// The kernel's error, if the range is not done as a whole.
    pub error: Option<Errno>,
}

impl CallProgress {
    /// Reads the two answers of the kernel: the call's own error, and the field of the request. The field
    /// holds an error below zero, or the bytes done. It is 0 if the kernel refused before it began.
    pub fn of_answers(call: Option<Errno>, field: i64) -> Self {
        let done_bytes = field.max(0) as u64;
        let reason = if field < 0 { Some(Errno::from_raw_os_error(-field as i32)) } else { None };
        // The call's own error equals the field's, unless the kernel could not write the field.
        Self { done_bytes, error: call.map(|error| reason.unwrap_or(error)) }
    }

    /// Returns whether the whole range is done.
    pub fn is_whole(self) -> bool {
        self.error.is_none()
    }
}

/// A userfaultfd after its handshake with the kernel. See the [module](self).
#[derive(Debug)]
pub struct Userfaultfd {
    descriptor: OwnedFd,
    features: Features,
}

impl Userfaultfd {
    /// Takes a new descriptor and agrees with the kernel on its features. The descriptor may belong to
    /// another process's memory.
    ///
    /// Fails with `Unsupported`, and the names of the features that this kernel lacks; with
    /// `PermissionDenied` if fork events need a capability; with the kernel's error if the descriptor had its
    /// handshake before, or is no userfaultfd.
    pub fn from_descriptor(descriptor: OwnedFd, features: Features) -> io::Result<Self> {
        let mut request = wire::ApiRequest { version: wire::API_VERSION, features: features.0, calls: 0 };
        // SAFETY: the request is live for the call, and has the type that the call's number stands for.
        match unsafe { control(descriptor.as_fd(), wire::API, &raw mut request) } {
            None => Ok(Self { descriptor, features }),
            Some(Errno::PERM) => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "the kernel reports forks by userfaultfd only to a process with CAP_SYS_PTRACE: run it as root",
            )),
            Some(error) => {
                // The kernel refuses without saying what it lacks. A handshake that asks for nothing tells
                // what it has.
                let mut offer = wire::ApiRequest { version: wire::API_VERSION, features: 0, calls: 0 };
                // SAFETY: as above.
                let told = unsafe { control(descriptor.as_fd(), wire::API, &raw mut offer) }.is_none();
                let missing = Features(features.0 & !offer.features);
                if error == Errno::INVAL && told && missing.0 != 0 {
                    let sentence = format!("this kernel's userfaultfd lacks: {}", missing.names());
                    return Err(io::Error::new(io::ErrorKind::Unsupported, sentence));
                }
                Err(error.into())
            }
        }
    }

    /// Makes a descriptor for the memory of this process: by `/dev/userfaultfd` if this process may open it,
    /// otherwise by the system call.
    ///
    /// Fails like [`from_descriptor`](Self::from_descriptor), and with the kernel's error if this process may
    /// not have a descriptor.
    pub fn of_this_process(features: Features) -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        let by_device = open_device().and_then(|device| {
            // SAFETY: the call takes numbers only.
            let made = unsafe { libc::ioctl(device.as_raw_fd(), wire::NEW, flags as usize) };
            // SAFETY: the kernel has just made this descriptor for the caller.
            if made < 0 { Err(io::Error::last_os_error()) } else { Ok(unsafe { OwnedFd::from_raw_fd(made) }) }
        });
        let descriptor = match by_device {
            Ok(descriptor) => descriptor,
            // The system call would fail, too, but perhaps for want of a right that the device does not need.
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE)) => {
                return Err(error);
            }
            Err(_) => {
                // SAFETY: the call takes numbers only.
                let made = unsafe { libc::syscall(libc::SYS_userfaultfd, flags as usize) };
                if made < 0 {
                    return Err(io::Error::last_os_error());
                }
                // SAFETY: the kernel has just made this descriptor for the caller.
                unsafe { OwnedFd::from_raw_fd(made as i32) }
            }
        };
        Self::from_descriptor(descriptor, features)
    }

    /// Returns whether this process gets a userfaultfd for accesses of its own code alone, not of the kernel
    /// on its behalf. That needs no right, unless a seccomp filter forbids the call.
    pub fn is_allowed_in_user_mode() -> bool {
        const USER_MODE_ONLY: i32 = 1;
        // SAFETY: the call takes numbers only.
        let made = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) };
        // SAFETY: the kernel has just made this descriptor for the caller.
        made >= 0 && unsafe { OwnedFd::from_raw_fd(made as i32) }.as_raw_fd() >= 0
    }

    /// Takes a descriptor that a fork event brought. It has the features of the parent's descriptor, and
    /// needs no handshake.
    pub fn of_fork(descriptor: OwnedFd, features: Features) -> Self {
        Self { descriptor, features }
    }

    /// Returns whether the descriptor's memory still exists. The memory ends with the last process that
    /// shares it.
    pub fn is_alive(&self) -> bool {
        is_alive(self.as_fd())
    }

    /// Returns whether the memory of any userfaultfd in this process still exists, whatever its origin.
    /// Returns true if this cannot be determined.
    pub fn is_any_alive() -> bool {
        let Ok(descriptors) = std::fs::read_dir("/proc/self/fd") else { return true };
        let mut kinds = descriptors.flatten().filter(|entry| {
            std::fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str().as_bytes() == KIND.to_bytes())
        });
        kinds.any(|entry| {
            let number = entry.file_name().to_str().and_then(|number| number.parse().ok());
            // SAFETY: the number is used for this one call, which finds a descriptor or none. The call
            // changes no memory.
            number.is_none_or(|number| is_alive(unsafe { BorrowedFd::borrow_raw(number) }))
        })
    }

    /// Returns another descriptor of the same userfaultfd.
    ///
    /// Fails with the kernel's error if the process has too many descriptors.
    pub fn share(&self) -> io::Result<Self> {
        Ok(Self { descriptor: self.descriptor.try_clone()?, features: self.features })
    }

    /// Returns the features of the handshake.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Makes accesses to a range raise faults. The range consists of whole pages, all mapped.
    ///
    /// Fails with the kernel's error: `EBUSY` if another descriptor has a part, `EINVAL` if a mapping in the
    /// range cannot be registered, `ENOMEM` if the process has ended.
    ///
    /// # Safety
    ///
    /// A range of *this* process must be memory whose users expect that an access blocks, and that another
    /// thread decides what missing pages hold. A range of another process is always fine: this process makes
    /// no accesses there.
    pub unsafe fn register(&self, start: u64, len: u64, mode: RegisterMode) -> io::Result<()> {
        let mut bits = 0;
        if mode.missing {
            bits |= wire::REGISTER_MISSING;
        }
        if mode.write_protect {
            bits |= wire::REGISTER_WRITE_PROTECT;
        }
        let mut request =
            wire::RegisterRequest { range: wire::UffdRange { start, len }, mode: bits, calls: 0 };
        // SAFETY: the request is live for the call. The caller is responsible for the range.
        check(unsafe { control(self.as_fd(), wire::REGISTER, &raw mut request) })
    }

    /// Ends the registration of a range and wakes its waiters. Missing pages read as zeros from then on.
    ///
    /// Fails with the kernel's error.
    pub fn unregister(&self, start: u64, len: u64) -> io::Result<()> {
        let mut request = wire::UffdRange { start, len };
        // SAFETY: the request is live for the call. Users of a registered range accept any content of its
        // pages.
        check(unsafe { control(self.as_fd(), wire::UNREGISTER, &raw mut request) })
    }

    /// Fills missing pages of a registered range with a copy. A `protected` page raises a fault at its first
    /// store. `wake` wakes the threads that wait for the pages.
    ///
    /// The error is `EEXIST` at a page that is present, `EAGAIN` if events are unread or the range was done
    /// in part, `ENOENT` if the range is not registered, and `ESRCH` if the process has ended.
    ///
    /// # Safety
    ///
    /// `from` is readable memory of this process for `len` bytes. Other threads may write it meanwhile.
    pub unsafe fn copy(
        &self,
        to: u64,
        from: *const u8,
        len: u64,
        protected: bool,
        wake: bool,
    ) -> CallProgress {
        let mut mode = 0;
        if protected {
            mode |= wire::COPY_PROTECTED;
        }
        if !wake {
            mode |= wire::COPY_WITHOUT_WAKING;
        }
        let mut request = wire::CopyRequest { to, from: from as u64, len, mode, copied: 0 };
        // SAFETY: the request is live for the call, and the caller is responsible for the source. The kernel
        // fills only pages that are missing in a registered range.
        let call = unsafe { control(self.as_fd(), wire::COPY, &raw mut request) };
        CallProgress::of_answers(call, request.copied)
    }

    /// Fills missing pages of a registered range with zeros. The errors are those of [`copy`](Self::copy).
    pub fn zero(&self, start: u64, len: u64, wake: bool) -> CallProgress {
        let mode = if wake { 0 } else { wire::ZERO_WITHOUT_WAKING };
        let mut request = wire::ZeroRequest { range: wire::UffdRange { start, len }, mode, zeroed: 0 };
        // SAFETY: the request is live for the call. The kernel fills only pages that are missing in a
        // registered range.
        let call = unsafe { control(self.as_fd(), wire::ZERO, &raw mut request) };
        CallProgress::of_answers(call, request.zeroed)
    }

    /// Protects the pages of a range from stores, or allows stores again and wakes their waiters. The range
    /// must be registered for write protection.
    ///
    /// Fails with the kernel's error: `EAGAIN` if events are unread, `ENOENT` if a part is not registered for
    /// it.
    pub fn write_protect(&self, start: u64, len: u64, on: bool) -> io::Result<()> {
        let mode = if on { wire::PROTECT_ON } else { 0 };
        let mut request = wire::ProtectRequest { range: wire::UffdRange { start, len }, mode };
        // SAFETY: the request is live for the call. Protection delays stores and changes no bytes.
        check(unsafe { control(self.as_fd(), wire::WRITE_PROTECT, &raw mut request) })
    }

    /// Wakes the threads that wait for pages of a range. Each tries its access again.
    ///
    /// Fails with the kernel's error.
    pub fn wake(&self, start: u64, len: u64) -> io::Result<()> {
        let mut request = wire::UffdRange { start, len };
        // SAFETY: the request is live for the call.
        check(unsafe { control(self.as_fd(), wire::WAKE, &raw mut request) })
    }

    /// Moves pages without a copy, from any private anonymous range into missing pages of a registered one. A
    /// moved page leaves a missing page behind.
    ///
    /// The error is `EINVAL` in any process but the owner, for locked memory, and for more than one mapping
    /// on either side; `EEXIST` at a page that is present; `EBUSY` at a page that is pinned; `EAGAIN` as in
    /// [`copy`](Self::copy).
    ///
    /// # Safety
    ///
    /// Both ranges are memory of this process whose users expect pages to vanish and appear.
    pub unsafe fn move_pages(&self, to: u64, from: u64, len: u64) -> CallProgress {
        let mode = wire::MOVE_ALLOWS_HOLES;
        let mut request = MoveRequest { to, from, len, mode, moved: 0 };
        // SAFETY: the request is live for the call. The caller is responsible for the ranges.
        let call = unsafe { control(self.as_fd(), wire::MOVE, &raw mut request) };
        CallProgress::of_answers(call, request.moved)
    }
}

pub use wire::MoveRequest;

impl AsFd for Userfaultfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Opens `/dev/userfaultfd`. A process that has it open may make userfaultfds, and may pass it to other
/// processes.
///
/// Fails with the kernel's error: `NotFound` before Linux 6.1, `PermissionDenied` if the file's mode forbids
/// it.
pub fn open_device() -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    Ok(rustix::fs::open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// # Safety
///
/// `request` points to a live structure of the type that the number stands for. The caller is responsible for
/// the call's effect on the memory that the structure names.
unsafe fn control<T>(descriptor: BorrowedFd<'_>, number: u64, request: *mut T) -> Option<Errno> {
    // SAFETY: the caller's promise.
    if unsafe { libc::ioctl(descriptor.as_raw_fd(), number, request) } >= 0 {
        return None;
    }
    Some(Errno::from_io_error(&io::Error::last_os_error()).expect("the error of a system call has a number"))
}

/// Returns whether the memory of a userfaultfd exists. Returns true for a descriptor of another kind.
fn is_alive(descriptor: BorrowedFd<'_>) -> bool {
    // Nothing is registered at this address, so the kernel changes nothing. It fails with `ESRCH` only if the
    // memory is gone.
    const NOWHERE: u64 = 1 << 16;
    let range = wire::UffdRange { start: NOWHERE, len: crate::PAGE_BYTES as u64 };
    let mut request = wire::ProtectRequest { range, mode: 0 };
    // SAFETY: the request is live for the call, which changes nothing where nothing is registered.
    unsafe { control(descriptor, wire::WRITE_PROTECT, &raw mut request) != Some(Errno::SRCH) }
}

fn check(error: Option<Errno>) -> io::Result<()> {
    error.map_or(Ok(()), |error| Err(error.into()))
}

#[cfg(test)]
mod tests;
