//! Gives a space what another has, as a forked process gets what its parent has.
//!
//! ```text
//!   the parent's entry  the child's entry
//!   Swapped             Swapped: one more reference of the page's place
//!   Present, at home    Present, at home: a copy of the bytes; a block is split first
//!   Present, AWAY       nothing: the other side shows the page to both, and knows when one of them writes it
//!   Empty, Zero         nothing
//! ```
//!
//! The caller ensures that the parent's other side shows and takes no pages meanwhile. An entry of the parent
//! is Busy while its page is copied or shared, so the page stays where it is.
//!
//! Cost: a walk and a slot's lock for each page that is out.

use crate::engine::{Engine, SpaceState, Split, split_leaf};
use crate::rmap::Owner;
use crate::table::entry::{Entry, State};
use crate::table::{Grown, PageNumberRange, Protection, Walk};
use crate::units::{Order, PAGE_BYTES, PageNumber};

/// What a fork lacks to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    Node,
    Frame,
    /// The remaining frames are kept for pages that come in.
    Room,
    /// The block that starts here is pinned, so it cannot be split now.
    Unpinned(PageNumber),
}

/// Gives the child what the parent has. Skips pages that the child has already, so you may call it again
/// after a lack.
pub(crate) fn fork_range(
    engine: &Engine,
    parent: &SpaceState,
    child: &SpaceState,
    range: PageNumberRange,
) -> Result<(), Lack> {
    let mut walks = engine.table.walks(parent.id, range);
    while let Some(page) = Some(walks.page()).filter(|page| *page < range.end) {
        let Some(walk) = walks.next() else { break };
        match walk.entry().state() {
            State::Busy => {
                engine.block_on_entry(walk.word());
                walks.go_on_from(page);
            }
            State::Present(_) if walk.entry().is_away() => {}
            State::Swapped(_) | State::Present(_)
                if walk.level == 0 && !fork_page(engine, &walk, child, page)? =>
            {
                walks.go_on_from(page);
            }
            // A block at home, which a handle has made.
            State::Present(_) if walk.level > 0 => match split_leaf(engine, parent.id, page, &walk, 0) {
                Split::Done | Split::Changed => walks.go_on_from(page),
                Split::NoNode => return Err(Lack::Node),
                Split::Pinned => return Err(Lack::Unpinned(page.huge_start())),
            },
            _ => {}
        }
    }
    Ok(())
}

/// Gives one page to the child. Returns `false` if the parent's entry has changed and must be looked at
/// again.
fn fork_page(engine: &Engine, walk: &Walk<'_>, child: &SpaceState, page: PageNumber) -> Result<bool, Lack> {
    let theirs = loop {
        let theirs = engine.table.walk(child.id, page);
        if theirs.level == 0 {
            break theirs;
        }
        if engine.table.grow_over_budget(&theirs, page) == Grown::NoNode {
            return Err(Lack::Node);
        }
    };
    let seen = theirs.entry();
    if !seen.is_empty() {
        return Ok(true);
    }
    let fresh = match walk.entry().state() {
        State::Present(_) if !engine.may_grow(1) => return Err(Lack::Room),
        State::Present(_) => Some(engine.frames.alloc(Order::ZERO).ok_or(Lack::Frame)?),
        _ => None,
    };
    let (word, before) = (walk.word(), walk.entry());
    let busy = before.to_busy();
    if word.change(before, busy).is_err() {
        fresh.into_iter().for_each(|block| engine.frames.give_back(block));
        return Ok(false);
    }
    let show = |entry: Entry| {
        let shown = theirs.word().change(seen, entry);
        assert!(shown.is_ok(), "nobody else uses the child's table yet");
    };
    match (before.state(), fresh) {
        (State::Swapped(slot), _) => {
            // The parent's entry is Busy and keeps its reference, so the slot still has the page.
            engine.swap.cache.share(slot);
            show(seen.to_swapped(slot));
        }
        (State::Present(frame), Some(fresh)) => {
            let (from, to) = (frame.home_offset(), fresh.frame().home_offset());
            engine.frames.bytes().copy_within(from, to, PAGE_BYTES);
            let copy = engine.adopt_off_lists(fresh, Owner { space: child.id, page });
            if engine.frames.words(frame).holds.load().is_no_compress() {
                engine.frames.words(copy).holds.mark_no_compress();
            }
            engine.lru.add(&engine.frames, copy);
            // The first access asks the region for the page's permissions.
            show(seen.to_present(copy, Protection::NONE));
        }
        _ => unreachable!("other pages are not forked"),
    }
    engine.publish(word, busy.to_what_was(before));
    Ok(true)
}
