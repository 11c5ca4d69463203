//! Where a page's bytes go, and how they come back: a word, the compressed pool, or a place on an area.
//!
//! ```text
//!  out, under WRITEBACK:  repeats a word? ──► Same     the pool takes it? ──► Pool     else ──► Device, with its checksum
//!  in, under READING:     Same: filled                 Pool: unpacked                  Device: read, and checked
//! ```
//!
//! The first two end where they began: no device, no waiting. What a slot's content was before is let go when it changes, by
//! whoever changed it.

use crate::counters::{Counter, Counters};
use crate::frame::FrameAllocator;
use crate::swap::bounce::BounceFrames;
use crate::swap::content::{self, Content, Corrupt};
use crate::swap::pool::{LoadFailure, Pool, Stored, Weights};
use crate::swap::seal::Seal;
use crate::sync::Arc;
use crate::table::SpaceId;
use crate::units::{FrameId, SwapSlot};

/// Why a page is brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// An access of this space came back for it.
    By(SpaceId),
    /// Nobody did: it is on its way somewhere else, or read ahead.
    No,
}

/// What came of [`Contents::bring`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Brought {
    /// The bytes are there.
    Here,
    /// They are on the slot's area.
    OnDevice,
    /// They are not what was kept.
    Corrupt,
    /// The slot was freed. Not while the caller's entry leads to it.
    Gone,
}

/// What a manager's slots hold, beyond their areas.
pub(super) struct Contents {
    pool: Option<Pool>,
    seal: Option<(Seal, BounceFrames)>,
    counters: Arc<Counters>,
}

impl Contents {
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

    /// Finds a place for the page of a frame under WRITEBACK: in the pool only with `weights`. [`Content::Device`]: it is to be
    /// written.
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
        if let Some(content) = weights.and_then(|weights| self.pack(frames, slot, frame, weights)) {
            return content;
        }
        // A sealed page has a tag that says more.
        let crc = if self.seal.is_some() { 0 } else { content::page_crc(frames, frame) };
        Content::Device { crc }
    }

    /// Packs the page of a frame under WRITEBACK. `None`: the pool does not take it.
    pub(super) fn pack(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        frame: FrameId,
        weights: &Weights,
    ) -> Option<Content> {
        match self.pool.as_ref()?.store(frames, weights, slot, frame) {
            Stored::Kept(handle) => Some(Content::Pool(handle)),
            Stored::Incompressible | Stored::Full => None,
        }
    }

    /// Brings the page of a slot into a frame under READING, if no device is needed. `content` reads the slot's word again.
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
                    return Brought::Here;
                }
                Content::Device { .. } => return Brought::OnDevice,
                Content::None => return Brought::Gone,
                Content::Pool(handle) => {
                    let pool = self.pool.as_ref().expect("a handle comes from the pool");
                    let loaded = match wanted {
                        Wanted::By(space) => {
                            pool.load(frames, pool.weights(Some(space)), slot, handle, frame)
                        }
                        Wanted::No => pool.unpack(frames, slot, handle, frame),
                    };
                    let failure = match loaded {
                        Ok(()) => return Brought::Here,
                        Err(failure) => failure,
                    };
                    let now = content();
                    if failure == LoadFailure::Corrupt || now == seen {
                        return Brought::Corrupt;
                    }
                    // It has moved inside the pool.
                    seen = now;
                }
            }
        }
    }

    /// Whether a frame's bytes, just read from the slot's area, are those that were written there. Opens them if sealed.
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

    /// The content of a slot is another now.
    pub(super) fn let_go(&self, frames: &FrameAllocator, content: Content) {
        if let Content::Pool(handle) = content {
            self.pool.as_ref().expect("a handle comes from the pool").free(frames, handle);
        }
    }

    /// Whether pages are sealed before they are written.
    pub(super) fn seals(&self) -> bool {
        self.seal.is_some()
    }

    /// The sealed form of a page that is to be written, in a frame of its own. `None`: all are in use; a write that ends gives
    /// one back.
    pub(super) fn seal(&self, frames: &FrameAllocator, slot: SwapSlot, frame: FrameId) -> Option<FrameId> {
        let (seal, bounce) = self.seal.as_ref()?;
        let sealed = bounce.take()?;
        seal.seal(frames, slot, frame, sealed);
        Some(sealed)
    }

    /// The sealed form was written.
    pub(super) fn unseal(&self, sealed: FrameId) {
        if let Some((_, bounce)) = &self.seal {
            bounce.give_back(sealed);
        }
    }
}

impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Contents")
            .field("pool", &self.pool.as_ref().map(Pool::stats))
            .field("seals", &self.seals())
            .finish()
    }
}
