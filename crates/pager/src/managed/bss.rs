//! Finds bss: data of programs and libraries that begins as zeros.
//!
//! The loader maps bss right behind the data of its file, as a mapping without a name. The kernel may place
//! other memory right behind the bss, and then shows both as one mapping. The ELF headers tell them apart: if
//! a segment is larger in memory than in the file, the rest is bss. The headers are read from the process's
//! memory, so no file is opened, and the file may be deleted. The headers of a running program are nearly
//! always in memory. Otherwise they are not read, since the read might wait for a file system that does not
//! answer.
//!
//! Memory that was recognised as bss once stays bss as long as the program runs (`layout.rs`), since the
//! headers of an idle program may leave memory.
//!
//! Memory behind a file whose headers were never read does not count as bss. Costs a read of 4 KiB for each
//! file with plain memory behind it.

use std::collections::HashMap;
use std::ops::Range;

use object::Endianness;
use object::elf::{FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};
use octavo::PAGE_BYTES;
use rangemap::RangeSet;

use crate::system::proc::ProcessMapping;

const PAGE: u64 = PAGE_BYTES as u64;

/// Finds the bss behind mappings of files. `read` fills a buffer with the process's bytes at an address.
pub(crate) fn find(mappings: &[ProcessMapping], read: impl Fn(u64, &mut [u8]) -> bool) -> RangeSet<u64> {
    let (mut starts, mut found) = (HashMap::new(), RangeSet::new());
    let mut before: Option<&ProcessMapping> = None;
    for mapping in mappings {
        if let (Some(file), 0) = (mapping.file, mapping.offset) {
            starts.insert(file, mapping.start);
        }
        let behind = before.filter(|before| mapping.file.is_none() && before.end == mapping.start);
        if let Some(start) = behind.and_then(|file| starts.get(&file.file?)) {
            let mut headers = [0; PAGE_BYTES];
            if read(*start, &mut headers) {
                found.extend(parts(*start, &headers).unwrap_or_default());
            }
        }
        before = Some(mapping);
    }
    found
}

/// Returns the bss of a file whose start is mapped at an address, or `None` if the file is no program or
/// library.
fn parts(start: u64, headers: &[u8]) -> Option<Vec<Range<u64>>> {
    let header = FileHeader64::<Endianness>::parse(headers).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, headers).ok()?;
    let loaded = || segments.iter().filter(|segment| segment.p_type(endian) == PT_LOAD);
    let first = loaded().find(|segment| segment.p_offset(endian) < PAGE)?;
    let moved_by = start.wrapping_sub(first.p_vaddr(endian) & !(PAGE - 1));
    let end_of =
        |at: u64, bytes: u64| at.wrapping_add(moved_by).checked_add(bytes)?.checked_next_multiple_of(PAGE);
    let bss = loaded().filter_map(|segment| {
        let at = segment.p_vaddr(endian);
        Some(end_of(at, segment.p_filesz(endian))?..end_of(at, segment.p_memsz(endian))?)
    });
    Some(bss.filter(|part| !part.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::*;
    use crate::system::proc;

    const LARGE: usize = 1 << 20;

    static ZEROS: [AtomicU8; LARGE] = [const { AtomicU8::new(0) }; LARGE];

    #[test]
    fn what_begins_as_zeros_in_this_program_is_bss_and_its_heap_is_not() {
        ZEROS[0].store(1, Ordering::Relaxed);
        let pid = std::process::id();
        let (mappings, memory) =
            (proc::mappings(pid).unwrap(), File::open(format!("/proc/{pid}/mem")).unwrap());
        let found = find(&mappings, |at, bytes| memory.read_exact_at(bytes, at).is_ok());
        let (start, end) = (ZEROS.as_ptr() as u64, ZEROS.as_ptr_range().end as u64);
        let inside = start.next_multiple_of(PAGE)..end & !(PAGE - 1);
        assert!(found.gaps(&inside).next().is_none(), "{inside:x?} in {found:x?}");
        let heap = vec![1_u8; LARGE];
        let heap = heap.as_ptr() as u64..heap.as_ptr_range().end as u64;
        assert!(!found.overlaps(&heap), "{heap:x?} in {found:x?}");
        let plain = |part: &Range<u64>| {
            let mapping = mappings.iter().find(|mapping| mapping.contains(part.start));
            mapping.is_some_and(|mapping| part.end <= mapping.end && mapping.file.is_none())
        };
        assert!(found.iter().all(plain), "{found:x?}");
    }

    /// The headers of a program with two segments, each with its address, bytes in the file and bytes in
    /// memory.
    fn headers(segments: [[u64; 3]; 2]) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(16, 0);
        // A library for x86-64, whose program headers follow.
        bytes.extend([3, 0, 62, 0, 1, 0, 0, 0]);
        bytes.extend([0, 64, 0].map(u64::to_le_bytes).concat());
        bytes.extend([0, 0, 0, 0, 64, 0, 56, 0, 2, 0, 64, 0, 0, 0, 0, 0]);
        for (index, [address, in_file, in_memory]) in segments.into_iter().enumerate() {
            bytes.extend([1, 0, 0, 0, 6, 0, 0, 0]);
            let offset = index as u64 * 0x3000;
            bytes.extend([offset, address, address, in_file, in_memory, PAGE].map(u64::to_le_bytes).concat());
        }
        bytes.resize(PAGE_BYTES, 0);
        bytes
    }

    #[test]
    fn of_a_segment_the_whole_pages_that_the_file_has_not_are_bss() {
        let at = |segments| {
            let parts = parts(0x7000_0000, &headers(segments)).unwrap();
            parts.iter().map(|part| (part.start, part.end)).collect::<Vec<_>>()
        };
        let data = [0x3800, 0x900, 0x5000];
        let bss = (0x7000_5000, 0x7000_9000);
        assert_eq!(at([[0, 0x2000, 0x2000], data]), [bss]);
        assert_eq!(
            at([[0x40_0000, 0x2000, 0x2000], [0x40_3800, 0x900, 0x5000]]),
            [bss],
            "at its own address"
        );
        assert!(at([[0, 0x2000, 0x2000], [0x3800, 0x900, 0x1500]]).is_empty());
        assert_eq!(at([[0, 0x2000, 0x2000], [0x4000, 0, 0x2000]]), [(0x7000_4000, 0x7000_6000)]);
        assert!(at([[0, 0x2000, u64::MAX], [0x3000, u64::MAX, 1]]).is_empty(), "nonsense is no bss");
        assert_eq!(parts(0, &[0; PAGE_BYTES]), None, "no program");
    }
}
