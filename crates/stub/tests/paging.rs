//! Pages leave a running program and come back: nothing is lost.

#[allow(dead_code, reason = "each suite uses a part of it")]
mod program;

use std::collections::HashMap;

use octavo_platform::pagemap::Pagemap;
use octavo_platform::process_memory::read_process;
use octavo_platform::userfaultfd::{Event, RegisterMode};
use octavo_stub::{Mover, MoverError, OutgoingRun, Staging};
use program::Program;
use rustix::io::Errno;

const PAGE: u64 = 4096;
const PAGES_AT_ONCE: u64 = 64;

/// The simplest pager: it keeps pages that are out in a map.
struct Pager<'a> {
    program: &'a Program,
    mover: Mover,
    start: u64,
    pages: u64,
    out: HashMap<u64, Vec<u8>>,
    came_back: usize,
}

impl<'a> Pager<'a> {
    fn new(program: &'a Program) -> Self {
        let mover = Mover::inject(program.pid(), PAGES_AT_ONCE * PAGE).unwrap().mover;
        let (start, len) = program.memory();
        // SAFETY: the memory is another process's.
        unsafe { mover.faults().register(start, len, RegisterMode { missing: true, write_protect: true }) }
            .unwrap();
        Self { program, mover, start, pages: len / PAGE, out: HashMap::new(), came_back: 0 }
    }

    /// Takes up to 64 pages from here on, in runs, and keeps their bytes.
    fn take(&mut self, from: u64) {
        let mut runs: Vec<OutgoingRun> = Vec::new();
        for page in (from..from + PAGES_AT_ONCE).map(|page| self.start + page % self.pages * PAGE) {
            if self.out.contains_key(&page) {
                continue;
            }
            match runs.last_mut() {
                // Runs of at most four pages, so that there are many runs.
                Some(run) if run.address + run.len == page && run.len < 4 * PAGE => run.len += PAGE,
                _ => runs.push(OutgoingRun { address: page, len: PAGE }),
            }
        }
        let moved = self.mover.move_out(&runs, Staging::DiscardFirst).unwrap();
        assert_eq!(moved.discarded, None);
        for (run, told) in runs.iter().zip(&moved.runs) {
            assert!(matches!(told.progress.error, None | Some(Errno::AGAIN | Errno::BUSY)), "{moved:?}");
            for offset in (0..told.progress.done_bytes).step_by(PAGE as usize) {
                let mut bytes = vec![0u8; PAGE as usize];
                let staged = self.mover.staging().0[1] + told.offset + offset;
                // SAFETY: the local piece is `bytes`, which nobody borrows meanwhile.
                let read = unsafe {
                    read_process(self.program.pid(), &[(staged, PAGE)], &[(bytes.as_mut_ptr(), bytes.len())])
                };
                assert_eq!(read.unwrap(), bytes.len());
                assert!(self.out.insert(run.address + offset, bytes).is_none());
            }
        }
    }

    /// Gives back every page that a thread waits for.
    fn answer_faults(&mut self) {
        let mut events = Vec::new();
        self.mover.faults().read(&mut events).unwrap();
        for event in events {
            let Event::Fault { address, .. } = event else { panic!("{event:?}") };
            self.give_back(address / PAGE * PAGE);
        }
    }

    fn give_back(&mut self, page: u64) {
        match self.out.remove(&page) {
            Some(bytes) => {
                // SAFETY: the source is a live vector.
                let copied = unsafe { self.mover.faults().copy(page, bytes.as_ptr(), PAGE, false, true) };
                assert!(copied.is_whole(), "{copied:?}");
                self.came_back += 1;
            }
            // Another thread waited for the same page, which is present again.
            None => self.mover.faults().wake(page, PAGE).unwrap(),
        }
    }

    /// Gives everything back, so that the program can continue alone.
    fn leave(mut self) -> usize {
        for page in self.out.keys().copied().collect::<Vec<_>>() {
            self.give_back(page);
        }
        self.mover.faults().unregister(self.start, self.pages * PAGE).unwrap();
        self.came_back
    }
}

fn nothing_is_lost(mut program: Program) {
    let mut pager = Pager::new(&program);
    let mut batches = 0;
    while batches < 300 || pager.came_back < 1000 {
        if pager.out.len() < 128 {
            pager.take(batches * 37);
            batches += 1;
        }
        pager.answer_faults();
    }
    assert!(pager.leave() >= 1000);
    program.tell();
    assert!(program.line().starts_with("lost 0 "));
}

#[test]
fn a_program_that_counts_in_pages_that_come_and_go_loses_nothing() {
    nothing_is_lost(Program::start("count"));
}

#[test]
fn a_program_with_threads_loses_nothing() {
    nothing_is_lost(Program::start("count-threads"));
}

#[test]
fn a_program_that_is_no_child_of_the_runner_loses_nothing() {
    nothing_is_lost(Program::start_apart("count"));
}

