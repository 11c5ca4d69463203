//! A process with a mapper.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use octavo_platform::process_memory::share_memory;
use octavo_stub::{CALLS, Call, Interrupted, Mapper, MoverError, UNREPORTED};

use crate::mappings;

/// Why the memory of a process is not managed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

/// A process whose memory is converted.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) mapper: Mapper,
    /// Changes whenever the program gives its memory flags. Relaxed: a change is made before the call is let
    /// go on, and read while the thread that made the call is stopped.
    changes: AtomicU64,
    /// Whether a device may write to its memory at any time. Same order.
    is_pinned: AtomicBool,
}

impl Process {
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    pub(crate) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.is_pinned.load(Ordering::Relaxed)
    }

    pub(crate) fn pin(&self) {
        self.is_pinned.store(true, Ordering::Relaxed);
    }

    /// Returns whether the mapper is in the memory of this process. After `exec` it is in the old one.
    pub(crate) fn is_current(&self) -> bool {
        share_memory(self.pid, self.mapper.pid())
    }

    /// Makes any number of calls, none of which is reported. Returns the error number of the first that
    /// failed, below zero, or else 0.
    pub(crate) fn call(&self, calls: &mut [Call]) -> Result<i64, MoverError> {
        for call in &mut *calls {
            if [libc::SYS_madvise, libc::SYS_mremap].contains(&call.number) {
                call.arguments[5] = UNREPORTED;
            }
        }
        for calls in calls.chunks_mut(CALLS) {
            self.mapper.call(calls)?;
        }
        Ok(calls.iter().map(|call| call.answer).find(|answer| (-4095..0).contains(answer)).unwrap_or(0))
    }
}

/// The processes that the cleaner and the listener's threads both use.
#[derive(Debug)]
pub(crate) struct Shared {
    processes: Mutex<BTreeMap<u32, Arc<Process>>>,
    pub(crate) file: File,
    /// How the kernel names the file in lists of mappings.
    pub(crate) name: String,
    /// Set if the bytes of a program are not right any more. Its tree has to end.
    broken: Mutex<Option<String>>,
    /// Held while processes are traced: a thread has one tracer at most.
    tracing: Mutex<()>,
}

impl Shared {
    pub(crate) fn new(file: File, name: String) -> Self {
        Self { processes: Mutex::default(), file, name, broken: Mutex::default(), tracing: Mutex::default() }
    }

    /// Puts a mapper beside a process, and takes the process in.
    ///
    /// # Errors
    /// Returns a sentence that says why the process has none. It may be the process's own.
    pub(crate) fn engage(
        &self,
        pid: u32,
        filters: u32,
        interrupted: Interrupted,
    ) -> Result<Arc<Process>, Refusal> {
        let _tracing = self.tracing();
        let mapper = Mapper::inject(pid, self.file.as_fd(), filters, interrupted)
            .map_err(|error| Refusal(error.to_string()))?;
        let process = Arc::new(Process {
            pid,
            mapper,
            changes: AtomicU64::new(0),
            is_pinned: AtomicBool::new(mappings::why_not(pid).is_some()),
        });
        self.lock().insert(pid, Arc::clone(&process));
        Ok(process)
    }

    pub(crate) fn get(&self, pid: u32) -> Option<Arc<Process>> {
        self.lock().get(&pid).cloned()
    }

    /// Returns the process of this number, or the one whose memory it shares, as a child of `vfork` does.
    pub(crate) fn current(&self, pid: u32) -> Option<Arc<Process>> {
        if let Some(process) = self.get(pid).filter(|process| process.is_current()) {
            return Some(process);
        }
        self.all().into_iter().find(|process| share_memory(pid, process.mapper.pid()))
    }

    /// Returns whether a process is a mapper, which must not be stopped.
    pub(crate) fn is_mapper(&self, pid: u32) -> bool {
        self.lock().values().any(|process| process.mapper.pid() == pid)
    }

    pub(crate) fn mapper_of(&self, pid: u32) -> Option<u32> {
        self.lock().get(&pid).map(|process| process.mapper.pid())
    }

    pub(crate) fn all(&self) -> Vec<Arc<Process>> {
        self.lock().values().cloned().collect()
    }

    /// Forgets a process. Its mapper ends with its last user.
    pub(crate) fn forget(&self, pid: u32) -> Option<Arc<Process>> {
        self.lock().remove(&pid)
    }

    /// Records that the tree has to end.
    pub(crate) fn break_off(&self, why: String) {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
    }

    pub(crate) fn why_broken(&self) -> Option<String> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn tracing(&self) -> MutexGuard<'_, ()> {
        self.tracing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Process>>> {
        // Nothing in it is ever half done.
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
