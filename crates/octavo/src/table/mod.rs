//! Page tables: for each space, a radix tree of 64-bit versioned entries, walked without a lock.
//!
//! A root word for each space links to a node. An entry of a node covers 4 KiB (level 0), 2 MiB (level 1), 1
//! GiB (level 2) or 512 GiB (level 3). The root's level grows with the highest page used, so a space below 1
//! GiB is two links deep. A leaf is at level 0 or, if it is huge, at level 1.
//!
//! # The protocol that needs no epoch
//!
//! Nodes are recycled while late walkers may still look at them. Three rules make that sound:
//!
//! 1. *Read down, then re-read.* A walk keeps every word that it read. A reader re-reads all of them after it
//!    has read the data, and a pinner after it has taken its pin. A thread that wants to change the entry
//!    re-reads them before its compare-and-swap.
//! 2. *Unmap bumps versions.* An unmap holds the space's layout lock and first removes the region. Then it
//!    moves every entry of the range, Empty ones included, to a later version, and confirms the root by a
//!    read-modify-write. A fault reads its entry *before* it looks up the region. So either the fault sees
//!    that the region is gone, or its compare-and-swap fails.
//! 3. *A node is bumped twice.* To recycle a node, unmap clears it, unlinks it, and bumps every entry once
//!    more. If a late walker's compare-and-swap comes before the second bump, the bump finds and clears its
//!    work. If it comes after, it succeeds only if the walker read a word from the second bump. That read
//!    acquired the unlinking, so the walker's re-read of the links (rule 1) sees it.
//!
//! A walk costs one load for each link. The lines stay in every reader's cache as long as no thread changes
//! the links.

pub(crate) mod entry;
pub(crate) mod node;
pub(crate) mod translation;

pub use entry::{Access, Protection};

use crate::budget::Budget;
use crate::counters::Counters;
use crate::sync::{Arc, Cpus, Mutex, WordArray};
use crate::units::PageNumber;
use entry::{Entry, EntryWord, NodeId, State};
use node::{NODE_BITS, NODE_ENTRIES, NodePool};

/// The number of levels of the tallest table.
pub(crate) const LEVELS: usize = 4;
/// The level of a walk that ends at the root word itself.
pub(crate) const ROOT: usize = LEVELS;
/// The pages that the tallest table addresses: 256 TiB.
pub(crate) const MAX_PAGES: u64 = 1 << (NODE_BITS as usize * LEVELS);

/// The number of a space within its manager.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct SpaceId(pub(crate) u32);

/// The page tables of all spaces of a manager.
#[derive(Debug)]
pub(crate) struct Table {
    /// The root words, by space. A forked child reads them as zero, which is an empty root. So every access
    /// in the child is a fault, and every fault an error.
    roots: WordArray<EntryWord>,
    pub(crate) nodes: NodePool,
    ids: Mutex<SpaceIds>,
}

#[derive(Debug, Default)]
struct SpaceIds {
    free: Vec<u32>,
    next: u32,
}

/// The words of one walk, root first, each with its value as read. The walk ends at the last word: a leaf, a
/// Busy or Empty entry, or a root too low for the page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Walk<'t> {
    words: [Seen<'t>; LEVELS + 1],
    len: usize,
    /// The level of the last entry, or [`ROOT`] for the root word.
    pub(crate) level: usize,
}

impl<'t> Walk<'t> {
    #[inline(always)]
    pub(crate) fn word(&self) -> &'t EntryWord {
        self.words[self.len - 1].0
    }

    #[inline(always)]
    pub(crate) fn entry(&self) -> Entry {
        self.words[self.len - 1].1
    }

    /// Returns whether every link from the root to the last entry is as it was read. The last entry itself is
    /// not checked.
    #[inline(always)]
    pub(crate) fn links_hold(&self) -> bool {
        self.words[..self.len - 1].iter().all(|(word, seen)| word.still_is(*seen))
    }
}

/// Walks for one page after another, up to `rest.end`. If a walk ends above level 0, it serves all pages that
/// its entry covers.
#[derive(Debug)]
pub(crate) struct Walks<'t> {
    table: &'t Table,
    space: SpaceId,
    rest: PageNumberRange,
}

