//! The thread that serves the faults of one target, and takes in the changes of its mappings.
//!
//! ```text
//!   wait ─► end faults that have waited ─► read events under the gate ─┬─► faults: show what is at hand,
//!    ▲                                                                 │   otherwise begin to wait
//!    │                                                                 └─► changes: taken in, in order ─┐
//!    └────────────────────────────────────────── next turn ─────────────────────────────────────────────┘
//! ```
//!
//! One thread drives many faults. The driver serves a fault on the spot if its page needs no waiting,
//! together with the next pages if the program uses its memory in order. Any other fault is a future that
//! waits for a device or for room.
//!
//! A fault on the spot costs three system calls: the read of its event, the copy, and the call that wakes the
//! faulting thread. It allocates nothing. A fault that waits allocates its future.
//!
//! | file | what it does |
//! |---|---|
//! | `listener` | is told of forks and changes, and brings work of its own |
//! | `intake` | takes in changes of mappings, in their order |
//! | `ahead` | decides how many pages to show ahead of a program that uses its memory in order |
//! | `wakefulness` | decides whether to sleep or to stay awake |
//!
//! **The driver never waits for room while it must read events.** While an event is unread, the kernel lets
//! no page of the target go. So a driver that waited for room before it has read the events would wait for
//! itself. So making room is a future like a fault, and yields after each batch of pages. Memory is adopted
//! as far as there is room for it. Longer work (a fork that copies pages, a batch of another process) keeps
//! the driver from reading. Then [others read](Window::read_for_driver): threads whose moves are refused, and
//! a thread that watches for late drivers. The driver takes those events in its next turn, and all changes in
//! their order.
//!
//! **Devices are kept busy.** The driver handles only a few ended reads at a time, and begins new reads in
//! between. While reads are in flight, the driver polls for their ends as long as polling pays: to sleep and
//! wake takes longer than many reads.

pub(crate) mod ahead;
mod intake;
pub(crate) mod listener;
pub(crate) mod wakefulness;

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, Stream};
use octavo::translation::TranslatedSpace;
use octavo::{Access, ErrorKind, PAGE_BYTES};
use octavo_platform::userfaultfd::Event;
use rustix::event::Timespec;
use rustix::fd::BorrowedFd;

use crate::bell::Bell;
use crate::driver::ahead::{Ahead, FaultAdvice};
use crate::driver::listener::{Listener, RemainingWork, Served};
use crate::driver::wakefulness::Wakefulness;
use crate::events::changes::WaitingChanges;
use crate::placement::{Placement, Watch};
use crate::reach::Reach;
use crate::window::Window;

const PAGE: u64 = PAGE_BYTES as u64;
/// After a run of at least this many pages, the driver shows the next pages beforehand.
const LEAST_BEFOREHAND: u64 = 32;
/// The number of remembered faulting pages. A page that faults again soon was dropped unnoticed.
const RECENT: usize = 64;
/// The pause between two looks for a page that a waiting change will bring.
const BETWEEN_LOOKS: Duration = Duration::from_micros(100);
/// With this many wake-ups queued, the driver ends no more waits in a turn: threads that must be woken, and
/// new faults, would wait meanwhile.
const MOST_USABLE: usize = 8;
/// How long the driver looks for the next fault before it sleeps.
const LINGERS: Duration = Duration::from_micros(20);
/// How long the driver looks for the end of a read before it sleeps.
const ATTENDS: Duration = Duration::from_micros(200);
/// If more time than this lies between two looks, other threads had the CPU.
const UNDISTURBED: Duration = Duration::from_micros(100);
const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// How long the driver sleeps before faults look again at pages that others hold.
const BETWEEN_TRIES: Timespec = Timespec { tv_sec: 0, tv_nsec: 30_000 };
/// How long the driver sleeps if no page could be evicted.
const WITHOUT_ROOM: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
const LONGEST_SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// The listener gets the counts after this many faults, and before the driver sleeps.
const COUNTED_EVERY: u64 = 256;
/// How long faults may wait, with none of them served, before the listener is told.
const LONGEST_WAIT: Duration = Duration::from_secs(20);
/// How often in a row faults may fail at one page before the driver gives up.
const MOST_FAILURES: u32 = 1000;
/// How often in a row the read of a page may fail.
const MOST_UNREAD: u32 = 4;

