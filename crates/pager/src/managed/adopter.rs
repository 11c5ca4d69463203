//! What the driver of a managed process does beside serving faults: it adopts the pages that are there
//! already, and keeps the layout true to the changes of mappings. It hands the children of forks on.
//!
//! All of it runs in the driver's thread, between faults. So no change is taken in between a look at pages
//! and the adoption of what it has found. A range of which others have read a change is not looked at before
//! that is taken in: what is there may be another mapping, while pages of the space are still to move, or to
//! be a child's. A range that the program drops before it was adopted is not adopted any more: its event
//! comes before its pages go. Pages are adopted as far as there is room. The rest waits until the driver has
//! made some.

use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use octavo::translation::{InPlace, TranslatedSpace};
use octavo::{Counter, ErrorKind, PAGE_BYTES, Protection, RegionOptions};
use octavo_platform::pagemap::{Categories, Wanted};
use octavo_stub::Message;
use octavo_window::{Listener, Reach, Served, Target, Window, Work};
use rustix::io::Errno;

use crate::managed::shared::Shared;
use crate::managed::watched::take;
use crate::messages::{self, as_option, in_words};
use crate::system::proc;

const PAGE: u64 = PAGE_BYTES as u64;
/// Bytes that are adopted between two looks for faults.
const PIECE: u64 = 2 << 20;
/// How long no page may go out before the tree is stopped, where there is no room for a page or a device
/// fails.
const ROOM_PATIENCE: Duration = Duration::from_secs(20);

/// Adopts what is there, between faults.
pub(crate) struct Adopter<'a> {
    space: &'a TranslatedSpace,
    window: &'a Window<Target>,
    shared: &'a Shared,
    /// Takes a fork's child in.
    fork: &'a dyn Fn(OwnedFd),
    lacks_room: Option<LacksRoom>,
}

/// Faults, or adoption, find no room.
#[derive(Clone, Copy, Debug)]
struct LacksRoom {
    /// Since when, or since pages went out last.
    since: Instant,
    last: Instant,
    /// Pages that had gone out by then.
    gone_pages: u64,
}

/// The pages that a look has found in a range that is to be adopted.
#[derive(Debug, Default)]
struct Found {
    /// They are there, and watched.
    present: Vec<(u64, u64)>,
    /// Something else is mapped there by now, which is not watched.
    unwatched: Vec<(u64, u64)>,
    /// A mapping changes there just now. Its event says how.
    changing: Vec<(u64, u64)>,
}

impl<'a> Adopter<'a> {
    pub(crate) fn new(
        space: &'a TranslatedSpace,
        window: &'a Window<Target>,
        shared: &'a Shared,
        fork: &'a dyn Fn(OwnedFd),
    ) -> Self {
        Self { space, window, shared, fork, lacks_room: None }
    }

    /// Adopts what is present in a range, as far as there is room. Returns up to where.
    fn adopt(&self, start: u64, end: u64) -> octavo::Result<u64> {
        // Pages of this range that a fault has brought, or that were adopted before room was short, may go
        // out at any time. One that went between the look and the question whether it is watched would get
        // zeros there in place of its bytes.
        let found = self.window.hold_settled(start, end - start, || self.look(start, end));
        let Some(found) = found else {
            // Others have read of a change there. It is taken in first.
            self.shared.layout.lock().adopt_again(start..end);
            return Ok(end);
        };
        for (from, to) in found.changing {
            self.shared.layout.lock().adopt(from..to);
        }
        for (from, to) in found.unwatched {
            self.shared.layout.lock().unmap(from..to);
            self.space.forget_mapping(from, to - from)?;
        }
        for (from, to) in found.present {
            let Shared { ledger, manager, .. } = self.shared;
            let moved = ledger.take_over(manager, to - from);
            let adopted = self.adopt_run(from, to);
            let left = to - *adopted.as_ref().unwrap_or(&from);
            if left > 0 {
                ledger.leave(manager, left.min(moved));
                return adopted;
            }
        }
        Ok(end)
    }

