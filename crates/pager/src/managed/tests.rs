//! Managed processes: simulated ones, whose descriptors are sockets that carry the kernel's messages, and
//! real ones.

use std::io::{BufRead, BufReader, Lines, Write};
use std::ops::Range;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use octavo::{Advice, Manager, Order, PAGE_BYTES, RegionOptions, Space};
use octavo_platform::userfaultfd::{Features, Userfaultfd};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::ioctl_fionread;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

use super::forks::MOST_VAIN_LOOKS;
use super::*;
use crate::guardian::Guardian;
use crate::ledger::Ledger;
use crate::managed::eligible::SeenMemory;
use crate::reader::Reader;

const PAGE: u64 = PAGE_BYTES as u64;
const BUDGET: u64 = 32 << 20;
/// The kernel's numbers for the events of a fork, a move and an unmapping (`UFFD_EVENT_FORK` and others).
const FORK: u64 = 0x13;
const REMAP: u64 = 0x14;
const UNMAP: u64 = 0x16;

/// Sends the messages of forks and other changes.
pub(crate) struct TestKernel {
    socket: OwnedFd,
    /// The driver's end of the socket. It shows whether the driver has read all messages.
    told: OwnedFd,
}

impl TestKernel {
    /// Reports that a process has forked, and waits until its driver has read that.
    pub(crate) fn fork(&self) {
        let child = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        self.tell([FORK, child.into_raw_fd() as u64, 0, 0]);
    }

    /// Sends a message, and waits until the driver has read it.
    fn tell(&self, words: [u64; 4]) {
        send(&self.socket, &words.map(u64::to_le_bytes).concat(), SendFlags::empty()).unwrap();
        wait_until(|| ioctl_fionread(&self.told).unwrap() == 0);
    }
}

/// The objects that all managed processes use.
pub(crate) struct Commons {
    pub(crate) manager: Manager,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) guardian: Guardian,
    pub(crate) reader: Reader,
}

impl Commons {
    pub(crate) fn new() -> Self {
        let manager = Manager::builder().budget_bytes(BUDGET).build().unwrap();
        Self {
            manager,
            ledger: Arc::new(Ledger::new(BUDGET)),
            guardian: Guardian::new().unwrap(),
            reader: Reader::default(),
        }
    }

    fn common(&self) -> ProcessContext<'_> {
        let Self { manager, ledger, guardian, reader } = self;
        ProcessContext { manager, ledger, guardian, reader }
    }

    pub(crate) fn managed(&self, pid: Option<u32>, stack: u64) -> (Managed, TestKernel) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (socket, told) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let events = Userfaultfd::of_fork(told.try_clone().unwrap(), Features::NONE);
        let program = super::ProgramToManage { pid, stack, name: "a test".into() };
        let claim = Claim::new(&self.guardian, &program, events);
        let managed =
            Managed::serve(self.common(), program, &claim, ProcessRanges::default(), |_| Ok(())).unwrap();
        (managed, TestKernel { socket, told })
    }

    pub(crate) fn engage(&self, pid: u32) -> Managed {
        Managed::engage(self.common(), pid).unwrap()
    }

    /// Takes a process over, but none of its mappings yet.
    fn engage_only(&self, pid: u32) -> Managed {
        Managed::engage_only(self.common(), pid).unwrap()
    }

    /// Takes all spaces that the manager has. While they exist, no fork can be served.
    pub(crate) fn all_spaces(&self) -> Vec<Space> {
        std::iter::from_fn(|| self.manager.space().ok()).collect()
    }
}

impl Managed {
    /// Acts as if a change of its mappings could not be followed.
    pub(crate) fn fail(&self) {
        *self.shared.failure.lock().unwrap() = Some("a test has failed".into());
    }

    /// Acts as if the children that cannot be served had ended.
    pub(crate) fn end_unserved(&self) {
        self.shared.unserved.lock().unwrap().iter().for_each(|child| child.window.reach().end());
    }

    /// Returns a function that returns whether the driver was asked to end.
    pub(crate) fn is_stopped(&self) -> impl Fn() -> bool + use<> {
        let window = Arc::clone(&self.window);
        move || window.reach().is_gone()
    }

    /// Calls `call` while the driver reads forks, but cannot take them in.
    pub(crate) fn hold_driver<T>(self, call: impl FnOnce(Self) -> T) -> T {
        let shared = Arc::clone(&self.shared);
        let mut layout = None;
        wait_until(|| {
            // A driver that is awake already would wait for the layout's lock before it reads a fork.
            layout = None;
            layout = Some(shared.layout.lock());
            self.bell.is_asleep()
        });
        call(self)
    }
}

