//! A window: the translation of a space's pages to real addresses of a target.
//!
//! ```text
//!   install    copied in; a read-only page is protected, and its first store is a fault
//!   remove     moved out in one step, read, and discarded (see `target.rs`)
//!   protect    protected, or not
//!   harvest    tells what is present, and what was used if the accessed bits can be read; only faults
//!              report stores
//! ```
//!
//! Each call holds the gate (`events/gate.rs`), so that no event is read meanwhile. A harvest of accessed
//! bits does not hold the gate, since it is only a hint. A page is refused if an event that Octavo has not
//! taken in yet concerns it, or if the kernel returns EAGAIN. While an event is unread, the kernel lets no
//! page go. So a thread whose move is refused reads the event, and leaves it to the driver.
//!
//! A copy wakes no thread. The driver wakes the waiting threads when all pages of a run are present.
//! Otherwise a program that uses its memory in order would be woken at each page, only to wait for the next.
//!
//! A page is clean from the time it is copied in until the first store to it. While a page stays in the
//! target, it never becomes clean again.
//!
//! A call costs the gate, and one system call for each range of pages that is contiguous both in the target
//! and in Octavo's frames.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};

use octavo::translation::{Answer, Bytes, Home, Install, Remove, Run, Touch, Translation};
use octavo::{PAGE_BYTES, PageNumber, Protection};
use octavo_platform::userfaultfd::{CallProgress, Event};
use rustix::io::Errno;

use crate::bell::Bell;
use crate::events::gate::{Gate, Unsettled};
use crate::reach::{Reach, TakeOutcome, Taking};

const PAGE: u64 = PAGE_BYTES as u64;
/// Pages of zeros that are copied at once.
const ZEROS: usize = 512;

static ZERO_BYTES: [u8; ZEROS * PAGE_BYTES] = [0; ZEROS * PAGE_BYTES];

/// A window over a target.
pub struct Window<R> {
    reach: R,
    gate: Gate<Event>,
    /// A thread that takes pages out locks this before the gate. So no thread holds the gate while it waits
    /// for another thread's batch.
    taking: Mutex<()>,
    /// The driver's bell, once there is a driver.
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

    /// Calls `look` while Octavo shows, takes out and protects no page of the target, and no event is read.
    /// `look` must not call the engine, which may be waiting for a call of this window.
    pub fn hold_still<T>(&self, look: impl FnOnce() -> T) -> T {
        self.gate.alone(|_| look())
    }

    /// Like [`Window::hold_still`], for a range. Returns `None` if an unsettled change concerns the range:
    /// its memory may then differ from the space.
    pub fn hold_settled<T>(&self, start: u64, len: u64, look: impl FnOnce() -> T) -> Option<T> {
        self.gate.alone(|unsettled| (!unsettled.concerns(start, len)).then(look))
    }

    /// Returns whether an unsettled change concerns a range: one that was read, and that Octavo has not taken
    /// in.
    pub fn is_unsettled(&self, start: u64, len: u64) -> bool {
        self.gate.hold().concerns(start, len)
    }

    /// Returns whether all changes that were read are taken in. This does not wait: it returns false if the
    /// answer is unknown at the moment.
    pub fn is_settled(&self) -> bool {
        self.gate.is_known_settled()
    }

    /// Begins to ask which of the pages that the target has dropped are still present. Returns whether the
    /// target has dropped any since the ranges were last [taken](Self::take_dropped). If so, the caller makes
    /// sure that every thread has left the call in which it dropped pages.
    pub fn ask_about_dropped(&self) -> bool {
        self.gate.alone(|unsettled| unsettled.dropped().ask())
    }

    /// Returns the ranges that were asked about, as start and end addresses. Pages that are present there now
    /// have survived all calls before that question.
    pub fn take_dropped(&self) -> Vec<(u64, u64)> {
        self.gate.alone(|unsettled| unsettled.dropped().take())
    }

    /// Notes that the target has moved a range. Dropped pages that were still present there have moved along.
    pub(crate) fn move_dropped(&self, from: Range<u64>, to: u64) {
        self.gate.alone(|unsettled| unsettled.dropped().relocate(from, to));
    }

