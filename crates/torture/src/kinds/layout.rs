//! Maps, unmaps, moves, grows, shrinks and advises about memory whose pages are known throughout.

use std::ops::Range;

use crate::finding::{insist, last_error};
use crate::memory::{OwnMapping, PAGE, READ_WRITE, Remap};
use crate::patterned::Patterned;
use crate::work::{Team, WorkerState};

pub const OPERATIONS: &[&str] = &[
    "runs written",
    "runs read",
    "mmap",
    "munmap",
    "munmap of a middle",
    "mmap over a part",
    "mremap that grows in place",
    "mremap in place refused",
    "mremap that may move",
    "mremap to a fixed place",
    "mremap that shrinks",
    "mremap that leaves the old range",
    "mremap of a divided range refused",
    "MADV_DONTNEED",
    "MADV_FREE",
    "MADV_HUGEPAGE",
    "MADV_NOHUGEPAGE",
    "MADV_POPULATE_READ",
    "MADV_POPULATE_WRITE",
    "MADV_DONTFORK",
    "MADV_DOFORK",
    "idle times",
];

/// The most mappings of one worker.
const MOST_PLOTS: usize = 24;

/// One mapping. It is whole as long as nothing has made the kernel divide it. As long as it is whole, calls
/// on the whole mapping must succeed.
struct Plot {
    memory: Patterned,
    whole: bool,
}

struct Land {
    plots: Vec<Plot>,
    most_pages: usize,
}

pub fn run(team: Team<'_>) {
    team.run(|work| {
        let mut land = Land { plots: Vec::new(), most_pages: (work.bytes / PAGE).max(64) };
        while work.goes_on() {
            land.step(work);
        }
        for plot in &mut land.plots {
            plot.memory.check_all("at the end");
        }
    });
}

impl Land {
    fn free_pages(&self) -> usize {
        let used: usize = self.plots.iter().map(|plot| plot.memory.pages()).sum();
        self.most_pages.saturating_sub(used)
    }

    fn step(&mut self, work: &mut WorkerState<'_>) {
        if self.plots.is_empty() || (self.plots.len() < MOST_PLOTS && work.random.once_in(12)) {
            return self.map(work);
        }
        let chosen = work.random.below(self.plots.len());
        match work.random.below(30) {
            0..8 => self.plots[chosen].write(work),
            8..12 => self.plots[chosen].read(work),
            12..20 => self.plots[chosen].advise(work),
            20 => self.plots[chosen].replace(work),
            21 => self.unmap(work, chosen),
            22 => self.unmap_middle(work, chosen),
            23..29 => self.remap(work, chosen),
            _ => {
                work.idle(40);
                work.count("idle times");
            }
        }
        // A call on one mapping must not change another.
        if !self.plots.is_empty() {
            let other = work.random.below(self.plots.len());
            let memory = &mut self.plots[other].memory;
            let page = work.random.below(memory.pages());
            memory.check(page..page + 1, "in a mapping that no call named");
        }
    }

    fn map(&mut self, work: &mut WorkerState<'_>) {
        let free = self.free_pages();
        if free == 0 {
            let chosen = work.random.below(self.plots.len());
            return self.unmap(work, chosen);
        }
        let pages = 1 + work.random.below(free.min(self.most_pages / 3).max(1));
        let mut memory = Patterned::over(OwnMapping::anonymous(pages * PAGE));
        let run = work.random.run(pages, 64);
        memory.check(run, "in a fresh mapping");
        work.count("mmap");
        self.plots.push(Plot { memory, whole: true });
    }

    fn unmap(&mut self, work: &mut WorkerState<'_>, chosen: usize) {
        let mut plot = self.plots.swap_remove(chosen);
        plot.read(work);
        work.count("munmap");
    }

    fn unmap_middle(&mut self, work: &mut WorkerState<'_>, chosen: usize) {
        let plot = self.plots.swap_remove(chosen);
        let pages = plot.memory.pages();
        let run = work.random.run(pages, pages);
        let (start, [mut head, mut tail]) = (run.start, plot.memory.without(run));
        if start > 0 {
            head.check(start - 1..start, "below pages that were unmapped");
        }
        if tail.pages() > 0 {
            tail.check(0..1, "above pages that were unmapped");
        }
        let left = [head, tail].into_iter().filter(|memory| memory.pages() > 0);
        self.plots.extend(left.map(|memory| Plot { memory, whole: plot.whole }));
        work.count("munmap of a middle");
    }