#[test]
fn pages_taken_are_gone_from_the_program_and_lie_in_staging_in_order() {
    let program = Program::start("count");
    let mut pager = Pager::new(&program);
    // SAFETY: the program is the test's own child. It is stopped, so that its pages stay out.
    assert_eq!(unsafe { libc::kill(program.pid() as i32, libc::SIGSTOP) }, 0);
    while !program.status("State:").starts_with('T') {
        // The program may wait for a page, so serve its faults.
        pager.answer_faults();
    }
    let runs = [
        OutgoingRun { address: pager.start + 8 * PAGE, len: 3 * PAGE },
        OutgoingRun { address: pager.start, len: PAGE },
    ];
    let moved = pager.mover.move_out(&runs, Staging::Keep).unwrap();
    assert!(moved.is_whole(), "{moved:?}");
    let pagemap = Pagemap::of(program.pid()).unwrap();
    let ([_, second], _) = pager.mover.staging();
    let found = pager.mover.staging_pages(&pagemap).unwrap();
    let bytes_in =
        |runs: &[octavo_platform::pagemap::PageRun]| runs.iter().map(|r| r.end - r.start).sum::<u64>();
    assert_eq!((bytes_in(&found[0]), bytes_in(&found[1]), found[1][0].start), (0, 4 * PAGE, second));
    let gone = pagemap.entries(pager.start + 8 * PAGE, 4).unwrap();
    let is_present = |entry: &u64| entry & octavo_platform::pagemap::PRESENT != 0;
    assert_eq!(gone.iter().map(is_present).collect::<Vec<_>>(), [false, false, false, true]);
    // A page that is left in staging keeps the next page out, unless it is discarded.
    let again = [OutgoingRun { address: pager.start + 16 * PAGE, len: PAGE }];
    let refused = pager.mover.move_out(&again, Staging::Keep).unwrap();
    assert_eq!((refused.staged.done_bytes, refused.staged.error), (0, Some(Errno::EXIST)));
    let found = pager.mover.staging_pages(&pagemap).unwrap();
    assert_eq!((bytes_in(&found[0]), bytes_in(&found[1])), (PAGE, 4 * PAGE));
}

#[test]
fn a_hole_in_a_run_is_a_hole_in_staging_and_reads_as_zeros() {
    let program = Program::start("idle-pages");
    let pager = Pager::new(&program);
    // The program touched its pages 0 and 1 only.
    let moved =
        pager.mover.move_out(&[OutgoingRun { address: pager.start, len: 4 * PAGE }], Staging::Keep).unwrap();
    assert!(moved.is_whole(), "{moved:?}");
    let found = pager.mover.staging_pages(&Pagemap::of(program.pid()).unwrap()).unwrap();
    let bytes_in =
        |runs: &[octavo_platform::pagemap::PageRun]| runs.iter().map(|r| r.end - r.start).sum::<u64>();
    assert_eq!((bytes_in(&found[0]), bytes_in(&found[1])), (0, 2 * PAGE));
    let (mut hole, staged) = (vec![1_u8; 2 * PAGE as usize], pager.mover.staging().0[1]);
    let to = [(hole.as_mut_ptr(), hole.len())];
    // SAFETY: the vector has the stated length, and nobody else uses it.
    let read = unsafe { read_process(program.pid(), &[(staged + 2 * PAGE, 2 * PAGE)], &to) };
    assert_eq!(read.unwrap(), hole.len());
    assert!(hole.iter().all(|byte| *byte == 0), "and nobody sleeps there");
}

#[test]
fn runs_that_do_not_fit_are_refused_as_a_whole() {
    let program = Program::start("idle-pages");
    let pager = Pager::new(&program);
    let run = |pages| OutgoingRun { address: pager.start, len: pages * PAGE };
    let refused = |runs: &[OutgoingRun]| pager.mover.move_out(runs, Staging::Keep);
    assert_eq!(refused(&[run(PAGES_AT_ONCE), run(1)]), Err(MoverError::TooLarge));
    assert_eq!(refused(&[OutgoingRun { address: 0, len: u64::MAX }, run(1)]), Err(MoverError::TooLarge));
    assert_eq!(refused(&vec![run(0); 200]).unwrap().runs.len(), 0);
    assert!(refused(&[]).unwrap().is_whole());
}

#[test]
fn a_mover_waits_for_no_page_that_it_makes_the_programs_own() {
    let program = Program::start("idle-pages");
    let pager = Pager::new(&program);
    let own = |page, pages| {
        pager.mover.unshare(OutgoingRun { address: pager.start + page * PAGE, len: pages * PAGE }).unwrap()
    };
    // The program touched its pages 0 and 1 only, and nobody answers its faults.
    assert_eq!([own(0, 200), own(1, 1), own(2, 1)], [2 * PAGE, PAGE, 0]);
    pager.mover.faults().write_protect(pager.start + PAGE, PAGE, true).unwrap();
    assert_eq!([own(0, 200), own(1, 1)], [PAGE, 0]);
    assert!(!pager.mover.has_ended());
}
