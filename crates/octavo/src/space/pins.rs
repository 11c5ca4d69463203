//! Pins of a space: borrowed and owned, blocking and async.

use std::future::Future;

use crate::access::{self, Cover, Pin, PinHolder, PinOf};
use crate::engine::Engine;
use crate::error::Result;
use crate::space::{Space, inside};
use crate::sync::Shared as Arc;
use crate::table::Access;

/// A pin that keeps its space. You can store it, send it to other threads, and pass it to other languages.
/// From [`Space::pin_owned`]. See [`PinOf`] for its methods.
pub type OwnedPin = PinOf<Arc<Space>>;

impl PinHolder for Arc<Space> {
    fn engine(&self) -> &Engine {
        &self.engine
    }
}

/// # Pins
///
/// A pin keeps memory in its place until it is dropped: for system calls, devices, and access without
/// faults. Others can still read and write the bytes; for exclusive access, use a guard. If there are
/// several spaces, the pins and guards of one may keep at most three quarters of the budget, or its quota.
/// Pages that were unmapped while pinned count. Pins with *owned* in their names need the space in an
/// [`Arc`](std::sync::Arc), and keep it.
impl Space {
    /// Pins `len` bytes from `address` on: all of them, or nothing.
    ///
    /// # Errors
    /// As [`Space::load`], for any of the pages. `TooManyPins` if a page has as many pins as can be
    /// counted, or if the pins and guards of the space keep its share of memory. After an error, nothing
    /// is pinned.
    #[inline]
    pub fn pin_exact(&self, address: u64, len: usize, access: Access) -> Result<Pin<'_>> {
        access::pin(&self.engine, &self.state, address, len, access, Cover::All)
    }

    /// Pins up to `len` bytes from `address` on, as `get_user_pages` does. If a page after the first
    /// cannot be pinned, the pin covers fewer bytes; see [`PinOf::len`].
    ///
    /// # Errors
    /// As [`Space::pin_exact`], for the first page.
    #[inline]
    pub fn pin_prefix(&self, address: u64, len: usize, access: Access) -> Result<Pin<'_>> {
        access::pin(&self.engine, &self.state, address, len, access, Cover::Prefix)
    }

    /// As [`Space::pin_exact`], with a pin that keeps the space.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use octavo::{Access, Manager, OwnedPin, RegionOptions};
    ///
    /// struct Header { pin: OwnedPin }
    ///
    /// let space = Arc::new(Manager::builder().budget_bytes(16 << 20).build()?.space()?);
    /// let at = space.map(4096, RegionOptions::default())?;
    /// let header = Header { pin: space.pin_owned(at, 64, Access::Write)? };
    /// drop(space);
    /// std::thread::spawn(move || header.pin.copy_in(0, b"kept")).join().unwrap()?;
    /// # Ok::<(), octavo::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Space::pin_exact`].
    pub fn pin_owned(self: &Arc<Self>, address: u64, len: usize, access: Access) -> Result<OwnedPin> {
        self.pin_exact(address, len, access).map(|pin| pin.held_by(Arc::clone(self)))
    }

    /// Pins as [`Space::pin_exact`] does, without blocking the executor. Up to 128 reads of pages that are
    /// out overlap, and each page stays pinned once it is in memory. After every 128 pages, out or not,
    /// other tasks may run. A dropped future holds nothing. With
    /// [`PinPath::Locked`](crate::PinPath::Locked), the base version of pinning, the call takes the lock
    /// of the space's regions, and may have to wait for it.
    ///
    /// # Errors
    /// As [`Space::pin_exact`].
    pub fn pin_async(
        &self,
        address: u64,
        len: usize,
        access: Access,
    ) -> impl Future<Output = Result<Pin<'_>>> + Send + '_ {
        inside(access::pin_async(&self.engine, &self.state, address, len, access))
    }

    /// Brings a range in and pins it for reading, without blocking the executor. Copy the bytes with
    /// [`PinOf::copy_out`]. To write, use [`Space::pin_async`] with [`Access::Write`].
    ///
    /// # Errors
    /// As [`Space::pin_exact`].
    pub fn read_async(&self, address: u64, len: usize) -> impl Future<Output = Result<Pin<'_>>> + Send + '_ {
        self.pin_async(address, len, Access::Read)
    }

    /// As [`Space::pin_async`], with a future and a pin that keep the space.
    ///
    /// # Errors
    /// As [`Space::pin_exact`].
    pub fn pin_owned_async(
        self: &Arc<Self>,
        address: u64,
        len: usize,
        access: Access,
    ) -> impl Future<Output = Result<OwnedPin>> + Send + use<> {
        let space = Arc::clone(self);
        async move {
            let pinned = space.pin_async(address, len, access).await;
            pinned.map(|pin| pin.held_by(Arc::clone(&space)))
        }
    }

    /// As [`Space::fault_async`], with a future that keeps the space.
    ///
    /// # Errors
    /// As [`Space::load`].
    pub fn fault_owned_async(
        self: &Arc<Self>,
        address: u64,
        access: Access,
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        let space = Arc::clone(self);
        async move { space.fault_async(address, access).await }
    }
}
