//! B+-trees on pages of a file: nodes are plain data of 4 KiB, and threads share them by guards.
//!
//! ```text
//!   page 0       pages 1..=trees      further pages, as trees grow
//!  ┌──────┐     ┌──────┬──────┐      ┌──────┬──────┬──────┐
//!  │ meta │     │ root │ root │      │ node │ node │ node │ …      a root stays where it is
//!  └──────┘     └──────┴──────┘      └──────┴──────┴──────┘
//! ```
//!
//! **A lookup latches nothing.** It reads a node by an optimistic guard, then asks whether what it read is
//! valid, and only then follows a link. A change means: once more from the root. This is *optimistic lock
//! coupling* (Leis and others, 2016).
//!
//! **A change latches one leaf.** It walks down as a lookup does, takes an exclusive guard of the leaf, and
//! asks the leaf's parent once more. If the leaf is full, the change walks down again with exclusive guards,
//! of a node and its child at a time, and splits each full node on the way. So a parent always has room.
//!
//! **Order of latches**: a node, its child, a new node's page 0, the new node. A program that latches leaves
//! of several trees does so in one order of trees.
//!
//! Removing is lazy: a leaf keeps its place when it becomes empty, and no two leaves are joined.
//!
//! A crash between two writes of the device leaves a file that is half changed, unless the file has a log.
//! A [`Journal`] sees all pages of a split before other threads see them, and [`Node::lsn`] is for its use.

use bytemuck::{Pod, Zeroable};
use octavo::file::{File, FileOptions, Sharing};
use octavo::{AccessPattern, ExclusiveGuard, Manager, OptimisticGuard, RegionOptions, SharedGuard, Space};

const PAGE: u64 = octavo::PAGE_BYTES as u64;
/// Addresses for the file. They cost nothing until it is as long.
const ADDRESSES: u64 = 1 << 40;
/// The file grows by so many pages.
const GROWTH: u64 = 256;
/// How often a walk without latches begins again, before it latches.
const MOST_WALKS: u32 = 16;
const HEADER_BYTES: usize = 24;
const WORDS: usize = (PAGE as usize - HEADER_BYTES) / 8;
/// What page 0 has: a mark, the number of trees, and the first page that is free.
const MARK: u64 = u64::from_le_bytes(*b"btreepg1");

/// A page: entries of a key and `N` words each, sorted by key. In an inner node, the word is the page of the
/// child that has the keys from this one on.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct Node {
    /// The end of the log record of the last change, if there is a log.
    pub lsn: u64,
    /// 0 for a leaf.
    level: u32,
    count: u32,
    /// The right neighbour, or 0.
    next: u64,
    words: [u64; WORDS],
}

/// Returns how many of `count` keys, in order, are at most `key`.
fn upper<E>(count: usize, key: u64, at: impl Fn(usize) -> Result<u64, E>) -> Result<usize, E> {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = (low + high) / 2;
        if at(middle)? <= key { low = middle + 1 } else { high = middle }
    }
    Ok(low)
}

impl Node {
    /// Entries that fit.
    const fn room<const N: usize>() -> usize {
        WORDS / (1 + N)
    }

    fn entry<const N: usize>(&self, index: usize) -> (u64, [u64; N]) {
        let at = index * (1 + N);
        (self.words[at], self.words[at + 1..][..N].try_into().expect("N words"))
    }

    fn upper<const N: usize>(&self, key: u64) -> usize {
        let Ok(upper) = upper(self.count as usize, key, |index| {
            Ok::<_, std::convert::Infallible>(self.words[index * (1 + N)])
        });
        upper
    }

