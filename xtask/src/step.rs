//! One step of a command: a child process, whose output is passed on line by line and counted.
//!
//! The count of a test step is the sum of its harnesses' `test result:` lines. A step that fails without a
//! failed test (it did not compile, or it was killed) counts as one failure, and so does a step that succeeds
//! without a result. So the summary never reports zero failures when something went wrong.

use std::fmt::Display;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{self, Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::Instant;

use crate::root;
use crate::suites::{self, LIMIT, Suite, SuiteJob, SuiteOutcome};

/// The tests counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TestTally {
    pub passed: u64,
    pub failed: u64,
    pub ignored: u64,
}

impl TestTally {
    pub fn plus(self, other: TestTally) -> TestTally {
        TestTally {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            ignored: self.ignored + other.ignored,
        }
    }

    /// Reads a harness's `test result: ok. 3 passed; 0 failed; 1 ignored; ...`. Returns `None` for any other
    /// line.
    pub fn from_result_line(line: &str) -> Option<TestTally> {
        let (_verdict, counts) = line.trim().strip_prefix("test result: ")?.split_once(". ")?;
        let mut tally = TestTally::default();
        for count in counts.split(';') {
            match count.trim().split_once(' ') {
                Some((n, "passed")) => tally.passed = n.parse().ok()?,
                Some((n, "failed")) => tally.failed = n.parse().ok()?,
                Some((n, "ignored")) => tally.ignored = n.parse().ok()?,
                _ => {}
            }
        }
        Some(tally)
    }
}

/// Judges a program that has ended, by the sum of its result lines. If the program went wrong without a
/// failed test, it counts as one failure, and the text says why.
pub fn judge(results: Option<TestTally>, status: ExitStatus) -> (TestTally, Option<String>) {
    let tally = results.unwrap_or_default();
    if tally.failed > 0 || (status.success() && results.is_some()) {
        return (tally, None);
    }
    let missing = if status.success() { "a test result" } else { "a failed test" };
    (TestTally { failed: 1, ..tally }, Some(format!("ENDED EARLY, without {missing}: {status}")))
}

/// The steps of one command. All of them run, even if some fail, and the failed ones are remembered.
pub struct Steps {
    /// Receives the output of the steps, and of this program.
    out: Box<dyn Write + Send>,
    tally: TestTally,
    failed_steps: Vec<String>,
}

impl Default for Steps {
    fn default() -> Self {
        Self::to(Box::new(io::stdout()))
    }
}

impl Steps {
    fn to(out: Box<dyn Write + Send>) -> Self {
        Self { out, tally: TestTally::default(), failed_steps: Vec::new() }
    }

    /// Prints a line. If the reader has gone away, that is no reason to stop.
    fn say(&mut self, line: impl Display) {
        writeln!(self.out, "{line}").and_then(|()| self.out.flush()).ok();
    }

    /// Builds test binaries, and returns them. A binary that cannot be built counts as a failed test.
    pub fn build(&mut self, name: &str, command: Command) -> Vec<Suite> {
        self.announce(name, &command);
        let start = Instant::now();
        let (suites, built) = suites::build(command, &root());
        if let Err(why) = &built {
            self.say(why);
            self.tally.failed += 1;
        }
        self.close(name, start, built.is_ok());
        suites
    }

    /// Runs suites side by side, as many as there are CPUs. Prints the output of each when it has ended. The
    /// outputs are in a folder of this process below `outputs`, since other processes may run suites of the
    /// same names. If a suite failed, the folder stays.
    pub fn side_by_side(&mut self, jobs: Vec<SuiteJob>, outputs: &Path) {
        let width = thread::available_parallelism().map_or(1, usize::from);
        let mine = outputs.join(process::id().to_string());
        let failed_before = self.failed_steps.len();
        suites::run_all(jobs, width, &mine, LIMIT, |outcome| self.take(outcome));
        if self.failed_steps.len() == failed_before {
            fs::remove_dir_all(&mine).ok();
        } else {
            self.say(format_args!("The outputs are in {}.", mine.display()));
        }
    }

    fn take(&mut self, outcome: SuiteOutcome) {
        let SuiteOutcome { name, tally, output, start } = outcome;
        self.say(format_args!("==== {name}"));
        self.out.write_all(&output).ok();
        self.tally = self.tally.plus(tally);
        self.close(&name, start, tally.failed == 0);
    }

    /// Runs a step that prints test results, and adds them up.
    pub fn tests(&mut self, name: &str, mut command: Command) {
        self.announce(name, &command);
        let start = Instant::now();
        let (tally, why) = match run_counting(&mut command, &mut self.out) {
            Ok((results, status)) => judge(results, status),
            Err(error) => {
                (TestTally { failed: 1, ..TestTally::default() }, Some(format!("could not run it: {error}")))
            }
        };
        if let Some(why) = why {
            self.say(why);
        }
        self.tally = self.tally.plus(tally);
        self.close(name, start, tally.failed == 0);
    }

