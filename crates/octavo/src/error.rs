//! One opaque error. It has a kind, and a sentence that says what went wrong and what to do.

use std::fmt;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::units::bytes_for_people;

/// Classifies an error, for a program to act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ErrorKind {
    /// The budget is below the minimum, above the machine's memory, or below the memory that is in use and
    /// cannot be moved out. Also: a quota is below 2 MiB.
    InvalidBudget,
    /// The range, index or offset is empty, unaligned, too long, or outside the range that it belongs to.
    InvalidRange,
    /// The range overlaps a region that is already mapped.
    AlreadyMapped,
    /// No region is mapped at this address.
    NotMapped,
    /// The access is not allowed here. The region forbids it, the pin is for reading, a guarded region was
    /// accessed without a guard, or a plain one with a guard.
    Protected,
    /// The budget is used up, and no more pages can be moved out.
    OutOfMemory,
    /// The space is at its own quota, and none of its pages can be moved out.
    QuotaExceeded,
    /// A swap area could not be created or opened.
    SwapUnavailable,
    /// No swap area has room left, or its file system has none.
    SwapFull,
    /// The swap device failed to write. The page stays in memory.
    SwapWrite,
    /// The swap device failed to read. The page stays on the device, and you may try the access again.
    SwapRead,
    /// The swap device did not answer in time. You may try the access again.
    TimedOut,
    /// The bytes that came back from swap are not those that were written there. Only this page is lost.
    Corrupt,
    /// The page has as many pins as can be counted, or the space's pins and guards hold as much memory as
    /// they may keep from other spaces.
    TooManyPins,
    /// Pins, guards, spaces or transfers hold something that the call needs. Drop them, or try again.
    Busy,
    /// A block of frames was freed twice or with the wrong order, or was never allocated.
    InvalidFree,
    /// This process was forked from the one that built the manager, and cannot use that manager.
    ForkedChild,
    /// The kernel or the configuration does not offer this operation.
    Unsupported,
    /// The operating system refused a resource.
    System,
    /// The file or disk named as a swap area holds something that is not Octavo's. It was left unchanged.
    SwapNotEmpty,
    /// A file could not be opened.
    FileUnavailable,
    /// A file could not be read. You may try again.
    FileRead,
    /// A file could not be written, or was not opened for writing.
    FileWrite,
    /// The page is behind the end of its file.
    BeyondEnd,
}

impl ErrorKind {
    /// All kinds.
    #[cfg(all(test, not(loom)))]
    const ALL: [Self; 24] = [
        Self::InvalidBudget,
        Self::InvalidRange,
        Self::AlreadyMapped,
        Self::NotMapped,
        Self::Protected,
        Self::OutOfMemory,
        Self::QuotaExceeded,
        Self::SwapUnavailable,
        Self::SwapFull,
        Self::SwapWrite,
        Self::SwapRead,
        Self::TimedOut,
        Self::Corrupt,
        Self::TooManyPins,
        Self::Busy,
        Self::InvalidFree,
        Self::ForkedChild,
        Self::Unsupported,
        Self::System,
        Self::SwapNotEmpty,
        Self::FileUnavailable,
        Self::FileRead,
        Self::FileWrite,
        Self::BeyondEnd,
    ];

    /// Returns the name of the kind, spelled as in the code. It never changes.
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidBudget => "InvalidBudget",
            Self::InvalidRange => "InvalidRange",
            Self::AlreadyMapped => "AlreadyMapped",
            Self::NotMapped => "NotMapped",
            Self::Protected => "Protected",
            Self::OutOfMemory => "OutOfMemory",
            Self::QuotaExceeded => "QuotaExceeded",
            Self::SwapUnavailable => "SwapUnavailable",
            Self::SwapFull => "SwapFull",
            Self::SwapWrite => "SwapWrite",
            Self::SwapRead => "SwapRead",
            Self::TimedOut => "TimedOut",
            Self::Corrupt => "Corrupt",
            Self::TooManyPins => "TooManyPins",
            Self::Busy => "Busy",
            Self::InvalidFree => "InvalidFree",
            Self::ForkedChild => "ForkedChild",
            Self::Unsupported => "Unsupported",
            Self::System => "System",
            Self::SwapNotEmpty => "SwapNotEmpty",
            Self::FileUnavailable => "FileUnavailable",
            Self::FileRead => "FileRead",
            Self::FileWrite => "FileWrite",
            Self::BeyondEnd => "BeyondEnd",
        }
    }
}

/// Reports what happened and what to do. A `main` that returns it prints both, since the `Debug` form has
/// the same text.
#[derive(Clone)]
pub struct Error {
    // The error is one word, so that the result of a hit path travels in registers.
    details: Box<Details>,
}

