//! Mappings: pages by index, in a tree with one lock, with or without tags.
//!
//! ```text
//!                 root: node, levels           an index is read six bits a level, from the top
//!                  │
//!           ┌──────▼──────┐  words: numbers of nodes one level down
//!           │ inner node  │  tags:  which of them have a tagged page below
//!           └─┬─────────┬─┘
//!        ┌────▼───┐ ┌───▼────┐  words: a frame + 1, or a shadow ([`PageWord`])
//!        │  leaf  │ │  leaf  │  tags:  which of them are tagged
//!        └────────┘ └────────┘
//! ```
//!
//! The maker of a mapping says whether it keeps tags, for good: files have to find their dirty pages, swap
//! has not. A tag of a page is a bit in its leaf and in every node above. So a search for tagged pages steps
//! over all nodes without one.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod` | the mapping; look-ups without the lock |
//! | `changes` | changes under the lock |
//! | `nodes` | the nodes, and where they come from |
//! | `word` | the word that an index has for a page |
//!
//! Invariants: a node in use has at least one word. The path to an existing word is never taken down or
//! moved. Node memory is never anything else.
//!
//! Locking: one lock covers everything except [`Mapping::peek`]. A thread takes no other lock under it.
//!
//! Cost: 320 bytes for each 64 neighbouring pages. A mapping charges them to the budget by 20 KiB, over the
//! limit if need be, because reclaim cannot do without. Once it is made, a mapping takes nothing from the
//! program's allocator.

mod changes;
mod nodes;
mod word;

use crate::budget::Budget;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering};

pub(crate) use changes::Changes;
use nodes::{MAX_LEVELS, NODE_BITS, Nodes, Stock};
pub(crate) use word::PageWord;

/// Marks that a mapping may keep for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    /// The page may have to be written.
    Dirty,
    /// The pass under way is to write the page. Pages that get dirty after the pass began do not have this
    /// tag.
    ToWrite,
    /// The page is under writeback.
    Writeback,
}

impl Tag {
    pub(crate) const ALL: [Tag; 3] = [Tag::Dirty, Tag::ToWrite, Tag::Writeback];
}

/// Whether a mapping keeps tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tags {
    Kept,
    None,
}

/// A tree of pages by index.
#[derive(Debug)]
pub(crate) struct Mapping {
    nodes: Nodes,
    /// The number of levels in the upper half, the topmost node in the lower. 0 while the mapping is empty.
    root: AtomicU64,
    tags: Tags,
    stock: Mutex<Stock>,
}

impl Mapping {
    /// Makes a mapping with room for `pages` pages below `end`, wherever they lie.
    ///
    /// The kernel's error when the address space is exhausted.
    pub(crate) fn new(pages: usize, end: u64, tags: Tags, budget: Arc<Budget>) -> std::io::Result<Self> {
        let nodes = Nodes::new(nodes::most_nodes(pages, end), budget)?;
        Ok(Self { nodes, root: AtomicU64::new(0), tags, stock: Mutex::new(Stock::default()) })
    }

    pub(crate) fn keeps_tags(&self) -> bool {
        self.tags == Tags::Kept
    }

    /// Takes the lock, for changes and for answers that must be exact.
    pub(crate) fn lock(&self) -> Changes<'_> {
        Changes::new(self, self.stock.lock())
    }

    /// Returns the word of a page, without the lock.
    ///
    /// The answer is exact for an index that nobody changes meanwhile *and that has a word*, because the path
    /// to that word stands. For an index without a word, the answer may be the word of another index, or no
    /// word at all: the node on the path may have gone to other pages. So a caller that finds a frame here
    /// asks the frame.
    pub(crate) fn peek(&self, index: u64) -> PageWord {
        // Acquire, all the way down: pairs with the stores that made each node part of the tree.
        let (mut node, levels) = unpack(self.root.load(Ordering::Acquire));
        if !reaches(levels, index) {
            return PageWord::NOTHING;
        }
        for level in (0..levels).rev() {
            // `None`: the number does not name a node. The node above is a leaf by now, somewhere else.
            let Some(words) = self.nodes.get(node) else { return PageWord::NOTHING };
            node = words.word(nodes::offset(index, level)).load(Ordering::Acquire);
            if node == 0 {
                return PageWord::NOTHING;
            }
        }
        PageWord::from_bits(node)
    }
}

fn pack(node: u32, levels: u32) -> u64 {
    u64::from(levels) << 32 | u64::from(node)
}

fn unpack(root: u64) -> (u32, u32) {
    (root as u32, (root >> 32) as u32)
}

/// Returns whether a tree of so many levels has a place for the index.
fn reaches(levels: u32, index: u64) -> bool {
    debug_assert!(levels as usize <= MAX_LEVELS);
    levels != 0 && index.checked_shr(levels * NODE_BITS).unwrap_or(0) == 0
}

#[cfg(all(test, not(loom)))]
mod tests;
