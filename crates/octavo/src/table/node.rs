//! Table nodes: 4 KiB with 512 entries each, taken from one reservation and recycled only as nodes.
//!
//! A node's memory is never used for anything else. So a late walker that still looks at a recycled node
//! reads entries and not data. Versions continue through recycling, so the walker cannot mistake those
//! entries for the ones it knew. A node is given back with all its entries Empty, each under a version later
//! than any that its last users saw (see `table/mod.rs`). So it needs no clearing when it is taken again.
//!
//! The pool charges memory to the budget 16 nodes at a time. The memory stays charged, because nodes are not
//! turned into frames.
//!
//! Free nodes are kept in *shards*, by the CPU that freed them, so that threads on different CPUs take nodes
//! without contention. An empty shard gets 16 nodes from the common list, or from new memory. A shard with
//! more than 32 gives 16 to the common list. If the common list is empty and there is no new memory, a thread
//! takes a node of another shard.
//!
//! Locking: the lock of the common list comes before those of shards, and a thread holds one shard at a time.
//! Cost: one lock on a line that few other CPUs use, a load and two stores; every sixteenth time, the common
//! lock too.

use crossbeam_utils::CachePadded;

use crate::budget::Budget;
use crate::counters::{Counter, Counters};
use crate::sizes::{GROW_TABLE_NODES as GROW_NODES, TABLE_NODE_SHARDS as SHARDS};
use crate::sync::{Arc, AtomicU32, Cpus, Mutex, Ordering, WordArray};
use crate::table::entry::{EntryWord, NodeId};
use crate::units::{Order, PAGE_BYTES};

/// log2 of [`NODE_ENTRIES`]. It equals the largest order, so an entry one level up covers exactly one block
/// of that order.
pub(crate) const NODE_BITS: u32 = Order::MAX.0 as u32;
/// The entries of a node: 512.
pub(crate) const NODE_ENTRIES: usize = 1 << NODE_BITS;

/// All nodes of a manager.
#[derive(Debug)]
pub(crate) struct NodePool {
    entries: WordArray<EntryWord>,
    /// For each free node, the next free one. Node 0 is never used and ends the list.
    next_free: WordArray<AtomicU32>,
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    common: Mutex<Common>,
    cpus: Cpus,
    budget: Arc<Budget>,
    counters: Arc<Counters>,
}

/// Free nodes, chained.
#[derive(Debug, Default)]
struct FreeNodes {
    first: u32,
    count: usize,
}

/// The free nodes of one CPU or a few, and a count.
#[derive(Debug, Default)]
struct Shard {
    free: FreeNodes,
    /// Nodes taken here, minus nodes given back here. A node may be taken from one shard and given back to
    /// another.
    in_use: isize,
}

#[derive(Debug, Default)]
struct Common {
    free: FreeNodes,
    /// Nodes below this number have memory, among them the unused node 0.
    present: usize,
}

impl NodePool {
    pub(crate) fn new(
        max_nodes: usize,
        cpus: Cpus,
        budget: Arc<Budget>,
        counters: Arc<Counters>,
    ) -> std::io::Result<Self> {
        let nodes = max_nodes.next_multiple_of(GROW_NODES).min(1 << 32);
        Ok(Self {
            entries: WordArray::new(nodes * NODE_ENTRIES)?,
            next_free: WordArray::new(nodes)?,
            shards: (0..SHARDS).map(|_| CachePadded::new(Mutex::default())).collect(),
            common: Mutex::default(),
            cpus,
            budget,
            counters,
        })
    }

    /// Returns the entry at `slot` of `node`. Costs one multiplication by a power of two.
    #[inline(always)]
    pub(crate) fn entry(&self, node: NodeId, slot: usize) -> &EntryWord {
        debug_assert!(slot < NODE_ENTRIES);
        &self.entries[node.0 as usize * NODE_ENTRIES + slot]
    }

    /// Returns all entries of `node`.
    pub(crate) fn entries(&self, node: NodeId) -> &[EntryWord] {
        &self.entries[node.0 as usize * NODE_ENTRIES..][..NODE_ENTRIES]
    }

    /// Takes a node with all entries Empty. Returns `None` if there is none and the budget has no room.
    pub(crate) fn take(&self) -> Option<NodeId> {
        self.take_charging(|bytes| self.budget.charge(bytes))
    }