/// What a look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultLookup {
    Nothing,
    Events,
    Ring,
    /// Other threads have had the CPU meanwhile.
    Others,
}

/// A fault in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DriverFault {
    page: u64,
    access: Access,
    is_protected: bool,
    /// Whether a thread waits for the page. If not, the kernel will need the page.
    is_met: bool,
}

/// The driver's work that lasts from turn to turn.
#[derive(Default)]
struct InHand<'a> {
    /// Faults that wait for a device or for room.
    waiting: FuturesUnordered<BoxFuture<'a, (DriverFault, octavo::Result<()>)>>,
    /// Makes room for the listener.
    making_room: Option<BoxFuture<'a, octavo::Result<()>>>,
    /// Faults that must wait. Empty between turns, like the next two fields.
    to_wait: Vec<DriverFault>,
    events: Vec<Event>,
    /// Pages that the kernel will need.
    wanted: Vec<u64>,
}

/// Serves one target.
pub struct Driver<'a, R, L> {
    space: &'a TranslatedSpace,
    window: &'a Window<R>,
    events: BorrowedFd<'a>,
    bell: Arc<Bell>,
    listener: L,
    ahead: Ahead,
    /// The pages to show beforehand after the last long run.
    beforehand: Option<(FaultAdvice, u64, Access)>,
    recent: [u64; RECENT],
    failing: (u64, u32),
    /// Pages whose last reads have failed, and how often.
    unread: Vec<(u64, u32)>,
    /// Faults that wait, kept to recognize repeats: a thread that a signal interrupts faults again and again.
    waiting: Vec<DriverFault>,
    /// The last time when a waiting fault was served or no fault waited.
    served_at: Instant,
    /// Ranges whose threads must be woken.
    usable: Vec<(u64, u64)>,
    /// Whether to stay awake for the next fault.
    lingering: Wakefulness,
    /// Whether to stay awake for the ends of reads.
    attending: Wakefulness,
    /// Whether the driver attends the reads in flight: it polls for their ends.
    attends: bool,
    /// Since when the driver has attended reads and seen none of them end.
    attended: Option<Instant>,
    /// `None` if the driver stays where the kernel puts it.
    placement: Option<Placement>,
    /// Whether room was lacking, or another error came that may pass. The driver then tries again.
    lacks_room: bool,
    served: Served,
    changes: WaitingChanges,
}

impl<'a, R: Reach, L: Listener> Driver<'a, R, L> {
    /// Makes a driver for the faults that `events` reports.
    pub fn new(
        space: &'a TranslatedSpace,
        window: &'a Window<R>,
        events: BorrowedFd<'a>,
        bell: Arc<Bell>,
        listener: L,
    ) -> Self {
        let (ahead, recent, failing) = (Ahead::default(), [u64::MAX; RECENT], (0, 0));
        let (unread, waiting, usable, served) = (Vec::new(), Vec::new(), Vec::new(), Served::default());
        window.set_bell(Arc::clone(&bell));
        Self {
            space,
            window,
            events,
            bell,
            listener,
            ahead,
            beforehand: None,
            recent,
            failing,
            unread,
            waiting,
            served_at: Instant::now(),
            usable,
            lingering: Wakefulness::default(),
            attending: Wakefulness::default(),
            attends: false,
            attended: None,
            placement: None,
            lacks_room: false,
            served,
            changes: WaitingChanges::default(),
        }
    }

