//! Per-CPU lists: for each CPU, a few free blocks of every order in front of the zones.
//!
//! A block on a list is in state Cached. All figures (`count`, `high`, `batch`) are in frames, whatever the
//! order. The hot path is one section of [`PerCpuStacks`], and uses none of these figures. It stops at a
//! stack's *limit*. The slow path holds the CPU, and sets the limits so that
//!
//! ```text
//!   count = Σ len(order) << order   <=   Σ limit(order) << order   <=   high
//! ```
//!
//! A refill takes `max(batch >> order, 2)` blocks. The number of single frames is even, since the words of
//! two frames share a cache line. If `batch` is 1, a refill takes one block, so that a tiny budget keeps
//! nothing here. `high` moves between `high_min` and `high_max`. It rises when allocations miss, or when more
//! frames are freed in a row than fit. It falls when memory runs low, and by [`PerCpuLists::decay`]. A free
//! over the limit first borrows idle room of other orders, then raises `high`. Then it gives the coldest
//! blocks back, beginning with the order just freed.
//!
//! If one CPU frees the high-order blocks that another CPU allocates, cold blocks would pile up here (Linux
//! f26b3fa04611, *mm/page_alloc: limit number of high-order pages on PCP during bulk free*). So after a run
//! of high-order frees of `batch + high_min / 2` frames, the CPU gives frames back: at most 32 times the
//! larger of `batch` and `2 << order`. The exception is a CPU that itself allocated blocks of this order and
//! has not freed all of them. It is likely to need them again, so its list grows until they fit, or to
//! `high_max`.
//!
//! Locking: every method that takes an [`Exclusive`] may take a zone's lock through the caller's closure.

use crossbeam_utils::CachePadded;

use crate::config::PercpuOrders;
use crate::sync::percpu::{Exclusive, PerCpuStacks, Pop, Push, StackForm};
use crate::sync::{AtomicU32, AtomicU64, Cpus, Ordering};
use crate::units::{FrameId, Order};

/// The class of order-0 frames whose bytes are all zero.
pub(crate) const ZEROED_CLASS: usize = Order::COUNT;
const CLASSES: usize = Order::COUNT + 1;

/// The most blocks on one CPU's list: of order 0, of another order, and of zeroed frames.
const MOST_FRAMES: usize = 8192;
const MOST_BLOCKS: usize = 4096;
const MOST_ZEROED: usize = 512;
/// The most frames on one CPU's lists: 1 GiB. A machine with 8 GiB or more for each CPU reaches this limit.
const MOST_HIGH: u64 = 1 << 18;
/// A refill or a free moves up to 2^5 times `batch` (Linux's PCP_BATCH_SCALE_MAX).
const SCALE_MAX: u32 = 5;

/// How short memory is. Each slow path determines it once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pressure {
    None,
    BelowHigh,
    BelowLow,
}

/// The figures that depend on the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tuning {
    pub(crate) batch: u32,
    pub(crate) high_min: u32,
    pub(crate) high_max: u32,
}

impl Tuning {
    /// Computes the figures from the frames of memory, the low watermark, and the number of CPUs.
    pub(crate) fn new(frames: u64, low_frames: u64, cpus: usize) -> Self {
        // The batch is a quarter of a thousandth of memory, at most 64 frames, and one less than a power of
        // two.
        let quarter = ((frames / 1024).min(256) / 4).max(1) as u32;
        let batch = (1u32 << (quarter + quarter / 2).ilog2()).saturating_sub(1).max(1);
        let high_max = (frames / 8 / cpus as u64).min(MOST_HIGH) as u32;
        let low_each = (low_frames / cpus as u64) as u32;
        let high_min = if batch > 1 { low_each.max(4 * batch) } else { low_each };
        Self { batch, high_min: high_min.min(high_max), high_max }
    }
}

