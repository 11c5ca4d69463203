//! Which of a program's mappings are taken over.
//!
//! Private anonymous memory that the program reads and writes is taken, executable or not, from the heap,
//! `mmap` or any allocator, unless something shows that it is one of these:
//!
//! - stacks of threads, and the descriptor of a thread wherever it lies: when a thread ends, the kernel
//!   itself writes there, and does not wait for a missing page, so `pthread_join` would hang;
//! - the data of programs and libraries, which the dynamic linker and libc use in any context (`bss.rs`);
//! - mappings and parts of mappings below [`LEAST_BYTES`], unless they are growth of a taken mapping, or all
//!   such parts add up to more than [`LEAST_TOGETHER`];
//! - read-only and inaccessible memory, which usually holds few bytes. Memory that is taken first, and
//!   becomes read-only or inaccessible later, stays taken.
//!
//! A mapping's neighbours prove nothing: the kernel puts mappings between libraries, and allocators make
//! guards like the guards of stacks. `docs/pager.md` describes the cost of a wrong guess.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use octavo::PAGE_BYTES;
use octavo_platform::pagemap::{Categories, Pagemap, ScanFilter};
use octavo_platform::refusal;
use rangemap::RangeSet;

use crate::managed::bss;
use crate::managed::kinds::{Kinds, MemoryKind};
use crate::managed::layout::Ranges;
use crate::system::proc::{self, ProcessMapping, Threads};

/// The smallest range that is taken on its own. V8's heap is in mappings of 256 KiB, and the C library maps
/// blocks from 128 KiB up.
pub(crate) const LEAST_BYTES: u64 = 128 << 10;
/// Smaller ranges are taken if they add up to more than this. Many of them appear, grow and merge all the
/// time. A range that grows while it is taken is watched only in part for a moment. During that moment, the
/// program cannot move or resize it as a whole.
const LEAST_TOGETHER: u64 = 16 << 20;
/// A mapping larger than this is not just a thread's stack. Only the descriptors in it are left out, since
/// the kernel writes to nothing else there. The rest is taken.
const LARGEST_STACK: u64 = 64 << 20;
/// The C library keeps a thread's descriptor within this many bytes of the end of the thread's stack.
const DESCRIPTOR_BYTES: u64 = 2 * PAGE;
/// The most bytes of inaccessible memory before a thread's stack.
const LARGEST_GUARD: u64 = 64 << 10;
/// When a thread without a descriptor ends, the kernel may clear the thread's number in the program's memory.
/// That number lies at most this far behind the stack pointer.
const STACK_BYTES: u64 = 256 << 10;
const PAGE: u64 = PAGE_BYTES as u64;

/// The mappings and threads of a process, as they were read.
#[derive(Debug, Default)]
pub(crate) struct SeenMemory {
    mappings: Vec<ProcessMapping>,
    threads: Threads,
    bss: RangeSet<u64>,
    /// The stack pointers in mappings that are taken already, or that may have been divided when memory
    /// behind them was taken.
    taken_stacks: Vec<u64>,
    /// Where stacks of running threads may be that did not answer.
    unknown: RangeSet<u64>,
}

impl SeenMemory {
    /// # Errors
    /// Returns a sentence if the process has ended or cannot be looked at.
    pub(crate) fn of(pid: u32) -> Result<Self, String> {
        let mappings = proc::mappings(pid).map_err(|error| refusal::in_words(&error))?;
        let memory = PresentMemory::of(pid).map_err(|error| refusal::in_words(&error))?;
        let bss = bss::find(&mappings, |at, bytes| memory.read(at, bytes));
        // Read the threads last, so that the stacks of new threads are included.
        let threads = Threads::of(pid).map_err(|error| refusal::in_words(&error))?;
        Ok(Self { mappings, threads, bss, ..Self::default() })
    }

