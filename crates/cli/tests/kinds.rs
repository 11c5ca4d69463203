//! Programs under `octavo run` whose memory becomes read-only, inaccessible, executable or locked.
//!
//! The kernel moves none of it as it is. What stays for that reason outgrows the limit, or keeps all else from its turn.

mod common;

use std::fs;

use common::runs::{assert_passed, kinds, octavo, text};

/// Runs a program in half of the memory that it needs. All of it is managed, and goes out and comes back.
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

#[test]
fn a_program_that_locks_more_than_the_limit_is_told_why_it_ends() {
    let output = octavo(&["--memory", "48M"], kinds(), &["all-locked", "96"]).output().unwrap();
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("memory that cannot be moved"), "{}", text(&output.stderr));
}
