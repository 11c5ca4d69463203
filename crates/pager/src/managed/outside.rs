//! What a process has outside of management: how much that is, of which kinds, and whether it grows.

use crate::managed::kinds::Kinds;

/// What a process may get outside before its mappings are looked at again. It is as much as may be in
/// staging.
pub(super) const LEAST_OUTSIDE: u64 = 2 << 20;

/// The memory of a process that its space does not have.
#[derive(Debug, Default)]
pub(super) struct Outside {
    /// By the last note.
    bytes: u64,
    /// After the last look at the mappings.
    at_look: u64,
    /// What the process had at the last note of its growth, and what of that was outside.
    before: (u64, u64),
    growth: u64,
    /// What its space had there at the last note.
    resident: u64,
    /// The kinds of what was there when it was counted last, and how much was outside then.
    kinds: Kinds,
    at_count: u64,
}

impl Outside {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes note that the process has `anonymous` bytes now, of which its space has `resident`. Growth
    /// counts where the changes of its mappings are settled. Returns whether what the space has there has
    /// changed.
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

    /// The mappings are looked at now.
    pub(super) fn looked(&mut self) {
        self.at_look = self.bytes;
    }

    pub(super) fn kinds(&self) -> &Kinds {
        &self.kinds
    }

    /// Returns how much it has changed since it was counted by kind, where that is much; else 0.
    pub(super) fn uncounted_bytes(&self) -> u64 {
        let changed = self.bytes.abs_diff(self.at_count);
        if changed > LEAST_OUTSIDE { changed } else { 0 }
    }

    /// It was counted by kind.
    pub(super) fn counted(&mut self, kinds: Kinds) {
        (self.kinds, self.at_count) = (kinds, self.bytes);
    }

    /// Returns whether it got much between the last two notes.
    pub(super) fn grows(&self) -> bool {
        self.growth > LEAST_OUTSIDE
    }

    /// Returns whether it has got much since the last look at the mappings.
    pub(super) fn has_grown(&self) -> bool {
        self.bytes > self.at_look + LEAST_OUTSIDE
    }
}