    /// Finds the stacks of running threads, if one may lie in a large mapping that is not taken: the kernel
    /// merges a stack with the memory right behind it. `ask` returns the stack pointers of threads, and stops
    /// the threads for a moment. If one does not answer, its stack may be at the start of such a mapping,
    /// which is left out until the next look.
    pub(crate) fn find_hidden_stacks(
        &mut self,
        is_taken: impl Fn(&Range<u64>) -> bool,
        ask: impl FnOnce(Vec<u32>) -> Vec<(u32, u64)>,
    ) {
        if self.threads.hidden.is_empty() {
            return;
        }
        let may_begin_with_a_stack = |(before, mapping): &(&ProcessMapping, &ProcessMapping)| {
            mapping.len() > LARGEST_STACK
                && is_behind_a_guard(mapping, Some(before))
                && self.kind_of(mapping, Some(before)) == MemoryKind::Private
                && !is_taken(&(mapping.start..mapping.end))
        };
        let pairs = self.mappings.iter().zip(self.mappings.iter().skip(1));
        let found = pairs.filter(may_begin_with_a_stack).map(|(_, mapping)| mapping.start);
        let starts: Vec<_> = found.collect();
        if starts.is_empty() {
            return;
        }
        let Threads { stacks, hidden, .. } = &mut self.threads;
        stacks.extend(ask(hidden.clone()));
        hidden.retain(|thread| !stacks.contains_key(thread));
        if !hidden.is_empty() {
            // What is left out is too large for a stack, so it is asked about again.
            self.unknown.extend(starts.into_iter().map(|start| start..start + LARGEST_STACK + PAGE));
        }
    }

    /// Adds the results of earlier looks. The bss that was found earlier still counts, even if the headers
    /// have left memory since. A running thread may still be on the stack that it was on when it last slept.
    #[must_use]
    pub(crate) fn after(mut self, found: &mut Ranges) -> Self {
        found.bss.extend(self.bss);
        self.bss = found.bss.clone();
        let Threads { stacks, hidden, .. } = &mut self.threads;
        stacks.extend(hidden.iter().filter_map(|thread| found.stacks.get_key_value(thread)));
        found.stacks.clone_from(stacks);
        let is_divided = |at: &u64| {
            let ends_at_taken = |mapping: &ProcessMapping| found.mapped.contains(&mapping.end);
            found.mapped.contains(at) || self.mapping_at(*at).is_some_and(ends_at_taken)
        };
        self.taken_stacks = self.threads.stacks.values().copied().filter(is_divided).collect();
        self
    }

    /// Returns the ranges to take, each inside one mapping. Either all small ranges are taken, or none of
    /// them.
    pub(crate) fn eligible(&self) -> Vec<(u64, u64)> {
        let is_small = |(start, end): &(u64, u64)| end - start < LEAST_BYTES;
        let mut ranges = self.ranges();
        let small = ranges.iter().filter(|range| is_small(range));
        if small.map(|(start, end)| end - start).sum::<u64>() <= LEAST_TOGETHER {
            ranges.retain(|range| !is_small(range));
        }
        ranges
    }

    /// Returns the ranges that may be taken, however small, each inside one mapping.
    pub(crate) fn ranges(&self) -> Vec<(u64, u64)> {
        let paged = self.parts().into_iter().filter(|(_, kind)| kind.is_paged());
        paged.map(|(part, _)| (part.start, part.end)).collect()
    }

    /// Returns the growth of mappings between an earlier look and their watch: mappings right before or
    /// behind ranges that were taken since that look. Such growth is not watched, so the kernel shows it as
    /// separate mappings. New mappings of the program may look the same.
    pub(crate) fn grown_since(&self, before: &Self, taken: &RangeSet<u64>) -> Vec<(u64, u64)> {
        let was_there = |mapping: &ProcessMapping| {
            before.next_at(mapping.start).is_some_and(|old| old.start < mapping.end)
        };
        let is_beside_taken = |mapping: &ProcessMapping| {
            mapping.start.checked_sub(1).is_some_and(|last| taken.contains(&last))
                || taken.contains(&mapping.end)
        };
        let grown = self.possible().filter(|mapping| is_beside_taken(mapping) && !was_there(mapping));
        let whole = grown.filter(|mapping| self.rest_of(mapping) == [(mapping.start, mapping.end)]);
        whole.map(|mapping| (mapping.start, mapping.end)).collect()
    }

    /// Returns the mappings that may be taken in whole or in part.
    fn possible(&self) -> impl Iterator<Item = &ProcessMapping> {
        self.mappings_by_kind().filter(|(_, kind)| *kind == MemoryKind::Private).map(|(mapping, _)| mapping)
    }

