//! Taking the pages of a guard: pinned, latched, and in frames that lie together.
//!
//! A guard of one page is a pin on its frame and the frame's latch (`frame/latch.rs`), shared or exclusive.
//! The entries of a guarded region allow no other access
//! ([`Protection::GUARDED`](crate::table::Protection)). So a plain access misses without an extra check,
//! and the fault that follows returns an error. A pinned frame stays with its page: nobody moves, splits or
//! frees it. Writeback pins a page too, so an exclusive guard waits until writeback has ended. No writeback
//! starts under an exclusive guard: it needs the only pin, or (the sync of a file) the latch.
//!
//! ```text
//!  walk ─► pin the frame ─► read the links again ─► latch ─► exclusive: under I/O? ─► lent
//!            │                  │ changed             │ taken        │ yes
//!            │ no such leaf     ▼                     ▼              ▼ let both go, wait for the device
//!            └────────────► fault              let the pin go, wait for the latch
//! ```
//!
//! An exclusive guard marks its pages dirty before it lends them.
//!
//! Cost for a page in memory: the walk twice, and four read-modify-writes on two lines (the frame's words and
//! its latch). Each further page costs the same. If a block shows all pages, each further page costs only two
//! (its latch, on a line of eight), because one pin holds the block.

use std::future::poll_fn;
use std::task::{Poll, Waker};

use smallvec::SmallVec;

use crate::access::bounds::too_many_pins;
use crate::engine::{Engine, SpaceState, Waiter, in_place};
use crate::error::{Error, ErrorKind, Result};
use crate::fault::{Via, resolve_async};
use crate::frame::PinnedFrame;
use crate::frame::holds::MAX_PINS;
use crate::frame::latch::{Hold, Taken};
use crate::sync::park::block_until;
use crate::sync::wait::Waiting;
use crate::sync::{Ordering, fence};
use crate::table::{Access, Leaf, LeafOperation, SpaceId};
use crate::units::{CHUNK_FRAMES, FrameId, PageNumber};

/// How often a reader yields so that a waiting writer gets the latch first.
const MOST_TURNS: u32 = 64;

/// The thread or task that takes a guard, and whether it waits for other guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taker {
    Thread,
    Task,
    /// A thread that does not wait for other guards. It does wait for devices and for room.
    Try,
    /// A task that does not wait for other guards.
    TryTask,
}

impl Taker {
    pub(super) fn waiter(self, engine: &Engine) -> Waiter<'_> {
        match self {
            Self::Thread | Self::Try => Waiter::thread(engine),
            Self::Task | Self::TryTask => Waiter::task(engine),
        }
    }

    /// The same, without waiting for other guards.
    pub(super) fn trying(self) -> Self {
        match self {
            Self::Thread | Self::Try => Self::Try,
            Self::Task | Self::TryTask => Self::TryTask,
        }
    }

    pub(super) fn is_trying(self) -> bool {
        self == self.trying()
    }
}

/// A latched and pinned page: its own frame, and the frame that carries the pin. If a block shows the page,
/// that is the block's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeldPage {
    pub(super) frame: FrameId,
    pub(super) pinned: FrameId,
}

/// Why a page in memory cannot be taken.
#[derive(Debug)]
enum Obstacle {
    Latch(FrameId, Taken),
    /// A device, or a packing thread, reads the frame.
    Io,
    TooManyPins,
}

/// Takes a page, at its leaf.
#[derive(Clone, Copy)]
struct TakePage<'e> {
    engine: &'e Engine,
    watched: Option<SpaceId>,
    page: PageNumber,
    hold: Hold,
    /// As [`Latch::try_take`](crate::frame::latch::Latch::try_take).
    joins: bool,
    /// Takes the page only if a block shows it.
    of_block: bool,
}

impl LeafOperation for TakePage<'_> {
    type Output = Result<HeldPage, Obstacle>;

    #[inline(always)]
    fn run(self, leaf: &Leaf<'_>) -> Option<Result<HeldPage, Obstacle>> {
        let Self { engine, watched, page, hold, joins, of_block } = self;
        let pinned = leaf.entry.guarded_at_home().filter(|_| leaf.level > 0 || !of_block)?;
        let words = engine.frames.words(pinned);
        let (pin, before) = PinnedFrame::take(pinned, words);
        if !leaf.still_holds() {
            engine.unpin(pin);
            return None;
        }
        let frame = frame_of(pinned, leaf.level, page);
        if before.pins() >= MAX_PINS {
            engine.unpin(pin);
            return Some(Err(Obstacle::TooManyPins));
        }
        let taken = match engine.latches[frame].try_take(hold, joins) {
            Err(taken) => Err(Obstacle::Latch(frame, taken)),
            // Our pin keeps new writebacks away. One that began before is in the word by now.
            Ok(()) if hold == Hold::Exclusive && words.holds.load().is_writeback() => {
                engine.unlatch(frame, hold);
                Err(Obstacle::Io)
            }
            Ok(()) => Ok(HeldPage { frame, pinned }),
        };
        if taken.is_err() {
            engine.unpin(pin);
            return Some(taken);
        }
        if hold == Hold::Exclusive {
            // No thread clears the mark while the frame is held, so one look is enough.
            if !before.is_dirty() {
                engine.mark_dirty(pinned);
            }
            // Release: the new version of the latch, and the change that made the frame ours, come before the
            // new bytes. Optimistic readers rely on this.
            fence(Ordering::Release);
        }
        engine.note_pinned(watched, words, before);
        leaf.word.mark_accessed(leaf.entry);
        pin.into_frame();
        Some(taken)
    }
}