    /// The entries of a leaf.
    pub fn entries<const N: usize>(&self) -> impl Iterator<Item = (u64, [u64; N])> + '_ {
        (0..self.count as usize).map(|index| self.entry(index))
    }

    /// The place of a key that is here.
    fn place<const N: usize>(&self, key: u64) -> Option<usize> {
        let place = self.upper::<N>(key).checked_sub(1)?;
        (self.words[place * (1 + N)] == key).then_some(place)
    }

    /// Returns the value of a key, to change it.
    pub fn value_mut<const N: usize>(&mut self, key: u64) -> Option<&mut [u64; N]> {
        let at = self.place::<N>(key)? * (1 + N) + 1;
        self.words[at..][..N].as_mut().try_into().ok()
    }

    /// Adds an entry, or replaces its value. Returns `false` if there is no room.
    pub fn insert<const N: usize>(&mut self, key: u64, value: &[u64; N]) -> bool {
        if let Some(here) = self.value_mut::<N>(key) {
            *here = *value;
            return true;
        }
        let (at, end) = (self.upper::<N>(key) * (1 + N), self.count as usize * (1 + N));
        if self.is_full::<N>() {
            return false;
        }
        self.words.copy_within(at..end, at + 1 + N);
        self.words[at] = key;
        self.words[at + 1..][..N].copy_from_slice(value);
        self.count += 1;
        true
    }

    /// Removes an entry. Returns whether there was one.
    fn remove<const N: usize>(&mut self, key: u64) -> bool {
        let Some(place) = self.place::<N>(key) else { return false };
        let end = self.count as usize * (1 + N);
        self.words.copy_within((place + 1) * (1 + N)..end, place * (1 + N));
        self.count -= 1;
        true
    }

    fn is_full<const N: usize>(&self) -> bool {
        self.count as usize == Self::room::<N>()
    }

    /// The child that has the keys around this one.
    fn child(&self, key: u64) -> u64 {
        let [child] = self.entry::<1>(self.upper::<1>(key).saturating_sub(1)).1;
        child
    }

    /// Moves the upper half to a new right neighbour, or nearly nothing if `key` comes behind all others, so
    /// that keys in order fill their leaves. Returns the first key of the neighbour.
    fn split<const N: usize>(&mut self, right: &mut Self, right_page: u64, key: u64) -> u64 {
        let (count, stride) = (self.count as usize, 1 + N);
        let is_append = self.upper::<N>(key) == count;
        // An inner node needs a child.
        let kept = if is_append { count - usize::from(self.level > 0) } else { count / 2 };
        *right = Self { level: self.level, next: self.next, ..Self::zeroed() };
        right.count = (count - kept) as u32;
        right.words[..(count - kept) * stride].copy_from_slice(&self.words[kept * stride..count * stride]);
        (self.count, self.next) = (kept as u32, right_page);
        if kept < count { right.words[0] } else { key }
    }
}

/// What sees all pages of a change of structure, by their numbers, while the tree still has them exclusively.
/// It may set their [`Node::lsn`].
pub type Journal = Box<dyn Fn(&mut [(u64, &mut Node)]) + Send + Sync>;

/// A file of pages that several trees share.
pub struct PageFile {
    pub file: File,
    space: Space,
    at: u64,
    /// What sees the changes of structure.
    pub journal: Option<Journal>,
}

impl PageFile {
    /// Opens a file, which is mapped as guarded pages.
    pub fn open(manager: &Manager, path: &std::path::Path) -> octavo::Result<Self> {
        let file = manager.open(path, FileOptions::new().create(true))?;
        let space = manager.space_named("btree")?;
        let options = RegionOptions::new().guarded(true).pattern(AccessPattern::Random);
        let at = space.map_file(&file, 0, ADDRESSES, Sharing::Shared, options)?;
        Ok(Self { file, space, at, journal: None })
    }

    /// Makes the file have empty trees, unless it has trees already.
    pub fn make_trees(&self, trees: u64) -> octavo::Result<()> {
        self.grow_to(trees)?;
        let mut meta = self.exclusive(0)?;
        if meta[0].words[0] != MARK {
            meta[0].words[..3].copy_from_slice(&[MARK, trees, 1 + trees]);
        }
        Ok(())
    }

    /// Makes the file long enough to have a page.
    pub fn grow_to(&self, page: u64) -> octavo::Result<()> {
        if (page + 1) * PAGE > self.file.len_bytes()? {
            self.file.set_len_bytes((page + 1).next_multiple_of(GROWTH) * PAGE)?;
        }
        Ok(())
    }

