//! A window: the translation of a space's pages to real addresses of a target.
//!
//! ```text
//!   install    copied in; a page that may only be read unnoticed is protected, and tells of its first store
//!   remove     moved out in one step, read, and discarded (see `target.rs`)
//!   protect    protected, or not
//!   harvest    is it there? Was it used, where the processor's accessed bits can be read? Stores are told by faults alone
//! ```
//!
//! Each call holds the gate (`events/gate.rs`), so that no event is read meanwhile. A page that an event
//! concerns which Octavo has not taken in yet is refused, and so is a page for which the kernel says EAGAIN.
//! As long as an event is unread, the kernel lets no page go. So the thread that is refused a move reads the
//! event, and leaves it to the driver.
//!
//! A copy wakes nobody. The driver wakes the threads that wait when all pages of a run are there. Otherwise a
//! program that goes through its memory in order would be woken at each page, only to wait for the next.
//!
//! A page is clean from its copy in until its first store. It is never made clean again in place.
//!
//! A call costs the gate, and one system call for pages that lie together at both sides.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};

use octavo::translation::{Answer, Bytes, Home, Install, Remove, Run, Touch, Translation};
use octavo::{PAGE_BYTES, PageNumber, Protection};
use octavo_platform::userfaultfd::{Event, Progress};
use rustix::io::Errno;

use crate::bell::Bell;
use crate::events::gate::{Gate, Unsettled};
use crate::reach::{Reach, Taken, Taking};

const PAGE: u64 = PAGE_BYTES as u64;
/// Pages of zeros that are copied at once.
const ZEROS: usize = 512;

static ZERO_BYTES: [u8; ZEROS * PAGE_BYTES] = [0; ZEROS * PAGE_BYTES];

/// A window over a target.
pub struct Window<R> {
    reach: R,
    gate: Gate<Event>,
    /// Held before the gate by the thread that takes pages out: under the gate, nobody waits for another's
    /// batch.
    taking: Mutex<()>,
    /// Of the driver, once there is one.
    bell: OnceLock<Arc<Bell>>,
}

impl<R: Reach> Window<R> {
    /// Makes a window over a target.
    pub fn new(reach: R) -> Self {
        Self { reach, gate: Gate::default(), taking: Mutex::default(), bell: OnceLock::new() }
    }

    /// Returns the target.
    pub fn reach(&self) -> &R {
        &self.reach
    }

    /// Looks at the target while Octavo shows, takes out and protects nothing, and no event is read. `look`
    /// must not call the engine, which may be waiting for a call of this window.
    pub fn hold_still<T>(&self, look: impl FnOnce() -> T) -> T {
        self.gate.alone(|_| look())
    }

    /// As [`Window::hold_still`], at a range. `None`: a change that was told of, and is not taken in,
    /// concerns it. What is there now may be something else than the space has.
    pub fn hold_settled<T>(&self, start: u64, len: u64, look: impl FnOnce() -> T) -> Option<T> {
        self.gate.alone(|unsettled| (!unsettled.concerns(start, len)).then(look))
    }

    /// Returns whether a change that was told of, and is not taken in, concerns a range.
    pub fn is_unsettled(&self, start: u64, len: u64) -> bool {
        self.gate.hold().concerns(start, len)
    }

    /// Returns whether all changes that were told of are taken in. It waits for nobody: false where that is
    /// not known just now.
    pub fn is_settled(&self) -> bool {
        self.gate.is_known_settled()
    }

    /// Begins to ask which pages are still there of those that the target has dropped. Returns whether it has
    /// dropped any since they were [taken](Self::take_dropped) last. The caller then sees that every thread
    /// has left such a call.
    pub fn ask_about_dropped(&self) -> bool {
        self.gate.alone(|unsettled| unsettled.dropped().ask())
    }

    /// Returns the ranges that were asked about, from address to address. What is there now was not dropped
    /// by calls before that question.
    pub fn take_dropped(&self) -> Vec<(u64, u64)> {
        self.gate.alone(|unsettled| unsettled.dropped().take())
    }

