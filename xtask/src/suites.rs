//! Test binaries: cargo builds them, and this file runs them side by side.
//!
//! Each suite runs in a process of its own and writes into a file of its own. The file is printed whole when
//! the suite has ended, so that outputs do not mix. A suite that hangs is killed after [`LIMIT`], with all
//! processes that it started, and its report says what their threads waited for. A suite that ends without a
//! failed test, but also without success or without a result, was killed, has crashed or has left its
//! harness. Such a suite is named, and counts as one failure.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::step::{TestTally, judge};

/// How long a suite may take, on the slowest and busiest machine.
pub const LIMIT: Duration = Duration::from_secs(20 * 60);

/// In the environment of a suite and of all processes that it starts: the file of its output. By this mark,
/// all of these processes can be found, even after the process that started them has ended. A process group
/// would not suffice: an interrupt at the terminal would end this program, but not its suites.
const MARK: &str = "OCTAVO_SUITE_OUTPUT";

/// A program that prints test results.
pub struct Suite {
    pub name: String,
    pub command: Command,
}

/// A job to run beside others.
pub enum SuiteJob {
    Run(Suite),
    /// Builds suites, which then run beside the others. The name says what is built.
    Build(&'static str, Box<dyn FnOnce() -> Built + Send>),
}

/// The suites that were built, and an error if some were not.
pub type Built = (Vec<Suite>, Result<(), String>);

/// How a suite ended.
pub struct SuiteOutcome {
    pub name: String,
    pub tally: TestTally,
    /// The output, with a last line that says what went wrong if the output does not.
    pub output: Vec<u8>,
    pub start: Instant,
}

/// Runs cargo to build test binaries. `command` must have `--message-format=json-render-diagnostics`.
pub fn build(mut command: Command, root: &Path) -> Built {
    let mut suites = Vec::new();
    let built = try_build(&mut command, root, &mut suites).and_then(|()| match suites.is_empty() {
        true => Err("cargo succeeded, but named no test binary".into()),
        false => Ok(()),
    });
    (suites, built)
}

fn try_build(command: &mut Command, root: &Path, suites: &mut Vec<Suite>) -> Result<(), String> {
    let no_cargo = |error| format!("could not run cargo: {error}");
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(no_cargo)?;
    let messages = BufReader::new(child.stdout.take().expect("standard output is piped"));
    let mut unread = Ok(());
    for line in messages.split(b'\n').map_while(Result::ok) {
        let message = String::from_utf8_lossy(&line);
        match suite_in(&message, root) {
            Ok(suite) => suites.extend(suite),
            Err(field) => {
                unread = Err(format!("cargo names a test binary without a readable {field}: {message}"));
            }
        }
    }
    let status = child.wait().map_err(no_cargo)?;
    if status.success() { unread } else { Err(format!("cargo failed: {status}")) }
}

/// Reads the suite out of cargo's message about a test binary. Returns `None` for any other message. The
/// error names a field that cannot be read.
fn suite_in(message: &str, root: &Path) -> Result<Option<Suite>, &'static str> {
    if !message.contains("\"reason\":\"compiler-artifact\"") {
        return Ok(None);
    }
    // Both the target and the profile have a field `test`. The target's field says whether the target has
    // tests. The profile's field says whether this binary is the test binary.
    let profile = message.split_once("\"profile\":{").and_then(|(_, rest)| rest.split_once('}'));
    let (profile, _) = profile.ok_or("profile")?;
    match (profile.contains("\"test\":true"), profile.contains("\"test\":false")) {
        (true, false) => {}
        (false, true) => return Ok(None),
        _ => return Err("test"),
    }
    let text = |field| text_of(message, field).ok_or(field);
    let source = PathBuf::from(text("src_path")?);
    let mut command = Command::new(text("executable")?);
    // Tests run in the folder of their package, as with cargo, to find its files.
    command.current_dir(Path::new(text("manifest_path")?).parent().ok_or("manifest_path")?);
    let name = source.strip_prefix(root).unwrap_or(&source).display().to_string();
    Ok(Some(Suite { name, command }))
}

