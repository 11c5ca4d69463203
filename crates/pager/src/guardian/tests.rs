//! Guardians and runners in separate processes, which run this program again.

use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, Ordering};

use octavo::PAGE_BYTES;
use octavo_platform::ZeroedArray;
use octavo_platform::userfaultfd::Features;
use octavo_window::{Target, Windows};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};

use super::*;
use crate::managed::tests::wait_until;

#[test]
#[ignore = "other tests run it in a process of its own, as a guardian"]
fn guardian() {
    guardian_main();
}

/// Read-locked while a process is started, and write-locked by a test whose process inherits a descriptor of
/// this process's memory. No other process must inherit that descriptor, since its guardians would wait until
/// the memory ends.
static STARTING: RwLock<()> = RwLock::new(());

/// A process that ends with its test at the latest.
struct Ours(Child);

impl Ours {
    /// Starts this program again, as one of the tests for this purpose.
    fn this_program(test: &str, set_up: impl FnOnce(&mut Command)) -> Self {
        let mut command = Self::command(test);
        set_up(&mut command);
        let _alone = STARTING.read().unwrap();
        Self(command.spawn().unwrap())
    }

    fn command(test: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("guardian::tests::{test}"), "--ignored", "--nocapture"]);
        command
    }

    fn sleeper() -> Self {
        let _alone = STARTING.read().unwrap();
        Self(Command::new("sleep").arg("1000").spawn().unwrap())
    }

    fn id(&self) -> u32 {
        self.0.id()
    }

    fn state(&self) -> u8 {
        proc::stat(self.id()).unwrap().state
    }

    fn stop(&self) {
        kill(self.id(), Signal::STOP);
        wait_until(|| self.state() == b'T');
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// Starts a guardian whose runner is dead already, and which prints to a file.
fn guardian_of(list: &EntrustedList) -> (Ours, tempfile::NamedTempFile) {
    let _alone = STARTING.read().unwrap();
    start_guardian_of(list)
}

/// Like [`guardian_of`], for a caller that holds [`STARTING`].
fn start_guardian_of(list: &EntrustedList) -> (Ours, tempfile::NamedTempFile) {
    let said = tempfile::NamedTempFile::new().unwrap();
    let mut command = Ours::command("guardian");
    let input = list.file.try_clone().unwrap();
    command.stdin(input).stdout(Stdio::null()).stderr(said.reopen().unwrap());
    (Ours(command.spawn().unwrap()), said)
}

fn has_said(said: &tempfile::NamedTempFile) -> bool {
    std::fs::read_to_string(said.path()).unwrap().contains("the runner has died")
}

/// This process's memory stays alive, and a guardian has a descriptor of it.
#[test]
fn what_stood_still_goes_on_and_the_sentence_is_said_though_somebody_survives() {
    if !Windows::is_allowed() {
        return;
    }
    let memory = Userfaultfd::of_this_process(Features::NONE).unwrap();
    let (sleeper, mut list) = (Ours::sleeper(), EntrustedList::new().unwrap());
    sleeper.stop();
    list.put(EntrustedProcess { what: Trust::Managed, stack: 1, ..EntrustedProcess::default() }).unwrap();
    list.put(EntrustedProcess { what: Trust::Stopped, pid: sleeper.id(), ..EntrustedProcess::default() })
        .unwrap();
    let (guardian, said) = {
        let _alone = STARTING.write().unwrap();
        fcntl_setfd(&memory, FdFlags::empty()).unwrap();
        let started = start_guardian_of(&list);
        fcntl_setfd(&memory, FdFlags::CLOEXEC).unwrap();
        started
    };
    wait_until(|| sleeper.state() != b'T');
    wait_until(|| has_said(&said));
    assert_ne!(guardian.state(), b'Z', "it looks for whoever has the memory");
}

#[test]
fn a_process_is_killed_and_not_a_later_one_that_has_got_its_number() {
    let (process, later, mut list) = (Ours::sleeper(), Ours::sleeper(), EntrustedList::new().unwrap());
    let start = |child: &Ours| start_of(child.id()).unwrap();
    for (child, start) in [(&process, start(&process)), (&later, start(&later) - 1)] {
        list.put(EntrustedProcess { what: Trust::Managed, pid: child.id(), start, stack: 1 }).unwrap();
    }
    let (guardian, said) = guardian_of(&list);
    wait_until(|| guardian.state() == b'Z');
    assert!(has_said(&said));
    wait_until(|| process.state() == b'Z');
    assert_ne!(later.state(), b'Z', "it has the number, and has started later");
    let (guardian, said) = guardian_of(&list);
    wait_until(|| guardian.state() == b'Z');
    assert!(!has_said(&said), "nothing is left for the other guardian");
}

/// A runner, and a process whose number it prints.
struct Runner {
    runner: Ours,
    guards: Vec<u32>,
    process: u32,
}

impl Runner {
    fn start(test: &str, set_up: impl FnOnce(&mut Command)) -> Self {
        let mut runner = Ours::this_program(test, |command| {
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
            set_up(command);
        });
        let process = number_behind("ready ", &mut BufReader::new(runner.0.stdout.take().unwrap()));
        let mut guards = Vec::new();
        wait_until(|| {
            guards.clear();
            proc::children(runner.id(), &mut guards).unwrap();
            guards.retain(|pid| is_guardian(*pid));
            guards.len() == COUNT
        });
        Self { runner, guards, process: process as u32 }
    }
}

/// Reads lines until one contains a word, and returns the number behind it.
fn number_behind(word: &str, lines: &mut BufReader<ChildStdout>) -> u64 {
    lines
        .lines()
        .map(Result::unwrap)
        .find_map(|line| Some(line.split_once(word)?.1.parse().unwrap()))
        .unwrap()
}

/// Waits until this process is killed.
fn wait_to_be_killed(process: u32) -> ! {
    println!("ready {process}");
    loop {
        std::thread::park();
    }
}

#[test]
#[ignore = "another test runs it in a process of its own, as a runner"]
fn runner_of_one_that_stands_still() {
    let guardian = Guardian::new().unwrap();
    guardian.complete().unwrap();
    let pid = std::env::var("OCTAVO_TEST_STOPPED").unwrap().parse().unwrap();
    guardian.stopped(pid);
    kill(pid, Signal::STOP);
    wait_to_be_killed(pid);
}

#[test]
fn what_stands_still_goes_on_though_a_guardian_is_killed_with_the_runner() {
    for which in 0..COUNT {
        let sleeper = Ours::sleeper();
        let Runner { runner, guards, .. } = Runner::start("runner_of_one_that_stands_still", |command| {
            command.env("OCTAVO_TEST_STOPPED", sleeper.id().to_string());
        });
        wait_until(|| sleeper.state() == b'T');
        [guards[which], runner.id()].into_iter().for_each(|pid| kill(pid, Signal::KILL));
        wait_until(|| sleeper.state() != b'T');
        wait_until(|| guards.iter().all(|pid| proc::stat(*pid).is_none_or(|stat| stat.state == b'Z')));
    }
}

#[test]
#[ignore = "another test runs it in a process of its own, as a runner"]
fn runner_that_has_given_up() {
    let guardian = Guardian::new().unwrap();
    let guards = guardian.complete().unwrap();
    let entrusted = guardian.entrust(None, 1).unwrap();
    drop(guardian);
    let are_there =
        |guards: &[u32]| guards.iter().all(|pid| proc::stat(*pid).is_some_and(|stat| stat.state != b'Z'));
    assert!(are_there(&guards), "something is in their care still");
    drop(entrusted);
    assert!(guards.iter().all(|pid| proc::stat(*pid).is_none()));
}

/// A run may end early, by an error of the kernel, in a process that continues.
#[test]
fn guardians_end_with_the_last_that_could_entrust_something_to_them() {
    let mut runner = Ours::this_program("runner_that_has_given_up", |command| {
        command.stdin(Stdio::null()).stdout(Stdio::null());
    });
    assert!(runner.0.wait().unwrap().success());
}

#[test]
#[ignore = "another test runs it in a process of its own, as a program"]
fn program_that_wants_a_page() {
    let words = ZeroedArray::<AtomicU64>::new(PAGE_BYTES / 8).unwrap();
    let memory = Userfaultfd::of_this_process(Features::NONE).unwrap();
    println!("descriptor {}", memory.as_fd().as_raw_fd());
    println!("address {}", &raw const words[0] as u64);
    std::io::stdin().lines().next();
    drop(memory);
    let read = words[0].load(Ordering::Relaxed);
    std::fs::write(std::env::var_os("OCTAVO_TEST_FINDING").unwrap(), read.to_string()).unwrap();
}

#[test]
#[ignore = "another test runs it in a process of its own, as a runner"]
fn runner_that_has_just_read_of_a_fork() {
    let guardian = Guardian::new().unwrap();
    guardian.complete().unwrap();
    let mut program = Ours::this_program("program_that_wants_a_page", |command| {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
    });
    let mut told = BufReader::new(program.0.stdout.take().unwrap());
    let (number, address) = (number_behind("descriptor ", &mut told), number_behind("address ", &mut told));
    // The guardians know only the address of the family's stack.
    let stack = proc::stat(program.id()).unwrap().stack;
    let _parent = guardian.entrust(None, stack).unwrap();
    let process = Pid::from_raw(program.id() as i32).unwrap();
    let process = pidfd_open(process, PidfdFlags::empty()).unwrap();
    let memory = pidfd_getfd(process, number as i32, PidfdGetfdFlags::empty()).unwrap();
    let memory = Target::new(Userfaultfd::of_fork(memory, Features::NONE));
    memory.watch(address, PAGE_BYTES as u64).unwrap();
    program.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    wait_to_be_killed(program.id());
}

/// The program is like a fork's child whose descriptor the runner has read, but which it has not entrusted
/// yet.
#[test]
fn a_program_whose_descriptor_only_a_dead_runner_knew_reads_no_zeros_and_is_killed() {
    if !Windows::is_allowed() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let finding = folder.path().join("finding");
    let Runner { runner, process, .. } = Runner::start("runner_that_has_just_read_of_a_fork", |command| {
        command.env("OCTAVO_TEST_FINDING", &finding);
    });
    kill(runner.id(), Signal::KILL);
    wait_until(|| proc::stat(process).is_none_or(|stat| stat.state == b'Z'));
    assert!(!finding.exists(), "it read a byte that nobody had put there");
}
