//! Checks all structures against each other: tables, the words of frames, and slots.

use std::collections::HashMap;

use crate::engine::Engine;
use crate::frame::state::Kind;
use crate::sizes::LOOKS;
use crate::sync::{Duration, pause};
use crate::table::entry::State;
use crate::units::{CHUNK_FRAMES, FrameId, SwapSlot};

/// Checks the use count of each frame: the entries that show it, and the store that knows it. Checks the
/// reference count of each slot: the entries that lead to it, and the away frames that keep it. Takes time
/// linear in memory, and is exact only while no access is under way.
///
/// # Panics
/// If the structures contradict each other.
pub(crate) fn validate_tables(engine: &Engine) {
    for look in 1..=LOOKS {
        match contradiction(engine) {
            None => return,
            Some(contradiction) if look == LOOKS => panic!("{contradiction}"),
            Some(_) => pause(Duration::from_millis(5)),
        }
    }
}

fn contradiction(engine: &Engine) -> Option<String> {
    let (mut shown, mut swapped) = (HashMap::<FrameId, u32>::new(), HashMap::<SwapSlot, u32>::new());
    let mut busy = None;
    let spaces: Vec<_> = engine.spaces.lock().keys().copied().collect();
    for space in spaces {
        engine.table.for_each_leaf(space, &mut |page, _, entry| match entry.state() {
            State::Present(frame) => *shown.entry(frame).or_default() += 1,
            State::Swapped(slot) => *swapped.entry(slot).or_default() += 1,
            State::Busy => busy = Some(format!("{page:?} is busy and nobody works on it")),
            _ => {}
        });
    }
    let away = engine.frames.reached_away_chunks();
    for chunk in engine.frames.reached_chunks().chain(away) {
        for frame in (0..CHUNK_FRAMES).map(|index| chunk.first().plus(index)) {
            let words = engine.frames.words(frame);
            if words.state.load().kind() != Kind::Owned || !words.holds.load().is_live() {
                continue;
            }
            let holds = words.holds.load();
            if !holds.is_held_by_others(0) && !holds.is_parked() && !engine.lru.knows(words) {
                return Some(format!("{frame:?} is in use, on no list of reclaim, and in nobody's hand"));
            }
            if engine.frames.is_away(frame)
                && let Some(slot) = engine.frames.kept(frame).page().and_then(SwapSlot::of)
            {
                *swapped.entry(slot).or_default() += 1;
            }
            let cached = u32::from(words.stored.page().is_some());
            let entries = shown.remove(&frame).unwrap_or(0);
            if words.uses.get() != entries + cached {
                let uses = words.uses.get();
                return Some(format!(
                    "{frame:?} has {uses} uses: {entries} entries show it, {cached} stores know it"
                ));
            }
            if engine.rmap.owners(&engine.frames, frame).len() != entries as usize {
                return Some(format!("{frame:?} is shown by {entries} entries and owned by others"));
            }
        }
    }
    let lost = shown.keys().next().map(|frame| format!("{frame:?} is shown and not live"));
    busy.or(lost).or_else(|| engine.swap.contradicted_by(&swapped))
}
