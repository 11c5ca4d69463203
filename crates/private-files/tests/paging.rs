//! A program whose memory is converted and cleaned, step by step, and what it sees.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use octavo_private_files::Cleaner;

const MIB: u64 = 1 << 20;
const PAGES: u64 = 4096;
/// `MADV_FREE`, `MADV_WIPEONFORK` and `MADV_GUARD_INSTALL`.
const FREE: u32 = 8;
const WIPEONFORK: u32 = 18;
const GUARD_INSTALL: u32 = 102;

struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_octavo-private-files-program"))
            .arg(PAGES.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut program = Self { child, input, output };
        assert_eq!(program.answer(), "ok");
        program
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn ask(&mut self, command: &str) -> String {
        writeln!(self.input, "{command}").unwrap();
        self.answer()
    }

    #[track_caller]
    fn does(&mut self, command: &str) {
        assert_eq!(self.ask(command), "ok", "{command}");
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn cleaner() -> Cleaner {
    Cleaner::in_folder(Path::new("/var/tmp")).unwrap()
}

/// Cleans twice: the second time commits what the first has written. Returns the bytes that were freed.
fn clean(cleaner: &mut Cleaner, program: &Program) -> u64 {
    let pid = program.pid();
    let mut list = || Ok(vec![pid]);
    let mut freed = 0;
    for _ in 0..2 {
        // A thread may be late to stop on a busy machine.
        let done = std::iter::repeat_with(|| cleaner.clean(64 * MIB, &mut list, &mut || {}).unwrap());
        freed += done.take(1000).flatten().next().expect("the program stops");
    }
    assert_eq!((cleaner.why_broken(), cleaner.why_failed()), (None, None));
    freed
}

/// A program with all of its memory converted.
fn converted() -> (Cleaner, Program) {
    let (mut cleaner, program) = (cleaner(), Program::start());
    cleaner.engage(program.pid(), false).unwrap();
    assert!(clean(&mut cleaner, &program) >= PAGES * 4096);
    (cleaner, program)
}

#[test]
fn converted_and_cleaned_memory_keeps_its_bytes() {
    let (mut cleaner, mut program) = converted();
    program.does("check");
    program.does("store 0 3");
    program.does("check");
    let freed = clean(&mut cleaner, &program);
    assert!(freed >= PAGES / 3 * 4096, "{freed}");
    program.does("check");
    // Nothing is left to clean but what the program itself has stored meanwhile.
    assert!(clean(&mut cleaner, &program) < MIB);
    program.does("check");
    assert!(cleaner.figures().cleaned_bytes > 0);
}

#[test]
fn within_one_stop_everything_goes_out() {
    let (mut cleaner, mut program) = (cleaner(), Program::start());
    cleaner.engage(program.pid(), false).unwrap();
    let pid = program.pid();
    let mut list = || Ok(vec![pid]);
    let freed = std::iter::repeat_with(|| cleaner.clean_at_once(64 * MIB, 4 * MIB, &mut list).unwrap());
    assert!(freed.take(1000).flatten().next().unwrap() >= PAGES * 4096);
    program.does("check");
}

/// A store between the copy and the next stop keeps its page.
#[test]
fn a_page_that_was_stored_to_meanwhile_is_not_dropped() {
    let (mut cleaner, mut program) = (cleaner(), Program::start());
    cleaner.engage(program.pid(), false).unwrap();
    let pid = program.pid();
    let mut list = || Ok(vec![pid]);
    assert_eq!(cleaner.clean(64 * MIB, &mut list, &mut || {}).unwrap(), Some(0));
    program.does("store 7 100");
    let _ = cleaner.clean(64 * MIB, &mut list, &mut || {}).unwrap();
    assert!(cleaner.figures().changed_bytes >= PAGES / 100 * 4096);
    program.does("check");
}

#[test]
fn dropped_memory_is_zero_wherever_it_lies() {
    let (mut cleaner, mut program) = converted();
    for (from, to) in [(0, 1), (100, 900), (4000, 4096)] {
        program.does(&format!("drop {from} {to}"));
        program.does("check");
    }
    program.does("store 0 5");
    clean(&mut cleaner, &program);
    program.does("drop 50 3000");
    program.does("check");
    program.does(&format!("advise 0 4096 {FREE}"));
    program.does("store 0 1");
    clean(&mut cleaner, &program);
    program.does("check");
}

#[test]
fn memory_is_moved_and_resized_as_without_the_runner() {
    let (mut cleaner, mut program) = converted();
    for command in
        ["resize 3000", "check", "resize 6000", "check", "move 5000", "check", "move 7000", "check"]
    {
        program.does(command);
    }
    program.does("store 1 2");
    clean(&mut cleaner, &program);
    program.does("check");
    for command in ["resize 100", "check", "move 4096", "check"] {
        program.does(command);
    }
}

#[test]
fn both_sides_of_a_fork_keep_their_bytes() {
    let (mut cleaner, mut program) = converted();
    for _ in 0..3 {
        program.does("fork");
        program.does("store 0 7");
        clean(&mut cleaner, &program);
        program.does("check");
    }
}

#[test]
fn advice_that_files_do_not_take_is_given_all_the_same() {
    let (mut cleaner, mut program) = converted();
    program.does(&format!("advise 5 10 {WIPEONFORK}"));
    program.does("check");
    program.does("wiped 5 10");
    // Such memory is not converted again.
    clean(&mut cleaner, &program);
    program.does("wiped 5 10");
    program.does("check");
    // Kernels before 6.13 do not know guards.
    let guarded = program.ask(&format!("advise 20 30 {GUARD_INSTALL}"));
    assert!(guarded == "ok" || guarded == libc::EINVAL.to_string(), "{guarded}");
}

#[test]
fn nothing_of_a_process_with_a_ring_is_dropped() {
    let (mut cleaner, mut program) = converted();
    program.does("ring");
    program.does("store 0 1");
    assert_eq!(clean(&mut cleaner, &program), 0);
    assert_eq!(cleaner.pinned(), [program.pid()]);
    program.does("check");
}

#[test]
fn the_file_is_gone_from_the_disk_when_nobody_maps_it() {
    let (mut cleaner, program) = converted();
    assert!(cleaner.figures().written_bytes >= PAGES * 4096);
    drop(program);
    assert_eq!(cleaner.forget_ended().len(), 1);
    assert!(cleaner.managed().is_empty());
}
