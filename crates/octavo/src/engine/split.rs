//! Splitting: a huge leaf becomes a node of 512 small leaves.
//!
//! The entry is busy meanwhile, so accesses wait. The block's frames stay where they are, and become separate
//! frames, each with its own pins and uses. So a block that several entries show is split for all of them at
//! once. A pinned block cannot be split, because its pins are counted on its head.

use smallvec::SmallVec;

use crate::counters::Counter;
use crate::engine::{AllBusy, Batch, Engine};
use crate::rmap::{Owner, Owners};
use crate::table::entry::{NodeId, State};
use crate::table::translation::Answer;
use crate::table::{SpaceId, Walk};
use crate::units::{CHUNK_FRAMES, FrameId, Order, PageNumber};

/// The outcome of a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    /// The leaf is a node now. The caller walks again.
    Done,
    /// Another thread changed the entry. The caller walks again.
    Changed,
    /// There are not enough free table nodes.
    NoNode,
    /// The block is pinned, the translation does not allow the split, or an entry of another space that shows
    /// the block is being changed.
    Pinned,
}

/// Nodes for a split, one for each owner of a block. Dropping this gives back the unused ones.
pub(crate) struct Nodes<'e> {
    engine: &'e Engine,
    nodes: SmallVec<[NodeId; 2]>,
}

impl<'e> Nodes<'e> {
    /// Takes `count` nodes. Returns `None` if there are not enough.
    pub(crate) fn take(engine: &'e Engine, count: usize, own_pins: u32) -> Option<Self> {
        let pool = &engine.table.nodes;
        let mut taken = Self { engine, nodes: SmallVec::new() };
        for _ in 0..count {
            // A caller with a pin of its own is reclaim. To move a block out, it must split it even if no
            // other memory is left.
            taken.nodes.push(if own_pins == 0 { pool.take() } else { pool.take_for_reclaim() }?);
        }
        Some(taken)
    }

    /// Hands one of the nodes to the caller.
    pub(crate) fn pop(&mut self) -> NodeId {
        self.nodes.pop().expect("as many are used as were taken")
    }
}

impl Drop for Nodes<'_> {
    fn drop(&mut self) {
        self.nodes.drain(..).for_each(|node| self.engine.table.nodes.give_back(node));
    }
}

/// Splits the huge leaf at which `walk` ended. `own_pins` is the number of the caller's pins on its block.
/// The caller has checked the links after the walk.
pub(crate) fn split_leaf(
    engine: &Engine,
    space: SpaceId,
    page: PageNumber,
    walk: &Walk<'_>,
    own_pins: u32,
) -> Split {
    debug_assert_eq!(walk.level, 1);
    let owner = Owner { space, page: page.huge_start() };
    let split = match walk.entry().state() {
        State::Zero => split_zero(engine, walk, own_pins),
        State::Present(head) => split_block(engine, owner, head, own_pins),
        _ => Split::Changed,
    };
    if split == Split::Done {
        engine.counters.count(Counter::HugeSplit);
    }
    split
}

fn split_zero(engine: &Engine, walk: &Walk<'_>, own_pins: u32) -> Split {
    let Some(mut nodes) = Nodes::take(engine, 1, own_pins) else { return Split::NoNode };
    let (word, leaf) = (walk.word(), walk.entry());
    let busy = leaf.to_busy();
    if word.change(leaf, busy).is_err() {
        return Split::Changed;
    }
    let node = nodes.pop();
    for entry in engine.table.nodes.entries(node) {
        let zero = if leaf.is_away() { entry.load().to_zero_away() } else { entry.load().to_zero() };
        entry.set_unshared(zero);
    }
    engine.publish(word, busy.to_node(node));
    engine.huge_zero.put(1);
    Split::Done
}

/// Splits the block that `owner`, and perhaps others, show.
fn split_block(engine: &Engine, owner: Owner, head: FrameId, own_pins: u32) -> Split {
    let owners = engine.rmap.owners(&engine.frames, head);
    if !owners.contains(&owner) {
        return Split::Changed;
    }
    let Some(mut nodes) = Nodes::take(engine, owners.len(), own_pins) else { return Split::NoNode };
    let Some(busy) = AllBusy::make(engine, head, 1, &owners) else {
        // Another thread may keep another owner's entry busy for a while.
        return if owners.len() == 1 { Split::Changed } else { Split::Pinned };
    };
    if !busy.have_it_alone(head, own_pins) || !is_split_away(engine, owner, head) {
        busy.restore();
        return Split::Pinned;
    }
    split_frames(engine, &owners, head);
    busy.publish(|_, leaf, busy| {
        let node = nodes.pop();
        for (index, entry) in engine.table.nodes.entries(node).iter().enumerate() {
            entry.set_unshared(entry.load().to_present_as(leaf, head.plus(index as u32)));
        }
        busy.to_node(node)
    });
    Split::Done
}

/// Tells the translation that it will be asked about the block page by page from now on. Returns whether it
/// agrees. Only a block that is away needs this.
fn is_split_away(engine: &Engine, owner: Owner, head: FrameId) -> bool {
    if !engine.frames.is_away(head) {
        return true;
    }
    let mut batch = Batch::new();
    batch.add(owner.page, CHUNK_FRAMES, ());
    engine
        .translation(owner.space)
        .is_some_and(|translation| batch.ask(|runs| translation.split(runs))[0] == Answer::Done)
}

/// Makes 512 frames out of one block. Each is live, in use at its owners' own pages, dirty if the block was,
/// and on the LRU.
fn split_frames(engine: &Engine, owners: &Owners, head: FrameId) {
    let holds = engine.frames.words(head).holds.load();
    let (first, others) = owners.split_first().expect("a block that is split has an owner");
    engine.lru.split(&engine.frames, head, CHUNK_FRAMES, || {
        engine.frames.split(head, Order::MAX).expect("an owned block is split by its owner");
        for index in 1..CHUNK_FRAMES {
            let frame = head.plus(index);
            let at = |owner: &Owner| Owner { page: owner.page.plus(u64::from(index)), ..*owner };
            let words = engine.frames.words(frame);
            words.holds.begin(holds.is_dirty());
            if holds.is_no_compress() {
                words.holds.mark_no_compress();
            }
            words.uses.set_first();
            engine.rmap.set_first(words, at(first));
            for other in others {
                let added = words.uses.try_add();
                debug_assert!(added);
                engine.rmap.add(&engine.frames, frame, at(other));
            }
        }
    });
}
