//! The pool, the checksum and the seal, each alone, for benchmarks. This file is not part of the public
//! interface.

use crate::budget::Budget;
use crate::config::Compression;
use crate::counters::Counters;
use crate::frame::{Backing, FrameAllocator, FrameConfig, FrameId, Order};
use crate::swap::content;
use crate::swap::pool::{Handle, Pool, Stored};
use crate::swap::seal::{Method, Seal};
use crate::sync::{Arc, Machine};
use crate::units::SwapSlot;

/// A frame allocator, and on top of it a pool and a seal.
#[doc(hidden)]
#[derive(Debug)]
pub struct PoolProbe {
    frames: FrameAllocator,
    pool: Pool,
    seal: Seal,
}

#[allow(missing_docs, reason = "for benches: each is the method of the same name")]
impl PoolProbe {
    pub fn new(compression: Compression, bytes: u64) -> std::io::Result<Self> {
        let machine = Machine::real();
        let budget = Arc::new(Budget::new(bytes * 2));
        let counters = Arc::new(Counters::new()?);
        let config = FrameConfig::one_zone(bytes, Backing::HugePages);
        let frames = FrameAllocator::new(&config, Arc::clone(&budget), Arc::clone(&counters))?;
        let pool = Pool::new(&frames, compression, bytes, Arc::clone(&budget), counters, &machine)?;
        let seal = Seal::new(Method::probe(), 1 << 20, budget, &machine.random)?;
        Ok(Self { frames, pool, seal })
    }

    /// A fresh frame that holds this page.
    pub fn frame(&self, page: &[u8]) -> FrameId {
        let frame = self.frames.alloc(Order::ZERO).expect("memory for the bench").into_frame();
        self.frames.bytes().copy_in(frame.home_offset(), page);
        frame
    }

    pub fn store(&self, slot: u32, frame: FrameId) -> Option<u64> {
        match self.pool.store(&self.frames, self.pool.weights(None), SwapSlot(slot), frame, 0) {
            Stored::Kept(handle) => Some(handle.bits()),
            Stored::Incompressible | Stored::Full => None,
        }
    }

    pub fn load(&self, slot: u32, handle: u64, to: FrameId) -> bool {
        let (weights, handle) = (self.pool.weights(None), Handle::from_bits(handle));
        self.pool.load(&self.frames, weights, SwapSlot(slot), handle, to).is_ok()
    }

    pub fn free(&self, handle: u64) {
        self.pool.free(&self.frames, Handle::from_bits(handle));
    }

    /// The number of pages, their packed bytes, and the bytes that the pool uses.
    pub fn stats(&self) -> (u64, u64, u64) {
        let stats = self.pool.stats();
        (stats.pages, stats.packed_bytes, stats.used_bytes)
    }

    pub fn same_filled(&self, frame: FrameId) -> Option<u64> {
        content::same_filled(&self.frames, frame)
    }

    pub fn page_crc(&self, frame: FrameId) -> u32 {
        content::page_crc(&self.frames, frame)
    }

    /// The checksum by the other method: from a copy of the page.
    pub fn page_crc_of_copy(&self, frame: FrameId) -> u32 {
        self.frames.bytes().with_copy(frame.home_offset(), Order::ZERO.bytes(), crc32c::crc32c)
    }

    pub fn copy(&self, from: FrameId, to: FrameId) {
        self.frames.bytes().copy_within(from.home_offset(), to.home_offset(), Order::ZERO.bytes());
    }

    pub fn seal(&self, slot: u32, from: FrameId, to: FrameId) {
        self.seal.seal(&self.frames, SwapSlot(slot), from, to);
    }

    pub fn open(&self, slot: u32, frame: FrameId) -> bool {
        self.seal.open(&self.frames, SwapSlot(slot), frame).is_ok()
    }
}