/// Waits for a condition, which must become true soon, even on a busy machine.
#[track_caller]
pub(crate) fn wait_until(mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "in vain");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_fork_that_cannot_be_served_is_guarded_as_long_as_its_parent() {
    let commons = Commons::new();
    let (parent, kernel) = commons.managed(Some(7), 1);
    let spaces = commons.all_spaces();
    kernel.fork();
    wait_until(|| parent.failure().is_some());
    assert!(parent.failure().is_some_and(|why| why.contains("a fork of it cannot be served")));
    assert_eq!(commons.guardian.pids(), [7, 0]);
    drop((parent, spaces));
    assert!(commons.guardian.pids().is_empty());
    let (parent, kernel) = commons.managed(Some(8), 1);
    kernel.fork();
    let mut forks = Vec::new();
    wait_until(|| {
        forks.extend(parent.take_forks(8));
        !forks.is_empty()
    });
    assert_eq!(commons.guardian.pids(), [8, 0]);
    drop(parent);
    assert_eq!(commons.guardian.pids(), [0], "the child is served by a thread of its own");
}

/// A driver may be making room, or waiting for it. Meanwhile, the kernel lets no page of a process with
/// unread events go.
#[test]
fn what_a_process_tells_is_read_while_its_driver_is_busy() {
    let commons = Commons::new();
    let (managed, kernel) = commons.managed(Some(7), 1);
    let managed = managed.hold_driver(|managed| {
        kernel.fork();
        (1..4).for_each(|page| kernel.tell([UNMAP, page * PAGE, (page + 1) * PAGE, 0]));
        kernel.fork();
        assert!(!managed.is_settled(), "its driver was away from its events all the time");
        managed
    });
    wait_until(|| managed.is_settled());
    assert_eq!(managed.take_forks(7).len(), 2);
}

/// The kernel lets no page go before all events of a move are read. So a move that waited for room would wait
/// forever.
#[test]
fn a_move_is_taken_in_though_there_is_no_room_for_its_table_nodes() {
    const TABLE: u64 = 2 << 20;
    const PAGES: u64 = 600;
    let commons = Commons::new();
    let (parent, kernel) = commons.managed(Some(7), 1);
    let (from, to, last) = (1 << 40, 2 << 40, 3 << 40);
    parent.space.map_at(from, PAGES * TABLE, RegionOptions::default()).unwrap();
    parent.space.map_at(last, PAGE, RegionOptions::default()).unwrap();
    let each = || (0..PAGES).map(|index| index * TABLE);
    each().for_each(|offset| parent.space.store(from + offset, offset + 1).unwrap());
    parent.space.store(last, 1_u64).unwrap();
    let room: Vec<_> = std::iter::from_fn(|| commons.manager.alloc_block(Order::ZERO).unwrap()).collect();
    kernel.tell([REMAP, from, to, PAGES * TABLE]);
    kernel.tell([UNMAP, last, last + PAGE, 0]);
    wait_until(|| parent.space.load::<u64>(last).is_err());
    assert!(parent.failure().is_none(), "{:?}", parent.failure());
    // Pages may have been evicted. The loads below need free frames to bring them back.
    room.into_iter().for_each(|block| commons.manager.free_block(block, Order::ZERO).unwrap());
    each().for_each(|offset| assert_eq!(parent.space.load::<u64>(to + offset).unwrap(), offset + 1));
}

/// A program may end right after a fork whose event the driver has just read.
#[test]
fn the_mover_keeps_the_memory_until_the_driver_has_taken_all_forks_and_then_nobody_knows_of_it() {
    let (mut program, commons) = (RealProgram::start("grow"), Commons::new());
    let mut managed = commons.engage(program.process.id());
    let window = Arc::clone(&managed.window);
    let target = window.reach();
    target.has_forked(2)();
    managed.stop();
    assert!(target.is_gone());
    let mover = target.mover_pid().unwrap();
    assert!(
        matches!(proc::ask(mover), Ok(Some(stat)) if stat.state != b'Z'),
        "a fork may have to be asked about"
    );
    managed.wait();
    program.process.kill().unwrap();
    wait_until(|| !target.events().is_alive());
    target.has_forked(1)();
    for is_known in [true, true, false] {
        assert_eq!(target.take_wiped().wait().is_ok(), is_known);
    }
}