/// A CPU's figures. Only the thread that holds the CPU writes them, except `misses`.
#[derive(Debug, Default)]
struct CpuFigures {
    high: AtomicU32,
    /// The frames freed in a row. Each miss halves this number.
    free_run: AtomicU32,
    /// The count at the end of the last slow path.
    count_before: AtomicU32,
    /// How many times a refill's least size is doubled.
    refill_scale: AtomicU32,
    /// Whether the last free on the slow path was of a high order.
    freed_high_order: AtomicU32,
    /// How often this CPU found no frame on its own list or in a zone.
    misses: AtomicU32,
    /// The least balance of allocations and frees seen, for each class, as the bits of an `i64`.
    least_balance: [AtomicU64; CLASSES],
}

/// The per-CPU lists.
#[derive(Debug)]
pub(crate) struct PerCpuLists {
    stacks: PerCpuStacks,
    figures: Box<[CachePadded<CpuFigures>]>,
    orders: PercpuOrders,
    batch: AtomicU32,
    high_min: AtomicU32,
    high_max: AtomicU32,
}

impl PerCpuLists {
    /// Makes empty lists for `cpus`. They never hold more than `most.high_max`.
    pub(crate) fn new(
        cpus: Cpus,
        orders: PercpuOrders,
        form: StackForm,
        most: Tuning,
        now: Tuning,
    ) -> std::io::Result<Self> {
        let mut capacities: Vec<usize> = Order::all()
            .map(|order| match orders.holds(order) {
                true => (most.high_max >> order.0) as usize,
                false => 0,
            })
            .map(|blocks| blocks.min(MOST_BLOCKS))
            .collect();
        capacities[0] = (most.high_max as usize).min(MOST_FRAMES);
        capacities.push((most.high_max as usize).min(MOST_ZEROED));
        let figures = (0..cpus.count()).map(|_| CachePadded::new(CpuFigures::default())).collect();
        let lists = Self {
            stacks: PerCpuStacks::new(cpus, &capacities, form)?,
            figures,
            orders,
            batch: AtomicU32::new(0),
            high_min: AtomicU32::new(0),
            high_max: AtomicU32::new(0),
        };
        lists.retune(now);
        Ok(lists)
    }

    /// Returns the most bytes of memory that the lists can use.
    pub(crate) fn bytes(&self) -> usize {
        self.stacks.bytes()
    }

    pub(crate) fn stacks(&self) -> &PerCpuStacks {
        &self.stacks
    }

    /// Returns whether blocks of this order may be here.
    #[inline]
    pub(crate) fn holds(&self, order: Order) -> bool {
        self.orders.holds(order)
    }

    /// Sets new figures. Each CPU applies them at its next slow path.
    pub(crate) fn retune(&self, tuning: Tuning) {
        self.batch.store(tuning.batch, Ordering::Relaxed);
        self.high_min.store(tuning.high_min, Ordering::Relaxed);
        self.high_max.store(tuning.high_max, Ordering::Relaxed);
    }

    pub(crate) fn tuning(&self) -> Tuning {
        Tuning {
            batch: self.batch.load(Ordering::Relaxed),
            high_min: self.high_min.load(Ordering::Relaxed),
            high_max: self.high_max.load(Ordering::Relaxed),
        }
    }

    /// Counts a miss for which this CPU found no frame. Returns whether to search other CPUs' lists: at every
    /// `n`th such miss, for `n` CPUs. So the number of searches of all CPUs together is no higher than the
    /// number of such misses on one CPU.
    pub(crate) fn looks_elsewhere(&self) -> bool {
        // Relaxed, and not one atomic step: the number need not be exact.
        let misses = &self.figures[self.stacks.cpu()].misses;
        let before = misses.load(Ordering::Relaxed);
        misses.store(before.wrapping_add(1), Ordering::Relaxed);
        (before as usize + 1).is_multiple_of(self.stacks.cpus())
    }

