//! Takes out pages that the kernel refuses to move as they are.
//!
//! One move of the kernel stays within one mapping of the program and one mapping of staging. Both must be
//! writable. Either both are executable, or neither is.
//!
//! How refused memory is taken out:
//!
//! - A run that lies in several mappings: the part in the first mapping moves. The caller asks again for the
//!   rest.
//! - Executable memory: staging becomes executable, and stays so until other memory is refused.
//! - Read-only and inaccessible memory: the program stands still, and the mover makes the memory writable
//!   until the pages have moved.
//! - Locked memory, and memory with a protection key: this memory is not taken out.
//!
//! **Why the program stands still.** Read-only memory is writable for a moment, and no store of the program
//! to it may succeed. The program must not change protections either: such a change raises no event, and the
//! mover would undo it when it restores the old protection. Other changes of mappings do raise events. A
//! thread that makes one waits in its call until the event is read, and cannot stand still until then. So
//! once all threads stand still, the known mappings are correct. The kernel still refuses pinned pages: a
//! copy would lose a device's writes.
//!
//! If the runner ends meanwhile, the program continues, and the guardian kills it as usual.
//!
//! Costs: a read of the mappings takes about 10 µs, plus about 0.5 µs for each mapping. A standstill takes
//! two context switches for each thread. Each of the two changes of protection walks the page tables from the
//! first page to the last one.

use std::io;
use std::time::{Duration, Instant};

use octavo_platform::proc_text;
use octavo_stub::{OutgoingRun, Still};
use rustix::mm::ProtFlags;

use super::{Equipment, Target};
use crate::reach::{TakeOutcome, Taking};

/// How long a program is left alone after it could not be made to stand still.
const PAUSE: Duration = Duration::from_millis(100);
/// The protection that a move needs.
const OPEN: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// A private mapping without a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PrivateMapping {
    start: u64,
    end: u64,
    protection: ProtFlags,
}

impl PrivateMapping {
    /// Reads all mappings of the mover's memory. After an `exec`, the program itself has other mappings.
    fn all_of(mover: u32) -> io::Result<Vec<Self>> {
        Ok(proc_text::read(mover, "maps")?.lines().filter_map(Self::parse).collect())
    }

    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let (range, permissions, inode) = (fields.next()?, fields.next()?.as_bytes(), fields.nth(2)?);
        let (start, end) = range.split_once('-')?;
        let hex = |digits| u64::from_str_radix(digits, 16).ok();
        let letters = [(b'r', ProtFlags::READ), (b'w', ProtFlags::WRITE), (b'x', ProtFlags::EXEC)];
        let held = letters.into_iter().zip(permissions).filter(|((letter, _), has)| letter == *has);
        let protection = held.map(|((_, flag), _)| flag).collect();
        let is_anonymous = permissions.get(3) == Some(&b'p') && inode == "0";
        is_anonymous.then_some(Self { start: hex(start)?, end: hex(end)?, protection })
    }

    fn is_open(self) -> bool {
        self.protection.contains(OPEN)
    }

    fn is_executable(self) -> bool {
        self.protection.contains(ProtFlags::EXEC)
    }
}

/// The start of a refused run, up to the end of its first mapping.
#[derive(Clone, Copy, Debug)]
struct RefusedRun {
    /// The index of the run in its batch.
    index: usize,
    taking: Taking,
    mapping: PrivateMapping,
}

/// Returns the piece of each refused run whose start lies in one of the mappings.
fn pieces(runs: &[Taking], outcomes: &[TakeOutcome], mappings: &[PrivateMapping]) -> Vec<RefusedRun> {
    let refused = outcomes.iter().enumerate().filter(|(_, outcome)| **outcome == TakeOutcome::Never);
    let piece = |(index, _)| {
        let run: Taking = runs[index];
        let mapping = *mappings.get(mappings.partition_point(|mapping| mapping.end <= run.address))?;
        let len = run.len.min(mapping.end - run.address);
        (mapping.start <= run.address).then_some(RefusedRun { index, taking: Taking { len, ..run }, mapping })
    };
    refused.filter_map(piece).collect()
}

/// Returns whether a run ends at the end of a mapping, where the next run begins.
fn meet_at_a_boundary(runs: &[Taking], mappings: &[PrivateMapping]) -> bool {
    runs.windows(2).any(|two| {
        let end = two[0].address + two[0].len;
        end == two[1].address && mappings.iter().any(|mapping| mapping.end == end)
    })
}

