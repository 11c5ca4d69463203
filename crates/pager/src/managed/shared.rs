//! The parts that a managed process is made from, and the state that its driver and the monitor share.

use std::fmt::Display;
use std::sync::{Arc, Mutex};

use octavo::Manager;
use octavo_platform::refusal;
use octavo_platform::userfaultfd::Userfaultfd;
use octavo_stub::Message;
use octavo_window::{Reach, Served, Target, Window};

use crate::guardian::{Entrusted, Guardian};
use crate::ledger::Ledger;
use crate::managed::layout::ProcessRanges;
use crate::reader::Reader;
use crate::system::proc;

/// The state that the driver of a process and the monitor share.
pub(crate) struct DriverState {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) manager: Manager,
    pub(crate) guardian: Guardian,
    pub(crate) reader: Reader,
    pub(crate) layout: ProcessRanges,
    pub(crate) failure: Mutex<Option<String>>,
    /// The driver's counts.
    pub(crate) served: Mutex<Served>,
    /// Children that cannot be served. They wait until the tree is stopped.
    pub(crate) unserved: Mutex<Vec<Claim>>,
}

impl DriverState {
    /// Records why the program must not go on. `pid` is `None` for a fork's child that is not known yet.
    pub(super) fn give_up(&self, pid: Option<u32>, message: &Message, why: &dyn Display) {
        let whose = match pid {
            Some(pid) => format!("process {pid} ({})", proc::name(pid)),
            None => "a fork's child".into(),
        };
        let words: [(&str, &dyn Display); 2] = [("process", &whose), ("why", why)];
        self.failure.lock().expect("nobody panics here").get_or_insert(message.with(&words));
    }
}

/// The objects that all managed processes use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessContext<'a> {
    pub(crate) manager: &'a Manager,
    pub(crate) ledger: &'a Arc<Ledger>,
    pub(crate) guardian: &'a Guardian,
    pub(crate) reader: &'a Reader,
}

/// A program to manage.
pub(crate) struct ProgramToManage {
    /// `None` for a fork's child that has not been found among the processes yet.
    pub(crate) pid: Option<u32>,
    pub(crate) stack: u64,
    pub(crate) name: String,
}

/// The runner's claim on a process. While its descriptor is open, the process waits for its pages and reads
/// no zeros in their place; if the runner dies, the guardian kills it.
pub(crate) struct Claim {
    pub(super) window: Arc<Window<Target>>,
    /// The entry with the guardian, or a sentence that says why there is none.
    pub(super) entrusted: Result<Arc<Entrusted>, String>,
}

impl Claim {
    /// Claims a program. From here on, only the runner may have pages of it.
    pub(crate) fn new(guardian: &Guardian, program: &ProgramToManage, events: Userfaultfd) -> Self {
        let entrusted = guardian.entrust(program.pid, program.stack);
        let entrusted = entrusted.map(Arc::new).map_err(|error| refusal::in_words(&error));
        Self { window: Arc::new(Window::new(Target::new(events))), entrusted }
    }

    /// Returns whether the process has ended, and needs no more pages.
    pub(crate) fn has_ended(&self) -> bool {
        self.window.reach().look_whether_gone()
    }
}
