//! Movers in unmodified programs: what a program notices, and what errors say.

#[allow(dead_code, reason = "each suite uses a part of it")]
mod program;

use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use octavo_platform::process_memory::write_process;
use octavo_platform::userfaultfd::{Event, RegisterMode, Userfaultfd};
use octavo_stub::{Call, Inherited, InjectErrorKind, Mover, MoverError, Still};
use program::Program;

const STAGING_BYTES: u64 = 2 << 20;

fn inject(program: &Program) -> Mover {
    Mover::inject(program.pid(), STAGING_BYTES).unwrap().mover
}

/// A program that is a child of this process, and one that is not. Their movers have different parents.
fn both(role: &str) -> [Program; 2] {
    [Program::start(role), Program::start_apart(role)]
}

#[test]
fn a_mover_serves_batches_and_the_program_goes_on() {
    for mut program in both("idle") {
        let mover = inject(&program);
        mover.call(&mut []).unwrap();
        for _ in 0..100 {
            let mut calls = [mover.discard_call(), mover.discard_call()];
            mover.call(&mut calls).unwrap();
            assert_eq!(calls.map(|call| call.answer), [0, 0]);
        }
        program.tell();
        assert!(program.wait().success());
    }
}

#[test]
fn a_batch_may_have_all_the_calls_that_it_has_room_for_and_no_more() {
    let program = Program::start("idle");
    let mover = inject(&program);
    let mut calls = vec![mover.discard_call(); octavo_stub::CALLS + 1];
    assert_eq!(mover.call(&mut calls), Err(MoverError::TooLarge));
    calls.pop();
    calls.iter_mut().for_each(|call| call.answer = -1);
    mover.call(&mut calls).unwrap();
    assert!(calls.iter().all(|call| call.answer == 0));
}

#[test]
fn threads_descriptors_and_session_of_the_program_stay_as_they_were() {
    for program in both("idle") {
        let seen = |program: &Program| {
            let of = |field| program.status(field);
            (
                of("Threads:"),
                of("SigBlk:"),
                of("NSsid:"),
                of("TracerPid:"),
                of("Seccomp:"),
                program.descriptors(),
            )
        };
        let before = seen(&program);
        let mover = inject(&program);
        assert_eq!(seen(&program), before);
        assert_eq!(before.0, "1");
        let own = |what: &str| std::fs::read_to_string(format!("/proc/{}/{what}", mover.pid())).unwrap();
        assert!(own("status").contains("CapEff:\t0000000000000000\n"));
        assert!(own("status").contains("Seccomp:\t2\n") && own("status").contains("NoNewPrivs:\t1\n"));
        assert_eq!(own("comm"), "octavo-mover\n");
        assert_eq!(std::fs::read_dir(format!("/proc/{}/fd", mover.pid())).unwrap().count(), 4);
    }
}

#[test]
fn a_mover_can_make_no_other_calls() {
    let program = Program::start("idle");
    let mover = inject(&program);
    let forbidden = [libc::SYS_getpid, libc::SYS_openat, libc::SYS_mmap, libc::SYS_kill, libc::SYS_execve];
    let mut calls = forbidden.map(|number| Call::new(number, [0]));
    mover.call(&mut calls).unwrap();
    assert!(calls.iter().all(|call| call.answer == -i64::from(libc::EPERM)), "{calls:?}");
}

#[test]
fn a_wait_goes_on_through_an_injection() {
    let roles =
        ["epoll_wait", "sigtimedwait", "poll", "recv-timeout", "futex", "nanosleep", "sigsuspend", "read"];
    let agree = libc::EAGAIN;
    let work = roles.map(|role| {
        thread::spawn(move || {
            let mut program = Program::start(role);
            let mut movers = Vec::new();
            // One injection is enough if the thread waits already. The second one makes it likelier that the
            // thread waits.
            for _ in 0..2 {
                thread::sleep(Duration::from_millis(100));
                movers.push(inject(&program));
            }
            if role == "read" {
                program.tell();
            }
            (role, program.line())
        })
    });
    for work in work {
        let (role, line) = work.join().unwrap();
        let expected = match role {
            "epoll_wait" | "poll" | "nanosleep" => "0 0".into(),
            "sigtimedwait" | "recv-timeout" => format!("-1 {agree}"),
            "futex" => format!("-1 {}", libc::ETIMEDOUT),
            "sigsuspend" => format!("-1 {}", libc::EINTR),
            _ => "1 0".into(),
        };
        assert_eq!(line, expected, "{role}");
    }
}