    pub(crate) fn gate(&self) -> &Gate<Event> {
        &self.gate
    }

    /// Sets the bell by which the driver hears of events that others read. A window has one driver.
    pub(crate) fn set_bell(&self, bell: Arc<Bell>) {
        let _ = self.bell.set(bell);
    }

    /// Reads the program's events in place of a busy driver, and leaves them to the driver. The program's
    /// calls then continue. While a batch of pages is in transit, this reads nothing. If the kernel refuses
    /// the batch, the thread of the batch reads the events.
    pub fn read_for_driver(&self) {
        let read = self.gate.try_alone(|unsettled| self.read_more(unsettled));
        read.into_iter().for_each(|(is_told, ask)| self.go_on(is_told, ask));
    }

    /// Like [`Window::read_for_driver`], for a thread whose pages were refused.
    fn read_after_refusal(&self) {
        let (is_told, ask) = self.gate.alone(|unsettled| self.read_more(unsettled));
        self.go_on(is_told, ask);
    }

    /// Calls the function that a fork event has returned, and rings for the driver if there is something for
    /// it.
    fn go_on(&self, is_told: bool, ask: Option<impl FnOnce()>) {
        ask.into_iter().for_each(|ask| ask());
        self.bell.get().filter(|_| is_told).into_iter().for_each(|bell| bell.ring());
    }

    /// Reads for the driver, and leaves errors to the driver. Returns whether there is something for the
    /// driver, and the question to ask.
    fn read_more(&self, unsettled: &mut Unsettled<Event>) -> (bool, Option<impl FnOnce() + use<'_, R>>) {
        let may_read = self.bell.get().is_some() && unsettled.takes_more();
        let ask = may_read.then(|| self.read(unsettled).1).flatten();
        (!unsettled.told().is_empty(), ask)
    }

    /// Reads events, and takes them together with those that others have read before, even if it cannot read
    /// all. Returns the question that the driver must ask first.
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

    /// Takes the events that others have read, before the driver ends.
    pub(crate) fn take_last_events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        self.gate.alone(|unsettled| unsettled.take_last(&mut events));
        events
    }

    /// Reads events, and notes what they change. If there were forks, returns a question to ask after the
    /// gate is released. Even then all pages stay refused, and only the driver reads more events.
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

    /// Asks about a run under the gate, unless an unsettled change concerns it.
    fn under_gate<A: Copy>(
        &self,
        run: &Run<A>,
        ask: impl FnOnce(u64, u64, &Unsettled<Event>) -> Answer,
    ) -> Answer {
        let (start, len) = extent(run);
        let unsettled = self.gate.hold();
        if unsettled.concerns(start, len) {
            // Refuse even if the target has ended: its fork's child may still need the target's pages.
            Answer::Busy
        } else if self.reach.is_gone() {
            Answer::Done
        } else {
            ask(start, len, &unsettled)
        }
    }

    fn copy_bytes(&self, start: u64, len: u64, from: *const u8, protected: bool) -> Answer {
        // SAFETY: the engine's frames and the zeros are readable.
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
                // A page that the program has dropped is present. The kernel may be about to take the page,
                // so Octavo leaves it alone: the old bytes must not come back. The program may use the page
                // as it is.
                Some(Errno::EXIST) if unsettled.may_be_dropped(start + done) => {
                    // If the kernel refuses this, the next fault tries again.
                    let _ = self.reach.protect(start + done, PAGE, false);
                    return match done / PAGE {
                        0 => Answer::Unsupported,
                        pages => Answer::Partly(pages as u32),
                    };
                }
                // A page is present that Octavo did not know of: an earlier zero page, or one that a fork has
                // left to its child. From now on, `protected` applies to it.
                Some(Errno::EXIST) if self.reach.protect(start + done, PAGE, protected).is_ok() => {
                    done += PAGE
                }
                Some(_) => return answer_to(CallProgress { done_bytes: done, error: progress.error }, len),
            }
        }
        Answer::Done
    }
}

