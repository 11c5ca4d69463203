//! Changes to a mapping under its lock.

use crate::mapping::nodes::{MAX_LEVELS, NODE_WORDS, Stock, offset};
use crate::mapping::{Mapping, NODE_BITS, PageWord, Tag, pack, reaches, unpack};
use crate::sync::{MutexGuard, Ordering};

/// The mapping, locked.
#[derive(Debug)]
pub(crate) struct Changes<'a> {
    mapping: &'a Mapping,
    stock: MutexGuard<'a, Stock>,
}

/// The nodes on the way to the word of an index, found once for all changes to it. A path is valid until the
/// lock is released, or until another index is set or removed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    index: u64,
    levels: u32,
    /// The node of each level; 0 is the leaf.
    nodes: [u32; MAX_LEVELS],
}

impl<'a> Changes<'a> {
    pub(super) fn new(mapping: &'a Mapping, stock: MutexGuard<'a, Stock>) -> Self {
        Self { mapping, stock }
    }

    /// Finds the path to an index that has a word.
    pub(crate) fn find(&self, index: u64) -> Option<Path> {
        let (mut node, levels) = self.root();
        if !reaches(levels, index) {
            return None;
        }
        let mut nodes = [0; MAX_LEVELS];
        for level in (0..levels).rev() {
            nodes[level as usize] = node;
            node = self.mapping.nodes.at(node).word(offset(index, level)).load(Ordering::Relaxed);
            if node == 0 {
                return None;
            }
        }
        Some(Path { index, levels, nodes })
    }

    /// Returns the word of an index.
    pub(crate) fn get(&self, index: u64) -> PageWord {
        self.find(index).map_or(PageWord::NOTHING, |path| self.word(&path))
    }

    pub(crate) fn word(&self, path: &Path) -> PageWord {
        let leaf = self.mapping.nodes.at(path.nodes[0]);
        PageWord::from_bits(leaf.word(offset(path.index, 0)).load(Ordering::Relaxed))
    }

    /// Sets the word of an index, and returns the previous word. Its tags stay.
    pub(crate) fn set(&mut self, index: u64, word: PageWord) -> PageWord {
        assert_ne!(word, PageWord::NOTHING, "an index is removed, not set to nothing");
        let (mut node, levels) = self.grow_to(index);
        let nodes = &self.mapping.nodes;
        for level in (1..levels).rev() {
            let parent = nodes.at(node);
            let link = parent.word(offset(index, level));
            node = link.load(Ordering::Relaxed);
            if node == 0 {
                node = nodes.take(&mut self.stock);
                parent.set_used(parent.used() + 1);
                // Release: a reader that finds the node in the tree finds it empty.
                link.store(node, Ordering::Release);
            }
        }
        let leaf = nodes.at(node);
        let cell = leaf.word(offset(index, 0));
        let before = PageWord::from_bits(cell.load(Ordering::Relaxed));
        if before == PageWord::NOTHING {
            leaf.set_used(leaf.used() + 1);
        }
        // Release: the frame's own words are written before a reader can find the frame.
        cell.store(word.bits(), Ordering::Release);
        before
    }

    /// Changes the word at a path. The new word is not `NOTHING`.
    pub(crate) fn replace(&mut self, path: &Path, word: PageWord) {
        assert_ne!(word, PageWord::NOTHING, "a word is removed, not emptied");
        let leaf = self.mapping.nodes.at(path.nodes[0]);
        leaf.word(offset(path.index, 0)).store(word.bits(), Ordering::Release);
    }

    /// Removes the word at a path, its tags, and the nodes that only it needed. If `left` is not `NOTHING`,
    /// leaves that word and the nodes.
    pub(crate) fn remove(&mut self, path: &Path, left: PageWord) {
        if self.mapping.keeps_tags() {
            Tag::ALL.iter().for_each(|tag| self.clear_tag(path, *tag));
        }
        if left != PageWord::NOTHING {
            self.replace(path, left);
            return;
        }
        let nodes = &self.mapping.nodes;
        for level in 0..path.levels {
            let node = path.nodes[level as usize];
            let words = nodes.at(node);
            words.word(offset(path.index, level)).store(0, Ordering::Release);
            words.set_used(words.used() - 1);
            if words.used() != 0 {
                return;
            }
            if level + 1 == path.levels {
                self.set_root(0, 0);
            }
            nodes.give_back(&mut self.stock, node);
        }
    }

    fn root(&self) -> (u32, u32) {
        unpack(self.mapping.root.load(Ordering::Relaxed))
    }

    fn set_root(&self, node: u32, levels: u32) {
        self.mapping.root.store(pack(node, levels), Ordering::Release);
    }

    /// Makes the tree high enough for an index. The tree never gets lower until it is empty, so a path to an
    /// existing word stays.
    fn grow_to(&mut self, index: u64) -> (u32, u32) {
        let nodes = &self.mapping.nodes;
        let (mut root, mut levels) = self.root();
        if levels == 0 {
            root = nodes.take(&mut self.stock);
            levels = 1;
        }
        while !reaches(levels, index) {
            let above = nodes.take(&mut self.stock);
            let words = nodes.at(above);
            // An empty root is new from this call, and not needed below.
            if nodes.at(root).used() == 0 {
                nodes.give_back(&mut self.stock, root);
            } else {
                words.word(0).store(root, Ordering::Release);
                words.set_used(1);
                for tag in Tag::ALL {
                    words.set_tagged(tag, u64::from(nodes.at(root).tagged(tag) != 0));
                }
            }
            root = above;
            levels += 1;
        }
        self.set_root(root, levels);
        (root, levels)
    }

    // --- tags ---

    fn assert_tags(&self) {
        assert!(self.mapping.keeps_tags(), "this mapping keeps no tags");
    }

