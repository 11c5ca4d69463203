//! Programs under `octavo run` with memory of each kind (`docs/kinds-of-memory.md`).
//!
//! Memory that can be paged goes out and comes back, even after it has become read-only, inaccessible,
//! executable or locked. The kernel does not move such memory as it is. Memory that cannot be paged is
//! reported by its kind while it exists.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use rustix::thread::CapabilitySet;

use common::runs::{assert_passed, kinds, octavo, octavo_without, said_once, text};

/// Runs a program in half of the memory that it needs. All of the memory is managed, goes out and comes back.
#[track_caller]
fn passes(role: &str, mib: u32) {
    let (limit, mib) = (format!("{}M", mib / 2), mib.to_string());
    let json = tempfile::NamedTempFile::new().unwrap();
    let options = ["--memory", &limit, "--json", json.path().to_str().unwrap()];
    assert_passed(&octavo(&options, kinds(), &[role, &mib]).output().unwrap());
    let summary: serde_json::Value = serde_json::from_slice(&fs::read(json.path()).unwrap()).unwrap();
    assert!(summary["swapped_in_bytes"].as_u64().unwrap() > 0, "{summary}");
    assert!(summary["managed_share"].as_f64().unwrap() > 0.9, "{summary}");
}

/// More than the limit, and no more than a stack may be.
const MIB: &str = "60";

/// Runs a program with more memory of a kind than its limit. The program keeps it until the run has reported
/// it. With `--strict`, the run ends then.
#[track_caller]
fn is_told(role: &str, kind: &str, words: &str) {
    let json = tempfile::NamedTempFile::new().unwrap();
    let options = ["--memory", "40M", "--json", json.path().to_str().unwrap()];
    let start = |options: &[&str]| {
        octavo(options, kinds(), &[role, MIB]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut run = start(&options);
    let mut lines = BufReader::new(run.stderr.take().unwrap()).lines().map(Result::unwrap);
    let said = lines.find(|line| line.contains("the limit of 40 MiB cannot be kept, because "));
    let said = said.expect("the run says that it cannot keep its limit");
    assert!(said.contains(words) && said.contains("(octavo-kinds)") && said.contains("--memory"), "{said}");
    drop(run.stdin.take());
    assert_eq!(lines.collect::<Vec<_>>(), [""; 0], "it is said once");
    assert!(run.wait().unwrap().success());
    let summary: serde_json::Value = serde_json::from_slice(&fs::read(json.path()).unwrap()).unwrap();
    assert!(summary["unpaged_peak_bytes"][kind].as_u64().unwrap() > 30 << 20, "{summary}");
    let mut strict = start(&["--memory", "40M", "--strict"]);
    let _open = strict.stdin.take();
    let strict = strict.wait_with_output().unwrap();
    assert!(!strict.status.success());
    let errors = text(&strict.stderr);
    assert!(
        errors.contains("the program was stopped: the limit of 40 MiB cannot be kept, because "),
        "{errors}"
    );
    assert!(errors.contains(words), "{errors}");
}

#[test]
fn changed_pages_of_private_files_are_told() {
    is_told("file-pages", "file_pages", "MiB of changed pages of mapped files in process");
}

#[test]
fn shared_memory_is_told() {
    is_told("shared", "shared", "MiB of shared memory in process");
}

#[test]
fn stacks_are_told() {
    is_told("stack", "stacks", "MiB of stacks in process");
}

#[test]
fn data_of_programs_is_told() {
    is_told("program-data", "program_data", "MiB of data of programs and libraries in process");
}

#[test]
fn memory_that_may_not_be_written_when_it_is_looked_at_is_told() {
    is_told("closed", "closed", "MiB of memory that may not be written in process");
}

#[test]
fn read_only_memory_goes_out_and_comes_back() {
    passes("read-only", 96);
}

#[test]
fn no_store_to_read_only_memory_succeeds_while_it_goes_out() {
    passes("stores", 64);
}

#[test]
fn protection_that_a_program_changes_meanwhile_counts() {
    passes("toggles", 64);
}

#[test]
fn inaccessible_memory_goes_out_and_is_there_when_it_may_be_accessed() {
    passes("inaccessible", 96);
}

#[test]
fn memory_that_becomes_executable_goes_out() {
    passes("made-executable", 96);
}

#[test]
fn code_is_executed_from_pages_that_were_out() {
    passes("executable", 96);
}

#[test]
fn code_that_may_not_be_written_is_executed_from_pages_that_were_out() {
    passes("compiled", 96);
}

#[test]
fn memory_of_all_kinds_in_turn_goes_out() {
    passes("mixed", 96);
}

#[test]
fn small_mappings_go_out_where_they_are_many() {
    passes("small", 96);
}

#[test]
fn memory_that_is_cut_up_by_protection_goes_out() {
    passes("holes", 96);
}

#[test]
fn locked_memory_stays_and_the_rest_goes_out() {
    passes("locked", 96);
}

/// A process under a debugger cannot be taken over, and the run says what to do. When the debugger detaches,
/// the process is taken over.
#[test]
fn a_program_that_was_traced_is_managed_when_its_tracer_lets_go() {
    let json = tempfile::NamedTempFile::new().unwrap();
    let options = ["--memory", "48M", "--json", json.path().to_str().unwrap()];
    let said = said_once(octavo(&options, kinds(), &["traced", "96"]), "is not managed");
    assert!(
        said.contains("octavo-kinds (")
            && said.contains("traces it, so its memory counts, but cannot be paged until ")
            && said.contains("lets go; start it without that tracer, and attach to it later"),
        "{said}"
    );
    let summary: serde_json::Value = serde_json::from_slice(&fs::read(json.path()).unwrap()).unwrap();
    assert_eq!(summary["managed_processes"], 1, "{summary}");
    assert!(summary["swapped_in_bytes"].as_u64().unwrap() > 0, "{summary}");
}

#[test]
fn a_program_whose_filter_forbids_the_work_is_told_why_it_is_not_managed() {
    let sets = rustix::thread::capabilities(None).unwrap();
    if !sets.effective.contains(CapabilitySet::SYS_ADMIN | CapabilitySet::SYS_PTRACE) {
        eprintln!("SKIPPED: this needs the rights to suspend filters, and to manage programs");
        return;
    }
    let (options, arguments) = (["--memory", "48M"], ["filtered", "96"]);
    let said = said_once(octavo(&options, kinds(), &arguments), "is not managed");
    assert!(said.contains("its seccomp filter forbids a call that its helper needs: "), "{said}");
    // Only an administrator of the machine may suspend filters.
    let said = said_once(octavo_without("sys_admin", &options, kinds(), &arguments), "is not managed");
    assert!(
        said.contains("it has a seccomp filter, which cannot be suspended; run with CAP_SYS_ADMIN"),
        "{said}"
    );
}

#[test]
fn a_program_that_locks_more_than_the_limit_is_told_what_would_be_enough() {
    let locks =
        |memory: &str| octavo(&["--memory", memory], kinds(), &["all-locked", "96"]).output().unwrap();
    let stopped = locks("48M");
    let errors = text(&stopped.stderr);
    assert!(!stopped.status.success(), "{errors}");
    assert!(
        errors.contains("it has locked 96 MiB (`mlock`), which must all be in memory at once"),
        "{errors}"
    );
    let advice = errors.split("have the program lock less, or give --memory ").nth(1).expect(&errors);
    assert_passed(&locks(advice.split(' ').next().unwrap()));
}