    fn mappings_by_kind(&self) -> impl Iterator<Item = (&ProcessMapping, MemoryKind)> {
        let before = std::iter::once(None).chain(self.mappings.iter().map(Some));
        let mappings = self.mappings.iter().zip(before);
        mappings.map(|(mapping, before)| (mapping, self.kind_of(mapping, before)))
    }

    /// Returns the kind of a mapping. If it is [private](MemoryKind::Private), parts of it may be of other
    /// kinds.
    fn kind_of(&self, mapping: &ProcessMapping, before: Option<&ProcessMapping>) -> MemoryKind {
        let is_named =
            !mapping.name.is_empty() && mapping.name != "[heap]" && !mapping.name.starts_with("[anon");
        match mapping {
            ProcessMapping { is_private: false, .. } => MemoryKind::Shared,
            ProcessMapping { file: Some(_), .. } => MemoryKind::FilePages,
            _ if mapping.name == "[stack]" => MemoryKind::Stacks,
            _ if is_named => MemoryKind::Special,
            ProcessMapping { is_readable: true, is_writable: true, .. } => {
                if self.is_a_stack(mapping, before) { MemoryKind::Stacks } else { MemoryKind::Private }
            }
            _ => MemoryKind::Closed,
        }
    }

    /// Returns all parts of all mappings, each with its kind.
    fn parts(&self) -> Vec<(Range<u64>, MemoryKind)> {
        let mut parts = Vec::new();
        for (mapping, kind) in self.mappings_by_kind() {
            let whole = mapping.start..mapping.end;
            if kind != MemoryKind::Private {
                parts.push((whole, kind));
                continue;
            }
            let mut others = RangeSet::new();
            others.insert(whole.clone());
            for (start, end) in self.rest_of(mapping) {
                others.remove(start..end);
                let kind = if end - start < LEAST_BYTES { MemoryKind::Small } else { MemoryKind::Private };
                parts.push((start..end, kind));
            }
            for other in others {
                let is_bss = self.bss.overlaps(&other);
                parts.push((other, if is_bss { MemoryKind::ProgramData } else { MemoryKind::Stacks }));
            }
        }
        parts
    }

    /// Counts by kind the private pages that are present outside of the taken ranges. Memory that should have
    /// been taken but was not counts as [`MemoryKind::Unwatched`].
    pub(crate) fn count_outside(&self, taken: &RangeSet<u64>, pagemap: &Pagemap) -> Kinds {
        let wanted = ScanFilter {
            none_of: Categories::FILE | Categories::ZERO,
            ..ScanFilter::any(Categories::PRESENT)
        };
        let mut kinds = Kinds::new();
        for (part, kind) in self.parts().into_iter().filter(|(_, kind)| *kind != MemoryKind::Shared) {
            let mut bytes = 0;
            for gap in taken.gaps(&part) {
                // If the process has ended meanwhile, it has no pages.
                let _ = pagemap.scan(gap.start, gap.end, wanted, |run| bytes += run.end - run.start);
            }
            let kind = if kind == MemoryKind::Private { MemoryKind::Unwatched } else { kind };
            *kinds.entry(kind).or_default() += bytes;
        }
        kinds
    }

    /// Returns whether a mapping is the stack of a thread, and nothing else.
    fn is_a_stack(&self, mapping: &ProcessMapping, before: Option<&ProcessMapping>) -> bool {
        let ends_with =
            |descriptor: &u64| mapping.contains(*descriptor) && mapping.end - descriptor <= DESCRIPTOR_BYTES;
        // Less is known about threads without a descriptor, so the guard before the stack must be there as
        // well.
        let may_hold_a_thread = || {
            !self.threads.hidden.is_empty() || self.threads.stacks.values().any(|at| mapping.contains(*at))
        };
        mapping.len() <= LARGEST_STACK
            && (self.threads.descriptors.iter().any(ends_with)
                || is_behind_a_guard(mapping, before) && may_hold_a_thread())
    }

    /// Returns the parts of a mapping that are neither bss nor memory that the kernel writes to when threads
    /// end.
    fn rest_of(&self, mapping: &ProcessMapping) -> Vec<(u64, u64)> {
        let whole = mapping.start..mapping.end;
        let mut others = RangeSet::new();
        others.extend(self.bss.overlapping(&whole).cloned());
        others.extend(self.unknown.overlapping(&whole).cloned());
        let descriptors = self.threads.descriptors.iter().chain(&self.threads.first_descriptor);
        others.extend(descriptors.map(around_descriptor));
        others.extend(self.threads.stacks.values().map(|at| self.behind_stack_pointer(*at)));
        others.gaps(&whole).map(|part| (part.start, part.end)).collect()
    }