    /// Returns whether a CPU's lists are empty and all their limits are 0, as after a drain.
    pub(crate) fn is_drained(&self, cpu: usize) -> bool {
        self.stacks.is_closed(cpu, CLASSES)
    }

    /// Takes a block off this CPU's list. The block is in state Cached.
    #[inline]
    pub(crate) fn pop(&self, class: usize) -> Pop {
        self.stacks.pop(class)
    }

    /// Puts a block in state Cached on this CPU's list.
    #[inline]
    pub(crate) fn push(&self, class: usize, frame: FrameId) -> Push {
        self.stacks.push(class, frame.0)
    }

    /// Returns about how many frames are on all lists now.
    pub(crate) fn frames(&self) -> u64 {
        let frames_of = |cpu: usize, class: usize| (self.stacks.len(cpu, class) as u64) << order_of(class).0;
        (0..self.stacks.cpus()).flat_map(|cpu| (0..CLASSES).map(move |class| frames_of(cpu, class))).sum()
    }

    /// Serves a miss: refills the list from `take`. Returns a further block for the caller, in state Cached,
    /// and the number of frames that were taken.
    pub(crate) fn refill(
        &self,
        held: &Exclusive<'_>,
        order: Order,
        pressure: Pressure,
        mut take: impl FnMut() -> Option<FrameId>,
    ) -> (Option<FrameId>, u32) {
        let (tuning, figures) = (self.tuning(), &self.figures[held.cpu()]);
        let high = self.high(held.cpu(), tuning);
        halve(&figures.free_run);
        figures.freed_high_order.store(0, Ordering::Relaxed);
        let Some(first) = take() else { return (None, 0) };
        let more = self.refill_blocks(held, order, tuning) - 1;
        if pressure == Pressure::None {
            // The miss shows that the lists are too small, by a batch or by the size of this refill.
            let by = tuning.batch.max(more << order.0);
            figures.high.store((high + by).min(tuning.high_max).max(high), Ordering::Relaxed);
        }
        let room = self.make_room(held, order.index(), more);
        let got = held.insert_many(order.index(), room as usize, || Some(take()?.0)) as u32;
        // The limit is at least the number of blocks held.
        held.set_limit(order.index(), held.limit(order.index()).max(held.len(order.index())));
        figures.count_before.store(self.count(held), Ordering::Relaxed);
        (Some(first), (got + 1) << order.0)
    }

    /// Returns how many blocks to take at a miss. Misses in a row double the batch, and frees at the limit
    /// halve it.
    fn refill_blocks(&self, held: &Exclusive<'_>, order: Order, tuning: Tuning) -> u32 {
        if tuning.batch == 1 {
            return 1;
        }
        let figures = &self.figures[held.cpu()];
        let scale = figures.refill_scale.load(Ordering::Relaxed);
        let high = figures.high.load(Ordering::Relaxed);
        let least = if order == Order::ZERO { tuning.batch } else { (tuning.batch >> order.0).max(2) };
        let room = high.saturating_sub(self.count(held)).saturating_sub(tuning.batch);
        let most = (room >> order.0).max(least);
        if least << scale < most && scale < SCALE_MAX {
            figures.refill_scale.store(scale + 1, Ordering::Relaxed);
        }
        // A list that runs empty again and again is refilled in fewer, larger steps.
        let large = if order != Order::ZERO && scale == SCALE_MAX { (high / 4) >> order.0 } else { 0 };
        let blocks = (least << scale).max(large).min(most);
        // The words of two frames share a cache line. Otherwise, the last frame would share its cache line
        // with a frame of another CPU.
        if order == Order::ZERO { blocks.next_multiple_of(2) } else { blocks }
    }

