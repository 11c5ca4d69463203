//! A process whose memory is Octavo's: its space, its window, and the thread that serves its faults.
//!
//! ```text
//!   engage: mover in ─► space ─► a region for each mapping ─► watched ─► adopted, piece by piece, between faults
//! ```
//!
//! A mapping is watched before it is looked at. So a page that comes later is a fault, and a page that is
//! there already is found and adopted where it is (`adopter.rs`).

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use octavo::translation::TranslatedSpace;
use octavo::{ErrorKind, Manager, PAGE_BYTES, RegionOptions, Space};
use octavo_platform::process_memory::share_memory;
use octavo_platform::userfaultfd::Userfaultfd;
use octavo_stub::{Inherited, InjectError, InjectErrorKind, Mover};
use octavo_window::{Bell, Driver, Reach, Served, Target, Watch, Window};
use rangemap::RangeSet;
use rustix::io::Errno;

use crate::adopter::Adopter;
use crate::droppers::Droppers;
use crate::eligible::Seen;
use crate::guardian::{Entrusted, Guardian};
use crate::layout::Layout;
use crate::ledger::Ledger;
use crate::proc;
use crate::reader::Reader;
use crate::tree::Parent;

const PAGE: u64 = PAGE_BYTES as u64;

/// What a process may get outside before its mappings are looked at again. It is as much as may be in staging.
const LEAST_OUTSIDE: u64 = 2 << 20;
/// How often a look goes on with what mappings have grown by meanwhile.
const MOST_ROUNDS: u32 = 4;
/// Looks for a fork's child in vain until that is said. One comes every 20 ms, or earlier.
const MOST_VAIN_LOOKS: u32 = 100;
/// The bytes of a process that are on their way out at once.
const STAGING: u64 = 2 << 20;

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
    pub(crate) unserved: Mutex<Vec<Held>>,
    /// Children of forks, until the monitor takes them.
    pub(crate) forks: Mutex<Vec<Managed>>,
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

/// What keeps a process from reading zeros. While its descriptor is open it waits for its pages, and if the runner dies, the guardian
/// kills it.
pub(crate) struct Held {
    window: Arc<Window<Target>>,
    /// Or a sentence that says why the guardian cannot have it.
    entrusted: Result<Arc<Entrusted>, String>,
}

impl Held {
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

/// The reason why a fork's child has no mover.
#[derive(Debug)]
pub(crate) enum Unequipped {
    /// The process is another one than the child.
    Another,
    /// Its mappings change just now. It is to be asked again.
    Later,
    /// A sentence that says why it cannot be managed.
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
    /// Which program this is: where its stack begins. A fork's child has its parent's.
    pub(crate) stack: u64,
    /// Of a fork's child: the process that has forked, or is thought to have.
    pub(crate) parent: u32,
    /// Processes that this child was taken for, and that it is not.
    others: Vec<u32>,
    /// How often this child was looked for among the processes in vain, since it was last taken for one.
    vain_looks: u32,
    /// It was said that none of the processes is this child.
    is_told: bool,
    pub(crate) space: TranslatedSpace,
    window: Arc<Window<Target>>,
    bell: Arc<Bell>,
    watch: Arc<Watch>,
    shared: Arc<Shared>,
    entrusted: Arc<Entrusted>,
    driver: Option<JoinHandle<()>>,
    /// What was outside of management after the last look at the mappings.
    outside_at_look: u64,
    /// What is outside, by the last note of its growth.
    outside: u64,
    /// What it had at the last note of its growth, and what of that was outside.
    before: (u64, u64),
    growth: u64,
    /// What its space had there at the last note.
    resident: u64,
    is_refused: bool,
    /// Threads that may still be dropping pages of which the kernel has told.
    droppers: Option<Droppers>,
}

impl std::fmt::Debug for Managed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Managed").field("target", self.window.reach()).finish_non_exhaustive()
    }
}