    /// Returns where the kernel may write for a thread without a descriptor: at most up to the end of its
    /// stack's mapping. If that mapping is taken, the watch may have divided it, so its end is no bound.
    fn behind_stack_pointer(&self, at: u64) -> Range<u64> {
        let page = at & !(PAGE - 1);
        let most = page.saturating_add(STACK_BYTES);
        let mapping = self.mapping_at(at).filter(|_| !self.taken_stacks.contains(&at));
        page..mapping.map_or(most, |mapping| mapping.end.min(most))
    }

    fn mapping_at(&self, address: u64) -> Option<&ProcessMapping> {
        self.next_at(address).filter(|mapping| mapping.contains(address))
    }

    /// Returns the first mapping that ends behind an address. The mappings are in the order of their
    /// addresses.
    fn next_at(&self, address: u64) -> Option<&ProcessMapping> {
        self.mappings.get(self.mappings.partition_point(|mapping| mapping.end <= address))
    }
}

/// The present memory of a process.
struct PresentMemory {
    bytes: File,
    pagemap: Pagemap,
}

impl PresentMemory {
    fn of(pid: u32) -> std::io::Result<Self> {
        Ok(Self { bytes: File::open(format!("/proc/{pid}/mem"))?, pagemap: Pagemap::of(pid)? })
    }

    /// Reads bytes of one page. Returns `false` if the page is not present: to read it in, the kernel might
    /// wait for a file system that does not answer, and lock the program's mappings meanwhile.
    fn read(&self, at: u64, bytes: &mut [u8]) -> bool {
        let mut is_there = false;
        let page = at & !(PAGE - 1);
        let asked =
            self.pagemap.scan(page, page + PAGE, ScanFilter::any(Categories::PRESENT), |_| is_there = true);
        asked.is_ok() && is_there && self.bytes.read_exact_at(bytes, at).is_ok()
    }
}

/// Returns the pages of a descriptor. Its thread's number is right before the known address.
fn around_descriptor(at: &u64) -> Range<u64> {
    let page = at & !(PAGE - 1);
    page.saturating_sub(PAGE)..page.saturating_add(PAGE)
}

fn is_behind_a_guard(mapping: &ProcessMapping, before: Option<&ProcessMapping>) -> bool {
    before.is_some_and(|before| {
        before.end == mapping.start && is_inaccessible(before) && before.len() <= LARGEST_GUARD
    })
}

