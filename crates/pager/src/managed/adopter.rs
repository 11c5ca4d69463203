//! The work of a driver besides serving faults: it adopts pages that are already present, updates the layout
//! when mappings change, and hands over the children of forks.
//!
//! All of this work runs in the driver's thread, between faults. So the mappings in the layout do not change
//! after a look at pages and before the adoption of these pages. If another thread has read a change of a
//! range, the range is looked at only after the driver has taken the change in. Until then, the range may
//! already have another mapping, while the space must still move its pages or pass them to a child. A range
//! that the program drops before it was adopted is never adopted: the event of the drop comes before the
//! pages go. Pages are adopted as long as there is room. The other pages wait until the driver has made room.

use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::time::Instant;

use octavo::translation::{InPlace, TranslatedSpace};
use octavo::{ErrorKind, PAGE_BYTES, Protection, RegionOptions};
use octavo_platform::pagemap::{Categories, ScanFilter};
use octavo_stub::Message;
use octavo_window::{Listener, Reach, RemainingWork, Served, Target, Window};
use rustix::io::Errno;

use crate::managed::patience::{Patience, Progress};
use crate::managed::shared::DriverState;
use crate::managed::watched::take;
use crate::messages::{self, as_option, in_words};
use crate::system::proc;

const PAGE: u64 = PAGE_BYTES as u64;
/// The bytes that are adopted between two checks for faults.
const PIECE: u64 = 2 << 20;

/// Adopts present pages, between faults.
pub(crate) struct Adopter<'a> {
    space: &'a TranslatedSpace,
    window: &'a Window<Target>,
    shared: &'a DriverState,
    /// Takes a fork's child in.
    fork: &'a dyn Fn(OwnedFd),
    patience: Patience,
}

/// The pages that a look has found in a range to adopt.
#[derive(Debug, Default)]
struct FoundPages {
    /// Pages that are present and watched.
    present: Vec<(u64, u64)>,
    /// Ranges that belong to another mapping by now, which is not watched.
    unwatched: Vec<(u64, u64)>,
    /// Ranges where a mapping is changing just now. The event of the change will describe the change.
    changing: Vec<(u64, u64)>,
}

impl<'a> Adopter<'a> {
    pub(crate) fn new(
        space: &'a TranslatedSpace,
        window: &'a Window<Target>,
        shared: &'a DriverState,
        fork: &'a dyn Fn(OwnedFd),
    ) -> Self {
        Self { space, window, shared, fork, patience: Patience::default() }
    }

