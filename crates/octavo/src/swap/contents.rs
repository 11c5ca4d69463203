//! Contents: moving a page's bytes to a word, to the compressed pool or to a place on an area, and back.
//!
//! ```text
//!  out, under WRITEBACK:  repeats a word? ──► Same     the pool takes it? ──► Pool     else ──► Device, with its checksum
//!  in, under READING:     Same: filled                 Pool: unpacked                  Device: read, and checked
//! ```
//!
//! A page that came back from its area and leaves unchanged may also have a copy in the pool. Dropping the
//! copy costs no write.
//!
//! A page that is kept as a word or in the pool needs no device, and no thread waits for it. A thread that
//! changes a slot's content frees the old content.

use crate::counters::{Counter, Counters};
use crate::frame::FrameAllocator;
use crate::swap::bounce::BounceFrames;
use crate::swap::content::{self, Content, Corrupt};
use crate::swap::pool::{Handle, LoadFailure, Pool, Stored, Weights};
use crate::swap::seal::Seal;
use crate::sync::Arc;
use crate::table::SpaceId;
use crate::units::{FrameId, SwapSlot};

/// The reason why a page is brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// An access of this space needs it.
    By(SpaceId),
    /// No access needs it: the page is on its way to another place, or is read ahead.
    No,
}

/// The outcome of [`SlotContents::bring`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Brought {
    /// The pool had the page, whose bytes are now in the frame.
    Unpacked,
    /// The page repeats one word. Its bytes are now in the frame.
    Filled,
    /// The bytes are on the slot's area.
    OnDevice,
    /// The bytes are not the bytes that were kept.
    Corrupt,
    /// The slot was freed. This cannot happen while the caller's entry leads to it.
    Gone,
}

/// The contents of a manager's slots, beyond their areas.
pub(super) struct SlotContents {
    pool: Option<Pool>,
    seal: Option<(Seal, BounceFrames)>,
    counters: Arc<Counters>,
}

impl SlotContents {
    pub(super) fn new(
        pool: Option<Pool>,
        seal: Option<(Seal, BounceFrames)>,
        counters: Arc<Counters>,
    ) -> Self {
        Self { pool, seal, counters }
    }

    pub(super) fn pool(&self) -> Option<&Pool> {
        self.pool.as_ref()
    }

    /// Finds a place for the page of a frame under WRITEBACK. The pool may take it only with `weights`.
    /// Returns [`Content::Device`] if the page is to be written.
    pub(super) fn put_away(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        frame: FrameId,
        weights: Option<&Weights>,
    ) -> Content {
        if let Some(same) = content::same_filled(frames, frame).and_then(Content::same) {
            self.counters.count(Counter::ZeroSwapOut);
            return same;
        }
        if let Some(handle) = weights.and_then(|weights| self.pack(frames, slot, frame, weights, 0)) {
            return Content::Pool { handle, is_copy: false };
        }
        // A sealed page has a tag, which proves more than a checksum.
        let crc = if self.seal.is_some() { 0 } else { content::page_crc(frames, frame) };
        Content::Device { crc }
    }

    /// Packs the page of a frame under WRITEBACK. `area_crc` is for a page that is on its area. Returns
    /// `None` if the pool does not take it.
    pub(super) fn pack(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        frame: FrameId,
        weights: &Weights,
        area_crc: u32,
    ) -> Option<Handle> {
        match self.pool.as_ref()?.store(frames, weights, slot, frame, area_crc) {
            Stored::Kept(handle) => Some(handle),
            Stored::Incompressible | Stored::Full => None,
        }
    }

    /// Brings the page of a slot into a frame under READING, if no device is needed. `content` reads the
    /// slot's content.
    pub(super) fn bring(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        frame: FrameId,
        wanted: Wanted,
        content: impl Fn() -> Content,
    ) -> Brought {
        let mut seen = content();
        loop {
            match seen {
                Content::Same { word } => {
                    content::fill(frames, frame, word);
                    self.counters.count(Counter::ZeroSwapIn);
                    return Brought::Filled;
                }
                Content::Device { .. } => return Brought::OnDevice,
                Content::None => return Brought::Gone,
                Content::Pool { handle, .. } => {
                    let pool = self.pool.as_ref().expect("a handle comes from the pool");
                    let loaded = match wanted {
                        Wanted::By(space) => {
                            pool.load(frames, pool.weights(Some(space)), slot, handle, frame)
                        }
                        Wanted::No => pool.unpack(frames, slot, handle, frame),
                    };
                    let failure = match loaded {
                        Ok(()) => return Brought::Unpacked,
                        Err(failure) => failure,
                    };
                    let now = content();
                    if failure == LoadFailure::Corrupt || now == seen {
                        return Brought::Corrupt;
                    }
                    // The page has moved inside the pool.
                    seen = now;
                }
            }
        }
    }

    /// Checks that a frame's bytes, just read from the slot's area, are the bytes that were written there.
    /// Decrypts sealed bytes.
    pub(super) fn check(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        frame: FrameId,
        crc: u32,
    ) -> Result<(), Corrupt> {
        match &self.seal {
            Some((seal, _)) => seal.open(frames, slot, frame),
            None => content::check(frames, frame, crc),
        }
    }

    /// Frees a content that its slot no longer has.
    pub(super) fn let_go(&self, frames: &FrameAllocator, content: Content) {
        if let Content::Pool { handle, .. } = content {
            self.pool.as_ref().expect("a handle comes from the pool").free(frames, handle);
        }
    }

    /// Returns whether pages are sealed before they are written.
    pub(super) fn seals(&self) -> bool {
        self.seal.is_some()
    }

    /// Seals a page to be written, into a bounce frame. Returns `None` if all bounce frames are in use. The
    /// end of a write gives one back.
    pub(super) fn seal(&self, frames: &FrameAllocator, slot: SwapSlot, frame: FrameId) -> Option<FrameId> {
        let (seal, bounce) = self.seal.as_ref()?;
        let sealed = bounce.take()?;
        seal.seal(frames, slot, frame, sealed);
        Some(sealed)
    }

    /// Gives a bounce frame back, once its page is written.
    pub(super) fn unseal(&self, sealed: FrameId) {
        if let Some((_, bounce)) = &self.seal {
            bounce.give_back(sealed);
        }
    }
}

impl std::fmt::Debug for SlotContents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contents")
            .field("pool", &self.pool.as_ref().map(Pool::stats))
            .field("seals", &self.seals())
            .finish()
    }
}