fn is_inaccessible(mapping: &ProcessMapping) -> bool {
    let is_accessible = mapping.is_readable || mapping.is_writable || mapping.is_executable;
    !is_accessible && mapping.file.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn mapping(start: u64, end: u64, permissions: &str, name: &str) -> ProcessMapping {
        let has = |letter| permissions.contains(letter);
        ProcessMapping {
            start,
            end,
            is_readable: has('r'),
            is_writable: has('w'),
            is_executable: has('x'),
            is_private: has('p'),
            file: name.starts_with('/').then(|| proc::FileId::numbered(name.len() as u64)),
            offset: 0,
            name: name.into(),
        }
    }

    fn seen(mappings: &[ProcessMapping], threads: &Threads) -> SeenMemory {
        let (mappings, threads) = (mappings.to_vec(), threads.clone());
        SeenMemory { mappings, threads, ..SeenMemory::default() }
    }

    /// Unused data of this program. The kernel has read in none of it except next to other data.
    static UNUSED: [u8; MIB as usize] = [1; MIB as usize];

    #[test]
    fn what_is_not_there_is_not_brought() {
        let memory = PresentMemory::of(std::process::id()).unwrap();
        let middle = &raw const UNUSED[MIB as usize / 2];
        let mut byte = [0];
        assert!(!memory.read(middle as u64, &mut byte), "the kernel would have to read a file");
        assert_eq!(std::hint::black_box(&UNUSED)[MIB as usize / 2], 1);
        assert!(memory.read(middle as u64, &mut byte));
        assert_eq!(byte, [1]);
    }

    #[test]
    fn plain_memory_is_taken_and_nothing_else() {
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
        let threads = Threads { descriptors: vec![90 * MIB - 0x660], ..Threads::default() };
        let taken =
            |seen: &SeenMemory| seen.eligible().iter().map(|(start, _)| start / MIB).collect::<Vec<_>>();
        let mut seen = seen(&all, &threads);
        assert_eq!(taken(&seen), [3, 7, 10, 20, 50, 65, 70]);
        seen.bss.insert(3 * MIB..5 * MIB);
        assert_eq!(taken(&seen), [5, 7, 10, 20, 50, 65, 70], "memory behind bss is no bss");
    }

    #[test]
    fn each_part_of_a_mapping_is_of_one_kind() {
        const KIB: u64 = 1 << 10;
        let all = [
            mapping(0, MIB, "r-xp", "/bin/program"),
            mapping(MIB, 3 * MIB, "rw-p", ""),
            mapping(4 * MIB, 4 * MIB + 64 * KIB, "rw-p", ""),
            mapping(5 * MIB, 6 * MIB, "---p", ""),
            mapping(6 * MIB, 7 * MIB, "rw-s", "/dev/shm/x"),
            mapping(7 * MIB, 8 * MIB, "r--p", "[vvar]"),
            mapping(10 * MIB, 20 * MIB, "rwxp", "[anon:heap]"),
            mapping(20 * MIB, 30 * MIB, "rw-p", ""),
            mapping(100 * MIB, 200 * MIB, "rw-p", ""),
            mapping(300 * MIB, 301 * MIB, "rw-p", "[stack]"),
        ];
        let descriptors = vec![30 * MIB - 0x660, 200 * MIB - 0x660];
        let mut seen = seen(&all, &Threads { descriptors, ..Threads::default() });
        seen.bss.insert(MIB..2 * MIB);
        let parts = seen.parts().into_iter().map(|(part, kind)| (part.start / KIB, part.end / KIB, kind));
        let expected = [
            (0, 1024, MemoryKind::FilePages),
            (2048, 3072, MemoryKind::Private),
            (1024, 2048, MemoryKind::ProgramData),
            (4096, 4160, MemoryKind::Small),
            (5120, 6144, MemoryKind::Closed),
            (6144, 7168, MemoryKind::Shared),
            (7168, 8192, MemoryKind::Special),
            (10 << 10, 20 << 10, MemoryKind::Private),
            (20 << 10, 30 << 10, MemoryKind::Stacks),
            (100 << 10, (200 << 10) - 8, MemoryKind::Private),
            ((200 << 10) - 8, 200 << 10, MemoryKind::Stacks),
            (300 << 10, 301 << 10, MemoryKind::Stacks),
        ];
        assert_eq!(parts.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn small_ranges_are_taken_where_they_are_much_together() {
        let small = |count: u64| -> Vec<_> {
            (0..count).map(|index| mapping(index * MIB, index * MIB + LEAST_BYTES / 2, "rw-p", "")).collect()
        };
        let most = LEAST_TOGETHER / (LEAST_BYTES / 2);
        let large = mapping(1000 * MIB, 1001 * MIB, "rw-p", "");
        let taken = |count| {
            let all = [small(count), vec![large.clone()]].concat();
            seen(&all, &Threads::default()).eligible().len() as u64
        };
        assert_eq!((taken(most), taken(most + 1)), (1, most + 2));
    }

    #[test]
    fn what_was_bss_at_an_earlier_look_is_left_alone() {
        let all = [mapping(MIB, 3 * MIB, "rw-p", "")];
        let mut found = Ranges::default();
        let mut first = seen(&all, &Threads::default());
        first.bss.insert(MIB..2 * MIB);
        for seen in [first, seen(&all, &Threads::default())] {
            assert_eq!(seen.after(&mut found).eligible(), [(2 * MIB, 3 * MIB)]);
        }
    }

    /// A thread that begins has no descriptor yet. If the memory behind its stack's mapping counted as stack,
    /// that memory would be watched except for its first pages, and the program could not move it as a whole.
    #[test]
    fn what_lies_behind_the_mapping_of_a_stack_is_no_stack() {
        let behind = mapping(8 * MIB, 16 * MIB, "rw-p", "");
        let threads = Threads { stacks: [(7, 8 * MIB - PAGE)].into(), ..Threads::default() };
        let [guard, stack] = [mapping(0, PAGE, "---p", ""), mapping(PAGE, 8 * MIB, "rw-p", "")];
        let all = [guard, stack, behind.clone()];
        assert_eq!(seen(&all, &threads).eligible(), [(8 * MIB, 16 * MIB)]);
        // The end of taken memory is no bound, since the mapping may have been divided there.
        let mut found = Ranges::default();
        found.mapped.insert(0..8 * MIB);
        let all = [mapping(0, 8 * MIB, "rw-p", ""), behind];
        let rest = (8 * MIB - PAGE + STACK_BYTES, 16 * MIB);
        assert_eq!(seen(&all, &threads).after(&mut found).eligible(), [(0, 8 * MIB - PAGE), rest]);
    }

    #[test]
    fn memory_behind_a_guard_is_a_stack_only_if_a_thread_may_be_there() {
        let all = [mapping(0, PAGE, "---p", ""), mapping(PAGE, 8 * MIB, "rw-p", "")];
        let taken = |threads: &Threads| !seen(&all, threads).eligible().is_empty();
        assert!(taken(&Threads::default()));
        assert!(taken(&Threads { descriptors: vec![9 * MIB], ..Threads::default() }));
        assert!(!taken(&Threads { descriptors: vec![8 * MIB - 0x660], ..Threads::default() }));
        assert!(!taken(&Threads { stacks: [(7, 5 * MIB)].into(), ..Threads::default() }));
        assert!(!taken(&Threads { hidden: vec![7], ..Threads::default() }));
        let wide = [mapping(0, MIB, "---p", ""), mapping(MIB, 9 * MIB, "rw-p", "")];
        let hidden = Threads { hidden: vec![7], ..Threads::default() };
        assert_eq!(seen(&wide, &hidden).eligible(), [(MIB, 9 * MIB)], "a guard is small");
    }

    #[test]
    fn a_running_thread_is_asked_where_its_stack_is_if_that_may_have_merged_with_a_heap() {
        let all = [mapping(0, PAGE, "---p", ""), mapping(PAGE, 90 * MIB, "rw-p", "")];
        let found = |mappings: &[ProcessMapping], hidden: &[u32], is_taken: bool| {
            let threads = Threads { hidden: hidden.to_vec(), ..Threads::default() };
            let mut seen = seen(mappings, &threads);
            let ask = |asked| {
                assert_eq!(asked, hidden);
                vec![(7, 2 * PAGE + 8)]
            };
            seen.find_hidden_stacks(|_| is_taken, ask);
            seen.eligible()
        };
        let rest = 2 * PAGE + STACK_BYTES;
        assert_eq!(found(&all, &[7], false), [(rest, 90 * MIB)]);
        assert_eq!(found(&all, &[7], true), [(PAGE, 90 * MIB)], "not again at each look");
        let behind = 2 * PAGE + LARGEST_STACK;
        assert_eq!(found(&all, &[7, 8], false), [(behind, 90 * MIB)], "one of them does not answer");
        let others = [all[0].clone(), mapping(2 * PAGE, 90 * MIB, "rw-p", "")];
        assert_eq!(found(&others, &[7], false), [(2 * PAGE, 90 * MIB)], "no guard is right before it");
    }

    /// The watch has divided the mapping, so the stack is no longer behind a guard.
    #[test]
    fn a_running_thread_is_still_on_the_stack_that_it_slept_on() {
        let mut found = Ranges::default();
        let whole = [mapping(0, PAGE, "---p", ""), mapping(PAGE, 90 * MIB, "rw-p", "")];
        let sleeps = Threads { stacks: [(7, MIB)].into(), ..Threads::default() };
        let behind = MIB + STACK_BYTES;
        let (before, rest) = ((PAGE, MIB), (behind, 90 * MIB));
        assert_eq!(seen(&whole, &sleeps).after(&mut found).eligible(), [before, rest]);
        found.mapped.extend([before.0..before.1, rest.0..rest.1]);
        let middle = mapping(MIB, behind, "rw-p", "");
        let divided =
            [whole[0].clone(), mapping(PAGE, MIB, "rw-p", ""), middle, mapping(behind, 90 * MIB, "rw-p", "")];
        let runs = Threads { hidden: vec![7], ..Threads::default() };
        for _ in 0..2 {
            assert_eq!(seen(&divided, &runs).after(&mut found).eligible(), [rest]);
        }
        let all = [(MIB, behind), rest];
        assert_eq!(
            seen(&divided, &Threads::default()).after(&mut found).eligible()[1..],
            all,
            "it has ended"
        );
        assert!(found.stacks.is_empty());
    }

    #[test]
    fn of_heaps_with_stacks_all_is_taken_but_what_the_kernel_may_write_to() {
        let heap = [mapping(0, 200 * MIB, "rw-p", "")];
        let stacks = Threads { stacks: [(7, 3 * MIB + 8)].into(), ..Threads::default() };
        let parts = [(0, 3 * MIB), (3 * MIB + STACK_BYTES, 200 * MIB)];
        assert_eq!(seen(&heap, &stacks).eligible(), parts);
        let at = 100 * MIB + 0x2e0;
        let descriptors = vec![at + PAGE, at, 200 * MIB - 5 * PAGE];
        let threads = Threads { descriptors, ..Threads::default() };
        let rest = (100 * MIB + 2 * PAGE, 200 * MIB - 6 * PAGE);
        assert_eq!(seen(&heap, &threads).eligible(), [(0, 100 * MIB - PAGE), rest]);
        let small = [mapping(0, 40 * MIB, "rw-p", ""), mapping(99 * MIB, 107 * MIB, "rw-p", "")];
        let first_descriptor = Some(30 * MIB + 0x2e0);
        let threads = Threads { descriptors: vec![at], first_descriptor, ..Threads::default() };
        let around = |at: u64| (at - PAGE, at + PAGE);
        let ((first, behind_first), (second, behind_second)) = (around(30 * MIB), around(100 * MIB));
        assert_eq!(
            seen(&small, &threads).eligible(),
            [(0, first), (behind_first, 40 * MIB), (99 * MIB, second), (behind_second, 107 * MIB)],
            "a stack inside of a block"
        );
    }

    #[test]
    fn what_a_taken_mapping_grows_by_is_found_and_nothing_that_was_there() {
        let before = [mapping(10 * MIB, 12 * MIB, "rw-p", ""), mapping(14 * MIB, 15 * MIB, "rw-p", "/file")];
        let now = |behind: ProcessMapping| {
            let first = mapping(9 * MIB, 10 * MIB, "rw-p", "");
            [first, before[0].clone(), behind, before[1].clone()]
        };
        let mut taken = RangeSet::new();
        taken.insert(10 * MIB..12 * MIB);
        let grown = |before: &[ProcessMapping], now: &[ProcessMapping], threads: &Threads| {
            seen(now, threads).grown_since(&seen(before, threads), &taken)
        };
        let threads = Threads::default();
        let behind = mapping(12 * MIB, 12 * MIB + PAGE, "rw-p", "");
        let both = [(9 * MIB, 10 * MIB), (12 * MIB, 12 * MIB + PAGE)];
        assert_eq!(grown(&before, &now(behind.clone()), &threads), both);
        let others = [
            mapping(12 * MIB + PAGE, 13 * MIB, "rw-p", ""),
            mapping(12 * MIB, 13 * MIB, "---p", ""),
            mapping(12 * MIB, 13 * MIB, "rw-s", ""),
            mapping(12 * MIB, 13 * MIB, "rw-p", "/other"),
        ];
        for other in others {
            assert_eq!(grown(&before, &now(other.clone()), &threads), both[..1], "{other:?}");
        }
        let stacks = Threads { stacks: [(7, 12 * MIB)].into(), ..Threads::default() };
        assert_eq!(grown(&before, &now(behind.clone()), &stacks), both[..1], "a stack");
        let descriptor = Threads { first_descriptor: Some(9 * MIB + 1), ..Threads::default() };
        assert_eq!(grown(&before, &now(behind.clone()), &descriptor), both[1..], "a descriptor");
        let mut library = seen(&now(behind.clone()), &threads);
        library.bss.insert(12 * MIB..12 * MIB + PAGE);
        assert_eq!(library.grown_since(&seen(&before, &threads), &taken), both[..1], "a library's bss");
        assert!(grown(&now(behind.clone()), &now(behind), &threads).is_empty(), "all was there");
    }
}
