//! The kinds of memory that a program has, by how a run treats them.
//!
//! Each part of each mapping is of one kind (`eligible.rs`). `docs/kinds-of-memory.md` lists the kinds for
//! users. A test in this file checks the table of that page.

use std::collections::BTreeMap;

use serde::Serialize;

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    /// Private anonymous memory that the program reads and writes.
    Private,
    /// Memory like `Private`, in mappings or parts of mappings below 128 KiB.
    Small,
    /// Stacks of threads, their descriptors, and memory that the kernel may write to when threads end.
    Stacks,
    /// Data of programs and libraries that begins as zeros.
    ProgramData,
    /// Pages of private file mappings that the program has changed, such as data of programs and libraries.
    FilePages,
    /// Memory that was read-only or inaccessible at the last look.
    Closed,
    /// Memory that the kernel has mapped for its own use.
    Special,
    /// Memory that cannot be watched: the program watches it itself, or it is changing just now.
    Unwatched,
    /// Memory that the program has locked.
    Locked,
    /// Memory that several processes may map.
    Shared,
    /// The kernel's page tables.
    PageTables,
    /// All memory of processes that are too small to be taken over.
    SmallProcesses,
    /// All memory of processes that cannot be taken over.
    Unmanaged,
}

impl MemoryKind {
    /// All kinds.
    pub const ALL: [Self; 13] = [
        Self::Private,
        Self::Small,
        Self::Stacks,
        Self::ProgramData,
        Self::FilePages,
        Self::Closed,
        Self::Special,
        Self::Unwatched,
        Self::Locked,
        Self::Shared,
        Self::PageTables,
        Self::SmallProcesses,
        Self::Unmanaged,
    ];

    /// Returns whether such memory is taken over, either always or only if there is much of it.
    #[must_use]
    pub const fn is_paged(self) -> bool {
        matches!(self, Self::Private | Self::Small)
    }

    /// Returns the name of the kind in a sentence, as in "4 MiB of stacks".
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::Private => "private memory",
            Self::Small => "small mappings",
            Self::Stacks => "stacks",
            Self::ProgramData => "data of programs and libraries",
            Self::FilePages => "changed pages of mapped files",
            Self::Closed => "memory that may not be written",
            Self::Special => "memory of the kernel's",
            Self::Unwatched => "memory that cannot be watched",
            Self::Locked => "locked memory",
            Self::Shared => "shared memory",
            Self::PageTables => "page tables",
            Self::SmallProcesses => "small processes",
            Self::Unmanaged => "processes that are not managed",
        }
    }
}

/// Bytes by kind.
pub(crate) type Kinds = BTreeMap<MemoryKind, u64>;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the first and the third column of a table's row.
    fn row(line: &str) -> Option<(String, bool)> {
        let mut columns = line.strip_prefix("| `")?.split('|').map(str::trim);
        let name = columns.next()?.trim_end_matches('`').to_owned();
        Some((name, columns.nth(1)?.starts_with("paged")))
    }

    #[test]
    fn the_guide_lists_each_kind_and_whether_it_is_paged() {
        let guide = include_str!("../../../../docs/kinds-of-memory.md");
        let name = |kind| serde_json::to_string(&kind).unwrap().trim_matches('"').to_owned();
        let all: Vec<_> = MemoryKind::ALL.into_iter().map(|kind| (name(kind), kind.is_paged())).collect();
        assert_eq!(guide.lines().filter_map(row).collect::<Vec<_>>(), all);
    }
}
