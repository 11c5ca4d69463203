//! A fault: the slow path that makes an entry usable.
//!
//! A fault is a state machine that is polled, and never blocks. If it must wait (another thread is changing
//! the entry, a device is reading), it leaves a waker and returns Pending. If it lacks memory, it returns
//! which kind, and its caller makes room. That work can be awaited too. Blocking ([`resolve`]) and awaiting
//! ([`resolve_async`]) differ only in their [`Waiter`].
//!
//! ```text
//!   walk ─► look up the region ─► links still hold? ─► by the entry:
//!     Empty, far up       add a table node, walk again
//!     Empty, level 1      read: huge zero leaf │ write: a 2 MiB block │ else a node
//!     Empty, Zero         read: small zero     │ write: a frame              (anon.rs)
//!     Zero, level 1       write: by policy, a block, or split
//!     Swapped             the swap cache, else the device                    (swap_in.rs)
//!       or, if all of the page is overwritten: the cached frame, else another (anon.rs)
//!     Busy                wait
//!     Present             done
//!   in a region that shows a file:                                          (file_in.rs)
//!     Empty               the page cache, else the device
//!     Present, written    its own frame, if it is copied on write
//! ```
//!
//! Each step changes the entry by one compare-and-swap, from exactly the word that was read before the region
//! was looked up. The head of `table/mod.rs` explains why this is safe against unmap and recycled nodes. A
//! read fault on a zero page costs one compare-and-swap. A write fault with a frame zeroed ahead costs that
//! swap, the read-modify-write that makes the frame live, and another for its place on the LRU.

mod anon;
mod away;
mod departure;
mod file_in;
mod readahead;
mod swap_in;

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use crate::config::{HugePolicy, HugeZeroWrite};
use crate::counters::Counter;
use crate::engine::{Engine, Figure, SpaceState, Split, Waiter, apart, in_place, split_leaf};
use crate::error::{Error, ErrorKind, Result};
use crate::frame::Block;
use crate::io::Waited;
use crate::latency::{self, Latency};
use crate::reclaim;
use crate::region::Region;
use crate::sync::park::block_until_driven;
use crate::sync::wait::Waiting;
use crate::sync::{Duration, Instant};
use crate::sync::{park_for, thread};
use crate::table::entry::State;
use crate::table::translation::Translation;
use crate::table::{Access, Grown, Walk};
use crate::units::{CHUNK_FRAMES, PageNumber, StoredPage};
pub use away::InPlace;
pub(crate) use away::Via;
use departure::Along;
pub(crate) use departure::show_run;
pub(crate) use readahead::prefetch;
use swap_in::Reading;

/// The result of a fault, or what it lacks to continue.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The entry is usable, or was a moment ago.
    Usable,
    /// The page holds the bytes that the caller writes over all of it.
    Written,
    /// This many pages of the other side belong to the space now.
    Adopted(u64),
    /// There is no frame. The caller makes room and polls again.
    NeedsFrame,
    /// The thread has taken more than its share. The caller makes some room and polls again.
    Throttled,
    /// There is no block of order 9. The caller compacts, tells the fault the result, and polls again.
    NeedsHuge,
    /// There is no table node. The caller makes room and polls again.
    NeedsNode,
    /// The device of the page has no room for a read. The caller waits until a transfer has ended since
    /// [`Engine::ends`] returned `ends`, and polls again.
    DeviceFull { page: StoredPage, ends: u64 },
    /// Another thread holds the page, and this waiter does not wait for that.
    NotNow,
    /// The budget has no room for a page that is away. The caller makes room, hands the frame over, and polls
    /// again.
    NeedsAway,
    /// The space is at its quota. The caller makes room for this many pages there and polls again.
    OverQuota(u64),
    /// This many new pages would take the room that is kept for pages that come in. The caller makes room and
    /// polls again.
    NeedsRoom(u64),
    /// The access cannot be served.
    Failed(Error),
}

/// The result of one poll.
enum Step {
    /// The fault walks again.
    Again,
    /// The fault is pending, and its waker is registered.
    Wait,
    End(Outcome),
}

/// Whether this fault may still look for a block of order 9.
#[derive(Debug, PartialEq, Eq)]
enum Huge {
    /// The fault asks the allocator.
    Untried,
    /// The allocator had no block. Compaction made this block, or none.
    Compacted(Option<Block>),
    /// The fault uses base pages.
    GivenUp,
}