/// Returns, for each mapping, the range from its first piece to its last one, and its protection.
fn spans(pieces: &[RefusedRun]) -> Vec<(OutgoingRun, ProtFlags)> {
    let of_one = pieces.chunk_by(|one, next| one.mapping == next.mapping);
    let span = |pieces: &[RefusedRun]| {
        let (address, last) = (pieces[0].taking.address, pieces[pieces.len() - 1].taking);
        (OutgoingRun { address, len: last.address + last.len - address }, pieces[0].mapping.protection)
    };
    of_one.map(span).collect()
}

impl Target {
    /// Takes out the runs of a batch that the kernel has refused as they were. `outcomes` has an outcome for
    /// each run; those of the refused runs are updated. Returns false if the program or its mover has ended,
    /// or if the program must not continue.
    ///
    /// # Safety
    /// The conditions of [`Reach::take_out`](crate::Reach::take_out).
    pub(super) unsafe fn take_refused(
        &self,
        equipment: &mut Equipment<'_>,
        runs: &[Taking],
        outcomes: &mut [TakeOutcome],
    ) -> bool {
        let Ok(mappings) = PrivateMapping::all_of(equipment.mover.pid()) else { return true };
        let tried = equipment.moving.is_executable;
        let (mut open, closed): (Vec<_>, Vec<_>) =
            pieces(runs, outcomes, &mappings).into_iter().partition(|piece| piece.mapping.is_open());
        // Trying again helps only if the run is cut, or if staging was of the wrong kind. If two runs meet at
        // a boundary of mappings, trying again may help both, since each may have been refused because of the
        // other.
        if !meet_at_a_boundary(runs, &mappings) {
            open.retain(|RefusedRun { index, taking, mapping }| {
                taking.len < runs[*index].len || mapping.is_executable() != tried
            });
        }
        // SAFETY: as the caller guarantees.
        let is_taken = unsafe { self.take_pieces(equipment, runs, &open, outcomes) };
        // SAFETY: as the caller guarantees.
        is_taken && (closed.is_empty() || unsafe { self.take_closed(equipment, runs, outcomes, &mappings) })
    }

    /// Takes out memory that is not open, while the program stands still. Returns the same as
    /// [`Target::take_refused`].
    ///
    /// # Safety
    /// The conditions of [`Target::take_refused`].
    unsafe fn take_closed(
        &self,
        equipment: &mut Equipment<'_>,
        runs: &[Taking],
        outcomes: &mut [TakeOutcome],
        mappings: &[PrivateMapping],
    ) -> bool {
        let now = Instant::now();
        // Leave these runs for a later attempt. By then, the program can perhaps be stopped.
        let later = |outcomes: &mut [TakeOutcome]| {
            pieces(runs, outcomes, mappings)
                .iter()
                .filter(|piece| !piece.mapping.is_open())
                .for_each(|piece| outcomes[piece.index] = TakeOutcome::Part(0));
            true
        };
        let Some(pid) =
            self.pid().filter(|_| equipment.moving.left_alone_until.is_none_or(|until| until < now))
        else {
            return later(outcomes);
        };
        let Some(still) = Still::hold(pid, equipment.mover.pid()) else {
            equipment.moving.left_alone_until = Some(now + PAUSE);
            return later(outcomes);
        };
        let Ok(mappings) = PrivateMapping::all_of(equipment.mover.pid()) else { return true };
        let mut closed = pieces(runs, outcomes, &mappings);
        closed.retain(|piece| !piece.mapping.is_open());
        let spans = spans(&closed);
        let opened: Vec<_> = spans.iter().map(|(run, protection)| (*run, *protection | OPEN)).collect();
        let Ok(is_opened) = equipment.mover.protect(&opened) else { return false };
        // SAFETY: as the caller guarantees. Memory that could not be opened is refused again.
        let is_taken = unsafe { self.take_pieces(equipment, runs, &closed, outcomes) };
        let changed: Vec<_> =
            spans.into_iter().zip(is_opened).filter_map(|(span, is)| is.then_some(span)).collect();
        let is_as_it_was =
            equipment.mover.protect(&changed).is_ok_and(|closed| closed.into_iter().all(|is| is));
        if !is_as_it_was {
            self.fail("its read-only memory could not be protected again");
        }
        drop(still);
        is_taken && is_as_it_was
    }

