//! The thread that serves the faults of one target, and takes in the changes of its mappings.
//!
//! ```text
//!   wait ─► end faults that have waited ─► read events under the gate ─► faults: show what is at hand, else begin to wait ─┐
//!     ▲                                                                  changes: Octavo takes them in, in order             │
//!     └──────────────────────────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! One thread drives many faults. A fault whose page is at hand is served on the spot, together with the
//! pages that a program in order wants next. Any other fault is a future that waits for a device or for room.
//!
//! A fault on the spot costs three system calls: the read of its event, the copy, and the call that wakes the
//! faulting thread. It allocates nothing. A fault that waits allocates its future.
//!
//! | file | what it does |
//! |---|---|
//! | `listener` | is told of forks and ends, and brings work of its own |
//! | `intake` | takes in changes of mappings, in their order |
//! | `ahead` | shows the pages that a program in order wants next |
//! | `wakefulness` | decides whether to sleep or to look on |
//!
//! **Whoever reads events never waits for room.** As long as an event is unread, the kernel lets no page of
//! the target go: a driver that waited for room would wait for itself. So making room is a future like a
//! fault, and gives way after each batch of pages. Memory is adopted as far as there is room for it. What may
//! take longer (a fork that copies pages, a batch of another process) keeps the driver from reading, and then
//! [others read](Window::read_for_driver): threads that are refused a move, and a thread that looks after
//! drivers which have not come by. The driver takes what was read in its turn, and all changes in their
//! order.
//!
//! **Devices are kept busy.** The read of a fault begins before those are looked after whose reads have
//! ended, a few at a time. While reads are under way, the driver looks for their ends as long as that pays:
//! to sleep and to be woken takes longer than many reads.

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
use crate::driver::ahead::{Advice, Ahead};
use crate::driver::listener::{Listener, Served, Work};
use crate::driver::wakefulness::Wakefulness;
use crate::events::changes::Changes;
use crate::placement::{Placement, Watch};
use crate::reach::Reach;
use crate::window::Window;

const PAGE: u64 = PAGE_BYTES as u64;
/// Runs of so many pages have their next pages shown beforehand.
const LEAST_BEFOREHAND: u64 = 32;
/// Pages that were shown lately. One that is missing again at once was dropped unnoticed.
const RECENT: usize = 64;
/// Between two looks for a page that arrives with a change which waits.
const BETWEEN_LOOKS: Duration = Duration::from_micros(100);
/// The most threads that wait for each other's pages, and that new faults wait for.
const MOST_USABLE: usize = 8;
/// How long the driver looks for the next fault before it sleeps.
const LINGERS: Duration = Duration::from_micros(20);
/// How long the driver looks for the end of a read before it sleeps.
const ATTENDS: Duration = Duration::from_micros(200);
/// Others had the CPU if so much time lies between two looks.
const UNDISTURBED: Duration = Duration::from_micros(100);
const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// How long the driver sleeps before faults look again at pages that others hold, and at most.
const BETWEEN_TRIES: Timespec = Timespec { tv_sec: 0, tv_nsec: 30_000 };
/// How long the driver sleeps where nothing could go.
const WITHOUT_ROOM: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
const LONGEST_SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// How long faults wait, with none of them served, before that is told.
const LONGEST_WAIT: Duration = Duration::from_secs(20);
/// How often in a row a fault may fail at one page before that is the target's end.
const MOST_FAILURES: u32 = 1000;
/// How often in a row the read of a page may fail.
const MOST_UNREAD: u32 = 4;

/// What a look has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    Events,
    Ring,
    /// Others have had the CPU meanwhile.
    Others,
}

/// A fault under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fault {
    page: u64,
    access: Access,
    is_protected: bool,
    /// A thread waits. Otherwise it is the kernel that will want the page.
    is_met: bool,
}

/// What the driver has in hand from turn to turn.
#[derive(Default)]
struct InHand<'a> {
    /// Faults that wait for a device or for room.
    waiting: FuturesUnordered<BoxFuture<'a, (Fault, octavo::Result<()>)>>,
    /// Room that is made for the listener.
    making_room: Option<BoxFuture<'a, octavo::Result<()>>>,
    /// Faults that are to wait. Empty between turns, as the next two are.
    to_wait: Vec<Fault>,
    events: Vec<Event>,
    /// Pages that others want.
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
    /// What the last long run is to have beforehand.
    beforehand: Option<(Advice, u64, Access)>,
    recent: [u64; RECENT],
    failing: (u64, u32),
    /// Pages whose last reads have failed, and how often.
    unread: Vec<(u64, u32)>,
    /// Faults that wait. A thread that a signal disturbs asks for its page again and again.
    waiting: Vec<Fault>,
    /// When a fault that waited was served, or none waited.
    served_at: Instant,
    /// Pages whose threads are to be woken.
    usable: Vec<(u64, u64)>,
    /// For the next fault.
    lingering: Wakefulness,
    /// For the ends of reads.
    attending: Wakefulness,
    /// The reads that are under way are attended.
    attends: bool,
    /// Since when none of them has ended that was attended.
    attended: Option<Instant>,
    /// `None`: it stays where the kernel puts it.
    placement: Option<Placement>,
    /// A lack of room, or what else may pass, is to be tried again.
    lacks_room: bool,
    served: Served,
    changes: Changes,
}