    fn close(&mut self, name: &str, start: Instant, succeeded: bool) {
        if !succeeded {
            self.failed_steps.push(name.to_owned());
        }
        let verdict = if succeeded { "ok" } else { "FAILED" };
        self.say(format_args!("---- {name}: {verdict} ({:.1} s)\n", start.elapsed().as_secs_f64()));
    }

    fn announce(&mut self, name: &str, command: &Command) {
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        self.say(format_args!("==== {name}: cargo {}", words.join(" ")));
    }

    /// Prints the failed steps, and the summary line last and alone.
    pub fn finish(mut self) -> ExitCode {
        let tally = self.tally;
        if tally.ignored > 0 {
            self.say(format_args!("{} ignored", tally.ignored));
        }
        let succeeded = self.failed_steps.is_empty();
        for name in std::mem::take(&mut self.failed_steps) {
            self.say(format_args!("failed: {name}"));
        }
        self.say(summary_line(tally));
        if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// `.ci/run` looks for exactly this form.
fn summary_line(tally: TestTally) -> String {
    format!("{} passed, {} failed", tally.passed, tally.failed)
}

fn run_counting(command: &mut Command, out: &mut dyn Write) -> io::Result<(Option<TestTally>, ExitStatus)> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().expect("standard output is piped"));
    let mut results: Option<TestTally> = None;
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        out.write_all(&line)?;
        out.flush()?;
        if let Some(counts) = TestTally::from_result_line(&String::from_utf8_lossy(&line)) {
            results = Some(results.unwrap_or_default().plus(counts));
        }
        line.clear();
    }
    Ok((results, child.wait()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made-up results must not reach the output of the tests: the program that runs the tests would count
    /// those lines, too.
    fn silent() -> Steps {
        Steps::to(Box::new(io::sink()))
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_result_line_is_counted_and_other_lines_are_not() {
        let line = "test result: FAILED. 3 passed; 2 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.1s";
        assert_eq!(TestTally::from_result_line(line), Some(TestTally { passed: 3, failed: 2, ignored: 1 }));
        assert_eq!(TestTally::from_result_line("test frame::tests::merges ... ok"), None);
        assert_eq!(TestTally::from_result_line("test result: none of these"), None);
    }

    #[test]
    fn results_of_several_harnesses_are_summed() {
        let mut steps = silent();
        steps.tests(
            "two",
            shell("echo 'test result: ok. 3 passed; 0 failed'; echo 'test result: ok. 4 passed; 0 failed'"),
        );
        assert_eq!(summary_line(steps.tally), "7 passed, 0 failed");
        assert!(steps.failed_steps.is_empty());
    }

    #[test]
    fn a_step_that_fails_without_a_failed_test_counts_as_one_failure() {
        let mut steps = silent();
        steps.tests("does not compile", shell("exit 101"));
        assert_eq!(summary_line(steps.tally), "0 passed, 1 failed");
        assert_eq!(steps.failed_steps, ["does not compile"]);
    }

    #[test]
    fn a_step_that_succeeds_without_a_result_counts_as_one_failure() {
        let mut steps = silent();
        steps.tests("silent", shell("exit 0"));
        assert_eq!(summary_line(steps.tally), "0 passed, 1 failed");
        assert_eq!(steps.failed_steps, ["silent"]);
    }

    #[test]
    fn outputs_of_another_process_are_left_alone_and_ours_stay_only_after_a_failure() {
        let outputs = std::env::temp_dir().join(format!("octavo-xtask-{}-outputs", process::id()));
        let (theirs, mine) = (outputs.join("suite.log"), outputs.join(process::id().to_string()));
        fs::create_dir_all(&outputs).unwrap();
        fs::write(&theirs, "theirs").unwrap();
        for (script, stays) in [("echo 'test result: ok. 1 passed; 0 failed'", false), ("exit 1", true)] {
            let suite = Suite { name: "suite".into(), command: shell(script) };
            silent().side_by_side(vec![SuiteJob::Run(suite)], &outputs);
            assert_eq!(mine.join("suite.log").exists(), stays);
            assert_eq!(fs::read_to_string(&theirs).unwrap(), "theirs");
        }
        fs::remove_dir_all(&outputs).unwrap();
    }

    #[test]
    fn a_build_that_names_no_test_binary_counts_as_one_failure() {
        let mut steps = silent();
        assert!(steps.build("nothing", shell("exit 0")).is_empty());
        assert_eq!(summary_line(steps.tally), "0 passed, 1 failed");
        assert_eq!(steps.failed_steps, ["nothing"]);
    }

    #[test]
    fn a_failed_test_fails_the_step_and_is_not_counted_twice() {
        let mut steps = silent();
        steps.tests("bad", shell("echo 'test result: FAILED. 1 passed; 1 failed; 0 ignored'; exit 101"));
        assert_eq!(summary_line(steps.tally), "1 passed, 1 failed");
        assert_eq!(steps.failed_steps, ["bad"]);
    }
}