#[test]
fn a_wait_goes_on_through_a_standstill() {
    let agree = libc::EAGAIN;
    let roles =
        [("epoll_wait", "0 0".into()), ("recv-timeout", format!("-1 {agree}")), ("nanosleep", "0 0".into())];
    for (role, expected) in roles {
        let mut program = Program::start(role);
        let mover = inject(&program);
        for _ in 0..2 {
            thread::sleep(Duration::from_millis(50));
            // On a busy machine, several tries may be needed.
            let mut tries = 0..1000;
            assert!(tries.any(|_| Still::hold(program.pid(), mover.pid()).is_some()), "{role}");
        }
        assert_eq!(program.line(), expected, "{role}");
    }
}

#[test]
fn a_stopped_program_gets_a_mover_and_stays_stopped() {
    let mut program = Program::start("idle");
    let send = |signal| {
        // SAFETY: the process is the test's own child.
        unsafe { libc::kill(program.pid() as i32, signal) }
    };
    assert_eq!(send(libc::SIGSTOP), 0);
    while !program.status("State:").starts_with('T') {
        thread::yield_now();
    }
    let mover = inject(&program);
    assert!(program.status("State:").starts_with('T'));
    mover.discard().unwrap();
    assert_eq!(send(libc::SIGCONT), 0);
    program.tell();
    assert!(program.wait().success());
}

#[test]
fn a_killed_mover_is_an_error_and_another_one_can_follow() {
    for program in both("idle") {
        let mover = inject(&program);
        // SAFETY: the process was made for the test.
        assert_eq!(unsafe { libc::kill(mover.pid() as i32, libc::SIGKILL) }, 0);
        assert_eq!(mover.call(&mut [mover.discard_call()]), Err(MoverError::Ended));
        assert_eq!(mover.discard(), Err(MoverError::Ended));
        assert!(mover.has_ended());
        inject(&program).discard().unwrap();
    }
}

#[test]
fn a_program_that_stores_over_the_mailbox_harms_itself_only() {
    let program = Program::start("idle");
    let mover = inject(&program);
    let (scratch, bytes) = mover.request_address();
    let all = vec![0xff; bytes + 8192];
    write_process(program.pid(), scratch - 8192, &all).unwrap();
    // The mover makes 127 pointless calls, and still answers.
    let mut calls = [mover.discard_call()];
    mover.call(&mut calls).unwrap();
    assert_eq!(calls[0].answer, 0);
}

#[test]
fn a_program_that_has_ended_is_gone() {
    let mut program = Program::start("idle");
    let pid = program.pid();
    program.tell();
    // The program is a zombie until its parent waits for it.
    while !program.status("State:").starts_with('Z') {
        thread::yield_now();
    }
    assert_eq!(Mover::inject(pid, STAGING_BYTES).unwrap_err().kind(), InjectErrorKind::Gone);
    program.wait();
    assert_eq!(Mover::inject(pid, STAGING_BYTES).unwrap_err().kind(), InjectErrorKind::Gone);
}

#[test]
fn a_mover_ends_with_its_program() {
    for mut program in both("idle") {
        let mover = inject(&program);
        program.tell();
        program.wait();
        while !mover.has_ended() {
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(mover.discard(), Err(MoverError::Ended));
    }
}

#[test]
fn a_mover_ends_with_its_runner() {
    let program = Program::start("idle");
    let pid = program.pid();
    let code = octavo_platform::run_in_forked_child(|| {
        // The runner ends without cleaning up.
        std::mem::forget(Mover::inject(pid, STAGING_BYTES).unwrap());
        0
    });
    assert_eq!(code.unwrap(), 0);
    let movers = || {
        let found = std::fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
            let file = |name| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
            file("status").contains(&format!("PPid:\t{pid}\n")) && !file("status").contains("State:\tZ")
        });
        found.count()
    };
    while movers() > 0 {
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(program.finish(), "");
}

#[test]
fn a_mover_of_a_child_is_reaped_when_it_ends_and_also_when_it_could_not_serve() {
    let is_there = |pid: u32| std::path::Path::new(&format!("/proc/{pid}")).exists();
    let program = Program::start("idle");
    let mover = inject(&program);
    assert!(is_there(mover.pid()));
    mover.end();
    mover.end();
    assert!(!is_there(mover.pid()));
    let code = octavo_platform::run_in_forked_child(|| {
        let program = Program::start("seccomp-errno");
        Mover::inject(program.pid(), STAGING_BYTES).unwrap_err();
        drop(program);
        // SAFETY: no status is asked for. Every child of this process has been waited for.
        u8::from(unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) } != -1)
    });
    assert_eq!(code.unwrap(), 0);
}

