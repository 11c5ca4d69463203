//! Words of a space: loads, stores, and changes in one step.
//!
//! A word has up to 16 bytes, and its address is a multiple of its size, rounded up to a power of two. So it
//! lies in one page and is never torn.

use octavo_platform::{Change, Integer, Word};

use crate::access;
use crate::error::Result;
use crate::space::Space;

/// # Words
///
/// A word is plain data ([`bytemuck::Pod`](https://docs.rs/bytemuck)) of 1 to 16 bytes. Its address must
/// be a multiple of its size, rounded up to a power of two: a multiple of 16 for a word of 12 bytes. A
/// word whose size is not a power of two is stored by compare-and-swap, which leaves the bytes after it
/// unchanged.
///
/// **Orderings**, in the terms of [`std::sync::atomic::Ordering`]: a load acquires and a store releases.
/// All other operations are sequentially consistent with each other. For a store in that order, use
/// [`Space::swap`]; for a load, `fetch_add(address, 0)`. Threads that access parts of a word at different
/// sizes see each part whole.
impl Space {
    /// Reads one value at `address`, in one step: never half of another thread's store. If the page is in
    /// memory (a *hit*), this takes no lock and writes nothing. (On a processor without AVX, a load of 16
    /// bytes is a locked instruction.)
    ///
    /// # Errors
    /// `InvalidRange` for an unaligned address, `NotMapped`, `Protected` (also in a guarded region, which
    /// only guards can access). If the page must be brought in, also the errors of reclaim and of the swap
    /// device: `OutOfMemory`, `QuotaExceeded`, `SwapFull`, `SwapWrite`, `SwapRead`, `TimedOut`, `Corrupt`.
    /// `ForkedChild` in a forked child.
    #[inline]
    pub fn load<W: Word>(&self, address: u64) -> Result<W> {
        access::load(&self.engine, &self.state, address)
    }

    /// Writes one value at `address`, in one step. A hit takes no lock, and costs two read-modify-writes.
    ///
    /// # Errors
    /// As [`Space::load`], and `TooManyPins` if the page has as many pins as can be counted.
    #[inline]
    pub fn store<W: Word>(&self, address: u64, value: W) -> Result<()> {
        access::store(&self.engine, &self.state, address, value)
    }

    /// Stores a word at `address`, and returns the previous word. A hit takes no lock, and costs three
    /// read-modify-writes, as does each of the following.
    ///
    /// # Errors
    /// As [`Space::store`].
    #[inline]
    pub fn swap<W: Word>(&self, address: u64, value: W) -> Result<W> {
        access::on_word::<W, _>(&self.engine, &self.state, address, |bytes, at| bytes.swap(at, value))
    }

    /// Stores `new` at `address` if the bytes there are those of `current`. Returns what was there, as an
    /// inner error if it was something else. The page counts as written either way.
    ///
    /// ```
    /// # use octavo::{Manager, RegionOptions};
    /// # let space = Manager::builder().budget_bytes(16 << 20).build()?.space()?;
    /// # let at = space.map(4096, RegionOptions::default())?;
    /// assert_eq!(space.compare_exchange(at, 0_u64, 7)?, Ok(0));
    /// assert_eq!(space.compare_exchange(at, 0_u64, 8)?, Err(7));
    /// # Ok::<(), octavo::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Space::store`].
    #[inline]
    pub fn compare_exchange<W: Word>(&self, address: u64, current: W, new: W) -> Result<Result<W, W>> {
        access::on_word::<W, _>(&self.engine, &self.state, address, |bytes, at| {
            bytes.compare_exchange(at, current, new)
        })
    }

    /// Replaces the word at `address` by the result of `change`. Returns the previous word. If `change`
    /// returns `None`, nothing is stored, and the word comes as an inner error; that is a load. `change`
    /// is called again whenever another thread has changed the word in the meantime.
    ///
    /// # Errors
    /// As [`Space::store`].
    pub fn fetch_update<W: Word>(
        &self,
        address: u64,
        mut change: impl FnMut(W) -> Option<W>,
    ) -> Result<Result<W, W>> {
        let mut current = self.load(address)?;
        while let Some(new) = change(current) {
            match self.compare_exchange(address, current, new)? {
                Ok(before) => return Ok(Ok(before)),
                Err(now) => current = now,
            }
        }
        Ok(Err(current))
    }

    /// Adds to the integer at `address`, and wraps around on overflow. Returns the previous value.
    ///
    /// # Errors
    /// As [`Space::store`].
    #[inline]
    pub fn fetch_add<I: Integer>(&self, address: u64, value: I) -> Result<I> {
        self.change(address, Change::Add, value)
    }

    /// Subtracts from the integer at `address`, and wraps around on overflow. Returns the previous value.
    ///
    /// # Errors
    /// As [`Space::store`].
    #[inline]
    pub fn fetch_sub<I: Integer>(&self, address: u64, value: I) -> Result<I> {
        self.change(address, Change::Sub, value)
    }

    /// Stores the bitwise AND of the integer at `address` and `value`. Returns the previous value.
    ///
    /// # Errors
    /// As [`Space::store`].
    #[inline]
    pub fn fetch_and<I: Integer>(&self, address: u64, value: I) -> Result<I> {
        self.change(address, Change::And, value)
    }

    /// Stores the bitwise OR of the integer at `address` and `value`. Returns the previous value.
    ///
    /// # Errors
    /// As [`Space::store`].
    #[inline]
    pub fn fetch_or<I: Integer>(&self, address: u64, value: I) -> Result<I> {
        self.change(address, Change::Or, value)
    }

    /// Stores the bitwise XOR of the integer at `address` and `value`. Returns the previous value.
    ///
    /// # Errors
    /// As [`Space::store`].
    #[inline]
    pub fn fetch_xor<I: Integer>(&self, address: u64, value: I) -> Result<I> {
        self.change(address, Change::Xor, value)
    }

    /// Stores the smaller of the integer at `address` and `value`. Returns the previous value.
    ///
    /// # Errors
    /// As [`Space::store`].
    #[inline]
    pub fn fetch_min<I: Integer>(&self, address: u64, value: I) -> Result<I> {
        self.change(address, Change::Min, value)
    }

    /// Stores the larger of the integer at `address` and `value`. Returns the previous value.
    ///
    /// # Errors
    /// As [`Space::store`].
    #[inline]
    pub fn fetch_max<I: Integer>(&self, address: u64, value: I) -> Result<I> {
        self.change(address, Change::Max, value)
    }

    #[inline(always)]
    fn change<I: Integer>(&self, address: u64, change: Change, value: I) -> Result<I> {
        access::on_word::<I, _>(&self.engine, &self.state, address, |bytes, at| {
            bytes.change(at, change, value)
        })
    }
}
