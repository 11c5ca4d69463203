//! The messages by which a run says that something is wrong. `docs/messages.md` lists them for users, with
//! causes and remedies.

use std::fmt::Display;

use octavo::{ErrorKind, bytes_for_people};
use octavo_stub::Message;
use rustix::process::{Resource, getrlimit};

/// Notices about a program that continues.
pub const NOTICES: [&Message; 10] = [
    &LIMIT_IMPOSSIBLE,
    &LIMIT_IMPOSSIBLE_LOCKED,
    &LIMIT_IMPOSSIBLE_SHARED,
    &LIMIT_EXCEEDED,
    &NOT_MANAGED,
    &FORK_NOT_MANAGED,
    &FORK_UNKNOWN,
    &WITHOUT_LIMIT,
    &KERNEL_KILLED,
    &RUNNER_DIED,
];

/// Why a run cannot have the kernel rung. Each follows "not started: ", but for the last.
pub const KERNEL_RUNG: [&Message; 7] =
    [&NO_SWAPON, &NO_GROUP, &GROUP_REFUSED, &NO_SWAP_FILE, &NO_KEEPER, &KEEPER_ENDED, &SWAP_LEFT];

/// Why a run was ended. Each follows "the program was stopped: ".
pub const ENDS: [&Message; 13] = [
    &NO_PAGE,
    &NOT_TAKEN,
    &CHANGE_LOST,
    &FORK_UNASKED,
    &FORK_UNSERVED,
    &HELPER_LOST,
    &UNSERVED,
    &NO_MANAGER,
    &NO_MANAGER_HERE,
    &NO_THREAD,
    &NO_GUARDIAN,
    &BLIND,
    &NO_END,
];

/// Why memory was not available. Each follows one of [`ENDS`].
pub const LACKS: [&Message; 9] = [
    &OUT_OF_MEMORY,
    &LOCKED,
    &IMMOVABLE,
    &SWAP_FULL,
    &FILE_SIZE,
    &READ_FAILED,
    &WRITE_FAILED,
    &CORRUPT,
    &ENGINE,
];

pub(crate) const LIMIT_IMPOSSIBLE: Message = Message {
    happened: "the limit of {limit} MiB cannot be kept, because {what}",
    remedy: "give --memory {enough}",
    cause: "Memory that cannot be paged outgrows the limit ([kinds of memory](kinds-of-memory.md)). The program goes on above it; with \
            --strict it is ended",
};
pub(crate) const LIMIT_IMPOSSIBLE_LOCKED: Message = Message {
    happened: LIMIT_IMPOSSIBLE.happened,
    remedy: "have the program lock less (`mlock`), or give --memory {enough}",
    cause: "As above. Most of this memory is locked (`mlock`), so it cannot be paged",
};
pub(crate) const LIMIT_IMPOSSIBLE_SHARED: Message = Message {
    happened: LIMIT_IMPOSSIBLE.happened,
    remedy: "have the program use less shared memory, or give --memory {enough}",
    cause: "As above. Most of this memory is shared with other processes",
};
pub(crate) const LIMIT_EXCEEDED: Message = Message {
    happened: "the limit of {limit} MiB is exceeded, with {total} MiB: {what}",
    remedy: "give --memory more",
    cause: "The program has had an eighth more than its limit for most of a second: it fills memory faster than pages go out, or several \
            reasons come together",
};
pub(crate) const NOT_MANAGED: Message = Message {
    happened: "{program} ({pid}) is not managed: {why}",
    remedy: "",
    cause: "The next table lists the reasons. All memory of the process counts, and none of it is paged. With --strict, Octavo ends the run",
};
pub(crate) const FORK_NOT_MANAGED: Message = Message {
    happened: "a fork's child is served, but its pages cannot go out: {why}",
    remedy: "",
    cause: "As above, for the child of a managed process. The child can still read the pages that it shares with its parent",
};
pub(crate) const FORK_UNKNOWN: Message = Message {
    happened: "a child that process {parent} or a child of it has forked is served, but its pages cannot go out: none of the processes \
               is this child",
    remedy: "",
    cause: "The child's parent has ended, and its new parent is outside of the run",
};

