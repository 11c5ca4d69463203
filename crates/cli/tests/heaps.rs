//! Programs under `octavo run` whose heaps look like stacks or like data of libraries, or have stacks inside.
//!
//! A heap that is taken for something else outgrows the limit. The kernel writes to stacks and data at the ends of threads, and where
//! these are taken for heaps, such an end is never told.

mod common;

use std::fs;

use common::runs::{assert_passed, heaps, octavo};

/// Runs a program in half of what it needs, and returns the share of its memory that was managed.
#[track_caller]
fn endure(role: &str) -> f64 {
    let json = tempfile::NamedTempFile::new().unwrap();
    let options = ["--memory", "48M", "--json", json.path().to_str().unwrap()];
    assert_passed(&octavo(&options, heaps(), &[role, "96"]).output().unwrap());
    let summary: serde_json::Value = serde_json::from_slice(&fs::read(json.path()).unwrap()).unwrap();
    assert!(summary["swapped_in_bytes"].as_u64().unwrap() > 0, "{summary}");
    summary["managed_share"].as_f64().unwrap()
}

#[track_caller]
fn is_managed(role: &str) {
    let share = endure(role);
    assert!(share > 0.9, "only {share} of the memory was managed");
}

#[test]
fn regions_with_guards_between_them_are_no_stacks() {
    is_managed("guards");
}

#[test]
fn heaps_of_a_second_thread_are_no_stacks() {
    is_managed("arenas");
}

#[test]
fn memory_that_may_grow_down_is_memory() {
    is_managed("down");
}

#[test]
fn coroutines_find_their_stacks_in_the_heap_as_they_were() {
    is_managed("coroutines");
}

#[test]
fn threads_end_whose_stacks_are_parts_of_a_block_that_is_out() {
    is_managed("own-stacks");
}

#[test]
fn signals_are_handled_on_a_stack_that_is_out() {
    is_managed("signal-stack");
}

#[test]
fn threads_end_on_stacks_that_the_c_library_keeps() {
    endure("short-threads");
}

#[test]
fn the_ends_of_threads_without_the_c_library_are_told() {
    endure("bare-threads");
}

#[test]
fn the_ends_of_threads_are_told_in_data_of_the_program() {
    endure("bare-threads-bss");
}
