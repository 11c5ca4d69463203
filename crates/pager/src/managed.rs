//! A process whose memory Octavo manages: its space, its window, and the thread that serves its faults.
//!
//! ```text
//!   engage: mover in ─► space ─► a region for each mapping ─► watched
//!           ─► adopted, piece by piece, between faults
//! ```
//!
//! A mapping is watched before it is searched for pages. So each page that comes later causes a fault, and
//! each page that is already there is found and adopted in place (`adopter.rs`).

pub(crate) mod adopter;
pub(crate) mod bss;
pub(crate) mod droppers;
pub(crate) mod eligible;
mod forks;
pub(crate) mod kinds;
pub(crate) mod layout;
mod mappings;
mod outside;
mod patience;
mod shared;
mod watched;

use std::fmt::Display;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use octavo::translation::TranslatedSpace;
use octavo_platform::process_memory::share_memory;
use octavo_platform::refusal;
use octavo_stub::{Inherited, InjectError, InjectErrorKind, Mover};
use octavo_window::{Bell, Driver, Reach, Served, Target, Watch, Window};
use rustix::io::Errno;

use forks::Forking;
use outside::{LEAST_OUTSIDE, Outside};
pub(crate) use shared::ProcessContext;
use shared::{Claim, DriverState, ProgramToManage};
use watched::watches;

use crate::guardian::Entrusted;
use crate::managed::adopter::Adopter;
use crate::managed::droppers::Droppers;
use crate::managed::layout::ProcessRanges;
use crate::messages::{self, in_words};
use crate::system::proc;
use crate::tree::MovedPages;

/// The most bytes of a process that can be on their way out at once.
pub(crate) const STAGING: u64 = 2 << 20;

/// The reason why a process cannot be taken over.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// A sentence with the reason.
    pub(crate) why: String,
    /// Whether the reason may pass: another tracer may detach, or a thread may become stoppable.
    pub(crate) may_pass: bool,
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self { why, may_pass: false }
    }
}

impl From<InjectError> for Refusal {
    fn from(error: InjectError) -> Self {
        let may_pass = matches!(
            error.kind(),
            InjectErrorKind::Traced | InjectErrorKind::Stuck | InjectErrorKind::Changing
        );
        Self { why: error.to_string(), may_pass }
    }
}

/// The reason why a fork's child has no mover.
#[derive(Debug)]
pub(crate) enum Unequipped {
    /// The process is not the child.
    Another,
    /// The mappings of the process are changing just now. Try again later.
    Later,
    /// A sentence that says why the process cannot be managed.
    Refused(String),
}

impl From<String> for Unequipped {
    fn from(sentence: String) -> Self {
        Self::Refused(sentence)
    }
}

impl From<InjectError> for Unequipped {
    fn from(error: InjectError) -> Self {
        match error.kind() {
            InjectErrorKind::AnotherProcess => Self::Another,
            InjectErrorKind::Changing => Self::Later,
            _ => Self::Refused(error.to_string()),
        }
    }
}

/// A process under management.
pub(crate) struct Managed {
    /// The address at which the process's stack begins. It identifies the program. A fork's child has the
    /// address of its parent.
    pub(crate) stack: u64,
    /// For a fork's child: the process that forked it, as far as is known.
    pub(crate) parent: u32,
    /// Processes that were mistaken for this child.
    others: Vec<u32>,
    /// How many searches have not found this child since it was last matched to a process.
    vain_looks: u32,
    /// Whether the user was told that none of the processes is this child.
    is_told: bool,
    pub(crate) space: TranslatedSpace,
    window: Arc<Window<Target>>,
    bell: Arc<Bell>,
    watch: Arc<Watch>,
    shared: Arc<DriverState>,
    /// Children that the process has forked, until the monitor takes them.
    forks: Arc<Mutex<Vec<Managed>>>,
    entrusted: Arc<Entrusted>,
    driver: Option<JoinHandle<()>>,
    outside: Outside,
    is_refused: bool,
    /// Threads that may still be dropping pages that the kernel has reported.
    droppers: Option<Droppers>,
}

impl std::fmt::Debug for Managed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Managed").field("target", self.window.reach()).finish_non_exhaustive()
    }
}

/// Returns a function that says that the kernel refused a step.
fn failed(step: &'static str) -> impl Fn(io::Error) -> String {
    move |error| format!("{step} failed: {}", refusal::in_words(&error))
}

