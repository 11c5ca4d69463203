//! Bringing pages together, so that one slice can lend them.
//!
//! The caller has latched all pages alone. Frames that lie together are taken for them, and page after page moves there as in a migration
//! (`reclaim/migrate.rs`). A new frame is pinned and latched before its entry is published, so no other guard
//! comes between. Then the old frame's latch and pin go: those who waited for the latch look their page up again.
//!
//! Pages that have been brought together stay so until they go out. It costs the copy of each page, once.

use crate::access::latched::{HeldPage, HeldPages, Taker, fault, let_go};
use crate::engine::{Engine, SpaceState};
use crate::error::Result;
use crate::frame::latch::Hold;
use crate::frame::{Block, PinnedFrame};
use crate::reclaim::{frames_together, move_pinned};
use crate::table::entry::State;
use crate::units::PageNumber;

/// Frames that lie together, last first. A drop gives back those that are left.
struct Together<'e> {
    engine: &'e Engine,
    frames: Vec<Block>,
}

impl Drop for Together<'_> {
    fn drop(&mut self) {
        if self.engine.check_process().is_err() {
            // In a forked child nothing is the child's own.
            return self.frames.drain(..).for_each(std::mem::forget);
        }
        self.frames.drain(..).for_each(|block| self.engine.frames.give_back(block));
    }
}

/// Moves pages to frames that lie together. `None`: some page is mapped no more as it was, and all of them were let go.
pub(super) async fn gather<'e>(
    mut held: HeldPages<'e>,
    space: &SpaceState,
    taker: Taker,
) -> Result<Option<HeldPages<'e>>> {
    debug_assert_eq!(held.hold, Hold::Exclusive);
    let engine = held.engine;
    let mut frames = frames_together(engine, &mut taker.waiter(engine), held.pages.len() as u32).await?;
    frames.reverse();
    let mut together = Together { engine, frames };
    for index in 0..held.pages.len() {
        let page = held.first.plus(index as u64);
        while let Err(fresh) = move_page(engine, &mut held.pages[index], together.frames.pop()) {
            together.frames.push(fresh);
            // Another thread looks at the page for a moment. Or it has been asked to go out, and its entry has to show the frame
            // again.
            taker.waiter(engine).give_way().await;
            fault(engine, space, page, taker).await?;
            if !shows(engine, space, page, held.pages[index]) {
                return Ok(None);
            }
        }
    }
    Ok(Some(held))
}

fn shows(engine: &Engine, space: &SpaceState, page: PageNumber, held: HeldPage) -> bool {
    let entry = engine.table.walk(space.id, page).entry();
    // A fault that has just shown it may be undone already.
    !matches!(entry.state(), State::Present(frame) if frame != held.pinned)
}

/// Moves a page to the frame. The frame comes back where somebody else is busy with the page.
fn move_page(engine: &Engine, held: &mut HeldPage, fresh: Option<Block>) -> Result<(), Block> {
    let fresh = fresh.expect("there is a frame for each page");
    debug_assert_eq!(held.frame, held.pinned, "the pages of a block lie together");
    let mut now = *held;
    move_pinned(engine, held.frame, fresh, |frame| {
        let (pin, _) = PinnedFrame::take(frame, engine.frames.words(frame));
        pin.into_frame();
        // Nobody leads here yet, so nobody has the latch.
        engine.latches[frame].try_take(Hold::Exclusive, true).expect("the latch of a fresh frame is free");
        now = HeldPage { frame, pinned: frame };
    })?;
    let_go(engine, std::mem::replace(held, now), Hold::Exclusive);
    Ok(())
}
