//! The reasons why a program has no mover, as sentences. Each continues "NAME (PID) is not managed: ".

use crate::message::Message;

/// All reasons that a run can meet.
pub const REASONS: [&Message; 18] = [
    &NO_USERFAULTFD,
    &OLD_KERNEL,
    &NO_FORK_EVENTS,
    &MAY_NOT_TRACE,
    &NO_TRACING,
    &TRACED,
    &FILTERED,
    &FORBIDDEN,
    &RUNS_32_BIT,
    &SHARES_RUNNERS_MEMORY,
    &NO_SYSTEM_CALL,
    &CODE_CHANGED,
    &NO_CHILD,
    &NO_STOP,
    &ENDED,
    &KERNEL_REFUSED,
    &UNKNOWN_CHILD,
    &ANOTHER_PROCESS,
];

pub(crate) const NO_USERFAULTFD: Message = Message {
    happened: "the kernel refuses userfaultfd to it: {why}",
    remedy: "run as root, or have both CAP_SYS_PTRACE and read and write access to /dev/userfaultfd",
    cause: "Octavo needs a userfaultfd to learn which pages a program wants. The kernel gives one to root, and to users who may open that device. \
            A container's seccomp filter may forbid the call, and a kernel may be built without it (CONFIG_USERFAULTFD)",
};
pub(crate) const OLD_KERNEL: Message = Message {
    happened: "{why}",
    remedy: "use Linux 6.8 or later",
    cause: "The kernel's userfaultfd cannot move pages, or lacks another feature that is needed",
};
pub(crate) const NO_FORK_EVENTS: Message = Message {
    happened: "the kernel tells of forks only to a process with CAP_SYS_PTRACE",
    remedy: "run as root, or with CAP_SYS_PTRACE",
    cause: "The user may have a userfaultfd, but not one that tells of forks. A child would read zeros",
};
pub(crate) const MAY_NOT_TRACE: Message = Message {
    happened: "it may not be traced",
    remedy: "run as root, or as the program's user, with kernel.yama.ptrace_scope at 1 or less",
    cause: "Octavo stops a thread for a moment, to put a helper into the process. Programs of other users, set-user-id programs and \
            kernel.yama.ptrace_scope forbid that",
};
pub(crate) const NO_TRACING: Message = Message {
    happened: "no process may trace another here (kernel.yama.ptrace_scope is {scope})",
    remedy: "set it to 1, as by `sysctl kernel.yama.ptrace_scope=1`; a 3 stays until the next boot",
    cause: "Octavo stops a thread for a moment, to put a helper into the process. The administrator has forbidden that",
};
pub(crate) const TRACED: Message = Message {
    happened: "{tracer} traces it, so its memory counts, but cannot be paged until {tracer} lets go",
    remedy: "start it without that tracer, and attach to it later: `strace -p` and `gdb -p` work on a program that Octavo manages already",
    cause: "A process has at most one tracer, and Octavo must be that tracer for a moment. Octavo tries again when the other tracer lets go. \
            What traces a program from its start to its end, such as `rr`, cannot be had together with a limit",
};
pub(crate) const FILTERED: Message = Message {
    happened: "it has a seccomp filter, which cannot be suspended",
    remedy: "run with CAP_SYS_ADMIN, outside of containers (the kernel needs CONFIG_CHECKPOINT_RESTORE)",
    cause: "The program has forbidden itself some system calls. The filter also forbids them to Octavo's helper",
};
pub(crate) const FORBIDDEN: Message = Message {
    happened: "its seccomp filter forbids a call that its helper needs: {why}",
    remedy: "run with CAP_SYS_ADMIN, outside of containers",
    cause: "As above. Octavo found this out when the helper tried its calls",
};
pub(crate) const RUNS_32_BIT: Message = Message {
    happened: "it runs 32-bit code",
    remedy: "use its 64-bit build",
    cause: "The helper is 64-bit code",
};
pub(crate) const SHARES_RUNNERS_MEMORY: Message = Message {
    happened: "it shares the memory of the runner, which cannot page itself",
    remedy: "",
    cause: "`octavo run` has just made the process, and it has not yet become the program",
};
pub(crate) const NO_SYSTEM_CALL: Message = Message {
    happened: "it has no code in which a system call could be made",
    remedy: "",
    cause: "No executable page of it holds a system call instruction, not even the kernel's own page",
};
pub(crate) const CODE_CHANGED: Message = Message {
    happened: "it began another program just now",
    remedy: "",
    cause: "It called `exec` while it was taken over. Octavo tries to manage the new program",
};
pub(crate) const NO_CHILD: Message = Message {
    happened: "it was stopped and continued again and again",
    remedy: "",
    cause: "The process got stop signals again and again while it was taken over. Octavo tries again",
};
pub(crate) const NO_STOP: Message = Message {
    happened: "none of its threads could be stopped in time",
    remedy: "",
    cause: "All of them waited in the kernel, for a disk for example. Octavo tries again",
};
pub(crate) const ENDED: Message =
    Message { happened: "it has ended", remedy: "", cause: "It ended while it was taken over" };
pub(crate) const KERNEL_REFUSED: Message = Message {
    happened: "{step} failed: {error}",
    remedy: "",
    cause: "The kernel refused a step, because memory, processes or descriptors ran out. The limits of the program count too: `ulimit -a`",
};
pub(crate) const UNKNOWN_CHILD: Message = Message {
    happened: "the kernel does not say whether it is a fork's child: {why}",
    remedy: "",
    cause: "The child has none of its parent's memory left, or changes its mappings. Its pages stay where they are",
};
pub(crate) const ANOTHER_PROCESS: Message = Message {
    happened: "it is another process than the fork's child that was looked for",
    remedy: "",
    cause: "Several children were forked at once. Octavo goes on looking, and finds each of them in the end",
};
/// A mistake of a caller of this crate. No run makes it.
pub(crate) const STAGING_SIZE: Message = Message {
    happened: "a staging range has whole pages, at least one and at most 1 GiB",
    remedy: "give another size",
    cause: "",
};