impl Managed {
    /// Takes a process over.
    ///
    /// # Errors
    /// Returns the reason if the process cannot be managed.
    pub(crate) fn engage(common: ProcessContext<'_>, pid: u32) -> Result<Self, Refusal> {
        let mut managed = Self::engage_only(common, pid)?;
        // If a mapping cannot be taken now, the mappings are read again when memory outside of management
        // grows.
        let _ = managed.look();
        Ok(managed)
    }

    /// Takes a process over, but none of its mappings yet.
    fn engage_only(common: ProcessContext<'_>, pid: u32) -> Result<Self, Refusal> {
        let stat = proc::stat(pid).ok_or_else(|| "it has ended".to_string())?;
        let mover = Mover::inject(pid, STAGING)?.mover;
        let events = mover.faults().share().map_err(failed("sharing its userfaultfd"))?;
        let name = format!("{} ({pid})", proc::name(pid));
        let program = ProgramToManage { pid: Some(pid), stack: stat.stack, name };
        let claim = Claim::new(common.guardian, &program, events);
        let managed = Self::serve(common, program, &claim, ProcessRanges::default(), |_| Ok(()))?;
        managed.window.reach().equip(pid, mover).map_err(failed("giving it a mover"))?;
        Ok(managed)
    }

    /// Begins to serve the memory of a process. `prepare` is called with the space before any fault is
    /// served.
    ///
    /// # Errors
    /// Returns a sentence that says why the process cannot be served. The process waits at its faults as long
    /// as the claim exists.
    pub(crate) fn serve(
        ProcessContext { manager, ledger, guardian, reader }: ProcessContext<'_>,
        ProgramToManage { stack, name, .. }: ProgramToManage,
        claim: &Claim,
        layout: ProcessRanges,
        prepare: impl FnOnce(&TranslatedSpace) -> octavo::Result<()>,
    ) -> Result<Self, String> {
        let (window, entrusted) = (Arc::clone(&claim.window), claim.entrusted.clone()?);
        let translation: Arc<dyn octavo::translation::Translation> = window.clone();
        let space = manager.translated_space(name, translation).map_err(|error| in_words(&error))?;
        prepare(&space).map_err(|error| in_words(&error))?;
        let shared = Arc::new(DriverState {
            ledger: Arc::clone(ledger),
            manager: manager.clone(),
            guardian: guardian.clone(),
            reader: reader.clone(),
            layout,
            failure: Mutex::default(),
            served: Mutex::default(),
            unserved: Mutex::default(),
        });
        let bell = Bell::new().map_err(failed("making a bell for its thread"))?;
        reader.look_after(&window, &bell).map_err(failed("reading its events"))?;
        let mut managed = Self {
            stack,
            parent: 0,
            others: Vec::new(),
            vain_looks: 0,
            is_told: false,
            space,
            window,
            bell,
            watch: Arc::default(),
            shared,
            forks: Arc::default(),
            entrusted,
            driver: None,
            outside: Outside::default(),
            is_refused: false,
            droppers: None,
        };
        managed.start().map_err(failed("starting its thread"))?;
        Ok(managed)
    }

    fn start(&mut self) -> io::Result<()> {
        let (space, window) = (self.space.clone(), Arc::clone(&self.window));
        let (bell, shared, stack) = (Arc::clone(&self.bell), Arc::clone(&self.shared), self.stack);
        let (watch, forks) = (Arc::clone(&self.watch), Arc::clone(&self.forks));
        let thread = std::thread::Builder::new().name("octavo-serve".into()).stack_size(512 << 10);
        self.driver = Some(thread.spawn(move || {
            crate::system::priority::lower();
            let parent = Forking { space: &space, window: &window, shared: &shared, forks: &forks, stack };
            let fork = |child| Self::take_in(&parent, child);
            let adopter = Adopter::new(&space, &window, &shared, &fork);
            let events = window.reach().events().as_fd();
            if let Err(error) = Driver::new(&space, &window, events, bell, adopter).watched_by(watch).run()
                && !window.reach().look_whether_gone()
            {
                let mut failure = shared.failure.lock().expect("nobody panics here");
                failure.get_or_insert(messages::UNSERVED.with(&[("why", &error)]));
            }
        })?);
        Ok(())
    }