/// A fault under way.
pub(crate) struct Fault<'a> {
    engine: &'a Engine,
    space: &'a SpaceState,
    /// The address that the caller asked for. Errors name it.
    address: u64,
    page: PageNumber,
    access: Access,
    /// The bytes that the caller writes over all of the page.
    bytes: Option<&'a [u8]>,
    counted: bool,
    huge: Huge,
    reading: Option<Reading>,
    via: Via,
    /// Zeros need memory of their own, because the translation cannot show zero pages.
    wants_memory: bool,
    along: Along<'a>,
    /// A frame for a page that goes away.
    away: Option<Block>,
    /// When the translation, or a pin, last refused the page.
    refused_at: Option<Instant>,
    /// How long such refusals have delayed this fault.
    refused_for: Duration,
    /// A read failed that this page shared with other pages, or that another fault had begun. So the next
    /// read is for this page alone.
    alone: bool,
    /// The fault may exceed the quota: there are no free slots, so no page of the space can go out before
    /// this page has come in and given up its slot.
    exceeds_quota: bool,
    /// The fault looks for a frame on other CPUs' lists too.
    looks_everywhere: bool,
    waiter: Waiter<'a>,
}

impl<'a> Fault<'a> {
    fn new(
        waiter: Waiter<'a>,
        engine: &'a Engine,
        space: &'a SpaceState,
        address: u64,
        access: Access,
    ) -> Self {
        let (page, huge) = (PageNumber::containing(address), Huge::Untried);
        let (bytes, counted, reading, alone) = (None, false, None, false);
        let (via, wants_memory, away) = (Via::Handle, false, None);
        let (refused_at, refused_for) = (None, Duration::ZERO);
        Self {
            engine,
            space,
            address,
            page,
            access,
            bytes,
            counted,
            huge,
            reading,
            via,
            wants_memory,
            along: Along::None,
            away,
            refused_at,
            refused_for,
            alone,
            exceeds_quota: false,
            looks_everywhere: false,
            waiter,
        }
    }

    /// Brings about the event that a pending fault waits for, if that can be done from here.
    fn drive(&self) -> bool {
        let Some(reading) = &self.reading else { return false };
        if let Some(until) = self.waiter.until() {
            // The waker of this fault is called when the read ends. The sleep ends at the deadline.
            self.engine.serve_devices();
            park_for(self.engine.machine.clock.sleep_until(until));
            return true;
        }
        self.engine.drive(reading.frame()) == Waited::Progress
    }

    /// Runs as far as it can. If it is pending, `waker` will be called.
    #[inline]
    pub(crate) fn poll(&mut self, waker: &Waker) -> Poll<Outcome> {
        loop {
            let waiting = if self.reading.is_some() { self.wait_for_read(waker) } else { None };
            match waiting.unwrap_or_else(|| self.step(waker)) {
                Step::Again => {}
                Step::Wait => return Poll::Pending,
                Step::End(outcome) => {
                    match outcome {
                        Outcome::Usable => self.end_reading_of_others(),
                        _ => self.give_reading_up(),
                    }
                    return Poll::Ready(outcome);
                }
            }
        }
    }

    /// Ends a wait for a page that another fault has shown.
    fn end_reading_of_others(&mut self) {
        if let Some(reading) = &self.reading {
            reading.note_wait(self.engine);
        }
        self.give_reading_up();
    }

    /// Gives up the fault's read. The transfer continues without this fault.
    fn give_reading_up(&mut self) {
        if let Some(reading) = self.reading.take() {
            reading.give_up(self.engine);
        }
    }

    /// Uses base pages from here on.
    fn give_blocks_up(&mut self) {
        if let Huge::Compacted(Some(block)) = std::mem::replace(&mut self.huge, Huge::GivenUp) {
            self.engine.frames.give_back(block);
        }
    }

    /// Stores the result of compaction, after [`Outcome::NeedsHuge`].
    fn set_compacted(&mut self, block: Option<Block>) {
        self.huge = Huge::Compacted(block);
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn step(&mut self, waker: &Waker) -> Step {
        let walk = self.engine.table.walk(self.space.id, self.page);
        let region = match self.region() {
            Ok(region) => region,
            Err(error) => return Step::End(Outcome::Failed(error)),
        };
        if !walk.links_hold() {
            return Step::Again;
        }
        if let Some(translation) = &self.space.translation {
            return self.step_with(&**translation, &walk, &region, waker);
        }
        self.step_at_home(&walk, &region, waker)
    }

    /// The region that the access may use.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn region(&self) -> Result<Region> {
        if self.via == Via::Guard {
            return self.space.region_for_guard(self.engine, self.address);
        }
        self.space.region_for(self.engine, self.address, self.access)
    }

