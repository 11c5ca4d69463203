//! Memory of the tree that cannot be paged: how much there is of each kind, and what is said of it.
//!
//! It is counted near the limit. Where it outgrows the limit, that is said at once, and ends a strict run. Where the tree has had
//! more than its limit for a while for any reason, that is said as well.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use super::{Failed, LEAST_PROCESS, Monitor};
use crate::kinds::Kind;
use crate::proc::{self, Told};

/// A tree that has had an eighth more than its limit for so long is told of.
const LONG: Duration = Duration::from_millis(800);
/// So many kinds are named in a sentence.
const MOST_NAMED: usize = 3;

/// Memory of one kind that cannot be paged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unpaged {
    kind: Kind,
    bytes: u64,
    /// Who has most of it, and whether others have much of it as well.
    pid: u32,
    has_others: bool,
}

impl fmt::Display for Unpaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link =
            if matches!(self.kind, Kind::SmallProcesses | Kind::Unmanaged) { ", such as" } else { " in" };
        let (mib, words, pid, name) = (self.bytes >> 20, self.kind.words(), self.pid, proc::name(self.pid));
        let others = if self.has_others { " and others" } else { "" };
        write!(f, "{mib} MiB of {words}{link} process {pid} ({name}){others}")
    }
}

/// What is known of a tree that has more than its limit.
#[derive(Debug, Default)]
pub(super) struct Excess {
    since: Option<Instant>,
    is_said: bool,
}

impl Excess {
    /// Takes note whether there is much of it now. Returns whether that has been so for long.
    fn lasts(&mut self, now: Instant, is_much: bool) -> bool {
        self.since = is_much.then(|| self.since.unwrap_or(now));
        self.since.is_some_and(|since| now - since >= LONG)
    }
}

impl Monitor {
    /// Counts what cannot be paged where the tree is near its limit, and says once where it has outgrown that for this reason, or for
    /// long. The tree has `total` bytes.
    ///
    /// # Errors
    /// The same sentence, where what cannot be paged outgrows the limit, and the run is strict.
    pub(super) fn follow_unpaged(&mut self, total: u64, is_near: bool) -> Result<(), Failed> {
        let (now, limit) = (Instant::now(), self.ledger.limit_bytes());
        let is_long = self.excess.lasts(now, total > limit + limit / 8);
        if !is_near {
            return Ok(());
        }
        for managed in self.managed.values_mut() {
            self.engaging.take(|| managed.count_outside(now));
        }
        let unpaged = self.unpaged();
        unpaged.iter().for_each(|one| self.summary.note_unpaged(one.kind, one.bytes));
        let bytes: u64 = unpaged.iter().map(|one| one.bytes).sum();
        // What is new may be about to be taken over.
        let may_pass = |one: &&Unpaged| one.kind.is_paged() || one.kind == Kind::Unwatched;
        let passing: u64 = unpaged.iter().filter(may_pass).map(|one| one.bytes).sum();
        let is_impossible = bytes - passing > limit || is_long && bytes > limit;
        if !is_impossible && !is_long {
            return Ok(());
        }
        let mib = |bytes: u64| bytes >> 20;
        let what = if is_impossible {
            "cannot be kept".into()
        } else {
            format!("is exceeded, with {} MiB", mib(total))
        };
        let sentence =
            format!("the limit of {} MiB {what}: {}; {}", mib(limit), in_words(&unpaged), remedy(&unpaged));
        if is_impossible && self.is_strict {
            return Err(Failed(sentence));
        }
        if !std::mem::replace(&mut self.excess.is_said, true) {
            say!("octavo: {sentence}");
        }
        Ok(())
    }

    /// Returns what of the failure of a run was about memory that cannot be paged, where that is a large part of the limit.
    pub(super) fn cause(&self) -> String {
        let unpaged = self.unpaged();
        let bytes: u64 = unpaged.iter().map(|one| one.bytes).sum();
        if bytes < self.ledger.limit_bytes() / 4 {
            String::new()
        } else {
            format!(" ({})", in_words(&unpaged))
        }
    }