pub(crate) const WITHOUT_LIMIT: Message = Message {
    happened: "{why}; the program goes on without a limit",
    remedy: "give --swap another folder",
    cause: "(The file rung.) The folder for files of pages is full, or its disk fails. The program still has all of its memory",
};
pub(crate) const KERNEL_KILLED: Message = Message {
    happened: "the kernel killed {killed} of its processes for want of memory",
    remedy: "give --memory more or --swap a larger size, or take --rung pool",
    cause: "(The kernel rung, at the end of a run.) The swap file was full, or the group filled faster than the kernel counts it",
};
pub(crate) const RUNNER_DIED: Message = Message {
    happened: "the runner has died, and {killed} of its processes were killed: pages of theirs were in its hands only",
    remedy: "",
    cause: "Somebody has killed `octavo run`, or the kernel has. A guardian ends the program, which would have read zeros",
};
pub(crate) const NO_SWAPON: Message = Message {
    happened: "switching the kernel's swap on takes CAP_SYS_ADMIN",
    remedy: "run as root",
    cause: "The kernel rung has a swap file of its own",
};
pub(crate) const NO_GROUP: Message = Message {
    happened: "no memory control group is visible here",
    remedy: "run outside of the container",
    cause: "The kernel rung keeps the limit by a control group",
};
pub(crate) const GROUP_REFUSED: Message = Message {
    happened: "cannot {what} {path}: {why}",
    remedy: "run as root, outside of the container",
    cause: "As above: only root may make one, or a user to whom a part of the tree was delegated",
};
pub(crate) const NO_SWAP_FILE: Message = Message {
    happened: "cannot {what} {path}: {why}",
    remedy: "name a folder on ext4 or xfs with --swap",
    cause: "The kernel swaps only to some file systems, and to files without holes. The file system may also be full",
};
pub(crate) const NO_KEEPER: Message = Message {
    happened: "the keeper of the swap file cannot be started: {why}",
    remedy: "",
    cause: "The keeper is a process that takes swap file and group down at the end, even if the runner is killed",
};
pub(crate) const KEEPER_ENDED: Message = Message {
    happened: "the keeper of the swap file ended before it was ready",
    remedy: "",
    cause: "Somebody has killed it",
};
pub(crate) const SWAP_LEFT: Message = Message {
    happened: "the swap file or its control group could not be taken down",
    remedy: "start another run with --rung kernel, which takes down what earlier ones left",
    cause: "(At the end of a run.) A process of the program is still in the group, or memory is too short to read swap back",
};

pub(crate) const NO_PAGE: Message = Message {
    happened: "{process} needs memory that cannot be had: {why}",
    remedy: "",
    cause: "The program touched a new page, or a page that was paged out, and for a long time there was no memory for it. The last table lists \
            the reasons",
};
pub(crate) const NOT_TAKEN: Message = Message {
    happened: "{process}: its memory cannot be taken over: {why}",
    remedy: "",
    cause: "As above, while Octavo began to manage the pages of the process",
};
pub(crate) const CHANGE_LOST: Message = Message {
    happened: "{process}: a change of its mappings could not be followed: {why}",
    remedy: "",
    cause: "The program moved or dropped memory, and Octavo had no memory left to record that",
};
pub(crate) const FORK_UNASKED: Message = Message {
    happened: "{process}: the kernel does not say which memory its forked child has: {why}",
    remedy: "",
    cause: "The kernel did not say which memory of its parent a forked child has. The child would read wrong bytes",
};
pub(crate) const FORK_UNSERVED: Message = Message {
    happened: "{process}: a fork of it cannot be served: {why}",
    remedy: "",
    cause: "A child's page tables take memory, and there was none for 20 s; or the kernel had no descriptors or threads",
};
pub(crate) const HELPER_LOST: Message = Message {
    happened: "process {pid}: {why}",
    remedy: "",
    cause: "Octavo's helper in the process was killed, or did not answer. Pages of the process may have been lost with it",
};
pub(crate) const UNSERVED: Message = Message {
    happened: "the faults of a process cannot be served: {why}",
    remedy: "",
    cause: "The thread that serves page faults has ended. This is a bug in Octavo: please report it",
};
pub(crate) const NO_MANAGER: Message = Message {
    happened: "memory cannot be managed: {why}",
    remedy: "give --swap a folder, a file or a disk that stays until the run has ended",
    cause: "A swap place was there at the start, and is not any more when the program nears its limit",
};
pub(crate) const NO_MANAGER_HERE: Message = Message {
    happened: NO_MANAGER.happened,
    remedy: "allow the runner more addresses (RLIMIT_AS, `ulimit -v`)",
    cause: "As above, but the kernel refused Octavo addresses",
};
pub(crate) const NO_THREAD: Message = Message {
    happened: "no thread could be started: {why}",
    remedy: "allow this user some 20 processes more (RLIMIT_NPROC, `ulimit -u`), and the control group as well if it has such a limit (pids.max)",
    cause: "Octavo needs a few threads, and one more for each process that it manages",
};
pub(crate) const NO_GUARDIAN: Message = Message {
    happened: "no guardian could be started: {why}",
    remedy: "allow this user some 20 processes more (RLIMIT_NPROC, `ulimit -u`), and the control group as well if it has such a limit (pids.max)",
    cause: "The guardian is a small process. If the runner is killed, it kills the program, whose pages would be lost",
};
pub(crate) const BLIND: Message = Message {
    happened: "its processes cannot be watched: {why}",
    remedy: "give the run a /proc of its own processes, and enough open files (`ulimit -n`)",
    cause: "For two seconds /proc could not be read, so Octavo did not know how much memory the program used",
};

pub(crate) const NO_END: Message = Message {
    happened: "cannot wait for the program to end: {why}",
    remedy: "",
    cause: "The kernel refused a wait for the end of the program. This should never happen: please report it",
};

