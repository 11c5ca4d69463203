//! Which of a program's mappings are taken over.
//!
//! Private anonymous memory that the program reads and writes, wherever it came from: the heap, `mmap`, any
//! allocator. Never taken are
//!
//! - stacks, and whatever lies in the same mapping as a thread's descriptor: at a thread's end the kernel writes there on
//!   its own, and does not wait for a missing page, so that `pthread_join` would hang;
//! - the data of programs and libraries, which the dynamic linker and libc use in any context;
//! - mappings below [`LEAST_BYTES`], which are not worth the while;
//! - what the kernel refuses to move: read-only, inaccessible, executable and locked memory.

use crate::proc::Mapping;

/// The least mapping that is taken.
pub(crate) const LEAST_BYTES: u64 = 1 << 20;
/// A mapping of at most this size, with an inaccessible one right before it, looks like a thread's stack.
const LARGEST_STACK: u64 = 64 << 20;

/// Returns the mappings that are taken. `stacks` are addresses inside the stacks of threads.
pub(crate) fn eligible<'a>(mappings: &'a [Mapping], stacks: &[u64]) -> Vec<&'a Mapping> {
    let mut taken = Vec::new();
    for (index, mapping) in mappings.iter().enumerate() {
        let before = index.checked_sub(1).map(|before| &mappings[before]);
        if is_eligible(mapping, before) && !stacks.iter().any(|at| mapping.start <= *at && *at < mapping.end)
        {
            taken.push(mapping);
        }
    }
    taken
}

fn is_eligible(mapping: &Mapping, before: Option<&Mapping>) -> bool {
    let is_plain = mapping.is_private && mapping.is_readable && mapping.is_writable && !mapping.is_executable;
    let is_named = !mapping.name.is_empty() && mapping.name != "[heap]" && !mapping.name.starts_with("[anon");
    // Behind a library's data lies its bss, which has no name.
    let is_bss = before.is_some_and(|before| before.end == mapping.start && before.has_file);
    is_plain
        && !mapping.has_file
        && !is_named
        && !is_bss
        && mapping.len() >= LEAST_BYTES
        && !looks_like_a_stack(mapping, before)
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
            mapping(70 * MIB, 80 * MIB, "rw-p", "[anon:arena]"),
            mapping(80 * MIB, 90 * MIB, "rw-p", ""),
            mapping(100 * MIB, 110 * MIB, "rw-p", "[stack]"),
        ];
        let taken: Vec<_> = eligible(&all, &[85 * MIB]).iter().map(|taken| taken.start / MIB).collect();
        assert_eq!(taken, [7, 10, 70]);
    }
}