#[derive(Clone)]
struct Details {
    kind: ErrorKind,
    message: String,
}

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Makes an error, for crates that build on the engine. `message` says what happened and, after a
    /// semicolon, what to do.
    #[cold]
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { details: Box::new(Details { kind, message: message.into() }) }
    }

    /// Returns the kind of the error, for a program to act on.
    pub fn kind(&self) -> ErrorKind {
        self.details.kind
    }

    /// Returns what happened, without the advice. For programs whose users know nothing of this library.
    pub fn what_happened(&self) -> &str {
        self.details.message.split(';').next().unwrap_or_default()
    }

    /// Makes an error from a refusal by the system. If the reason may be a limit on threads or a lack of
    /// addresses, the text says what to do.
    #[cold]
    pub(crate) fn system(what: &str, error: &std::io::Error) -> Self {
        Self::new(ErrorKind::System, format!("{what}: {error}{}", Limits::now().remedy(error)))
    }

    #[cold]
    pub(crate) fn forked_child() -> Self {
        Self::new(
            ErrorKind::ForkedChild,
            "this manager belongs to the parent process; build a new manager in the child, or exec",
        )
    }
}

/// The limits that may be the reason for a refusal. `None` means that there is no such limit.
#[derive(Clone, Copy)]
struct Limits {
    processes: Option<u64>,
    address_bytes: Option<u64>,
}

impl Limits {
    fn now() -> Self {
        let of = |resource| getrlimit(resource).current;
        Self { processes: of(Resource::Nproc), address_bytes: of(Resource::As) }
    }

    /// Says what to do if the kernel had no memory or addresses for a mapping, or no thread or no stack for
    /// one. Otherwise the text is empty.
    fn remedy(self, error: &std::io::Error) -> String {
        let errno = Errno::from_io_error(error);
        // Only the start of a thread fails with this error.
        let processes = self.processes.filter(|_| errno == Some(Errno::AGAIN)).map(|limit| {
            format!(
                "; this user may have {limit} processes (RLIMIT_NPROC, ulimit -u), threads included: end some, or \
                 raise that limit"
            )
        });
        let is_for_want_of_room = matches!(errno, Some(Errno::NOMEM | Errno::AGAIN))
            || error.kind() == std::io::ErrorKind::OutOfMemory;
        let addresses = match self.address_bytes {
            _ if !is_for_want_of_room => None,
            Some(limit) => Some(format!(
                "; this process may have {} of addresses (`ulimit -v`, RLIMIT_AS): raise that limit, or build the manager \
                 with a smaller budget_bytes, max_budget_bytes or swap limit",
                bytes_for_people(limit)
            )),
            None if processes.is_some() => None,
            None => Some(
                "; build the manager with a smaller budget_bytes, max_budget_bytes or swap limit".to_string(),
            ),
        };
        processes.into_iter().chain(addresses).collect()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.details.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind().name(), self.details.message)
    }
}

impl std::error::Error for Error {}

/// Keeps the error inside. `error.get_ref().and_then(|inner| inner.downcast_ref::<octavo::Error>())`
/// returns it, with its kind.
impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::OutOfMemory | ErrorKind::QuotaExceeded | ErrorKind::SwapFull => {
                std::io::ErrorKind::OutOfMemory
            }
            ErrorKind::Protected => std::io::ErrorKind::PermissionDenied,
            ErrorKind::InvalidRange | ErrorKind::InvalidBudget => std::io::ErrorKind::InvalidInput,
            ErrorKind::NotMapped => std::io::ErrorKind::NotFound,
            ErrorKind::TimedOut => std::io::ErrorKind::TimedOut,
            ErrorKind::Corrupt => std::io::ErrorKind::InvalidData,
            _ => std::io::ErrorKind::Other,
        };
        std::io::Error::new(kind, error)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_written_by_their_names() {
        for kind in ErrorKind::ALL {
            assert_eq!(format!("{kind:?}"), kind.name());
        }
    }
    #[test]
    fn the_limits_that_may_be_the_reason_are_named_with_their_values() {
        let (no_thread, no_memory) = (Errno::AGAIN.into(), Errno::NOMEM.into());
        let both = Limits { processes: Some(7), address_bytes: Some(64 << 20) };
        let says = |told: String, first: &str, then: Option<&str>| {
            let parts: Vec<_> = told.split("; ").collect();
            assert!(parts[0].is_empty() && parts[1].starts_with(first), "{told}");
            assert_eq!(parts.len(), if then.is_some() { 3 } else { 2 }, "{told}");
            assert!(then.is_none_or(|then| parts[2].starts_with(then)), "{told}");
        };
        let (processes, addresses) = (
            "this user may have 7 processes (RLIMIT_NPROC, ulimit -u)",
            "this process may have 64 MiB of addresses",
        );
        says(both.remedy(&no_thread), processes, Some(addresses));
        says(both.remedy(&no_memory), addresses, None);
        says(Limits { address_bytes: None, ..both }.remedy(&no_thread), processes, None);
        says(Limits { processes: None, ..both }.remedy(&no_thread), addresses, None);
        let none = Limits { processes: None, address_bytes: None };
        says(none.remedy(&no_thread), "build the manager with a smaller budget_bytes", None);
        assert_eq!(both.remedy(&Errno::PERM.into()), "");
    }
}
