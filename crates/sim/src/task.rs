//! A thread of a simulation.

use std::sync::Arc;

use crate::coroutine::Coroutine;
use crate::line::LineOperation;

/// Names a thread of a simulation.
pub(crate) type TaskId = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskStatus {
    /// The thread runs, or would run if its CPU were free.
    Ready,
    /// The thread waits for a wake-up, or for the time of its timer.
    Blocked,
    Ended,
}

#[derive(Debug)]
pub(crate) struct Task {
    pub name: Arc<str>,
    pub cpu: usize,
    /// `None` while it runs, and after its end.
    pub coroutine: Option<Coroutine>,
    pub status: TaskStatus,
    /// Whether it was unparked and has not parked since.
    pub has_token: bool,
    pub is_parked: bool,
    /// Counts its waits, so that an old timer wakes nobody.
    pub waits: u64,
    pub timed_out: bool,
    pub joiner: Option<TaskId>,
    /// In an exploration: the number of changes of shared words when it last paused.
    pub paused_at: u64,
    /// The access that waits for its line.
    pub stalled: Option<Stalled>,
}

/// An access that waits for its line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stalled {
    pub place: usize,
    pub line: usize,
    pub access: LineOperation,
    pub since: u64,
}