/// Returns the start address of a run, and its length in bytes.
fn extent<A>(run: &Run<A>) -> (u64, u64) {
    (run.page.address(), u64::from(run.count) * PAGE)
}

/// Returns the answer for the kernel's progress over `len` bytes.
fn answer_to(progress: CallProgress, len: u64) -> Answer {
    match progress.error {
        None if progress.done_bytes >= len => Answer::Done,
        // The target has ended, so there is nothing to show any more.
        Some(Errno::SRCH) => Answer::Done,
        // The mapping is gone, or something else is there. The fault fails, and the program's retry meets
        // what is there now.
        Some(Errno::NOENT | Errno::EXIST | Errno::INVAL) if progress.done_bytes == 0 => Answer::Unsupported,
        _ if progress.done_bytes >= PAGE => Answer::Partly((progress.done_bytes / PAGE) as u32),
        _ => Answer::Busy,
    }
}

/// Returns the answer for pages that should leave a target that has ended. Their bytes are gone, and Octavo
/// must not mistake the frame's contents for these bytes: after a fork, other targets may have the same page
/// in the same place.
fn answer_of_gone(ask: Remove) -> Answer {
    if ask.to.is_some() { Answer::Busy } else { Answer::Done }
}

// SAFETY: the kernel copies out of the frames named by runs of `install`, and into those named by runs of
// `remove`, before the calls return; see their bodies.
unsafe impl<R: Reach> Translation for Window<R> {
    fn install(&self, home: Home<'_>, runs: &mut [Run<Install>]) {
        for run in runs {
            let Install { bytes, protection } = run.ask;
            run.answer = self.under_gate(run, |start, len, unsettled| match bytes {
                // The kernel cannot show its zero page and protect it in one step.
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
        // SAFETY: the destination frames are the engine's, and nobody else uses them until this returns.
        unsafe { self.reach.take_out(&taking, &mut outcomes) };
        drop((unsettled, batch));
        if outcomes.contains(&TakeOutcome::Unread) {
            // The engine asks for these pages again later, after the driver has taken the events in.
            self.read_after_refusal();
        }
        for (index, taken) in asked.into_iter().zip(outcomes) {
            runs[index].answer = match taken {
                TakeOutcome::All => Answer::Done,
                TakeOutcome::Part(bytes) if bytes >= PAGE => Answer::Partly((bytes / PAGE) as u32),
                TakeOutcome::Part(_) | TakeOutcome::Unread => Answer::Busy,
                TakeOutcome::Never => Answer::Unsupported,
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
                        answer_to(CallProgress { done_bytes: 0, error: error.or(Some(Errno::IO)) }, len)
                    }
                }
            });
        }
    }

    fn split(&self, runs: &mut [Run<()>]) {
        // The kernel itself splits the blocks that it moves.
        runs.iter_mut().for_each(|run| run.answer = Answer::Done);
    }

    fn harvest(&self, runs: &mut [Run<Touch>], touched: &mut dyn FnMut(PageNumber)) {
        let accessed: Vec<_> = runs.iter().filter(|run| run.ask == Touch::Accessed).map(extent).collect();
        // This needs no gate: it is a hint, whatever happens to the pages meanwhile.
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

    /// A target whose kernel lets no page go until an event about other pages is read.
    #[derive(Default)]
    struct Telling {
        has_told: AtomicBool,
        forks: Mutex<Vec<Event>>,
        window: OnceLock<Weak<Window<Telling>>>,
        asked: AtomicUsize,
    }

    const TOLD: (u64, u64) = (PAGE, 2 * PAGE);

    impl Reach for Telling {
        unsafe fn copy_in(&self, _: u64, _: *const u8, len: u64, _: bool) -> CallProgress {
            CallProgress { done_bytes: len, error: None }
        }

        fn protect(&self, _: u64, _: u64, _: bool) -> io::Result<()> {
            Ok(())
        }

        unsafe fn take_out(&self, runs: &[Taking], outcomes: &mut Vec<TakeOutcome>) {
            let taken =
                if self.has_told.load(Ordering::Relaxed) { TakeOutcome::All } else { TakeOutcome::Unread };
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
