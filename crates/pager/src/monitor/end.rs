//! The end of a run.

use std::time::{Duration, Instant};

use octavo_platform::usage;
use rustix::process::Signal;

use super::{Monitor, PATIENCE};
use crate::guardian::Guardian;
use crate::managed::Managed;
use crate::report::summary::Summary;
use crate::system::{priority, proc, signals};

/// The least number of times that the processes of a tree are killed, since a process may fork meanwhile.
const LEAST_ROUNDS: u32 = 8;

impl Monitor {
    /// Kills every process of the tree, and waits until none is left that would read zeros without the
    /// runner. If some are left after a while, the guardian searches for them.
    pub(crate) fn kill_all(&mut self) {
        self.spare.clear();
        let began = Instant::now();
        for round in 1.. {
            let known = || self.tree.processes.keys().copied().collect();
            let found = self.tree.find();
            let pids =
                found.map_or_else(|_| known(), |found| found.into_iter().map(|(pid, _)| pid).collect());
            Vec::into_iter(pids).for_each(|pid| signals::kill(pid, Signal::KILL));
            std::thread::sleep(Duration::from_millis(2));
            let ending = self.ending.iter().map(|(_, managed)| managed);
            let is_needed = self.managed.values().chain(&self.forks).chain(ending).any(Managed::is_needed);
            if round >= LEAST_ROUNDS && !is_needed {
                return;
            }
            if began.elapsed() > PATIENCE {
                self.guardian.iter().for_each(Guardian::leave_survivors);
                self.has_survivors = true;
                self.tree.helpers.clear();
                return;
            }
        }
    }

    /// Ends the management of all processes, after the program's end. Drops the manager, or leaves it to the
    /// exit of this process.
    pub(crate) fn finish(mut self, leaves_manager: bool) -> Summary {
        priority::starts_others();
        // After the program's end, it does not matter whether the manager could be made.
        let _ = self.making.take().map(std::thread::JoinHandle::join);
        self.standstill.end_all(self.guardian.as_ref());
        self.figures();
        let managed = std::mem::take(&mut self.managed).into_values().chain(std::mem::take(&mut self.forks));
        let ending = std::mem::take(&mut self.ending).into_iter().map(|(_, managed)| managed);
        let all: Vec<_> = managed.chain(ending).collect();
        if self.has_survivors {
            // The guardians wait on descriptors that must stay open until the runner ends. Until then, the
            // survivors wait for their pages.
            std::mem::forget((all, self.manager.take()));
            return self.summary;
        }
        // Each driver may have to wait for a device or for room, so stop all drivers before waiting for the
        // first.
        all.iter().for_each(Managed::stop);
        all.into_iter().for_each(|managed| self.summary.add(managed));
        if let Some(guardian) = self.guardian.take() {
            guardian.finish();
        }
        self.wait_for_helpers();
        // By now, all ended children have been reaped.
        let used = usage::of_children().since(self.earlier_children);
        self.summary.program_cpu_seconds = used.cpu.as_secs_f64();
        self.summary.largest_process_bytes = used.peak_resident_bytes;
        if leaves_manager {
            std::mem::forget(self.manager.take());
        }
        self.summary
    }

    /// Waits until no helper of the runner is left, so that none outlives it. The kernel may take a while to
    /// free the memory of a mover.
    fn wait_for_helpers(&self) {
        let began = Instant::now();
        let runs = |pid: &u32| proc::stat(*pid).is_some_and(|stat| stat.state != b'Z');
        while self.tree.helpers.iter().any(runs) && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        signals::reap(0, |_| {});
    }
}
