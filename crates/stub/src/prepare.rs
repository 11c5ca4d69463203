//! Prepares the new process before it serves: its address range, its loop, its descriptors, its limits.
//!
//! The first steps use ptrace. As soon as the loop runs, it makes the remaining calls, which is faster. The
//! process stays traced meanwhile, so that the program's filters can be suspended, and so that the process
//! ends if the runner does.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::Duration;

use octavo_platform::process_memory::write_process;
use octavo_platform::userfaultfd::{Features, RegisterMode, Userfaultfd, open_device, wire};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::code;
use crate::confine;
use crate::error::{InjectError, InjectErrorKind, MoverError, no_stop};
use crate::layout::{CODE_BYTES, Layout, MAILBOX_BYTES, PAGE};
use crate::mailbox::{CALLS, Call, Mailbox, SCRATCH_AT, UNREPORTED};
use crate::reasons;
use crate::rights::{events, moves, no_userfaultfd};
use crate::tracee::{ALL_SIGNALS, Tracee};

/// How often to ask the kernel to which process's memory a descriptor belongs, and the pause in between. The
/// kernel gives no answer while an event of the descriptor is unread. The reader of the events may be busy
/// for long, so the tries are few.
const TRIES: u32 = 10;
const BETWEEN_TRIES: Duration = Duration::from_millis(1);
/// The lowest address that a program may use. Usually nothing is mapped there.
const NOWHERE: u64 = 1 << 16;

/// The descriptor that a fork event brought for the child's memory, with pages that it watches.
#[derive(Debug)]
pub struct Inherited {
    /// The descriptor.
    pub faults: Userfaultfd,
    /// Addresses of pages that it watches, in readable and writable mappings. On Linux 6.8, at least one of
    /// the pages must still be watched in such a mapping, and must not be locked.
    pub watched: Vec<u64>,
}

/// The parts of a mover.
#[derive(Debug)]
pub struct Parts {
    pub layout: Layout,
    pub mailbox: Mailbox,
    /// The numbers of the two descriptors in the mover.
    pub numbers: [u64; 2],
    /// The runner's copies of the two descriptors.
    pub faults: Userfaultfd,
    pub quiet: Userfaultfd,
}

/// Prepares the stopped new process, and detaches from it.
pub fn prepare(
    pid: u32,
    child: &Tracee,
    at: u64,
    process: &OwnedFd,
    staging_bytes: u64,
    inherited: Option<Inherited>,
) -> Result<Parts, InjectError> {
    let setup = MoverSetup { pid, child, at, process };
    let (layout, mailbox) = setup.place(staging_bytes)?;
    let mut serving = ServingProcess { setup, layout, mailbox };
    serving.settle()?;
    let mut numbers = serving.make_descriptors()?;
    let quiet = serving.agree(numbers[1], moves())?;
    let faults = match inherited {
        None => serving.agree(numbers[0], moves() | events())?,
        Some(Inherited { faults, watched }) => {
            numbers[0] = u64::from(serving.hand_over(&[faults.as_fd()])?[0]);
            serving.check_identity(numbers, &watched)?;
            faults
        }
    };
    serving.watch_staging(&faults, &quiet)?;
    serving.confine(&confine::MOVES)?;
    let (layout, mailbox) = serving.let_go()?;
    Ok(Parts { layout, mailbox, numbers, faults, quiet })
}

/// Prepares the stopped new process as one that maps a file, and detaches from it. Returns its own number of
/// the file, too.
pub fn prepare_for_files(
    pid: u32,
    child: &Tracee,
    at: u64,
    process: &OwnedFd,
    file: BorrowedFd<'_>,
) -> Result<(Layout, Mailbox, u64), InjectError> {
    let setup = MoverSetup { pid, child, at, process };
    let (layout, mailbox) = setup.place(PAGE)?;
    let mut serving = ServingProcess { setup, layout, mailbox };
    serving.settle()?;
    let [runner, program] = serving.watched()?;
    let given = serving.hand_over(&[runner.as_fd(), program.as_fd(), file])?;
    serving.mailbox.watch([given[0], given[1]]);
    serving.confine(&confine::MAPS)?;
    let (layout, mailbox) = serving.let_go()?;
    Ok((layout, mailbox, given[2].into()))
}

