//! A run around this one: a script under `octavo run` that calls `octavo run`.
//!
//! Two runs cannot manage one process, since the kernel does not let two of them watch the same memory. So a
//! run announces itself to its program by a variable of the environment. A run that finds this variable
//! leaves the program to the outer run. `sudo` and `env -i` take the variable away, so a run looks for it in
//! its ancestors, too. A run of an ordinary user cannot manage what `sudo` starts: that run keeps its own
//! limit.

use std::env;
use std::iter;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use octavo_platform::proc_text;
use octavo_platform::threads::stat_field;
use rustix::process::{geteuid, getpid, getppid};

/// The variable that names the outer run: its process number, the time when the process started, and the
/// limit.
const VARIABLE: &str = "OCTAVO_OUTER_RUN";

/// A run that this process belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    pub pid: u32,
    pub limit_bytes: u64,
}

/// Tells a program that it runs under this process, with this limit.
pub fn announce(command: &mut Command, limit_bytes: u64) {
    let pid = getpid().as_raw_nonzero().get() as u32;
    if let Some((_, began)) = parent_and_start(pid) {
        command.env(VARIABLE, format!("{pid} {began} {limit_bytes}"));
    }
}

/// Returns the run that this process belongs to.
pub fn outer() -> Option<Outer> {
    env::var(VARIABLE).ok().and_then(|told| checked(&told)).or_else(|| {
        ancestors().find_map(|pid| {
            let environment = proc_text::read(pid, "environ").ok()?;
            let told = environment.split('\0').find_map(|set| set.strip_prefix(VARIABLE)?.strip_prefix('='));
            checked(told?)
        })
    })
}

/// Checks what a variable tells, since it may come from a run that has ended, or from another machine.
fn checked(told: &str) -> Option<Outer> {
    let mut numbers = told.split(' ').map(str::parse::<u64>);
    let mut next = || numbers.next()?.ok();
    let (runner, began, limit_bytes) = (next()? as u32, next()?, next()?);
    let (_, began_at) = ancestors().find(|pid| *pid == runner).and_then(parent_and_start)?;
    (began_at == began && may_manage_this(runner)).then_some(Outer { pid: runner, limit_bytes })
}

/// Returns whether a runner has the right to manage this process: it is root's, the same user's, or a user's
/// that has no number in this user namespace.
fn may_manage_this(runner: u32) -> bool {
    const UNMAPPED: u32 = 65_534;
    let owner = std::fs::metadata(format!("/proc/{runner}")).map(|found| found.uid());
    owner.is_ok_and(|owner| [0, UNMAPPED, geteuid().as_raw()].contains(&owner))
}

/// The ancestors of this process, its parent first.
fn ancestors() -> impl Iterator<Item = u32> {
    let parent = getppid().map(|pid| pid.as_raw_nonzero().get() as u32);
    iter::successors(parent, |pid| parent_and_start(*pid).map(|(parent, _)| parent).filter(|pid| *pid != 0))
}

/// Returns the parent of a process, and when the process started.
fn parent_and_start(pid: u32) -> Option<(u32, u64)> {
    let stat = proc_text::read(pid, "stat").ok()?;
    let number = |index| str::from_utf8(stat_field(stat.as_bytes(), index)?).ok()?.parse::<u64>().ok();
    Some((number(4)? as u32, number(22)?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;

    use super::*;

    #[test]
    fn a_process_has_a_parent_and_a_start() {
        let pid = std::process::id();
        let (parent, began) = parent_and_start(pid).unwrap();
        assert_eq!(Some(parent), getppid().map(|pid| pid.as_raw_nonzero().get() as u32));
        assert!(began > 0 && parent_and_start(u32::MAX).is_none());
    }

    #[test]
    fn a_run_of_another_user_cannot_manage_this_one() {
        assert!(may_manage_this(1) && may_manage_this(std::process::id()) && !may_manage_this(u32::MAX));
        if geteuid().is_root() {
            let mut other = Command::new("sleep").arg("1000").uid(65_533).spawn().unwrap();
            assert!(!may_manage_this(other.id()));
            other.kill().unwrap();
            other.wait().unwrap();
        }
    }
}
