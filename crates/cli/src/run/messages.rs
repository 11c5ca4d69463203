//! The messages of `octavo run` before the program starts. `docs/messages.md` lists them, together with the
//! messages of the pager, which come later.

use std::fmt::Display;
use std::path::Path;

use octavo_pager::Message;

/// Returns a message about a path.
pub fn said_of(message: &Message, path: &Path, why: &dyn Display) -> String {
    message.with(&[("path", &path.display()), ("why", why)])
}

pub const LIMIT_ABOVE_MACHINE: Message = Message {
    happened: "a limit of {wanted} is more than the {most} of memory here",
    remedy: "give --memory less, or `auto`",
    cause: "The container or the machine has less memory than that",
};
pub const LIMIT_TOO_SMALL: Message = Message {
    happened: "a limit of {bytes} bytes is too small to run a program",
    remedy: "give --memory at least 32M",
    cause: "Octavo itself needs some of it",
};
pub const NO_UNIT: Message = Message {
    happened: "that is {bytes} bytes",
    remedy: "did you mean {bytes}M?",
    cause: "(With exit code 2.) Sizes are bytes where no unit follows: `64M`, `1.5G`, `64MiB`",
};
pub const NO_PLACE: Message = Message {
    happened: "{why}",
    remedy: "give --swap a folder, a file or a disk that may be written to, or set TMPDIR to such a folder",
    cause: "The place for swap does not exist, may not be written to, or is itself in memory (tmpfs)",
};
pub const NO_PAGE: Message = Message {
    happened: "a swap limit of {bytes} bytes holds no page",
    remedy: "give at least 4 KiB behind the colon",
    cause: "The size after the last colon of --swap is the most that Octavo uses there",
};
pub const NO_SWAP_SIZE: Message = Message {
    happened: "{size} is not a size, and there is no file {path}",
    remedy: "give a size behind the last colon, as in --swap {place}:20G",
    cause: "(With exit code 2.) What follows the last colon of --swap begins with a digit, so it looks like a size. A path that ends like \
            this is taken if it exists",
};
pub const PLACE_TAKEN: Message = Message {
    happened: "{why}",
    remedy: "give --swap another path, or add --force to overwrite this one",
    cause: "The file or disk holds something that Octavo has not written. It was left as it is",
};
pub const PLACE_TWICE: Message = Message {
    happened: "{place} is given twice",
    remedy: "give each file or disk once",
    cause: "Two areas in one place would overwrite each other. A folder may be given twice, since each area gets a file of its own there",
};
pub const LITTLE_ROOM: Message = Message {
    happened: "{place} has room for {room} only",
    remedy: "free some there, give --swap another place, or allow larger files (`ulimit -f`)",
    cause: "The file system is full, or a file may be no larger (RLIMIT_FSIZE). The program would be stopped when this room is used up",
};
pub const NO_ADDRESSES: Message = Message {
    happened: "a process may have {limit} of addresses here (RLIMIT_AS), and the runner takes some for itself: {why}",
    remedy: "lift that limit, by `ulimit -v unlimited`{less}",
    cause: "Octavo reserves addresses for every page that it may ever manage. This takes no memory. In addition, the runner needs about \
            200 MiB of addresses",
};
pub const FEW_FILES: Message = Message {
    happened: "a process may have {most} open files here (RLIMIT_NOFILE), and a run needs {least}",
    remedy: "allow more, as by `ulimit -n 1024`",
    cause: "Octavo keeps some descriptors for each process of the program",
};
pub const NO_RIGHTS: Message = Message {
    happened: "Octavo may not manage memory here, so it can keep no limit: {why}",
    remedy: "",
    cause: "One of the reasons below. The program runs as it would without Octavo. With --strict, and for the built-in program, it is not started",
};
pub const NO_RIGHTS_BUT_FILES: Message = Message {
    happened: NO_RIGHTS.happened,
    remedy: "or add --rung file, which works here: it needs no such rights, and keeps the limit by files on disk, more slowly",
    cause: "As above. Another way to keep the limit needs no such rights ([rungs](rungs.md))",
};
pub const INSIDE: Message = Message {
    happened: "this is inside of another `octavo run` (process {pid}), whose limit of {limit} holds for all of it. The options given here do not apply",
    remedy: "set --memory on the outer run, and leave out this `octavo run`",
    cause: "A script under `octavo run` calls `octavo run`. Two runs cannot manage one process. With --strict, the inner run does not start",
};
pub const NO_LISTENING: Message = Message {
    happened: "system calls of the program cannot be listened to: {why}",
    remedy: "use Linux 5.19 or later",
    cause: "The file rung has to know what a program does to its memory",
};
pub const NOT_TRIED: Message = Message {
    happened: "no process can be started: {why}",
    remedy: "",
    cause: "The file rung is tried on a process of its own",
};
pub const FOLDER_REFUSED: Message = Message {
    happened: "{what} in {path}: {why}",
    remedy: "",
    cause: "The folder for files of pages is tried at the start: a file is made there, written, dropped and read again",
};
pub const FOLDER_IN_MEMORY: Message = Message {
    happened: "files in {path} stay in memory",
    remedy: "name a folder on a disk",
    cause: "The folder is on tmpfs or the like, so its files would take the memory that they are to save",
};
pub const FOLDER_NOEXEC: Message = Message {
    happened: "{path} is mounted noexec",
    remedy: "name a folder elsewhere",
    cause: "A program could not make memory executable any more that is mapped from there",
};
pub const NO_SUMMARY: Message = Message {
    happened: "cannot write the summary to {path}: {why}",
    remedy: "give --json a file in a folder that may be written to",
    cause: "The summary is written at the end of the run. Octavo tries at the start whether the file can be written",
};
pub const SOCKET_TAKEN: Message = Message {
    happened: "another process listens at {path}, or {path} is not a socket",
    remedy: "give --socket another path",
    cause: "Another run has the socket, or the path is a file of another kind",
};
pub const NO_SOCKET: Message = Message {
    happened: "no socket can be made at {path}: {why}",
    remedy: "give --socket a path in a folder that is there",
    cause: "The folder does not exist",
};
pub const NO_WATCH: Message = Message {
    happened: "cannot watch {program}: {why}",
    remedy: "",
    cause: "The kernel refused the socket, a signal handler or a descriptor to the runner",
};
pub const NO_PROGRAM: Message = Message {
    happened: "cannot run {program}: there is no such program",
    remedy: "",
    cause: "As in a shell, with exit code 127",
};
pub const NO_INTERPRETER: Message = Message {
    happened: "cannot run {program}: the file exists, but its interpreter or loader does not",
    remedy: "look at the interpreter that its first line names, or at its loader (`ldd`)",
    cause: "As in a shell, with exit code 127. A script names an interpreter, and a program a loader",
};
pub const NO_OPTION: Message = Message {
    happened: "there is no option {program}, and no program of that name",
    remedy: "`octavo run --help` lists the options, which come before the program",
    cause: "The first word after the options is taken to be the program",
};
pub const NOT_RUN: Message = Message {
    happened: "cannot run {program}: {why}",
    remedy: "",
    cause: "As in a shell, with exit code 126: the file is not a program, or may not be executed",
};
pub const NO_PROCESS: Message = Message {
    happened: "cannot run {program}: this user may have no more processes{limit}",
    remedy: "end some, or allow more (`ulimit -u`, or pids.max of the control group)",
    cause: "A limit on the number of processes is reached",
};

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::{env, fs};

    use octavo_pager::REASONS;
    use octavo_pager::messages::{ENDS, KERNEL_RUNG, LACKS, NOTICES};

    use super::*;

    /// All messages of this file.
    const AT_START: [&Message; 23] = [
        &LIMIT_ABOVE_MACHINE,
        &LIMIT_TOO_SMALL,
        &NO_UNIT,
        &NO_PLACE,
        &NO_PAGE,
        &NO_SWAP_SIZE,
        &PLACE_TAKEN,
        &PLACE_TWICE,
        &LITTLE_ROOM,
        &NO_ADDRESSES,
        &FEW_FILES,
        &NO_RIGHTS,
        &NO_RIGHTS_BUT_FILES,
        &INSIDE,
        &NO_SUMMARY,
        &SOCKET_TAKEN,
        &NO_SOCKET,
        &NO_WATCH,
        &NO_PROGRAM,
        &NO_INTERPRETER,
        &NO_OPTION,
        &NOT_RUN,
        &NO_PROCESS,
    ];

    /// Why a run cannot have the file rung.
    const FILE_RUNG: [&Message; 5] =
        [&NO_LISTENING, &NOT_TRIED, &FOLDER_REFUSED, &FOLDER_IN_MEMORY, &FOLDER_NOEXEC];

    const HEAD: &str = "\
# What `octavo run` says

