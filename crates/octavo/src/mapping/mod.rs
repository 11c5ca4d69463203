//! Mappings: trees of pages by index, each with one lock, with or without tags.
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
//! A mapping is made with or without tags: files have to find their dirty pages, and swap does not. A page's
//! tag is a bit in its leaf and in every node above. So a search for tagged pages skips all nodes without
//! one.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod` | the mapping; look-ups without the lock |
//! | `changes` | changes under the lock |
//! | `nodes` | the nodes, and how they are taken and given back |
//! | `word` | the word of an index: a frame or a shadow |
//!
//! Invariants: a node in use has at least one word. The path to an existing word is never removed or moved.
//! Node memory is never used for anything else.
//!
//! Locking: one lock covers everything except [`Mapping::peek`]. A thread takes no other lock under it.
//!
//! Cost: 320 bytes for each 64 neighbouring pages. A mapping charges them to the budget in steps of 20 KiB,
//! if necessary beyond the limit, because reclaim cannot work without them. After it is made, a mapping takes
//! nothing from the program's allocator.

mod changes;
mod nodes;
mod word;

use crate::budget::Budget;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering};

pub(crate) use changes::{Changes, Path};
use nodes::{MAX_LEVELS, NODE_BITS, Nodes, Stock};
pub(crate) use word::PageWord;

/// Marks that a mapping may keep for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    /// The page may have to be written.
    Dirty,
    /// The pass under way has to write the page. Pages that become dirty after the pass began do not have
    /// this tag.
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
    /// The number of levels in the upper half, the topmost node in the lower half. 0 while the mapping is
    /// empty.
    root: AtomicU64,
    tags: Tags,
    stock: Mutex<Stock>,
}

impl Mapping {
    /// Makes a mapping with room for `pages` pages at any indices below `end`.
    ///
    /// Returns the kernel's error if the address space is exhausted.
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
    /// The answer is exact for an index that has a word *and* that nobody changes meanwhile, because the path
    /// to that word stays. For an index without a word, the answer may be the word of another index, or not a
    /// word at all: a node on the path may now serve other pages. So a caller that finds a frame here checks
    /// with the frame.
    pub(crate) fn peek(&self, index: u64) -> PageWord {
        // Acquire, at each level: pairs with the stores that made each node part of the tree.
        let (mut node, levels) = unpack(self.root.load(Ordering::Acquire));
        if !reaches(levels, index) {
            return PageWord::NOTHING;
        }
        for level in (0..levels).rev() {
            // `None` means that the number names no node. The node above has become a leaf elsewhere in the
            // tree.
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

/// Returns whether a tree with this many levels has a place for the index.
fn reaches(levels: u32, index: u64) -> bool {
    debug_assert!(levels as usize <= MAX_LEVELS);
    levels != 0 && index.checked_shr(levels * NODE_BITS).unwrap_or(0) == 0
}

#[cfg(all(test, not(loom)))]
mod tests;
