//! Which of a program's mappings are taken over.
//!
//! Private anonymous memory that the program reads and writes, wherever it came from: the heap, `mmap`, any
//! allocator. Never taken are
//!
//! - stacks of threads, and the descriptor of a thread wherever it lies: at a thread's end the kernel writes there on
//!   its own, and does not wait for a missing page, so that `pthread_join` would hang;
//! - the data of programs and libraries, which the dynamic linker and libc use in any context;
//! - mappings below [`LEAST_BYTES`], which are not worth the while, but for what a taken one has grown by;
//! - what the kernel refuses to move: read-only, inaccessible, executable and locked memory.

use octavo::PAGE_BYTES;
use rangemap::RangeSet;

use crate::proc::{Mapping, Threads};

/// The least mapping that is taken. V8 has its heap in mappings of 256 KiB, and the C library maps blocks from 128 KiB on.
pub(crate) const LEAST_BYTES: u64 = 128 << 10;
/// A mapping of at most this size is a thread's stack if an inaccessible one is right before it, or if a thread has its stack
/// pointer or its descriptor there.
///
/// A larger one is a heap with stacks inside, such as those of Go's threads, or several stacks without gaps. The kernel writes to
/// descriptors only, so these are left out, and the rest is taken.
const LARGEST_STACK: u64 = 64 << 20;
const PAGE: u64 = PAGE_BYTES as u64;

/// Returns the ranges that are taken, each inside one mapping.
pub(crate) fn eligible(mappings: &[Mapping], threads: &Threads) -> Vec<(u64, u64)> {
    let mut taken = Vec::new();
    for (index, mapping) in mappings.iter().enumerate() {
        let before = index.checked_sub(1).map(|before| &mappings[before]);
        let is_large = mapping.len() >= LEAST_BYTES;
        if is_large && may_be_taken(mapping, before) && !is_a_stack(mapping, threads) {
            taken.extend(without_descriptors(mapping, threads));
        }
    }
    taken
}

/// Returns what mappings have grown by between two readings, right before or behind ranges that were taken in between. The kernel
/// shows it as mappings of their own, since it is not watched. So may be what the program has mapped there.
pub(crate) fn grown(
    before: &[Mapping],
    now: &[Mapping],
    threads: &Threads,
    taken: &RangeSet<u64>,
) -> Vec<(u64, u64)> {
    let was_there =
        |mapping: &Mapping| before.iter().any(|old| old.start < mapping.end && mapping.start < old.end);
    let is_beside_taken = |mapping: &Mapping| {
        mapping.start.checked_sub(1).is_some_and(|last| taken.contains(&last)) || taken.contains(&mapping.end)
    };
    let mut grown = Vec::new();
    for (index, mapping) in now.iter().enumerate() {
        let previous = index.checked_sub(1).map(|previous| &now[previous]);
        if is_beside_taken(mapping)
            && !was_there(mapping)
            && may_be_taken(mapping, previous)
            && !threads.places().any(|at| mapping.contains(at))
        {
            grown.push((mapping.start, mapping.end));
        }
    }
    grown
}

fn is_a_stack(mapping: &Mapping, threads: &Threads) -> bool {
    let mut places = threads.stacks.iter().chain(&threads.descriptors);
    mapping.len() <= LARGEST_STACK && places.any(|at| mapping.contains(*at))
}

/// Returns the parts of a mapping that are left without the pages of descriptors. The number of a descriptor's thread is right
/// before the address that is known of it.
fn without_descriptors(mapping: &Mapping, threads: &Threads) -> Vec<(u64, u64)> {
    let mut descriptors: Vec<_> =
        threads.descriptors.iter().chain(&threads.first_descriptor).copied().collect();
    descriptors.retain(|at| mapping.contains(*at));
    descriptors.sort_unstable();
    let (mut at, mut parts) = (mapping.start, Vec::new());
    for descriptor in descriptors {
        let page = descriptor & !(PAGE - 1);
        parts.push((at, page.saturating_sub(PAGE).max(at)));
        at = page + PAGE;
    }
    parts.push((at, mapping.end));
    parts.retain(|(start, end)| end - start >= LEAST_BYTES);
    parts
}

/// Private memory without a file that the program reads and writes, and no stack that can be told by what lies before it.
fn may_be_taken(mapping: &Mapping, before: Option<&Mapping>) -> bool {
    let is_plain = mapping.is_private && mapping.is_readable && mapping.is_writable && !mapping.is_executable;
    let is_named = !mapping.name.is_empty() && mapping.name != "[heap]" && !mapping.name.starts_with("[anon");
    // Behind a library's data lies its bss, which has no name.
    let is_bss = before.is_some_and(|before| before.end == mapping.start && before.has_file);
    is_plain && !mapping.has_file && !is_named && !is_bss && !looks_like_a_stack(mapping, before)
}