    /// A step in a space with a translation.
    #[cold]
    fn step_with(
        &mut self,
        translation: &dyn Translation,
        walk: &Walk<'a>,
        region: &Region,
        waker: &Waker,
    ) -> Step {
        if !matches!(walk.entry().state(), State::Swapped(_)) {
            // A page goes to the other side only where nobody pins its frame, and this fault would wait for
            // itself.
            self.end_reading_of_others();
        }
        if let Some(step) = self.step_away(walk, region, translation, waker) {
            self.count();
            return step;
        }
        match self.step_at_home(walk, region, waker) {
            // The page is usable for handles. Next it goes away.
            Step::End(Outcome::Usable | Outcome::Written) if self.via != Via::Handle => Step::Again,
            // The page has come in, and may be shared with other pages.
            Step::End(Outcome::Usable) if matches!(walk.entry().state(), State::Swapped(_)) => Step::Again,
            step => step,
        }
    }

    /// The hot step. In optimised code it is inlined, because a call would cost each fault some nanoseconds.
    /// In debug builds, inlining would use more of a small stack.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn step_at_home(&mut self, walk: &Walk<'a>, region: &Region, waker: &Waker) -> Step {
        let (entry, write) = (walk.entry(), self.access == Access::Write);
        if let Some(part) = region.options.file
            && let Some(step) = self.step_in_file(walk, region, part)
        {
            return step;
        }
        match entry.state() {
            State::Busy => match self.engine.wait_for_entry(walk.word(), waker) {
                Waiting::Registered => Step::Wait,
                Waiting::Retry => {
                    // The change has just ended, or there are too many waiters. Either way, let other threads
                    // run.
                    thread::yield_now();
                    Step::Again
                }
            },
            State::Present(_) => self.check_present(walk, region),
            State::Zero if !write => Step::End(Outcome::Usable),
            State::Zero if walk.level == 1 => self.write_to_huge_zero(walk, region),
            State::Swapped(slot) if self.bytes.is_some() => self.counted().overwrite(walk, region, slot),
            State::Swapped(slot) => self.counted().swap_in(walk, region, slot),
            State::Empty if walk.level == 1 && !write && self.wants_huge_zero(region) => {
                self.counted().install_huge_zero(walk)
            }
            State::Empty if walk.level == 1 && write && self.wants_block(region) => {
                self.counted().install_block(walk, region)
            }
            // Puts a node under an empty link, or under a root too small for the page.
            State::Empty | State::Node(_) if walk.level > 0 => self.grow(walk),
            State::Empty if !write => self.counted().install_small_zero(walk),
            State::Empty | State::Zero => self.counted().install_frame(walk, region),
            State::Node(_) => unreachable!("a walk follows every link"),
        }
    }

    /// Checks the quota for `pages` more. If they exceed it, returns the step that asks for room among the
    /// space's own pages.
    fn check_quota(&self, pages: u64) -> Option<Step> {
        let quota = self.space.quota.pages()?;
        let resident = self.engine.space_use.get(self.space.id, Figure::Resident);
        (resident + pages > quota && !self.exceeds_quota).then_some(Step::End(Outcome::OverQuota(pages)))
    }

    /// Checks that there is room for `pages` new pages. If not, returns the step that asks for it.
    fn check_growth(&self, pages: u64) -> Option<Step> {
        let may_come = pages == 0 || self.engine.may_grow(pages);
        (!may_come).then_some(Step::End(Outcome::NeedsRoom(pages)))
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn count(&mut self) {
        if !self.counted {
            self.counted = true;
            self.engine.counters.count(Counter::PageFault);
        }
    }

    /// Counts the fault, unless it is counted already, and returns it.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn counted(&mut self) -> &mut Self {
        self.count();
        self
    }

    fn check_present(&self, walk: &Walk<'_>, region: &Region) -> Step {
        let entry = walk.entry();
        let usable = match self.via {
            Via::Guard => entry.guarded_at_home(),
            _ => entry.usable_at_home(self.access),
        };
        if usable.is_some() {
            return Step::End(Outcome::Usable);
        }
        let protection = region.options.entry_protection();
        if entry.protection() != protection {
            // The region allows the access: a protect() that widens the permissions has not reached this
            // entry yet.
            let _ = walk.word().change(entry, entry.with_protection(protection));
            return Step::Again;
        }
        unreachable!("a page that is away comes home to a handle")
    }

    fn grow(&self, walk: &Walk<'_>) -> Step {
        match self.engine.table.grow(walk, self.page) {
            Grown::Retry => Step::Again,
            Grown::NoNode => Step::End(Outcome::NeedsNode),
        }
    }

    fn wants_huge_zero(&self, region: &Region) -> bool {
        self.engine.policy.huge != HugePolicy::Never
            && self.huge != Huge::GivenUp
            && region.contains_huge(self.page)
    }

    fn wants_block(&self, region: &Region) -> bool {
        let asked = match self.engine.policy.huge {
            HugePolicy::Always => true,
            HugePolicy::Advised => region.options.huge,
            HugePolicy::Never => false,
        };
        // The quota must have room for a few blocks. Otherwise, each block would push out all other pages of
        // the space.
        let fits = self.space.quota.pages().is_none_or(|quota| quota >= 4 * u64::from(CHUNK_FRAMES));
        asked && fits && self.huge != Huge::GivenUp && region.contains_huge(self.page)
    }

    fn write_to_huge_zero(&mut self, walk: &Walk<'_>, region: &Region) -> Step {
        if self.engine.policy.huge_zero_write == HugeZeroWrite::Allocate && self.wants_block(region) {
            return self.counted().install_block(walk, region);
        }
        match split_leaf(self.engine, self.space.id, self.page, walk, 0) {
            Split::NoNode => Step::End(Outcome::NeedsNode),
            Split::Done | Split::Changed => Step::Again,
            Split::Pinned => unreachable!("a zero leaf has no pins"),
        }
    }
}