/// Returns the text of a field of a JSON object, which must hold neither quotes nor backslashes.
fn text_of<'a>(json: &'a str, field: &str) -> Option<&'a str> {
    let (_, rest) = json.split_once(&format!("\"{field}\":\""))?;
    let (text, _) = rest.split_once('"')?;
    (!text.contains(['\\', '\u{fffd}'])).then_some(text)
}

/// Does all jobs, `width` of them at a time, and reports each outcome at once. Nobody else may use the folder
/// `outputs`.
pub fn run_all(
    jobs: Vec<SuiteJob>,
    width: usize,
    outputs: &Path,
    limit: Duration,
    tell: impl FnMut(SuiteOutcome) + Send,
) {
    // The jobs, and the number of builds that may still add more.
    let queue = Mutex::new((VecDeque::from(jobs), 0));
    let tell = Mutex::new(tell);
    let next = || {
        loop {
            let (jobs, building) = &mut *queue.lock().expect("no job panics");
            if let Some(job) = jobs.pop_front() {
                *building += usize::from(matches!(job, SuiteJob::Build(..)));
                return Some(job);
            }
            if *building == 0 {
                return None;
            }
            // Polling suffices here. A condition variable would not be worth the code.
            thread::sleep(Duration::from_millis(20));
        }
    };
    thread::scope(|scope| {
        for _ in 0..width {
            scope.spawn(|| {
                while let Some(job) = next() {
                    let outcome = match job {
                        SuiteJob::Run(suite) => Some(run(suite, outputs, limit)),
                        SuiteJob::Build(name, build) => {
                            let start = Instant::now();
                            let (suites, built) = build();
                            let (jobs, building) = &mut *queue.lock().expect("no job panics");
                            suites.into_iter().rev().for_each(|suite| jobs.push_front(SuiteJob::Run(suite)));
                            *building -= 1;
                            built.err().map(|why| SuiteOutcome::of_nothing(name, start, &why))
                        }
                    };
                    if let Some(outcome) = outcome {
                        (tell.lock().expect("telling does not panic"))(outcome);
                    }
                }
            });
        }
    });
}

impl SuiteOutcome {
    /// Makes the outcome of a job that ran no test.
    fn of_nothing(name: impl Into<String>, start: Instant, why: &str) -> Self {
        Self {
            name: name.into(),
            tally: TestTally { failed: 1, ..TestTally::default() },
            output: format!("{why}\n").into_bytes(),
            start,
        }
    }
}

/// Runs one suite.
fn run(suite: Suite, outputs: &Path, limit: Duration) -> SuiteOutcome {
    let (start, name) = (Instant::now(), suite.name.clone());
    match try_run(suite, outputs, limit, start) {
        Ok(outcome) => outcome,
        Err(error) => SuiteOutcome::of_nothing(name, start, &format!("could not run it: {error}")),
    }
}

fn try_run(suite: Suite, outputs: &Path, limit: Duration, start: Instant) -> io::Result<SuiteOutcome> {
    let Suite { name, mut command } = suite;
    fs::create_dir_all(outputs)?;
    let path = outputs.join(format!("{}.log", name.replace(['/', ' '], "-")));
    let file = File::create(&path)?;
    // Both streams share one file description, which has one position. So their lines stay in order.
    command.env(MARK, &path).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file.try_clone()?);
    let mut child = command.spawn()?;
    let status = wait(&mut child, start + limit, &path)?;
    let mut output = fs::read(&path)?;
    let (tally, why) = match status {
        Ok(status) => judge(results_in(&output), status),
        Err(threads) => {
            let why = format!("{threads}KILLED: it had not ended after {limit:?}");
            (TestTally { failed: 1, ..TestTally::default() }, Some(why))
        }
    };
    if let Some(why) = why {
        writeln!(output, "{why}")?;
    }
    Ok(SuiteOutcome { name, tally, output, start })
}