/// Stacks of threads are made with a guard before them, which nobody may access.
fn looks_like_a_stack(mapping: &Mapping, before: Option<&Mapping>) -> bool {
    let is_guard = |before: &Mapping| {
        !before.is_readable && !before.is_writable && !before.is_executable && before.len() <= 1 << 16
    };
    mapping.len() <= LARGEST_STACK
        && before.is_some_and(|before| before.end == mapping.start && !before.has_file && is_guard(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: u64, end: u64, permissions: &str, name: &str) -> Mapping {
        let has = |letter| permissions.contains(letter);
        Mapping {
            start,
            end,
            is_readable: has('r'),
            is_writable: has('w'),
            is_executable: has('x'),
            is_private: has('p'),
            has_file: name.starts_with('/'),
            name: name.into(),
        }
    }

    #[test]
    fn plain_memory_is_taken_and_nothing_else() {
        const MIB: u64 = 1 << 20;
        let all = [
            mapping(0, MIB, "r-xp", "/bin/program"),
            mapping(MIB, 3 * MIB, "rw-p", "/bin/program"),
            mapping(3 * MIB, 6 * MIB, "rw-p", ""),
            mapping(7 * MIB, 9 * MIB, "rw-p", "[heap]"),
            mapping(10 * MIB, 20 * MIB, "rw-p", ""),
            mapping(20 * MIB, 20 * MIB + 4096, "---p", ""),
            mapping(20 * MIB + 4096, 28 * MIB, "rw-p", ""),
            mapping(30 * MIB, 40 * MIB, "rw-s", "/dev/shm/x"),
            mapping(40 * MIB, 50 * MIB, "r--p", ""),
            mapping(50 * MIB, 60 * MIB, "rwxp", ""),
            mapping(60 * MIB, 60 * MIB + 8192, "rw-p", ""),
            mapping(65 * MIB, 65 * MIB + (256 << 10), "rw-p", ""),
            mapping(70 * MIB, 80 * MIB, "rw-p", "[anon:arena]"),
            mapping(80 * MIB, 90 * MIB, "rw-p", ""),
            mapping(100 * MIB, 110 * MIB, "rw-p", "[stack]"),
        ];
        let threads = Threads { stacks: vec![85 * MIB], ..Threads::default() };
        let taken: Vec<_> = eligible(&all, &threads).iter().map(|(start, _)| start / MIB).collect();
        assert_eq!(taken, [7, 10, 65, 70]);
    }

    #[test]
    fn of_heaps_with_stacks_all_is_taken_but_descriptors() {
        const MIB: u64 = 1 << 20;
        let heap = [mapping(0, 200 * MIB, "rw-p", "")];
        let stacks = Threads { stacks: vec![3 * MIB], ..Threads::default() };
        assert_eq!(eligible(&heap, &stacks), [(0, 200 * MIB)]);
        let at = 100 * MIB + 0x2e0;
        let threads = Threads { descriptors: vec![at + PAGE, at, 200 * MIB - 5 * PAGE], ..stacks };
        let rest = (100 * MIB + 2 * PAGE, 200 * MIB - 6 * PAGE);
        assert_eq!(eligible(&heap, &threads), [(0, 100 * MIB - PAGE), rest]);
        let small = [mapping(0, 40 * MIB, "rw-p", ""), mapping(99 * MIB, 107 * MIB, "rw-p", "")];
        let first_descriptor = Some(30 * MIB + 0x2e0);
        let threads = Threads { descriptors: vec![at], first_descriptor, ..Threads::default() };
        let rest = (30 * MIB + PAGE, 40 * MIB);
        assert_eq!(
            eligible(&small, &threads),
            [(0, 30 * MIB - PAGE), rest],
            "the first thread has its own stack"
        );
    }

    #[test]
    fn what_a_taken_mapping_grows_by_is_found_and_nothing_that_was_there() {
        const MIB: u64 = 1 << 20;
        let before = [mapping(10 * MIB, 12 * MIB, "rw-p", ""), mapping(14 * MIB, 15 * MIB, "rw-p", "/file")];
        let now = |behind: Mapping| {
            let first = mapping(9 * MIB, 10 * MIB, "rw-p", "");
            [first, before[0].clone(), behind, before[1].clone()]
        };
        let mut taken = RangeSet::new();
        taken.insert(10 * MIB..12 * MIB);
        let threads = Threads::default();
        let behind = mapping(12 * MIB, 12 * MIB + PAGE, "rw-p", "");
        let both = [(9 * MIB, 10 * MIB), (12 * MIB, 12 * MIB + PAGE)];
        assert_eq!(grown(&before, &now(behind.clone()), &threads, &taken), both);
        let others = [
            mapping(12 * MIB + PAGE, 13 * MIB, "rw-p", ""),
            mapping(12 * MIB, 13 * MIB, "---p", ""),
            mapping(12 * MIB, 13 * MIB, "rw-s", ""),
            mapping(12 * MIB, 13 * MIB, "rw-p", "/other"),
        ];
        for other in others {
            assert_eq!(grown(&before, &now(other.clone()), &threads, &taken), both[..1], "{other:?}");
        }
        let stacks = Threads { stacks: vec![12 * MIB], ..Threads::default() };
        assert_eq!(grown(&before, &now(behind.clone()), &stacks, &taken), both[..1], "a stack");
        let descriptor = Threads { first_descriptor: Some(9 * MIB + 1), ..Threads::default() };
        assert_eq!(grown(&before, &now(behind.clone()), &descriptor, &taken), both[1..], "a descriptor");
        let library = [mapping(8 * MIB, 9 * MIB, "rw-p", "/library"), mapping(9 * MIB, 10 * MIB, "rw-p", "")];
        assert!(grown(&before, &library, &threads, &taken).is_empty(), "a library's bss");
        assert!(grown(&now(behind.clone()), &now(behind), &threads, &taken).is_empty(), "all was there");
    }
}
