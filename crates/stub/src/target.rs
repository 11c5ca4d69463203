//! Facts about a program that the runner reads before it stops a thread there.

use std::fs;
use std::io;

use octavo_platform::proc_text;
use octavo_platform::process_memory::{fill_from_process, share_memory};

use crate::error::{InjectError, InjectErrorKind};
use crate::reasons;
use crate::resume::is_never_restarted;

/// The two bytes of the instruction `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// How much of each mapping is searched for the instruction.
const SEARCHED_BYTES: u64 = 4 << 20;

/// The lines of `/proc/PID/status` that matter here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub parent: u32,
    pub tracer: u32,
    /// The seccomp filters of its first thread. If the kernel does not count them, 1 stands for any number.
    pub filters: u32,
}

impl Status {
    pub fn of(pid: u32) -> Result<Self, InjectError> {
        let text = proc_text::read(pid, "status").map_err(|_| InjectError::gone())?;
        let number = |field: &str| {
            text.lines().find_map(|line| line.strip_prefix(field)?.trim().parse().ok()).unwrap_or(0u32)
        };
        if text.lines().any(|line| line.starts_with("State:") && line.contains(['Z', 'X'])) && is_over(pid) {
            return Err(InjectError::gone());
        }
        let filters = if number("Seccomp:") == 0 { 0 } else { number("Seccomp_filters:").max(1) };
        Ok(Self { parent: number("PPid:"), tracer: number("TracerPid:"), filters })
    }
}

/// Returns whether another process traces this one, as a debugger does. A traced process can get no mover.
#[must_use]
pub fn is_traced(pid: u32) -> bool {
    Status::of(pid).is_ok_and(|status| status.tracer != 0)
}

/// Returns whether no live thread of the process is left. Its first thread may have ended alone.
fn is_over(pid: u32) -> bool {
    threads(pid).is_empty()
}

/// Returns whether an error says that a thread has ended.
fn has_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// Returns the live threads of a process. The first ones are those that a stop disturbs least: threads that
/// run, and threads that wait in a call that the kernel restarts. Among these, the process's first thread
/// comes first.
pub fn threads(pid: u32) -> Vec<u32> {
    let Ok(folder) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let mut found: Vec<(bool, bool, u32)> = folder
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|tid: u32| {
            // The state follows the name, which is in parentheses and may hold anything.
            let state = match proc_text::read(pid, &format!("task/{tid}/stat")) {
                Ok(stat) => stat.rsplit(") ").next()?.chars().next()?,
                Err(error) if has_gone(&error) => return None,
                // Keep the thread if its state cannot be read: a caller that stops all threads must not miss
                // one.
                Err(_) => '?',
            };
            let call = proc_text::read(pid, &format!("task/{tid}/syscall")).unwrap_or_default();
            let call = call.split(' ').next().and_then(|number| number.parse().ok());
            (!matches!(state, 'Z' | 'X')).then_some((call.is_some_and(is_never_restarted), tid != pid, tid))
        })
        .collect();
    found.sort_unstable();
    found.into_iter().map(|(_, _, tid)| tid).collect()
}

/// Returns whether the process shares this process's memory.
pub fn shares_our_memory(pid: u32) -> bool {
    share_memory(std::process::id(), pid)
}

/// Reads bytes of the program. Fails if not all of the bytes can be read.
pub fn read_bytes(pid: u32, address: u64, bytes: &mut [u8]) -> io::Result<()> {
    fill_from_process(pid, address, bytes)
}

/// Returns whether a `syscall` instruction is at the address.
pub fn is_syscall(pid: u32, address: u64) -> bool {
    let mut bytes = [0; 2];
    read_bytes(pid, address, &mut bytes).is_ok() && bytes == SYSCALL
}

/// Finds a `syscall` instruction: in the kernel's own code page in the program, otherwise in any code of the
/// program.
pub fn find_syscall(pid: u32) -> Result<u64, InjectError> {
    let maps = proc_text::read(pid, "maps").map_err(|_| InjectError::gone())?;
    let mut ranges: Vec<(bool, u64, u64)> = maps
        .lines()
        .filter(|line| line.split(' ').nth(1).is_some_and(|permissions| permissions.starts_with("r-x")))
        .filter_map(|line| {
            let (start, end) = line.split(' ').next()?.split_once('-')?;
            let address = |text| u64::from_str_radix(text, 16).ok();
            Some((!line.ends_with("[vdso]"), address(start)?, address(end)?))
        })
        .filter(|&(_, start, _)| start >> 63 == 0)
        .collect();
    ranges.sort_unstable();
    for (_, start, end) in ranges {
        let mut code = vec![0; (end - start).min(SEARCHED_BYTES) as usize];
        if read_bytes(pid, start, &mut code).is_ok()
            && let Some(at) = code.windows(2).position(|window| window == SYSCALL)
        {
            return Ok(start + at as u64);
        }
    }
    Err(InjectError::new(InjectErrorKind::Unsupported, &reasons::NO_SYSTEM_CALL, &[]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_call_instruction_is_found_in_this_process() {
        let pid = std::process::id();
        assert!(is_syscall(pid, find_syscall(pid).unwrap()));
        assert!(shares_our_memory(pid));
        assert!(!shares_our_memory(1));
    }

    #[test]
    fn a_process_that_is_not_there_is_gone() {
        assert_eq!(Status::of(u32::MAX).unwrap_err().kind(), InjectErrorKind::Gone);
        assert_eq!(find_syscall(u32::MAX).unwrap_err().kind(), InjectErrorKind::Gone);
        assert!(threads(u32::MAX).is_empty());
    }
}
