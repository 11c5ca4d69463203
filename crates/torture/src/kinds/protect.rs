//! A large reservation that is committed in pieces, as language runtimes do, and permissions that change.
//!
//! Exactly those loads and stores that the permission forbids must fault. The handler runs on an alternate
//! stack. This stack lies in the same kind of memory, and the words on both sides of it are known.

use std::ops::Range;

use crate::finding::insist;
use crate::memory::{OwnMapping, PAGE, READ_WRITE, WORDS};
use crate::patterned::Patterned;
use crate::signals::{AlternateStack, Probed, try_load, try_store};
use crate::work::{Sabotage, Team, WorkerState};

pub const OPERATIONS: &[&str] = &[
    "pieces committed by mprotect",
    "pieces committed by MAP_FIXED",
    "pieces given back by MAP_FIXED",
    "pieces given back by MADV_DONTNEED and mprotect",
    "pieces closed with their words",
    "pieces made read-only",
    "pieces made writable",
    "pieces written",
    "pieces read",
    "stores that faulted",
    "loads that faulted",
    "accesses that did not",
    "idle times",
];

const RESERVED_BYTES: usize = 1 << 30;
/// The most pieces that change at once. V8 opens 4 to 256 KiB at once.
const LONGEST_PIECES: usize = 16;
const PIECE_PAGES: usize = 4;
const STACK_PAGES: usize = 8;

/// The permission of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Permission {
    None,
    Read,
    Write,
}

struct ProtectedHeap {
    memory: Patterned,
    permissions: Vec<Permission>,
    /// Pieces that may hold memory.
    held: usize,
    most_held: usize,
    /// The first piece of the part in use, which moves through the reservation.
    window: usize,
}

pub fn run(team: Team<'_>) {
    team.run(|work| {
        let mut stack = Patterned::new((STACK_PAGES + 2) * PAGE);
        stack.fill_all(work);
        let alternate = AlternateStack::new(&stack.mapping, PAGE, STACK_PAGES * PAGE);
        let memory = Patterned::over(OwnMapping::reserved(RESERVED_BYTES));
        let permissions = vec![Permission::None; memory.pages() / PIECE_PAGES];
        let most_held = (work.bytes / (PIECE_PAGES * PAGE)).max(2 * LONGEST_PIECES);
        let mut heap = ProtectedHeap { memory, permissions, held: 0, most_held, window: 0 };
        while work.goes_on() {
            heap.step(work);
            for edge in [0, STACK_PAGES + 1] {
                stack.check(edge..edge + 1, "beside an alternate stack");
            }
        }
        heap.open_all();
        heap.memory.check_all("at the end");
        drop(alternate);
    });
}

fn pages(pieces: &Range<usize>) -> Range<usize> {
    pieces.start * PIECE_PAGES..pieces.end * PIECE_PAGES
}

impl ProtectedHeap {
    /// Returns a run of pieces in the part in use, which is twice as large as the memory that may be held.
    fn run(&mut self, work: &mut WorkerState<'_>) -> Range<usize> {
        let part = (2 * self.most_held).min(self.permissions.len());
        if work.random.once_in(2000) {
            self.close_part(part);
            self.window = work.random.below(self.permissions.len() - part + 1);
        }
        let run = work.random.run(part, LONGEST_PIECES);
        self.window + run.start..self.window + run.end
    }

    fn close_part(&mut self, part: usize) {
        let pieces = self.window..self.window + part;
        self.give_back(&pieces);
    }

    fn give_back(&mut self, pieces: &Range<usize>) {
        let pages = pages(pieces);
        self.memory.mapping.replace(pages.start, pages.len(), libc::PROT_NONE);
        self.memory.set_zero(pages);
        self.set(pieces, Permission::None, true);
    }

    /// Records the permission of the pieces. `empty` means that they hold no memory now.
    fn set(&mut self, pieces: &Range<usize>, permission: Permission, empty: bool) {
        for piece in pieces.clone() {
            self.permissions[piece] = permission;
        }
        if empty || permission == Permission::Write {
            let holds = |piece: &usize| {
                let first = piece * PIECE_PAGES;
                self.permissions[*piece] == Permission::Write
                    || (first..first + PIECE_PAGES)
                        .any(|page| self.memory.content(page) != crate::patterned::PageContent::Zero)
            };
            let part = (2 * self.most_held).min(self.permissions.len());
            self.held = (self.window..self.window + part).filter(holds).count();
        }
    }

    fn protect(&mut self, pieces: &Range<usize>, permission: Permission) {
        let flags = match permission {
            Permission::None => libc::PROT_NONE,
            Permission::Read => libc::PROT_READ,
            Permission::Write => READ_WRITE,
        };
        let pages = pages(pieces);
        self.memory.mapping.protect(pages.start, pages.len(), flags);
        self.set(pieces, permission, false);
    }

