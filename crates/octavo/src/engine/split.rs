//! A huge leaf becomes a node of 512 small leaves.
//!
//! The entry is busy while it happens, so accesses wait; the block's frames stay where they are, and become
//! frames of their own. A block that somebody pins cannot be split: its pins are counted on its head.

use crate::counters::Counter;
use crate::engine::Engine;
use crate::rmap::Owner;
use crate::table::entry::{NodeId, State};
use crate::table::{SpaceId, Walk};
use crate::units::{CHUNK_FRAMES, FrameId, Order, PageNumber};

/// What came of a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    /// The leaf is a node now: walk again.
    Done,
    /// Somebody else changed the entry: walk again.
    Changed,
    /// No table node is to be had.
    NoNode,
    /// The block is pinned, shared, or away from home.
    Pinned,
}

/// Splits the huge leaf at which `walk` ended. `own_pins` are the caller's on its block. The caller has checked the
/// links after the walk.
pub(crate) fn split_leaf(
    engine: &Engine,
    space: SpaceId,
    page: PageNumber,
    walk: &Walk<'_>,
    own_pins: u32,
) -> Split {
    // With a pin of its own it is reclaim, which has to split a block to move it out when nothing is left.
    let nodes = &engine.table.nodes;
    let taken = if own_pins == 0 { nodes.take() } else { nodes.take_for_reclaim() };
    let Some(node) = taken else { return Split::NoNode };
    let outcome = split_into(engine, space, page.huge_start(), walk, own_pins, node);
    match outcome {
        Ok(()) => engine.counters.count(Counter::HugeSplit),
        Err(_) => engine.table.nodes.give_back(node),
    }
    outcome.err().unwrap_or(Split::Done)
}

fn split_into(
    engine: &Engine,
    space: SpaceId,
    first: PageNumber,
    walk: &Walk<'_>,
    own_pins: u32,
    node: NodeId,
) -> Result<(), Split> {
    let (word, leaf) = (walk.word(), walk.entry());
    debug_assert_eq!(walk.level, 1);
    let busy = leaf.to_busy();
    match leaf.state() {
        State::Zero => {
            word.change(leaf, busy).map_err(|_| Split::Changed)?;
            for entry in engine.table.nodes.entries(node) {
                entry.set_unshared(entry.load().to_zero());
            }
            engine.publish(word, busy.to_node(node));
            engine.huge_zero.put(1);
            Ok(())
        }
        State::Present(head) => {
            let words = engine.frames.words(head);
            if engine.translation(space).is_some() || engine.rmap.owners(words).len() != 1 {
                return Err(Split::Pinned);
            }
            word.change(leaf, busy).map_err(|_| Split::Changed)?;
            if words.holds.pinned_by_others(own_pins) {
                engine.publish(word, busy.to_present_again(leaf));
                return Err(Split::Pinned);
            }
            split_block(engine, space, first, head);
            for (index, entry) in engine.table.nodes.entries(node).iter().enumerate() {
                let present = entry.load().to_present(head.plus(index as u32), leaf.protection());
                entry.set_unshared(if leaf.is_accessed() { present } else { present.without_accessed() });
            }
            engine.publish(word, busy.to_node(node));
            Ok(())
        }
        _ => Err(Split::Changed),
    }
}

/// 512 frames out of one block: each live, in use at its own page, dirty as the block was, and on the LRU.
fn split_block(engine: &Engine, space: SpaceId, first: PageNumber, head: FrameId) {
    let holds = engine.frames.words(head).holds.load();
    engine.lru.split(&engine.frames, head, CHUNK_FRAMES, || {
        engine.frames.split(head, Order::MAX).expect("an owned block is split by its owner");
        for index in 1..CHUNK_FRAMES {
            let words = engine.frames.words(head.plus(index));
            words.holds.begin(holds.is_dirty());
            if holds.is_plain() {
                words.holds.mark_plain();
            }
            words.uses.set_first();
            engine.rmap.set_first(words, Owner { space, page: first.plus(u64::from(index)) });
        }
    });
}