    /// Takes a node, if necessary beyond the budget. Only for callers that cannot wait for room: reclaim
    /// makes up for the excess.
    pub(crate) fn take_for_reclaim(&self) -> Option<NodeId> {
        self.take().or_else(|| {
            self.take_charging(|bytes| {
                self.budget.charge_over(bytes);
                true
            })
        })
    }

    fn take_charging(&self, charge: impl FnOnce(u64) -> bool) -> Option<NodeId> {
        let shard = self.here();
        let node = self.take_from(shard).or_else(|| self.refill(shard, charge))?;
        self.counters.count(Counter::TableNode);
        Some(node)
    }

    /// Returns the shard of the CPU that this thread is on.
    fn here(&self) -> &Mutex<Shard> {
        &self.shards[self.cpus.current() % SHARDS]
    }

    fn take_from(&self, shard: &Mutex<Shard>) -> Option<NodeId> {
        let mut shard = shard.lock();
        let node = self.pop(&mut shard.free)?;
        shard.in_use += 1;
        Some(node)
    }

    /// Refills an empty shard, and takes a node.
    fn refill(&self, shard: &Mutex<Shard>, charge: impl FnOnce(u64) -> bool) -> Option<NodeId> {
        let mut common = self.common.lock();
        // Another thread of this CPU may have come first.
        if let Some(node) = self.take_from(shard) {
            return Some(node);
        }
        if common.free.count == 0 && !self.grow(&mut common, charge) {
            return self.shards.iter().find_map(|other| self.take_from(other));
        }
        let mut shard = shard.lock();
        self.move_nodes(&mut common.free, &mut shard.free);
        drop(common);
        let node = self.pop(&mut shard.free)?;
        shard.in_use += 1;
        Some(node)
    }

    fn pop(&self, nodes: &mut FreeNodes) -> Option<NodeId> {
        let node = nodes.first;
        if node == 0 {
            return None;
        }
        nodes.first = self.next_free[node as usize].load(Ordering::Relaxed);
        nodes.count -= 1;
        Some(NodeId(node))
    }

    fn push(&self, nodes: &mut FreeNodes, node: NodeId) {
        self.next_free[node.0 as usize].store(nodes.first, Ordering::Relaxed);
        nodes.first = node.0;
        nodes.count += 1;
    }

    /// Moves one batch of nodes, or all if there are fewer.
    fn move_nodes(&self, from: &mut FreeNodes, to: &mut FreeNodes) {
        for _ in 0..GROW_NODES {
            let Some(node) = self.pop(from) else { return };
            self.push(to, node);
        }
    }

    fn grow(&self, common: &mut Common, charge: impl FnOnce(u64) -> bool) -> bool {
        let range = common.present..common.present + GROW_NODES;
        if range.end * NODE_ENTRIES > self.entries.len() {
            return false;
        }
        let bytes = (GROW_NODES * PAGE_BYTES) as u64;
        if !charge(bytes) {
            return false;
        }
        if self.entries.populate(range.start * NODE_ENTRIES..range.end * NODE_ENTRIES).is_err() {
            self.budget.uncharge(bytes);
            return false;
        }
        common.present = range.end;
        // The list begins with the lowest number.
        for node in range.rev().filter(|node| *node > 0) {
            self.push(&mut common.free, NodeId(node as u32));
        }
        true
    }

    /// Takes back a node whose entries are all Empty and which no link leads to.
    pub(crate) fn give_back(&self, node: NodeId) {
        debug_assert!(
            self.entries(node).iter().all(|entry| entry.load().is_empty()),
            "a node in use was freed"
        );
        let mut shard = self.here().lock();
        self.push(&mut shard.free, node);
        shard.in_use -= 1;
        if shard.free.count <= 2 * GROW_NODES {
            return;
        }
        let mut surplus = FreeNodes::default();
        self.move_nodes(&mut shard.free, &mut surplus);
        drop(shard);
        let mut common = self.common.lock();
        self.move_nodes(&mut surplus, &mut common.free);
    }

    /// Returns about how many nodes the tables use now.
    pub(crate) fn in_use(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().in_use).sum::<isize>().max(0) as usize
    }

    /// Returns the bytes that a growth of the pool needs from the budget.
    pub(crate) const fn growth_bytes() -> u64 {
        (GROW_NODES * PAGE_BYTES) as u64
    }
}