    /// Serves a free that found its list at the limit. Puts the block on the list if it can, and gives the
    /// coldest blocks, or the block itself, to the zones through `give`.
    pub(crate) fn push_or_spill(
        &self,
        held: &Exclusive<'_>,
        order: Order,
        frame: FrameId,
        pressure: Pressure,
        mut give: impl FnMut(FrameId, Order),
    ) {
        let (tuning, figures) = (self.tuning(), &self.figures[held.cpu()]);
        let high = self.high(held.cpu(), tuning);
        let count = self.count(held);
        let since = count.saturating_sub(figures.count_before.load(Ordering::Relaxed)) + order.frames();
        let most_run = tuning.batch.max(2 << order.0) << SCALE_MAX;
        let run = (figures.free_run.load(Ordering::Relaxed) + since).min(most_run);
        figures.free_run.store(run, Ordering::Relaxed);
        halve(&figures.refill_scale);

        let high_order = order != Order::ZERO && order != Order::MAX;
        let followed = figures.freed_high_order.swap(u32::from(high_order), Ordering::Relaxed) != 0;
        let hoarding = high_order
            && followed
            && run >= tuning.batch + tuning.high_min / 2
            && count >= tuning.batch
            && tuning.batch > 1
            && self.owed(held, order) == 0;

        let spill = if hoarding {
            figures.high.store(high.saturating_sub(most_run).max(tuning.high_min), Ordering::Relaxed);
            most_run.min(count)
        } else if pressure >= Pressure::BelowHigh {
            let lower = high.saturating_sub(run.max(tuning.batch)).max(tuning.high_min);
            figures.high.store(lower, Ordering::Relaxed);
            let keep = if pressure == Pressure::BelowLow { (4 * tuning.batch).min(lower) } else { lower };
            count.saturating_sub(keep)
        } else {
            // This CPU will probably allocate as many frames again. So its list doubles until all of them
            // fit.
            let owed = self.owed(held, order);
            let doubled = if owed > 0 { count + order.frames() + owed.min(count.max(most_run)) } else { 0 };
            let wanted = (run + tuning.batch).max(doubled);
            if count + order.frames() > high && high < wanted {
                figures.high.store(wanted.clamp(tuning.high_min, tuning.high_max), Ordering::Relaxed);
            }
            0
        };
        if spill > 0 {
            self.spill(held, order, spill, &mut give);
        }
        let wanted = (tuning.batch >> order.0).max(1).max(held.len(order.index()) as u32 / 2);
        let mut room = self.make_room(held, order.index(), wanted);
        if room == 0 && order.frames() <= high {
            let high = figures.high.load(Ordering::Relaxed);
            let least = tuning.batch.max(order.frames());
            // If this CPU allocates such blocks too, make room for as many as its next refill.
            let run = if self.owed(held, order) > 0 { run.max(high / 4) } else { run };
            let pages = run.clamp(least, (high / 2).max(least));
            self.spill(held, order, pages, &mut give);
            room = self.make_room(held, order.index(), wanted);
        }
        if room == 0 || !held.insert(order.index(), frame.0) {
            give(frame, order);
        }
        figures.count_before.store(self.count(held), Ordering::Relaxed);
    }

    /// Returns how many frames of this order this CPU allocated and has not freed since, at most `high_max`.
    /// The number is 0 on a CPU that only frees the blocks of others.
    fn owed(&self, held: &Exclusive<'_>, order: Order) -> u32 {
        let (balance, least) = (held.balance(order.index()), self.least_balance(held, order.index()));
        let least_seen = (least.load(Ordering::Relaxed) as i64).min(balance);
        least.store(least_seen as u64, Ordering::Relaxed);
        let high_max = self.high_max.load(Ordering::Relaxed);
        ((balance - least_seen) as u64).saturating_mul(u64::from(order.frames())).min(high_max.into()) as u32
    }

    fn least_balance(&self, held: &Exclusive<'_>, class: usize) -> &AtomicU64 {
        &self.figures[held.cpu()].least_balance[class]
    }

