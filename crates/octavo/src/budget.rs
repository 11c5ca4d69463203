//! One budget over everything: chunks, frame words, table nodes, swap maps and buffers.
//!
//! Code that takes memory from the kernel charges it here first. When it gives the memory back, it then gives
//! the charge back as well. The kernel's count is decisive: the peak resident set of the process stays within
//! the budget.

use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::units::PAGE_SHIFT;

/// Some tables get no room when pages are evicted. So chunks leave tables at least this much room, or their
/// whole part if that is less.
const LEAST_HEADROOM_BYTES: u64 = 1 << 20;

/// The bytes that may be used, and those that are in use.
#[derive(Debug)]
pub(crate) struct Budget {
    limit_bytes: AtomicU64,
    used_bytes: AtomicU64,
    /// The part of `used_bytes` that tables, maps and buffers take.
    tables_bytes: AtomicU64,
    /// The part of the limit, as a shift, that chunks leave to tables and maps. Tables and maps come later
    /// and cannot be moved. If the shift is 64 or more, chunks leave nothing.
    headroom_shift: u32,
    /// The most that the limit may be raised to. Addresses are reserved for it.
    most_bytes: u64,
    /// The part of `used_bytes` outside the manager, as last reported.
    outside_bytes: Mutex<u64>,
    /// The part of `used_bytes` that is charged but takes no memory of its own. The limit allows this much
    /// more.
    shared_bytes: AtomicU64,
}

/// What a budget says at one moment. The parts are at most `used_bytes`, except while other threads charge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) limit_bytes: u64,
    pub(crate) used_bytes: u64,
    pub(crate) tables_bytes: u64,
    pub(crate) outside_bytes: u64,
    pub(crate) shared_bytes: u64,
}