    /// Takes note that a range of the target was moved, with pages that it has dropped and that are there
    /// still.
    pub(crate) fn move_dropped(&self, from: Range<u64>, to: u64) {
        self.gate.alone(|unsettled| unsettled.dropped().relocate(from, to));
    }

    pub(crate) fn gate(&self) -> &Gate<Event> {
        &self.gate
    }

    /// Has the driver hear of what others read. A window has one driver.
    pub(crate) fn set_bell(&self, bell: Arc<Bell>) {
        let _ = self.bell.set(bell);
    }

    /// Reads what the program tells, in place of a driver that is busy, and leaves it to the driver. The
    /// program's calls go on. Nothing is read while a batch of pages is on its way: a thread that is refused
    /// its pages reads by itself.
    pub fn read_for_driver(&self) {
        let read = self.gate.try_alone(|unsettled| self.read_more(unsettled));
        read.into_iter().for_each(|(is_told, ask)| self.go_on(is_told, ask));
    }

    /// As [`Window::read_for_driver`], by a thread that was refused pages.
    fn read_after_refusal(&self) {
        let (is_told, ask) = self.gate.alone(|unsettled| self.read_more(unsettled));
        self.go_on(is_told, ask);
    }

    /// Asks what is to be asked after a fork, and has the driver come by if there is something for it.
    fn go_on(&self, is_told: bool, ask: Option<impl FnOnce()>) {
        ask.into_iter().for_each(|ask| ask());
        self.bell.get().filter(|_| is_told).into_iter().for_each(|bell| bell.ring());
    }

    /// Reads for the driver. An error is the driver's to meet. Returns whether there is something for it, and
    /// what is to be asked.
    fn read_more(&self, unsettled: &mut Unsettled<Event>) -> (bool, Option<impl FnOnce() + use<'_, R>>) {
        let may_read = self.bell.get().is_some() && unsettled.takes_more();
        let ask = may_read.then(|| self.read(unsettled).1).flatten();
        (!unsettled.told().is_empty(), ask)
    }

    /// Reads what the program tells, and takes it together with what others have read before, also where it
    /// cannot read all. Returns what the driver is to ask before anything else.
    pub(crate) fn take_events(
        &self,
        events: &mut Vec<Event>,
    ) -> (io::Result<()>, Option<impl FnOnce() + use<'_, R>>) {
        self.gate.alone(|unsettled| {
            let read = self.read(unsettled);
            unsettled.take(events);
            read
        })
    }

