//! Memory of the tree that cannot be paged: the amounts of each kind, and the messages to the user.
//!
//! Such memory is counted while the tree is near its limit. If it exceeds the limit, the user gets a message,
//! and a strict run ends. For kinds of memory that do not change, this happens at once. For memory that may
//! soon be taken over, shared or unlocked, it happens after a while. The user also gets a message if the tree
//! has been above its limit for a while for any other reason.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use octavo_platform::usage;
use octavo_stub::Message;

use super::{Failed, LEAST_PROCESS, Monitor};
use crate::managed::Managed;
use crate::managed::kinds::MemoryKind;
use crate::messages::{self, as_option};
use crate::system::proc::{self, StatusFigures};

/// The user gets a message if a tree has been an eighth above its limit for this long, or if its memory that
/// cannot be paged has been above the limit for this long.
const LONG: Duration = Duration::from_millis(800);
/// Counting by kind takes at most 1/[`COUNT_SHARE`] of the time.
const COUNT_SHARE: u32 = 20;
/// The most kinds that a sentence names.
const MOST_NAMED: usize = 3;

/// Memory of one kind that cannot be paged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unpaged {
    kind: MemoryKind,
    bytes: u64,
    /// The process that has most of this memory, and whether others have much of it as well.
    pid: u32,
    has_others: bool,
}

impl fmt::Display for Unpaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link = if matches!(self.kind, MemoryKind::SmallProcesses | MemoryKind::Unmanaged) {
            ", such as"
        } else {
            " in"
        };
        let (mib, words, pid, name) = (self.bytes >> 20, self.kind.words(), self.pid, proc::name(self.pid));
        let others = if self.has_others { " and others" } else { "" };
        write!(f, "{mib} MiB of {words}{link} process {pid} ({name}){others}")
    }
}

/// Since when an amount has been too large.
#[derive(Debug, Default)]
struct Lasting(Option<Instant>);

impl Lasting {
    /// Records whether the amount is too large now. Returns whether it has been too large for long.
    fn lasts(&mut self, now: Instant, is_much: bool) -> bool {
        self.0 = is_much.then(|| self.0.unwrap_or(now));
        self.0.is_some_and(|since| now - since >= LONG)
    }
}

/// The data about a tree that exceeds its limit.
#[derive(Debug, Default)]
pub(super) struct Excess {
    /// Since when the whole tree, and its memory that cannot be paged, have been too large.
    total: Lasting,
    unpaged: Lasting,
    /// Whether there was a message that the limit cannot be kept, and whether there was any message.
    has_said_impossible: bool,
    has_said: bool,
    /// When the next process may be counted by kind.
    next_count: Option<Instant>,
}

/// Returns whether memory of a kind does not change: it will not be taken over, shared or unlocked.
const fn is_firm(kind: MemoryKind) -> bool {
    matches!(
        kind,
        MemoryKind::FilePages | MemoryKind::ProgramData | MemoryKind::PageTables | MemoryKind::Unmanaged
    )
}

impl Monitor {
    /// Counts memory that cannot be paged if the tree is near its limit. Tells the user once if such memory
    /// exceeds the limit, or if the tree has exceeded it for long. The tree has `total` bytes.
    ///
    /// # Errors
    /// Returns the same sentence if memory that cannot be paged exceeds the limit, and the run is strict.
    pub(super) fn follow_unpaged(&mut self, total: u64, is_near: bool) -> Result<(), Failed> {
        let (now, limit) = (Instant::now(), self.ledger.limit_bytes());
        let is_long = self.excess.total.lasts(now, total > limit + limit / 8);
        if !is_near {
            self.excess.unpaged.lasts(now, false);
            return Ok(());
        }
        self.count_one(now);
        let unpaged = self.unpaged();
        unpaged.iter().for_each(|one| self.summary.note_unpaged(one.kind, one.bytes));
        let sum = |of: &dyn Fn(MemoryKind) -> bool| -> u64 {
            unpaged.iter().filter(|one| of(one.kind)).map(|one| one.bytes).sum()
        };
        let all = sum(&|_| true);
        self.summary.unpaged_bytes = self.summary.unpaged_bytes.max(all);
        // Memory that is not firm may soon be taken over, or be counted too high until each process has been
        // asked. So its excess must last.
        let stays = self.excess.unpaged.lasts(now, all > limit);
        let is_certain = stays || sum(&is_firm) > limit;
        let is_impossible = is_certain || sum(&|kind| is_firm(kind) || kind == MemoryKind::Shared) > limit;
        let is_said = if is_impossible { self.excess.has_said_impossible } else { self.excess.has_said };
        let ends = is_certain && self.is_strict;
        if !ends && (is_said || !is_long && (!is_impossible || self.is_strict)) {
            return Ok(());
        }
        let message = if is_impossible { impossible(&unpaged) } else { &messages::LIMIT_EXCEEDED };
        // Suggest the present limit plus the bytes that cannot be paged.
        let enough = limit + all;
        let is_there = enough <= usage::usable_memory_bytes();
        let enough = if is_there { format!("{} or more", as_option(enough)) } else { "more".into() };
        let (limit, total, what) = (limit >> 20, total >> 20, in_words(&unpaged));
        let sentence =
            message.with(&[("limit", &limit), ("total", &total), ("what", &what), ("enough", &enough)]);
        if ends {
            return Err(Failed(sentence));
        }
        self.excess.has_said = true;
        self.excess.has_said_impossible |= is_impossible;
        say!("octavo: {sentence}");
        Ok(())
    }