    fn optimistic(&self, page: u64) -> octavo::Result<OptimisticGuard<'_>> {
        self.space.optimistic(self.at + page * PAGE)
    }

    fn shared(&self, page: u64) -> octavo::Result<SharedGuard<'_, Node>> {
        self.space.shared(self.at + page * PAGE, 1)
    }

    /// Lends a page for changes.
    pub fn exclusive(&self, page: u64) -> octavo::Result<ExclusiveGuard<'_, Node>> {
        self.space.exclusive(self.at + page * PAGE, 1)
    }

    fn note(&self, pages: &mut [(u64, &mut Node)]) {
        self.journal.iter().for_each(|journal| journal(pages));
    }
}

/// A leaf that a walk has found and does not hold.
struct SeenLeaf<'p> {
    page: u64,
    node: OptimisticGuard<'p>,
    count: usize,
    parent: Option<OptimisticGuard<'p>>,
}

/// A leaf, for changes, with its page.
pub type Leaf<'p> = (u64, ExclusiveGuard<'p, Node>);

/// One tree, of keys with `N` words each.
pub struct Tree<'p, const N: usize> {
    pages: &'p PageFile,
    root: u64,
}

impl<'p, const N: usize> Tree<'p, N> {
    /// One of the trees of a file, from 0.
    pub fn new(pages: &'p PageFile, number: u64) -> Self {
        Self { pages, root: 1 + number }
    }

    /// Returns the value of a key.
    pub fn get(&self, key: u64) -> octavo::Result<Option<[u64; N]>> {
        for _ in 0..MOST_WALKS {
            let Some(SeenLeaf { node: leaf, count, .. }) = self.walk(key)? else { continue };
            let mut value = [0; N];
            let entry = |index| leaf.load::<u64>(HEADER_BYTES + index * (1 + N) * 8);
            let found = match upper(count, key, entry)?.checked_sub(1) {
                Some(place) if entry(place)? == key => {
                    let offset = HEADER_BYTES + (place * (1 + N) + 1) * 8;
                    leaf.copy_out(offset, bytemuck::bytes_of_mut(&mut value))?;
                    Some(value)
                }
                _ => None,
            };
            // Read, then validate.
            if leaf.is_valid() {
                return Ok(found);
            }
        }
        let leaf = self.shared_leaf(key)?;
        Ok(leaf[0].place::<N>(key).map(|place| leaf[0].entry(place).1))
    }

    /// Sets the value of a key.
    pub fn insert(&self, key: u64, value: &[u64; N]) -> octavo::Result<()> {
        let (_, mut leaf) = self.leaf_with_room(key)?;
        assert!(leaf[0].insert(key, value), "a leaf that has room");
        Ok(())
    }

    /// Removes a key. Returns whether it was there.
    pub fn remove(&self, key: u64) -> octavo::Result<bool> {
        Ok(self.leaf(key)?.1[0].remove::<N>(key))
    }

    /// Calls `each` with the entries from a key on, in order, until it returns `false`. It sees each leaf as
    /// it was at one moment, and no latch is held meanwhile.
    pub fn scan(&self, from: u64, mut each: impl FnMut(u64, [u64; N]) -> bool) -> octavo::Result<()> {
        let mut leaf: Node = self.shared_leaf(from)?[0];
        loop {
            if !leaf.entries().filter(|(key, _)| *key >= from).all(|(key, value)| each(key, value)) {
                return Ok(());
            }
            match leaf.next {
                0 => return Ok(()),
                // A leaf stays, and only gives keys to new right neighbours.
                next => leaf = self.pages.shared(next)?[0],
            }
        }
    }

