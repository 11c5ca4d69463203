//! Table nodes: 512 entries of 4 KiB, taken from one reservation and recycled only as nodes.
//!
//! A node's memory is never anything else. So a late walker that still looks at a recycled node reads entries
//! and not data. Versions live through recycling, so the walker cannot mistake those entries for the ones it
//! knew. A node is given back with all its entries Empty, each under a version later than any that its last
//! users saw (see `table/mod.rs`). So it needs no clearing when it is taken again.
//!
//! The pool charges memory to the budget 16 nodes at a time. The memory stays charged, because nodes are not
//! turned into frames.

use crate::budget::Budget;
use crate::counters::{Counter, Counters};
use crate::sizes::GROW_TABLE_NODES as GROW_NODES;
use crate::sync::{Arc, AtomicU32, Mutex, Ordering, WordArray};
use crate::table::entry::{EntryWord, NodeId};
use crate::units::{Order, PAGE_BYTES};

/// log2 of [`NODE_ENTRIES`]. It is the largest order, so an entry one level up has room for one block of that
/// order.
pub(crate) const NODE_BITS: u32 = Order::MAX.0 as u32;
/// The entries of a node: 512.
pub(crate) const NODE_ENTRIES: usize = 1 << NODE_BITS;

/// All nodes of a manager.
#[derive(Debug)]
pub(crate) struct NodePool {
    entries: WordArray<EntryWord>,
    /// The next free node, for each free node. Node 0 is never used and ends the list.
    next_free: WordArray<AtomicU32>,
    state: Mutex<PoolState>,
    budget: Arc<Budget>,
    counters: Arc<Counters>,
}

#[derive(Debug)]
struct PoolState {
    first_free: u32,
    /// Nodes from here to `present` were never used.
    unused: usize,
    present: usize,
    in_use: usize,
}

impl NodePool {
    pub(crate) fn new(
        max_nodes: usize,
        budget: Arc<Budget>,
        counters: Arc<Counters>,
    ) -> std::io::Result<Self> {
        let nodes = max_nodes.next_multiple_of(GROW_NODES).min(1 << 32);
        Ok(Self {
            entries: WordArray::new(nodes * NODE_ENTRIES)?,
            next_free: WordArray::new(nodes)?,
            state: Mutex::new(PoolState { first_free: 0, unused: 1, present: 0, in_use: 0 }),
            budget,
            counters,
        })
    }

    /// Returns the entry at `slot` of `node`, at the price of one multiplication by a power of two.
    #[inline(always)]
    pub(crate) fn entry(&self, node: NodeId, slot: usize) -> &EntryWord {
        debug_assert!(slot < NODE_ENTRIES);
        &self.entries[node.0 as usize * NODE_ENTRIES + slot]
    }

    /// Returns all entries of `node`.
    pub(crate) fn entries(&self, node: NodeId) -> &[EntryWord] {
        &self.entries[node.0 as usize * NODE_ENTRIES..][..NODE_ENTRIES]
    }

    /// Takes a node with all entries Empty. `None` where the budget has no room for one.
    pub(crate) fn take(&self) -> Option<NodeId> {
        self.take_charging(|bytes| self.budget.charge(bytes))
    }

    /// Takes a node, over the budget if it must be. Only reclaim may: it makes up for the excess.
    pub(crate) fn take_for_reclaim(&self) -> Option<NodeId> {
        self.take().or_else(|| {
            self.take_charging(|bytes| {
                self.budget.charge_over(bytes);
                true
            })
        })
    }

    fn take_charging(&self, charge: impl FnOnce(u64) -> bool) -> Option<NodeId> {
        let mut state = self.state.lock();
        let node = if state.first_free != 0 {
            let node = state.first_free;
            state.first_free = self.next_free[node as usize].load(Ordering::Relaxed);
            node as usize
        } else {
            if state.unused >= state.present && !self.grow(&mut state, charge) {
                return None;
            }
            state.unused += 1;
            state.unused - 1
        };
        state.in_use += 1;
        self.counters.count(Counter::TableNode);
        Some(NodeId(node as u32))
    }

    fn grow(&self, state: &mut PoolState, charge: impl FnOnce(u64) -> bool) -> bool {
        let range = state.present..state.present + GROW_NODES;
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
        state.present = range.end;
        true
    }

    /// Takes back a node whose entries are all Empty and which no link leads to.
    pub(crate) fn give_back(&self, node: NodeId) {
        debug_assert!(
            self.entries(node).iter().all(|entry| entry.load().is_empty()),
            "a node in use was freed"
        );
        let mut state = self.state.lock();
        self.next_free[node.0 as usize].store(state.first_free, Ordering::Relaxed);
        state.first_free = node.0;
        state.in_use -= 1;
    }

    /// Returns the number of nodes that tables use now.
    pub(crate) fn in_use(&self) -> usize {
        self.state.lock().in_use
    }

    /// Returns the bytes that a growth of the pool needs from the budget.
    pub(crate) const fn growth_bytes() -> u64 {
        (GROW_NODES * PAGE_BYTES) as u64
    }
}