impl Drop for Fault<'_> {
    /// A fault that is dropped midway leaves the entry unchanged.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn drop(&mut self) {
        let has_block = matches!(self.huge, Huge::Compacted(Some(_)));
        if self.reading.is_some() || self.away.is_some() || has_block {
            self.let_go();
        }
    }
}

impl Fault<'_> {
    /// Gives back the frames that the fault holds.
    #[cold]
    fn let_go(&mut self) {
        if self.engine.check_process().is_err() {
            // In a forked child, a lock may be held forever, and the child owns none of the frames.
            let huge = std::mem::replace(&mut self.huge, Huge::GivenUp);
            std::mem::forget((self.reading.take(), self.away.take(), huge));
            return;
        }
        self.give_reading_up();
        self.give_blocks_up();
        if let Some(away) = self.away.take() {
            self.engine.frames.give_back(away);
        }
    }
}

/// Resolves the fault of an access at `address`, blocking as long as it takes.
///
/// # Errors
/// Why the access cannot be served. The page is unchanged then.
#[cold]
#[inline(never)]
pub(crate) fn resolve(engine: &Engine, space: &SpaceState, address: u64, access: Access) -> Result<()> {
    let _inside = engine.enter()?;
    match new_page_begins(engine, space, address, access) {
        None => resolve_untimed(engine, space, address, access),
        Some(began) => resolve_new_page(engine, space, address, began),
    }
}

/// A function of its own, so that untimed faults do not pay for it.
#[cold]
#[inline(never)]
fn resolve_new_page(engine: &Engine, space: &SpaceState, address: u64, began: Instant) -> Result<()> {
    let resolved = resolve_untimed(engine, space, address, Access::Write);
    new_page_ends(engine, Some(began), &resolved);
    resolved
}

#[cfg_attr(not(debug_assertions), inline(always))]
fn resolve_untimed(engine: &Engine, space: &SpaceState, address: u64, access: Access) -> Result<()> {
    let mut fault = Fault::new(Waiter::thread(engine), engine, space, address, access);
    match fault.block() {
        Outcome::Usable => Ok(()),
        lacking => in_place(fault.provide(lacking)).map(|_| ()),
    }
}

