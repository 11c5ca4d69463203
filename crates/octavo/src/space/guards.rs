//! Guards of a space: bytes to borrow.

use std::future::Future;

use bytemuck::Pod;

use crate::access::{
    self, ExclusiveGuard, ExclusiveGuardOf, OptimisticGuard, SharedGuard, SharedGuardOf, Taker,
};
use crate::error::Result;
use crate::frame::latch::Hold;
use crate::space::{Space, inside};
use crate::sync::Shared as Arc;

/// A `&[T]` of a guarded region that keeps its space in an `Arc`. You can store it, and send it to other
/// threads. From [`Space::shared_owned`]. See [`SharedGuardOf`].
pub type OwnedSharedGuard<T> = SharedGuardOf<Arc<Space>, T>;
/// A `&mut [T]` of a guarded region that keeps its space in an `Arc`. From [`Space::exclusive_owned`]. See
/// [`ExclusiveGuardOf`].
pub type OwnedExclusiveGuard<T> = ExclusiveGuardOf<Arc<Space>, T>;

/// # Guards
///
/// A region that is mapped with [`RegionOptions::guarded`](crate::RegionOptions::guarded) lends its bytes:
/// a guard is a `&[T]` or a `&mut [T]` of plain data ([`bytemuck::Pod`](https://docs.rs/bytemuck)), in
/// place, without a copy. All values of a guard must lie within one aligned piece of 2 MiB, so a guard
/// covers 512 pages at most. If its pages do not lie together in memory, they are moved.
///
/// Guards exclude each other by whole pages, including the guards of one thread. **A thread that has a
/// guard of a page and asks for another one waits forever if either is exclusive**, as with an
/// [`RwLock`](std::sync::RwLock). Threads that hold guards and ask for each other's may deadlock, too.
/// Calls with *try* in their names fail instead. While a guard, or its future, waits for a page, it holds
/// the pages before it.
///
/// A shared guard does not wait for other shared guards. But pages that do not lie together cannot be
/// moved while another guard reads one of them. A shared guard of them then fails with `Busy`, after half
/// a second.
///
/// ```
/// use octavo::{Manager, RegionOptions};
///
/// let space = Manager::builder().budget_bytes(16 << 20).build()?.space()?;
/// let at = space.map(1 << 20, RegionOptions::new().guarded(true))?;
/// let mut numbers = space.exclusive::<u32>(at, 100_000)?;
/// numbers.iter_mut().rev().zip(0..).for_each(|(number, index)| *number = index);
/// numbers.sort_unstable();
/// drop(numbers);
/// assert_eq!(space.shared::<u32>(at + 4000, 3)?[..], [1000, 1001, 1002]);
/// # Ok::<(), octavo::Error>(())
/// ```
impl Space {
    /// Lends `len` values from `address` on for reading. Waits until no exclusive guard has their pages.
    ///
    /// # Errors
    /// `Busy` if pages have to be moved, and one of them is held for half a second. `Protected` if the
    /// region is not guarded. `InvalidRange` for no values, and for values that are unaligned or do not
    /// lie in one aligned piece of 2 MiB. `TooManyPins` as for [`Space::pin_exact`]. `OutOfMemory` also if
    /// no frames lie together and none can be brought together. Otherwise as [`Space::load`].
    #[inline]
    pub fn shared<T: Pod>(&self, address: u64, len: usize) -> Result<SharedGuard<'_, T>> {
        access::lend(&self.engine, &self.state, address, len, Hold::Shared, Taker::Thread)
            .map(access::Lent::shared)
    }

    /// Lends `len` values from `address` on for writing. Waits until no other guard has their pages.
    ///
    /// # Errors
    /// As [`Space::shared`].
    #[inline]
    pub fn exclusive<T: Pod>(&self, address: u64, len: usize) -> Result<ExclusiveGuard<'_, T>> {
        access::lend(&self.engine, &self.state, address, len, Hold::Exclusive, Taker::Thread)
            .map(access::Lent::exclusive)
    }

    /// As [`Space::exclusive`], but only if there is one page, or a block shows all pages, and the call
    /// need not wait. Otherwise, returns `None`.
    pub(crate) fn exclusive_at_hand<T: Pod>(
        &self,
        address: u64,
        len: usize,
    ) -> Result<Option<ExclusiveGuard<'_, T>>> {
        let lent = access::lend_at_hand(&self.engine, &self.state, address, len, Hold::Exclusive)?;
        Ok(lent.map(access::Lent::exclusive))
    }

    /// As [`Space::shared`], without waiting for other guards.
    ///
    /// # Errors
    /// `Busy` if an exclusive guard has one of the pages; and as [`Space::shared`].
    #[inline]
    pub fn try_shared<T: Pod>(&self, address: u64, len: usize) -> Result<SharedGuard<'_, T>> {
        access::lend(&self.engine, &self.state, address, len, Hold::Shared, Taker::Try)
            .map(access::Lent::shared)
    }

    /// As [`Space::exclusive`], without waiting for other guards.
    ///
    /// # Errors
    /// `Busy` if another guard has one of the pages; and as [`Space::shared`].
    #[inline]
    pub fn try_exclusive<T: Pod>(&self, address: u64, len: usize) -> Result<ExclusiveGuard<'_, T>> {
        access::lend(&self.engine, &self.state, address, len, Hold::Exclusive, Taker::Try)
            .map(access::Lent::exclusive)
    }

    /// As [`Space::shared`], without blocking the executor. A dropped future holds nothing.
    ///
    /// # Errors
    /// As [`Space::shared`].
    pub fn shared_async<T: Pod + Send + Sync>(
        &self,
        address: u64,
        len: usize,
    ) -> impl Future<Output = Result<SharedGuard<'_, T>>> + Send + '_ {
        inside(async move {
            access::lend_async(&self.engine, &self.state, address, len, Hold::Shared)
                .await
                .map(access::Lent::shared)
        })
    }

    /// As [`Space::exclusive`], without blocking the executor. A dropped future holds nothing.
    ///
    /// # Errors
    /// As [`Space::shared`].
    pub fn exclusive_async<T: Pod + Send + Sync>(
        &self,
        address: u64,
        len: usize,
    ) -> impl Future<Output = Result<ExclusiveGuard<'_, T>>> + Send + '_ {
        inside(async move {
            access::lend_async(&self.engine, &self.state, address, len, Hold::Exclusive)
                .await
                .map(access::Lent::exclusive)
        })
    }

    /// As [`Space::shared`], with a guard that keeps the space.
    ///
    /// # Errors
    /// As [`Space::shared`].
    pub fn shared_owned<T: Pod>(self: &Arc<Self>, address: u64, len: usize) -> Result<OwnedSharedGuard<T>> {
        self.shared(address, len).map(|guard| guard.held_by(Arc::clone(self)))
    }

    /// As [`Space::exclusive`], with a guard that keeps the space.
    ///
    /// # Errors
    /// As [`Space::shared`].
    pub fn exclusive_owned<T: Pod>(
        self: &Arc<Self>,
        address: u64,
        len: usize,
    ) -> Result<OwnedExclusiveGuard<T>> {
        self.exclusive(address, len).map(|guard| guard.held_by(Arc::clone(self)))
    }

    /// As [`Space::shared_async`], with a future and a guard that keep the space.
    ///
    /// # Errors
    /// As [`Space::shared`].
    pub fn shared_owned_async<T: Pod + Send + Sync>(
        self: &Arc<Self>,
        address: u64,
        len: usize,
    ) -> impl Future<Output = Result<OwnedSharedGuard<T>>> + Send + use<T> {
        let space = Arc::clone(self);
        async move {
            let lent = space.shared_async(address, len).await;
            lent.map(|guard| guard.held_by(Arc::clone(&space)))
        }
    }

    /// As [`Space::exclusive_async`], with a future and a guard that keep the space.
    ///
    /// # Errors
    /// As [`Space::shared`].
    pub fn exclusive_owned_async<T: Pod + Send + Sync>(
        self: &Arc<Self>,
        address: u64,
        len: usize,
    ) -> impl Future<Output = Result<OwnedExclusiveGuard<T>>> + Send + use<T> {
        let space = Arc::clone(self);
        async move {
            let lent = space.exclusive_async(address, len).await;
            lent.map(|guard| guard.held_by(Arc::clone(&space)))
        }
    }

    /// Begins a read of the page at `address` that blocks no other thread. The read is checked afterwards;
    /// see [`OptimisticGuard`]. Waits until no exclusive guard has the page.
    ///
    /// # Errors
    /// `Protected` if the region is not guarded; otherwise as [`Space::load`].
    #[inline]
    pub fn optimistic(&self, address: u64) -> Result<OptimisticGuard<'_>> {
        access::optimistic(&self.engine, &self.state, address)
    }

    /// Copies bytes out of a guarded region. The bytes of each page are from one moment: no exclusive
    /// guard changes the page during its copy. A page in memory costs about as much as with
    /// [`Space::read`].
    ///
    /// # Errors
    /// As [`Space::optimistic`]. The bytes copied before the failure stay.
    #[inline]
    pub fn read_guarded(&self, address: u64, to: &mut [u8]) -> Result<()> {
        access::read_guarded(&self.engine, &self.state, address, to)
    }
}
