//! Errors of writeback: each opener of a file learns of each error once.
//!
//! A write can fail long after the call that stored the bytes. The file then counts up, and every open file
//! keeps the count that it has seen. A sync that finds another count reports the error, and sees it from
//! then on. This is Linux's rule (`lib/errseq.c`, *errseq: add support for ...*, 4.13), without its trick
//! to share a word with the error's number: a lock guards both, because errors are rare.
//!
//! An error that no opener has seen yet is reported to an opener that comes later, too. So an error between a
//! close and the next open is not lost.

use std::io;

use rustix::io::Errno;

use crate::sync::{AtomicU64, Mutex, Ordering};

/// The errors of one file.
#[derive(Debug, Default)]
pub(crate) struct ErrorSequence {
    /// The number of errors so far. Read without the lock by those who have seen them all.
    count: AtomicU64,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    error: Option<Errno>,
    /// Whether some opener has been told of the last error.
    is_reported: bool,
}

/// The errors that an opener has seen.
#[derive(Debug, Default)]
pub(crate) struct SeenErrors(AtomicU64);

impl ErrorSequence {
    /// Notes an error.
    pub(crate) fn note(&self, error: &io::Error) {
        let mut last = self.last.lock();
        *last = Last { error: Errno::from_io_error(error).or(Some(Errno::IO)), is_reported: false };
        // Release: an opener that sees the new count finds the error.
        self.count.fetch_add(1, Ordering::Release);
    }

    /// Returns what a new opener has seen.
    pub(crate) fn sample(&self) -> SeenErrors {
        let last = self.last.lock();
        let count = self.count.load(Ordering::Relaxed);
        let is_news = last.error.is_some() && !last.is_reported;
        SeenErrors(AtomicU64::new(count - u64::from(is_news)))
    }

    /// Returns the last error, if the opener has not seen it yet. It has seen it then.
    pub(crate) fn check(&self, seen: &SeenErrors) -> Option<io::Error> {
        // Acquire: pairs with the release in `note`.
        if self.count.load(Ordering::Acquire) == seen.0.load(Ordering::Relaxed) {
            return None;
        }
        let mut last = self.last.lock();
        let count = self.count.load(Ordering::Relaxed);
        // Two threads of one opener may sync at once. The lock lets one of them report.
        if seen.0.swap(count, Ordering::Relaxed) == count {
            return None;
        }
        last.is_reported = true;
        last.error.map(io::Error::from)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn failed(errors: &ErrorSequence, seen: &SeenErrors) -> Option<i32> {
        errors.check(seen).and_then(|error| error.raw_os_error())
    }

    #[test]
    fn each_opener_learns_of_each_error_once() {
        let errors = ErrorSequence::default();
        let (one, other) = (errors.sample(), errors.sample());
        assert_eq!(failed(&errors, &one), None);
        errors.note(&io::Error::from_raw_os_error(5));
        assert_eq!(failed(&errors, &one), Some(5));
        assert_eq!((failed(&errors, &one), failed(&errors, &other)), (None, Some(5)));
        errors.note(&io::Error::from_raw_os_error(28));
        errors.note(&io::Error::from_raw_os_error(5));
        assert_eq!((failed(&errors, &other), failed(&errors, &other)), (Some(5), None), "the last one");
    }

    #[test]
    fn an_error_that_nobody_has_seen_waits_for_the_next_opener() {
        let errors = ErrorSequence::default();
        errors.note(&io::Error::from_raw_os_error(5));
        let first = errors.sample();
        assert_eq!(failed(&errors, &first), Some(5));
        let second = errors.sample();
        assert_eq!(failed(&errors, &second), None, "somebody has been told");
    }
}