    /// Takes what others have read, before the driver ends.
    pub(crate) fn take_last_events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        self.gate.alone(|unsettled| unsettled.take_last(&mut events));
        events
    }

    /// Reads events, and notes what they change. Returns what is to be asked about forks, once the gate is
    /// open: all pages are refused then, and nobody but the driver reads more.
    fn read(&self, unsettled: &mut Unsettled<Event>) -> (io::Result<()>, Option<impl FnOnce() + use<'_, R>>) {
        let mut told = std::mem::take(unsettled.told());
        let (first, mut forks) = (told.len(), 0);
        let result = self.reach.read_events(&mut told);
        for event in &told[first..] {
            match *event {
                Event::Fault { .. } => {}
                Event::Fork(_) => {
                    forks += 1;
                    unsettled.add_all();
                }
                Event::Remove { start, end } => unsettled.add_dropped(start, end),
                Event::Unmap { start, end } => unsettled.add(start, end),
                Event::Remap { from, to, len } => {
                    unsettled.add(from, from + len);
                    unsettled.add(to, to + len);
                }
            }
        }
        *unsettled.told() = told;
        (result.map(|_| ()), (forks > 0).then(|| self.reach.has_forked(forks)))
    }

    /// Asks about a run under the gate, unless a change is unsettled that concerns it.
    fn under_gate<A: Copy>(
        &self,
        run: &Run<A>,
        ask: impl FnOnce(u64, u64, &Unsettled<Event>) -> Answer,
    ) -> Answer {
        let (start, len) = extent(run);
        let unsettled = self.gate.hold();
        if unsettled.concerns(start, len) {
            // Also where the target has ended: a fork of it may still have to get what it had.
            Answer::Busy
        } else if self.reach.is_gone() {
            Answer::Done
        } else {
            ask(start, len, &unsettled)
        }
    }

    fn copy_bytes(&self, start: u64, len: u64, from: *const u8, protected: bool) -> Answer {
        // SAFETY: the engine's frames are readable, and so are the zeros.
        let progress = unsafe { self.reach.copy_in(start, from, len, protected) };
        answer_to(progress, len)
    }

    fn copy_zeros(&self, start: u64, len: u64, protected: bool, unsettled: &Unsettled<Event>) -> Answer {
        let mut done = 0;
        while done < len {
            let part = (len - done).min(ZERO_BYTES.len() as u64);
            // SAFETY: `part` bytes of zeros are readable.
            let progress = unsafe { self.reach.copy_in(start + done, ZERO_BYTES.as_ptr(), part, protected) };
            done += progress.done_bytes;
            match progress.error {
                None => {}
                // A page is there that the program has dropped. The kernel may be about to take it, so it is
                // none of Octavo's: its bytes must not come back. The program may use it as it is.
                Some(Errno::EXIST) if unsettled.may_be_dropped(start + done) => {
                    // A refusal is met by the next fault.
                    let _ = self.reach.protect(start + done, PAGE, false);
                    return match done / PAGE {
                        0 => Answer::Unsupported,
                        pages => Answer::Partly(pages as u32),
                    };
                }
                // A page is there that Octavo did not know of: a zero page from before, or one that a fork
                // has left to its child. It may be written from now on.
                Some(Errno::EXIST) if self.reach.protect(start + done, PAGE, protected).is_ok() => {
                    done += PAGE
                }
                Some(_) => return answer_to(Progress { done_bytes: done, error: progress.error }, len),
            }
        }
        Answer::Done
    }
}

/// Returns the addresses of a run: the first one, and the bytes.
fn extent<A>(run: &Run<A>) -> (u64, u64) {
    (run.page.address(), u64::from(run.count) * PAGE)
}

/// Returns the answer that the kernel's progress over `len` bytes amounts to.
fn answer_to(progress: Progress, len: u64) -> Answer {
    match progress.error {
        None if progress.done_bytes >= len => Answer::Done,
        // The target has ended. There is nothing to show any more.
        Some(Errno::SRCH) => Answer::Done,
        // The mapping is gone, or something is there. The fault fails, and the program meets what is there
        // now.
        Some(Errno::NOENT | Errno::EXIST | Errno::INVAL) if progress.done_bytes == 0 => Answer::Unsupported,
        _ if progress.done_bytes >= PAGE => Answer::Partly((progress.done_bytes / PAGE) as u32),
        _ => Answer::Busy,
    }
}

/// Returns the answer where pages are to leave a target that has ended. There are no bytes any more, and
/// Octavo must not take what is in its frame for them: after a fork, other targets may have the same page in
/// the same place.
fn answer_of_gone(ask: Remove) -> Answer {
    if ask.to.is_some() { Answer::Busy } else { Answer::Done }
}

// SAFETY: the kernel copies out of the frames that runs of `install` name, and into those that runs of
// `remove` name, before the calls return; see their bodies.
unsafe impl<R: Reach> Translation for Window<R> {
    fn install(&self, home: Home<'_>, runs: &mut [Run<Install>]) {
        for run in runs {
            let Install { bytes, protection } = run.ask;
            run.answer = self.under_gate(run, |start, len, unsettled| match bytes {
                // The kernel's zero pages cannot be protected in one step with being shown.
                Bytes::ZeroPages => Answer::Unsupported,
                Bytes::Zeros => self.copy_zeros(start, len, !protection.write, unsettled),
                Bytes::Frames(frame) => self.copy_bytes(start, len, home.pointer(frame), !protection.write),
            });
        }
    }

