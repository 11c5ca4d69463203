//! One run of a program of `crates/bench`, in a folder and a control group of its own. Its figures are read
//! from its output.

use std::fs;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use octavo_measure::control_group::ControlGroup;

use super::kernel::{self, Purpose};
use super::process::{self, last_lines, said};
use super::warden::{Warden, quoted};

const BETWEEN_READINGS: Duration = Duration::from_millis(20);

/// The output of a program: lines of a name and a value.
#[derive(Debug)]
pub struct Said(String);

impl Said {
    /// Returns the value of a name.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
    }

    /// Returns the values that are numbers, with their names.
    pub fn numbers(&self) -> impl Iterator<Item = (&str, f64)> {
        let pairs = self.0.lines().filter_map(|line| line.split_once(' '));
        pairs.filter_map(|(name, value)| Some((name, value.parse().ok()?)))
    }

    /// Returns the value of a name, if it is a number.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.value(name)?.parse().ok()
    }
}

/// One run: a command line, additions to its environment, its group if it has one, and its time limit.
#[derive(Debug)]
pub struct CommandRun<'a> {
    pub words: Vec<String>,
    pub environment: Vec<(&'a str, String)>,
    pub group: Option<Purpose>,
    pub limit: Duration,
}

impl CommandRun<'_> {
    /// Makes a run with no additions to its environment.
    pub fn new(words: Vec<String>, group: Option<Purpose>, limit: Duration) -> Self {
        Self { words, environment: Vec::new(), group, limit }
    }
}

/// The outcome of one run.
#[derive(Debug)]
pub struct Ended {
    /// The output. `None` if the kernel killed the run for lack of memory.
    pub said: Option<Said>,
    pub seconds: f64,
    /// The most bytes charged to a group that only measures.
    pub peak_bytes: Option<u64>,
}

/// Makes one run. Even after an error, it leaves nothing in `folder`.
pub fn in_a_group(folder: &Path, run: CommandRun<'_>) -> Result<Ended, String> {
    let scratch = folder.join(format!("run-{}", std::process::id()));
    let mut warden = Warden::start()?;
    warden.at_the_end(&format!("rm -rf {}", quoted(&scratch)))?;
    let work = scratch.join("work");
    fs::create_dir_all(&work).map_err(|error| format!("cannot make {}: {error}", work.display()))?;
    let group = run.group.map(|purpose| kernel::make_group(&mut warden, purpose)).transpose()?;
    let words = group.as_ref().map_or(run.words.clone(), |group| kernel::entering(group, &run.words));
    let limited = group.as_ref().filter(|_| matches!(run.group, Some(Purpose::Limit { .. })));
    let began = Instant::now();
    let mut child = process::start(&mut warden, &words, &scratch, &run.environment)?;
    let status = while_figures_are_read(limited, || process::wait(&mut child, run.limit))?;
    let seconds = began.elapsed().as_secs_f64();
    let peak_bytes = if limited.is_none() { group.as_ref().and_then(ControlGroup::peak_bytes) } else { None };
    if group.as_ref().is_some_and(ControlGroup::has_killed) {
        return Ok(Ended { said: None, seconds, peak_bytes });
    }
    if !status.success() {
        let errors = last_lines(&said(&scratch, "stderr"));
        return Err(format!("`{}` failed after {seconds:.0} s: {status}: {errors}", words.join(" ")));
    }
    Ok(Ended { said: Some(Said(said(&scratch, "stdout"))), seconds, peak_bytes })
}

/// Calls `run` while the figures of a group with a limit are read now and then.
fn while_figures_are_read<T>(group: Option<&ControlGroup>, run: impl FnOnce() -> T) -> T {
    let Some(group) = group else { return run() };
    thread::scope(|scope| {
        let (ended, endings) = mpsc::channel::<()>();
        scope.spawn(move || {
            while endings.recv_timeout(BETWEEN_READINGS) == Err(RecvTimeoutError::Timeout) {
                kernel::sum_figures(group);
            }
        });
        let done = run();
        drop(ended);
        done
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_figures_are_found_among_other_lines() {
        let said = Said("read_seconds 1.5\nunsorted (3,) 0af1\nNumPy\nfaults 7\n".into());
        assert_eq!(said.numbers().collect::<Vec<_>>(), [("read_seconds", 1.5), ("faults", 7.0)]);
        assert_eq!((said.value("unsorted"), said.number("faults")), (Some("(3,) 0af1"), Some(7.0)));
    }
}