    /// Lets the driver run beside the thread that faults, if faults are served faster there. Call this on the
    /// thread that will run the driver, and have another thread call [`Watch::look`] every few milliseconds.
    #[must_use]
    pub fn watched_by(mut self, watch: Arc<Watch>) -> Self {
        self.placement = Placement::new(watch);
        self
    }

    /// Serves faults until the bell ends the driver, or the target has ended.
    ///
    /// # Errors
    /// The kernel's error if events cannot be read.
    pub fn run(mut self) -> std::io::Result<()> {
        let result = self.serve_until_its_end();
        // A child of the target may live on, and needs its parent's pages.
        let mut events = self.window.take_last_events();
        events.retain(|event| !matches!(event, Event::Fault { .. }));
        events.into_iter().for_each(|change| self.take_change(change));
        self.changes.rest().into_iter().for_each(|change| self.take_in(change));
        self.listener.counted(self.served);
        result
    }

    fn serve_until_its_end(&mut self) -> std::io::Result<()> {
        let waker = Waker::from(Arc::clone(&self.bell));
        let mut context = Context::from_waker(&waker);
        let mut hand = InHand::default();
        // The last turn found nothing to do, except for a fault that wanted to look again.
        let mut asked_again = false;
        while !self.bell.begin_turn() && !self.window.reach().is_gone() {
            self.placement.iter().for_each(Placement::turn);
            let has_ended = self.end_waits(&mut hand, &mut context);
            // The ring may come from a fault that wants to look again at a page that others hold.
            let asks_again = !has_ended && self.bell.is_rung();
            self.wake_all();
            let is_alone = hand.waiting.is_empty();
            let events = self.take_events(&mut hand)?;
            if !has_ended && events == 0 {
                self.show_beforehand();
            }
            self.bring_wanted(&mut hand);
            self.settle();
            let has_begun = self.begin_waits(&mut hand, is_alone && events == 1);
            self.wake_all();
            let is_idle = !has_ended && events == 0 && !has_begun;
            if !is_idle || !hand.waiting.is_empty() {
                self.space.drive();
            }
            self.look_whether_stuck();
            let has_work = self.changes.are_settled() && self.work(&mut hand.making_room, &mut context);
            if std::mem::take(&mut self.lacks_room) {
                // No page can be evicted for now. Let their holders, and events, come first.
                self.bell.nap(self.events, &WITHOUT_ROOM)?;
            }
            let goes_on = !is_idle || has_work;
            if goes_on || !self.bell.is_rung() && self.stay_awake(!hand.waiting.is_empty())? {
                asked_again = false;
                continue;
            }
            self.rest(&hand, asks_again && asked_again)?;
            asked_again = asks_again;
        }
        Ok(())
    }

    /// Ends the waits of faults whose pages have come in. Returns whether there were any.
    fn end_waits(&mut self, hand: &mut InHand<'a>, context: &mut Context<'_>) -> bool {
        let mut has_ended = false;
        while self.usable.len() < MOST_USABLE
            && let Poll::Ready(Some((fault, result))) =
                std::pin::Pin::new(&mut hand.waiting).poll_next(context)
        {
            (has_ended, self.attended) = (true, None);
            if self.end_wait(fault, result) {
                hand.to_wait.push(fault);
            }
        }
        has_ended
    }

    /// Reads events, serves the faults that need no waiting, and takes in changes. Returns the number of
    /// events.
    fn take_events(&mut self, hand: &mut InHand<'a>) -> std::io::Result<usize> {
        let (read, ask) = self.window.take_events(&mut hand.events);
        if let Some(ask) = ask {
            // The answer may take long.
            self.placement.iter_mut().for_each(Placement::leave);
            ask();
        }
        let events = hand.events.len();
        for (index, event) in hand.events.drain(..).enumerate() {
            hand.to_wait.extend(self.take(event, events - index - 1));
        }
        // Events that others have read, such as a fork, are taken in before an error is returned.
        read?;
        Ok(events)
    }

