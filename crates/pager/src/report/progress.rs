//! A message while the program does little but wait for pages.

use std::time::{Duration, Instant};

use octavo::{PAGE_BYTES, bytes_for_people};
use octavo_platform::proc_text;
use octavo_platform::threads::stat_field;

use crate::messages::as_option;
use crate::report::explain::limit_for;
use crate::system::proc;

/// Progress is judged over periods of this length.
const WINDOW: Duration = Duration::from_secs(10);
/// The least time between two messages.
const QUIET: Duration = Duration::from_secs(60);
/// A message is printed if the program gets less than this part of a CPU, and waits for more than the same
/// part of the time.
const LITTLE: f64 = 0.5;
/// If fewer pages than this come back each second, a program that waits for a disk waits for something else.
const LEAST_BACK: u64 = 10;
/// The time between two looks at the states of threads.
const SAMPLE_EVERY: Duration = Duration::from_millis(500);

/// What came back for a program so far, as its rung counts it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CameBack {
    Bytes(u64),
    /// Faults that waited for a disk.
    DiskFaults(u64),
}

impl CameBack {
    /// Says how much came back each second since an earlier count, and whether that is enough to wait for.
    fn rate_since(self, before: Self, seconds: f64) -> Option<(String, bool)> {
        let each_second = |now: u64, before: u64| (now.saturating_sub(before) as f64 / seconds) as u64;
        match (self, before) {
            (Self::Bytes(now), Self::Bytes(before)) => {
                let bytes = each_second(now, before);
                let rate = format!("{} came back each second", bytes_for_people(bytes));
                Some((rate, bytes >= LEAST_BACK * PAGE_BYTES as u64))
            }
            (Self::DiskFaults(now), Self::DiskFaults(before)) => {
                let faults = each_second(now, before);
                Some((format!("{faults} faults each second waited for a disk"), faults >= LEAST_BACK))
            }
            // The kernel could not tell one of them.
            _ => None,
        }
    }
}

/// The program's figures up to some time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramFigures {
    /// The CPU time that the program has used.
    pub(crate) cpu_seconds: f64,
    /// The time for which the program's threads and processes have waited for Octavo.
    pub(crate) waited_seconds: f64,
    /// The time for which they have waited for a disk. They may have waited for files of their own.
    pub(crate) disk_seconds: f64,
    pub(crate) came_back: CameBack,
    /// The memory that the program has now, in memory and in swap.
    pub(crate) tree_bytes: u64,
}

/// Decides when to give a message.
#[derive(Debug, Default)]
pub(crate) struct ProgressMessages {
    window: Option<(Instant, ProgramFigures)>,
    quiet_until: Option<Instant>,
}

impl ProgressMessages {
    /// Returns whether a period is over, so that new figures are needed.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.window.is_none_or(|(began, _)| now - began >= WINDOW)
    }

    /// Records the program's figures, and returns a message if there is one to give.
    pub(crate) fn note(&mut self, now: Instant, seen: ProgramFigures) -> Option<String> {
        let (began, before) = self.window.replace((now, seen))?;
        let seconds = (now - began).as_secs_f64();
        // The CPU time of a zombie shows nowhere until its parent reaps it, so the sum may shrink.
        let cpu = (seen.cpu_seconds - before.cpu_seconds).max(0.0);
        let (back, is_much) = seen.came_back.rate_since(before.came_back, seconds)?;
        let disk = if is_much { seen.disk_seconds - before.disk_seconds } else { 0.0 };
        let waited = seen.waited_seconds - before.waited_seconds + disk;
        let is_slow = cpu < LITTLE * seconds && waited > LITTLE * seconds;
        if !is_slow || self.quiet_until.is_some_and(|until| now < until) {
            return None;
        }
        self.quiet_until = Some(now + QUIET);
        let (all, now) = (as_option(limit_for(seen.tree_bytes)), bytes_for_people(seen.tree_bytes));
        Some(format!(
            "in the last {seconds:.0} s the program ran for {cpu:.1} s and waited for pages: {back}; with \
             --memory {all} all of its memory would fit, now {now}"
        ))
    }
}

/// Estimates how long a tree waits for a disk, from samples of its threads' states.
#[derive(Debug, Default)]
pub(crate) struct DiskWaits {
    sampled_at: Option<Instant>,
    waited: Duration,
}

