//! Per-CPU stacks and cells.
//!
//! [`PerCpuStacks`] are bounded stacks of `u32`: each CPU has one stack of each class. There are two forms
//! with the same behaviour:
//!
//! | form | fast path | chosen |
//! |---|---|---|
//! | `Sections` | a restartable sequence, no atomic read-modify-write | if the kernel and glibc offer it |
//! | `TryLock` | the CPU's stop word is *tried* by one compare-and-swap, never waited for | otherwise, and by tests |
//!
//! The storage and the sections belong to the face of [`crate::sync`]. Under the model checker, a section
//! holds a mutex of its CPU, because the scheduler makes the sections of a CPU exclude each other.
//!
//! Locking: [`PerCpuStacks::exclusive`] takes the stop word of a CPU (0 open, 1 held). While a thread holds
//! the word, the fast paths of this CPU answer `Busy`, and only the holder changes the stacks. A holder on
//! another CPU first waits until running sections have ended (`membarrier`). Fast paths never wait for a
//! holder.
//!
//! A thread that holds one CPU takes no second CPU. Zone locks are taken under the stop word.

use super::face::percpu::{self as face, CellArea, Storage, sections_work};
use super::{Cpus, Ordering, spin_hint};

#[cfg(all(test, loom))]
pub(crate) use super::face::percpu::run_on;

/// Selects how a thread takes free memory from its CPU's own lists. For measurements; leave the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StackForm {
    /// Restartable sequences: no atomic read-modify-write. `TryLock` is used instead if the kernel has no
    /// restartable sequences, or if the CPUs are pretended.
    #[default]
    Sections,
    /// A lock word that threads try to take without waiting: one compare-and-swap for each operation.
    TryLock,
}

/// Outcome of [`PerCpuStacks::pop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pop {
    /// The youngest value.
    Value(u32),
    /// The stack is empty.
    Empty,
    /// A thread holds the CPU.
    Busy,
}

/// Outcome of [`PerCpuStacks::push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Push {
    /// The value is stored.
    Done,
    /// The stack is at its limit.
    Full,
    /// A thread holds the CPU.
    Busy,
}

/// A pop by the one thread that has the CPU.
pub(super) fn pop_plainly(storage: &Storage, cpu: usize, class: usize) -> Pop {
    let top = storage.top(cpu, class);
    if top == 0 {
        return Pop::Empty;
    }
    let value = storage.slots(cpu, class)[top - 1].load(Ordering::Relaxed);
    storage.set_top(cpu, class, top - 1, 1);
    Pop::Value(value)
}

/// A push by the one thread that has the CPU.
pub(super) fn push_plainly(storage: &Storage, cpu: usize, class: usize, value: u32) -> Push {
    let top = storage.top(cpu, class);
    if top >= storage.limit(cpu, class) {
        return Push::Full;
    }
    storage.slots(cpu, class)[top].store(value, Ordering::Relaxed);
    storage.set_top(cpu, class, top + 1, 0);
    Push::Done
}

/// Bounded stacks of `u32`, one of each class for each CPU.
#[derive(Debug)]
pub(crate) struct PerCpuStacks {
    storage: Storage,
    cpus: Cpus,
    /// Whether the form in use is `Sections`.
    sections: bool,
}

impl PerCpuStacks {
    /// Makes empty stacks. Every limit is 0: no push succeeds before a holder raises its limit.
    pub(crate) fn new(cpus: Cpus, capacities: &[usize], form: StackForm) -> std::io::Result<Self> {
        let sections = form == StackForm::Sections && cpus.are_real() && sections_work();
        Ok(Self { storage: Storage::new(cpus.count(), capacities)?, cpus, sections })
    }

    /// Returns whether the fast paths are restartable sequences.
    pub(crate) fn are_sections(&self) -> bool {
        self.sections
    }

    pub(crate) fn cpus(&self) -> usize {
        self.cpus.count()
    }

    /// The most bytes of memory that the stacks use.
    pub(crate) fn bytes(&self) -> usize {
        self.storage.bytes()
    }

    /// Returns the CPU that this thread is on. The thread may be on another one at the next instruction.
    #[inline]
    pub(crate) fn cpu(&self) -> usize {
        self.cpus.current()
    }

    /// Like [`PerCpuStacks::pop`], for a caller that expects the form `Sections`. In the other form, returns
    /// `Busy`.
    #[inline(always)]
    pub(crate) fn pop_in_section(&self, class: usize) -> Pop {
        face::pop_in_section(&self.storage, class)
    }

    /// Like [`PerCpuStacks::push`], for a caller that expects the form `Sections`. In the other form, returns
    /// `Busy`.
    #[inline(always)]
    pub(crate) fn push_in_section(&self, class: usize, value: u32) -> Push {
        face::push_in_section(&self.storage, class, value)
    }