/// The frame of a page, in a leaf that shows `shown`.
#[inline(always)]
pub(super) fn frame_of(shown: FrameId, level: usize, page: PageNumber) -> FrameId {
    if level == 0 { shown } else { shown.plus((page.0 % u64::from(CHUNK_FRAMES)) as u32) }
}

/// Latched and pinned pages, in order of address. Dropping this lets them go.
pub(super) struct HeldPages<'e> {
    pub(super) engine: &'e Engine,
    pub(super) hold: Hold,
    pub(super) pages: SmallVec<[HeldPage; 4]>,
}

impl<'e> HeldPages<'e> {
    pub(super) fn new(engine: &'e Engine, hold: Hold) -> Self {
        Self { engine, hold, pages: SmallVec::new() }
    }

    pub(super) fn lie_together(&self) -> bool {
        self.pages.windows(2).all(|pair| pair[0].frame.plus(1) == pair[1].frame)
    }

    /// Turns pages that lie together into a [`LentRun`].
    pub(super) fn into_run(mut self) -> LentRun {
        debug_assert!(self.lie_together());
        let pages = std::mem::take(&mut self.pages);
        let is_block =
            pages[0].pinned != pages[0].frame || pages.len() > 1 && pages[1].pinned != pages[1].frame;
        if is_block {
            // One pin is enough.
            pages[1..].iter().for_each(|page| self.engine.unpin(PinnedFrame::counted(page.pinned)));
        }
        LentRun {
            frame: pages[0].frame,
            pages: pages.len() as u32,
            head: if is_block { pages[0].pinned.0 } else { NO_HEAD },
            hold: self.hold,
        }
    }
}

impl Drop for HeldPages<'_> {
    fn drop(&mut self) {
        self.pages.iter().for_each(|page| let_go(self.engine, *page, self.hold));
    }
}

#[inline(always)]
pub(super) fn let_go(engine: &Engine, page: HeldPage, hold: Hold) {
    // First the latch: without the pin, the frame may be another page's.
    engine.unlatch(page.frame, hold);
    engine.unpin(PinnedFrame::counted(page.pinned));
}

const NO_HEAD: u32 = u32::MAX;

/// Lent pages whose frames lie together.
#[derive(Debug)]
pub(super) struct LentRun {
    pub(super) frame: FrameId,
    pub(super) pages: u32,
    /// Number of the frame that carries one pin for all pages, the head of the block that shows them.
    /// `NO_HEAD` if each page's frame carries its own pin.
    head: u32,
    pub(super) hold: Hold,
}

impl LentRun {
    /// Takes one page, or pages of one block, if they are in memory and nothing has to be waited for.
    ///
    /// # Errors
    /// `TooManyPins`.
    #[inline(always)]
    pub(super) fn at_hand(
        engine: &Engine,
        space: &SpaceState,
        page: PageNumber,
        pages: u32,
        hold: Hold,
    ) -> Result<Option<Self>> {
        let watched = engine.check_pins(space)?;
        let take = TakePage { engine, watched, page, hold, joins: false, of_block: pages > 1 };
        let held = engine.table.at_leaf(space.id, page, take).and_then(Result::ok);
        Ok(held.and_then(|held| {
            let head = if held.pinned == held.frame && pages == 1 { NO_HEAD } else { held.pinned.0 };
            let run = Self { frame: held.frame, pages: 1, head, hold };
            if pages == 1 { Some(run) } else { run.with_the_rest(engine, pages) }
        }))
    }

    /// Latches further pages of the block, up to `pages` in all. Returns `None` if another guard has one of
    /// them. All are let go then.
    ///
    /// The pin keeps the block in one piece, and keeps devices and packing threads away, even if its pages
    /// are unmapped meanwhile.
    fn with_the_rest(mut self, engine: &Engine, pages: u32) -> Option<Self> {
        while self.pages < pages {
            if engine.latches[self.frame.plus(self.pages)].try_take(self.hold, false).is_err() {
                self.let_go(engine);
                return None;
            }
            self.pages += 1;
        }
        if self.hold == Hold::Exclusive {
            // Release: as for the first page.
            fence(Ordering::Release);
        }
        Some(self)
    }

    /// Makes an exclusive hold on the pages a shared one.
    pub(super) fn downgrade(&mut self, engine: &Engine) {
        self.hold = Hold::Shared;
        for index in 0..self.pages {
            engine.downgrade_latch(self.frame.plus(index));
        }
    }

