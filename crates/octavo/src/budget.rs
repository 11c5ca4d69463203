//! One budget over everything: chunks, frame words, table nodes, swap maps, buffers.
//!
//! Whoever takes memory from the kernel charges it here first, and gives the charge back after the memory.
//! The test is not this figure but the kernel's: the process's peak resident set stays within the budget.

use crate::sync::{AtomicU64, Ordering};

/// Bytes that may be used, and bytes that are.
#[derive(Debug)]
pub(crate) struct Budget {
    limit_bytes: AtomicU64,
    used_bytes: AtomicU64,
}

impl Budget {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes: AtomicU64::new(limit_bytes), used_bytes: AtomicU64::new(0) }
    }

    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_limit_bytes(&self, bytes: u64) {
        self.limit_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// What may still be charged; negative when the limit was lowered below what is used.
    pub(crate) fn room_bytes(&self) -> i64 {
        self.limit_bytes() as i64 - self.used_bytes() as i64
    }

    /// Takes `bytes`, or nothing where they would exceed the limit.
    #[must_use = "an uncharged use breaks the budget"]
    pub(crate) fn charge(&self, bytes: u64) -> bool {
        // Relaxed: the figure orders nothing; the memory itself is handed over by the locks of its takers.
        self.used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|&used| used <= self.limit_bytes())
            })
            .is_ok()
    }

    /// Takes `bytes` even where that exceeds the limit: for the few kilobytes that reclaim cannot do without. The
    /// excess shows as negative room, and reclaim makes up for it by giving a chunk back.
    pub(crate) fn charge_over(&self, bytes: u64) {
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives `bytes` back.
    pub(crate) fn uncharge(&self, bytes: u64) {
        let before = self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "uncharged more than was charged");
    }
}