    /// Counts by kind the memory of the process that has changed most since its last count. Each look counts
    /// only one process, since counting may take long.
    fn count_one(&mut self, now: Instant) {
        if self.excess.next_count.is_some_and(|at| now < at) {
            return;
        }
        let most = self.managed.values_mut().max_by_key(|managed| managed.uncounted_bytes());
        if let Some(managed) = most.filter(|managed| managed.uncounted_bytes() > 0) {
            self.counting.take(|| managed.count_outside());
            self.excess.next_count = Some(Instant::now() + now.elapsed() * COUNT_SHARE);
        }
    }

    /// Returns a phrase about memory that cannot be paged, for the failure of a run. It is empty if that
    /// memory is a small part of the limit.
    pub(super) fn cause(&self) -> String {
        let unpaged = self.unpaged();
        let bytes: u64 = unpaged.iter().map(|one| one.bytes).sum();
        if bytes < self.ledger.limit_bytes() / 4 {
            String::new()
        } else {
            format!(" (of what is in memory, {})", in_words(&unpaged))
        }
    }

    /// Returns the memory that cannot be paged, by kind, the largest first.
    fn unpaged(&self) -> Vec<Unpaged> {
        let mut found = BTreeMap::<MemoryKind, Vec<(u64, u32)>>::new();
        let mut sum = 0;
        for (pid, process) in &self.tree.processes {
            let (anonymous, StatusFigures { fixed, locked }) = (process.memory.anonymous, process.told());
            let mut add = |kind, bytes| found.entry(kind).or_default().push((bytes, *pid));
            add(MemoryKind::Shared, fixed.shared);
            add(MemoryKind::PageTables, fixed.tables);
            sum += anonymous;
            let managed = self.managed.get(pid);
            let is_unmanaged = || self.refused.get(pid).is_some_and(|refused| refused.stack == process.stack);
            if managed.is_some_and(Managed::is_refused) || is_unmanaged() {
                add(MemoryKind::Unmanaged, anonymous);
            } else if let Some(managed) = managed {
                let mut rest = anonymous;
                for (kind, bytes) in managed.outside_by_kind() {
                    let bytes = rest.min(*bytes);
                    rest -= bytes;
                    add(*kind, bytes);
                }
                // Locked memory that is shared was counted as shared.
                add(MemoryKind::Locked, rest.min(locked.saturating_sub(fixed.shared)));
            } else if anonymous < LEAST_PROCESS {
                add(MemoryKind::SmallProcesses, anonymous);
            }
        }
        let total_of = |kind, bytes: u64| match kind {
            MemoryKind::Shared => self.fixed.shared,
            MemoryKind::PageTables => self.fixed.tables,
            // A page that forks share was counted in each of them, so scale the sum down.
            _ => (u128::from(bytes) * u128::from(self.anonymous.min(sum)) / u128::from(sum.max(1))) as u64,
        };
        let summed = |(kind, each): (MemoryKind, Vec<(u64, u32)>)| {
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

/// Returns the message for an impossible limit, depending on the kind that takes most of it.
fn impossible(unpaged: &[Unpaged]) -> &'static Message {
    match unpaged.first().map(|one| one.kind) {
        Some(MemoryKind::Locked) => &messages::LIMIT_IMPOSSIBLE_LOCKED,
        Some(MemoryKind::Shared) => &messages::LIMIT_IMPOSSIBLE_SHARED,
        _ => &messages::LIMIT_IMPOSSIBLE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_soon_is_not_told() {
        let (start, mut excess) = (Instant::now(), Lasting::default());
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
        let all = [
            one(MemoryKind::Locked, 40),
            one(MemoryKind::FilePages, 20),
            one(MemoryKind::Stacks, 3),
            one(MemoryKind::Small, 2),
        ];
        let said = in_words(&all);
        let name = proc::name(pid);
        let locked =
            format!("65 MiB cannot be paged: 40 MiB of locked memory in process {pid} ({name}), 20 MiB of");
        assert!(
            said.starts_with(&locked)
                && said.ends_with(&format!("3 MiB of stacks in process {pid} ({name})")),
            "{said}"
        );
        assert!(impossible(&all).remedy.contains("lock less"));
        let small = Unpaged { has_others: true, ..one(MemoryKind::SmallProcesses, 9) };
        assert_eq!(
            small.to_string(),
            format!("9 MiB of small processes, such as process {pid} ({name}) and others")
        );
        assert_eq!(
            in_words(&[one(MemoryKind::Small, 0)]),
            "all of it can be paged, but not as fast as it comes"
        );
    }
}