impl Budget {
    /// Makes a budget whose whole limit may go to chunks.
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self::with_headroom(limit_bytes, limit_bytes, u64::BITS)
    }

    /// Makes a budget in which chunks leave the limit >> `headroom_shift` to tables and maps. The limit may
    /// be raised to `most_bytes`.
    pub(crate) fn with_headroom(limit_bytes: u64, most_bytes: u64, headroom_shift: u32) -> Self {
        Self {
            limit_bytes: AtomicU64::new(limit_bytes),
            used_bytes: AtomicU64::new(0),
            tables_bytes: AtomicU64::new(0),
            headroom_shift,
            most_bytes,
            outside_bytes: Mutex::new(0),
            shared_bytes: AtomicU64::new(0),
        }
    }

    /// Charges memory outside the manager, in place of the previous figure, even if it exceeds the limit.
    pub(crate) fn set_outside(&self, bytes: u64) {
        let mut outside = self.outside_bytes.lock();
        let before = std::mem::replace(&mut *outside, bytes);
        if bytes > before {
            self.used_bytes.fetch_add(bytes - before, Ordering::Relaxed);
        } else {
            self.uncharge_pages(before - bytes);
        }
    }

    /// Returns the charged bytes outside the manager.
    pub(crate) fn outside_bytes(&self) -> u64 {
        *self.outside_bytes.lock()
    }

    /// Sets how many of the charged bytes take no memory of their own, in place of the previous figure.
    pub(crate) fn set_shared(&self, bytes: u64) {
        // Relaxed: like the figures that it is added to, it orders nothing.
        self.shared_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes that are charged but take no memory of their own.
    pub(crate) fn shared_bytes(&self) -> u64 {
        self.shared_bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes that may be charged.
    fn chargeable_bytes(&self) -> u64 {
        self.limit_bytes() + self.shared_bytes()
    }

    pub(crate) fn most_bytes(&self) -> u64 {
        self.most_bytes
    }

    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    /// Returns the pages that the limit has room for, if nothing else is charged.
    pub(crate) fn limit_pages(&self) -> u64 {
        self.limit_bytes() >> PAGE_SHIFT
    }

    pub(crate) fn set_limit_bytes(&self, bytes: u64) {
        self.limit_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Reads each figure once.
    pub(crate) fn reading(&self) -> Reading {
        Reading {
            limit_bytes: self.limit_bytes(),
            used_bytes: self.used_bytes(),
            tables_bytes: self.tables_bytes.load(Ordering::Relaxed),
            outside_bytes: self.outside_bytes(),
            shared_bytes: self.shared_bytes(),
        }
    }

    /// Returns the bytes that may still be charged. The number is negative if the limit was lowered below the
    /// bytes in use, or if pages that were shared have become copies.
    pub(crate) fn room_bytes(&self) -> i64 {
        self.chargeable_bytes() as i64 - self.used_bytes() as i64
    }

    /// Returns the bytes that chunks and away pages leave to tables and maps. That is the unused rest of the
    /// part for tables and maps. But it is at least a quarter of that part or [`LEAST_HEADROOM_BYTES`],
    /// whichever is more, up to the whole part.
    pub(crate) fn headroom_bytes(&self) -> u64 {
        let part = self.limit_bytes().checked_shr(self.headroom_shift).unwrap_or(0);
        let least = (part / 4).max(LEAST_HEADROOM_BYTES).min(part);
        part.saturating_sub(self.tables_bytes.load(Ordering::Relaxed)).max(least)
    }

    /// Returns the bytes that chunks may still take.
    pub(crate) fn room_for_chunks_bytes(&self) -> u64 {
        (self.room_bytes() - self.headroom_bytes() as i64).max(0) as u64
    }

    /// Charges `bytes` for a chunk, or nothing if they would cut into the headroom.
    #[must_use = "an uncharged use breaks the budget"]
    pub(crate) fn charge_chunk(&self, bytes: u64) -> bool {
        self.charge_below(bytes, self.chargeable_bytes() - self.headroom_bytes())
    }

    /// Charges `bytes` for pages that are away, or nothing if less than `spare_bytes` would be left of the
    /// room for chunks.
    #[must_use = "an uncharged use breaks the budget"]
    pub(crate) fn charge_leaving(&self, bytes: u64, spare_bytes: u64) -> bool {
        let most_bytes = (self.chargeable_bytes() - self.headroom_bytes()).checked_sub(spare_bytes);
        most_bytes.is_some_and(|most_bytes| self.charge_below(bytes, most_bytes))
    }

    /// Charges `bytes` for tables, or nothing if they would exceed the limit.
    #[must_use = "an uncharged use breaks the budget"]
    pub(crate) fn charge(&self, bytes: u64) -> bool {
        let charged = self.charge_below(bytes, self.chargeable_bytes());
        if charged {
            self.tables_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        charged
    }

    fn charge_below(&self, bytes: u64, most_bytes: u64) -> bool {
        // Relaxed: the figure orders nothing. The memory itself passes through the locks of the callers.
        self.used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|&used| used <= most_bytes)
            })
            .is_ok()
    }

    /// Charges `bytes` for tables even if that exceeds the limit: for the few kilobytes that reclaim itself
    /// needs. The excess shows as negative room. Reclaim compensates for it by giving a chunk back.
    pub(crate) fn charge_over(&self, bytes: u64) {
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.tables_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives back the charge of `bytes` for tables.
    pub(crate) fn uncharge(&self, bytes: u64) {
        self.tables_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.uncharge_pages(bytes);
    }

    /// Gives back the charge of `bytes` for a chunk, or for pages that were away.
    pub(crate) fn uncharge_pages(&self, bytes: u64) {
        let before = self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "uncharged more than was charged");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn tables_take_what_chunks_have_left_to_them() {
        const MIB: u64 = 1 << 20;
        let budget = Budget::with_headroom(384 * MIB, 384 * MIB, 5);
        assert_eq!(budget.headroom_bytes(), 12 * MIB);
        assert!(!budget.charge_chunk(373 * MIB) && budget.charge_chunk(360 * MIB));
        assert!(budget.charge(7 * MIB));
        assert_eq!((budget.headroom_bytes(), budget.room_for_chunks_bytes()), (5 * MIB, 12 * MIB));
        budget.charge_over(4 * MIB);
        assert_eq!(budget.headroom_bytes(), 3 * MIB, "more tables may come");
        budget.uncharge(11 * MIB);
        budget.uncharge_pages(360 * MIB);
        assert_eq!((budget.headroom_bytes(), budget.used_bytes()), (12 * MIB, 0));
    }

    #[test]
    fn small_budgets_leave_tables_all_of_their_part() {
        let budget = Budget::with_headroom(32 << 20, 32 << 20, 5);
        budget.charge_over(900 << 10);
        assert_eq!(budget.headroom_bytes(), 1 << 20);
    }

    #[test]
    fn what_is_outside_is_no_table() {
        let budget = Budget::with_headroom(3200, 3200, 5);
        budget.set_outside(1000);
        assert_eq!((budget.headroom_bytes(), budget.used_bytes()), (100, 1000));
        budget.set_outside(10);
        assert_eq!((budget.headroom_bytes(), budget.used_bytes()), (100, 10));
    }

    #[test]
    fn what_is_charged_twice_and_is_there_once_takes_room_once() {
        let budget = Budget::with_headroom(3200, 3200, 5);
        assert!(budget.charge_leaving(3100, 0) && !budget.charge_leaving(1, 0));
        budget.set_shared(1000);
        assert_eq!((budget.room_bytes(), budget.room_for_chunks_bytes()), (1100, 1000));
        assert!(
            budget.charge_leaving(600, 400) && !budget.charge_leaving(1, 400) && budget.charge_chunk(400)
        );
        budget.set_shared(200);
        assert_eq!((budget.room_bytes(), budget.room_for_chunks_bytes()), (-700, 0), "800 bytes were copied");
    }
}
