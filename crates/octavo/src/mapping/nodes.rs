//! The nodes of a mapping: 64 words each, with a bitmap for each tag.
//!
//! Nodes lie in one reservation and are numbered from 1. A node that was given back is used for other pages
//! of the same mapping. So a late reader still reads words, although they may belong to other pages by then.

use crate::budget::Budget;
use crate::mapping::Tag;
use crate::sizes::GROW_MAPPING_NODES as GROW_NODES;
use crate::sync::{Arc, AtomicU32, AtomicU64, Mutex, Ordering, WordArray};

pub(super) use crate::sizes::{MAPPING_LEVELS as MAX_LEVELS, MAPPING_NODE_BITS as NODE_BITS};

/// The number of words of a node.
pub(super) const NODE_WORDS: usize = 1 << NODE_BITS;

/// A node. While it is free, and until it gets its first word, all its words are zero.
#[derive(Debug)]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros))]
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(64))]
pub(super) struct Node {
    words: [AtomicU32; NODE_WORDS],
    /// For each tag, the bitmap of the words that have it.
    tags: [AtomicU64; Tag::ALL.len()],
    /// The number of words that are not 0.
    used: AtomicU32,
    next_free: AtomicU32,
}

impl Node {
    #[inline]
    pub(super) fn word(&self, offset: usize) -> &AtomicU32 {
        &self.words[offset]
    }

    // Relaxed below: threads read and write these words under the lock only.

    pub(super) fn tagged(&self, tag: Tag) -> u64 {
        self.tags[tag as usize].load(Ordering::Relaxed)
    }

    pub(super) fn set_tagged(&self, tag: Tag, bits: u64) {
        self.tags[tag as usize].store(bits, Ordering::Relaxed);
    }

    pub(super) fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn set_used(&self, words: u32) {
        self.used.store(words, Ordering::Relaxed);
    }
}

/// Returns the place of an index's word in a node of this level.
#[inline]
pub(super) fn offset(index: u64, level: u32) -> usize {
    (index >> (level * NODE_BITS)) as usize & (NODE_WORDS - 1)
}

/// Returns the most nodes that `pages` pages below `end` can need. Each page may need its own leaf, and each
/// leaf its own nodes above.
pub(super) fn most_nodes(pages: usize, end: u64) -> usize {
    let (mut nodes, mut of_level) = (0, end.max(1));
    loop {
        of_level = of_level.div_ceil(NODE_WORDS as u64);
        nodes += (of_level as usize).min(pages.max(1));
        if of_level == 1 {
            return nodes;
        }
    }
}

/// All nodes of a mapping.
#[derive(Debug)]
pub(super) struct Nodes {
    nodes: WordArray<Node>,
    budget: Arc<Budget>,
}

/// The free nodes. The mapping's lock guards them.
#[derive(Debug, Default)]
pub(super) struct Stock {
    first_free: u32,
    /// The number of nodes that were ever used.
    reached: usize,
    charged: usize,
    in_use: usize,
}

impl Stock {
    pub(super) fn in_use(&self) -> usize {
        self.in_use
    }
}

impl Nodes {
    pub(super) fn new(most: usize, budget: Arc<Budget>) -> std::io::Result<Self> {
        assert!(most < 1 << 31, "nodes are numbered in 31 bits");
        Ok(Self { nodes: WordArray::new(most)?, budget })
    }

    /// Returns a node by its number, or `None` if there is none.
    #[inline]
    pub(super) fn get(&self, node: u32) -> Option<&Node> {
        self.nodes.get((node as usize).wrapping_sub(1))
    }

    /// Returns a node by its number. The caller holds the lock.
    #[inline]
    pub(super) fn at(&self, node: u32) -> &Node {
        &self.nodes[node as usize - 1]
    }

    /// Takes a node without words.
    pub(super) fn take(&self, stock: &mut Stock) -> u32 {
        stock.in_use += 1;
        if stock.first_free != 0 {
            let node = stock.first_free;
            stock.first_free = self.at(node).next_free.load(Ordering::Relaxed);
            return node;
        }
        if stock.reached == stock.charged {
            self.budget.charge_over((GROW_NODES * size_of::<Node>()) as u64);
            stock.charged += GROW_NODES;
        }
        stock.reached += 1;
        stock.reached as u32
    }

    /// Takes back a node without words and tags.
    pub(super) fn give_back(&self, stock: &mut Stock, node: u32) {
        let words = self.at(node);
        debug_assert!(words.used() == 0 && Tag::ALL.iter().all(|tag| words.tagged(*tag) == 0));
        words.next_free.store(stock.first_free, Ordering::Relaxed);
        stock.first_free = node;
        stock.in_use -= 1;
    }

    /// Gives the charge back when the mapping and its memory are dropped.
    pub(super) fn uncharge(&self, stock: &mut Stock) {
        self.budget.uncharge((stock.charged * size_of::<Node>()) as u64);
        stock.charged = 0;
    }
}

impl Drop for super::Mapping {
    fn drop(&mut self) {
        let stock: &Mutex<Stock> = &self.stock;
        self.nodes.uncharge(&mut stock.lock());
    }
}