#[test]
fn a_forked_child_does_not_have_the_range() {
    let layout: [fn(&Mover) -> u64; 4] = [
        |mover| mover.range().start,
        |mover| mover.request_address().0,
        |mover| mover.staging().0[0],
        |mover| mover.staging().0[1],
    ];
    for address in layout {
        let mut program = Program::start("fork");
        let mover = inject(&program);
        program.say(&format!("{:x}\n", address(&mover)));
        // Descriptor A has fork events. Nothing of the program is registered, so no such event comes. A fork
        // with an event would wait for a reader.
        let mut events = Vec::new();
        thread::scope(|scope| {
            let line = scope.spawn(|| program.line());
            while !line.is_finished() {
                mover.faults().read(&mut events).unwrap();
                thread::yield_now();
            }
            assert_eq!(line.join().unwrap(), "mapped 0");
        });
        assert!(events.is_empty(), "{events:?}");
    }
}

#[test]
fn the_wait_of_the_program_does_not_see_the_mover() {
    for program in both("wait") {
        let _mover = inject(&program);
        assert_eq!(program.finish(), format!("-1 {}", libc::ECHILD));
    }
}

#[test]
fn a_pipe_ends_when_the_program_closes_it_although_a_mover_lives() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_octavo-stub-program"));
    let mut program = Program::start_by(command.arg("pipe").stderr(Stdio::piped()));
    // The command holds no end of the pipe itself.
    drop(command);
    let mut pipe = program.child().stderr.take().unwrap();
    let mover = inject(&program);
    program.tell();
    assert_eq!(program.line(), "closed");
    // If the end of file comes at all, it is there at once. So the read does not wait.
    rustix::io::ioctl_fionbio(&pipe, true).unwrap();
    assert_eq!(pipe.read(&mut [0]).unwrap(), 0);
    assert!(!mover.has_ended());
}

#[test]
fn a_program_with_a_deadly_filter_survives_and_has_a_mover() {
    let program = Program::start("seccomp-kill");
    let mover = inject(&program);
    mover.discard().unwrap();
    drop(mover);
    assert_eq!(program.finish(), "alive");
}

#[test]
fn a_filter_that_would_refuse_the_work_is_an_error_of_its_own() {
    let program = Program::start("seccomp-errno");
    let error = Mover::inject(program.pid(), STAGING_BYTES).unwrap_err();
    assert_eq!(error.kind(), InjectErrorKind::Seccomp, "{error}");
    assert_eq!(program.finish(), "alive");
}

#[test]
fn a_program_under_a_debugger_is_refused() {
    let program = Program::start("idle");
    assert!(!octavo_stub::is_traced(program.pid()));
    // SAFETY: the call attaches to the test's own child, and this thread's end lets it go.
    let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, program.pid(), 0usize, 0usize) };
    assert_eq!(seized, 0);
    assert!(octavo_stub::is_traced(program.pid()));
    let error = Mover::inject(program.pid(), STAGING_BYTES).unwrap_err();
    assert_eq!(error.kind(), InjectErrorKind::Traced, "{error}");
}

#[test]
fn the_program_of_another_user_is_refused_to_an_ordinary_one_and_served_for_root() {
    let program = Program::start("idle");
    let pid = program.pid();
    let code = octavo_platform::run_in_forked_child(|| {
        // SAFETY: the child has one thread, and changes its own user only.
        assert_eq!(unsafe { libc::setuid(65534) }, 0);
        let error = Mover::inject(pid, STAGING_BYTES).unwrap_err();
        u8::from(error.kind() != InjectErrorKind::NotPermitted)
    });
    assert_eq!(code.unwrap(), 0);
    assert_eq!(program.finish(), "");

    let program = Program::start("other-user");
    let mover = inject(&program);
    mover.discard().unwrap();
    assert_eq!(program.status("CapEff:"), "0000000000000000");
}

#[test]
fn a_mover_cannot_be_put_into_the_runner_itself() {
    let error = Mover::inject(std::process::id(), STAGING_BYTES).unwrap_err();
    assert_eq!(error.kind(), InjectErrorKind::Unsupported);
    let program = Program::start("idle");
    for odd in [0, 1, 4097, 2 << 30] {
        assert_eq!(Mover::inject(program.pid(), odd).unwrap_err().kind(), InjectErrorKind::Unsupported);
    }
}

#[test]
fn a_program_in_the_container_of_the_runner_is_served_under_its_filter() {
    let code = octavo_platform::run_in_forked_child(|| {
        // The filter applies to this child and to the program.
        octavo_platform::forbid_io_uring().unwrap();
        let program = Program::start("idle");
        inject(&program).discard().unwrap();
        u8::from(program.status("Seccomp_filters:") != "1")
    });
    assert_eq!(code.unwrap(), 0);
}

