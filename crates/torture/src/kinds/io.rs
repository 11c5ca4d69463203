//! System calls that read and write the memory: files, pipes, other processes' memory, and buffers registered
//! with a ring.

use std::io::{Read, Write};
use std::ops::Range;
use std::thread;

use crate::finding::insist;
use crate::memory::PAGE;
use crate::patterned::Patterned;
use crate::ring::BufferRing;
use crate::transfer::{self, Debugged, ScratchFile, Slice};
use crate::work::{Team, WorkerState};

pub const OPERATIONS: &[&str] = &[
    "buffered file reads",
    "direct file reads",
    "direct file access refused",
    "unaligned reads",
    "readv of many pages",
    "transfers by pipe",
    "process_vm_writev",
    "process_vm_readv",
    "a debugger's reads",
    "a debugger's reads refused",
    "reads into registered buffers",
    "writes from registered buffers",
    "rings refused",
    "idle times",
];

/// The longest run of pages that one transfer moves.
const LONGEST_RUN: usize = 256;
/// The most ranges of one call. The kernel allows 1024.
const MOST_RANGES: usize = 256;
/// The most pages of a registered buffer.
const REGISTERED_PAGES: usize = 64;

struct Files {
    debugged: Debugged,
    buffered: ScratchFile,
    direct: Option<ScratchFile>,
}

pub fn run(team: Team<'_>) {
    team.run(|work| {
        // Each side has half of the memory, and one half is sent to the other.
        let mut from = Patterned::new(work.bytes / 2);
        let mut to = Patterned::new(work.bytes / 2);
        from.fill_all(work);
        to.fill_all(work);
        let direct = ScratchFile::direct(work.team.folder);
        if direct.is_none() {
            work.count("direct file access refused");
        }
        let files = Files { debugged: Debugged::new(), buffered: ScratchFile::new(work.team.folder), direct };
        while work.goes_on() {
            step(work, &files, &mut from, &mut to);
            let page = work.random.below(from.pages());
            from.check(page..page + 1, "in the source of transfers");
            let run = work.random.run(from.pages(), 64);
            from.fill(work, run);
        }
        from.check_all("at the end");
        to.check_all("at the end");
    });
}

/// Returns runs of the same length in the source and in the target.
fn runs(
    work: &mut WorkerState<'_>,
    from: &Patterned,
    to: &Patterned,
    longest: usize,
) -> (Range<usize>, Range<usize>) {
    let source = work.random.run(from.pages(), longest.min(to.pages()));
    let first = work.random.below(to.pages() - source.len() + 1);
    let target = first..first + source.len();
    (source, target)
}

/// Records that the target pages have the content of the source pages, and checks them.
fn arrived(from: &Patterned, source: Range<usize>, to: &mut Patterned, target: Range<usize>, when: &str) {
    for (source, target) in source.zip(target.clone()) {
        to.set_copy(target, from.content(source));
    }
    to.check(target, when);
}

fn slice<'a>(memory: &'a Patterned, pages: &Range<usize>) -> Slice<'a> {
    Slice::new(&memory.mapping, pages.start * PAGE, pages.len() * PAGE)
}

fn step(work: &mut WorkerState<'_>, files: &Files, from: &mut Patterned, to: &mut Patterned) {
    match work.random.below(17) {
        0..3 => {
            through_file(work, &files.buffered, from, to, "after a read from a file");
            work.count("buffered file reads");
        }
        3..6 => {
            if let Some(direct) = &files.direct {
                through_file(work, direct, from, to, "after a direct read");
                work.count("direct file reads");
            }
        }
        6 => unaligned(work, &files.buffered, from, to),
        7 => scattered(work, &files.buffered, from, to),
        8..10 => through_pipe(work, from, to),
        10..13 => through_process(work, from, to),
        13 | 14 => through_ring(work, files, from, to),
        15 => through_debugger(work, &files.debugged, from, to),
        _ => {
            work.idle(50);
            work.count("idle times");
        }
    }
}

fn through_file(
    work: &mut WorkerState<'_>,
    file: &ScratchFile,
    from: &mut Patterned,
    to: &mut Patterned,
    when: &str,
) {
    let (source, target) = runs(work, from, to, LONGEST_RUN);
    to.check(target.clone(), "before a transfer");
    file.write(slice(from, &source), 0);
    if work.random.once_in(8) {
        work.idle(20);
    }
    file.read(slice(to, &target), 0);
    arrived(from, source, to, target, when);
}