pub(crate) const OUT_OF_MEMORY: Message = Message {
    happened: "the limit is used up, and nothing more can go out",
    remedy: "give --memory more",
    cause: "Memory that cannot be paged, and the pages that the program uses at the same moment, fill the limit",
};
pub(crate) const LOCKED: Message = Message {
    happened: "it has locked {stays} MiB (`mlock`), which must all be in memory at once, and the limit leaves {budget} MiB for pages",
    remedy: "have the program lock less, or give --memory {enough} or more",
    cause: "Locked memory stays where it is. What the runner itself needs is a part of the limit, too",
};
pub(crate) const IMMOVABLE: Message = Message {
    happened: "{stays} MiB of its memory cannot be moved, and the limit leaves {budget} MiB for pages",
    remedy: "give --memory {enough} or more",
    cause: "Pages that the kernel holds for a device stay where they are",
};
pub(crate) const SWAP_FULL: Message = Message {
    happened: "{what}",
    remedy: "give --swap more room: another folder or disk, or a larger size after its colon",
    cause: "The file, the device or the file system has no room left. The program can still read all of its memory, but cannot get more",
};
pub(crate) const FILE_SIZE: Message = Message {
    happened: "{what}. A file may have no more than {limit} here (RLIMIT_FSIZE)",
    remedy: "give --swap more room: a disk, or a larger size after its colon; or allow larger files (`ulimit -f`)",
    cause: "As above, where a limit of the process on file sizes may be the reason",
};
pub(crate) const READ_FAILED: Message = Message {
    happened: "it could not be read: {what}",
    remedy: "check the device",
    cause: "The swap device failed again and again",
};
pub(crate) const WRITE_FAILED: Message = Message {
    happened: "other pages could not be written to make room: {what}",
    remedy: "check the device",
    cause: "As above, for writes",
};
pub(crate) const CORRUPT: Message = Message {
    happened: "its bytes on the device are not those that were written: {what}",
    remedy: "check the device",
    cause: "The checksum of the page is wrong: the device, its cable or another program has changed it. Octavo does not let the program read such a page",
};
pub(crate) const ENGINE: Message = Message {
    happened: "{what}",
    remedy: "",
    cause: "Any other error of the engine or the kernel, in its own words",
};

/// Describes an error of the engine to people who run programs. The engine's own advice is about pins, ranges
/// and spaces, which such people do not know.
#[must_use]
pub fn in_words(error: &octavo::Error) -> String {
    let what = error.what_happened();
    let most = getrlimit(Resource::Fsize).current.map(bytes_for_people);
    let said: &[(&str, &dyn Display)] = &[("what", &what), ("limit", &most.as_deref().unwrap_or("none"))];
    let message = match error.kind() {
        ErrorKind::OutOfMemory => &OUT_OF_MEMORY,
        ErrorKind::SwapFull if most.is_some() => &FILE_SIZE,
        ErrorKind::SwapFull => &SWAP_FULL,
        ErrorKind::SwapRead => &READ_FAILED,
        ErrorKind::SwapWrite => &WRITE_FAILED,
        ErrorKind::Corrupt => &CORRUPT,
        _ => &ENGINE,
    };
    message.with(said)
}

/// Says why the manager could not be made.
pub(crate) fn not_managed(error: &octavo::Error) -> String {
    let why = error.what_happened();
    // The engine's advice names the limit, between words that are for programmers.
    let is_for_processes = error.to_string().contains("RLIMIT_NPROC");
    if let Some(most) = getrlimit(Resource::Nproc).current.filter(|_| is_for_processes) {
        let why = format!("{why}: this user may have {most} processes and threads here (RLIMIT_NPROC)");
        return NO_THREAD.with(&[("why", &why)]);
    }
    let message = if error.kind() == ErrorKind::System { &NO_MANAGER_HERE } else { &NO_MANAGER };
    message.with(&[("why", &why)])
}

/// Advice on memory sizes is a multiple of this.
const STEP: u64 = 8 << 20;

/// Writes bytes in the form of the option `--memory`, rounded up.
pub(crate) fn as_option(bytes: u64) -> String {
    format!("{}M", bytes.next_multiple_of(STEP) >> 20)
}

#[cfg(test)]
mod tests {
    use octavo::{Manager, RegionOptions};

    use super::*;

    #[test]
    fn errors_are_said_without_pins_and_ranges() {
        const BUDGET: u64 = 32 << 20;
        let manager = Manager::builder().budget_bytes(BUDGET).build().unwrap();
        let space = manager.space().unwrap();
        let page = space.map(4096, RegionOptions::default()).unwrap();
        manager.set_outside_bytes(BUDGET).unwrap();
        let said = in_words(&space.write(page, &[1]).unwrap_err());
        assert_eq!(said, OUT_OF_MEMORY.with(&[]));
        assert!(!["pin", "range", "space"].iter().any(|word| said.contains(word)), "{said}");
    }
}