    /// Takes the youngest value of this CPU's stack.
    #[inline]
    pub(crate) fn pop(&self, class: usize) -> Pop {
        if self.sections { self.pop_in_section(class) } else { self.pop_locked(self.cpu(), class) }
    }

    /// Puts a value on this CPU's stack.
    #[inline]
    pub(crate) fn push(&self, class: usize, value: u32) -> Push {
        if self.sections {
            self.push_in_section(class, value)
        } else {
            self.push_locked(self.cpu(), class, value)
        }
    }

    #[inline(never)]
    fn pop_locked(&self, cpu: usize, class: usize) -> Pop {
        let stop = self.storage.stop(cpu);
        // Acquire pairs with the release of the previous holder. So this thread sees the holder's changes to
        // the stacks.
        if stop.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return Pop::Busy;
        }
        let outcome = pop_plainly(&self.storage, cpu, class);
        stop.store(0, Ordering::Release);
        outcome
    }

    #[inline(never)]
    fn push_locked(&self, cpu: usize, class: usize, value: u32) -> Push {
        let stop = self.storage.stop(cpu);
        // Acquire: see `pop_locked`.
        if stop.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return Push::Busy;
        }
        let outcome = push_plainly(&self.storage, cpu, class, value);
        stop.store(0, Ordering::Release);
        outcome
    }

    /// Holds the CPU that this thread is on. Returns `None` if another thread holds it. Costs one locked
    /// instruction.
    pub(crate) fn exclusive_here(&self) -> Option<Exclusive<'_>> {
        let cpu = if self.sections {
            self.storage.stop_here()?
        } else {
            let cpu = self.cpu();
            // Acquire: see `pop_locked`.
            self.storage.stop(cpu).compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
            cpu
        };
        Some(Exclusive { stacks: self, cpu })
    }

    /// Holds any CPU, and waits for its present holder. Costs a system call in the `Sections` form. Returns
    /// `None` only if the kernel refuses to stop a CPU.
    pub(crate) fn exclusive(&self, cpu: usize) -> Option<Exclusive<'_>> {
        let stop = self.storage.stop(cpu);
        let mut turns = 0u32;
        // Acquire: see `pop_locked`.
        while stop.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            turns += 1;
            if turns.is_multiple_of(64) {
                super::thread::yield_now();
            } else {
                spin_hint();
            }
        }
        let held = Exclusive { stacks: self, cpu };
        if self.sections && self.storage.expel(cpu).is_err() {
            return None;
        }
        Some(held)
    }

    /// The number of values on a CPU's stack, at about this moment.
    pub(crate) fn len(&self, cpu: usize, class: usize) -> usize {
        self.storage.top(cpu, class)
    }

    /// Returns whether a CPU's stacks are empty, accept no push on their fast paths, and are not held by any
    /// thread, at about this moment.
    pub(crate) fn is_closed(&self, cpu: usize, classes: usize) -> bool {
        let is_closed = |class| self.len(cpu, class) == 0 && self.storage.limit(cpu, class) == 0;
        // Acquire: this thread sees the last holder's changes to the stacks.
        self.storage.stop(cpu).load(Ordering::Acquire) == 0 && (0..classes).all(is_closed)
    }

    /// Returns how many values of one class the fast paths of all CPUs have popped and pushed so far.
    /// Monotone, and exact while no thread is at work. Returns `None` if a CPU is held.
    pub(crate) fn pops_and_pushes(&self, class: usize) -> Option<(u64, u64)> {
        let (mut pops, mut pushes) = (0u64, 0u64);
        for cpu in 0..self.cpus() {
            let stop = self.storage.stop(cpu);
            let net = self.storage.net(cpu, class);
            // A holder changes `net` and the top together, and only while it holds the stop word. Acquire
            // loads keep the order.
            let before = (stop.load(Ordering::Acquire), net.load(Ordering::Acquire));
            let (top, popped) = self.storage.top_and_pops(cpu, class);
            super::fence(Ordering::Acquire);
            let after = (stop.load(Ordering::Acquire), net.load(Ordering::Acquire));
            if before != after || before.0 != 0 {
                return None;
            }
            pops += popped;
            // top = pushed - popped + net
            pushes = pushes.wrapping_add((top as u64).wrapping_add(popped).wrapping_sub(before.1));
        }
        Some((pops, pushes))
    }
}

/// One CPU's stacks, held by a thread: the CPU's fast paths answer `Busy` until this is dropped.
#[derive(Debug)]
pub(crate) struct Exclusive<'a> {
    stacks: &'a PerCpuStacks,
    cpu: usize,
}

