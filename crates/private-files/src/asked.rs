//! The answers to what programs say of their memory.
//!
//! A call on memory that is not converted goes on as it is. A call on converted memory is made by the
//! mapper, in pieces where the kernel would refuse the whole, and answered by its value. In both cases the
//! thread that asked is not stopped before it has its answer, so nothing is converted meanwhile.
//!
//! A process that was forked has converted memory, but no mapper. It gets one at its first call. The thread
//! that asks may be its only one, and stops only when it is answered. So it is told to stop, and answered
//! that the kernel shall make the call again: the call comes a second time once the mapper is there.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use octavo_platform::PAGE_BYTES;
use octavo_platform::proc_text;
use octavo_platform::process_memory::{fill_from_process, write_process};
use octavo_platform::seccomp_listener::{Asked, Listener};
use octavo_stub::{Call, Still};

use crate::filter::{COLLAPSE, DONTNEED_LOCKED, GUARD_INSTALL, Wish, wish};
use crate::mappings::{self, Mapping, What};
use crate::process::{Process, Shared};

const PAGE: u64 = PAGE_BYTES as u64;
/// The kernel's own code for "make the call again".
const MADE_AGAIN: i64 = -513;
const EINVAL: i64 = -(libc::EINVAL as i64);
const ENOMEM: i64 = -(libc::ENOMEM as i64);
const EFAULT: i64 = -(libc::EFAULT as i64);
/// The most bytes that are made private again, how many at once, and how often the threads are asked to stop
/// for that.
const MOST_PRIVATE_AGAIN: u64 = 16 << 20;
const AT_ONCE: u64 = 1 << 20;
const STOPS: u32 = 50;
/// How many filters of the runner's a process has.
pub(crate) const FILTERS: u32 = 1;

/// Advice that gives memory a flag.
const SETS_FLAGS: [i32; 4] =
    [libc::MADV_DONTFORK, libc::MADV_MERGEABLE, libc::MADV_DONTDUMP, libc::MADV_WIPEONFORK];
/// A thread that advises to drop memory at this address gets [`OURS`] if its process has the runner's filter.
/// The kernel refuses the address.
pub(crate) const QUESTION: u64 = 0x0c7a_f01d_0c7a_f01d;
pub(crate) const OURS: i64 = 0x0c7a;

/// What happens to a call.
enum Answer {
    Value(i64),
    /// The kernel makes it as it is.
    GoesOn,
    /// It was answered already, or its thread has gone.
    Done,
}

