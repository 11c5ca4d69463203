//! Guardians in processes of their own. What they are entrusted with has memory that never ends: its descriptors are no userfaultfds.

use std::process::Child;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use super::*;
use crate::managed::tests::wait_until;

#[test]
#[ignore = "other tests run it in a process of its own, as a guardian"]
fn guardian() {
    guardian_main();
}

/// A process that ends with its test at the latest.
struct Ours(Child);

impl Ours {
    fn id(&self) -> u32 {
        self.0.id()
    }

    fn state(&self) -> u8 {
        proc::stat(self.id()).unwrap().state
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// A guardian that says what it has to say to a file.
struct Started {
    ward: Ward,
    process: Ours,
    said: tempfile::NamedTempFile,
}

impl Started {
    fn new() -> Self {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let said = tempfile::NamedTempFile::new().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "guardian::tests::guardian", "--ignored", "--nocapture"]);
        command.stdin(theirs).stdout(Stdio::null()).stderr(said.reopen().unwrap());
        let process = Ours(command.spawn().unwrap());
        Self { ward: Ward::new(ours, process.id()), process, said }
    }

    fn tell(&self, message: Message) {
        let memory = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let has_memory = message.what == MANAGED;
        self.ward.send(message, has_memory.then_some(memory.as_fd())).unwrap();
    }

    /// Ends the socket as the runner's death does.
    fn lose_runner(self) -> (Ours, tempfile::NamedTempFile) {
        (self.process, self.said)
    }
}

fn sleeper() -> Ours {
    Ours(Command::new("sleep").arg("1000").spawn().unwrap())
}

#[test]
fn what_stood_still_goes_on_and_the_sentence_is_said_though_somebody_survives() {
    let started = Started::new();
    let sleeper = sleeper();
    kill(sleeper.id(), Signal::STOP);
    wait_until(|| sleeper.state() == b'T');
    started.tell(Message { what: MANAGED, stack: 1, ..Message::default() });
    started.tell(Message { what: STOPPED, pid: sleeper.id(), ..Message::default() });
    let (guardian, said) = started.lose_runner();
    wait_until(|| sleeper.state() != b'T');
    wait_until(|| std::fs::read_to_string(said.path()).unwrap().contains("the runner has died"));
    assert_ne!(guardian.state(), b'Z', "it looks for whoever has the memory");
}

#[test]
fn a_process_is_killed_and_not_a_later_one_that_has_got_its_number() {
    let started = Started::new();
    let (process, later) = (sleeper(), sleeper());
    let start = |child: &Ours| start_of(child.id()).unwrap();
    let numbers = [(0, &process, start(&process)), (1, &later, start(&later) - 1)];
    for (key, child, start) in numbers {
        started.tell(Message { what: MANAGED, key, pid: child.id(), start, stack: 1 });
    }
    let (_guardian, said) = started.lose_runner();
    wait_until(|| process.state() == b'Z');
    wait_until(|| std::fs::read_to_string(said.path()).unwrap().contains("the runner has died"));
    assert_ne!(later.state(), b'Z', "it has the number, and has started later");
}

#[test]
fn what_the_runner_has_said_is_heard_though_it_ended_with_an_answer_unread() {
    let started = Started::new();
    let sleeper = sleeper();
    let (pid, start) = (sleeper.id(), start_of(sleeper.id()).unwrap());
    started.tell(Message { what: MANAGED, pid, start, stack: 1, ..Message::default() });
    started.tell(Message { what: ANSWER, ..Message::default() });
    let mut answered = [PollFd::new(&started.ward.socket, PollFlags::IN)];
    assert_eq!(poll(&mut answered, None), Ok(1));
    // As where the machine is busy: the guardian hears of everything at once, after the runner's end.
    kill(started.process.id(), Signal::STOP);
    wait_until(|| started.process.state() == b'T');
    started.tell(Message { what: ENDED, ..Message::default() });
    started.tell(Message { what: DONE, ..Message::default() });
    let (guardian, said) = started.lose_runner();
    kill(guardian.id(), Signal::CONT);
    wait_until(|| guardian.state() == b'Z');
    assert_eq!(std::fs::read_to_string(said.path()).unwrap(), "");
    assert_ne!(sleeper.state(), b'Z');
}

#[test]
fn a_guardian_that_may_not_have_a_descriptor_says_so_and_no_other_is_started() {
    let started = Started::new();
    started.tell(Message { what: ANSWER, ..Message::default() });
    wait_until(|| started.ward.last_answer() == Some(HAS_ALL));
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    prlimit(Pid::from_raw(started.process.id() as i32), Resource::Nofile, none).unwrap();
    started.tell(Message { what: MANAGED, stack: 1, ..Message::default() });
    wait_until(|| started.process.state() == b'Z');
    let error = Guardian(Arc::new(Mutex::new(started.ward))).start_again().unwrap_err().to_string();
    assert!(error.contains("it may not have enough descriptors"), "{error}");
}
