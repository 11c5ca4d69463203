//! Stops the whole tree for a moment.
//!
//! Processes may start others until they stand still. So the list of processes is read again until it holds
//! no new one.

use std::collections::BTreeMap;
use std::io;

use octavo_platform::proc_text;
use octavo_platform::threads::{of_process, stat_field};
use octavo_stub::Still;

use crate::process::Shared;

/// All processes of a tree, which stand still while this lives.
#[derive(Debug)]
pub(crate) struct Stop {
    held: BTreeMap<u32, Still>,
    /// Processes that this user may not stop, since they have gained rights.
    pub(crate) strangers: Vec<u32>,
}

impl Stop {
    /// Stops all processes that `list` returns, except mappers. Returns `None` if one of them cannot be
    /// stopped for now; all go on then.
    ///
    /// # Errors
    /// Returns the error of `list`.
    pub(crate) fn all(
        list: &mut dyn FnMut() -> io::Result<Vec<u32>>,
        shared: &Shared,
    ) -> io::Result<Option<Self>> {
        let mut stop = Self { held: BTreeMap::new(), strangers: Vec::new() };
        loop {
            let new: Vec<_> = list()?
                .into_iter()
                .filter(|pid| !stop.held.contains_key(pid) && !stop.strangers.contains(pid))
                .filter(|pid| !shared.is_mapper(*pid) && !has_ended(*pid))
                .collect();
            if new.is_empty() {
                return Ok(Some(stop));
            }
            for pid in new {
                match Still::hold(pid, shared.mapper_of(pid).unwrap_or(0)) {
                    Some(still) => drop(stop.held.insert(pid, still)),
                    None if has_ended(pid) => {}
                    None if is_stranger(pid) => stop.strangers.push(pid),
                    None => return Ok(None),
                }
            }
        }
    }

    /// The processes that stand still.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.held.keys().copied().collect()
    }
}

/// Returns whether no thread of a process is left that runs. Its first thread may have ended alone.
fn has_ended(pid: u32) -> bool {
    let has_thread_ended = |tid: u32| {
        let Ok(stat) = proc_text::read(pid, &format!("task/{tid}/stat")) else { return true };
        stat_field(stat.as_bytes(), 3).is_none_or(|state| matches!(state, b"Z" | b"X"))
    };
    has_thread_ended(pid) && of_process(pid).unwrap_or_default().into_iter().all(has_thread_ended)
}

/// Returns whether the kernel keeps a process from this user, as it does with a set-user-id program.
fn is_stranger(pid: u32) -> bool {
    let denied = |error: io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    std::fs::read_link(format!("/proc/{pid}/exe")).is_err_and(denied)
}
