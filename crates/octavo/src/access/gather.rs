//! Takes the pages of one slice. If their frames do not lie together, moves them to frames that do.
//!
//! A guard of several pages takes them in the order of their addresses, and keeps the pages that it has while
//! it waits for the next. So guards do not deadlock, as long as each thread takes one guard at a time. The
//! frames of the pages must lie together. If they do not, the thread latches all pages exclusively, and moves
//! them to frames that do.
//!
//! The thread looks for such frames while it holds none of the pages, because held pages would hinder
//! compaction. Then it latches each page exclusively, and moves it to the next of the frames, as in a
//! migration (`reclaim/migrate.rs`). A new frame is pinned and latched before its entry is published, so no
//! other guard can take it first. Then the thread drops the old frame's latch and pin. Waiters for that latch
//! look their page up again. The extra memory is the new frames and one more.
//!
//! The pages stay together until they go out, so each page is copied once.

use crate::access::latched::{HeldPage, HeldPages, LentRun, Taker, fault, let_go, take_page};
use crate::engine::{Engine, SpaceState};
use crate::error::{Error, ErrorKind, Result};
use crate::frame::latch::Hold;
use crate::frame::{Block, PinnedFrame};
use crate::reclaim::{frames_together, move_pinned};
use crate::sync::{Duration, Instant};
use crate::table::entry::State;
use crate::units::{Order, PageNumber};

/// Takes the pages, and moves them together if they do not lie together.
pub(super) async fn take_run(
    engine: &Engine,
    space: &SpaceState,
    first: PageNumber,
    pages: u32,
    hold: Hold,
    taker: Taker,
) -> Result<LentRun> {
    loop {
        let held = take_pages(engine, space, first, pages, hold, taker).await?;
        if held.lie_together() {
            return Ok(held.into_run());
        }
        // Held pages would hinder the search for frames that lie together.
        drop(held);
        let frames = Together::find(engine, pages, taker).await?;
        let gathered = gather(frames, space, first, hold, taker).await?;
        // `None`: a page was unmapped meanwhile, or a block now shows it. Take the pages again.
        if let Some(held) = gathered {
            let mut run = held.into_run();
            if hold == Hold::Shared {
                run.downgrade(engine);
            }
            return Ok(run);
        }
    }
}

/// Takes the pages from `first` on, in order.
async fn take_pages<'e>(
    engine: &'e Engine,
    space: &SpaceState,
    first: PageNumber,
    pages: u32,
    hold: Hold,
    taker: Taker,
) -> Result<HeldPages<'e>> {
    let mut held = HeldPages::new(engine, hold);
    for index in 0..pages {
        held.pages.push(take_page(engine, space, first.plus(u64::from(index)), hold, taker).await?);
    }
    Ok(held)
}

/// Frames that lie together, last first. Dropping this gives back the unused ones.
struct Together<'e> {
    engine: &'e Engine,
    frames: Vec<Block>,
}

impl<'e> Together<'e> {
    /// Takes frames, and makes room if there are none.
    async fn find(engine: &'e Engine, frames: u32, taker: Taker) -> Result<Self> {
        let mut frames = frames_together(engine, &mut taker.waiter(engine), frames).await?;
        frames.reverse();
        Ok(Self { engine, frames })
    }
}

impl Drop for Together<'_> {
    fn drop(&mut self) {
        if self.engine.check_process().is_err() {
            // A forked child owns none of the frames.
            return self.frames.drain(..).for_each(std::mem::forget);
        }
        self.frames.drain(..).for_each(|block| self.engine.frames.give_back(block));
    }
}

