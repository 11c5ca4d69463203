//! A message while the program does little but wait for pages.

use std::time::{Duration, Instant};

use octavo::bytes_for_people;
use octavo_platform::usage;

use super::Monitor;
use crate::messages::as_option;
use crate::report::explain::limit_for;
use crate::system::{priority, proc};

/// Progress is judged over periods of this length.
const WINDOW: Duration = Duration::from_secs(10);
/// The least time between two messages.
const QUIET: Duration = Duration::from_secs(60);
/// A message is printed if the program gets less than this part of a CPU, and waits for more than the same
/// part of the time.
const LITTLE: f64 = 0.5;

/// The program's figures up to some time.
#[derive(Clone, Copy, Debug, Default)]
struct ProgramFigures {
    /// The CPU time that the program has used.
    cpu_seconds: f64,
    /// The time for which the program's threads and processes have waited.
    waited_seconds: f64,
    back_bytes: u64,
    /// The memory that the program has now, in memory and in swap.
    tree_bytes: u64,
}

/// Decides when to give a message.
#[derive(Debug, Default)]
pub(super) struct ProgressMessages {
    window: Option<(Instant, ProgramFigures)>,
    quiet_until: Option<Instant>,
}

impl ProgressMessages {
    /// Returns whether a period is over, so that new figures are needed.
    fn is_due(&self, now: Instant) -> bool {
        self.window.is_none_or(|(began, _)| now - began >= WINDOW)
    }

    /// Records the program's figures, and returns a message if there is one to give.
    fn note(&mut self, now: Instant, seen: ProgramFigures) -> Option<String> {
        let (began, before) = self.window.replace((now, seen))?;
        let seconds = (now - began).as_secs_f64();
        // The CPU time of a zombie shows nowhere until its parent reaps it, so the sum may shrink.
        let cpu = (seen.cpu_seconds - before.cpu_seconds).max(0.0);
        let waited = seen.waited_seconds - before.waited_seconds;
        let is_slow = cpu < LITTLE * seconds && waited > LITTLE * seconds;
        if !is_slow || self.quiet_until.is_some_and(|until| now < until) {
            return None;
        }
        self.quiet_until = Some(now + QUIET);
        let back =
            bytes_for_people((seen.back_bytes.saturating_sub(before.back_bytes) as f64 / seconds) as u64);
        let (all, now) = (as_option(limit_for(seen.tree_bytes)), bytes_for_people(seen.tree_bytes));
        Some(format!(
            "in the last {seconds:.0} s the program ran for {cpu:.1} s and waited for pages: {back} came back each second; with \
             --memory {all} all of its memory would fit, now {now}"
        ))
    }
}

impl Monitor {
    /// Prints a message to standard error if the program has done little but wait for a while. Costs one look
    /// at each process per ten seconds.
    pub(crate) fn tell_progress(&mut self) {
        let now = Instant::now();
        if self.manager.is_none() || !self.progress.is_due(now) {
            return;
        }
        // This takes longer than a look at high priority may.
        priority::goes_on(Duration::MAX);
        let living = self
            .tree
            .processes
            .keys()
            .filter_map(|pid| proc::stat(*pid))
            .map(|stat| stat.cpu_seconds())
            .sum::<f64>();
        let figures = self.figures();
        let seen = ProgramFigures {
            cpu_seconds: living + usage::of_children().cpu.as_secs_f64(),
            waited_seconds: figures.waited(),
            back_bytes: figures.swapped_in_bytes,
            tree_bytes: figures.tree_bytes,
        };
        if let Some(word) = self.progress.note(now, seen) {
            say!("octavo: {word}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(cpu_seconds: f64, waited_seconds: f64) -> ProgramFigures {
        let back_bytes = (waited_seconds * 1e6) as u64;
        ProgramFigures { cpu_seconds, waited_seconds, back_bytes, tree_bytes: 128 << 20 }
    }

    #[test]
    fn a_program_that_only_waits_is_told_of_with_its_rate_and_its_memory() {
        let (start, mut progress) = (Instant::now(), ProgressMessages::default());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(progress.is_due(start));
        assert_eq!(progress.note(start, seen(0.0, 0.0)), None);
        assert!(!progress.is_due(at(9)) && progress.is_due(at(10)));
        let said = progress.note(at(10), seen(1.0, 8.0)).unwrap();
        let expected = "in the last 10 s the program ran for 1.0 s and waited for pages: 781.2 KiB came back each second; with --memory 152M \
                        all of its memory would fit, now 128 MiB";
        assert_eq!(said, expected);
    }

    #[test]
    fn a_program_that_only_waits_is_never_told_of_twice_a_minute() {
        // Looks may be late, so periods have all lengths from 10 s on.
        for period in 10..=60 {
            let (start, mut progress) = (Instant::now(), ProgressMessages::default());
            let mut said = Vec::new();
            for seconds in (0..600).step_by(period) {
                let waited = seconds as f64;
                if progress.note(start + Duration::from_secs(seconds), seen(0.0, waited)).is_some() {
                    said.push(seconds);
                }
            }
            assert_eq!(said.first(), Some(&(period as u64)), "the first period is over");
            let between: Vec<_> = said.windows(2).map(|pair| pair[1] - pair[0]).collect();
            // It comes with the first period that ends a minute later.
            let expected = 60_u64.next_multiple_of(period as u64);
            assert!(between.iter().all(|seconds| *seconds == expected) && !between.is_empty(), "{said:?}");
        }
    }

    #[test]
    fn a_program_that_runs_or_sleeps_is_not_told_of() {
        let (start, mut progress) = (Instant::now(), ProgressMessages::default());
        let mut note = |seconds, seen| progress.note(start + Duration::from_secs(seconds), seen);
        assert_eq!(note(0, seen(0.0, 0.0)), None);
        assert_eq!(note(10, seen(9.0, 9.0)), None, "others run meanwhile");
        assert_eq!(note(20, seen(9.0, 9.5)), None, "it sleeps");
    }
}