/// Reads to an unaligned address, and compares the bytes one by one.
fn unaligned(work: &mut WorkerState<'_>, file: &ScratchFile, from: &mut Patterned, to: &mut Patterned) {
    let (source, target) = runs(work, from, to, 16);
    file.write(slice(from, &source), 0);
    let bytes = source.len() * PAGE;
    let skip = 1 + work.random.below(PAGE - 1);
    let length = 1 + work.random.below(bytes - skip);
    let at = target.start * PAGE + skip;
    file.read(Slice::new(&to.mapping, at, length), 0);
    for offset in 0..bytes {
        let place = target.start * PAGE + offset;
        let found = to.mapping.byte(place);
        let expected = match (skip..skip + length).contains(&offset) {
            true => from.expected_byte(source.start * PAGE + offset - skip),
            false => to.expected_byte(place),
        };
        let address = to.mapping.address() + place;
        insist!(
            found == expected,
            "after a read to an odd address, the byte at {address:#x} is {found:#04x} and should be {expected:#04x}."
        );
    }
    to.fill(work, target);
    work.count("unaligned reads");
}

/// Reads by one `preadv` into single pages all over the target.
fn scattered(work: &mut WorkerState<'_>, file: &ScratchFile, from: &mut Patterned, to: &mut Patterned) {
    let (source, _) = runs(work, from, to, MOST_RANGES);
    file.write(slice(from, &source), 0);
    let stride = to.pages() / source.len();
    let pages: Vec<usize> = (0..source.len()).map(|number| number * stride).collect();
    file.read_scattered(pages.iter().map(|page| slice(to, &(*page..*page + 1))));
    for (source, target) in source.zip(pages) {
        arrived(from, source..source + 1, to, target..target + 1, "after a readv of many pages");
    }
    work.count("readv of many pages");
}

/// A thread writes to a pipe while this one reads.
fn through_pipe(work: &mut WorkerState<'_>, from: &mut Patterned, to: &mut Patterned) {
    let (source, target) = runs(work, from, to, LONGEST_RUN);
    let (mut reader, mut writer) = std::io::pipe().unwrap_or_else(|error| {
        crate::finding::report(format_args!("a pipe was refused: {error}"));
    });
    thread::scope(|scope| {
        let sent = slice(from, &source);
        let mut odd = [7u8];
        scope.spawn(move || {
            transfer::write_all(&writer, sent);
            let _ = writer.write_all(&odd);
        });
        transfer::read_all(&reader, slice(to, &target));
        insist!(reader.read(&mut odd).is_ok_and(|read| read == 1), "a pipe ended before its last byte.");
    });
    arrived(from, source, to, target, "after a read from a pipe");
    work.count("transfers by pipe");
}

fn through_process(work: &mut WorkerState<'_>, from: &mut Patterned, to: &mut Patterned) {
    let (source, target) = runs(work, from, to, LONGEST_RUN);
    let (sent, received) = (slice(from, &source), slice(to, &target));
    if work.random.once_in(2) {
        transfer::process_write(sent, received);
        work.count("process_vm_writev");
    } else {
        transfer::process_read(sent, received);
        work.count("process_vm_readv");
    }
    arrived(from, source, to, target, "after a transfer between processes");
}

/// A debugger gets the right bytes, or an error. After an error, another call must get the right bytes.
fn through_debugger(
    work: &mut WorkerState<'_>,
    debugged: &Debugged,
    from: &mut Patterned,
    to: &mut Patterned,
) {
    let (source, target) = runs(work, from, to, 8);
    let (sent, received) = (slice(from, &source), slice(to, &target));
    if debugged.read(sent, received) {
        work.count("a debugger's reads");
    } else {
        work.count("a debugger's reads refused");
        transfer::process_read(sent, received);
    }
    arrived(from, source, to, target, "after a debugger's read");
}

/// Registers a buffer, leaves it alone so that a pager may take it, and has the kernel write to its pages.
fn through_ring(work: &mut WorkerState<'_>, files: &Files, from: &mut Patterned, to: &mut Patterned) {
    let (source, target) = runs(work, from, to, REGISTERED_PAGES);
    let file = files.direct.as_ref().unwrap_or(&files.buffered);
    file.write(slice(from, &source), 0);
    let Some(ring) = BufferRing::with_buffer(slice(to, &target)) else {
        return work.count("rings refused");
    };
    for _ in 0..2 {
        work.idle(120);
        to.check(target.clone(), "in a registered buffer that was left alone");
        work.idle(120);
        ring.read_fixed(file, slice(to, &target));
        arrived(from, source.clone(), to, target.clone(), "after a read into a registered buffer");
        work.count("reads into registered buffers");
        work.idle(60);
        to.fill(work, target.clone());
        work.idle(60);
        ring.write_fixed(file, slice(to, &target));
        // Read the file back into the source, which must then equal the buffer.
        file.read(slice(from, &source), 0);
        arrived(to, target.clone(), from, source.clone(), "after a write from a registered buffer");
        work.count("writes from registered buffers");
        from.fill(work, source.clone());
        file.write(slice(from, &source), 0);
    }
}