    pub(crate) fn set_tag(&mut self, path: &Path, tag: Tag) {
        self.assert_tags();
        for level in 0..path.levels {
            let node = self.mapping.nodes.at(path.nodes[level as usize]);
            let (before, bit) = (node.tagged(tag), 1 << offset(path.index, level));
            if before & bit != 0 {
                return;
            }
            node.set_tagged(tag, before | bit);
        }
    }

    pub(crate) fn clear_tag(&mut self, path: &Path, tag: Tag) {
        self.assert_tags();
        for level in 0..path.levels {
            let node = self.mapping.nodes.at(path.nodes[level as usize]);
            let (before, bit) = (node.tagged(tag), 1 << offset(path.index, level));
            if before & bit == 0 {
                return;
            }
            node.set_tagged(tag, before & !bit);
            if before != bit {
                return;
            }
        }
    }

    pub(crate) fn has_tag(&self, path: &Path, tag: Tag) -> bool {
        self.assert_tags();
        self.mapping.nodes.at(path.nodes[0]).tagged(tag) >> offset(path.index, 0) & 1 == 1
    }

    /// Returns whether any page has the tag.
    #[cfg(test)]
    pub(crate) fn any_tagged(&self, tag: Tag) -> bool {
        self.assert_tags();
        let (root, levels) = self.root();
        levels != 0 && self.mapping.nodes.at(root).tagged(tag) != 0
    }

    /// Returns the first index at or after `from` that has the tag, and its word.
    pub(crate) fn next_tagged(&self, from: u64, tag: Tag) -> Option<(u64, PageWord)> {
        self.next_tagged_counting(from, tag, &mut 0)
    }

    /// Does what `next_tagged` does, and adds to `seen` the nodes that it looked at.
    pub(super) fn next_tagged_counting(
        &self,
        from: u64,
        tag: Tag,
        seen: &mut usize,
    ) -> Option<(u64, PageWord)> {
        self.assert_tags();
        let (root, levels) = self.root();
        if !reaches(levels, from) {
            return None;
        }
        let index = self.next_below(root, levels - 1, 0, from, tag, seen)?;
        Some((index, self.get(index)))
    }

    fn next_below(
        &self,
        node: u32,
        level: u32,
        base: u64,
        from: u64,
        tag: Tag,
        seen: &mut usize,
    ) -> Option<u64> {
        *seen += 1;
        let words = self.mapping.nodes.at(node);
        let first = if from > base { offset(from, level) } else { 0 };
        let mut bits = words.tagged(tag) & u64::MAX << first;
        while bits != 0 {
            let at = bits.trailing_zeros();
            let start = base | u64::from(at) << (level * NODE_BITS);
            if level == 0 {
                return Some(start);
            }
            let child = words.word(at as usize).load(Ordering::Relaxed);
            // Only in the child that `from` falls into may all tagged pages be before `from`.
            if let Some(index) = self.next_below(child, level - 1, start, from, tag, seen) {
                return Some(index);
            }
            bits &= bits - 1;
        }
        None
    }

    /// Returns the first index at or after `from` that has a word, and the word.
    pub(crate) fn next_word(&self, from: u64) -> Option<(u64, PageWord)> {
        let (root, levels) = self.root();
        if !reaches(levels, from) {
            return None;
        }
        self.next_word_below(root, levels - 1, 0, from)
    }

    fn next_word_below(&self, node: u32, level: u32, base: u64, from: u64) -> Option<(u64, PageWord)> {
        let words = self.mapping.nodes.at(node);
        let first = if from > base { offset(from, level) } else { 0 };
        (first..NODE_WORDS).find_map(|at| {
            let start = base | (at as u64) << (level * NODE_BITS);
            match words.word(at).load(Ordering::Relaxed) {
                0 => None,
                word if level == 0 => Some((start, PageWord::from_bits(word))),
                child => self.next_word_below(child, level - 1, start, from),
            }
        })
    }

    /// Removes every word. Returns how many there were.
    pub(crate) fn remove_all(&mut self) -> u64 {
        let mut removed = 0;
        while let Some((index, _)) = self.next_word(0) {
            if let Some(path) = self.find(index) {
                self.remove(&path, PageWord::NOTHING);
                removed += 1;
            }
        }
        removed
    }

    // --- checks ---

    /// Returns the number of nodes in use.
    pub(crate) fn nodes_in_use(&self) -> usize {
        self.stock.in_use()
    }

    /// Checks that counts add up, and that a node is tagged if a word of it is. Takes linear time.
    ///
    /// Panics if a check fails.
    pub(crate) fn validate(&self) {
        let (root, levels) = self.root();
        let nodes = if levels == 0 { 0 } else { self.validate_below(root, levels - 1) };
        assert_eq!(nodes, self.nodes_in_use(), "every node in use is part of the tree");
    }

    fn validate_below(&self, node: u32, level: u32) -> usize {
        let words = self.mapping.nodes.at(node);
        let (mut used, mut nodes) = (0, 1);
        for at in 0..NODE_WORDS {
            let word = words.word(at).load(Ordering::Relaxed);
            used += u32::from(word != 0);
            let below = (level > 0 && word != 0).then(|| self.mapping.nodes.at(word));
            nodes += below.map_or(0, |_| self.validate_below(word, level - 1));
            for tag in Tag::ALL {
                let tagged = words.tagged(tag) >> at & 1 == 1;
                assert!(!tagged || word != 0, "only an existing word is tagged");
                assert!(
                    below.is_none_or(|below| (below.tagged(tag) != 0) == tagged),
                    "a node is tagged where one of its words is"
                );
            }
        }
        assert!(used != 0 && used == words.used(), "words of a node add up");
        nodes
    }
}
