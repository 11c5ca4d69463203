//! Where threads wait until all stand ready, so that time starts for all at once.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A gate that opens once. Unlike a barrier it can also send everyone home, when not all could be started.
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: u32,
    verdict: Option<bool>,
}

impl Gate {
    /// Waits for the gate. True: go ahead; false: go home.
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

    /// Waits until so many threads wait.
    pub fn wait_for(&self, threads: u32) {
        let mut state = self.lock();
        while state.waiting < threads {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets everybody through, or sends everybody home.
    pub fn open(&self, go: bool) {
        self.lock().verdict = Some(go);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements that hold the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_waits_for_the_verdict() {
        for verdict in [true, false] {
            let gate = Gate::default();
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