    fn remove(&self, home: Home<'_>, runs: &mut [Run<Remove>]) {
        if self.reach.is_gone() {
            return runs.iter_mut().for_each(|run| run.answer = answer_of_gone(run.ask));
        }
        let batch = self.taking.lock().expect("nobody panics here");
        let unsettled = self.gate.hold();
        let (mut taking, mut asked) = (Vec::with_capacity(runs.len()), Vec::with_capacity(runs.len()));
        for (index, run) in runs.iter_mut().enumerate() {
            let (address, len) = extent(run);
            run.answer = Answer::Busy;
            if !unsettled.concerns(address, len) {
                let to = run.ask.to.map_or(std::ptr::null_mut(), |frame| home.pointer(frame));
                taking.push(Taking { address, len, to, is_clean: run.ask.is_clean });
                asked.push(index);
            }
        }
        let mut outcomes = Vec::with_capacity(taking.len());
        // SAFETY: the frames that want bytes are the engine's, and nobody else uses them until this has
        // returned.
        unsafe { self.reach.take_out(&taking, &mut outcomes) };
        drop((unsettled, batch));
        if outcomes.contains(&Taken::Unread) {
            // These pages are asked for again later, and not before the driver has taken the events in.
            self.read_after_refusal();
        }
        for (index, taken) in asked.into_iter().zip(outcomes) {
            runs[index].answer = match taken {
                Taken::All => Answer::Done,
                Taken::Part(bytes) if bytes >= PAGE => Answer::Partly((bytes / PAGE) as u32),
                Taken::Part(_) | Taken::Unread => Answer::Busy,
                Taken::Never => Answer::Unsupported,
            };
        }
    }

    fn protect(&self, runs: &mut [Run<Protection>]) {
        for run in runs {
            let protection = run.ask;
            run.answer = self.under_gate(run, |start, len, _| {
                match self.reach.protect(start, len, !protection.write) {
                    Ok(()) => Answer::Done,
                    Err(error) => {
                        let error = Errno::from_io_error(&error);
                        answer_to(Progress { done_bytes: 0, error: error.or(Some(Errno::IO)) }, len)
                    }
                }
            });
        }
    }

    fn split(&self, runs: &mut [Run<()>]) {
        // The kernel splits what it moves.
        runs.iter_mut().for_each(|run| run.answer = Answer::Done);
    }