    /// Takes pieces out: first those that are not executable, then those that are, each with staging of the
    /// same kind. Returns the same as [`Target::take_refused`].
    ///
    /// # Safety
    /// The conditions of [`Target::take_refused`].
    unsafe fn take_pieces(
        &self,
        equipment: &mut Equipment<'_>,
        runs: &[Taking],
        pieces: &[RefusedRun],
        outcomes: &mut [TakeOutcome],
    ) -> bool {
        for is_executable in [false, true] {
            let of_kind: Vec<_> =
                pieces.iter().filter(|piece| piece.mapping.is_executable() == is_executable).collect();
            // If staging cannot be made of this kind, these pages stay.
            if of_kind.is_empty() || !equipment.stage(is_executable) {
                continue;
            }
            // `take_batch` moves adjacent pages together, and a move stays within one mapping.
            for of_one in of_kind.chunk_by(|one, next| one.mapping == next.mapping) {
                let takings: Vec<_> = of_one.iter().map(|piece| piece.taking).collect();
                let mut taken = Vec::with_capacity(takings.len());
                // SAFETY: as the caller guarantees: these are parts of its runs.
                if !unsafe { self.take_batch(equipment, &takings, &mut taken) } {
                    return false;
                }
                for (piece, taken) in of_one.iter().zip(taken) {
                    outcomes[piece.index] = match taken {
                        TakeOutcome::All if piece.taking.len < runs[piece.index].len => {
                            TakeOutcome::Part(piece.taking.len)
                        }
                        taken => taken,
                    };
                }
            }
        }
        true
    }
}

impl Equipment<'_> {
    /// Makes staging executable, or not executable. Returns whether staging is of this kind now.
    fn stage(&mut self, is_executable: bool) -> bool {
        let is_so = self.moving.is_executable == is_executable
            || self.mover.set_staging_kind(is_executable) == Ok(true);
        if is_so {
            self.moving.is_executable = is_executable;
        }
        is_so
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_memory_without_a_file_is_told_with_its_protection() {
        let parse = |line| {
            PrivateMapping::parse(line).map(|mapping| (mapping.start, mapping.end, mapping.protection))
        };
        let all = OPEN | ProtFlags::EXEC;
        assert_eq!(parse("1000-3000 rwxp 00000000 00:00 0"), Some((0x1000, 0x3000, all)));
        assert_eq!(
            parse("1000-3000 r--p 00000000 00:00 0   [anon:heap]"),
            Some((0x1000, 0x3000, ProtFlags::READ))
        );
        assert_eq!(parse("1000-3000 ---p 00000000 00:00 0"), Some((0x1000, 0x3000, ProtFlags::empty())));
        assert_eq!(parse("1000-3000 rw-s 00000000 00:01 7   /dev/zero (deleted)"), None);
        assert_eq!(parse("1000-3000 r-xp 00000000 fe:00 99  /bin/true"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn a_refused_run_is_cut_at_the_end_of_its_first_mapping() {
        const NONE: ProtFlags = ProtFlags::empty();
        let mapping = |start, end, protection| PrivateMapping { start, end, protection };
        let mappings = [
            mapping(0x1000, 0x3000, OPEN),
            mapping(0x3000, 0x9000, NONE),
            mapping(0xa000, 0xb000, ProtFlags::READ),
        ];
        let run = |address, len| Taking { address, len, to: std::ptr::null_mut(), is_clean: false };
        let runs = [
            run(0x2000, 0x2000),
            run(0x4000, 0x1000),
            run(0x7000, 0x2000),
            run(0x9000, 0x1000),
            run(0xa000, 0x1000),
        ];
        let mut outcomes = [TakeOutcome::Never; 5];
        let found = |outcomes: &[TakeOutcome]| -> Vec<_> {
            let cut = pieces(&runs, outcomes, &mappings);
            cut.iter().map(|piece| (piece.index, piece.taking.len, piece.mapping.protection)).collect()
        };
        assert_eq!(
            found(&outcomes),
            [(0, 0x1000, OPEN), (1, 0x1000, NONE), (2, 0x2000, NONE), (4, 0x1000, ProtFlags::READ)]
        );
        assert!(!meet_at_a_boundary(&runs[..3], &mappings));
        assert!(meet_at_a_boundary(&[run(0x2000, 0x1000), run(0x3000, 0x1000)], &mappings));
        assert!(!meet_at_a_boundary(&[run(0x1000, 0x1000), run(0x2000, 0x1000)], &mappings));
        outcomes[1] = TakeOutcome::Part(0);
        assert_eq!(found(&outcomes)[1], (2, 0x2000, NONE));
        outcomes[1] = TakeOutcome::Never;
        let spans = spans(&pieces(&runs, &outcomes, &mappings)[1..]);
        let span = |address, len, protection| (OutgoingRun { address, len }, protection);
        assert_eq!(spans, [span(0x4000, 0x5000, NONE), span(0xa000, 0x1000, ProtFlags::READ)]);
    }
}