impl Walks<'_> {
    /// Returns the page of the next walk.
    pub(crate) fn page(&self) -> PageNumber {
        self.rest.start
    }

    /// Continues from `page`, which may be the page of the previous walk again.
    pub(crate) fn go_on_from(&mut self, page: PageNumber) {
        self.rest.start = page;
    }
}

impl<'t> Iterator for Walks<'t> {
    type Item = Walk<'t>;

    fn next(&mut self) -> Option<Walk<'t>> {
        let page = self.rest.start;
        (page < self.rest.end).then(|| {
            let walk = self.table.walk(self.space, page);
            let pages = span(walk.level);
            self.rest.start = PageNumber((page.0 / pages + 1) * pages);
            walk
        })
    }
}

/// A word, and its value as read.
type Seen<'t> = (&'t EntryWord, Entry);

/// A leaf as a hit path found it, with the links that lead there.
#[derive(Debug)]
pub(crate) struct Leaf<'t> {
    pub(crate) word: &'t EntryWord,
    pub(crate) entry: Entry,
    /// 0, or 1 for a huge leaf.
    pub(crate) level: usize,
    links: [Option<Seen<'t>>; LEVELS],
}

/// An operation of a hit path at its leaf. This is a trait and not a closure, so that `run` can be inlined
/// into the walk of each height.
pub(crate) trait LeafOperation {
    type Output;

    /// Runs the operation. Returns `None` if the leaf does not allow it, or has changed. Implementations are
    /// `#[inline(always)]`.
    fn run(self, leaf: &Leaf<'_>) -> Option<Self::Output>;
}

impl Leaf<'_> {
    /// Returns whether the leaf and every link to it are as they were read, from the leaf up. The caller
    /// first makes the accesses that it wants validated, and then an acquire fence or an acquiring
    /// read-modify-write.
    #[inline(always)]
    pub(crate) fn still_holds(&self) -> bool {
        let [root, third, second, first] = self.links;
        let holds = |seen: Option<Seen<'_>>| seen.is_none_or(|(word, seen)| word.still_is(seen));
        self.word.still_is(self.entry) && holds(first) && holds(second) && holds(third) && holds(root)
    }
}

/// The outcome of adding a node to a table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Grown {
    /// The caller walks again: the walk goes further down now, or another thread changed something.
    Retry,
    /// The budget has no room for a node.
    NoNode,
}