#[derive(Clone, Copy)]
struct MoverSetup<'a> {
    pid: u32,
    child: &'a Tracee,
    at: u64,
    process: &'a OwnedFd,
}

impl MoverSetup<'_> {
    fn call(&self, step: &str, number: libc::c_long, arguments: [u64; 6]) -> Result<u64, InjectError> {
        let answer = self.child.remote_call(self.at, number, arguments).map_err(no_stop)?;
        let call = Call { answer, ..Call::default() };
        call.result().map_err(|error| InjectError::system(step, error))
    }

    /// Takes a copy of one of the mover's descriptors.
    fn take(&self, number: u64) -> Result<OwnedFd, InjectError> {
        pidfd_getfd(self.process, number as i32, PidfdGetfdFlags::empty())
            .map_err(|error| InjectError::system("taking a descriptor of the mover", error))
    }

    /// Maps the range, the code and the mailbox, and starts the loop.
    fn place(&self, staging_bytes: u64) -> Result<(Layout, Mailbox), InjectError> {
        const UNSHARE: u64 = 2;
        self.call(
            "letting the program's descriptors go",
            libc::SYS_close_range,
            [0, u32::MAX.into(), UNSHARE, 0, 0, 0],
        )?;
        let (read, write, execute) =
            (libc::PROT_READ as u64, libc::PROT_WRITE as u64, libc::PROT_EXEC as u64);
        let len = Layout::bytes_for(staging_bytes);
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
        let start = self.call(
            "reserving addresses in the program",
            libc::SYS_mmap,
            [0, len, read | write, flags, u64::MAX, 0],
        )?;
        // If the program forks meanwhile, its child gets only an untouched range.
        self.call(
            "keeping the range from forks",
            libc::SYS_madvise,
            [start, len, libc::MADV_DONTFORK as u64, 0, 0, UNREPORTED],
        )?;
        let layout = Layout::at(start, staging_bytes);
        write_process(self.child.tid(), layout.code, b"octavo\0")
            .map_err(|error| InjectError::system("writing to the program", error))?;
        // The file itself need not be executable: it can still be mapped as executable.
        let file_flags = u64::from(libc::MFD_CLOEXEC | libc::MFD_NOEXEC_SEAL);
        let number =
            self.call("making a shared page", libc::SYS_memfd_create, [layout.code, file_flags, 0, 0, 0, 0])?;
        let file = self.take(number)?;
        let mailbox = Mailbox::new(file.as_fd(), code::bytes())
            .map_err(|error| InjectError::system("mapping the shared page", error))?;
        let fixed = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
        self.call(
            "mapping the mover's code",
            libc::SYS_mmap,
            [layout.code, CODE_BYTES, read | execute, fixed, number, 0],
        )?;
        self.call(
            "mapping the mailbox",
            libc::SYS_mmap,
            [layout.mailbox, MAILBOX_BYTES, read | write, fixed, number, CODE_BYTES],
        )?;
        self.start(&layout).map_err(|error| InjectError::system("starting the mover", error))?;
        Ok((layout, mailbox))
    }

    fn start(&self, layout: &Layout) -> Result<(), Errno> {
        let mut registers = self.child.registers()?;
        registers.rip = layout.code;
        registers.rbx = layout.mailbox;
        registers.r12 = 0;
        registers.orig_rax = u64::MAX;
        // Set no other state: the loop uses none of it, not even the direction flag.
        self.child.set_registers(&registers)?;
        self.child.set_signal_mask(ALL_SIGNALS)?;
        self.child.resume(libc::PTRACE_CONT, 0)
    }
}

/// The new process, once it runs its loop.
struct ServingProcess<'a> {
    setup: MoverSetup<'a>,
    layout: Layout,
    mailbox: Mailbox,
}

