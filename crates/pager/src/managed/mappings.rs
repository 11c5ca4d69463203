//! The mappings of a managed process: which of them are in doubt, and how those are taken over that are new.
//!
//! A mapping is watched before it is looked at. What is seen after that is adopted (`adopter.rs`), and what
//! has changed meanwhile is not: it stays watched.

use std::ops::Range;

use octavo::ErrorKind;
use rangemap::RangeSet;
use rustix::io::Errno;

use super::Managed;
use crate::managed::droppers::Droppers;
use crate::managed::eligible::Seen;
use crate::managed::kinds::Kinds;
use crate::managed::watched::{take, watches};
use crate::system::proc;

/// How often a look goes on with what mappings have grown by meanwhile.
const MOST_ROUNDS: u32 = 4;

impl Managed {
    /// Finds out about ranges that are in doubt, and returns those that are watched. Others are no memory of
    /// the parent's: it has kept them from its children (`MADV_DONTFORK`), and what the child has mapped
    /// there since is its own. The space forgets them. So it does with the mover's `own` range. Ranges that
    /// change just now, and those for which there is no room, stay in doubt.
    ///
    /// While the layout is held, no change is taken in. So what was asked of the kernel holds until the space
    /// has forgotten it, unless the kernel said that a change is unread, or one was read.
    pub(super) fn find_doubtful(&self, pid: u32, own: &Range<u64>) -> Result<Vec<Range<u64>>, String> {
        let mut layout = self.shared.layout.lock();
        if layout.doubtful.is_empty() {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        let mappings = proc::mappings(pid).map_err(|error| error.to_string())?;
        let bounds = mappings.iter().flat_map(|mapping| [mapping.start, mapping.end]);
        for part in layout.doubtful_parts(bounds.chain([own.start, own.end])) {
            let (start, len) = (part.start, part.end - part.start);
            let is_watched = match watches(&self.window, start) {
                Ok(()) => !own.contains(&start),
                Err(Errno::NOENT) => false,
                Err(_) => continue,
            };
            if self.window.is_unsettled(start, len) {
                continue;
            }
            if is_watched {
                found.push(part);
            } else {
                match self.space.forget_mapping(start, len) {
                    Ok(()) => layout.unmap(part),
                    // There is no room to split a block, or it is pinned for a moment. So the part stays in
                    // doubt.
                    Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::OutOfMemory) => {}
                    Err(error) => return Err(error.to_string()),
                }
            }
        }
        Ok(found)
    }

    /// Returns addresses that the descriptor should watch, each in a mapping of its own, and in memory of
    /// staging's kind.
    pub(super) fn watched_in(&self, mappings: &[proc::Mapping]) -> Vec<u64> {
        let layout = self.shared.layout.lock();
        let usable = mappings.iter().filter(|mapping| {
            mapping.is_private && mapping.is_readable && mapping.is_writable && !mapping.is_executable
        });
        let first = |mapping: &proc::Mapping| {
            let watched = layout.mapped.overlapping(&(mapping.start..mapping.end)).next();
            watched.map(|range| range.start.max(mapping.start))
        };
        usable.filter_map(first).collect()
    }

    /// Looks at the mappings, and takes those over that are new.
    ///
    /// # Errors
    /// A sentence, where the mappings cannot be read or the space cannot map them.
    pub(crate) fn look(&mut self) -> Result<(), String> {
        self.outside.looked();
        let pid = self.window.reach().pid().ok_or("its process is not known")?;
        let own = self.window.reach().own_range();
        for range in self.find_doubtful(pid, &own)? {
            self.shared.layout.lock().confirm(range);
        }
        let seen = self.see(pid)?;
        let result = self.take_all(pid, seen);
        if self.droppers.is_none() && self.window.ask_about_dropped() {
            // After the question: a thread that comes later drops nothing of what was told before.
            self.droppers = Droppers::of(pid).ok();
        }
        self.bell.ring();
        result
    }