    /// Adopts the present pages of a range, as far as there is room. Returns the end of the part that is
    /// done.
    fn adopt(&self, start: u64, end: u64) -> octavo::Result<u64> {
        // Pages of this range that a fault brought, or that were adopted before room ran short, may go out at
        // any time. If one went out between the look and the test whether it is watched, the test would put
        // zeros in its place.
        let found = self.window.hold_settled(start, end - start, || self.look(start, end));
        let Some(found) = found else {
            // Another thread has read a change of this range, which must be taken in first.
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
            let DriverState { ledger, manager, .. } = self.shared;
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

    /// Finds the present pages of a range.
    fn look(&self, start: u64, end: u64) -> FoundPages {
        let (mut present, mut zeros, mut found) = (Vec::new(), Vec::new(), FoundPages::default());
        let told = Categories::PRESENT | Categories::ZERO | Categories::FILE;
        let wanted = ScanFilter { told, ..ScanFilter::any(Categories::PRESENT) };
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
            // The first store there becomes a fault. If the protection fails because a mapping is changing
            // just now, the store makes a page that counts as outside of management.
            let _ = self.window.reach().protect(start, end - start, true);
        }
        present.into_iter().for_each(|(start, end)| self.ask_whether_watched(start, end, &mut found));
        found
    }

    /// Sorts present pages by whether they are certainly watched. Memory that was mapped after the look at
    /// the mappings is not watched: its pages would read as zeros once they are out. To test this, the kernel
    /// is asked to put zeros at these addresses. If the range is watched, the kernel answers that the pages
    /// exist. Otherwise, it answers that it has no such range.
    fn ask_whether_watched(&self, start: u64, end: u64, found: &mut FoundPages) {
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

    /// Returns whether to retry after an error: its reason may pass, and the tree has made progress recently.
    /// All code that waits for room calls this function.
    fn has_patience_with(&mut self, error: &octavo::Error) -> bool {
        let progress = Progress::of(&self.shared.manager, &self.shared.ledger);
        may_pass(error) && self.patience.lasts(Instant::now(), progress)
    }

    fn give_up(&self, message: &Message, why: &dyn Display) {
        self.shared.give_up(self.window.reach().pid(), message, why);
    }

    /// Says what stays in memory, if it leaves pages no room.
    fn what_stays(&self) -> Option<String> {
        let immovable = self.shared.manager.immovable_bytes().unwrap_or(0);
        // The kernel counts locked memory before it is there, so this says how much is still to come.
        let locked = self.window.reach().pid().map_or(0, proc::locked_bytes);
        let budget = self.shared.manager.stats().map_or(u64::MAX, |stats| stats.budget_bytes);
        let stays = immovable.max(locked);
        if immovable <= budget / 2 && stays <= budget {
            return None;
        }
        // Suggest the memory that stays, plus the present budget for everything else.
        let enough = as_option(budget + stays);
        let (stays, budget) = (stays >> 20, budget >> 20);
        let words: [(&str, &dyn Display); 3] = [("stays", &stays), ("budget", &budget), ("enough", &enough)];
        let message = if locked >= immovable { &messages::LOCKED } else { &messages::IMMOVABLE };
        Some(message.with(&words))
    }

    /// Adopts present pages, as far as there is room. Returns the end of the part that is done.
    fn adopt_run(&self, start: u64, end: u64) -> octavo::Result<u64> {
        let what = InPlace::Pages(Protection::READ_WRITE);
        match self.space.adopt(start, end - start, what) {
            Err(error) if error.kind() == ErrorKind::AlreadyMapped => {
                // Meanwhile, faults have brought some of the pages.
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
        // The kernel has reported the address, so it is watched, and a mapping has grown.
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
        // Pages that are adopted next can go out. If they cannot be adopted, adoption gives up.
        let is_adopting = self.shared.layout.lock().is_adopting();
        if may_pass(&error) && is_adopting || self.has_patience_with(&error) {
            return true;
        }
        let is_for_lack = error.kind() == ErrorKind::OutOfMemory;
        let stays = if is_for_lack { self.what_stays() } else { None };
        self.give_up(&messages::NO_PAGE, &stays.unwrap_or_else(|| in_words(&error)));
        false
    }

    /// Pages come and go, and no page stays long enough. Immovable memory may leave them no room.
    fn stuck(&mut self, _: u64) {
        if let Some(stays) = self.what_stays() {
            self.give_up(&messages::NO_PAGE, &stays);
        }
    }

    fn counted(&mut self, served: Served) {
        let before = std::mem::replace(&mut *self.shared.served.lock().expect("nobody panics here"), served);
        self.shared.ledger.note_ended_faults(served.ended - before.ended);
    }

    fn work(&mut self) -> RemainingWork {
        let mut layout = self.shared.layout.lock();
        let Some(piece) = layout.next_piece(PIECE) else { return RemainingWork::Done };
        let has_more = layout.is_adopting();
        drop(layout);
        match self.adopt(piece.start, piece.end) {
            Ok(reached) if reached < piece.end => {
                self.shared.layout.lock().adopt_again(reached..piece.end);
                RemainingWork::Waits(piece.end - reached)
            }
            Ok(_) if has_more => RemainingWork::More,
            Ok(_) => RemainingWork::Done,
            Err(error) => {
                self.give_up(&messages::NOT_TAKEN, &in_words(&error));
                RemainingWork::Done
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

/// Returns whether a page needs no adoption: a fault has brought it, or it is unmapped by now.
fn is_elsewhere(error: &octavo::Error) -> bool {
    matches!(error.kind(), ErrorKind::AlreadyMapped | ErrorKind::NotMapped)
}

/// Returns whether the reason for an error may pass: other processes may free memory or lose pages, and a
/// failed device is tried again. A full swap stays full, and a page that could not be read has already been
/// tried several times.
pub(super) fn may_pass(error: &octavo::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::OutOfMemory | ErrorKind::SwapWrite | ErrorKind::TimedOut | ErrorKind::Busy
    )
}