impl Table {
    pub(crate) fn new(
        max_nodes: usize,
        max_spaces: usize,
        cpus: Cpus,
        budget: Arc<Budget>,
        counters: Arc<Counters>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            roots: WordArray::wiped_on_fork(max_spaces)?,
            nodes: NodePool::new(max_nodes, cpus, budget, counters)?,
            ids: Mutex::new(SpaceIds::default()),
        })
    }

    /// Returns the most spaces that can exist at once.
    pub(crate) fn most_spaces(&self) -> usize {
        self.roots.len()
    }

    /// Returns a number for a new space, whose root is empty. Returns `None` if no number is left.
    pub(crate) fn new_space(&self) -> Option<SpaceId> {
        let mut ids = self.ids.lock();
        let id = match ids.free.pop() {
            Some(id) => id,
            None if (ids.next as usize) < self.roots.len() => {
                ids.next += 1;
                ids.next - 1
            }
            None => return None,
        };
        Some(SpaceId(id))
    }

    /// Takes back the number of a space whose root is empty.
    pub(crate) fn forget_space(&self, space: SpaceId) {
        debug_assert!(self.root(space).load().is_empty());
        self.ids.lock().free.push(space.0);
    }

    #[inline(always)]
    pub(crate) fn root(&self, space: SpaceId) -> &EntryWord {
        &self.roots[space.0 as usize]
    }

    /// Walks to the leaf of `page` and runs `operation` there, for hit paths. The function is compiled once
    /// for each height, with every word in a register. Returns `None` if there is no entry yet, or if the
    /// operation does.
    #[inline(always)]
    pub(crate) fn at_leaf<O: LeafOperation>(
        &self,
        space: SpaceId,
        page: PageNumber,
        operation: O,
    ) -> Option<O::Output> {
        let root = self.root(space);
        let seen = root.load();
        seen.node()?;
        // Compares, not a jump table: a space below 1 GiB takes the first.
        let level = seen.root_level();
        if level == 1 {
            self.at_leaf_under::<1, O>((root, seen), page, operation)
        } else if level == 2 {
            self.at_leaf_under::<2, O>((root, seen), page, operation)
        } else {
            self.at_leaf_under::<3, O>((root, seen), page, operation)
        }
    }

    /// Does what `walk_levels` does, unrolled by hand. With the words in an array, the compiler keeps them in
    /// memory.
    #[inline(always)]
    fn at_leaf_under<const ROOT_LEVEL: usize, O: LeafOperation>(
        &self,
        root: Seen<'_>,
        page: PageNumber,
        operation: O,
    ) -> Option<O::Output> {
        if page.0 >> (NODE_BITS as usize * (ROOT_LEVEL + 1)) != 0 {
            return None;
        }
        let (mut third, mut second) = (None, None);
        let mut link = root.1;
        if ROOT_LEVEL >= 3 {
            let seen = self.follow(link, page, 3)?;
            (third, link) = (Some(seen), seen.1);
        }
        if ROOT_LEVEL >= 2 {
            let seen = self.follow(link, page, 2)?;
            (second, link) = (Some(seen), seen.1);
        }
        let first = self.follow(link, page, 1)?;
        if first.1.node().is_none() {
            let links = [Some(root), third, second, None];
            return operation.run(&Leaf { word: first.0, entry: first.1, level: 1, links });
        }
        let leaf = self.follow(first.1, page, 0)?;
        let links = [Some(root), third, second, Some(first)];
        operation.run(&Leaf { word: leaf.0, entry: leaf.1, level: 0, links })
    }

    /// Reads the entry for `page` in the node that `link` leads to.
    #[inline(always)]
    fn follow(&self, link: Entry, page: PageNumber, level: usize) -> Option<Seen<'_>> {
        let word = self.nodes.entry(link.node()?, slot_of(page, level));
        Some((word, word.load()))
    }

    /// Walks down as far as the links lead.
    pub(crate) fn walk(&self, space: SpaceId, page: PageNumber) -> Walk<'_> {
        let root = self.root(space);
        let seen = root.load();
        match (seen.node(), seen.root_level()) {
            (Some(_), 1) => self.walk_levels::<1>(root, seen, page),
            (Some(_), 2) => self.walk_levels::<2>(root, seen, page),
            (Some(_), 3) => self.walk_levels::<3>(root, seen, page),
            _ => Walk { words: [(root, seen); LEVELS + 1], len: 1, level: ROOT },
        }
    }

    #[inline(always)]
    fn walk_levels<'t, const ROOT_LEVEL: usize>(
        &'t self,
        root: &'t EntryWord,
        seen: Entry,
        page: PageNumber,
    ) -> Walk<'t> {
        let mut walk = Walk { words: [(root, seen); LEVELS + 1], len: 1, level: ROOT };
        if page.0 >> (NODE_BITS as usize * (ROOT_LEVEL + 1)) != 0 {
            return walk;
        }
        let mut link = seen;
        for level in (0..=ROOT_LEVEL).rev() {
            let Some(node) = link.node() else { break };
            let word = self.nodes.entry(node, slot_of(page, level));
            link = word.load();
            walk.words[walk.len] = (word, link);
            walk.len += 1;
            walk.level = level;
        }
        walk
    }

    /// Walks to every entry that `space` has in the range.
    pub(crate) fn walks(&self, space: SpaceId, range: PageNumberRange) -> Walks<'_> {
        Walks { table: self, space, rest: range }
    }

    /// Returns the entries of `node` that cover pages of the range, each with its first page. The node is at
    /// `level`, and its pages begin at `first`.
    pub(crate) fn entries(
        &self,
        node: NodeId,
        level: usize,
        first: PageNumber,
        range: PageNumberRange,
    ) -> impl Iterator<Item = (PageNumber, &EntryWord)> {
        let pages = span(level);
        let from = range.start.0.saturating_sub(first.0) / pages;
        let to = range.end.0.saturating_sub(first.0).div_ceil(pages);
        let slots = (from as usize).min(NODE_ENTRIES)..(to as usize).min(NODE_ENTRIES);
        let words = &self.nodes.entries(node)[slots];
        words.iter().zip(from..).map(move |(word, slot)| (first.plus(slot * pages), word))
    }

    /// Adds a node at the end of `walk`, which is Empty or a root too low for `page`. After the walk, the
    /// caller has checked `walk.links_hold()`, and that a region holds `page`.
    pub(crate) fn grow(&self, walk: &Walk<'_>, page: PageNumber) -> Grown {
        self.grow_with(walk, page, self.nodes.take())
    }

    /// Does what [`Table::grow`] does, even if the budget has no room: reclaim makes up for it. For a fork or
    /// a move that the translation's side has already done: its pages cannot go out meanwhile.
    pub(crate) fn grow_over_budget(&self, walk: &Walk<'_>, page: PageNumber) -> Grown {
        self.grow_with(walk, page, self.nodes.take_for_reclaim())
    }

    fn grow_with(&self, walk: &Walk<'_>, page: PageNumber, node: Option<NodeId>) -> Grown {
        let Some(node) = node else { return Grown::NoNode };
        let (word, seen) = (walk.word(), walk.entry());
        let linked = if walk.level == ROOT {
            match seen.node() {
                // The old root becomes the first child of a taller one.
                Some(old) => {
                    let first = self.nodes.entry(node, 0);
                    first.set_unshared(first.load().to_node(old));
                    let linked = word.change(seen, seen.to_root(node, seen.root_level() + 1));
                    if linked.is_err() {
                        first.set_unshared(first.load().to_empty());
                    }
                    linked
                }
                None => word.change(seen, seen.to_root(node, root_level_for(page))),
            }
        } else {
            word.change(seen, seen.to_node(node))
        };
        if linked.is_err() {
            self.nodes.give_back(node);
        }
        Grown::Retry
    }

    /// Calls `leaf` for each Present, Swapped, Zero or Busy entry of `space`, with its page and level.
    pub(crate) fn for_each_leaf(&self, space: SpaceId, leaf: &mut impl FnMut(PageNumber, usize, Entry)) {
        let root = self.root(space).load();
        if let State::Node(node) = root.state() {
            self.visit(node, root.root_level(), PageNumber(0), leaf);
        }
    }

    fn visit(
        &self,
        node: NodeId,
        level: usize,
        first: PageNumber,
        leaf: &mut impl FnMut(PageNumber, usize, Entry),
    ) {
        for (slot, word) in self.nodes.entries(node).iter().enumerate() {
            let page = first.plus((slot as u64) << (NODE_BITS as usize * level));
            let entry = word.load();
            match entry.state() {
                State::Empty => {}
                // Level 0 has no links. This node was recycled at another level meanwhile. The visitor only
                // counts.
                State::Node(_) if level == 0 => {}
                State::Node(child) => self.visit(child, level - 1, page, leaf),
                _ => leaf(page, level, entry),
            }
        }
    }
}