/// Makes a program with watched memory fork: it waits until the event is read. Returns the program, its
/// mover, and the start of the memory.
fn forking() -> (Program, Mover, u64) {
    let mut program = Program::start("fork-pages");
    let mover = inject(&program);
    let (start, len) = program.memory();
    // SAFETY: the memory is another process's.
    unsafe { mover.faults().register(start, len, RegisterMode { missing: true, write_protect: true }) }
        .unwrap();
    program.tell();
    (program, mover, start)
}

#[test]
fn a_forks_descriptor_is_refused_for_every_process_but_the_child_and_nothing_is_done_by_it() {
    let (mut program, mover, start) = forking();
    let mut events = Vec::new();
    let descriptors = [(); 2].map(|()| {
        while mover.faults().read(&mut events).unwrap() == 0 {
            thread::yield_now();
        }
        match events.pop() {
            Some(Event::Fork(descriptor)) => Userfaultfd::of_fork(descriptor, mover.faults().features()),
            event => panic!("{event:?}"),
        }
    });
    let line = program.line();
    let children: Vec<u32> = line.split(' ').map(|number| u32::from_str_radix(number, 16).unwrap()).collect();
    let inject_into = |pid, descriptor: &Userfaultfd| {
        // The first address is watched nowhere.
        let inherited = Inherited { faults: descriptor.share().unwrap(), watched: vec![1 << 16, start] };
        Mover::inject_into_fork(pid, STAGING_BYTES, inherited).map(|injected| injected.mover)
    };
    let watched = |pid| {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
        maps.lines().filter(|line| line.starts_with("VmFlags:") && line.contains(" uw ")).count()
    };
    let mut movers = Vec::new();
    for (index, descriptor) in descriptors.iter().enumerate() {
        let (child, other) = (children[index], children[1 - index]);
        let before = [child, other].map(watched);
        for pid in [other, program.pid()] {
            let refused = inject_into(pid, descriptor).unwrap_err();
            assert_eq!(refused.kind(), InjectErrorKind::AnotherProcess, "{refused}");
        }
        assert_eq!([child, other].map(watched), before);
        movers.push(inject_into(child, descriptor).unwrap());
    }
    movers.iter().for_each(|mover| mover.discard().unwrap());
}

/// Returns whether the kernel tells whose memory a descriptor is for even if the descriptor watches nothing
/// there (since Linux 6.9).
fn tells_without_watched_memory() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.trim().parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(9))
}

#[test]
fn a_descriptor_is_known_though_it_watches_nothing_that_pages_can_move_to() {
    let (program, other) = (Program::start("idle-pages"), Program::start("idle-pages"));
    let mover = inject(&program);
    // Addresses that are not watched are refused like no addresses at all.
    for watched in [vec![], vec![program.memory().0]] {
        let inject_into = |program: &Program| {
            let inherited = Inherited { faults: mover.faults().share().unwrap(), watched: watched.clone() };
            Mover::inject_into_fork(program.pid(), STAGING_BYTES, inherited).map(|injected| injected.mover)
        };
        let refused = inject_into(&other).unwrap_err();
        if tells_without_watched_memory() {
            assert_eq!(refused.kind(), InjectErrorKind::AnotherProcess, "{refused}");
        }
        match inject_into(&program) {
            Ok(mover) => mover.discard().unwrap(),
            Err(refused) => {
                assert!(!tells_without_watched_memory(), "{refused}");
            }
        }
    }
}

#[test]
fn of_a_descriptor_with_unread_events_it_is_not_known_whose_memory_it_is_for() {
    let (mut program, mover, start) = forking();
    let is_unread = || {
        let asked = mover.faults().write_protect(start, 4096, true);
        asked.is_err_and(|error| error.raw_os_error() == Some(libc::EAGAIN))
    };
    while !is_unread() {
        thread::yield_now();
    }
    let other = Program::start("idle");
    let inject_into = |program: &Program| {
        let inherited = Inherited { faults: mover.faults().share().unwrap(), watched: vec![start] };
        Mover::inject_into_fork(program.pid(), STAGING_BYTES, inherited)
    };
    let refused = inject_into(&other).unwrap_err();
    assert_eq!(refused.kind(), InjectErrorKind::Changing, "{refused}");
    // The program forks twice, and then prints a line.
    let (mut events, mut count) = (Vec::new(), 0);
    while count < 2 {
        count += mover.faults().read(&mut events).unwrap();
    }
    program.line();
    let refused = inject_into(&other).unwrap_err();
    assert_eq!(refused.kind(), InjectErrorKind::AnotherProcess, "{refused}");
}