impl Exclusive<'_> {
    pub(crate) fn cpu(&self) -> usize {
        self.cpu
    }

    pub(crate) fn len(&self, class: usize) -> usize {
        self.stacks.storage.top(self.cpu, class)
    }

    pub(crate) fn capacity(&self, class: usize) -> usize {
        self.stacks.storage.capacity(class)
    }

    pub(crate) fn limit(&self, class: usize) -> usize {
        self.stacks.storage.limit(self.cpu, class)
    }

    /// Sets the limit of values for fast paths. A limit above the capacity counts as the capacity.
    pub(crate) fn set_limit(&self, class: usize, limit: usize) {
        self.stacks.storage.set_limit(self.cpu, class, limit.min(self.capacity(class)));
    }

    /// Puts a value on the hot end. Returns `false` if the stack is at its capacity.
    pub(crate) fn insert(&self, class: usize, value: u32) -> bool {
        let (storage, top) = (&self.stacks.storage, self.len(class));
        if top >= self.capacity(class) {
            return false;
        }
        storage.slots(self.cpu, class)[top].store(value, Ordering::Relaxed);
        storage.set_top(self.cpu, class, top + 1, 0);
        self.add_net(class, 1);
        true
    }

    /// Puts up to `n` values from `next` on the hot end. Returns the number of values.
    pub(crate) fn insert_many(&self, class: usize, n: usize, mut next: impl FnMut() -> Option<u32>) -> usize {
        let (storage, top) = (&self.stacks.storage, self.len(class));
        let mut got = 0;
        for slot in storage.slots(self.cpu, class)[top..].iter().take(n) {
            let Some(value) = next() else { break };
            slot.store(value, Ordering::Relaxed);
            got += 1;
        }
        storage.set_top(self.cpu, class, top + got, 0);
        self.add_net(class, got as u64);
        got
    }

    /// Returns how many values fast paths have popped so far, minus the number of values that they pushed.
    pub(crate) fn balance(&self, class: usize) -> i64 {
        let net = self.stacks.storage.net(self.cpu, class).load(Ordering::Relaxed);
        net.wrapping_sub(self.len(class) as u64) as i64
    }

    /// Takes a value from the hot end.
    pub(crate) fn remove(&self, class: usize) -> Option<u32> {
        let (storage, top) = (&self.stacks.storage, self.len(class).checked_sub(1)?);
        let value = storage.slots(self.cpu, class)[top].load(Ordering::Relaxed);
        storage.set_top(self.cpu, class, top, 0);
        self.add_net(class, 1u64.wrapping_neg());
        Some(value)
    }

    /// Takes up to `n` values from the cold end. Moves the values that remain, which costs one write for
    /// each.
    pub(crate) fn remove_coldest(&self, class: usize, n: usize, mut take: impl FnMut(u32)) -> usize {
        let (storage, cpu, top) = (&self.stacks.storage, self.cpu, self.len(class));
        let n = n.min(top);
        let slots = &storage.slots(cpu, class)[..top];
        for slot in &slots[..n] {
            take(slot.load(Ordering::Relaxed));
        }
        for (to, from) in slots.iter().zip(&slots[n..]) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        storage.set_top(cpu, class, top - n, 0);
        self.add_net(class, (n as u64).wrapping_neg());
        n
    }

    /// Visits every value, coldest first.
    pub(crate) fn for_each(&self, class: usize, mut visit: impl FnMut(u32)) {
        for slot in &self.stacks.storage.slots(self.cpu, class)[..self.len(class)] {
            visit(slot.load(Ordering::Relaxed));
        }
    }

    fn add_net(&self, class: usize, n: u64) {
        let net = self.stacks.storage.net(self.cpu, class);
        net.store(net.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        // Release: a thread that finds the CPU open sees this holder's changes to the stacks.
        self.stacks.storage.stop(self.cpu).store(0, Ordering::Release);
    }
}

/// Cells that count: each CPU has `counters` cells. A thread adds to the cells of its CPU, and any thread may
/// sum the cells of all CPUs.
#[derive(Debug)]
pub(crate) struct PerCpuCells {
    cells: CellArea,
}

impl PerCpuCells {
    /// Makes the cells, all 0.
    pub(crate) fn new(counters: usize) -> std::io::Result<Self> {
        Ok(Self { cells: CellArea::new(super::face::possible_cpus(), counters)? })
    }

    /// Adds `n`, by a plain addition in a restartable sequence, or by an atomic addition on this CPU's line.
    #[inline]
    pub(crate) fn add(&self, index: usize, n: u64) {
        self.cells.add_here(index, n);
    }

    /// The sum over all CPUs, modulo 2^64.
    pub(crate) fn sum(&self, index: usize) -> u64 {
        self.cells.sum(index)
    }
}

#[cfg(all(test, loom))]
mod loom;