impl DiskWaits {
    /// Takes a sample if one is due. Costs one look at each thread, twice a second. Returns how long at least
    /// one thread has waited so far.
    pub(crate) fn sample(&mut self, now: Instant, processes: impl FnOnce() -> Vec<u32>) -> Duration {
        let since = self.sampled_at.map_or(Duration::ZERO, |at| now - at);
        if self.sampled_at.is_none() || since >= SAMPLE_EVERY {
            self.sampled_at = Some(now);
            if processes().into_iter().any(waits_for_a_disk) {
                self.waited += since;
            }
        }
        self.waited
    }
}

/// Returns whether a thread of a process is in an uninterruptible wait.
fn waits_for_a_disk(pid: u32) -> bool {
    let waits = |thread| {
        let stat = proc_text::read(pid, &format!("task/{thread}/stat"));
        stat.is_ok_and(|stat| stat_field(stat.as_bytes(), 3) == Some(b"D"))
    };
    proc::threads(pid).unwrap_or_default().into_iter().any(waits)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::managed::tests::wait_until;

    fn seen(cpu_seconds: f64, waited_seconds: f64) -> ProgramFigures {
        let came_back = CameBack::Bytes((waited_seconds * 1e6) as u64);
        ProgramFigures { cpu_seconds, waited_seconds, disk_seconds: 0.0, came_back, tree_bytes: 128 << 20 }
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
    fn a_rung_that_counts_faults_tells_their_rate() {
        let (start, mut progress) = (Instant::now(), ProgressMessages::default());
        let seen = |faults, disk_seconds| ProgramFigures {
            came_back: CameBack::DiskFaults(faults),
            disk_seconds,
            ..seen(0.0, 0.0)
        };
        assert_eq!(progress.note(start, seen(100, 0.0)), None);
        let said = progress.note(start + Duration::from_secs(10), seen(1350, 9.0)).unwrap();
        assert!(said.contains("waited for pages: 125 faults each second waited for a disk; with"), "{said}");
    }

    #[test]
    fn a_program_that_waits_for_files_of_its_own_is_not_told_of() {
        for came_back in [CameBack::Bytes, CameBack::DiskFaults] {
            let (start, mut progress) = (Instant::now(), ProgressMessages::default());
            let seen = |back, waited_seconds, disk_seconds| ProgramFigures {
                came_back: came_back(back),
                disk_seconds,
                ..seen(0.0, waited_seconds)
            };
            assert_eq!(progress.note(start, seen(0, 0.0, 0.0)), None);
            assert_eq!(progress.note(start + Duration::from_secs(10), seen(99, 0.0, 9.0)), None);
            let stood = progress.note(start + Duration::from_secs(20), seen(99, 9.0, 9.0));
            assert!(stood.is_some(), "it waits for Octavo");
        }
    }

    #[test]
    fn samples_add_up_the_time_in_which_a_thread_waits_for_a_disk() {
        let (start, mut waits) = (Instant::now(), DiskWaits::default());
        let asked = Cell::new(0);
        let mut sleeper = Command::new("sleep").arg("1000").spawn().unwrap();
        wait_until(|| proc::stat(sleeper.id()).is_some_and(|stat| stat.state == b'S'));
        let mut sample = |milliseconds| {
            waits.sample(start + Duration::from_millis(milliseconds), || {
                asked.set(asked.get() + 1);
                vec![sleeper.id()]
            })
        };
        assert!((0..50).all(|step| sample(step * 10).is_zero()), "it sleeps");
        assert_eq!(asked.get(), 1);
        assert!(sample(500).is_zero());
        assert_eq!(asked.get(), 2);
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        // As in a `vfork`, the parent of this child waits as if for a disk, until the child ends.
        let clones = "if (syscall(56, 0x4011, 0, 0, 0, 0) == 0) { sysread(STDIN, $_, 1); syscall(60, 0) }";
        let parent = Command::new("perl").args(["-e", clones]).stdin(Stdio::piped()).spawn();
        let mut parent = parent.expect("every Debian has perl");
        wait_until(|| waits_for_a_disk(parent.id()));
        let mut waits = DiskWaits::default();
        let mut sample =
            |at| waits.sample(start + Duration::from_millis(at), || vec![parent.id()]).as_millis();
        assert_eq!([sample(0), sample(400), sample(500)], [0, 0, 500]);
        drop(parent.stdin.take());
        assert!(parent.wait().unwrap().success());
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
