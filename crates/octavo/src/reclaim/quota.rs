//! A space's own limit on the pages that it has in memory.
//!
//! A space at its quota makes room among its own pages. So one space cannot push out the pages of all others.
//! A scan goes through the space's pages in the order of their addresses, from the end of the last scan: a
//! clock whose hand is in the space. Neighbours go out together, and come back together.

use crate::engine::{Engine, Figure, SpaceState, Waiter};
use crate::error::{Error, ErrorKind, Result};
use crate::lru::Isolated;
use crate::reclaim::away::harvest_range;
use crate::reclaim::evict::evict_batch;
use crate::sizes::TRANSLATED;
use crate::table::entry::State;
use crate::table::{PageNumberRange, span};
use crate::units::{PAGE_BYTES, PageNumber, bytes_for_people};

/// Pages that are sent out at once.
const BATCH: u64 = 128;
/// Pages that a translation is asked about together: which of them were used.
const HARVESTED: u64 = TRANSLATED as u64;
/// Rounds through the space before an access gives up. The first round clears marks.
const ROUNDS: u32 = 3;
/// How often an access waits for other threads to make progress.
const LOOKS: u32 = 64;

/// Makes room for `needed` pages under the quota of `space`.
///
/// # Errors
/// `QuotaExceeded` if no page of the space can go. If a device is the obstacle, its error.
pub(crate) async fn make_room_under_quota(
    engine: &Engine,
    space: &SpaceState,
    needed: u64,
    waiter: &mut Waiter<'_>,
) -> Result<()> {
    let Some(quota) = space.quota.pages() else { return Ok(()) };
    let resident = || engine.space_use.get(space.id, Figure::Resident);
    if needed > quota {
        return Err(exceeded(engine, space, quota, engine.swap.areas.failures()));
    }
    let failures = engine.swap.areas.failures();
    for look in 0..LOOKS {
        let excess = (resident() + needed).saturating_sub(quota);
        if excess == 0 {
            return Ok(());
        }
        if look > 0 && engine.swap.slots.is_full() {
            break;
        }
        let (ends, ended, before) = (engine.ends(), engine.transfers.ended_pages(), resident());
        // A few more pages go out than needed, so that not every fault comes here. Under a small quota, fewer
        // go, since the space needs them.
        let (started, full) = send_out(engine, space, excess + BATCH.min(quota / 8));
        let in_time = waiter.until_written(ended + started).await && (!full || waiter.until_room(ends).await);
        if !in_time && resident() + needed > quota {
            return Err(engine.swap.areas.timed_out());
        }
        if resident() >= before && started == 0 && !full {
            let was_silent = engine.swap.is_silent();
            if !waiter.until_more_may_go().await {
                return Err(engine.swap.areas.timed_out());
            }
            if !was_silent && resident() >= before {
                break;
            }
        }
    }
    if resident() + needed <= quota { Ok(()) } else { Err(exceeded(engine, space, quota, failures)) }
}

/// Sends out about `pages` pages of the space. Returns how many writes it started, and whether a device had
/// no room for more.
fn send_out(engine: &Engine, space: &SpaceState, pages: u64) -> (u64, bool) {
    engine.lru.drain_all(&engine.frames);
    let (mut out, mut started, mut gone, mut full) = (Isolated::new(), 0, 0, false);
    let mut send = |out: &mut Isolated| {
        let done = evict_batch(engine, std::mem::take(out));
        engine.space_use.add(space.id, Figure::QuotaOut, done.gone());
        gone += done.gone();
        started += done.started;
        // When swap is full, further pages would be looked at in vain.
        full |= done.full || gone > 0 && done.obstructed && engine.swap.slots.is_full();
        // No more pages can go now.
        if full { u64::MAX } else { gone }
    };
    let mut walks = engine.table.walks(space.id, PageNumberRange::from(space.quota.hand()));
    let (mut rounds, mut harvested) = (0, PageNumber(0)..PageNumber(0));
    while rounds < ROUNDS {
        let page = walks.page();
        let Some(walk) = walks.next() else {
            walks.go_on_from(PageNumber(0));
            rounds += 1;
            continue;
        };
        if walk.entry().is_away() && !harvested.contains(&page) {
            // Using a page that is away does not mark its entry.
            let pages = span(walk.level).max(HARVESTED);
            harvested = page..page.plus(pages);
            harvest_range(engine, space.id, page, pages as u32);
        }
        let seen = walk.word().load();
        if let State::Present(frame) = seen.state()
            && walk.links_hold()
        {
            // A lost race means that the page is in use all the more.
            let idle = !seen.is_accessed() || walk.word().change(seen, seen.without_accessed()).is_err();
            if idle && let Some(frame) = engine.isolate(frame) {
                out.push(&engine.frames, frame);
                if walk.level > 0 {
                    // A block is split first. Then its pages go one by one.
                    if send(&mut out) == u64::MAX {
                        break;
                    }
                    if engine.table.walk(space.id, page).level < walk.level {
                        walks.go_on_from(page);
                        continue;
                    }
                }
            }
        }
        let full = out.pages() >= pages || out.is_full();
        if full && send(&mut out) >= pages {
            break;
        }
    }
    send(&mut out);
    space.quota.set_hand(walks.page());
    (started, full)
}

#[cold]
fn exceeded(engine: &Engine, space: &SpaceState, quota: u64, failures: u64) -> Error {
    if let Some(error) = engine.swap.obstacle(failures) {
        return error;
    }
    let name = engine.spaces.lock().get(&space.id).map_or_else(String::new, |record| record.name.clone());
    let quota = bytes_for_people(quota * PAGE_BYTES as u64);
    Error::new(
        ErrorKind::QuotaExceeded,
        format!(
            "{name} is at its quota of {quota}, and none of its pages can go; drop pins, or raise its quota"
        ),
    )
}