*For people who run programs.*

This page lists every message in which `octavo run` says that something is wrong, with its cause and its remedy.
Messages go to standard error, after `octavo: `. A word in *italics* stands for a name, a number or a reason that the
message has in its place. To find most problems beforehand, run `octavo run --check` with the same options: it starts no
program, and reports on standard output. Mistakes in the options themselves end with exit code 2, and are not listed
here.

The tables are made from the program's own text by `OCTAVO_GOLDEN=write cargo test -p octavo-cli messages`.
";

    fn table(page: &mut String, title: &str, words: &str, messages: &[&Message]) {
        let head = "| message | cause | remedy, as the message gives it |\n|---|---|---|\n";
        let _ = write!(page, "\n## {title}\n\n{words}\n\n{head}");
        messages.iter().for_each(|message| {
            let _ = writeln!(page, "{}", message.row());
        });
    }

    #[test]
    fn the_guide_lists_every_message() {
        let mut page = HEAD.to_string();
        let start = "The program does not start. The exit code is 1; if the program cannot be run, it is 126 or 127, as in a shell. There\n\
                     are two exceptions: without rights, and inside another run, the program starts unless --strict is given.";
        table(&mut page, "Before the program starts", start, &AT_START);
        let rungs = "Each message follows \"not started: \", or \"Octavo may not manage memory here, so it can keep no limit: \"\n\
                     ([rungs](rungs.md)).";
        let of_rungs: Vec<&Message> = FILE_RUNG.into_iter().chain(KERNEL_RUNG).collect();
        table(&mut page, "Why another rung cannot be had", rungs, &of_rungs);
        let notices = "The program goes on, and the run ends with its exit code. After the last two messages, some of it has ended.";
        table(&mut page, "While the program runs", notices, &NOTICES);
        let reasons = "Each message follows \"*program* (*pid*) is not managed: \".";
        table(&mut page, "Why a process is not managed", reasons, &REASONS);
        let ends = "Each message follows \"the program was stopped: \". Octavo has killed all processes of the program, since they could\n\
                    not have gone on with the right bytes. The exit code is 1.";
        table(&mut page, "Why a run is ended", ends, &ENDS);
        let lacks = "Each message follows a message of the last table. If much memory could not be paged, the message ends with its kinds.";
        table(&mut page, "Why memory could not be had", lacks, &LACKS);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/messages.md");
        if env::var_os("OCTAVO_GOLDEN").is_some_and(|order| order == "write") {
            fs::write(path, &page).unwrap();
        }
        assert_eq!(fs::read_to_string(path).unwrap(), page, "write it anew: OCTAVO_GOLDEN=write");
    }
}
