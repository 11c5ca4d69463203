//! A model of a kernel that reports changes late, for tests of [`WaitingChanges`] and of a space that takes
//! the changes in.
//!
//! ```text
//!   a call ─► the world changes ─► its events wait, one after the other ─► told
//!          ─► read in a batch ─► Changes ─► the space
//! ```
//!
//! Two threads of a program unmap, move, drop and fork. A call makes all its changes at once, as under the
//! kernel's lock. Its events come later, one after another, and the thread makes no other call until all of
//! them are reported. A move reports the mapping that it has overwritten, then itself, and then the unmapping
//! of its source. Pages are dropped after the event was reported. When everything was reported, the space
//! agrees with the world.
//!
//! Not modelled: mappings that grow, and addresses that stay watched after their range has moved away
//! (`MREMAP_DONTUNMAP`).

use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;

use octavo_platform::userfaultfd::Event;
use proptest::prelude::*;

use super::WaitingChanges;

const PAGES: u64 = 8;
/// The pages of each initial mapping. A hole of one page follows each.
const FIRST_PAGES: u64 = 2;

/// A page of a mapping, and whether its bytes were dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ModelPage {
    mapping: u32,
    number: u64,
    is_dropped: bool,
}

type ModelPages = [Option<ModelPage>; PAGES as usize];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MappingCall {
    Unmap { start: u64, len: u64 },
    Move { from: u64, len: u64, to: u64 },
    Drop { start: u64, len: u64 },
    Fork,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Call(usize, MappingCall),
    /// Reports the next event of a thread's call, or ends the call.
    Tell(usize),
    /// Reports all events of a thread's call, and ends it.
    End(usize),
    /// The driver takes in the reported changes.
    Read,
    /// New memory is mapped while nothing else happens, and is taken over.
    Map {
        start: u64,
        len: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReportedChange {
    Unmap(u64, u64),
    /// The unmapping of a move's source.
    UnmapLeft(u64, u64),
    Remap(u64, u64, u64),
    Remove(u64, u64),
    Fork,
}

impl ReportedChange {
    fn event(self) -> Event {
        match self {
            Self::Unmap(start, end) | Self::UnmapLeft(start, end) => Event::Unmap { start, end },
            Self::Remap(from, to, len) => Event::Remap { from, to, len },
            Self::Remove(start, end) => Event::Remove { start, end },
            Self::Fork => Event::Fork(File::open("/dev/null").expect("it is everywhere").into()),
        }
    }
}

/// A call that has not ended.
#[derive(Debug)]
struct Unfinished {
    call: MappingCall,
    untold: VecDeque<ReportedChange>,
}

impl Unfinished {
    /// Returns whether the call drops a page, or has moved something there.
    fn holds(&self, page: u64) -> bool {
        match self.call {
            MappingCall::Move { len, to, .. } => (to..to + len).contains(&page),
            MappingCall::Drop { start, len } => (start..start + len).contains(&page),
            MappingCall::Unmap { .. } | MappingCall::Fork => false,
        }
    }

    /// Returns whether the call has freed a page's address, and has not reported that yet.
    fn has_freed_untold(&self, page: u64) -> bool {
        self.untold.iter().any(|told| match *told {
            ReportedChange::Unmap(start, end) => (start..end).contains(&page),
            ReportedChange::Remap(from, _, len) => (from..from + len).contains(&page),
            ReportedChange::UnmapLeft(..) | ReportedChange::Remove(..) | ReportedChange::Fork => false,
        })
    }
}

/// The program's memory, as the kernel knows it.
#[derive(Debug, Default)]
struct ProgramMemory {
    pages: ModelPages,
    /// The memory that the last fork's child got.
    child: ModelPages,
    mappings: u32,
    threads: [Option<Unfinished>; 2],
}

fn at(pages: &mut ModelPages, range: Range<u64>) -> &mut [Option<ModelPage>] {
    &mut pages[range.start as usize..range.end as usize]
}

fn move_pages(pages: &mut ModelPages, from: u64, len: u64, to: u64) {
    let moved: Vec<_> = at(pages, from..from + len).iter_mut().map(Option::take).collect();
    at(pages, to..to + len).copy_from_slice(&moved);
}

fn drop_bytes(pages: &mut ModelPages, range: Range<u64>) {
    at(pages, range).iter_mut().flatten().for_each(|page| page.is_dropped = true);
}

impl ProgramMemory {
    fn is_mapped(&self, range: Range<u64>) -> bool {
        self.pages[range.start as usize..range.end as usize].iter().any(Option::is_some)
    }

    /// Returns whether a range is one contiguous part of one mapping.
    fn is_one(&self, range: Range<u64>) -> bool {
        let pages = &self.pages[range.start as usize..range.end as usize];
        let follow = |pair: &[Option<ModelPage>]| match (pair[0], pair[1]) {
            (Some(a), Some(b)) => a.mapping == b.mapping && a.number + 1 == b.number,
            _ => false,
        };
        pages.iter().all(Option::is_some) && pages.windows(2).all(follow)
    }

    /// Returns whether the kernel would allow the call.
    fn is_possible(&self, call: MappingCall) -> bool {
        match call {
            MappingCall::Unmap { start, len } => self.is_mapped(start..start + len),
            MappingCall::Move { from, len, to } => {
                let overlap = from < to + len && to < from + len;
                !overlap && self.is_one(from..from + len)
            }
            MappingCall::Drop { start, len } => self.is_one(start..start + len),
            MappingCall::Fork => true,
        }
    }

    /// Returns the pages that a call works on. If a range moves to free addresses, the kernel may have chosen
    /// them.
    fn named(&self, call: MappingCall) -> impl Iterator<Item = u64> {
        let ranges = match call {
            MappingCall::Unmap { start, len } | MappingCall::Drop { start, len } => {
                [start..start + len, 0..0]
            }
            MappingCall::Move { from, len, to } if self.is_mapped(to..to + len) => {
                [from..from + len, to..to + len]
            }
            MappingCall::Move { from, len, .. } => [from..from + len, 0..0],
            MappingCall::Fork => [0..0, 0..0],
        };
        ranges.into_iter().flatten()
    }

    /// Unmaps a range. If a move has left just this range, the move's own unmapping has the same event. Then
    /// the event that is reported first counts as the move's, and the other one as the event of this call.
    fn unmap(&mut self, start: u64, len: u64) -> ReportedChange {
        let told = ReportedChange::Unmap(start, start + len);
        at(&mut self.pages, start..start + len).fill(None);
        for other in self.threads.iter_mut().flatten().flat_map(|other| &mut other.untold) {
            if *other == ReportedChange::UnmapLeft(start, start + len) {
                *other = told;
            }
        }
        told
    }

    /// Makes all changes of a call at once.
    fn begin(&mut self, thread: usize, call: MappingCall) {
        let mut untold = VecDeque::new();
        match call {
            MappingCall::Unmap { start, len } => untold.push_back(self.unmap(start, len)),
            MappingCall::Move { from, len, to } => {
                if self.is_mapped(to..to + len) {
                    untold.push_back(self.unmap(to, len));
                }
                move_pages(&mut self.pages, from, len, to);
                untold.extend([
                    ReportedChange::Remap(from, to, len),
                    ReportedChange::UnmapLeft(from, from + len),
                ]);
            }
            MappingCall::Drop { start, len } => untold.push_back(ReportedChange::Remove(start, start + len)),
            MappingCall::Fork => {
                self.child = self.pages;
                untold.push_back(ReportedChange::Fork);
            }
        }
        self.threads[thread] = Some(Unfinished { call, untold });
    }

    /// Continues a thread's call. Returns the event that it reports, if any.
    fn go_on(&mut self, thread: usize) -> Option<ReportedChange> {
        let unfinished = self.threads[thread].as_mut()?;
        if let Some(told) = unfinished.untold.pop_front() {
            return Some(told);
        }
        if let Some(Unfinished { call: MappingCall::Drop { start, len }, .. }) = self.threads[thread].take() {
            drop_bytes(&mut self.pages, start..start + len);
        }
        None
    }

    fn is_quiet(&self) -> bool {
        self.threads.iter().all(Option::is_none)
    }

    fn map(&mut self, start: u64, len: u64) -> Vec<ModelPage> {
        self.mappings += 1;
        let page = |number| ModelPage { mapping: self.mappings, number, is_dropped: false };
        let pages: Vec<_> = (0..len).map(page).collect();
        at(&mut self.pages, start..start + len)
            .iter_mut()
            .zip(&pages)
            .for_each(|(at, page)| *at = Some(*page));
        pages
    }
}

/// Returns whether a call works on pages that another thread's unfinished call works on or has just moved. A
/// program that does so cannot know what it will find.
fn meets_an_unfinished_call(world: &ProgramMemory, call: MappingCall, other: &Unfinished) -> bool {
    world.named(call).any(|page| other.holds(page))
}

/// Returns whether a call names pages that nobody has mapped. Another thread's range may arrive there at any
/// time.
fn names_holes(world: &ProgramMemory, call: MappingCall) -> bool {
    world.named(call).any(|page| world.pages[page as usize].is_none())
}

/// Returns whether a range leaves an address where it has arrived, before the departure of the previous
/// mapping there was reported. The events are the same as if the previous mapping had left later.
fn leaves_before_its_forerunner(world: &ProgramMemory, call: MappingCall, other: &Unfinished) -> bool {
    match call {
        MappingCall::Move { .. } | MappingCall::Unmap { .. } => {
            world.named(call).any(|page| other.has_freed_untold(page))
        }
        MappingCall::Drop { .. } | MappingCall::Fork => false,
    }
}

/// Returns whether mappings change while the report of a fork is outstanding, or the reverse. The child may
/// have got the mappings from before or after the change.
fn is_beside_a_fork(call: MappingCall, other: &Unfinished) -> bool {
    call == MappingCall::Fork || other.call == MappingCall::Fork
}

/// The space, and the driver in front of it.
#[derive(Debug, Default)]
struct ModelSpace {
    pages: ModelPages,
    child: ModelPages,
    changes: WaitingChanges,
    batch: Vec<ReportedChange>,
}

impl ModelSpace {
    /// Takes in a batch, as the driver does.
    fn read(&mut self) {
        for told in std::mem::take(&mut self.batch) {
            let pages = self.pages;
            if let Some(change) = self.changes.told(told.event(), |range| is_mapped(&pages, range)) {
                self.take_in(&change);
                self.take_waiting();
            }
        }
        self.take_waiting();
    }

    fn take_waiting(&mut self) {
        loop {
            let pages = self.pages;
            let Some(change) = self.changes.next(|range| is_mapped(&pages, range)) else { return };
            self.take_in(&change);
        }
    }

    fn take_in(&mut self, change: &Event) {
        match *change {
            Event::Unmap { start, end } => at(&mut self.pages, start..end).fill(None),
            Event::Remap { from, to, len } => move_pages(&mut self.pages, from, len, to),
            Event::Remove { start, end } => drop_bytes(&mut self.pages, start..end),
            Event::Fork(_) => self.child = self.pages,
            Event::Fault { .. } => unreachable!("none is told of"),
        }
    }
}

fn is_mapped(pages: &ModelPages, range: &Range<u64>) -> bool {
    pages[range.start as usize..range.end as usize].iter().any(Option::is_some)
}

/// The world and the space.
#[derive(Debug, Default)]
struct Both {
    world: ProgramMemory,
    space: ModelSpace,
}

impl Both {
    fn new() -> Self {
        let mut both = Self::default();
        (0..PAGES - FIRST_PAGES)
            .step_by(FIRST_PAGES as usize + 1)
            .for_each(|start| both.map(start, FIRST_PAGES));
        both
    }

    fn map(&mut self, start: u64, len: u64) {
        let pages = self.world.map(start, len);
        at(&mut self.space.pages, start..start + len)
            .iter_mut()
            .zip(pages)
            .for_each(|(at, page)| *at = Some(page));
    }

    fn is_allowed(&self, thread: usize, call: MappingCall) -> bool {
        let is_clear = |other: &Unfinished| {
            !meets_an_unfinished_call(&self.world, call, other)
                && !leaves_before_its_forerunner(&self.world, call, other)
                && !is_beside_a_fork(call, other)
        };
        self.world.threads[thread].is_none()
            && self.world.is_possible(call)
            && !names_holes(&self.world, call)
            && self.world.threads.iter().flatten().all(is_clear)
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Call(thread, call) if self.is_allowed(thread, call) => self.world.begin(thread, call),
            Step::Tell(thread) => self.space.batch.extend(self.world.go_on(thread)),
            Step::End(thread) => {
                while self.world.threads[thread].is_some() {
                    self.space.batch.extend(self.world.go_on(thread));
                }
            }
            Step::Read => self.space.read(),
            Step::Map { start, len } if self.is_quiet() && !self.world.is_mapped(start..start + len) => {
                self.map(start, len);
            }
            Step::Call(..) | Step::Map { .. } => {}
        }
        if self.is_quiet() {
            self.check();
        }
    }

    /// Returns whether everything was reported and read.
    fn is_quiet(&self) -> bool {
        self.world.is_quiet() && self.space.batch.is_empty()
    }

    fn check(&self) {
        assert!(self.space.changes.are_settled(), "waits for ever: {:?}", self.space.changes);
        assert_eq!(self.space.pages, self.world.pages, "the space and the world");
        assert_eq!(self.space.child, self.world.child, "a child's space and the child");
    }

    /// Makes the possible steps, and ends all calls.
    fn run(steps: &[Step]) {
        let mut both = Self::new();
        steps.iter().for_each(|step| both.step(*step));
        while !both.is_quiet() {
            [Step::Tell(0), Step::Tell(1), Step::Read].into_iter().for_each(|step| both.step(step));
        }
    }
}

fn call() -> impl Strategy<Value = MappingCall> {
    let range = || (1..=2u64).prop_flat_map(|len| (0..=PAGES - len, Just(len)));
    let moves = (1..=2u64).prop_flat_map(|len| (0..=PAGES - len, Just(len), 0..=PAGES - len));
    prop_oneof![
        3 => range().prop_map(|(start, len)| MappingCall::Unmap { start, len }),
        8 => moves.prop_map(|(from, len, to)| MappingCall::Move { from, len, to }),
        2 => range().prop_map(|(start, len)| MappingCall::Drop { start, len }),
        1 => Just(MappingCall::Fork),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..2usize, call()).prop_map(|(thread, call)| Step::Call(thread, call)),
        2 => (0..2usize).prop_map(Step::Tell),
        3 => (0..2usize).prop_map(Step::End),
        2 => Just(Step::Read),
        1 => (1..=2u64).prop_flat_map(|len| (0..=PAGES - len).prop_map(move |start| Step::Map { start, len })),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]
    #[test]
    fn a_space_agrees_with_its_program_however_late_changes_are_told_of(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        Both::run(&steps);
    }
}