/// Takes each page exclusively, and moves it to the next of the frames. Returns `None` if a page's mapping
/// has changed. All pages are let go then.
///
/// If `hold` is shared, other readers may hold the pages, perhaps in the same thread. So the wait for them
/// has an end.
async fn gather<'e>(
    mut together: Together<'e>,
    space: &SpaceState,
    first: PageNumber,
    hold: Hold,
    taker: Taker,
) -> Result<Option<HeldPages<'e>>> {
    let engine = together.engine;
    let mut held = HeldPages::new(engine, Hold::Exclusive);
    for index in 0..together.frames.len() {
        let page = first.plus(index as u64);
        let taken = match hold {
            Hold::Exclusive => take_page(engine, space, page, Hold::Exclusive, taker).await?,
            Hold::Shared => take_with_patience(engine, space, page, taker).await?,
        };
        held.pages.push(taken);
        if engine.frames.words(taken.pinned).order() != Order::ZERO {
            // A block shows the page now, and a block's pages lie together.
            return Ok(None);
        }
        let mut patience = None;
        while let Err(fresh) = move_page(engine, &mut held.pages[index], together.frames.pop()) {
            together.frames.push(fresh);
            // Another thread holds the page for a moment. Or reclaim has begun to evict it, and its entry
            // must show the frame again.
            taker.waiter(engine).give_way().await;
            fault(engine, space, page, taker).await?;
            if patience.get_or_insert_with(|| Patience::new(engine)).is_over() {
                return Err(cannot_be_moved(page));
            }
            if !shows(engine, space, page, held.pages[index]) {
                return Ok(None);
            }
        }
    }
    Ok(Some(held))
}

/// How long a guard waits for other holders of a page that it has to move.
const PATIENCE: Duration = Duration::from_millis(500);

/// A wait of at most [`PATIENCE`].
struct Patience<'e> {
    engine: &'e Engine,
    began: Instant,
}

impl<'e> Patience<'e> {
    fn new(engine: &'e Engine) -> Self {
        Self { engine, began: engine.machine.clock.now() }
    }

    fn is_over(&self) -> bool {
        self.engine.machine.clock.since(self.began) >= PATIENCE
    }
}

async fn take_with_patience(
    engine: &Engine,
    space: &SpaceState,
    page: PageNumber,
    taker: Taker,
) -> Result<HeldPage> {
    let patience = Patience::new(engine);
    loop {
        match take_page(engine, space, page, Hold::Exclusive, taker.trying()).await {
            Err(error) if error.kind() == ErrorKind::Busy => {
                if taker.is_trying() || patience.is_over() {
                    return Err(cannot_be_moved(page));
                }
                taker.waiter(engine).give_way().await;
            }
            taken => return taken,
        }
    }
}

#[cold]
fn cannot_be_moved(page: PageNumber) -> Error {
    let message = format!(
        "the pages around {:#x} do not lie together in memory, and cannot be moved while another guard, or a read, holds one of them; drop that, or \
         borrow fewer pages at once",
        page.address()
    );
    Error::new(ErrorKind::Busy, message)
}

fn shows(engine: &Engine, space: &SpaceState, page: PageNumber, held: HeldPage) -> bool {
    let entry = engine.table.walk(space.id, page).entry();
    // The entry may have changed again since the last fault, so only another frame counts as a change.
    !matches!(entry.state(), State::Present(frame) if frame != held.pinned)
}

/// Moves a page to the frame `fresh`. Returns the frame if another thread is busy with the page.
fn move_page(engine: &Engine, held: &mut HeldPage, fresh: Option<Block>) -> Result<(), Block> {
    let fresh = fresh.expect("there is a frame for each page");
    let mut now = *held;
    move_pinned(engine, held.frame, fresh, |frame| {
        let (pin, _) = PinnedFrame::take(frame, engine.frames.words(frame));
        pin.into_frame();
        // No entry leads here yet, so nobody has the latch.
        engine.latches[frame].try_take(Hold::Exclusive, true).expect("the latch of a fresh frame is free");
        now = HeldPage { frame, pinned: frame };
    })?;
    let_go(engine, std::mem::replace(held, now), Hold::Exclusive);
    Ok(())
}