    fn remap(&mut self, work: &mut WorkerState<'_>, chosen: usize) {
        let free = self.free_pages();
        let (before, whole) = (self.plots[chosen].memory.pages(), self.plots[chosen].whole);
        let grown = before + work.random.below(free + 1);
        let (pages, how, name) = match work.random.below(5) {
            0 => (grown, Remap::InPlace, "mremap that grows in place"),
            1 => (grown, Remap::MayMove, "mremap that may move"),
            // The kernel may move only some parts of a divided range, and does not say which.
            2 if whole => (grown, Remap::Fixed, "mremap to a fixed place"),
            3 => (1 + work.random.below(before), Remap::InPlace, "mremap that shrinks"),
            _ if whole && before <= free => (before, Remap::DontUnmap, "mremap that leaves the old range"),
            _ => return,
        };
        let plot = &mut self.plots[chosen];
        let old = match plot.memory.mapping.remap(pages, how) {
            Ok(old) => old,
            Err(libc::ENOMEM) if how == Remap::InPlace => return work.count("mremap in place refused"),
            Err(error) => {
                insist!(
                    !whole && pages >= before,
                    "{name}, from {before} to {pages} pages at {:#x}, failed with error {error}; a whole mapping allows it.",
                    plot.memory.mapping.address()
                );
                plot.memory.check_all("after a mremap that was refused");
                return work.count("mremap of a divided range refused");
            }
        };
        if let Some(old) = old {
            let mut old = Patterned::over(old);
            let run = work.random.run(before, 256);
            old.check(run, "where a mapping was moved away");
            work.count("munmap");
        }
        plot.memory.follow_length();
        work.count(name);
        let seam = before.min(pages).saturating_sub(1);
        plot.memory.check(seam..(seam + 2).min(pages), "at the seam of a mapping that mremap changed");
        plot.read(work);
    }
}

impl Plot {
    fn run(&self, work: &mut WorkerState<'_>) -> Range<usize> {
        work.random.run(self.memory.pages(), 1024)
    }

    fn write(&mut self, work: &mut WorkerState<'_>) {
        let run = self.run(work);
        self.memory.fill(work, run);
        work.count("runs written");
    }

    fn read(&mut self, work: &mut WorkerState<'_>) {
        let run = self.run(work);
        self.memory.check(run, "in a mapping");
        work.count("runs read");
    }

    fn neighbours(&mut self, run: &Range<usize>, when: &str) {
        let (below, above) = (run.start.saturating_sub(1), (run.end + 1).min(self.memory.pages()));
        self.memory.check(below..run.start, when);
        self.memory.check(run.end..above, when);
    }

    fn replace(&mut self, work: &mut WorkerState<'_>) {
        let run = self.run(work);
        self.memory.mapping.replace(run.start, run.len(), READ_WRITE);
        self.memory.set_zero(run.clone());
        self.memory.check(run.clone(), "after MAP_FIXED over these pages");
        self.neighbours(&run, "beside pages that MAP_FIXED replaced");
        self.whole = false;
        work.count("mmap over a part");
    }

    fn advise(&mut self, work: &mut WorkerState<'_>) {
        let run = self.run(work);
        let (advice, name) = [
            (libc::MADV_DONTNEED, "MADV_DONTNEED"),
            (libc::MADV_DONTNEED, "MADV_DONTNEED"),
            (libc::MADV_FREE, "MADV_FREE"),
            (libc::MADV_HUGEPAGE, "MADV_HUGEPAGE"),
            (libc::MADV_NOHUGEPAGE, "MADV_NOHUGEPAGE"),
            (libc::MADV_POPULATE_READ, "MADV_POPULATE_READ"),
            (libc::MADV_POPULATE_WRITE, "MADV_POPULATE_WRITE"),
            (libc::MADV_DONTFORK, "MADV_DONTFORK"),
            (libc::MADV_DOFORK, "MADV_DOFORK"),
        ][work.random.below(9)];
        let error = self.memory.mapping.advise(run.start, run.len(), advice);
        // A kernel without huge pages does not support that advice.
        let optional =
            [libc::MADV_HUGEPAGE, libc::MADV_NOHUGEPAGE].contains(&advice) && error == libc::EINVAL;
        insist!(error == 0 || optional, "{name} on {} pages was refused: {}", run.len(), last_error());
        match advice {
            libc::MADV_DONTNEED => self.memory.set_zero(run.clone()),
            libc::MADV_FREE => self.memory.set_lent(run.clone()),
            libc::MADV_HUGEPAGE | libc::MADV_NOHUGEPAGE | libc::MADV_DONTFORK | libc::MADV_DOFORK => {
                self.whole = false;
            }
            _ => {}
        }
        work.count(name);
        self.memory.check(run.clone(), name_after(advice));
        self.neighbours(&run, "beside pages that were advised about");
    }
}

fn name_after(advice: i32) -> &'static str {
    match advice {
        libc::MADV_DONTNEED => "after MADV_DONTNEED, which leaves zeros",
        libc::MADV_FREE => "after MADV_FREE, which leaves the old words or zeros",
        libc::MADV_POPULATE_READ => "after MADV_POPULATE_READ",
        libc::MADV_POPULATE_WRITE => "after MADV_POPULATE_WRITE",
        libc::MADV_DONTFORK => "after MADV_DONTFORK",
        libc::MADV_HUGEPAGE => "after MADV_HUGEPAGE",
        _ => "after madvise",
    }
}