    /// Finds the pages of a range that are there.
    fn look(&self, start: u64, end: u64) -> Found {
        let (mut present, mut zeros, mut found) = (Vec::new(), Vec::new(), Found::default());
        let told = Categories::PRESENT | Categories::ZERO | Categories::FILE;
        let wanted = Wanted { told, ..Wanted::any(Categories::PRESENT) };
        let Some(pagemap) = self.window.reach().pagemap() else { return found };
        let scanned = pagemap.scan(start, end, wanted, |run| {
            if run.categories.contains(Categories::ZERO) {
                zeros.push((run.start, run.end));
            } else if !run.categories.contains(Categories::FILE) {
                present.push((run.start, run.end));
            }
        });
        if scanned.is_err() {
            // The process has ended.
            return found;
        }
        for (start, end) in zeros {
            // The first store there becomes a fault. Where a mapping changes just now, the store makes a page
            // that counts as outside.
            let _ = self.window.reach().protect(start, end - start, true);
        }
        present.into_iter().for_each(|(start, end)| self.ask_whether_watched(start, end, &mut found));
        found
    }

    /// Sorts pages that are there by whether they are watched for sure. Memory that was mapped after the look
    /// at the mappings is not: its pages would read as zeros once they are out. The kernel is asked to put
    /// zeros there: it finds the pages where the range is watched, and nothing to do with it where it is not.
    fn ask_whether_watched(&self, start: u64, end: u64, found: &mut Found) {
        let mut rest = (start, end);
        while rest.0 < rest.1 {
            let (from, to) = rest;
            match self.window.reach().events().zero(from, to - from, true).error {
                None | Some(Errno::EXIST) => found.present.push((from, to)),
                Some(Errno::AGAIN) => return found.changing.push((from, end)),
                Some(Errno::NOENT) if to - from > PAGE => {
                    rest.1 = from + ((to - from) / PAGE).div_ceil(2) * PAGE;
                    continue;
                }
                Some(Errno::NOENT) => found.unwatched.push((from, to)),
                // The process has ended.
                _ => return,
            }
            rest = (to, end);
        }
    }

    /// Returns whether what has failed is to be tried again: the reason may pass, and pages have gone out
    /// lately, on a slow device perhaps. In a tree with forks, pages are made movable one batch after the
    /// other, and children end. All that waits for room asks here.
    fn has_patience_with(&mut self, error: &octavo::Error) -> bool {
        if !may_pass(error) {
            return false;
        }
        let now = Instant::now();
        let counters = self.shared.manager.counters();
        let gone_pages = counters.get(Counter::StealDirect) + counters.get(Counter::StealBackground);
        // A device may take long to fail, and a long time without a failure is none of patience. So each one
        // counts for a part of it at most.
        let since = |lack: LacksRoom| lack.since + (now - lack.last).saturating_sub(ROOM_PATIENCE / 4);
        let since = self.lacks_room.filter(|lack| gone_pages <= lack.gone_pages).map_or(now, since);
        self.lacks_room = Some(LacksRoom { since, last: now, gone_pages });
        now - since < ROOM_PATIENCE
    }

    fn give_up(&self, message: &Message, why: &dyn Display) {
        self.shared.give_up(self.window.reach().pid(), message, why);
    }

    /// Adopts pages that are there, as far as there is room. Returns up to where.
    fn adopt_run(&self, start: u64, end: u64) -> octavo::Result<u64> {
        let what = InPlace::Pages(Protection::READ_WRITE);
        match self.space.adopt(start, end - start, what) {
            Err(error) if error.kind() == ErrorKind::AlreadyMapped => {
                // Faults have brought some of the pages meanwhile.
                for page in (start..end).step_by(PAGE_BYTES) {
                    match self.space.adopt(page, PAGE, what) {
                        Ok(0) => return Ok(page),
                        Err(error) if !is_elsewhere(&error) => return Err(error),
                        _ => {}
                    }
                }
                Ok(end)
            }
            Err(error) if is_elsewhere(&error) => Ok(end),
            adopted => adopted.map(|pages| start + pages * PAGE),
        }
    }
}

