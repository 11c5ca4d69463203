//! Moves the pages of a range to other addresses of the same space, as `mremap` does. No bytes move: the new
//! entries lead to the same frames and places, and the frames name their new owners.
//!
//! The caller has mapped the new range, which is still empty, and has removed the old one. A fault under way
//! in the old range finds no region any more. Each entry is Busy while its page moves, so eviction and faults
//! see the page at one of the two addresses, never at both.
//!
//! Zeros do not move. They become empty, which reads the same.
//!
//! Nodes for the new range may exceed the budget by 1/512 of the moved range, until the old range's nodes are
//! given back. The move does not wait for room for them, because the other side has moved the pages already.
//! The pages may be unable to go out before the whole move is recorded, so a wait could be in vain.

use crate::engine::{Engine, Obstacle, SpaceState, Split, split_leaf};
use crate::rmap::Owner;
use crate::table::entry::State;
use crate::table::{Grown, PageNumberRange};
use crate::units::PageNumber;

/// Moves the pages of `from` to the addresses from `to` on. If it stops at an obstacle, pages that have moved
/// stay moved. The caller removes the obstacle and calls again.
pub(crate) fn relocate_range(
    engine: &Engine,
    space: &SpaceState,
    from: PageNumberRange,
    to: PageNumber,
) -> Result<(), Obstacle> {
    let mut page = from.start;
    while page < from.end {
        let walk = engine.table.walk(space.id, page);
        if walk.level > 0 {
            match walk.entry().state() {
                State::Present(_) if walk.level == 1 => {
                    match split_leaf(engine, space.id, page, &walk, 0) {
                        Split::Done | Split::Changed => {}
                        Split::NoNode => return Err(Obstacle::NoNode),
                        Split::Pinned => return Err(Obstacle::Pinned(page.huge_start())),
                    }
                    continue;
                }
                State::Busy => {
                    engine.block_on_entry(walk.word());
                    continue;
                }
                _ => {}
            }
            // Nothing to move: the entry is empty, or zeros.
            let pages = crate::table::span(walk.level);
            page = PageNumber((page.0 / pages + 1) * pages);
            continue;
        }
        relocate_page(engine, space, page, PageNumber(to.0 + (page.0 - from.start.0)))?;
        page = page.plus(1);
    }
    Ok(())
}

fn relocate_page(
    engine: &Engine,
    space: &SpaceState,
    from: PageNumber,
    to: PageNumber,
) -> Result<(), Obstacle> {
    loop {
        let walk = engine.table.walk(space.id, from);
        let (word, before) = (walk.word(), walk.entry());
        match before.state() {
            State::Busy => {
                engine.block_on_entry(word);
                continue;
            }
            State::Present(_) | State::Swapped(_) => {}
            State::Empty | State::Zero | State::Node(_) => return Ok(()),
        }
        let there = engine.table.walk(space.id, to);
        if there.level > 0 {
            match engine.table.grow_over_budget(&there, to) {
                Grown::Retry => continue,
                Grown::NoNode => return Err(Obstacle::NoNode),
            }
        }
        let busy = before.to_busy();
        if word.change(before, busy).is_err() {
            continue;
        }
        let owner = |page| Owner { space: space.id, page };
        let rename = |from, to| {
            if let State::Present(frame) = before.state() {
                engine.rmap.replace(&engine.frames, frame, owner(from), owner(to));
            }
        };
        rename(from, to);
        let seen = there.entry();
        let moved = seen.is_empty() && there.word().change(seen, seen.to_what_was(before)).is_ok();
        if !moved {
            rename(to, from);
        }
        engine.publish(word, if moved { busy.to_empty() } else { busy.to_what_was(before) });
        if moved {
            return Ok(());
        }
    }
}