/// Adds up the result lines. Returns `None` if there are none.
fn results_in(output: &[u8]) -> Option<TestTally> {
    String::from_utf8_lossy(output).lines().filter_map(TestTally::from_result_line).reduce(TestTally::plus)
}

/// Waits for the end. If the suite takes too long, kills it and returns what its threads waited for.
fn wait(child: &mut Child, deadline: Instant, output: &Path) -> io::Result<Result<ExitStatus, String>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Ok(status));
        }
        if Instant::now() > deadline {
            // The suite's own processes would continue to run, and might hold files and mounts.
            let started = family(child.id(), output);
            let threads = [child.id()].iter().chain(&started).map(|id| threads_of(*id)).collect();
            child.kill()?;
            kill(&started);
            // Also kill the processes that were started in the meantime. Until the wait, no other process
            // gets the child's number.
            kill(&family(child.id(), output));
            child.wait()?;
            return Ok(Err(threads));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Describes a process: its command, and a line for each of its threads with number, name, state, and place
/// in the kernel.
fn threads_of(process: u32) -> String {
    let folder = PathBuf::from(format!("/proc/{process}"));
    let read = |path: PathBuf| {
        let text = fs::read(path).unwrap_or_default();
        String::from_utf8_lossy(&text).replace('\0', " ").trim().to_owned()
    };
    let mut text = format!("process {process}: {}\n", read(folder.join("cmdline")));
    for task in fs::read_dir(folder.join("task")).into_iter().flatten().flatten() {
        let file = |name| read(task.path().join(name));
        let state = file("status")
            .lines()
            .find_map(|line| line.strip_prefix("State:"))
            .map(str::trim)
            .map(str::to_owned);
        text += &format!(
            "    {} {}: {}, {}, call {}\n",
            task.file_name().display(),
            file("comm"),
            state.unwrap_or_default(),
            file("wchan"),
            file("syscall"),
        );
    }
    text
}

fn kill(processes: &[u32]) {
    if !processes.is_empty() {
        let numbers = processes.iter().map(u32::to_string);
        let _ = Command::new("sh").args(["-c", "kill -KILL \"$@\"", "sh"]).args(numbers).status();
    }
}

/// Returns the processes below `top`, and those with the mark of its suite.
fn family(top: u32, output: &Path) -> Vec<u32> {
    let mark = [MARK.as_bytes(), b"=", output.as_os_str().as_bytes()].concat();
    let bears_mark = |id: u32| {
        let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark)
    };
    let processes: Vec<(u32, u32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let id = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
            let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
            Some((id, parent.trim().parse().ok()?))
        })
        .collect();
    let marked = processes.iter().map(|(id, _)| *id).filter(|&id| id != top && bears_mark(id));
    let mut family: Vec<u32> = [top].into_iter().chain(marked).collect();
    let mut looked_at = 0;
    while let Some(&parent) = family.get(looked_at) {
        for (id, _) in processes.iter().filter(|(_, of)| *of == parent) {
            if !family.contains(id) {
                family.push(*id);
            }
        }
        looked_at += 1;
    }
    family.split_off(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str) -> SuiteJob {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        SuiteJob::Run(Suite { name: name.into(), command })
    }

    /// Returns a folder of this process's own.
    fn folder(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("octavo-xtask-{}-{name}", std::process::id()))
    }

    fn outcomes(name: &str, jobs: Vec<SuiteJob>, limit: Duration) -> Vec<SuiteOutcome> {
        let outputs = folder(name);
        let mut ended = Vec::new();
        run_all(jobs, 2, &outputs, limit, |outcome| ended.push(outcome));
        fs::remove_dir_all(&outputs).ok();
        ended.sort_by(|one, other| one.name.cmp(&other.name));
        ended
    }

    fn text(outcome: &SuiteOutcome) -> String {
        String::from_utf8_lossy(&outcome.output).into_owned()
    }

    #[test]
    fn suites_run_side_by_side_and_their_outputs_do_not_mix() {
        // The two suites wait for each other. If they ran one after the other, they would never end.
        let meet = folder("meet");
        fs::create_dir_all(&meet).unwrap();
        let script = |mine: &str, other: &str| {
            format!(
                "cd {}; echo {mine} 1; touch {mine}; while ! test -e {other}; do sleep 0.01; done; echo {mine} 2 >&2; \
                 echo 'test result: ok. 2 passed; 0 failed'",
                meet.display()
            )
        };
        let jobs = vec![shell("left", &script("left", "right")), shell("right", &script("right", "left"))];
        let ended = outcomes("side", jobs, LIMIT);
        fs::remove_dir_all(&meet).unwrap();
        for (outcome, name) in ended.iter().zip(["left", "right"]) {
            let expected = format!("{name} 1\n{name} 2\ntest result: ok. 2 passed; 0 failed\n");
            assert_eq!(text(outcome), expected);
            assert_eq!(outcome.tally, TestTally { passed: 2, ..TestTally::default() });
        }
    }

    #[test]
    fn a_suite_that_crashes_is_named_and_counts_as_one_failure() {
        let ended = outcomes("crash", vec![shell("crashes", "echo before; kill -ABRT $$")], LIMIT);
        assert_eq!((ended[0].name.as_str(), ended[0].tally.failed), ("crashes", 1));
        assert!(text(&ended[0]).starts_with("before\nENDED EARLY"), "{}", text(&ended[0]));
        assert!(text(&ended[0]).contains("signal: 6"), "{}", text(&ended[0]));
    }

    #[test]
    fn a_failed_test_is_counted_once_and_a_program_that_is_missing_is_a_failure() {
        let missing =
            SuiteJob::Run(Suite { name: "missing".into(), command: Command::new("/does/not/exist") });
        let bad = shell("bad", "echo 'test result: FAILED. 1 passed; 2 failed; 0 ignored'; exit 101");
        let ended = outcomes("bad", vec![missing, bad], LIMIT);
        assert_eq!(ended[0].tally, TestTally { passed: 1, failed: 2, ignored: 0 });
        assert_eq!(ended[1].tally.failed, 1);
    }

    #[test]
    fn a_suite_that_hangs_is_killed_with_what_it_started() {
        let script = "echo started; sleep 1000 & echo $!; wait";
        let ended = outcomes("hang", vec![shell("hangs", script)], Duration::from_secs(1));
        let said = text(&ended[0]);
        assert!(said.contains("KILLED"), "{said}");
        assert!(said.contains(": sleep 1000\n") && said.contains(" sleep: S (sleeping), "), "{said}");
        assert_eq!(ended[0].tally.failed, 1);
        wait_for_the_end_of(said.lines().nth(1).expect("the shell said what it started"));
    }

    #[test]
    fn a_suite_that_hangs_is_killed_with_what_is_left_of_processes_that_have_ended() {
        // The process between the shell and the sleeper has ended.
        let script = "(sleep 1000 & echo $!); while :; do sleep 0.1; done";
        let ended = outcomes("orphan", vec![shell("orphan", script)], Duration::from_secs(1));
        let said = text(&ended[0]);
        assert!(said.contains("KILLED"), "{said}");
        wait_for_the_end_of(said.lines().next().expect("the shell said what it started"));
    }

    fn wait_for_the_end_of(process: &str) {
        let state = || fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let deadline = Instant::now() + Duration::from_secs(60);
        while state().lines().any(|line| line.starts_with("State:") && !line.contains('Z')) {
            assert!(Instant::now() < deadline, "process {process} lives on: {}", state());
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn suites_that_are_built_run_too_and_a_failed_build_is_a_failure() {
        let built = || {
            let mut command = Command::new("sh");
            command.args(["-c", "echo 'test result: ok. 7 passed; 0 failed'"]);
            vec![Suite { name: "built".into(), command }]
        };
        let jobs = vec![
            SuiteJob::Build("good", Box::new(move || (built(), Ok(())))),
            SuiteJob::Build("not built", Box::new(|| (Vec::new(), Err("no compiler".into())))),
        ];
        let ended = outcomes("built", jobs, LIMIT);
        assert_eq!((ended[0].name.as_str(), ended[0].tally.passed), ("built", 7));
        assert_eq!((ended[1].name.as_str(), ended[1].tally.failed), ("not built", 1));
        assert_eq!(text(&ended[1]), "no compiler\n");
    }

    #[test]
    fn a_suite_that_succeeds_without_a_result_is_a_failure() {
        let ended = outcomes("silent", vec![shell("silent", "echo running 3 tests; exit 0")], LIMIT);
        assert_eq!(ended[0].tally, TestTally { failed: 1, ..TestTally::default() });
        assert!(text(&ended[0]).contains("without a test result"), "{}", text(&ended[0]));
    }

    /// Makes cargo's message about a binary that it has built.
    fn message(is_test: bool) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/r/crates/a/Cargo.toml","target":{{"kind":["test"],"name":"x","src_path":"/r/crates/a/tests/x.rs","test":true}},"profile":{{"opt_level":"1","test":{is_test}}},"executable":"/r/target/debug/deps/x-1"}}"#
        )
    }

    #[test]
    fn only_messages_about_test_binaries_are_suites() {
        let suite = suite_in(&message(true), Path::new("/r")).unwrap().unwrap();
        assert_eq!(suite.name, "crates/a/tests/x.rs");
        assert_eq!(suite.command.get_program(), "/r/target/debug/deps/x-1");
        assert_eq!(suite.command.get_current_dir(), Some(Path::new("/r/crates/a")));
        for other in [message(false), r#"{"reason":"build-finished","success":true}"#.into()] {
            assert!(suite_in(&other, Path::new("/r")).unwrap().is_none());
        }
    }

    #[test]
    fn a_message_about_a_test_binary_that_cannot_be_read_is_an_error() {
        for (field, good, bad) in [
            ("executable", "\"/r/target/debug/deps/x-1\"", "null"),
            ("executable", "deps/x-1", r#"deps/\"x-1"#),
            ("src_path", "/r/crates/a/tests", r"/r/crates\\a/tests"),
            ("manifest_path", "manifest_path", "manifest"),
            ("profile", "\"profile\":{", "\"profiles\":[{"),
            ("test", "1\",\"test\":true", "1\",\"mode\":\"test\""),
        ] {
            let bad = message(true).replace(good, bad);
            assert_eq!(suite_in(&bad, Path::new("/r")).err(), Some(field), "{bad}");
        }
    }

    #[test]
    fn a_build_that_does_not_name_its_test_binaries_fails() {
        let build_of = |script: &str, message: String| {
            let mut command = Command::new("sh");
            command.args(["-c", script, "sh", &message]);
            build(command, Path::new("/r"))
        };
        let say = "printf '%s\\n' \"$1\"";
        let (suites, built) = build_of(say, message(true));
        assert_eq!((suites.len(), built), (1, Ok(())));
        let (_, built) = build_of(say, message(false));
        assert!(built.unwrap_err().contains("named no test binary"));
        let broken = message(true).replace("deps/x-1", r"deps\\x-1");
        // The other suites still run.
        let (suites, built) = build_of(say, format!("{broken}\n{}", message(true)));
        assert_eq!(suites.len(), 1);
        assert!(built.unwrap_err().contains("readable executable"));
        let (suites, built) = build_of(&format!("{say}; exit 101"), message(true));
        assert_eq!(suites.len(), 1);
        assert!(built.unwrap_err().starts_with("cargo failed"));
    }
}
