//! The mappings of a managed process: the check of doubtful ranges, and the takeover of new mappings.
//!
//! A mapping is watched before it is searched for pages. Mappings that are still eligible afterwards are
//! adopted (`adopter.rs`). Mappings that have changed meanwhile stay watched, but are not adopted.

use std::ops::Range;

use octavo::ErrorKind;
use octavo_platform::refusal;
use rangemap::RangeSet;
use rustix::io::Errno;

use super::Managed;
use crate::managed::droppers::Droppers;
use crate::managed::eligible::SeenMemory;
use crate::managed::kinds::Kinds;
use crate::managed::watched::{take, watches};
use crate::system::proc;

/// The most rounds of a look: the first takes mappings, and each later one takes their growth meanwhile.
const MOST_ROUNDS: u32 = 4;

impl Managed {
    /// Checks the doubtful ranges, and returns the watched ones. The other ranges do not have the parent's
    /// memory: the parent kept them from its children (`MADV_DONTFORK`), and the child itself has mapped
    /// whatever is there now. The space forgets these ranges, and the mover's `own` range as well. Ranges
    /// that are changing just now stay in doubt. Ranges that cannot be forgotten, for lack of room to split a
    /// block, also stay in doubt.
    ///
    /// While the layout is locked, no change is taken in. So the kernel's answer holds until the space has
    /// forgotten the range. There are two exceptions, which are checked: a change that is still unread, and a
    /// change that was read but not taken in.
    pub(super) fn find_doubtful(&self, pid: u32, own: &Range<u64>) -> Result<Vec<Range<u64>>, String> {
        let mut layout = self.shared.layout.lock();
        if layout.doubtful.is_empty() {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        let mappings = proc::mappings(pid).map_err(|error| refusal::in_words(&error))?;
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
                    // There is no room to split a block, or it is pinned for a moment.
                    Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::OutOfMemory) => {}
                    Err(error) => return Err(error.to_string()),
                }
            }
        }
        Ok(found)
    }

    /// Returns addresses that the descriptor should watch, each in a different mapping with the same
    /// permissions as staging.
    pub(super) fn watched_in(&self, mappings: &[proc::ProcessMapping]) -> Vec<u64> {
        let layout = self.shared.layout.lock();
        let usable = mappings.iter().filter(|mapping| {
            mapping.is_private && mapping.is_readable && mapping.is_writable && !mapping.is_executable
        });
        let first = |mapping: &proc::ProcessMapping| {
            let watched = layout.mapped.overlapping(&(mapping.start..mapping.end)).next();
            watched.map(|range| range.start.max(mapping.start))
        };
        usable.filter_map(first).collect()
    }

    /// Looks at the mappings, and takes new ones over.
    ///
    /// # Errors
    /// Returns a sentence if the mappings cannot be read or the space cannot map them.
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
            // List the threads only now. Threads that start after the question about dropped pages cannot be
            // dropping the pages that were reported before it.
            self.droppers = Droppers::of(pid).ok();
        }
        self.bell.ring();
        result
    }

    /// Returns by how many bytes the memory outside of management has changed since it was counted by kind.
    /// Returns 0 if that is little, or if the mappings cannot be looked at.
    pub(crate) fn uncounted_bytes(&self) -> u64 {
        if self.is_equipped() && self.is_settled() { self.outside.uncounted_bytes() } else { 0 }
    }

    /// Counts the memory outside of management by kind. The cost grows with the mapped files and with the
    /// other memory outside.
    pub(crate) fn count_outside(&mut self) {
        let reach = self.window.reach();
        let (Some(pid), Some(pagemap)) = (reach.pid(), reach.pagemap()) else { return };
        // A process that has ended has no memory.
        let Ok(seen) = self.see(pid) else { return };
        let mut taken = self.shared.layout.lock().mapped.clone();
        let own = reach.own_range();
        taken.insert(own);
        self.outside.counted(seen.count_outside(&taken, pagemap));
    }

    /// Returns the memory outside of management by kind, by the last count.
    pub(crate) fn outside_by_kind(&self) -> &Kinds {
        self.outside.kinds()
    }

    fn see(&self, pid: u32) -> Result<SeenMemory, String> {
        let mut seen = SeenMemory::of(pid)?;
        let is_taken = |range: &_| self.shared.layout.lock().mapped.overlaps(range);
        seen.find_hidden_stacks(is_taken, octavo_stub::stack_pointers);
        Ok(seen.after(&mut self.shared.layout.lock()))
    }

    /// Pages that the program has dropped may still be present (`MADV_FREE`). Marks them to be adopted again.
    /// Does nothing as long as a thread may be dropping them.
    pub(crate) fn take_kept(&mut self) {
        let (Some(droppers), Some(pid)) = (&mut self.droppers, self.window.reach().pid()) else { return };
        if droppers.have_left(pid) {
            self.droppers = None;
            // While the layout is locked, no change is taken in. So a drop that comes from now on is taken in
            // after the marks are set, and removes them.
            let mut layout = self.shared.layout.lock();
            let kept = self.window.take_dropped();
            kept.into_iter().for_each(|(start, end)| layout.adopt_again(start..end));
            drop(layout);
            self.bell.ring();
        }
    }

    /// Takes over the mappings that were seen, and their growth meanwhile. A mapping that is watched only in
    /// part is divided, and the program could not move or resize it as a whole. Growth of a mapping that is
    /// watched already is watched as well.
    pub(super) fn take_all(&self, pid: u32, mut seen: SeenMemory) -> Result<(), String> {
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

    /// Marks ranges that are watched now to be adopted, as far as a look after the watch (`seen`) finds them
    /// eligible. Between the first look and the watch, mappings may have been replaced, for instance by a
    /// thread's stack. Present pages of such parts stay as they are, and only pages that come from now on are
    /// Octavo's.
    ///
    /// Small ranges are adopted as well, even if few of them are left by now, since they are watched already.
    ///
    /// Replaced parts stay watched: a range may have moved there, and its event may be unread. Without the
    /// watch, pages of this range that are out would read as zeros.
    fn confirm(&self, seen: &SeenMemory, taken: &RangeSet<u64>) {
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