/// Returns the index, within its node, of the entry for `page` at `level`.
#[inline(always)]
pub(crate) fn slot_of(page: PageNumber, level: usize) -> usize {
    (page.0 >> (NODE_BITS as usize * level)) as usize & (NODE_ENTRIES - 1)
}

/// The pages from `start` up to `end`, without `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageNumberRange {
    pub(crate) start: PageNumber,
    pub(crate) end: PageNumber,
}

impl PageNumberRange {
    /// Returns all pages from `start` on.
    pub(crate) const fn from(start: PageNumber) -> Self {
        Self { start, end: PageNumber(MAX_PAGES) }
    }

    /// Returns whether the range holds all pages of the entry at `level` that begins at `page`.
    pub(crate) fn covers(self, page: PageNumber, level: usize) -> bool {
        self.start <= page && page.plus(span(level)) <= self.end
    }
}

/// Returns the number of pages that one entry at `level` covers.
pub(crate) const fn span(level: usize) -> u64 {
    1 << (NODE_BITS as usize * level)
}

/// Returns the level of the lowest root that reaches `page`. It is never 0, so that there is always a level
/// for huge leaves.
fn root_level_for(page: PageNumber) -> usize {
    (1..LEVELS)
        .find(|level| page.0 >> (NODE_BITS as usize * (level + 1)) == 0)
        .expect("regions end below MAX_PAGES")
}