    /// Gives back at least `frames` frames, or all if there are fewer. The coldest go first, beginning with
    /// `first`'s list. Returns how many.
    fn spill(
        &self,
        held: &Exclusive<'_>,
        first: Order,
        frames: u32,
        give: &mut impl FnMut(FrameId, Order),
    ) -> u32 {
        let mut left = i64::from(frames);
        for turn in 0..CLASSES {
            let class = (first.index() + turn) % CLASSES;
            if left <= 0 {
                break;
            }
            let order = order_of(class);
            let blocks = (left as u64).div_ceil(u64::from(order.frames())) as usize;
            let gone = held.remove_coldest(class, blocks, |value| give(FrameId(value), order));
            held.set_limit(class, held.len(class));
            left -= (gone as i64) << order.0;
        }
        (i64::from(frames) - left) as u32
    }

    /// Sets the limit of a class to up to `wanted` blocks more than it holds, with room that other classes do
    /// not use. Returns how many blocks it can add now.
    pub(crate) fn make_room(&self, held: &Exclusive<'_>, class: usize, wanted: u32) -> u32 {
        let high = self.high(held.cpu(), self.tuning());
        let order = order_of(class);
        let mut promised = self.promised(held);
        let own = (held.limit(class) as u32) << order.0;
        let needed = (held.len(class) as u32 + wanted) << order.0;
        if promised - own + needed > high {
            // At first, other classes keep half of their unused room. If that frees too little, they keep no
            // unused room.
            for keep_half in [true, false] {
                for other in (0..CLASSES).filter(|&other| other != class) {
                    let (len, limit) = (held.len(other), held.limit(other));
                    held.set_limit(other, if keep_half { len + (limit - len) / 2 } else { len });
                }
                promised = self.promised(held);
                if promised - own + needed <= high {
                    break;
                }
            }
        }
        let most = high.saturating_sub(promised - own) >> order.0;
        let limit = (held.len(class) as u32 + wanted).min(most).min(held.capacity(class) as u32);
        held.set_limit(class, limit.max(held.len(class) as u32) as usize);
        limit.saturating_sub(held.len(class) as u32)
    }

    /// Gives away all blocks of a CPU. Its limits start again from 0.
    pub(crate) fn drain(&self, held: &Exclusive<'_>, mut give: impl FnMut(FrameId, Order)) {
        for class in 0..CLASSES {
            while let Some(value) = held.remove(class) {
                give(FrameId(value), order_of(class));
            }
            held.set_limit(class, 0);
        }
        let figures = &self.figures[held.cpu()];
        for figure in [&figures.high, &figures.free_run, &figures.count_before, &figures.refill_scale] {
            figure.store(0, Ordering::Relaxed);
        }
    }

    /// Lowers `high` towards `high_min` by an eighth, and gives back the frames that then exceed it. This is
    /// the background thread's tick.
    pub(crate) fn decay(&self, held: &Exclusive<'_>, mut give: impl FnMut(FrameId, Order)) {
        let tuning = self.tuning();
        let (high, count) = (self.high(held.cpu(), tuning), self.count(held));
        let lower = count.saturating_sub(tuning.batch << SCALE_MAX).max(high - high / 8).max(tuning.high_min);
        self.figures[held.cpu()].high.store(lower, Ordering::Relaxed);
        for class in 0..CLASSES {
            held.set_limit(class, held.len(class));
            // Forget half of the frames that this CPU allocated and has not freed: a program that keeps them
            // for long may free them on another CPU.
            let (balance, least) = (held.balance(class), self.least_balance(held, class));
            let least_seen = least.load(Ordering::Relaxed) as i64;
            least.store((least_seen + (balance - least_seen) / 2) as u64, Ordering::Relaxed);
        }
        if count > lower {
            self.spill(held, Order::MAX, count - lower, &mut give);
        }
        self.figures[held.cpu()].count_before.store(self.count(held), Ordering::Relaxed);
    }

