//! Splits huge leaves over the edges of a range before it is unmapped or protected, so that all later steps
//! deal with whole leaves only.
//!
//! The caller splits twice under the layout lock. It splits before the regions change, to meet an obstacle
//! while nothing has changed yet. It splits again afterwards, because a fault under way may have put a block
//! there meanwhile. A split also moves an entry without a block to a later version. So after the second
//! split, such a fault can no longer succeed.
//!
//! A split does not wait for a pinned block, because the caller holds the layout lock. It returns the block,
//! and the caller may try again after releasing the lock.

use crate::engine::{Engine, Split, split_leaf};
use crate::table::entry::State;
use crate::table::{PageNumberRange, SpaceId};
use crate::units::PageNumber;

/// The reason why a block over an edge could not be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// There is no free table node.
    NoNode,
    /// The block that starts here is pinned now.
    Pinned(PageNumber),
}

/// Splits the huge leaves that reach over the edges of a range.
pub(crate) fn split_edges(engine: &Engine, space: SpaceId, range: PageNumberRange) -> Result<(), Obstacle> {
    [range.start, range.end].into_iter().try_for_each(|edge| split_edge(engine, space, edge))
}

fn split_edge(engine: &Engine, space: SpaceId, edge: PageNumber) -> Result<(), Obstacle> {
    if edge == edge.huge_start() {
        return Ok(());
    }
    loop {
        let walk = engine.table.walk(space, edge);
        if walk.level != 1 {
            return Ok(());
        }
        let (word, seen) = (walk.word(), walk.entry());
        match seen.state() {
            State::Busy => engine.block_on_entry(word),
            State::Present(_) => match split_leaf(engine, space, edge, &walk, 0) {
                Split::Done | Split::Changed => {}
                Split::NoNode => return Err(Obstacle::NoNode),
                Split::Pinned => return Err(Obstacle::Pinned(edge.huge_start())),
            },
            State::Empty | State::Zero if word.change(seen, seen.to_same()).is_ok() => return Ok(()),
            _ => {}
        }
    }
}
