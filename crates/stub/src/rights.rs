//! The rights that a runner needs to manage the programs that it starts.

use std::fs;
use std::io::ErrorKind;

use octavo_platform::userfaultfd::{Features, Userfaultfd};
use rustix::thread::{CapabilitySet, capabilities};

use crate::error::{InjectError, InjectErrorKind, refused};
use crate::reasons;
use crate::tracee::Tracee;

/// Checks whether this process gets a userfaultfd with all features, which a mover needs.
///
/// # Errors
/// An error that says why not.
pub fn look_for_userfaultfd() -> Result<(), InjectError> {
    Userfaultfd::of_this_process(moves() | events()).map(drop).map_err(|error| no_userfaultfd(&error))
}

/// Checks whether this process may trace another one, by tracing it for a moment.
///
/// # Errors
/// An error that says why not.
pub fn may_trace(pid: u32) -> Result<(), InjectError> {
    // The tracing ends with the thread.
    let work = std::thread::spawn(move || Tracee::seize(pid, 0).map(drop).map_err(refused));
    work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Checks whether this process may manage the programs that it starts: it needs a userfaultfd with all
/// features, and the right to trace them. The programs are assumed to have the same rights, so injection may
/// still fail. Costs some system calls.
///
/// # Errors
/// An error for the first missing right.
pub fn look_for_rights() -> Result<(), InjectError> {
    look_for_userfaultfd()?;
    look_for_tracing()
}

/// Checks whether this process may trace the programs that it starts.
///
/// # Errors
/// An error that says why not.
pub fn look_for_tracing() -> Result<(), InjectError> {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let scope = scope.trim();
    let may_all = || capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE));
    // If the scope is 1, a process may still trace the programs that it starts.
    if scope == "3" || scope == "2" && !may_all() {
        let words: [(&str, &dyn std::fmt::Display); 1] = [("scope", &scope)];
        return Err(InjectError::new(InjectErrorKind::NotPermitted, &reasons::NO_TRACING, &words));
    }
    Ok(())
}

/// Makes the error that says why there is no userfaultfd with all features.
pub(crate) fn no_userfaultfd(error: &std::io::Error) -> InjectError {
    let kind = InjectErrorKind::UserfaultfdUnavailable;
    match error.kind() {
        // The handshake itself has made this error, with a sentence of its own.
        ErrorKind::PermissionDenied if error.raw_os_error().is_none() => {
            InjectError::new(kind, &reasons::NO_FORK_EVENTS, &[])
        }
        ErrorKind::Unsupported if error.raw_os_error().is_none() => {
            InjectError::new(kind, &reasons::OLD_KERNEL, &[("why", error)])
        }
        _ => InjectError::new(kind, &reasons::NO_USERFAULTFD, &[("why", error)]),
    }
}

/// The features of both descriptors: protecting pages and moving them.
pub(crate) fn moves() -> Features {
    Features::WRITE_PROTECT | Features::MOVE
}

/// The events that descriptor A reports besides faults.
pub(crate) fn events() -> Features {
    Features::EVENT_FORK
        | Features::EVENT_REMAP
        | Features::EVENT_REMOVE
        | Features::EVENT_UNMAP
        | Features::THREAD_ID
}