    fn harvest(&self, runs: &mut [Run<Touch>], touched: &mut dyn FnMut(PageNumber)) {
        let accessed: Vec<_> = runs.iter().filter(|run| run.ask == Touch::Accessed).map(extent).collect();
        // It needs no gate: this is a hint, whatever happens to the pages meanwhile.
        let mut tell = |address| touched(PageNumber::containing(address));
        let is_known = !accessed.is_empty() && self.reach.harvest(&accessed, &mut tell).is_ok();
        for run in runs {
            run.answer = match run.ask {
                Touch::There => {
                    self.under_gate(run, |start, len, _| match self.reach.look(start, len, &mut tell) {
                        Ok(()) => Answer::Done,
                        Err(_) => Answer::Unsupported,
                    })
                }
                Touch::Accessed if is_known => Answer::Done,
                Touch::Accessed | Touch::Written => Answer::Unsupported,
            };
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Weak;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use octavo::{Access, FrameId, Manager, RegionOptions};

    use super::*;

    #[test]
    fn a_target_that_has_ended_gives_no_bytes() {
        assert_eq!(answer_of_gone(Remove::DROP), Answer::Done);
        for is_clean in [false, true] {
            assert_eq!(answer_of_gone(Remove { to: Some(FrameId(7)), is_clean }), Answer::Busy);
        }
    }

    /// A kernel that lets no page go until an event is read, which is about other pages.
    #[derive(Default)]
    struct Telling {
        has_told: AtomicBool,
        forks: Mutex<Vec<Event>>,
        window: OnceLock<Weak<Window<Telling>>>,
        asked: AtomicUsize,
    }

    const TOLD: (u64, u64) = (PAGE, 2 * PAGE);

    impl Reach for Telling {
        unsafe fn copy_in(&self, _: u64, _: *const u8, len: u64, _: bool) -> Progress {
            Progress { done_bytes: len, error: None }
        }

        fn protect(&self, _: u64, _: u64, _: bool) -> io::Result<()> {
            Ok(())
        }

        unsafe fn take_out(&self, runs: &[Taking], outcomes: &mut Vec<Taken>) {
            let taken = if self.has_told.load(Ordering::Relaxed) { Taken::All } else { Taken::Unread };
            outcomes.resize(outcomes.len() + runs.len(), taken);
        }

        fn look(&self, _: u64, _: u64, _: &mut dyn FnMut(u64)) -> io::Result<()> {
            Ok(())
        }

        fn harvest(&self, _: &[(u64, u64)], _: &mut dyn FnMut(u64)) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn wake(&self, _: u64, _: u64) {}

        fn read_events(&self, events: &mut Vec<Event>) -> io::Result<usize> {
            let forks = std::mem::take(&mut *self.forks.lock().unwrap());
            if !forks.is_empty() {
                let count = forks.len();
                events.extend(forks);
                return Ok(count);
            }
            let is_new = !self.has_told.swap(true, Ordering::Relaxed);
            events.extend(is_new.then_some(Event::Remove { start: TOLD.0, end: TOLD.1 }));
            Ok(usize::from(is_new))
        }

        fn has_forked(&self, forks: usize) -> impl FnOnce() {
            assert_eq!(forks, 2);
            let window = self.window.get().unwrap().upgrade().unwrap();
            assert!(window.gate().try_alone(|_| ()).is_none(), "answers are in the order of the events");
            move || {
                assert!(window.gate().try_alone(|_| ()).is_some(), "the answer takes its time");
                self.asked.fetch_add(1, Ordering::Relaxed);
            }
        }

        fn is_gone(&self) -> bool {
            false
        }
    }

    #[test]
    fn what_a_forks_child_has_not_got_is_asked_before_the_driver_comes_by() {
        let window = Arc::new(Window::new(Telling::default()));
        window.reach().window.set(Arc::downgrade(&window)).unwrap();
        window.set_bell(Bell::new().unwrap());
        let fork = || Event::Fork(std::fs::File::open("/dev/null").unwrap().into());
        window.reach().forks.lock().unwrap().extend([fork(), fork()]);
        window.read_for_driver();
        assert_eq!(window.reach().asked.load(Ordering::Relaxed), 1, "one answer for both");
        let mut events = Vec::new();
        assert!(window.take_events(&mut events).1.is_none(), "the driver has nothing to ask");
        assert!(matches!(events[..], [Event::Fork(_), Event::Fork(_), Event::Remove { .. }]));
    }

    #[test]
    fn whoever_is_refused_a_page_for_an_event_reads_it_and_leaves_it_to_the_driver() {
        let manager = Manager::builder().budget_bytes(16 << 20).background(false).build().unwrap();
        let window = Arc::new(Window::new(Telling::default()));
        let bell = Bell::new().unwrap();
        window.set_bell(Arc::clone(&bell));
        let space = manager.translated_space("telling", window.clone()).unwrap();
        let at = space.map(PAGE, RegionOptions::default()).unwrap();
        assert_eq!(space.show(at, PAGE, Access::Write).unwrap(), 1);
        assert!(!bell.begin_turn());
        // No driver runs.
        assert_eq!(manager.reclaim(1).unwrap(), 1, "the page goes at the next look");
        assert!(bell.is_rung());
        assert!(window.is_unsettled(TOLD.0, PAGE) && !window.is_unsettled(at, PAGE));
        let mut events = Vec::new();
        window.gate().settle();
        assert!(!window.is_settled(), "the driver has not taken it");
        assert_eq!(window.hold_settled(TOLD.0, PAGE, || 1), None);
        assert_eq!(window.hold_settled(at, PAGE, || 1), Some(1));
        window.take_events(&mut events).0.unwrap();
        assert!(matches!(events[..], [Event::Remove { .. }]));
        window.gate().settle();
        assert!(window.is_settled());
        assert!(window.take_last_events().is_empty());
        window.reach().has_told.store(false, Ordering::Relaxed);
        window.read_for_driver();
        assert!(window.is_settled(), "nobody reads for a driver that has ended");
        drop(space);
    }
}
