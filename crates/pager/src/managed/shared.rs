//! The parts from which a managed process is made, and the state that its driver and the monitor share.

use std::fmt::Display;
use std::sync::{Arc, Mutex};

use octavo::Manager;
use octavo_platform::userfaultfd::Userfaultfd;
use octavo_stub::Message;
use octavo_window::{Reach, Served, Target, Window};

use crate::guardian::{Entrusted, Guardian};
use crate::ledger::Ledger;
use crate::managed::layout::Layout;
use crate::reader::Reader;
use crate::system::proc;

/// What the driver of a process and the monitor share.
pub(crate) struct Shared {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) manager: Manager,
    pub(crate) guardian: Guardian,
    pub(crate) reader: Reader,
    pub(crate) layout: Layout,
    pub(crate) failure: Mutex<Option<String>>,
    /// What the driver has counted.
    pub(crate) served: Mutex<Served>,
    /// Children that cannot be served. They wait until the tree is stopped.
    pub(crate) unserved: Mutex<Vec<Claim>>,
}

impl Shared {
    /// Says why the program must not go on. `pid`: `None` for a fork's child that is not known yet.
    pub(super) fn give_up(&self, pid: Option<u32>, message: &Message, why: &dyn Display) {
        let whose = match pid {
            Some(pid) => format!("process {pid} ({})", proc::name(pid)),
            None => "a fork's child".into(),
        };
        let words: [(&str, &dyn Display); 2] = [("process", &whose), ("why", why)];
        self.failure.lock().expect("nobody panics here").get_or_insert(message.with(&words));
    }
}

/// What all managed processes have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Common<'a> {
    pub(crate) manager: &'a Manager,
    pub(crate) ledger: &'a Arc<Ledger>,
    pub(crate) guardian: &'a Guardian,
    pub(crate) reader: &'a Reader,
}

/// A program that is to be managed.
pub(crate) struct Program {
    /// `None`: a fork's child that has not been found among the processes yet.
    pub(crate) pid: Option<u32>,
    pub(crate) stack: u64,
    pub(crate) name: String,
}

/// The runner's claim on a process. While its descriptor is open, the process waits for its pages and reads
/// no zeros in their place; if the runner dies, the guardian kills it.
pub(crate) struct Claim {
    pub(super) window: Arc<Window<Target>>,
    /// Or a sentence that says why the guardian cannot have it.
    pub(super) entrusted: Result<Arc<Entrusted>, String>,
}

impl Claim {
    /// From here on pages of the program may be in the runner's hands only.
    pub(crate) fn new(guardian: &Guardian, program: &Program, events: Userfaultfd) -> Self {
        let entrusted = guardian.entrust(program.pid, program.stack);
        let entrusted = entrusted.map(Arc::new).map_err(|error| error.to_string());
        Self { window: Arc::new(Window::new(Target::new(events))), entrusted }
    }

    /// Returns whether the process has ended, and wants no pages any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.window.reach().look_whether_gone()
    }
}
