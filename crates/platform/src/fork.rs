//! Telling a forked child from its parent, by one load.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::ZeroedArray;

/// Reads true in the process that made it and false in any child forked from it, by `MADV_WIPEONFORK`.
#[derive(Debug)]
pub struct ForkCanary {
    word: ZeroedArray<AtomicU64>,
}

impl ForkCanary {
    /// # Errors
    /// The kernel's, when it cannot wipe on fork (before Linux 4.14).
    pub fn new() -> io::Result<Self> {
        let word = ZeroedArray::<AtomicU64>::wiped_on_fork(1)?;
        word[0].store(1, Ordering::Relaxed);
        Ok(Self { word })
    }

    /// Whether this is the process that made the canary. One load.
    #[inline]
    pub fn is_original_process(&self) -> bool {
        self.word[0].load(Ordering::Relaxed) != 0
    }
}
