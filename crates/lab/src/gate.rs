//! A gate at which threads wait until all are ready, so that time starts for all at once.

use std::fmt::Display;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use octavo_command::failure::Failure;

use crate::profile::Samples;

/// The stack of a thread. It is small, since a thread only waits at a gate and touches memory.
const STACK_BYTES: usize = 256 << 10;

/// Runs `work` for each of `workers`, on threads of their own that all start at once, and returns their
/// results in order. If one thread cannot be started, no thread does its work. `samples` covers the time from
/// the opening of the gate to the end of the last thread.
pub fn all_at_once<W: Copy + Display + Send, T: Send>(
    workers: impl IntoIterator<Item = W>,
    work: impl Fn(W) -> Result<T, Failure> + Sync,
    samples: Option<&mut Samples>,
) -> Result<Vec<T>, Failure> {
    let gate = StartGate::default();
    thread::scope(|scope| {
        let (gate, work) = (&gate, &work);
        let mut handles = Vec::new();
        let mut refused = None;
        for worker in workers {
            let named = thread::Builder::new().name(format!("task {worker}")).stack_size(STACK_BYTES);
            match named.spawn_scoped(scope, move || gate.pass().then(|| work(worker))) {
                Ok(handle) => handles.push(handle),
                Err(error) => {
                    refused = Some(Failure::system(format!("cannot start task {worker}"), error));
                    break;
                }
            }
        }
        gate.wait_for(handles.len() as u32);
        let finish = || {
            gate.open(refused.is_none());
            handles.into_iter().map(|handle| handle.join()).collect::<Vec<_>>()
        };
        let joined = match samples {
            Some(samples) => samples.during(finish),
            None => finish(),
        };
        if let Some(refused) = refused {
            return Err(refused);
        }
        let answers =
            joined.into_iter().map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        // No worker was sent home, so none was refused.
        answers.flatten().collect()
    })
}

/// A gate that opens once. Unlike a barrier, it can also send all threads home, if not all could be started.
#[derive(Debug, Default)]
pub struct StartGate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: u32,
    verdict: Option<bool>,
}

impl StartGate {
    /// Waits for the gate. Returns whether to start work. Otherwise, the thread must go home.
    pub fn pass(&self) -> bool {
        let mut state = self.lock();
        state.waiting += 1;
        self.changed.notify_all();
        loop {
            match state.verdict {
                Some(go) => return go,
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Waits until `threads` threads wait.
    pub fn wait_for(&self, threads: u32) {
        let mut state = self.lock();
        while state.waiting < threads {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets all threads through, or sends them home.
    pub fn open(&self, go: bool) {
        self.lock().verdict = Some(go);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned lock is usable: no code under it leaves the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_in_order_and_the_first_failure_wins() {
        assert_eq!(all_at_once(0..4, |worker| Ok(worker * 10), None).unwrap(), [0, 10, 20, 30]);
        let odd = |worker: i32| match worker % 2 {
            0 => Ok(()),
            _ => Err(Failure::Said(format!("{worker} is odd"))),
        };
        assert_eq!(all_at_once(0..4, odd, None).unwrap_err().to_string(), "1 is odd");
    }

    #[test]
    fn everyone_waits_for_the_verdict() {
        for verdict in [true, false] {
            let gate = StartGate::default();
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| gate.pass())).collect();
                gate.wait_for(4);
                assert!(threads.iter().all(|thread| !thread.is_finished()));
                gate.open(verdict);
                for thread in threads {
                    assert_eq!(thread.join().unwrap(), verdict);
                }
            });
        }
    }
}