    /// Begins to bring pages that the kernel will need.
    fn bring_wanted(&mut self, hand: &mut InHand<'a>) {
        self.window.reach().add_wanted(&mut hand.wanted);
        hand.to_wait.extend(hand.wanted.drain(..).filter_map(|page| self.bring(page)));
    }

    /// Begins the waits of faults that could not be served at once. A single fault may be served by a
    /// blocking read instead. Returns whether any wait has begun.
    fn begin_waits(&mut self, hand: &mut InHand<'a>, is_alone: bool) -> bool {
        if !hand.to_wait.is_empty() {
            self.attends = self.attending.is_worth_it();
        }
        if let [fault] = hand.to_wait[..]
            && is_alone
            && !self.attends
            && self.serve_now(fault)
        {
            hand.to_wait.clear();
        }
        let has_begun = !hand.to_wait.is_empty();
        for fault in hand.to_wait.drain(..) {
            let mut future: BoxFuture<'a, _> = Box::pin(wait(self.space, fault));
            // Begin the read of this fault before the driver handles ended waits, so that the device always
            // has work. The next turn polls again.
            match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Pending => hand.waiting.push(future),
                Poll::Ready((fault, result)) => {
                    if self.end_wait(fault, result) {
                        hand.waiting.push(Box::pin(wait(self.space, fault)));
                    }
                }
            }
        }
        has_begun
    }

    /// Sleeps until something comes, or only for a moment if a fault keeps looking at a page that others
    /// hold.
    fn rest(&mut self, hand: &InHand<'a>, looks_in_vain: bool) -> std::io::Result<()> {
        let waits = !hand.waiting.is_empty();
        if looks_in_vain {
            // The page's holder may need this CPU.
            if waits {
                self.space.leave_driving();
            }
            self.bell.nap(self.events, &BETWEEN_TRIES)?;
        } else if self.bell.may_sleep() {
            if waits || hand.making_room.is_some() {
                self.space.leave_driving();
            } else {
                self.placement.iter_mut().for_each(Placement::sleeps);
            }
            self.listener.counted(self.served);
            if !self.bell.sleep(self.events, &LONGEST_SLEEP)? {
                self.window.reach().look_whether_gone();
            }
        }
        Ok(())
    }

    /// Continues the listener's work, or continues to make room for that work. Returns whether there is more
    /// to do at once.
    fn work(
        &mut self,
        making_room: &mut Option<BoxFuture<'a, octavo::Result<()>>>,
        context: &mut Context<'_>,
    ) -> bool {
        let Some(making) = making_room else {
            let work = self.listener.work();
            if let RemainingWork::Waits(len) = work {
                *making_room = Some(Box::pin(self.space.make_room(len)));
            }
            return work != RemainingWork::Done;
        };
        let Poll::Ready(result) = making.as_mut().poll(context) else { return false };
        (*making_room, self.lacks_room) = (None, self.lacks_room || result.is_err());
        self.listener.counted(self.served);
        self.listener.made_room(result);
        true
    }

    fn is_beside(&self) -> bool {
        self.placement.as_ref().is_some_and(Placement::is_beside)
    }

    /// Stays awake for a moment, if this has saved time lately. Returns whether something has come.
    fn stay_awake(&mut self, waits: bool) -> std::io::Result<bool> {
        if waits {
            return if self.attends { self.attend() } else { Ok(false) };
        }
        if self.is_beside() || !self.lingering.is_worth_it() {
            return Ok(false);
        }
        let found = self.look_for(LINGERS, || {})?;
        match found {
            FaultLookup::Others => self.lingering.disturbed(),
            found => self.lingering.note(found != FaultLookup::Nothing),
        }
        Ok(matches!(found, FaultLookup::Events | FaultLookup::Ring))
    }

    /// Polls for the ends of reads. The device would have to wake a sleeping CPU, and many devices read
    /// faster than that.
    fn attend(&mut self) -> std::io::Result<bool> {
        let began = Instant::now();
        if !self.is_beside() {
            // A driver beside a thread need not yield: it runs only if no other thread wants the CPU.
            std::thread::yield_now();
        }
        let space = self.space;
        let found = if began.elapsed() > UNDISTURBED {
            FaultLookup::Others
        } else {
            self.look_for(ATTENDS, || space.drive())?
        };
        let attended = *self.attended.get_or_insert(began);
        match found {
            // Beside a thread, polling costs the other threads nothing.
            FaultLookup::Others if self.is_beside() => {}
            FaultLookup::Others => self.attending.disturbed(),
            FaultLookup::Ring => self.attending.note(true),
            // Faults come, but no read ends.
            FaultLookup::Events if attended.elapsed() < ATTENDS => return Ok(true),
            FaultLookup::Events | FaultLookup::Nothing => self.attending.note(false),
        }
        self.attended = None;
        self.attends = found == FaultLookup::Ring;
        Ok(found != FaultLookup::Nothing)
    }

    /// Polls for events and rings for at most `longest`, and calls `act` before each look. Sleeping and
    /// waking takes longer than serving a fault.
    fn look_for(&self, longest: Duration, act: impl Fn()) -> std::io::Result<FaultLookup> {
        let began = Instant::now();
        loop {
            act();
            let looked = Instant::now();
            if self.bell.is_rung() {
                return Ok(FaultLookup::Ring);
            }
            if self.bell.sleep(self.events, &NO_TIME)? {
                return Ok(FaultLookup::Events);
            }
            let now = Instant::now();
            if now - looked > UNDISTURBED {
                return Ok(FaultLookup::Others);
            }
            if now - began > longest {
                return Ok(FaultLookup::Nothing);
            }
            std::hint::spin_loop();
        }
    }

    /// Serves a fault or takes a change in, while `behind` more events wait. Returns a fault that must wait.
    fn take(&mut self, event: Event, behind: usize) -> Option<DriverFault> {
        if let Event::Fault { address, write, protected, thread } = event {
            if let (Some(placement), Some(thread)) = (&mut self.placement, thread) {
                placement.note(thread);
                self.served.beside += u64::from(placement.is_beside());
            }
            return self.serve(address & !(PAGE - 1), write, protected, (behind, thread));
        }
        // The change may take long.
        self.wake_all();
        self.placement.iter_mut().for_each(Placement::leave);
        self.take_change(event);
        None
    }

    /// Serves a fault. `among` holds the number of events behind it, and its thread. Returns the fault if it
    /// must wait.
    fn serve(
        &mut self,
        page: u64,
        write: bool,
        is_protected: bool,
        among: (usize, Option<u32>),
    ) -> Option<DriverFault> {
        let count = if is_protected { &mut self.served.stores } else { &mut self.served.missing };
        *count += 1;
        let access = if write || is_protected { Access::Write } else { Access::Read };
        let fault = DriverFault { page, access, is_protected, is_met: true };
        let recent = &mut self.recent[(page / PAGE) as usize % RECENT];
        let is_suspicious = !is_protected && std::mem::replace(recent, page) == page;
        if self.waiting.contains(&fault) || !is_suspicious && self.show(fault, among) {
            return None;
        }
        self.waiting.push(fault);
        Some(fault)
    }

    /// Begins a fault that no thread has met, for a page that must be open to stores. Returns the fault if it
    /// must wait.
    fn bring(&mut self, page: u64) -> Option<DriverFault> {
        let fault = DriverFault { page, access: Access::Write, is_protected: true, is_met: false };
        if !self.listener.is_mapped(page, page + PAGE) || self.waiting.contains(&fault) {
            return None;
        }
        self.waiting.push(fault);
        Some(fault)
    }

    /// Serves a fault by one read. The driver blocks during the read, since it has nothing else to do.
    /// Returns false if the fault needs more than that.
    fn serve_now(&mut self, fault: DriverFault) -> bool {
        if fault.is_protected {
            return false;
        }
        let Some(result) = self.space.fault_now(fault.page, fault.access) else { return false };
        !self.end_wait(fault, result)
    }

    /// Shows the page of a fault and the next pages, as far as they need no waiting. Returns whether the
    /// fault is served.
    fn show(&mut self, fault: DriverFault, (behind, thread): (usize, Option<u32>)) -> bool {
        let DriverFault { page, access, is_protected, .. } = fault;
        let advice = self.ahead.advise(page / PAGE, is_protected, behind, thread);
        let advice = advice.within(page / PAGE, || self.space.spare_pages());
        if advice.pages >= LEAST_BEFOREHAND {
            // Threads that wait for a page should not wait for so many other pages.
            self.wake_all();
        }
        let access = if advice.writes { Access::Write } else { access };
        let is_open = access == Access::Write;
        let first = advice.first * PAGE;
        // In a backward run, the fault's own page is shown first, and then the pages before it.
        let ahead_bytes = if first < page { PAGE } else { advice.pages * PAGE };
        let Ok(mut pages @ 1..) = self.space.show(page, ahead_bytes, access) else {
            self.ahead.came(advice, page / PAGE, 1, is_open);
            return false;
        };
        let mut came = (page / PAGE, pages);
        if first < page
            && let Ok(before) = self.space.show(first, page - first, access)
            && before == advice.pages - 1
        {
            pages += before;
            came = (advice.first, pages);
        }
        self.ahead.came(advice, came.0, came.1, is_open);
        self.served.along += pages - 1;
        self.wake(fault, came.0 * PAGE, came.1 * PAGE);
        if self.beforehand.is_some_and(|(before, ..)| before.run == advice.run) {
            self.beforehand = None;
        }
        if first >= page && pages == advice.pages && pages >= LEAST_BEFOREHAND {
            self.beforehand = Some((advice, (came.0 + pages) * PAGE, access));
        }
        true
    }

    /// Makes the pages of a fault usable, and wakes their threads later.
    fn wake(&mut self, fault: DriverFault, start: u64, len: u64) {
        self.served.ended += 1;
        self.served.ended.is_multiple_of(COUNTED_EVERY).then(|| self.listener.counted(self.served));
        if fault.is_protected {
            self.open(fault);
        }
        self.wake_later(start, len);
    }

    /// Ends the protection of a fault's page against stores. A page that a fork has left to its child may be
    /// protected, although Octavo counts it as open to stores. If Octavo has protected the page again in the
    /// meantime, the page counts as written.
    fn open(&self, fault: DriverFault) {
        let opened = self.window.reach().protect(fault.page, PAGE, false);
        // If a thread waits, a refusal needs no handling: the thread's next fault tries again. A page that is
        // no longer present is not protected.
        if !fault.is_met && opened.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock) {
            self.window.reach().still_wanted(fault.page);
        }
    }

    /// Queues the wake-up of the threads that wait for these pages, to be sent with the other wake-ups of the
    /// same turn. Waking a CPU costs several microseconds. A thread that is woken alone soon sleeps again,
    /// and its CPU sleeps too.
    fn wake_later(&mut self, start: u64, len: u64) {
        self.usable.push((start, len));
    }

    fn wake_all(&mut self) {
        for (start, len) in self.usable.drain(..) {
            self.window.reach().wake(start, len);
        }
    }

    /// If a program uses its memory in order, shows the pages that it will soon need while it still uses the
    /// ones shown last. Faults come first.
    fn show_beforehand(&mut self) {
        let Some((advice, start, access)) = self.beforehand.take() else { return };
        let pages = advice.within(start / PAGE, || self.space.spare_pages()).pages;
        if let Ok(shown @ 1..) = self.space.show(start, pages * PAGE, access) {
            self.ahead.came_beforehand(advice, start / PAGE, shown);
            self.served.along += shown;
            // The program may have reached these pages already.
            self.wake_later(start, shown * PAGE);
        }
    }

    /// Ends the wait of a fault, with its page or with an error. Returns whether to try it again.
    fn end_wait(&mut self, fault: DriverFault, result: octavo::Result<()>) -> bool {
        self.served.waited += u64::from(fault.is_met);
        let again = self.answer(fault, result);
        if !again {
            self.served_at = Instant::now();
            self.waiting.retain(|waiting| *waiting != fault);
        }
        again
    }

    fn look_whether_stuck(&mut self) {
        match self.waiting.first() {
            Some(fault) if self.served_at.elapsed() > LONGEST_WAIT => self.listener.stuck(fault.page),
            Some(_) => return,
            None => {}
        }
        self.served_at = Instant::now();
    }

    /// Wakes the threads that wait for a fault's page, or reports why they cannot continue. Returns whether
    /// to try the fault again.
    fn answer(&mut self, fault: DriverFault, result: octavo::Result<()>) -> bool {
        if let Err(error) = &result
            && let ErrorKind::SwapRead | ErrorKind::Corrupt = error.kind()
            && self.read_again(fault.page)
        {
            return true;
        }
        self.unread.retain(|(page, _)| *page != fault.page);
        let Err(error) = result else {
            self.wake(fault, fault.page, PAGE);
            return false;
        };
        match error.kind() {
            // A waiting change will bring this page, and has not been taken in yet.
            ErrorKind::NotMapped if self.changes.bring(fault.page) => {
                std::thread::sleep(BETWEEN_LOOKS);
                return true;
            }
            // No thread waits for the page.
            _ if !fault.is_met => self.answer_unmet(fault, error.kind()),
            ErrorKind::NotMapped if self.listener.unknown(fault.page) => {}
            // The program changes its mappings, or holds the page. The thread tries again, and meets what is
            // mapped now.
            ErrorKind::NotMapped | ErrorKind::Protected | ErrorKind::Unsupported | ErrorKind::Busy => {
                let (page, times) = &mut self.failing;
                *times = if *page == fault.page { *times + 1 } else { 0 };
                *page = fault.page;
                if *times > MOST_FAILURES {
                    return self.fail(fault.page, error);
                }
            }
            _ => return self.fail(fault.page, error),
        }
        self.wake_later(fault.page, PAGE);
        false
    }

    /// Reports that a page cannot be had, and the counts. Returns whether to try the fault again, after a
    /// moment.
    fn fail(&mut self, page: u64, error: octavo::Error) -> bool {
        self.listener.counted(self.served);
        let again = self.listener.failed(page, error);
        self.lacks_room |= again;
        again
    }

    /// Handles the error of a page that no thread waits for.
    fn answer_unmet(&self, fault: DriverFault, why: ErrorKind) {
        match why {
            // The page is unmapped, or has lost its bytes. A thread that needs the bytes will get the error.
            ErrorKind::NotMapped | ErrorKind::Corrupt => {}
            // The page may be present although Octavo did not bring it.
            ErrorKind::Unsupported => self.open(fault),
            // The error may pass.
            _ => self.window.reach().still_wanted(fault.page),
        }
    }

    /// Notes that the read of a page has failed. Returns whether to try once more, since a device's error may
    /// pass.
    fn read_again(&mut self, page: u64) -> bool {
        let at = self.unread.iter().position(|(failed, _)| *failed == page).unwrap_or_else(|| {
            self.unread.push((page, 0));
            self.unread.len() - 1
        });
        self.unread[at].1 += 1;
        self.unread[at].1 < MOST_UNREAD
    }
}

/// Waits for a device or for room, until a page is usable.
async fn wait(space: &TranslatedSpace, fault: DriverFault) -> (DriverFault, octavo::Result<()>) {
    let result = space.fault_driven(fault.page, fault.access, !fault.is_protected).await;
    (fault, result)
}

impl<R, L> std::fmt::Debug for Driver<'_, R, L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("served", &self.served).finish_non_exhaustive()
    }
}