/// Answers calls until the listener is of no use any more.
pub(crate) fn serve(listener: &Arc<Listener>, shared: &Arc<Shared>) {
    loop {
        match listener.receive() {
            Ok(asked) => {
                let sent = match answer(listener, shared, &asked) {
                    Answer::Value(value) => listener.answer(&asked, value),
                    Answer::GoesOn => listener.let_go_on(&asked),
                    Answer::Done => Ok(()),
                };
                // The thread may have been killed meanwhile.
                drop(sent);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The thread that asked has ended. If all have, the kernel says so at once and for ever.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if has_hung_up(listener) {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}

/// Returns whether no process has the filter any more.
fn has_hung_up(listener: &Listener) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::new(listener, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().contains(PollFlags::HUP)
}

fn answer(listener: &Arc<Listener>, shared: &Arc<Shared>, asked: &Asked) -> Answer {
    let Some(pid) = process_of(asked.tid) else { return Answer::Done };
    if !listener.is_waiting(asked) {
        return Answer::Done;
    }
    let process = shared.current(pid);
    match (wish(asked), process) {
        (Wish::Mark, process) => {
            process.iter().for_each(|process| process.note_change());
            Answer::GoesOn
        }
        (Wish::Pin, process) => {
            process.iter().for_each(|process| process.pin());
            Answer::GoesOn
        }
        // As kernels that do not know these advices for other processes.
        (Wish::AdviseProcess, Some(_)) => Answer::Value(EINVAL),
        (Wish::AdviseProcess, None) => Answer::GoesOn,
        (Wish::Advise { start, advice, .. }, _) if (start, advice) == (QUESTION, libc::MADV_DONTNEED) => {
            Answer::Value(OURS)
        }
        (Wish::Advise { start, len, advice }, process) => {
            if SETS_FLAGS.contains(&advice) {
                process.iter().for_each(|process| process.note_change());
            }
            let range = start..start.saturating_add(len);
            with_mapper(listener, shared, (asked, pid), process, &range, |process, found| {
                if advice == libc::MADV_WIPEONFORK && !make_anonymous(process, shared, asked.tid, found)? {
                    return Ok(EINVAL);
                }
                advise(process, &range, advice, found)
            })
        }
        (Wish::Remap { old, len, new_len, flags, new }, process) => {
            process.iter().for_each(|process| process.note_change());
            let range = old..old.saturating_add(len.max(1));
            with_mapper(listener, shared, (asked, pid), process, &range, |process, found| {
                Remap { old, len, new_len, flags, new }.make(process, found)
            })
        }
    }
}

/// Returns the process of a thread.
fn process_of(tid: u32) -> Option<u32> {
    let status = proc_text::read(tid, "status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
}

/// Calls `work` with the mappings of the process that overlap a range, if any of them is converted.
fn with_mapper(
    listener: &Arc<Listener>,
    shared: &Arc<Shared>,
    (asked, pid): (&Asked, u32),
    process: Option<Arc<Process>>,
    range: &Range<u64>,
    work: impl FnOnce(&Process, &[Mapping]) -> Result<i64, String>,
) -> Answer {
    let Ok(all) = mappings::of(pid, &shared.name) else { return Answer::Done };
    let range = range.start..range.end.checked_next_multiple_of(PAGE).unwrap_or(range.end);
    let found: Vec<_> = all.iter().filter_map(|mapping| mapping.within(&range)).collect();
    if !found.iter().any(Mapping::is_ours) {
        return Answer::GoesOn;
    }
    let Some(process) = process else { return equip(listener, shared, asked, pid) };
    match work(&process, &found) {
        Ok(value) => Answer::Value(value),
        // It was killed meanwhile.
        Err(_) if !has_memory(pid) => Answer::Done,
        Err(why) => {
            shared.break_off(format!("{} ({pid}) {why}", proc_text::name(pid)));
            Answer::Value(ENOMEM)
        }
    }
}

/// Puts a mapper beside a process that was forked, and has the call made again.
fn equip(listener: &Arc<Listener>, shared: &Arc<Shared>, asked: &Asked, pid: u32) -> Answer {
    let (is_answered, told) = (Arc::new(AtomicBool::new(false)), Arc::clone(listener));
    let (answered, again) = (Arc::clone(&is_answered), *asked);
    let interrupted = Box::new(move |tid| {
        if tid == again.tid {
            let _ = told.answer(&again, MADE_AGAIN);
            answered.store(true, Ordering::Relaxed);
        }
    });
    // While the cleaner stops the process, no other thread can trace it. The cleaner gives up, since this
    // thread does not stop.
    let engaged = shared.engage(pid, FILTERS, interrupted);
    match engaged {
        Ok(_) if is_answered.load(Ordering::Relaxed) => Answer::Done,
        // Another thread was stopped, and this one still waits.
        Ok(_) => answer(listener, shared, asked),
        Err(why) => {
            if has_memory(pid) {
                shared.break_off(format!("{} ({pid}) has no mapper: {}", proc_text::name(pid), why.0));
            }
            Answer::Done
        }
    }
}

/// Returns whether a process still has memory. One that is exiting has none.
fn has_memory(pid: u32) -> bool {
    proc_text::read(pid, "maps").is_ok_and(|maps| !maps.is_empty())
}

/// The call that maps fresh memory over a part of a mapping.
fn fresh(part: &Mapping) -> Call {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    Call::new(libc::SYS_mmap, [part.start, part.end - part.start, part.protection, flags as u64, u64::MAX, 0])
}

/// Does what an advice says. `found` are the parts of mappings in the range.
fn advise(process: &Process, range: &Range<u64>, advice: i32, found: &[Mapping]) -> Result<i64, String> {
    if !range.start.is_multiple_of(PAGE) {
        return Ok(EINVAL);
    }
    let mut calls = Vec::new();
    for part in found {
        let given = Call::new(libc::SYS_madvise, [part.start, part.end - part.start, advice as u64]);
        match advice {
            libc::MADV_DONTNEED | DONTNEED_LOCKED if part.is_ours() => calls.push(fresh(part)),
            GUARD_INSTALL if part.is_ours() => calls.extend([fresh(part), given]),
            // The pages may stay as they are.
            libc::MADV_FREE if part.is_ours() => {}
            // The kernel refuses this for files, and does so before it changes anything.
            libc::MADV_REMOVE | COLLAPSE if part.is_ours() => return Ok(EINVAL),
            _ => calls.push(given),
        }
    }
    let failed = process.call(&mut calls).map_err(|error| format!("could not drop memory: {error}"))?;
    let end = range.end.checked_next_multiple_of(PAGE).unwrap_or(range.end);
    let covered: u64 = found.iter().map(|part| part.end - part.start).sum();
    // The kernel goes on behind a gap, and reports it at the end.
    Ok(if failed != 0 || covered == end - range.start { failed } else { ENOMEM })
}

/// Makes converted memory private again, with its bytes, so that it can have a flag that files do not take.
/// The other threads stand still meanwhile, and the one that asks waits. Returns false if they do not stop,
/// or if the range is read-only or too large to be worth it. A sibling that stores from outside in this
/// moment is not stopped.
fn make_anonymous(process: &Process, shared: &Shared, tid: u32, found: &[Mapping]) -> Result<bool, String> {
    let ours = || found.iter().filter(|part| part.is_ours());
    let is_large = ours().map(|part| part.end - part.start).sum::<u64>() > MOST_PRIVATE_AGAIN;
    if is_large || ours().any(|part| part.protection & libc::PROT_WRITE as u64 == 0) {
        return Ok(false);
    }
    let _tracing = shared.tracing();
    let mut tries = (0..STOPS).map(|_| Still::hold_but(process.pid, process.mapper.pid(), Some(tid)));
    let Some(_still) = tries.find_map(|still| still) else { return Ok(false) };
    let lost = |error: &dyn std::fmt::Display| format!("could not keep memory: {error}");
    for part in ours() {
        for start in (part.start..part.end).step_by(AT_ONCE as usize) {
            let piece = part.within(&(start..start + AT_ONCE)).expect("it begins inside");
            let mut bytes = vec![0; (piece.end - piece.start) as usize];
            fill_from_process(process.pid, piece.start, &mut bytes).map_err(|error| lost(&error))?;
            if process.call(&mut [fresh(&piece)]).map_err(|error| lost(&error))? != 0 {
                // No byte has changed.
                return Ok(false);
            }
            let written = write_process(process.pid, piece.start, &bytes).map_err(|error| lost(&error))?;
            if written < bytes.len() {
                return Err(lost(&"a part of it was not written"));
            }
        }
    }
    Ok(true)
}

/// An `mremap` of a range with converted memory in it.
#[derive(Clone, Copy, Debug)]
struct Remap {
    old: u64,
    len: u64,
    new_len: u64,
    flags: u64,
    new: u64,
}

const MAYMOVE: u64 = libc::MREMAP_MAYMOVE as u64;
const FIXED: u64 = libc::MREMAP_FIXED as u64;
const DONTUNMAP: u64 = 4;

impl Remap {
    /// Returns the arguments with whole pages, or the error of the kernel for wrong ones.
    fn checked(self) -> Result<Self, i64> {
        let Self { old, flags, new, .. } = self;
        let whole = |len: u64| len.checked_next_multiple_of(PAGE).ok_or(EINVAL);
        let (len, new_len) = (whole(self.len)?, whole(self.new_len)?);
        let is_fixed = flags & FIXED != 0;
        let is_wrong = !old.is_multiple_of(PAGE)
            || new_len == 0
            || len == 0
            || flags & !(MAYMOVE | FIXED | DONTUNMAP) != 0
            || flags & (FIXED | DONTUNMAP) != 0 && flags & MAYMOVE == 0
            || flags & DONTUNMAP != 0 && len != new_len
            || is_fixed && (!new.is_multiple_of(PAGE) || new < old + len && old < new + new_len);
        if is_wrong { Err(EINVAL) } else { Ok(Self { len, new_len, ..self }) }
    }

    /// Makes the call. `found` are the parts of mappings in the old range. Returns the new address, or an
    /// error number below zero.
    fn make(self, process: &Process, found: &[Mapping]) -> Result<i64, String> {
        let one = match self.checked() {
            Ok(one) => one,
            Err(error) => return Ok(error),
        };
        let Self { old, len, new_len, flags, new } = one;
        let mut at = old;
        for part in found {
            if part.start != at || part.what == What::Other {
                return Ok(EFAULT);
            }
            at = part.end;
        }
        if at != old + len {
            return Ok(EFAULT);
        }
        let lost = |error| format!("could not move memory: {error}");
        let stays = flags & (FIXED | DONTUNMAP) == 0;
        if stays && new_len <= len {
            let mut calls = [Call::new(libc::SYS_munmap, [old + new_len, len - new_len])];
            let calls = if new_len < len { &mut calls[..] } else { &mut [] };
            return Ok(match process.call(calls).map_err(lost)? {
                0 => old as i64,
                error => error,
            });
        }
        let protection = found.last().expect("the range is not empty").protection;
        let place = |at: u64, len: u64, how: i32| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | how;
            Call::new(libc::SYS_mmap, [at, len, protection, flags as u64, u64::MAX, 0])
        };
        if stays {
            // In place, if there is room behind.
            let mut calls = [place(old + len, new_len - len, libc::MAP_FIXED_NOREPLACE)];
            if process.call(&mut calls).map_err(lost)? == 0 {
                return Ok(old as i64);
            }
            if flags & MAYMOVE == 0 {
                return Ok(ENOMEM);
            }
        }
        let mut calls =
            [if flags & FIXED != 0 { place(new, new_len, libc::MAP_FIXED) } else { place(0, new_len, 0) }];
        let failed = process.call(&mut calls).map_err(lost)?;
        if failed != 0 {
            return Ok(failed);
        }
        let to = calls[0].answer as u64;
        one.move_parts(process, found, to)?;
        Ok(to as i64)
    }

    /// Moves each part to its new place, which is mapped.
    fn move_parts(self, process: &Process, found: &[Mapping], to: u64) -> Result<(), String> {
        let Self { old, len, new_len, flags, .. } = self;
        let kept = old..old + len.min(new_len);
        let how = MAYMOVE | FIXED | flags & DONTUNMAP;
        let mut calls = Vec::new();
        for part in found.iter().filter_map(|part| part.within(&kept)) {
            let bytes = part.end - part.start;
            calls.push(Call::new(libc::SYS_mremap, [part.start, bytes, bytes, how, to + (part.start - old)]));
            if flags & DONTUNMAP != 0 && part.is_ours() {
                // The kernel leaves the file's bytes, where the program expects zeros.
                calls.push(fresh(&part));
            }
        }
        if new_len < len {
            calls.push(Call::new(libc::SYS_munmap, [old + new_len, len - new_len]));
        }
        match process.call(&mut calls) {
            Ok(0) => Ok(()),
            Ok(error) => Err(format!("could not move all of its memory: error {}", -error)),
            Err(error) => Err(format!("could not move its memory: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_arguments_of_mremap_are_refused_as_by_the_kernel() {
        let good = Remap { old: 0x10000, len: 0x3000, new_len: 0x5000, flags: MAYMOVE, new: 0 };
        assert!(good.checked().is_ok());
        assert_eq!(Remap { new_len: 1, ..good }.checked().unwrap().new_len, PAGE);
        let wrong = [
            Remap { old: 0x10001, ..good },
            Remap { new_len: 0, ..good },
            Remap { flags: 8, ..good },
            Remap { flags: FIXED, ..good },
            Remap { flags: DONTUNMAP, new_len: 0x3000, ..good },
            Remap { flags: MAYMOVE | DONTUNMAP, ..good },
            Remap { flags: MAYMOVE | FIXED, new: 0x12000, ..good },
            Remap { flags: MAYMOVE | FIXED, new: 0x20001, ..good },
        ];
        for one in wrong {
            assert_eq!(one.checked().map(|_| ()), Err(EINVAL), "{one:?}");
        }
        assert!(Remap { flags: MAYMOVE | FIXED, new: 0x20000, ..good }.checked().is_ok());
    }
}