/// Returns the start time of a fault that gives a page its first bytes, if that fault is timed.
#[cfg_attr(not(debug_assertions), inline(always))]
fn new_page_begins(engine: &Engine, space: &SpaceState, address: u64, access: Access) -> Option<Instant> {
    let page = PageNumber::containing(address);
    (access == Access::Write && latency::is_sampled(page)).then(|| time_if_new(engine, space, page)).flatten()
}

#[cold]
fn time_if_new(engine: &Engine, space: &SpaceState, page: PageNumber) -> Option<Instant> {
    let entry = engine.table.walk(space.id, page).entry();
    // A walk ends at a node only if there is nothing below it for this page.
    let is_new = matches!(entry.state(), State::Empty | State::Zero | State::Node(_));
    is_new.then(|| engine.machine.clock.now())
}

/// Notes how long the fault took, if it was timed and has succeeded.
fn new_page_ends<T>(engine: &Engine, began: Option<Instant>, resolved: &Result<T>) {
    if let (Some(began), Ok(_)) = (began, resolved) {
        engine.latencies.note(Latency::NewPage, engine.machine.clock.since(began));
    }
}

/// Does what [`resolve`] does, for a page that `bytes` will overwrite whole, so it need not be zeroed or read
/// first. Returns whether the bytes are written. If not, the page is ready for writing them.
#[cold]
#[inline(never)]
pub(crate) fn resolve_written(
    engine: &Engine,
    space: &SpaceState,
    address: u64,
    bytes: &[u8],
) -> Result<bool> {
    let _inside = engine.enter()?;
    let began = new_page_begins(engine, space, address, Access::Write);
    let mut fault = Fault::new(Waiter::thread(engine), engine, space, address, Access::Write);
    fault.bytes = Some(bytes);
    let resolved = match fault.block() {
        Outcome::Written => Ok(Resolved::Written),
        lacking => in_place(fault.provide(lacking)),
    };
    new_page_ends(engine, began, &resolved);
    resolved.map(|resolved| resolved == Resolved::Written)
}

/// Resolves a fault for a handle, or for the other side of the space's translation, without blocking the
/// thread that polls. If the future is dropped midway, the page is unchanged.
pub(crate) async fn resolve_async(
    waiter: Waiter<'_>,
    engine: &Engine,
    space: &SpaceState,
    address: u64,
    access: Access,
    via: Via,
) -> Result<()> {
    engine.check_process()?;
    let began = new_page_begins(engine, space, address, access);
    let mut fault = Fault::new(waiter, engine, space, address, access);
    fault.via = via;
    let outcome = fault.outcome().await;
    let resolved = fault.provide(outcome).await.map(|_| ());
    new_page_ends(engine, began, &resolved);
    resolved
}

/// Resolves a fault of the other side if that takes one read at most, and blocks for the read. Returns `None`
/// if it takes more. Nothing has changed then.
pub(crate) fn resolve_now(
    engine: &Engine,
    space: &SpaceState,
    address: u64,
    access: Access,
) -> Option<Result<()>> {
    let _inside = match engine.enter() {
        Ok(inside) => inside,
        Err(error) => return Some(Err(error)),
    };
    let mut fault = Fault::new(Waiter::brief(engine), engine, space, address, access);
    fault.via = Via::Translation { is_missing: true };
    match fault.block() {
        Outcome::Usable => Some(Ok(())),
        Outcome::Failed(error) => Some(Err(error)),
        _ => None,
    }
}

/// Takes over the memory that the other side of the translation has at `address`, as a page or block of the
/// space. Returns how many pages that is: 0 if it needs room first, or if another thread holds the entry.
pub(crate) fn take_over(engine: &Engine, space: &SpaceState, address: u64, what: InPlace) -> Result<u64> {
    let _inside = engine.enter()?;
    let mut fault = Fault::new(Waiter::never(engine), engine, space, address, Access::Read);
    fault.via = Via::InPlace(what);
    let mut polled = fault.poll(Waker::noop());
    if let Poll::Ready(Outcome::OverQuota(2..)) = polled {
        // A page may fit if a block does not.
        fault.give_blocks_up();
        polled = fault.poll(Waker::noop());
    }
    match polled {
        Poll::Ready(Outcome::Adopted(pages)) => Ok(pages),
        Poll::Ready(Outcome::Failed(error)) => Err(error),
        Poll::Ready(_) | Poll::Pending => Ok(0),
    }
}