    /// Returns the CPU's `high`, moved within the present bounds.
    fn high(&self, cpu: usize, tuning: Tuning) -> u32 {
        let high = &self.figures[cpu].high;
        let bounded = high.load(Ordering::Relaxed).clamp(tuning.high_min, tuning.high_max);
        high.store(bounded, Ordering::Relaxed);
        bounded
    }

    /// Returns the frames on the CPU's lists.
    pub(crate) fn count(&self, held: &Exclusive<'_>) -> u32 {
        (0..CLASSES).map(|class| (held.len(class) as u32) << order_of(class).0).sum()
    }

    fn promised(&self, held: &Exclusive<'_>) -> u32 {
        (0..CLASSES).map(|class| (held.limit(class) as u32) << order_of(class).0).sum()
    }

    /// Passes every block on a CPU's lists to `visit`, and checks the limits.
    ///
    /// # Panics
    /// If a stack is above its limit, or the limits exceed both `high` and the frames held.
    pub(crate) fn validate(&self, held: &Exclusive<'_>, mut visit: impl FnMut(FrameId, Order, bool)) {
        for class in 0..CLASSES {
            assert!(held.len(class) <= held.limit(class), "a stack stays within its limit");
            held.for_each(class, |value| visit(FrameId(value), order_of(class), class == ZEROED_CLASS));
        }
        let bound = self.figures[held.cpu()].high.load(Ordering::Relaxed);
        // A lowered budget lowers `high` below the frames that are already held. The limits allow no frames
        // beyond those.
        assert!(self.promised(held) <= bound.max(self.count(held)), "the limits stay within high");
    }
}

fn order_of(class: usize) -> Order {
    if class == ZEROED_CLASS { Order::ZERO } else { Order(class as u8) }
}