impl ServingProcess<'_> {
    /// Returns the address in the program of an offset in the scratch memory.
    fn scratch(&self, at: usize) -> u64 {
        self.layout.mailbox + (SCRATCH_AT + at) as u64
    }

    fn calls(&mut self, step: &str, calls: &mut [Call]) -> Result<(), InjectError> {
        self.mailbox.call(self.setup.process.as_fd(), calls).map_err(|error| serve(step, error))?;
        for call in calls {
            call.result().map_err(|error| InjectError::system(step, error))?;
        }
        Ok(())
    }

    /// Leaves the program's session and directory, and sets up the range.
    fn settle(&mut self) -> Result<(), InjectError> {
        let Layout { start, len, staging_1, staging_2, staging_bytes, .. } = self.layout;
        // The scratch memory gets a path, a name, and two limits of zero.
        self.mailbox.write_scratch(0, &[u64::from_le_bytes(*b"/\0\0\0\0\0\0\0")]);
        self.mailbox
            .write_scratch(8, &[u64::from_le_bytes(*b"octavo-m"), u64::from_le_bytes(*b"over\0\0\0\0")]);
        self.mailbox.write_scratch(24, &[0, 0]);
        let [root, name, no_limits] = [0, 8, 24].map(|at| self.scratch(at));
        let advise = |start, len, advice: i32| {
            Call::new(libc::SYS_madvise, [start, len, advice as u64, 0, 0, UNREPORTED])
        };
        let mut calls = [
            // Closes the shared file, which stays mapped.
            Call::new(libc::SYS_close_range, [0, u64::from(u32::MAX), 0]),
            Call::new(libc::SYS_setsid, []),
            Call::new(libc::SYS_prctl, [libc::PR_SET_NAME as u64, name, 0, 0, 0]),
            // The program's memory must not end up in a core file of this process.
            Call::new(libc::SYS_setrlimit, [u64::from(libc::RLIMIT_CORE), no_limits]),
            advise(start, len, libc::MADV_DONTFORK),
            // A program that locks all its memory also locks this range, and locked pages cannot move.
            Call::new(libc::SYS_munlock, [start, len]),
            advise(staging_1, staging_bytes, libc::MADV_DONTNEED),
            advise(staging_2, staging_bytes, libc::MADV_DONTNEED),
            advise(start, len, libc::MADV_DONTDUMP),
        ];
        self.calls("settling the mover", &mut calls)?;
        // These calls may fail. If the first fails, the program's directory stays in use; the others need a
        // kernel with huge pages.
        let mut calls = [
            Call::new(libc::SYS_chdir, [root]),
            advise(staging_1, staging_bytes, libc::MADV_NOHUGEPAGE),
            advise(staging_2, staging_bytes, libc::MADV_NOHUGEPAGE),
        ];
        let mailbox = &mut self.mailbox;
        mailbox
            .call(self.setup.process.as_fd(), &mut calls)
            .map_err(|error| serve("settling the mover", error))
    }

    /// Makes two userfaultfds in the mover, and returns their numbers there.
    fn make_descriptors(&mut self) -> Result<[u64; 2], InjectError> {
        let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
        let unavailable = |what: &dyn std::fmt::Display| {
            InjectError::new(
                InjectErrorKind::UserfaultfdUnavailable,
                &reasons::NO_USERFAULTFD,
                &[("why", what)],
            )
        };
        let watched = self.watched()?;
        let device = open_device().ok();
        let lent: Vec<_> = watched.iter().chain(&device).map(OwnedFd::as_fd).collect();
        let given = self.hand_over(&lent)?;
        self.mailbox.watch([given[0], given[1]]);
        let mut calls = match device {
            Some(_) => {
                let number = u64::from(given[2]);
                let make = Call::new(libc::SYS_ioctl, [number, wire::NEW, flags]);
                [make, make, Call::new(libc::SYS_close, [number])]
            }
            None => {
                let make = Call::new(libc::SYS_userfaultfd, [flags]);
                [make, make, Call::default()]
            }
        };
        let count = if calls[2].number == 0 { 2 } else { 3 };
        let done = self.mailbox.call(self.setup.process.as_fd(), &mut calls[..count]);
        done.map_err(|error| serve("making a userfaultfd", error))?;
        let number = |call: &Call| call.result().map_err(|error| unavailable(&error));
        Ok([number(&calls[0])?, number(&calls[1])?])
    }

    /// Returns the processes that the mover ends with: the runner and the program.
    fn watched(&self) -> Result<[OwnedFd; 2], InjectError> {
        let open = |pid: u32| {
            let pid = Pid::from_raw(pid as i32).ok_or_else(InjectError::gone)?;
            pidfd_open(pid, PidfdFlags::empty()).map_err(|_| InjectError::gone())
        };
        Ok([open(std::process::id())?, open(self.setup.pid)?])
    }

    /// Gives the mover up to three descriptors of the runner's, and returns their numbers there.
    fn hand_over(&mut self, lent: &[BorrowedFd<'_>]) -> Result<[u32; 3], InjectError> {
        const PAIR: usize = 0;
        const HEADER: usize = 64;
        const VECTOR: usize = 128;
        const CONTROL: usize = 192;
        const BYTE: usize = 256;
        let kind = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as u64;
        let mut pair = [Call::new(libc::SYS_socketpair, [libc::AF_UNIX as u64, kind, 0, self.scratch(PAIR)])];
        self.calls("making a socket in the mover", &mut pair)?;
        let numbers = self.mailbox.scratch(PAIR);
        let (ours, theirs) = (numbers & u64::from(u32::MAX), numbers >> 32);
        let socket = self.setup.take(ours)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut message = SendAncillaryBuffer::new(&mut space);
        message.push(SendAncillaryMessage::ScmRights(lent));
        sendmsg(&socket, &[IoSlice::new(&[0])], &mut message, SendFlags::empty())
            .map_err(|error| InjectError::system("handing a descriptor to the mover", error))?;
        // The message's header has no name, one vector of one byte, and room for three descriptors.
        let control_bytes = 32;
        let header = [0, 0, self.scratch(VECTOR), 1, self.scratch(CONTROL), control_bytes, 0];
        self.mailbox.write_scratch(HEADER, &header);
        self.mailbox.write_scratch(VECTOR, &[self.scratch(BYTE), 1]);
        self.mailbox.write_scratch(CONTROL, &[0, 0, u64::MAX, u64::MAX]);
        let receive_flags = (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) as u64;
        let mut receive = [
            Call::new(libc::SYS_recvmsg, [theirs, self.scratch(HEADER), receive_flags]),
            Call::new(libc::SYS_close, [ours]),
            Call::new(libc::SYS_close, [theirs]),
        ];
        self.calls("handing a descriptor to the mover", &mut receive)?;
        let (first, rest) = (self.mailbox.scratch(CONTROL + 16), self.mailbox.scratch(CONTROL + 24));
        Ok([first as u32, (first >> 32) as u32, rest as u32])
    }

    /// Checks that an inherited descriptor, the first one, is for the memory that the mover is in, before
    /// anything uses it. The kernel moves pages only within the caller's memory. It checks this condition
    /// (`EINVAL`) before it looks at the pages.
    ///
    /// Each request names a source page that is missing in staging, so nothing moves. If nothing is mapped at
    /// the destination, the kernel answers `ENOENT` for the right memory. The mover's other descriptor shows
    /// whether this kernel gives that answer. Linux 6.8 does not. So there are further requests, with
    /// destinations that the inherited descriptor watches. For these destinations, the kernel also has other
    /// reasons for `EINVAL`, such as locked memory.
    fn check_identity(&mut self, [number, other]: [u64; 2], watched: &[u64]) -> Result<(), InjectError> {
        const REQUEST_WORDS: usize = wire::MOVE_REQUEST_BYTES / 8;
        let watched = &watched[..watched.len().min(CALLS - 2)];
        let nowhere = [(other, NOWHERE), (number, NOWHERE)];
        let questions = nowhere.into_iter().chain(watched.iter().map(|to| (number, *to)));
        let mut calls = Vec::new();
        for (index, (number, to)) in questions.enumerate() {
            let request: [u64; REQUEST_WORDS] = [to, self.layout.staging_2, PAGE, 0, 0];
            self.mailbox.write_scratch(index * wire::MOVE_REQUEST_BYTES, &request);
            let request = self.scratch(index * wire::MOVE_REQUEST_BYTES);
            calls.push(Call::new(libc::SYS_ioctl, [number, wire::MOVE, request]));
        }
        let step = "asking whose memory a descriptor is for";
        let unknown =
            |kind, why: &str| Err(InjectError::new(kind, &reasons::UNKNOWN_CHILD, &[("why", &why)]));
        for _ in 0..TRIES {
            let done = self.mailbox.call(self.setup.process.as_fd(), &mut calls);
            done.map_err(|error| serve(step, error))?;
            let errors = || calls[1..].iter().filter_map(|call| call.result().err());
            if errors().any(|error| matches!(error, Errno::NOENT | Errno::EXIST)) {
                return Ok(());
            }
            let is_told = calls[0].result() == Err(Errno::NOENT);
            match errors().find(|error| *error != Errno::INVAL) {
                None if is_told || !watched.is_empty() => {
                    let kind = InjectErrorKind::AnotherProcess;
                    return Err(InjectError::new(kind, &reasons::ANOTHER_PROCESS, &[]));
                }
                None => {
                    let why = "none of its parent's memory is left in it; Linux 6.9 says it even so";
                    return unknown(InjectErrorKind::Unsupported, why);
                }
                Some(Errno::AGAIN) => thread::sleep(BETWEEN_TRIES),
                Some(error) => return Err(InjectError::system(step, error)),
            }
        }
        unknown(InjectErrorKind::Changing, "events of the child are unread")
    }

    /// Takes a copy of one of the mover's descriptors, and agrees on its features.
    fn agree(&self, number: u64, features: Features) -> Result<Userfaultfd, InjectError> {
        Userfaultfd::from_descriptor(self.setup.take(number)?, features)
            .map_err(|error| no_userfaultfd(&error))
    }

    /// Registers the staging ranges.
    fn watch_staging(&self, faults: &Userfaultfd, quiet: &Userfaultfd) -> Result<(), InjectError> {
        for (descriptor, staging) in [(faults, self.layout.staging_1), (quiet, self.layout.staging_2)] {
            // A page that is missing in staging reads as zeros, and no thread waits for it.
            let mode = RegisterMode { missing: false, write_protect: true };
            // SAFETY: the range is memory of another process. That process does not share ours (checked
            // before), and a descriptor from a fork is for that process.
            unsafe { descriptor.register(staging, self.layout.staging_bytes, mode) }
                .map_err(|error| InjectError::system("registering the staging range", error))?;
        }
        Ok(())
    }

    /// Detaches from the process, which goes on serving.
    fn let_go(self) -> Result<(Layout, Mailbox), InjectError> {
        let Self { setup: MoverSetup { child, .. }, layout, mailbox } = self;
        child.interrupt().map_err(|error| InjectError::system("stopping the mover", error))?;
        child.wait_for_trap(None).map_err(no_stop)?;
        child.set_signal_mask(ALL_SIGNALS).map_err(|error| InjectError::system("blocking signals", error))?;
        child
            .resume(libc::PTRACE_DETACH, 0)
            .map_err(|error| InjectError::system("letting the mover go", error))?;
        Ok((layout, mailbox))
    }

    /// Takes all rights from the mover that it does not need for these calls.
    fn confine(&mut self, allowed: &[libc::c_long]) -> Result<(), InjectError> {
        const HEADER: usize = 0;
        const SETS: usize = 8;
        const PROGRAM: usize = 64;
        const STATEMENTS: usize = 128;
        const SET_FILTER: u64 = 1;
        let filter = confine::filter(allowed);
        let [version, task] = confine::CAPABILITY_HEADER.map(u64::from);
        self.mailbox.write_scratch(HEADER, &[version | task << 32]);
        self.mailbox.write_scratch(SETS, &[0, 0, 0]);
        self.mailbox.write_scratch(PROGRAM, &[filter.len() as u64 / 8, self.scratch(STATEMENTS)]);
        for (index, statement) in filter.chunks_exact(8).enumerate() {
            let word = u64::from_ne_bytes(statement.try_into().expect("eight bytes"));
            self.mailbox.write_scratch(STATEMENTS + 8 * index, &[word]);
        }
        let mut calls = [
            Call::new(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as u64, 1, 0, 0, 0]),
            Call::new(libc::SYS_capset, [self.scratch(HEADER), self.scratch(SETS)]),
            Call::new(libc::SYS_seccomp, [SET_FILTER, 0, self.scratch(PROGRAM)]),
        ];
        self.calls("confining the mover", &mut calls)
    }
}

fn serve(step: &str, error: MoverError) -> InjectError {
    InjectError::system(step, error)
}