    /// Lends the leaf of a key.
    pub fn leaf(&self, key: u64) -> octavo::Result<Leaf<'p>> {
        for _ in 0..MOST_WALKS {
            let Some(SeenLeaf { page, parent, .. }) = self.walk(key)? else { continue };
            let leaf = self.pages.exclusive(page)?;
            // A split of the leaf would have changed its parent. A root has none, and becomes an inner node.
            if leaf[0].level == 0 && parent.is_none_or(|parent| parent.is_valid()) {
                return Ok((page, leaf));
            }
        }
        self.split_down(key)
    }

    /// Lends the leaf of a key, with room for one more.
    pub fn leaf_with_room(&self, key: u64) -> octavo::Result<Leaf<'p>> {
        let (page, leaf) = self.leaf(key)?;
        if !leaf[0].is_full::<N>() || leaf[0].place::<N>(key).is_some() {
            return Ok((page, leaf));
        }
        drop(leaf);
        self.split_down(key)
    }

    /// Walks to the leaf of a key without latches. Returns `None` if something has changed meanwhile.
    fn walk(&self, key: u64) -> octavo::Result<Option<SeenLeaf<'p>>> {
        let (mut parent, mut page) = (None::<OptimisticGuard<'p>>, self.root);
        loop {
            let node = self.pages.optimistic(page)?;
            // The page still is what the parent said.
            if parent.as_ref().is_some_and(|parent| !parent.is_valid()) {
                return Ok(None);
            }
            let [level, count]: [u32; 2] = node.load(8)?;
            // A count that is torn must not lead out of the page.
            if level == 0 {
                let count = (count as usize).min(Node::room::<N>());
                return Ok(Some(SeenLeaf { page, node, count, parent }));
            }
            let count = (count as usize).min(Node::room::<1>());
            let entry = |index| node.load::<u64>(HEADER_BYTES + index * 16);
            let index = upper(count, key, entry)?.saturating_sub(1);
            let child = node.load(HEADER_BYTES + index * 16 + 8)?;
            if !node.is_valid() {
                return Ok(None);
            }
            (parent, page) = (Some(node), child);
        }
    }

    /// Walks to the leaf of a key by shared guards, of a node and its child at a time.
    fn shared_leaf(&self, key: u64) -> octavo::Result<SharedGuard<'p, Node>> {
        let mut node = self.pages.shared(self.root)?;
        while node[0].level > 0 {
            node = self.pages.shared(node[0].child(key))?;
        }
        Ok(node)
    }

    /// Walks to the leaf of a key by exclusive guards, and splits every full node on the way.
    fn split_down(&self, key: u64) -> octavo::Result<Leaf<'p>> {
        let (mut page, mut node) = (self.root, self.pages.exclusive(self.root)?);
        if self.is_full(&node[0]) {
            self.raise(&mut node[0])?;
        }
        while node[0].level > 0 {
            let child_page = node[0].child(key);
            let mut child = self.pages.exclusive(child_page)?;
            let mut down = child_page;
            if self.is_full(&child[0]) {
                let (mut meta, new, mut right) = self.new_page()?;
                let first = match child[0].level {
                    0 => child[0].split::<N>(&mut right[0], new, key),
                    _ => child[0].split::<1>(&mut right[0], new, key),
                };
                assert!(node[0].insert(first, &[new]), "a parent has room");
                self.pages.note(&mut [
                    (0, &mut meta[0]),
                    (page, &mut node[0]),
                    (child_page, &mut child[0]),
                    (new, &mut right[0]),
                ]);
                if key >= first {
                    (child, down) = (right, new);
                }
            }
            (node, page) = (child, down);
        }
        Ok((page, node))
    }

    fn is_full(&self, node: &Node) -> bool {
        if node.level == 0 { node.is_full::<N>() } else { node.is_full::<1>() }
    }

    /// Gives the root's entries to a child of its own.
    fn raise(&self, root: &mut Node) -> octavo::Result<()> {
        let (mut meta, page, mut child) = self.new_page()?;
        child[0] = *root;
        *root = Node { level: root.level + 1, ..Node::zeroed() };
        root.insert(0, &[page]);
        self.pages.note(&mut [(0, &mut meta[0]), (self.root, root), (page, &mut child[0])]);
        Ok(())
    }

    /// Takes a page that no node has, and lends it, with page 0, which counts it.
    fn new_page(&self) -> octavo::Result<(ExclusiveGuard<'p, Node>, u64, ExclusiveGuard<'p, Node>)> {
        let mut meta = self.pages.exclusive(0)?;
        let page = meta[0].words[2];
        self.pages.grow_to(page)?;
        let new = self.pages.exclusive(page)?;
        meta[0].words[2] += 1;
        Ok((meta, page, new))
    }
}
