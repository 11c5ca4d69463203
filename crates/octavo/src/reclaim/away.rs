//! Reclaim of pages that are away.
//!
//! Using such a page does not mark its entry, so reclaim asks the translation before it judges candidates. A
//! page to be evicted comes home first, in batches by space (`engine/homecoming.rs`). Then it goes out as
//! any page at home does. A page that the translation never lets go leaves the lists
//! (`engine/immovable.rs`). A clean page that keeps its place in a store is freed where it is, unless the
//! store wants a copy.

use smallvec::SmallVec;

use crate::engine::{Batch, Came, Engine, Homecoming};
use crate::lru::{self, ISOLATED, IsolatedFrame, Place};
use crate::rmap::Owner;
use crate::sizes::{FEW_TRANSLATED, TRANSLATED};
use crate::table::SpaceId;
use crate::table::entry::State;
use crate::table::translation::{Answer, Touch, Translation};
use crate::units::{FrameId, PageNumber, StoredPage};

/// The frames of a batch.
type Frames = SmallVec<[IsolatedFrame; ISOLATED]>;

/// Clean pages at home that no entry shows, with their spaces. Their stores want copies.
pub(super) type Copies = SmallVec<[(SpaceId, StoredPage, IsolatedFrame); ISOLATED]>;

/// The outcome of a batch of away frames.
#[derive(Debug, Default)]
#[must_use = "frames that came home are in hand"]
pub(super) struct CameHome {
    /// The frames at home that have the pages now.
    pub(super) home: Frames,
    pub(super) copies: Copies,
    /// Pages that went without coming home.
    pub(super) freed: u64,
    /// Some pages stayed: there was no slot, the translation held them, or they needed a write that was not
    /// allowed.
    pub(super) obstructed: bool,
}

/// Brings pages of away frames home. With `clean`, only those that need no write.
#[inline(never)]
pub(super) fn come_home(engine: &Engine, away: Frames, clean: bool) -> CameHome {
    let mut came = CameHome::default();
    let mut leaving = SmallVec::<[(Owner, IsolatedFrame); ISOLATED]>::new();
    for frame in away {
        let owner = engine.rmap.owners(&engine.frames, frame.frame()).first().copied();
        // Without a slot, the page would come home in vain.
        let has_place =
            engine.is_kept(frame.frame()) || engine.swap.is_available() && !engine.swap.slots.is_full();
        came.obstructed |= !has_place;
        match owner.filter(|_| has_place) {
            Some(owner) => leaving.push((owner, frame)),
            None => engine.putback(frame, Place::Cold),
        }
    }
    leaving.sort_unstable_by_key(|(owner, _)| (owner.space, owner.page));
    let mut leaving = leaving.into_iter().peekable();
    while let Some(space) = leaving.peek().map(|(owner, _)| owner.space) {
        let mut batch = SmallVec::<[(Owner, IsolatedFrame); FEW_TRANSLATED]>::new();
        while batch.len() < TRANSLATED
            && let Some(page) = leaving.next_if(|(owner, _)| owner.space == space)
        {
            batch.push(page);
        }
        bring_one_space_home(engine, batch, clean, &mut came);
    }
    came
}

/// Brings pages of one space home.
fn bring_one_space_home(
    engine: &Engine,
    batch: SmallVec<[(Owner, IsolatedFrame); FEW_TRANSLATED]>,
    clean: bool,
    came_home: &mut CameHome,
) {
    let why = if clean { Homecoming::IfClean } else { Homecoming::ToGoOut };
    let mut left = SmallVec::<[FrameId; FEW_TRANSLATED]>::new();
    let mut immovable = SmallVec::<[FrameId; FEW_TRANSLATED]>::new();
    if let Some(translation) = engine.translation(batch[0].0.space) {
        let pages = batch.iter().map(|(owner, frame)| (owner.page, frame.frame()));
        engine.bring_home(batch[0].0.space, &*translation, pages, why, |away, came| {
            match came {
                Came::Home(frame) => came_home.home.push(frame),
                Came::Copy(page, frame) => came_home.copies.push((batch[0].0.space, page, frame)),
                Came::Out => came_home.freed += 1,
                Came::Refused(Answer::Unsupported) => return immovable.push(away),
                Came::Dirty | Came::NoFrame | Came::Refused(_) => return came_home.obstructed = true,
                Came::Changed => return,
            }
            left.push(away);
        });
    }
    left.sort_unstable();
    immovable.sort_unstable();
    for (_, frame) in batch {
        if left.binary_search(&frame.frame()).is_ok() {
            engine.unpin(frame.into_pin());
        } else if immovable.binary_search(&frame.frame()).is_ok() {
            engine.park(frame);
        } else {
            engine.putback(frame, Place::Cold);
        }
    }
}

/// Marks the entries of candidates as accessed, if the other side of a translation has used their pages.
pub(super) fn harvest(engine: &Engine, candidates: &lru::Candidates) {
    if !engine.has_translations() {
        return;
    }
    let mut pages = SmallVec::<[(Owner, FrameId); FEW_TRANSLATED]>::new();
    for frame in candidates.iter().map(|candidate| candidate.frame.frame()) {
        if engine.frames.is_away(frame) {
            let owners = engine.rmap.owners(&engine.frames, frame);
            pages.extend(owners.first().map(|owner| (*owner, frame)));
        }
    }
    pages.sort_unstable_by_key(|(owner, _)| (owner.space, owner.page));
    // A page that has just gone away again may have two frames for a moment.
    pages.dedup_by_key(|(owner, _)| *owner);
    for pages in pages.chunk_by(|(a, _), (b, _)| a.space == b.space) {
        let Some(translation) = engine.translation(pages[0].0.space) else { continue };
        let mut batch = Batch::new();
        for (owner, frame) in pages {
            batch.add(owner.page, engine.frames.words(*frame).order().frames(), Touch::Accessed);
        }
        mark_accessed(engine, pages[0].0.space, &*translation, batch);
    }
}

/// As [`harvest`], for `pages` pages of a space.
pub(super) fn harvest_range(engine: &Engine, space: SpaceId, first: PageNumber, pages: u32) {
    if let Some(translation) = engine.translation(space) {
        let mut batch = Batch::new();
        batch.add(first, pages, Touch::Accessed);
        mark_accessed(engine, space, &*translation, batch);
    }
}

fn mark_accessed(engine: &Engine, space: SpaceId, translation: &dyn Translation, batch: Batch<Touch>) {
    batch.ask(|runs| {
        translation.harvest(runs, &mut |touched| {
            let walk = engine.table.walk(space, touched);
            // This is a hint: the page that is there now counts as used.
            if matches!(walk.entry().state(), State::Present(_)) {
                walk.word().mark_accessed(walk.entry());
            }
        });
    });
}
