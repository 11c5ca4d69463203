//! Managed processes of which only the kernel's messages are real: their descriptors are sockets.

use std::os::fd::{IntoRawFd, OwnedFd};
use std::time::{Duration, Instant};

use octavo_platform::userfaultfd::Features;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::ioctl_fionread;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

use super::*;

const BUDGET: u64 = 32 << 20;
/// The message of a fork, without the number of the descriptor (`UFFD_EVENT_FORK`).
const FORK: u64 = 0x13;

/// Tells of forks.
pub(crate) struct Kernel {
    socket: OwnedFd,
    /// The driver's side.
    told: OwnedFd,
}

impl Kernel {
    /// Tells that a process has forked, and waits until its driver has read that.
    pub(crate) fn fork(&self) {
        let child = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let words = [FORK, child.into_raw_fd() as u64, 0, 0];
        send(&self.socket, &words.map(u64::to_le_bytes).concat(), SendFlags::empty()).unwrap();
        while ioctl_fionread(&self.told).unwrap() > 0 {
            std::thread::yield_now();
        }
    }
}

/// What managed processes have in common.
pub(crate) struct Commons {
    pub(crate) manager: Manager,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) guardian: Guardian,
}

impl Commons {
    pub(crate) fn new() -> Self {
        let manager = Manager::builder().budget_bytes(BUDGET).build().unwrap();
        Self { manager, ledger: Arc::new(Ledger::new(BUDGET)), guardian: Guardian::deaf() }
    }

    pub(crate) fn managed(&self, pid: Option<u32>, stack: u64) -> (Managed, Kernel) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (socket, told) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let events = Userfaultfd::of_fork(told.try_clone().unwrap(), Features::NONE);
        let Self { manager, ledger, guardian } = self;
        let program = Program { pid, stack, name: "a test".into() };
        let held = Held::new(guardian, &program, events);
        let common = Common { manager, ledger, guardian };
        let managed = Managed::serve(common, program, &held, Layout::default(), |_| Ok(())).unwrap();
        (managed, Kernel { socket, told })
    }

    /// Takes all spaces that the manager has. While they are there, no fork can be served.
    pub(crate) fn all_spaces(&self) -> Vec<Space> {
        std::iter::from_fn(|| self.manager.space().ok()).collect()
    }
}

impl Managed {
    /// Has it be as if a change of its mappings could not be followed.
    pub(crate) fn fail(&self) {
        *self.shared.failure.lock().unwrap() = Some("a test has failed".into());
    }

    /// Has it be as if the children that cannot be served had ended.
    pub(crate) fn end_unserved(&self) {
        self.shared.unserved.lock().unwrap().iter().for_each(|child| child.window.reach().end());
    }

    /// Returns what says whether the driver is to end.
    pub(crate) fn is_stopped(&self) -> impl Fn() -> bool + use<> {
        let window = Arc::clone(&self.window);
        move || window.reach().is_gone()
    }

    /// Calls something while the driver cannot take a fork in.
    pub(crate) fn hold_driver<T>(self, call: impl FnOnce(Self) -> T) -> T {
        let shared = Arc::clone(&self.shared);
        let _layout = shared.layout.lock();
        call(self)
    }
}

/// Waits until something is so, which is soon, also on a busy machine.
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