impl<'a, R: Reach, L: Listener> Driver<'a, R, L> {
    /// Makes a driver of the faults that `events` tells of.
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
            changes: Changes::default(),
        }
    }

    /// Has the driver run beside the thread that faults, where that is better. The calling thread is the one
    /// that runs it, and somebody calls [`Watch::look`] every few milliseconds.
    #[must_use]
    pub fn watched_by(mut self, watch: Arc<Watch>) -> Self {
        self.placement = Placement::new(watch);
        self
    }

    /// Serves faults until the bell says that it is over, or the target has ended.
    ///
    /// # Errors
    /// The kernel's, where events cannot be read.
    pub fn run(mut self) -> std::io::Result<()> {
        let result = self.serve_until_its_end();
        // A child of the target may go on, and wants what its parent had.
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
        // The last turn found nothing to do, but for a fault that wanted to look again.
        let mut asked_again = false;
        while !self.bell.begin_turn() && !self.window.reach().is_gone() {
            self.placement.iter().for_each(Placement::turn);
            let has_ended = self.end_waits(&mut hand, &mut context);
            // That may be a fault that wants to look again at a page which somebody holds.
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
                // Nothing can go just now. Whoever holds pages, or tells of something, comes first.
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

    /// Ends the waits whose pages have come. Returns whether there were any.
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

    /// Reads events, serves those faults whose pages are at hand, and takes in changes. Returns how many
    /// events there were.
    fn take_events(&mut self, hand: &mut InHand<'a>) -> std::io::Result<usize> {
        let (read, ask) = self.window.take_events(&mut hand.events);
        if let Some(ask) = ask {
            // The answer takes its time.
            self.placement.iter_mut().for_each(Placement::leave);
            ask();
        }
        let events = hand.events.len();
        for (index, event) in hand.events.drain(..).enumerate() {
            hand.to_wait.extend(self.take(event, events - index - 1));
        }
        // A fork that others have read is taken in first.
        read?;
        Ok(events)
    }

    /// Brings pages that others want.
    fn bring_wanted(&mut self, hand: &mut InHand<'a>) {
        self.window.reach().add_wanted(&mut hand.wanted);
        hand.to_wait.extend(hand.wanted.drain(..).filter_map(|page| self.bring(page)));
    }

    /// Begins the waits of faults whose pages are not at hand. Where there is one fault alone, its page may
    /// come at once. Returns whether any has begun.
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
            // Its read begins before those that have waited are looked after, so that the device always has
            // something to do. The next turn asks again.
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

    /// Sleeps until something comes; or for a moment, where a fault looks again and again at a page that
    /// somebody holds.
    fn rest(&mut self, hand: &InHand<'a>, looks_in_vain: bool) -> std::io::Result<()> {
        let waits = !hand.waiting.is_empty();
        if looks_in_vain {
            // Whoever holds the page may need this CPU.
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

    /// Goes on with the listener's work, or with making room for it. Returns whether there is more to do at
    /// once.
    fn work(
        &mut self,
        making_room: &mut Option<BoxFuture<'a, octavo::Result<()>>>,
        context: &mut Context<'_>,
    ) -> bool {
        let Some(making) = making_room else {
            let work = self.listener.work();
            if let Work::Waits(len) = work {
                *making_room = Some(Box::pin(self.space.make_room(len)));
            }
            return work != Work::Done;
        };
        let Poll::Ready(result) = making.as_mut().poll(context) else { return false };
        *making_room = None;
        self.lacks_room |= result.is_err();
        self.listener.made_room(result);
        true
    }

    fn is_beside(&self) -> bool {
        self.placement.as_ref().is_some_and(Placement::is_beside)
    }

    /// Stays awake for a moment, where that was worth it of late. Returns whether something has come.
    fn stay_awake(&mut self, waits: bool) -> std::io::Result<bool> {
        if waits {
            return if self.attends { self.attend() } else { Ok(false) };
        }
        if self.is_beside() || !self.lingering.is_worth_it() {
            return Ok(false);
        }
        let found = self.look_for(LINGERS, || {})?;
        match found {
            Found::Others => self.lingering.disturbed(),
            found => self.lingering.note(found != Found::Nothing),
        }
        Ok(matches!(found, Found::Events | Found::Ring))
    }

    /// Looks for the ends of reads. A CPU that sleeps meanwhile has to be woken by the device, and many
    /// devices read faster than that.
    fn attend(&mut self) -> std::io::Result<bool> {
        let began = Instant::now();
        if !self.is_beside() {
            // Beside a thread, this one runs only where nobody else wants the CPU.
            std::thread::yield_now();
        }
        let space = self.space;
        let found = if began.elapsed() > UNDISTURBED {
            Found::Others
        } else {
            self.look_for(ATTENDS, || space.drive())?
        };
        let attended = *self.attended.get_or_insert(began);
        match found {
            // Beside a thread, nothing is lost by that.
            Found::Others if self.is_beside() => {}
            Found::Others => self.attending.disturbed(),
            Found::Ring => self.attending.note(true),
            // Faults come, and nothing ends.
            Found::Events if attended.elapsed() < ATTENDS => return Ok(true),
            Found::Events | Found::Nothing => self.attending.note(false),
        }
        self.attended = None;
        self.attends = found == Found::Ring;
        Ok(found != Found::Nothing)
    }

    /// Looks for so long whether there are events, or the bell rings, and acts between the looks. To sleep
    /// and to be woken takes longer than to serve a fault.
    fn look_for(&self, longest: Duration, act: impl Fn()) -> std::io::Result<Found> {
        let began = Instant::now();
        loop {
            act();
            let looked = Instant::now();
            if self.bell.is_rung() {
                return Ok(Found::Ring);
            }
            if self.bell.sleep(self.events, &NO_TIME)? {
                return Ok(Found::Events);
            }
            let now = Instant::now();
            if now - looked > UNDISTURBED {
                return Ok(Found::Others);
            }
            if now - began > longest {
                return Ok(Found::Nothing);
            }
            std::hint::spin_loop();
        }
    }

    /// Serves a fault, or takes a change in, while so many events wait `behind` it. Returns a fault that has
    /// to wait.
    fn take(&mut self, event: Event, behind: usize) -> Option<Fault> {
        if let Event::Fault { address, write, protected, thread } = event {
            if let (Some(placement), Some(thread)) = (&mut self.placement, thread) {
                placement.note(thread);
                self.served.beside += u64::from(placement.is_beside());
            }
            return self.serve(address & !(PAGE - 1), write, protected, (behind, thread));
        }
        // The change may take its time.
        self.wake_all();
        self.placement.iter_mut().for_each(Placement::leave);
        self.take_change(event);
        None
    }

    /// Serves a fault, behind which so many others wait and which a thread has met. Returns it where it has
    /// to wait.
    fn serve(
        &mut self,
        page: u64,
        write: bool,
        is_protected: bool,
        among: (usize, Option<u32>),
    ) -> Option<Fault> {
        let count = if is_protected { &mut self.served.stores } else { &mut self.served.missing };
        *count += 1;
        let access = if write || is_protected { Access::Write } else { Access::Read };
        let fault = Fault { page, access, is_protected, is_met: true };
        let recent = &mut self.recent[(page / PAGE) as usize % RECENT];
        let is_suspicious = !is_protected && std::mem::replace(recent, page) == page;
        if self.waiting.contains(&fault) || !is_suspicious && self.show(fault, among) {
            return None;
        }
        self.waiting.push(fault);
        Some(fault)
    }

    /// Begins a fault that no thread has met, for a page that has to be open to stores. Returns one that has
    /// to wait.
    fn bring(&mut self, page: u64) -> Option<Fault> {
        let fault = Fault { page, access: Access::Write, is_protected: true, is_met: false };
        if !self.listener.is_mapped(page, page + PAGE) || self.waiting.contains(&fault) {
            return None;
        }
        self.waiting.push(fault);
        Some(fault)
    }

    /// Serves a fault by one read, for which the thread blocks: nobody else wants anything just now. Returns
    /// false where it takes more.
    fn serve_now(&mut self, fault: Fault) -> bool {
        if fault.is_protected {
            return false;
        }
        let Some(result) = self.space.fault_now(fault.page, fault.access) else { return false };
        !self.end_wait(fault, result)
    }

    /// Shows the page of a fault, and those that come next, as far as they are at hand.
    fn show(&mut self, fault: Fault, (behind, thread): (usize, Option<u32>)) -> bool {
        let Fault { page, access, is_protected, .. } = fault;
        let advice = self.ahead.advise(page / PAGE, is_protected, behind, thread);
        let advice = advice.within(page / PAGE, || self.space.spare_pages());
        if advice.pages >= LEAST_BEFOREHAND {
            // Those who wait for a page do not wait for so many of others.
            self.wake_all();
        }
        let access = if advice.writes { Access::Write } else { access };
        let is_open = access == Access::Write;
        let first = advice.first * PAGE;
        // Backwards, the fault's own page comes first, and then those before it.
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

    /// Wakes the threads that wait for pages which are usable now.
    fn wake(&mut self, fault: Fault, start: u64, len: u64) {
        if fault.is_protected {
            self.open(fault);
        }
        self.wake_later(start, len);
    }

    /// Ends the protection of a fault's page against stores. A page that a fork has left to its child may be
    /// protected, though it may be stored to unnoticed. Whoever has protected it since counts it as written.
    fn open(&self, fault: Fault) {
        let opened = self.window.reach().protect(fault.page, PAGE, false);
        // Where a thread waits, a refusal is met by its next fault. A page that is no longer there is not
        // protected.
        if !fault.is_met && opened.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock) {
            self.window.reach().still_wanted(fault.page);
        }
    }

    /// Has the threads that wait for pages woken after the others of the same turn. To wake a CPU costs
    /// several microseconds, and a thread that is woken alone soon sleeps again, and its CPU too.
    fn wake_later(&mut self, start: u64, len: u64) {
        self.usable.push((start, len));
    }

    fn wake_all(&mut self) {
        for (start, len) in self.usable.drain(..) {
            self.window.reach().wake(start, len);
        }
    }

    /// Shows pages that a program in order wants soon, while it uses those that it has just got. Whoever
    /// waits for a page comes first.
    fn show_beforehand(&mut self) {
        let Some((advice, start, access)) = self.beforehand.take() else { return };
        let pages = advice.within(start / PAGE, || self.space.spare_pages()).pages;
        if let Ok(shown @ 1..) = self.space.show(start, pages * PAGE, access) {
            self.ahead.came_beforehand(advice, start / PAGE, shown);
            self.served.along += shown;
            // The program may be there already.
            self.wake_later(start, shown * PAGE);
        }
    }

    /// A fault has waited, and its page is there, or cannot be had. Returns whether it is to be tried again.
    fn end_wait(&mut self, fault: Fault, result: octavo::Result<()>) -> bool {
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

    /// Wakes the threads that wait for a fault's page, or says why they cannot go on. Returns whether it is
    /// to be tried again.
    fn answer(&mut self, fault: Fault, result: octavo::Result<()>) -> bool {
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
            // What belongs there has not arrived yet.
            ErrorKind::NotMapped if self.changes.bring(fault.page) => {
                std::thread::sleep(BETWEEN_LOOKS);
                return true;
            }
            // Nobody waits there.
            _ if !fault.is_met => self.answer_unmet(fault, error.kind()),
            ErrorKind::NotMapped if self.listener.unknown(fault.page) => {}
            // The program changes its mappings, or holds the page. The thread tries again, and meets what is
            // there now.
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

    /// A page cannot be had. Returns whether the fault is to be tried again, after a moment.
    fn fail(&mut self, page: u64, error: octavo::Error) -> bool {
        let again = self.listener.failed(page, error);
        self.lacks_room |= again;
        again
    }

    /// A page cannot be had that no thread waits for.
    fn answer_unmet(&self, fault: Fault, why: ErrorKind) {
        match why {
            // It has gone, or has lost its bytes, of which a thread hears that wants them.
            ErrorKind::NotMapped | ErrorKind::Corrupt => {}
            // It may be there, without Octavo.
            ErrorKind::Unsupported => self.open(fault),
            // That may pass.
            _ => self.window.reach().still_wanted(fault.page),
        }
    }

    /// The read of a page has failed. Returns whether it is to be tried once more: an error of a device may
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

/// Waits until a page is usable there, for a device or for room.
async fn wait(space: &TranslatedSpace, fault: Fault) -> (Fault, octavo::Result<()>) {
    let result = space.fault_driven(fault.page, fault.access, !fault.is_protected).await;
    (fault, result)
}

impl<R, L> std::fmt::Debug for Driver<'_, R, L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("served", &self.served).finish_non_exhaustive()
    }
}