#[test]
fn it_is_said_once_that_no_process_is_a_forks_child() {
    let commons = Commons::new();
    let (mut fork, _kernel) = commons.managed(None, 1);
    let said = |fork: &mut Managed| (0..3 * MOST_VAIN_LOOKS).filter(|_| fork.looked_in_vain()).count();
    assert_eq!(said(&mut fork), 0, "the child may come still");
    fork.is_not(7);
    assert!(!fork.looked_in_vain());
    assert_eq!(said(&mut fork), 1);
    fork.is_not(8);
    assert_eq!(said(&mut fork), 0);
}

/// A real program. A drop closes its input, and waits until it has ended.
struct RealProgram {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl RealProgram {
    fn start(role: &str) -> Self {
        // If this variable is set, the tests of all packages were built, and the program with them.
        if std::env::var_os("OCTAVO_SUITE_OUTPUT").is_none() {
            let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
            let mut build = Command::new(cargo);
            build.args(["build", "--quiet", "--package", "octavo-stub", "--bin", "octavo-stub-program"]);
            assert!(build.status().unwrap().success());
        }
        let folder = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned();
        let mut command = Command::new(folder.join("octavo-stub-program"));
        let mut process = command.arg(role).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    fn tell(&mut self) {
        self.process.stdin.as_mut().unwrap().write_all(b"!").unwrap();
    }

    fn line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }

    fn numbers(&mut self) -> Vec<u64> {
        self.line().split(' ').map(|number| u64::from_str_radix(number, 16).unwrap()).collect()
    }
}

impl Drop for RealProgram {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        self.process.wait().unwrap();
    }
}

/// Takes a program over, evicts its memory, has it fork, and gives the child a mover. Returns the parent
/// and the child.
fn equip_a_child(program: &mut RealProgram, commons: &Commons, memory: Range<u64>) -> (Managed, Managed) {
    let parent = commons.engage(program.process.id());
    wait_until(|| parent.adopting_bytes() == 0);
    parent.space.advise(memory.start, memory.end - memory.start, Advice::PageOut).unwrap();
    program.tell();
    let pid = program.numbers()[0] as u32;
    let mut children = Vec::new();
    wait_until(|| {
        children.extend(parent.take_forks(program.process.id()));
        !children.is_empty()
    });
    let mut child = children.remove(0);
    wait_until(|| match child.equip(pid) {
        Err(Unequipped::Later) => false,
        done => {
            done.unwrap();
            true
        }
    });
    (parent, child)
}

#[test]
fn what_a_parent_keeps_from_its_child_is_the_childs_own() {
    for (role, kept_half) in [("fork-without-end", 1), ("fork-without-start", 0)] {
        let commons = Commons::new();
        let mut program = RealProgram::start(role);
        let [start, len] = program.numbers()[..] else { panic!("an address and a length") };
        let kept = start + kept_half * len / 2..start + (kept_half + 1) * len / 2;
        let (parent, mut child) = equip_a_child(&mut program, &commons, start..start + len);
        // The kernel puts the mover wherever there is room.
        let own = child.window.reach().own_range();
        assert!(!child.shared.layout.lock().mapped.overlaps(&own), "{role}");
        program.tell();
        assert_eq!(program.line(), "mapped");
        wait_until(|| {
            // Ranges that changed while the child got its mover are in doubt until a later look.
            child.look().unwrap();
            // If a thread's descriptor lies right behind the range, its last page is not taken over.
            let surely = kept.start..kept.end - PAGE;
            let is_mapped = !child.shared.layout.lock().mapped.gaps(&surely).any(|_| true);
            is_mapped && watches(&child.window, kept.start) == Ok(())
        });
        wait_until(|| child.adopting_bytes() == 0);
        child.space.advise(start, len, Advice::PageOut).unwrap();
        program.tell();
        assert_eq!(program.line(), "true true", "{role}");
        drop((child, parent));
    }
}

/// The program's memory grows after its mappings were read. If it were watched only in part, it would be two
/// mappings, which cannot be moved as a whole.
#[test]
fn a_mapping_that_grows_while_it_is_taken_over_stays_whole() {
    let commons = Commons::new();
    let mut program = RealProgram::start("grow");
    let [start, len] = program.numbers()[..] else { panic!("an address and a length") };
    let pid = program.process.id();
    let seen = SeenMemory::of(pid).unwrap();
    program.tell();
    assert_eq!(program.line(), "grown");
    let managed = commons.engage_only(pid);
    managed.take_all(pid, seen).unwrap();
    let end = start + len + 2 * PAGE;
    assert!(!managed.shared.layout.lock().mapped.gaps(&(start..end)).any(|_| true));
    managed.bell.ring();
    wait_until(|| managed.adopting_bytes() == 0);
    managed.space.advise(start, end - start, Advice::PageOut).unwrap();
    program.tell();
    assert_eq!(program.line(), "moved [7, 9]");
}