fn halve(figure: &AtomicU32) {
    figure.store(figure.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const TUNING: Tuning = Tuning { batch: 63, high_min: 640, high_max: 8192 };

    fn lists(tuning: Tuning) -> PerCpuLists {
        PerCpuLists::new(Cpus::pretended(1, || 0), PercpuOrders::All, StackForm::TryLock, tuning, tuning)
            .unwrap()
    }

    fn refill(lists: &PerCpuLists, order: Order, next: &mut u32) -> u32 {
        let held = lists.stacks().exclusive_here().unwrap();
        let take = || {
            *next += order.frames();
            Some(FrameId(*next - order.frames()))
        };
        lists.refill(&held, order, Pressure::None, take).1 >> order.0
    }

    /// Frees one block as the allocator does, and returns the blocks that it spilled to the zones.
    fn free(lists: &PerCpuLists, order: Order, frame: u32, pressure: Pressure) -> Vec<(FrameId, Order)> {
        let mut spilled = Vec::new();
        if lists.push(order.index(), FrameId(frame)) != Push::Done {
            let held = lists.stacks().exclusive_here().unwrap();
            let give = |frame, order| spilled.push((frame, order));
            lists.push_or_spill(&held, order, FrameId(frame), pressure, give);
        }
        spilled
    }

    fn count(lists: &PerCpuLists) -> u32 {
        lists.count(&lists.stacks().exclusive_here().unwrap())
    }

    #[test]
    fn a_refill_takes_a_batch_in_frames_but_at_least_two_blocks() {
        for (order, blocks) in [(0, 64), (1, 31), (3, 7), (4, 3), (5, 2), (8, 2)] {
            let lists = lists(TUNING);
            assert_eq!(refill(&lists, Order(order), &mut 0), blocks, "order {order}");
            assert_eq!(count(&lists), (blocks - 1) << order, "counted in frames");
        }
    }

    #[test]
    fn a_batch_of_one_keeps_nothing() {
        let lists = lists(Tuning { batch: 1, high_min: 80, high_max: 256 });
        for order in Order::all() {
            assert_eq!(refill(&lists, order, &mut 0), 1);
            assert_eq!(count(&lists), 0);
        }
    }

    #[test]
    fn misses_in_a_row_double_the_refill_and_raise_high() {
        let lists = lists(TUNING);
        let mut next = 0;
        let mut refills = Vec::new();
        for _ in 0..5 {
            refills.push(refill(&lists, Order::ZERO, &mut next));
            while lists.pop(0) != Pop::Empty {}
        }
        assert!(
            refills.windows(2).all(|pair| pair[0] <= pair[1]) && refills[4] >= 8 * refills[0],
            "{refills:?}"
        );
        let held = lists.stacks().exclusive_here().unwrap();
        assert!(lists.high(held.cpu(), TUNING) > TUNING.high_min);
    }

    #[test]
    fn a_list_grows_to_a_bulk_of_4096_and_decays_afterwards() {
        let lists = lists(TUNING);
        for _ in 0..8 {
            let mut held = BTreeSet::new();
            let mut next = 0;
            while held.len() < 4096 {
                match lists.pop(0) {
                    Pop::Value(frame) => assert!(held.insert(frame), "one owner"),
                    _ => {
                        // Frame numbers start over in each round: spilled frames are free again.
                        refill(&lists, Order::ZERO, &mut next);
                        lists.drain(&lists.stacks().exclusive_here().unwrap(), |frame, _| {
                            assert!(held.insert(frame.0), "one owner")
                        });
                    }
                }
                next = next.max(held.last().map_or(0, |last| last + 1));
            }
            held.iter().for_each(|&frame| drop(free(&lists, Order::ZERO, frame, Pressure::None)));
        }
        let before = count(&lists);
        assert!(before > 2000, "{before}");
        for _ in 0..40 {
            lists.decay(&lists.stacks().exclusive_here().unwrap(), |_, _| {});
        }
        assert!(count(&lists) <= TUNING.high_min, "an idle list falls to high_min");
    }

    #[test]
    fn a_spill_starts_with_the_coldest_of_the_order_just_freed() {
        let fixed = Tuning { high_max: 2048, ..TUNING };
        let lists = lists(fixed);
        (0..100).for_each(|frame| assert!(free(&lists, Order::ZERO, frame, Pressure::None).is_empty()));
        let spilled = (1..8)
            .map(|block| free(&lists, Order::MAX, 512 * block, Pressure::None))
            .find(|spilled| !spilled.is_empty())
            .expect("the bound was reached");
        assert_eq!(spilled[0], (FrameId(512), Order::MAX), "the coldest goes first");
        assert!(spilled.iter().all(|&(_, order)| order == Order::MAX), "other orders keep their cache");
    }

    #[test]
    fn one_cpus_stream_of_high_order_frees_does_not_pile_up() {
        let lists = lists(TUNING);
        let mut most = 0;
        for block in 0..2000 {
            free(&lists, Order(3), 8 * block, Pressure::None);
            most = most.max(count(&lists));
        }
        // Without the rule, `high` rises with the run of frees, and the lists stay full of cold blocks.
        assert!(most <= TUNING.high_min, "{most} of {}", TUNING.high_min);
    }

    #[test]
    fn a_cpu_keeps_the_high_order_blocks_that_it_allocates_itself() {
        let lists = lists(Tuning { high_max: 1 << 16, ..TUNING });
        let (mut next, mut zone) = (0, Vec::new());
        for round in 0..12 {
            let held: Vec<u32> = std::iter::repeat_with(|| {
                loop {
                    match (lists.pop(4), zone.pop()) {
                        (Pop::Value(frame), spilled) => {
                            zone.extend(spilled);
                            return frame;
                        }
                        (_, Some((frame, _))) => return FrameId::index(frame) as u32,
                        _ => drop(refill(&lists, Order(4), &mut next)),
                    }
                }
            })
            .take(2000)
            .collect();
            zone.extend(held.iter().flat_map(|&frame| free(&lists, Order(4), frame, Pressure::None)));
            assert!(round < 11 || zone.is_empty(), "a bulk of 2000 fits in the end: {}", zone.len());
        }
        assert!(count(&lists) >= 2000 << 4);
    }

    #[test]
    fn shortage_empties_the_lists_to_four_batches() {
        let lists = lists(TUNING);
        (0..600).for_each(|frame| drop(free(&lists, Order::ZERO, frame, Pressure::None)));
        for frame in 600..1400 {
            free(&lists, Order::ZERO, frame, Pressure::BelowLow);
        }
        assert!(count(&lists) <= 4 * TUNING.batch + TUNING.batch, "{}", count(&lists));
    }

    #[test]
    fn a_huge_block_that_cannot_fit_goes_straight_to_its_zone() {
        let lists = lists(Tuning { batch: 1, high_min: 80, high_max: 256 });
        free(&lists, Order::ZERO, 7, Pressure::None);
        assert_eq!(free(&lists, Order::MAX, 512, Pressure::None), [(FrameId(512), Order::MAX)]);
        assert_eq!(count(&lists), 1, "order 0 keeps its cache");
    }

    proptest! {
        #[test]
        fn count_is_the_sum_and_within_high_and_no_block_is_lost(
            steps in prop::collection::vec((0u8..5, 0u8..10, 0u8..3), 1..300),
            batch_is_one in any::<bool>(),
        ) {
            let tuning = if batch_is_one { Tuning { batch: 1, high_min: 80, high_max: 2048 } } else { TUNING };
            let lists = lists(tuning);
            // The model knows which blocks the zones and the owners have. The rest must be on the lists.
            let mut zone: Vec<BTreeSet<u32>> =
                (0..10).map(|order: u32| (0..64).map(|i| (order << 20) + (i << order)).collect()).collect();
            let mut owned: Vec<(u32, Order)> = Vec::new();
            for (step, order, pressure) in steps {
                let order = Order(order);
                let pressure = [Pressure::None, Pressure::BelowHigh, Pressure::BelowLow][pressure as usize];
                match step {
                    0 | 1 => match lists.pop(order.index()) {
                        Pop::Value(frame) => owned.push((frame, order)),
                        _ => {
                            let held = lists.stacks().exclusive_here().unwrap();
                            let take = || zone[order.index()].pop_first().map(FrameId);
                            if let Some(frame) = lists.refill(&held, order, pressure, take).0 {
                                owned.push((frame.0, order));
                            }
                        }
                    },
                    2 | 3 => if let Some((frame, order)) = owned.pop() {
                        for (frame, order) in free(&lists, order, frame, pressure) {
                            prop_assert!(zone[order.index()].insert(frame.0));
                        }
                    },
                    _ => lists.decay(&lists.stacks().exclusive_here().unwrap(), |frame, order| {
                        assert!(zone[order.index()].insert(frame.0));
                    }),
                }
                let held = lists.stacks().exclusive_here().unwrap();
                let mut sum = 0;
                lists.validate(&held, |frame, order, _| {
                    assert!(!zone[order.index()].contains(&frame.0), "in one place only");
                    assert!(!owned.contains(&(frame.0, order)), "in one place only");
                    sum += order.frames();
                });
                prop_assert_eq!(sum, lists.count(&held));
                prop_assert!(sum <= tuning.high_max);
                drop(held);
                prop_assert_eq!(lists.frames(), u64::from(sum));
            }
            let everything: u32 = (0..10).map(|order| 64 << order).sum();
            let out: u32 = owned.iter().map(|(_, order)| order.frames()).sum();
            let in_zone: u32 = (0..10).map(|order| (zone[order].len() as u32) << order).sum();
            prop_assert_eq!(count(&lists) + out + in_zone, everything);
        }
    }
}

#[cfg(all(test, loom))]
mod loom;