impl Managed {
    /// Takes a process over.
    ///
    /// # Errors
    /// A sentence that says why it cannot be managed.
    pub(crate) fn engage(common: Common<'_>, pid: u32) -> Result<Self, String> {
        let mut managed = Self::engage_only(common, pid)?;
        // What cannot be taken now is looked at again as it grows.
        let _ = managed.look();
        Ok(managed)
    }

    /// Takes a process over, and none of its mappings yet.
    fn engage_only(common: Common<'_>, pid: u32) -> Result<Self, String> {
        let stat = proc::stat(pid).ok_or("it has ended")?;
        let mover = Mover::inject(pid, STAGING).map_err(|error| error.to_string())?.mover;
        let events = mover.faults().share().map_err(|error| error.to_string())?;
        let name = format!("{} ({pid})", proc::name(pid));
        let program = Program { pid: Some(pid), stack: stat.stack, name };
        let held = Held::new(common.guardian, &program, events);
        let managed = Self::serve(common, program, &held, Layout::default(), |_| Ok(()))?;
        managed.window.reach().equip(pid, mover).map_err(|error| error.to_string())?;
        Ok(managed)
    }

    /// Begins to serve the memory of a process. `prepare` gets the space before any fault.
    ///
    /// # Errors
    /// A sentence that says why it cannot be served. It waits as long as it is held.
    pub(crate) fn serve(
        Common { manager, ledger, guardian, reader }: Common<'_>,
        Program { stack, name, .. }: Program,
        held: &Held,
        layout: Layout,
        prepare: impl FnOnce(&TranslatedSpace) -> octavo::Result<()>,
    ) -> Result<Self, String> {
        let (window, entrusted) = (Arc::clone(&held.window), held.entrusted.clone()?);
        let translation: Arc<dyn octavo::translation::Translation> = window.clone();
        let space = manager.translated_space(name, translation).map_err(|error| error.to_string())?;
        prepare(&space).map_err(|error| error.to_string())?;
        let shared = Arc::new(Shared {
            ledger: Arc::clone(ledger),
            manager: manager.clone(),
            guardian: guardian.clone(),
            reader: reader.clone(),
            layout,
            failure: Mutex::default(),
            served: Mutex::default(),
            unserved: Mutex::default(),
            forks: Mutex::default(),
        });
        let bell = Bell::new().map_err(|error| error.to_string())?;
        reader.look_after(&window, &bell).map_err(|error| error.to_string())?;
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
            entrusted,
            driver: None,
            outside_at_look: 0,
            outside: 0,
            before: (0, 0),
            growth: 0,
            resident: 0,
            is_refused: false,
            droppers: None,
        };
        managed.start().map_err(|error| error.to_string())?;
        Ok(managed)
    }

    fn start(&mut self) -> io::Result<()> {
        let (space, window) = (self.space.clone(), Arc::clone(&self.window));
        let (bell, shared, stack) = (Arc::clone(&self.bell), Arc::clone(&self.shared), self.stack);
        let watch = Arc::clone(&self.watch);
        let thread = std::thread::Builder::new().name("octavo-serve".into()).stack_size(512 << 10);
        self.driver = Some(thread.spawn(move || {
            crate::priority::lower();
            let adopter = Adopter::new(&space, &window, &shared, stack);
            let events = window.reach().events().as_fd();
            if let Err(error) = Driver::new(&space, &window, events, bell, adopter).watched_by(watch).run()
                && !window.reach().look_whether_gone()
            {
                let mut failure = shared.failure.lock().expect("nobody panics here");
                failure.get_or_insert(format!("the faults of a process cannot be served: {error}"));
            }
        })?);
        Ok(())
    }

    /// Takes note of which process a fork's child is thought to be.
    pub(crate) fn found(&self, pid: u32) {
        self.entrusted.found(pid);
    }

    /// Takes note that a fork's child is to be looked for again.
    pub(crate) fn lost(&mut self) {
        self.entrusted.found(0);
        // Another process was refused.
        self.is_refused = false;
    }

    /// Takes note that a fork's child is another process than this one.
    pub(crate) fn is_not(&mut self, pid: u32) {
        self.others.push(pid);
        self.vain_looks = 0;
    }

    /// Takes note that all processes were looked at, and none can be this fork's child. Returns whether that is to be said, once: those
    /// for which it was taken are others, and no more have come for a while.
    pub(crate) fn looked_in_vain(&mut self) -> bool {
        self.vain_looks = self.vain_looks.saturating_add(1);
        let is_given_up = self.vain_looks >= MOST_VAIN_LOOKS && !self.others.is_empty();
        is_given_up && !std::mem::replace(&mut self.is_told, true)
    }

    /// Returns which process has forked this child. Once it was looked for in vain, its parent may be another one: one that has been
    /// taken for a relative, or has not been found itself.
    pub(crate) fn forked_by(&self) -> Parent {
        let is_known = self.vain_looks == 0 && self.others.is_empty();
        if is_known { Parent::Known(self.parent) } else { Parent::Thought(self.parent) }
    }

    /// Returns whether a fork's child may be this process, as far as is known.
    pub(crate) fn may_be(&self, pid: u32) -> bool {
        !self.others.contains(&pid)
    }

    /// Makes a fork's child one whose pages can go out: `pid` is thought to be this child.
    ///
    /// First come changes that are unread, or not taken in: nothing is known of the child's memory before. Then the kernel says whether
    /// `pid` is the child at all. Then the space forgets what the child has not got from its parent, and only then is the mover put to
    /// use. Until then nothing of the child goes out, and nothing is adopted. What changes just then stays in doubt, and is asked about
    /// at later looks. It is not adopted either. A page of it counts as there only where the kernel has copied one, and it does so
    /// only where memory is watched.
    ///
    /// # Errors
    /// The process is another one, cannot be asked just now, or cannot be managed.
    pub(crate) fn equip(&mut self, pid: u32) -> Result<(), Unequipped> {
        let faults = self.window.reach().events().share().map_err(|error| error.to_string())?;
        let mappings = proc::mappings(pid).map_err(|error| error.to_string())?;
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
            // The kernel has put the mover where the parent has memory that it keeps from its children. A page of that may have been
            // shown there, as one that comes along with a fault.
            return Err(Unequipped::Later);
        }
        // From here on pages go out. Where the child's own would be taken for the parent's, they would read as zeros later.
        self.window.reach().equip(pid, mover).map_err(|error| error.to_string())?;
        let _ = self.look();
        Ok(())
    }

    /// Finds out about ranges that are in doubt, and returns those that are watched. Others are no memory of the parent's: it has kept
    /// them from its children (`MADV_DONTFORK`), and what the child has mapped there since is its own. The space forgets them. So it does
    /// with the mover's `own` range. Ranges that change just now, and those for which there is no room, stay in doubt.
    ///
    /// While the layout is held, no change is taken in. So what was asked of the kernel holds until the space has forgotten it, unless
    /// the kernel said that a change is unread, or one was read.
    fn find_doubtful(&self, pid: u32, own: &Range<u64>) -> Result<Vec<Range<u64>>, String> {
        let mut layout = self.shared.layout.lock();
        if layout.doubtful.is_empty() {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        let mappings = proc::mappings(pid).map_err(|error| error.to_string())?;
        let bounds = mappings.iter().flat_map(|mapping| [mapping.start, mapping.end]);
        for part in layout.doubtful_parts(bounds.chain([own.start, own.end])) {
            let (start, len) = (part.start, part.end - part.start);
            let is_watched = match watches(&self.window, start) {
                Ok(()) => !own.contains(&start),
                Err(Errno::NOENT) => false,
                Err(_) => continue,
            };
            if self.window.is_unsettled(start, len) {
                continue;
            }
            if is_watched {
                found.push(part);
            } else {
                match self.space.forget_mapping(start, len) {
                    Ok(()) => layout.unmap(part),
                    // There is no room to split a block, or it is pinned for a moment. So the part stays in doubt.
                    Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::OutOfMemory) => {}
                    Err(error) => return Err(error.to_string()),
                }
            }
        }
        Ok(found)
    }

    /// Returns addresses that the descriptor should watch, each in a mapping of its own, and in memory of staging's kind.
    fn watched_in(&self, mappings: &[proc::Mapping]) -> Vec<u64> {
        let layout = self.shared.layout.lock();
        let usable = mappings.iter().filter(|mapping| {
            mapping.is_private && mapping.is_readable && mapping.is_writable && !mapping.is_executable
        });
        let first = |mapping: &proc::Mapping| {
            let watched = layout.mapped.overlapping(&(mapping.start..mapping.end)).next();
            watched.map(|range| range.start.max(mapping.start))
        };
        usable.filter_map(first).collect()
    }

    /// Takes note that the process cannot be equipped.
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

    /// Takes the children that have been forked since the last call, by process `pid`.
    pub(crate) fn take_forks(&self, pid: u32) -> Vec<Managed> {
        let mut forks = std::mem::take(&mut *self.shared.forks.lock().expect("nobody panics here"));
        forks.iter_mut().for_each(|fork| fork.parent = pid);
        forks
    }

    /// Returns the CPU of the thread that the driver is beside, if it is.
    pub(crate) fn driver_beside_on(&self) -> Option<usize> {
        self.watch.beside_on()
    }

    /// Sees to it that the driver gets its CPU, if it is awaited, and that it looks after pages that have left.
    pub(crate) fn watch(&self) {
        if self.window.reach().has_moved() {
            self.bell.ring();
        }
        self.watch.look(|| self.bell.is_awaited(self.window.reach().events().as_fd()));
    }

    /// Gives back what is left of the last pages that went out.
    pub(crate) fn tidy(&self) {
        self.window.reach().tidy();
    }

    /// Looks at the mappings, and takes those over that are new.
    ///
    /// # Errors
    /// A sentence, where the mappings cannot be read or the space cannot map them.
    pub(crate) fn look(&mut self) -> Result<(), String> {
        self.outside_at_look = self.outside;
        let pid = self.window.reach().pid().ok_or("its process is not known")?;
        let own = self.window.reach().own_range();
        for range in self.find_doubtful(pid, &own)? {
            self.shared.layout.lock().confirm(range);
        }
        let seen = self.see(pid)?;
        let result = self.take_all(pid, seen);
        if self.droppers.is_none() && self.window.ask_about_dropped() {
            // After the question: a thread that comes later drops nothing of what was told before.
            self.droppers = Droppers::of(pid).ok();
        }
        self.bell.ring();
        result
    }

    fn see(&self, pid: u32) -> Result<Seen, String> {
        Ok(Seen::of(pid)?.with_bss(&mut self.shared.layout.lock().bss))
    }

    /// Has pages adopted again that the program has dropped and that are there still (`MADV_FREE`), once no thread may be dropping
    /// them.
    pub(crate) fn take_kept(&mut self) {
        let (Some(droppers), Some(pid)) = (&mut self.droppers, self.window.reach().pid()) else { return };
        if droppers.have_left(pid) {
            self.droppers = None;
            // While the layout is held, no change is taken in: what is dropped from now on leaves it again.
            let mut layout = self.shared.layout.lock();
            let kept = self.window.take_dropped();
            kept.into_iter().for_each(|(start, end)| layout.adopt_again(start..end));
            drop(layout);
            self.bell.ring();
        }
    }

    /// Takes what was seen over, and what that has grown by meanwhile. A mapping that is watched in part is divided, and the program
    /// could not move or resize it as one. What a mapping grows by while it is watched is watched as well.
    fn take_all(&self, pid: u32, mut seen: Seen) -> Result<(), String> {
        let own = self.window.reach().own_range();
        let mut taken = RangeSet::new();
        let mut ranges = seen.eligible();
        let mut result = Ok(());
        for _ in 0..MOST_ROUNDS {
            ranges.retain(|(start, end)| *end <= own.start || own.end <= *start);
            let mut new = RangeSet::new();
            for (start, end) in std::mem::take(&mut ranges) {
                match take(&self.space, &self.window, &self.shared, start..end) {
                    Ok(parts) => new.extend(parts),
                    Err(why) => result = Err(why),
                }
            }
            if new.is_empty() {
                break;
            }
            let before = std::mem::replace(&mut seen, self.see(pid)?);
            if result.is_ok() {
                ranges = seen.grown_since(&before, &new);
            }
            taken.extend(new);
        }
        self.confirm(&seen, &taken);
        result
    }

    /// Has ranges adopted that are watched now, by what was seen after that. Mappings may have been replaced between the look and
    /// the watch, by a thread's stack for instance. What is there in such parts stays as it is, and only pages that come from now on
    /// are Octavo's.
    ///
    /// Such parts are not given back. A range may have moved there whose event is unread. Unwatched, its pages that are out
    /// would read as zeros.
    fn confirm(&self, seen: &Seen, taken: &RangeSet<u64>) {
        if taken.is_empty() {
            return;
        }
        let eligible: RangeSet<u64> = seen.eligible().into_iter().map(|(start, end)| start..end).collect();
        let mut layout = self.shared.layout.lock();
        for range in taken.iter() {
            for part in eligible.overlapping(range) {
                layout.confirm(part.start.max(range.start)..part.end.min(range.end));
            }
            eligible.gaps(range).for_each(|other| layout.leave(other));
        }
    }

    /// Returns whether its pages are those that the space has, but for what is outside: all changes of its mappings are taken in. A
    /// look at its mappings would wait for that.
    pub(crate) fn is_settled(&self) -> bool {
        self.window.is_settled()
    }

    /// Takes note that the process has `anonymous` bytes now, how much of that is outside of management, and what it got there since
    /// the last note. Returns whether what its space has there has changed.
    pub(crate) fn note_growth(&mut self, anonymous: u64) -> bool {
        self.growth = 0;
        let resident = self.space.stats().map_or(0, |stats| stats.resident_bytes);
        let has_changed = std::mem::replace(&mut self.resident, resident) != resident;
        self.outside = anonymous.saturating_sub(resident);
        if self.is_settled() {
            self.outside_at_look = self.outside_at_look.min(self.outside);
            let now = (anonymous, self.outside);
            let before = std::mem::replace(&mut self.before, now);
            self.growth = now.0.saturating_sub(before.0).min(now.1.saturating_sub(before.1));
        }
        has_changed
    }

    /// Returns whether it got much outside of management between the last two notes.
    pub(crate) fn grows(&self) -> bool {
        self.growth > LEAST_OUTSIDE
    }

    /// Returns whether much more is outside of management than at the last look at the mappings, which can be looked at again.
    pub(crate) fn has_more_outside(&self) -> bool {
        let has_more = self.outside > self.outside_at_look + LEAST_OUTSIDE;
        has_more && self.is_equipped() && self.is_settled()
    }

    pub(crate) fn mover_pid(&self) -> Option<u32> {
        self.window.reach().mover_pid()
    }

    /// Returns the bytes of watched ranges that have not been looked at yet.
    pub(crate) fn adopting_bytes(&self) -> u64 {
        self.shared.layout.lock().adopting_bytes()
    }

    /// Returns whether much of its memory is still to be adopted. Ranges with few pages do not count. Nobody knows how much the
    /// program has kept of what it dropped.
    pub(crate) fn has_more_to_adopt(&self) -> bool {
        let bytes = if self.droppers.is_some() { u64::MAX } else { self.adopting_bytes() };
        bytes.min(self.outside) > LEAST_OUTSIDE
    }

    /// Returns whether the process still runs the program that was taken over. Where nobody can say, it does: a program that is let
    /// go would read zeros.
    pub(crate) fn is_current(&self) -> bool {
        !self.window.reach().look_whether_gone() && self.runs_its_program().unwrap_or(true)
    }

    /// Asks whether the process runs the program whose memory is there still. A mover keeps the memory of a program that has ended,
    /// or runs another program now.
    ///
    /// # Errors
    /// The kernel's, for want of descriptors.
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
            // A mover that has ended is found out elsewhere.
            _ => Ok(proc::ask(pid)?.is_some()),
        }
    }

    /// Returns whether somebody would read zeros where this is let go: the program, or a fork's child that cannot be served.
    pub(crate) fn is_needed(&self) -> bool {
        let unserved = self.shared.unserved.lock().expect("nobody panics here");
        self.is_current() || unserved.iter().any(|child| !child.has_ended())
    }

    /// Returns why the program must not go on.
    pub(crate) fn failure(&self) -> Option<String> {
        let said = self.shared.failure.lock().expect("nobody panics here").clone();
        let target = self.window.reach();
        let lost = || target.failure().map(|why| format!("process {}: {why}", target.pid().unwrap_or(0)));
        let unserved = || {
            let has_ended = self.driver.as_ref().is_some_and(JoinHandle::is_finished);
            (has_ended && !target.look_whether_gone())
                .then(|| "the thread that serves a process has ended".into())
        };
        said.or_else(lost).or_else(unserved)
    }

    /// Returns why the tree must not go on though the process has ended: a child that it has forked cannot be served. Anything else
    /// that has failed was about its own memory, which nobody has any more.
    pub(crate) fn failure_of_forks(&self) -> Option<String> {
        let unserved = self.shared.unserved.lock().expect("nobody panics here");
        self.failure().filter(|_| unserved.iter().any(|child| !child.has_ended()))
    }

    /// Returns what the driver has counted, up to about now.
    pub(crate) fn served(&self) -> Served {
        *self.shared.served.lock().expect("nobody panics here")
    }

    /// Takes note that its process has ended. Another may get the number.
    pub(crate) fn gone(&self) {
        self.entrusted.found(0);
    }

    /// Has its driver end, after the process. Forks of which the driver has read are taken in first, which may have to wait for room. The
    /// mover keeps the memory for that: the kernel is asked about it at each fork.
    pub(crate) fn stop(&self) {
        self.window.reach().lose();
        self.bell.end();
        self.watch.call_back();
    }

    /// Returns whether its driver has ended, and need not be waited for.
    pub(crate) fn has_stopped(&self) -> bool {
        self.driver.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until its driver has ended, and lets the memory go. No fork comes after that.
    pub(crate) fn wait(&mut self) {
        self.stop();
        // A driver that has failed was found out by `failure`.
        let _ = self.driver.take().map(JoinHandle::join);
        self.window.reach().end();
    }

    /// Lets the process go, which has ended, and returns what its driver has counted. Forks that it made last have to be taken before.
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

/// Maps the parts of a range that the space does not map yet, and watches them. They are doubtful until they are confirmed.
pub(crate) fn take(
    space: &Space,
    window: &Window<Target>,
    shared: &Shared,
    range: Range<u64>,
) -> Result<Vec<Range<u64>>, String> {
    let mut taken = Vec::new();
    // An event that comes after the watch finds the range in the layout.
    let mut layout = shared.layout.lock();
    for gap in layout.mapped.gaps(&range).collect::<Vec<_>>() {
        let (start, len) = (gap.start, gap.end - gap.start);
        // Something may just have moved there. Its event says so, and it is not taken over as if it were new.
        if watches(window, start) == Err(Errno::AGAIN) || window.is_unsettled(start, len) {
            continue;
        }
        space.map_at(start, len, RegionOptions::default()).map_err(|error| error.to_string())?;
        if window.reach().watch(start, len).is_err() {
            // Something else has it, or it has just gone.
            let _ = space.unmap(start, len);
            continue;
        }
        layout.mapped.insert(gap.clone());
        layout.doubtful.insert(gap.clone());
        taken.push(gap);
    }
    Ok(taken)
}

/// Asks the kernel whether a page is watched. It is protected then, at the price of a fault.
///
/// # Errors
/// `AGAIN` where an event is unread, and `NOENT` where the page is not watched.
fn watches(window: &Window<Target>, page: u64) -> Result<(), Errno> {
    // A mover that makes pages of a fork its own must not meet the protection: it would wait for the driver, and the driver for it.
    let protected = window.hold_still(|| window.reach().events().write_protect(page, PAGE, true));
    protected.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

#[cfg(test)]
pub(crate) mod tests;