impl Listener for Adopter<'_> {
    fn forked(&mut self, child: OwnedFd) {
        (self.fork)(child);
    }

    fn unknown(&mut self, address: u64) -> bool {
        // The kernel has told of the address, so it is watched, and a mapping has grown.
        let Some(pid) = self.window.reach().pid() else {
            self.shared.layout.lock().mapped.insert(address..address + PAGE);
            return self.space.map_at(address, PAGE, RegionOptions::default()).is_ok();
        };
        let Ok(mappings) = proc::mappings(pid) else { return false };
        let Some(mapping) = mappings.iter().find(|mapping| mapping.contains(address)) else { return false };
        let Ok(taken) = take(self.space, self.window, self.shared, mapping.start..mapping.end) else {
            return false;
        };
        taken.into_iter().for_each(|range| self.shared.layout.lock().confirm(range));
        true
    }

    fn changed(&mut self, start: u64, end: u64) {
        self.shared.layout.lock().leave(start..end);
    }

    fn is_mapped(&self, start: u64, end: u64) -> bool {
        self.shared.layout.lock().mapped.overlaps(&(start..end))
    }

    fn unmapped(&mut self, start: u64, end: u64) {
        self.shared.layout.lock().unmap(start..end);
    }

    fn moved(&mut self, from: u64, len: u64, to: u64) {
        self.shared.layout.lock().relocate(from..from + len, to);
    }

    fn lost(&mut self, error: octavo::Error) {
        self.give_up(&messages::CHANGE_LOST, &in_words(&error));
    }

    fn failed(&mut self, _: u64, error: octavo::Error) -> bool {
        // What is adopted next can go out. Where it cannot be adopted, adoption gives up.
        let is_adopting = self.shared.layout.lock().is_adopting();
        if may_pass(&error) && is_adopting || self.has_patience_with(&error) {
            return true;
        }
        self.give_up(&messages::NO_PAGE, &in_words(&error));
        false
    }

    /// Pages come and go, and none stays long enough: what cannot be moved leaves no room for them.
    fn stuck(&mut self, _: u64) {
        let immovable = self.shared.manager.immovable_bytes().unwrap_or(0);
        let budget = self.shared.manager.stats().map_or(u64::MAX, |stats| stats.budget_bytes);
        if immovable > budget / 2 {
            // What cannot be moved, and as much for the rest as now for all.
            let enough = as_option(budget + immovable);
            let (immovable, budget) = (immovable >> 20, budget >> 20);
            let words: [(&str, &dyn Display); 3] =
                [("immovable", &immovable), ("budget", &budget), ("enough", &enough)];
            self.give_up(&messages::NO_PAGE, &messages::IMMOVABLE.with(&words));
        }
    }

    fn counted(&mut self, served: Served) {
        *self.shared.served.lock().expect("nobody panics here") = served;
    }

    fn work(&mut self) -> Work {
        let mut layout = self.shared.layout.lock();
        let Some(piece) = layout.next_piece(PIECE) else { return Work::Done };
        let has_more = layout.is_adopting();
        drop(layout);
        match self.adopt(piece.start, piece.end) {
            Ok(reached) if reached < piece.end => {
                self.shared.layout.lock().adopt_again(reached..piece.end);
                Work::Waits(piece.end - reached)
            }
            Ok(_) if has_more => Work::More,
            Ok(_) => Work::Done,
            Err(error) => {
                self.give_up(&messages::NOT_TAKEN, &in_words(&error));
                Work::Done
            }
        }
    }

    fn made_room(&mut self, result: octavo::Result<()>) {
        if let Err(error) = result
            && !self.has_patience_with(&error)
        {
            self.give_up(&messages::NOT_TAKEN, &in_words(&error));
        }
    }
}

/// Returns whether a page need not be adopted: a fault has brought it, or it is unmapped by now.
fn is_elsewhere(error: &octavo::Error) -> bool {
    matches!(error.kind(), ErrorKind::AlreadyMapped | ErrorKind::NotMapped)
}

/// Returns whether the reason of an error may pass by itself: others give memory back or let pages go, and a
/// device that has failed is tried again. A full swap fills no less, and a page that could not be read has
/// been asked for several times.
pub(super) fn may_pass(error: &octavo::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::OutOfMemory | ErrorKind::SwapWrite | ErrorKind::TimedOut | ErrorKind::Busy
    )
}