    /// Returns the memory that cannot be paged, by kind, the largest first.
    fn unpaged(&self) -> Vec<Unpaged> {
        let mut found = BTreeMap::<Kind, Vec<(u64, u32)>>::new();
        let mut sum = 0;
        for (pid, process) in &self.tree.processes {
            let (anonymous, Told { fixed, locked }) = (process.memory.anonymous, process.told());
            let mut add = |kind, bytes| found.entry(kind).or_default().push((bytes, *pid));
            add(Kind::Shared, fixed.shared);
            add(Kind::PageTables, fixed.tables);
            sum += anonymous;
            if let Some(managed) = self.managed.get(pid) {
                let mut rest = anonymous;
                for (kind, bytes) in managed.outside_by_kind() {
                    let bytes = rest.min(*bytes);
                    rest -= bytes;
                    add(*kind, bytes);
                }
                add(Kind::Locked, rest.min(locked));
            } else if self.refused.get(pid) == Some(&process.stack) {
                add(Kind::Unmanaged, anonymous);
            } else if anonymous < LEAST_PROCESS {
                add(Kind::SmallProcesses, anonymous);
            }
        }
        let total_of = |kind, bytes: u64| match kind {
            Kind::Shared => self.fixed.shared,
            Kind::PageTables => self.fixed.tables,
            // A page that forks share was counted in each of them.
            _ => (u128::from(bytes) * u128::from(self.anonymous.min(sum)) / u128::from(sum.max(1))) as u64,
        };
        let summed = |(kind, each): (Kind, Vec<(u64, u32)>)| {
            let bytes: u64 = each.iter().map(|(bytes, _)| bytes).sum();
            let (largest, pid) = each.into_iter().max().unwrap_or_default();
            Unpaged { kind, bytes: total_of(kind, bytes), pid, has_others: largest < bytes / 4 * 3 }
        };
        let mut unpaged: Vec<_> = found.into_iter().map(summed).filter(|one| one.bytes > 0).collect();
        unpaged.sort_by_key(|one| std::cmp::Reverse(one.bytes));
        unpaged
    }
}

fn in_words(unpaged: &[Unpaged]) -> String {
    let mib = unpaged.iter().map(|one| one.bytes).sum::<u64>() >> 20;
    let named = unpaged.iter().take(MOST_NAMED).filter(|one| one.bytes >> 20 > 0);
    let named: Vec<_> = named.map(Unpaged::to_string).collect();
    if named.is_empty() {
        "all of it can be paged, but not as fast as it comes".into()
    } else {
        format!("{mib} MiB cannot be paged: {}", named.join(", "))
    }
}

fn remedy(unpaged: &[Unpaged]) -> &'static str {
    match unpaged.first().map(|one| one.kind) {
        Some(Kind::Locked) => "have the program lock less, or give --memory more",
        Some(Kind::Shared) => "have the program share less, or give --memory more",
        _ => "give --memory more",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_soon_is_not_told() {
        let (start, mut excess) = (Instant::now(), Excess::default());
        assert!(!excess.lasts(start, true));
        assert!(!excess.lasts(start + LONG / 2, true));
        assert!(!excess.lasts(start + LONG / 2, false), "it has passed");
        assert!(!excess.lasts(start + LONG, true));
        assert!(excess.lasts(start + LONG * 2, true));
    }

    #[test]
    fn the_largest_are_named_with_their_processes() {
        let pid = std::process::id();
        let one = |kind, mib: u64| Unpaged { kind, bytes: mib << 20, pid, has_others: false };
        let all =
            [one(Kind::Locked, 40), one(Kind::FilePages, 20), one(Kind::Stacks, 3), one(Kind::Small, 2)];
        let said = in_words(&all);
        let name = proc::name(pid);
        let locked =
            format!("65 MiB cannot be paged: 40 MiB of locked memory in process {pid} ({name}), 20 MiB of");
        assert!(
            said.starts_with(&locked)
                && said.ends_with(&format!("3 MiB of stacks in process {pid} ({name})")),
            "{said}"
        );
        assert!(remedy(&all).contains("lock less"));
        let small = Unpaged { has_others: true, ..one(Kind::SmallProcesses, 9) };
        assert_eq!(
            small.to_string(),
            format!("9 MiB of small processes, such as process {pid} ({name}) and others")
        );
        assert_eq!(in_words(&[one(Kind::Small, 0)]), "all of it can be paged, but not as fast as it comes");
    }
}