/// The end of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resolved {
    Usable,
    Written,
}

impl Fault<'_> {
    /// Provides what the fault lacks, and polls until it ends. It is separate from the first poll, because
    /// most faults lack nothing.
    #[cold]
    async fn provide(mut self, mut outcome: Outcome) -> Result<Resolved> {
        let (mut no_room, mut misses) = (None::<Error>, 0);
        loop {
            // Why no room could be made before the last poll.
            let obstacle = no_room.take();
            match outcome {
                Outcome::Usable => return Ok(Resolved::Usable),
                Outcome::Written => return Ok(Resolved::Written),
                Outcome::Failed(error) => return Err(error),
                Outcome::NeedsFrame => {
                    if let Some(error) = obstacle {
                        return Err(error);
                    }
                    no_room = apart(reclaim::make_room(self.engine, &mut self.waiter)).await.err();
                    if self.waiter.is_too_late()
                        && let Some(error) = no_room
                    {
                        return Err(error);
                    }
                    misses += 1;
                    // If no room could be made, or other threads took it, the remaining frames may lie on
                    // other CPUs' lists.
                    self.looks_everywhere = no_room.is_some() || misses > 1;
                }
                Outcome::Throttled => {
                    apart(reclaim::throttle(self.engine, &self.waiter)).await;
                    no_room = obstacle;
                }
                // The deadline is checked first: a transfer that ends on another device makes no room on this
                // one.
                Outcome::DeviceFull { ends, .. }
                    if !self.waiter.is_too_late() && self.waiter.until_room(ends).await => {}
                Outcome::DeviceFull { page, .. } => {
                    self.waiter.note_silence();
                    return Err(self.engine.store(page).timed_out(page));
                }
                Outcome::NeedsNode => reclaim::make_room_for_node(self.engine, &mut self.waiter).await?,
                Outcome::NotNow | Outcome::Adopted(_) => {
                    unreachable!("nothing is provided for a waiter that gives up")
                }
                Outcome::NeedsAway => {
                    self.away = Some(reclaim::make_room_away(self.engine, &mut self.waiter).await?);
                }
                Outcome::OverQuota(pages) => self.make_room_under_quota(pages).await?,
                // Pages may fit if a block does not.
                Outcome::NeedsRoom(2..) => self.give_blocks_up(),
                Outcome::NeedsRoom(_) => {
                    apart(reclaim::make_room_to_grow(self.engine, &mut self.waiter)).await?;
                }
                Outcome::NeedsHuge => {
                    let block = reclaim::block_for_fault(self.engine, &mut self.waiter).await;
                    self.set_compacted(block);
                }
            }
            outcome = self.outcome().await;
        }
    }

    /// Polls until the fault ends, and sleeps or completes transfers in between.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn block(&mut self) -> Outcome {
        let cell = RefCell::new(self);
        block_until_driven(|waker| cell.borrow_mut().poll(waker), || cell.borrow().drive())
    }

    async fn outcome(&mut self) -> Outcome {
        if self.waiter.blocks() {
            return self.block();
        }
        poll_fn(|context| {
            // A forked child must not touch the fault.
            if let Err(error) = self.engine.check_process() {
                return Poll::Ready(Outcome::Failed(error));
            }
            let polled = self.poll(context.waker());
            match self.waiter.set_alarm(context.waker()) {
                Err(error) if polled.is_pending() => Poll::Ready(Outcome::Failed(error)),
                _ => polled,
            }
        })
        .await
    }

    async fn make_room_under_quota(&mut self, pages: u64) -> Result<()> {
        if self.engine.swap.slots.is_full() && self.is_out() {
            self.exceeds_quota = true;
            return Ok(());
        }
        let made = reclaim::make_room_under_quota(self.engine, self.space, pages, &mut self.waiter).await;
        if made.is_err() && pages > 1 {
            // A page may fit if a block does not.
            self.give_blocks_up();
            return Ok(());
        }
        self.exceeds_quota =
            matches!(&made, Err(error) if error.kind() == ErrorKind::SwapFull) && self.is_out();
        if self.exceeds_quota { Ok(()) } else { made }
    }

    /// Returns whether the page is out just now.
    fn is_out(&self) -> bool {
        let entry = self.engine.table.walk(self.space.id, self.page).entry();
        matches!(entry.state(), State::Swapped(_))
    }
}
