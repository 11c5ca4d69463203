//! Records which pages a program uses, so that `octavo-lab replay` can compare the reclaim policies on it.
//!
//! ```text
//! cargo run --release -p octavo-lab --example used_pages -- TRACE PROGRAM ARGS...
//! target/release/octavo-lab replay TRACE --memory SIZES
//! ```
//!
//! This runs the program and its children without a limit, and writes a trace. It needs root, and was tried
//! on Linux 6.13.
//!
//! Every 8 ms, this reads the accessed bits of all pages that the tree has written, and clears them. A page
//! that was used in between is an access in the trace, in the order of addresses. So the trace has the order
//! of intervals only, which is all that reclaim can know. A page that is unmapped and mapped again counts as
//! a new page. Huge pages are off, since the bit of a huge page does not tell which part of it was used. The
//! kernel does not clear the bits of a page that a fork shares, so such a page is an access only once, when
//! it is new.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::fs::{self, File};
use std::io::BufWriter;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use octavo::PAGE_BYTES;
use octavo_platform::accessed::{self, AccessedBits, PageUse};
use octavo_platform::pagemap::{Categories, Pagemap, ScanFilter};
use octavo_trace::{Accesses, TraceWriter};

const BETWEEN_LOOKS: Duration = Duration::from_millis(8);
/// Processes with fewer private pages than this are skipped.
const LEAST_PAGES: u64 = 256;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [trace, program, rest @ ..] = &arguments[..] else {
        eprintln!("usage: used_pages TRACE PROGRAM ARGS...");
        return ExitCode::from(2);
    };
    match record(trace, Command::new(program).args(rest)) {
        Ok(told) => {
            eprintln!("{told}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("used_pages: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a program and records it. Returns a summary.
fn record(trace: &str, program: &mut Command) -> Result<String, Box<dyn Error>> {
    let bits = AccessedBits::prepare()?;
    let mut to = TraceWriter::new(BufWriter::new(File::create(trace)?), PAGE_BYTES as u32)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    rustix::thread::disable_transparent_huge_pages(true)?;
    let mut child = program.spawn()?;
    let mut tree = UsedTree::default();
    while child.try_wait()?.is_none() {
        tree.look(bits, &mut to)?;
        thread::sleep(BETWEEN_LOOKS);
    }
    let accesses = to.accesses();
    to.finish()?;
    Ok(format!("{accesses} accesses to {} pages, at most {} at once", tree.pages, tree.most))
}

/// The processes, and their pages in memory.
#[derive(Default)]
struct UsedTree {
    processes: HashMap<u32, UsedProcess>,
    /// All pages so far, and the most at once.
    pages: u64,
    most: usize,
}

struct UsedProcess {
    descriptor: OwnedFd,
    pagemap: Pagemap,
    /// For each page in memory, by address: its number in the trace.
    pages: HashMap<u64, u64>,
}

impl UsedTree {
    fn look(
        &mut self,
        bits: &AccessedBits,
        to: &mut TraceWriter<BufWriter<File>>,
    ) -> Result<(), Box<dyn Error>> {
        let mut found = HashSet::new();
        add_children(std::process::id(), &mut found);
        self.processes.retain(|pid, _| found.contains(pid));
        for pid in found {
            // A process may end at any time.
            let Some(used) = self.used(bits, pid) else { continue };
            for page in used {
                to.write(Accesses { task: 0, page, is_write: false, times: 1 })?;
            }
        }
        self.most = self.most.max(self.processes.values().map(|process| process.pages.len()).sum());
        Ok(())
    }

    /// Returns the numbers of the pages that a process has used since the last call.
    fn used(&mut self, bits: &AccessedBits, pid: u32) -> Option<Vec<u64>> {
        if private_pages(pid)? < LEAST_PAGES {
            return None;
        }
        let UsedProcess { descriptor, pagemap, pages } = match self.processes.entry(pid) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let (descriptor, pagemap) = (accessed::open(pid).ok()?, Pagemap::of(pid).ok()?);
                new.insert(UsedProcess { descriptor, pagemap, pages: HashMap::new() })
            }
        };
        let there = pages_there(pid, pagemap)?;
        let is_there: HashSet<u64> = there.iter().copied().collect();
        pages.retain(|page, _| is_there.contains(page));
        let mut used = there;
        let mut seen = bits.look(pid, &used).ok()?.into_iter();
        used.retain(|_| seen.next().is_some_and(PageUse::is_used));
        let refused: HashSet<u64> = accessed::forget(descriptor.as_fd(), &used).ok()?.into_iter().collect();
        let still = bits.look(pid, &used).ok()?;
        let numbers = used.iter().zip(still).filter_map(|(page, still)| {
            let tells_nothing = still.is_used() || refused.contains(page);
            match pages.get(page) {
                Some(_) if tells_nothing => None,
                Some(number) => Some(*number),
                None => {
                    self.pages += 1;
                    pages.insert(*page, self.pages - 1);
                    Some(self.pages - 1)
                }
            }
        });
        Some(numbers.collect())
    }
}

fn add_children(pid: u32, found: &mut HashSet<u32>) {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return };
    for thread in threads.flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
            if found.insert(child) {
                add_children(child, found);
            }
        }
    }
}

fn private_pages(pid: u32) -> Option<u64> {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let mut fields = statm.split_whitespace().skip(1).map_while(|field| field.parse::<u64>().ok());
    Some(fields.next()?.saturating_sub(fields.next()?))
}

/// Returns the anonymous pages of private, writable mappings that are in memory, in order.
fn pages_there(pid: u32, pagemap: &Pagemap) -> Option<Vec<u64>> {
    let wanted = ScanFilter {
        all_of: Categories::PRESENT,
        any_of: Categories::NONE,
        none_of: Categories::FILE | Categories::ZERO,
        told: Categories::NONE,
    };
    let mut pages = Vec::new();
    for line in fs::read_to_string(format!("/proc/{pid}/maps")).ok()?.lines() {
        let mut words = line.split_whitespace();
        let (range, permissions) = (words.next()?, words.next()?);
        if permissions.starts_with("rw") && permissions.ends_with('p') {
            let (start, end) = range.split_once('-')?;
            let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16));
            let scanned = pagemap.scan(start.ok()?, end.ok()?, wanted, |run| {
                pages.extend((run.start..run.end).step_by(PAGE_BYTES));
            });
            scanned.ok()?;
        }
    }
    Some(pages)
}