    /// Gives a fork's child a mover, so that its pages can go out. `pid` is thought to be this child.
    ///
    /// First, all changes must be read and taken in: before that, nothing is known about the child's memory.
    /// Then the kernel says whether `pid` really is the child. Then the space forgets the pages that the
    /// child did not get from its parent. Only then is the mover used. Until then, no page of the child goes
    /// out, and none is adopted. A range that changes while the space forgets those pages stays in doubt: it
    /// is not adopted, and later looks ask about it again. A page of such a range counts as present only if
    /// the kernel has copied it there for Octavo, which it does only in watched memory.
    ///
    /// # Errors
    /// Fails if the process is not the child, cannot be asked just now, or cannot be managed.
    pub(crate) fn equip(&mut self, pid: u32) -> Result<(), Unequipped> {
        let faults = self.window.reach().events().share().map_err(failed("sharing its userfaultfd"))?;
        let mappings = proc::mappings(pid).map_err(|error| refusal::in_words(&error))?;
        let watched = self.watched_in(&mappings);
        let is_changing = |page: &u64| watches(&self.window, *page) == Err(Errno::AGAIN);
        if !self.is_settled() || watched.first().is_some_and(is_changing) {
            return Err(Unequipped::Later);
        }
        let mover = Mover::inject_into_fork(pid, STAGING, Inherited { faults, watched })?.mover;
        let own = mover.range();
        let is_taken = self.shared.layout.lock().mapped.overlaps(&own);
        self.find_doubtful(pid, &own)?;
        if is_taken {
            // The parent has memory at these addresses that its children do not get, so the kernel has put
            // the mover there. A fault nearby may have mapped a page of the parent's memory in the mover's
            // range.
            return Err(Unequipped::Later);
        }
        // From here on, pages go out. If pages of the child were mistaken for pages of its parent, they would
        // read as zeros later.
        self.window.reach().equip(pid, mover).map_err(failed("giving it a mover"))?;
        let _ = self.look();
        Ok(())
    }

    /// Records that the process cannot be equipped.
    pub(crate) fn refuse(&mut self) {
        self.is_refused = true;
    }

    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Returns whether pages of the process can go out.
    pub(crate) fn is_equipped(&self) -> bool {
        self.window.reach().is_equipped()
    }

    /// Returns whether the pages of the process cannot go out yet, but may go out later.
    pub(crate) fn lacks_mover(&self) -> bool {
        !self.is_equipped() && !self.is_refused()
    }

    /// Returns the CPU of the thread that the driver runs beside, if there is one.
    pub(crate) fn driver_beside_on(&self) -> Option<usize> {
        self.watch.beside_on()
    }

    /// Makes sure that an awaited driver gets its CPU, and that the driver checks whether pages that have
    /// left must come back.
    pub(crate) fn watch(&self) {
        if self.window.reach().has_moved() {
            self.bell.ring();
        }
        self.watch.look(|| self.bell.is_awaited(self.window.reach().events().as_fd()));
    }

    /// Frees what is left of the last pages that went out.
    pub(crate) fn tidy(&self) {
        self.window.reach().tidy();
    }

    /// Returns whether all changes of the process's mappings are taken in. If so, the process has exactly the
    /// pages of the space, and pages outside of management. If not, a read of its mappings would have to
    /// wait.
    pub(crate) fn is_settled(&self) -> bool {
        self.window.is_settled()
    }

    /// Records that the process has `anonymous` bytes now. The bytes outside of management, and their growth
    /// since the last call, follow from this number. Returns whether the resident bytes of the process's
    /// space have changed.
    pub(crate) fn note_growth(&mut self, anonymous: u64) -> bool {
        let resident = self.space.stats().map_or(0, |stats| stats.resident_bytes);
        let is_settled = self.is_settled();
        self.outside.note(anonymous, resident, is_settled)
    }

    /// Returns whether the process got much memory outside of management between the last two calls of
    /// [`note_growth`](Self::note_growth).
    pub(crate) fn grows(&self) -> bool {
        self.outside.grows()
    }

    /// Returns whether much more memory is outside of management than at the last look at the mappings, and
    /// the mappings can be looked at again.
    pub(crate) fn has_more_outside(&self) -> bool {
        self.outside.has_grown() && self.is_equipped() && self.is_settled()
    }

    /// Returns how many pages of the process were moved up to now.
    pub(crate) fn moved(&self) -> MovedPages {
        let reach = self.window.reach();
        MovedPages { unfaulted_pages: reach.unfaulted_pages(), taken_pages: reach.taken_pages() }
    }

