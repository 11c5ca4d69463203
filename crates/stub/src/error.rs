//! Errors, with a kind for the program and a sentence for the user.

use std::fmt;
use std::io;

use octavo_platform::refusal;
use rustix::io::Errno;

use crate::message::Message;
use crate::reasons;
use crate::tracee::NoStop;

/// The kind of an [`InjectError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InjectErrorKind {
    /// This process may not trace the program.
    NotPermitted,
    /// A debugger, or another runner, traces the program.
    Traced,
    /// The program has ended, or is ending.
    Gone,
    /// The program gets no userfaultfd, or the kernel's userfaultfd lacks a feature.
    UserfaultfdUnavailable,
    /// A seccomp filter of the program refuses a call that a mover needs.
    Seccomp,
    /// This code cannot serve a program of this kind.
    Unsupported,
    /// No thread of the program could be stopped in time.
    Stuck,
    /// The descriptor of a fork's child belongs to the memory of another process.
    AnotherProcess,
    /// Events of a fork's child are unread, or the process is starting another program. Read the events, and
    /// try again.
    Changing,
    /// The kernel refused a resource.
    System,
}

/// The reason why a program has no mover.
#[derive(Clone, Debug)]
pub struct InjectError {
    kind: InjectErrorKind,
    sentence: String,
}

impl InjectError {
    pub(crate) fn new(kind: InjectErrorKind, reason: &Message, words: &[(&str, &dyn fmt::Display)]) -> Self {
        Self { kind, sentence: reason.with(words) }
    }

    pub(crate) fn gone() -> Self {
        Self::new(InjectErrorKind::Gone, &reasons::ENDED, &[])
    }

    /// Makes an error of the kernel in a step that the sentence names.
    pub(crate) fn system(step: &str, error: impl Into<io::Error>) -> Self {
        let error = refusal::in_words(&error.into());
        let words: [(&str, &dyn fmt::Display); 2] = [("step", &step), ("error", &error)];
        Self::new(InjectErrorKind::System, &reasons::KERNEL_REFUSED, &words)
    }

    /// Returns the kind, for a program to act on.
    pub fn kind(&self) -> InjectErrorKind {
        self.kind
    }
}

impl fmt::Display for InjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for InjectError {}

/// The reason why a mover did not serve an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MoverError {
    /// The mover has ended. Some calls of the batch may have been made.
    Ended,
    /// The mover gave no answer for a long time, and was ended. Some calls of the batch may have been made.
    Silent,
    /// The batch has too many calls or bytes. No call was made.
    TooLarge,
    /// The kernel refused the runner's wait or wake-up.
    System(Errno),
}

impl fmt::Display for MoverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => {
                f.write_str("the mover has ended; inject another one, and scan the program's pages")
            }
            Self::Silent => f.write_str("the mover gave no answer and was ended; is the program frozen?"),
            Self::TooLarge => f.write_str("the batch is too large; split it"),
            Self::System(error) => write!(f, "waiting for the mover failed: {error}"),
        }
    }
}

impl std::error::Error for MoverError {}

impl From<MoverError> for io::Error {
    fn from(error: MoverError) -> Self {
        let kind = match error {
            MoverError::Ended => io::ErrorKind::BrokenPipe,
            MoverError::Silent => io::ErrorKind::TimedOut,
            MoverError::TooLarge => io::ErrorKind::InvalidInput,
            MoverError::System(error) => return error.into(),
        };
        io::Error::new(kind, error)
    }
}

/// Makes the error for a thread that the kernel refused to trace.
pub(crate) fn refused(error: Errno) -> InjectError {
    match error {
        Errno::PERM | Errno::ACCESS => {
            InjectError::new(InjectErrorKind::NotPermitted, &reasons::MAY_NOT_TRACE, &[])
        }
        Errno::SRCH => InjectError::gone(),
        error => InjectError::system("tracing the program", error),
    }
}

/// Makes the error for a thread that could not be stopped.
pub(crate) fn no_stop(reason: NoStop) -> InjectError {
    match reason {
        NoStop::Gone | NoStop::Refused(Errno::SRCH) => InjectError::gone(),
        NoStop::Refused(error) => refused(error),
        NoStop::Late => InjectError::new(InjectErrorKind::Stuck, &reasons::NO_STOP, &[]),
    }
}