    /// Returns how much of what is outside of management has changed since it was counted by kind, where that
    /// is much and its mappings can be looked at; else 0.
    pub(crate) fn uncounted_bytes(&self) -> u64 {
        if self.is_equipped() && self.is_settled() { self.outside.uncounted_bytes() } else { 0 }
    }

    /// Counts by kind what is outside of management. The cost goes by what is mapped of files, and by what is
    /// outside of all else.
    pub(crate) fn count_outside(&mut self) {
        let reach = self.window.reach();
        let (Some(pid), Some(pagemap)) = (reach.pid(), reach.pagemap()) else { return };
        // One that has ended has nothing.
        let Ok(seen) = self.see(pid) else { return };
        let mut taken = self.shared.layout.lock().mapped.clone();
        let own = reach.own_range();
        taken.insert(own);
        self.outside.counted(seen.count_outside(&taken, pagemap));
    }

    /// Returns what was outside of management when it was counted last, by kind.
    pub(crate) fn outside_by_kind(&self) -> &Kinds {
        self.outside.kinds()
    }

    fn see(&self, pid: u32) -> Result<Seen, String> {
        Ok(Seen::of(pid)?.after(&mut self.shared.layout.lock()))
    }

    /// Has pages adopted again that the program has dropped and that are there still (`MADV_FREE`), once no
    /// thread may be dropping them.
    pub(crate) fn take_kept(&mut self) {
        let (Some(droppers), Some(pid)) = (&mut self.droppers, self.window.reach().pid()) else { return };
        if droppers.have_left(pid) {
            self.droppers = None;
            // While the layout is held, no change is taken in: what is dropped from now on leaves it again.
            let mut layout = self.shared.layout.lock();
            let kept = self.window.take_dropped();
            kept.into_iter().for_each(|(start, end)| layout.adopt_again(start..end));
            drop(layout);
            self.bell.ring();
        }
    }

    /// Takes what was seen over, and what that has grown by meanwhile. A mapping that is watched in part is
    /// divided, and the program could not move or resize it as one. What a mapping grows by while it is
    /// watched is watched as well.
    pub(super) fn take_all(&self, pid: u32, mut seen: Seen) -> Result<(), String> {
        let own = self.window.reach().own_range();
        let mut taken = RangeSet::new();
        let mut ranges = seen.eligible();
        let mut result = Ok(());
        for _ in 0..MOST_ROUNDS {
            ranges.retain(|(start, end)| *end <= own.start || own.end <= *start);
            let mut new = RangeSet::new();
            for (start, end) in std::mem::take(&mut ranges) {
                match take(&self.space, &self.window, &self.shared, start..end) {
                    Ok(parts) => new.extend(parts),
                    Err(why) => result = Err(why),
                }
            }
            if new.is_empty() {
                break;
            }
            let before = std::mem::replace(&mut seen, self.see(pid)?);
            if result.is_ok() {
                ranges = seen.grown_since(&before, &new);
            }
            taken.extend(new);
        }
        self.confirm(&seen, &taken);
        result
    }

    /// Has ranges adopted that are watched now, by what was seen after that. Mappings may have been replaced
    /// between the look and the watch, by a thread's stack for instance. What is there in such parts stays as
    /// it is, and only pages that come from now on are Octavo's.
    ///
    /// Small ranges count here however few they have become meanwhile: they are watched now.
    ///
    /// Such parts are not given back. A range may have moved there whose event is unread. Unwatched, its
    /// pages that are out would read as zeros.
    fn confirm(&self, seen: &Seen, taken: &RangeSet<u64>) {
        if taken.is_empty() {
            return;
        }
        let eligible: RangeSet<u64> = seen.ranges().into_iter().map(|(start, end)| start..end).collect();
        let mut layout = self.shared.layout.lock();
        for range in taken.iter() {
            for part in eligible.overlapping(range) {
                layout.confirm(part.start.max(range.start)..part.end.min(range.end));
            }
            eligible.gaps(range).for_each(|other| layout.leave(other));
        }
    }
}