    pub(crate) fn mover_pid(&self) -> Option<u32> {
        self.window.reach().mover_pid()
    }

    /// Returns the bytes of watched ranges whose pages have yet to be adopted.
    pub(crate) fn adopting_bytes(&self) -> u64 {
        self.shared.layout.lock().adopting_bytes()
    }

    /// Returns whether much memory of the process is still to be adopted. Address space without pages does
    /// not count. While threads may still be dropping pages, all memory outside of management counts, since
    /// it is unknown how much the program keeps.
    pub(crate) fn has_more_to_adopt(&self) -> bool {
        let bytes = if self.droppers.is_some() { u64::MAX } else { self.adopting_bytes() };
        bytes.min(self.outside.bytes()) > LEAST_OUTSIDE
    }

    /// Returns whether the process still runs the program that was taken over. If this is unknown, returns
    /// `true`: if a program were released too early, it would read zeros.
    pub(crate) fn is_current(&self) -> bool {
        !self.window.reach().look_whether_gone() && self.runs_its_program().unwrap_or(true)
    }

    /// Asks whether the process still runs the program that was taken over. The mover keeps the memory of the
    /// taken-over program, even if this program has ended or has executed another one.
    ///
    /// # Errors
    /// Returns the kernel's error if descriptors run out.
    fn runs_its_program(&self) -> io::Result<bool> {
        let reach = self.window.reach();
        let (Some(pid), Some(mover)) = (reach.pid(), reach.mover_pid()) else { return Ok(true) };
        if share_memory(pid, mover) {
            return Ok(true);
        }
        match proc::ask(mover)? {
            // The first thread may have ended before the others.
            Some(stat) if stat.state != b'Z' => {
                Ok(proc::threads(pid)?.into_iter().any(|thread| share_memory(thread, mover)))
            }
            // Other code detects a mover that has ended.
            _ => Ok(proc::ask(pid)?.is_some()),
        }
    }

    /// Returns whether a process would read zeros if this value were dropped. That process is the program, or
    /// a fork's child that cannot be served.
    pub(crate) fn is_needed(&self) -> bool {
        let unserved = self.shared.unserved.lock().expect("nobody panics here");
        self.is_current() || unserved.iter().any(|child| !child.has_ended())
    }

    /// Returns the reason why the program must not continue.
    pub(crate) fn failure(&self) -> Option<String> {
        let said = self.shared.failure.lock().expect("nobody panics here").clone();
        let target = self.window.reach();
        let lost_by = |why: &dyn Display| {
            let pid = target.pid().unwrap_or(0);
            messages::HELPER_LOST.with(&[("pid", &pid), ("why", why)])
        };
        let lost = || target.failure().map(|why| lost_by(&why));
        let unserved = || {
            let has_ended = self.driver.as_ref().is_some_and(JoinHandle::is_finished);
            (has_ended && !target.look_whether_gone())
                .then(|| messages::UNSERVED.with(&[("why", &"its thread has ended")]))
        };
        said.or_else(lost).or_else(unserved)
    }

    /// Returns the driver's counts. The last few events may be missing.
    pub(crate) fn served(&self) -> Served {
        *self.shared.served.lock().expect("nobody panics here")
    }

    /// Records that the process has ended. Another process may get its number.
    pub(crate) fn gone(&self) {
        self.entrusted.found(0);
    }

    /// Tells the driver to end, after its process has ended. The driver first takes in the forks whose events
    /// it has read, and may have to wait for room for them. Until then, the mover keeps the memory of the
    /// process, since the kernel is asked about that memory at each fork.
    pub(crate) fn stop(&self) {
        self.window.reach().lose();
        self.bell.end();
        self.watch.call_back();
    }

    /// Returns whether the driver of the process has ended, so that [`wait`](Self::wait) does not block.
    pub(crate) fn has_stopped(&self) -> bool {
        self.driver.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until the driver of the process has ended, and releases the memory. No fork is reported
    /// afterwards.
    pub(crate) fn wait(&mut self) {
        self.stop();
        // `failure` has reported a driver that failed.
        let _ = self.driver.take().map(JoinHandle::join);
        self.window.reach().end();
    }

    /// Releases the process, which has ended, and returns its driver's counts. Its last forks must be taken
    /// before this call.
    pub(crate) fn end(mut self) -> Served {
        self.wait();
        self.served()
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        self.wait();
    }
}

#[cfg(test)]
pub(crate) mod tests;