    /// Takes the pages over from a guard that ends without letting them go.
    pub(super) fn hand_on(&mut self) -> Self {
        let Self { frame, head, hold, .. } = *self;
        Self { pages: std::mem::take(&mut self.pages), frame, head, hold }
    }

    #[inline]
    pub(super) fn let_go(&self, engine: &Engine) {
        // In a forked child, this changes only the child's own copies of the counts.
        for frame in (0..self.pages).map(|index| self.frame.plus(index)) {
            if self.head == NO_HEAD {
                let_go(engine, HeldPage { frame, pinned: frame }, self.hold);
            } else {
                engine.unlatch(frame, self.hold);
            }
        }
        if self.head != NO_HEAD && self.pages > 0 {
            engine.unpin(PinnedFrame::counted(FrameId(self.head)));
        }
    }
}

pub(super) async fn take_page(
    engine: &Engine,
    space: &SpaceState,
    page: PageNumber,
    hold: Hold,
    taker: Taker,
) -> Result<HeldPage> {
    let mut turns = 0;
    loop {
        let joins = turns >= MOST_TURNS || taker.is_trying();
        let take =
            TakePage { engine, watched: engine.check_pins(space)?, page, hold, joins, of_block: false };
        let obstacle = match engine.table.at_leaf(space.id, page, take) {
            None => {
                fault(engine, space, page, taker).await?;
                continue;
            }
            Some(Ok(page)) => return Ok(page),
            Some(Err(obstacle)) => obstacle,
        };
        match obstacle {
            Obstacle::TooManyPins | Obstacle::Latch(_, Taken::ByTooMany) => return Err(too_many_pins()),
            Obstacle::Latch(frame, Taken::WriterFirst) => {
                turns += 1;
                if turns == MOST_TURNS {
                    // The writer may have given up. A writer that still waits registers again.
                    engine.rouse_latch(frame);
                }
                taker.waiter(engine).give_way().await;
            }
            Obstacle::Latch(..) if taker.is_trying() => return Err(guarded_by_others(page)),
            Obstacle::Latch(frame, Taken::ByOthers) => {
                wait_for_latch(engine, space, page, frame, hold, taker).await;
            }
            Obstacle::Io => wait_for_io(engine, taker).await?,
        }
        // A future may be polled in a child of the process.
        engine.check_process()?;
    }
}

/// Makes the page present, in a frame of its own.
pub(super) async fn fault(engine: &Engine, space: &SpaceState, page: PageNumber, taker: Taker) -> Result<()> {
    resolve_async(taker.waiter(engine), engine, space, page.address(), Access::Write, Via::Guard).await
}

/// Makes the page present, and blocks as long as it takes.
pub(crate) fn populate_guarded(engine: &Engine, space: &SpaceState, page: PageNumber) -> Result<()> {
    in_place(fault(engine, space, page, Taker::Thread))
}

/// Waits until the latch of the page's frame is free, or was free for a moment.
pub(super) async fn wait_for_latch(
    engine: &Engine,
    space: &SpaceState,
    page: PageNumber,
    frame: FrameId,
    hold: Hold,
    taker: Taker,
) {
    let mut waited = false;
    let mut poll = |waker: &Waker| {
        // The woken caller looks the page up again: it may have another frame.
        if std::mem::replace(&mut waited, true) || engine.wait_for_latch(frame, hold, waker) == Waiting::Retry
        {
            return Poll::Ready(());
        }
        // The frame was not pinned, so it may belong to another page by now, and its latch says nothing about
        // this page. If the frame still is this page's, the latch's holder has found the waker, or will find
        // it.
        match engine.table.at_leaf(space.id, page, Shows { page, frame }) {
            Some(()) => Poll::Pending,
            None => Poll::Ready(()),
        }
    };
    match taker {
        Taker::Thread | Taker::Try => block_until(poll),
        Taker::Task | Taker::TryTask => poll_fn(|context| poll(context.waker())).await,
    }
}

/// Checks whether a leaf shows a page in this frame.
#[derive(Clone, Copy)]
struct Shows {
    page: PageNumber,
    frame: FrameId,
}

impl LeafOperation for Shows {
    type Output = ();

    #[inline(always)]
    fn run(self, leaf: &Leaf<'_>) -> Option<()> {
        let shown = leaf.entry.guarded_at_home()?;
        (frame_of(shown, leaf.level, self.page) == self.frame).then_some(())
    }
}

/// Waits for the end of a writeback. The caller looks again: the frame is not pinned meanwhile.
async fn wait_for_io(engine: &Engine, taker: Taker) -> Result<()> {
    let mut waiter = taker.waiter(engine);
    if !waiter.until_some_write_ends().await && waiter.is_too_late() {
        return Err(engine.swap.areas.timed_out());
    }
    // While a page is packed, it has no transfer to wait for.
    waiter.give_way().await;
    Ok(())
}

#[cold]
fn guarded_by_others(page: PageNumber) -> Error {
    let message = format!(
        "another guard has the page at {:#x}; try again when it is dropped, or wait for it with shared() or exclusive()",
        page.address()
    );
    Error::new(ErrorKind::Busy, message)
}
