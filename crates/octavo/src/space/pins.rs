//! Pins of a space: borrowed and owned, at once and awaited.

use std::future::Future;

use crate::access::{self, Cover, Pin, PinHolder, PinOf};
use crate::engine::Engine;
use crate::error::Result;
use crate::space::{Space, inside};
use crate::sync::Shared as Arc;
use crate::table::Access;

/// A pin that keeps its space, so that it can be stored, sent to other threads, and given to other languages;
/// from [`Space::pin_owned`]. Its methods are at [`PinOf`].
pub type OwnedPin = PinOf<Arc<Space>>;

impl PinHolder for Arc<Space> {
    fn engine(&self) -> &Engine {
        &self.engine
    }
}

/// # Pins
///
/// A pin keeps memory in its place until it is dropped: for system calls, devices, and access without faults.
/// It keeps nobody from reading or writing the bytes; exclusive guards do. Where there are several spaces,
/// pins and guards of one keep three quarters of the budget at the most, or its quota; pages that were
/// unmapped under them count. Pins with *owned* in their names need the space in an [`Arc`](std::sync::Arc),
/// and keep it.
impl Space {
    /// Pins `len` bytes from `address` on, or nothing.
    ///
    /// # Errors
    /// As [`Space::load`], for any of the pages; `TooManyPins` where one carries as many as it can, or where
    /// pins and guards of the space keep its share of memory. An error holds no pin.
    #[inline]
    pub fn pin_exact(&self, address: u64, len: usize, access: Access) -> Result<Pin<'_>> {
        access::pin(&self.engine, &self.state, address, len, access, Cover::All)
    }

    /// Pins up to `len` bytes from `address` on, as `get_user_pages` does. Where a page behind the first
    /// cannot be had, the pin covers fewer bytes; see [`PinOf::len`].
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

    /// As [`Space::pin_exact`], without blocking the executor. The reads of pages that are out overlap, up to
    /// 128 of them, and each page stays pinned once it is there. After as many pages, out or not, other tasks
    /// may run. A dropped future holds nothing. The base form of pinning
    /// ([`PinPath::Locked`](crate::PinPath::Locked)) takes the lock of the space's regions, and may have to
    /// wait for it.
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

    /// Brings a range in and pins it for reading, without blocking the executor; [`PinOf::copy_out`] copies.
    /// To write, there is [`Space::pin_async`] with [`Access::Write`].
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