    fn step(&mut self, work: &mut WorkerState<'_>) {
        let pieces = self.run(work);
        if self.held + pieces.len() > self.most_held {
            self.give_back(&pieces);
            return work.count("pieces given back by MAP_FIXED");
        }
        match work.random.below(20) {
            0..3 => {
                self.protect(&pieces, Permission::Write);
                work.count("pieces committed by mprotect");
                self.use_open(work, &pieces);
            }
            3 => {
                let pages = pages(&pieces);
                self.memory.mapping.replace(pages.start, pages.len(), READ_WRITE);
                self.memory.set_zero(pages);
                self.set(&pieces, Permission::Write, true);
                work.count("pieces committed by MAP_FIXED");
                self.use_open(work, &pieces);
            }
            4 => {
                let pages = pages(&pieces);
                let error = self.memory.mapping.advise(pages.start, pages.len(), libc::MADV_DONTNEED);
                insist!(error == 0, "MADV_DONTNEED of reserved memory failed with error {error}.");
                self.memory.set_zero(pages);
                self.protect(&pieces, Permission::None);
                self.set(&pieces, Permission::None, true);
                work.count("pieces given back by MADV_DONTNEED and mprotect");
            }
            5 => {
                self.protect(&pieces, Permission::None);
                work.count("pieces closed with their words");
            }
            6..8 => {
                self.protect(&pieces, Permission::Read);
                if work.spoils(Sabotage::Open) {
                    let pages = pages(&pieces);
                    self.memory.mapping.protect(pages.start, pages.len(), READ_WRITE);
                }
                work.count("pieces made read-only");
            }
            8..10 => {
                self.protect(&pieces, Permission::Write);
                work.count("pieces made writable");
            }
            10..15 => self.use_open(work, &pieces),
            15..19 => {}
            _ => {
                work.idle(30);
                work.count("idle times");
            }
        }
        for _ in 0..4 {
            let piece = pieces.start + work.random.below(pieces.len());
            self.probe(work, piece);
        }
    }

    /// Checks the pieces that may be read, and fills some that may be written.
    fn use_open(&mut self, work: &mut WorkerState<'_>, pieces: &Range<usize>) {
        for piece in pieces.clone() {
            let pages = pages(&(piece..piece + 1));
            if self.permissions[piece] != Permission::None {
                self.memory.check(pages.clone(), "in a piece that may be read");
                work.count("pieces read");
            }
            if self.permissions[piece] == Permission::Write && work.random.once_in(2) {
                self.memory.fill(work, pages);
                work.count("pieces written");
            }
        }
    }

    /// Accesses one word, which must fault exactly if the permission forbids the access.
    fn probe(&mut self, work: &mut WorkerState<'_>, piece: usize) {
        let permission = self.permissions[piece];
        let (page, index) = (piece * PIECE_PAGES + work.random.below(PIECE_PAGES), work.random.below(WORDS));
        let offset = page * PAGE + index * 8;
        let expected = self.memory.content(page).word(index);
        let address = self.memory.mapping.address() + offset;
        let stores = work.random.once_in(2);
        let forbidden = permission == Permission::None || (stores && permission == Permission::Read);
        let probed = if stores {
            // The page keeps its words.
            try_store(&self.memory.mapping, offset, expected)
        } else {
            let (probed, found) = try_load(&self.memory.mapping, offset);
            insist!(
                probed == Probed::Faulted || found == expected,
                "a probe of the word at {address:#x} found {found:#018x} and should have found {expected:#018x}."
            );
            probed
        };
        let what = if stores { "store" } else { "load" };
        match (forbidden, probed) {
            (true, Probed::Done) => {
                crate::finding::report(format_args!(
                    "a {what} at {address:#x} went through, though its page allows {permission:?}."
                ));
            }
            (false, Probed::Faulted) => {
                crate::finding::report(format_args!(
                    "a {what} at {address:#x} faulted, though its page allows {permission:?}."
                ));
            }
            (true, Probed::Faulted) if stores => work.count("stores that faulted"),
            (true, Probed::Faulted) => work.count("loads that faulted"),
            (false, Probed::Done) => work.count("accesses that did not"),
        }
    }

    fn open_all(&mut self) {
        let part = (2 * self.most_held).min(self.permissions.len());
        let pages = pages(&(self.window..self.window + part));
        self.memory.mapping.protect(pages.start, pages.len(), libc::PROT_READ);
        self.memory.mapping.protect(0, pages.start, libc::PROT_READ);
        let end = pages.end;
        self.memory.mapping.protect(end, self.memory.pages() - end, libc::PROT_READ);
    }
}
