//! The memory of a process outside of management: how much there is, of which kinds, and whether it grows.

use crate::managed::kinds::Kinds;

/// The bytes that a process may get outside before its mappings are looked at again: as much as may be in
/// staging.
pub(super) const LEAST_OUTSIDE: u64 = 2 << 20;

/// The memory of a process that its space does not have.
#[derive(Debug, Default)]
pub(super) struct Outside {
    /// The bytes outside at the last note.
    bytes: u64,
    /// The fewest bytes outside since the last look at the mappings.
    at_look: u64,
    /// The bytes that the process had at the last note of its growth, and how many of them were outside.
    before: (u64, u64),
    growth: u64,
    /// The resident bytes of the process's space at the last note.
    resident: u64,
    /// The bytes by kind at the last count, and the bytes outside at that moment.
    kinds: Kinds,
    at_count: u64,
}

impl Outside {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Records that the process has `anonymous` bytes now, of which its space has `resident`. Growth counts
    /// only while the changes of its mappings are settled. Returns whether `resident` has changed.
    pub(super) fn note(&mut self, anonymous: u64, resident: u64, is_settled: bool) -> bool {
        self.growth = 0;
        let has_changed = std::mem::replace(&mut self.resident, resident) != resident;
        self.bytes = anonymous.saturating_sub(resident);
        if is_settled {
            self.at_look = self.at_look.min(self.bytes);
            let now = (anonymous, self.bytes);
            let before = std::mem::replace(&mut self.before, now);
            self.growth = now.0.saturating_sub(before.0).min(now.1.saturating_sub(before.1));
        }
        has_changed
    }

    /// Records that the mappings are looked at now.
    pub(super) fn looked(&mut self) {
        self.at_look = self.bytes;
    }

    pub(super) fn kinds(&self) -> &Kinds {
        &self.kinds
    }

    /// Returns by how many bytes this memory has changed since it was counted by kind, or 0 if that is
    /// little.
    pub(super) fn uncounted_bytes(&self) -> u64 {
        let changed = self.bytes.abs_diff(self.at_count);
        if changed > LEAST_OUTSIDE { changed } else { 0 }
    }

    /// Records a count by kind.
    pub(super) fn counted(&mut self, kinds: Kinds) {
        (self.kinds, self.at_count) = (kinds, self.bytes);
    }

    /// Returns whether this memory grew much between the last two notes.
    pub(super) fn grows(&self) -> bool {
        self.growth > LEAST_OUTSIDE
    }

    /// Returns whether this memory has grown much since the last look at the mappings.
    pub(super) fn has_grown(&self) -> bool {
        self.bytes > self.at_look + LEAST_OUTSIDE
    }
}
