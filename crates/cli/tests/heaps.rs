//! Programs under `octavo run` whose heaps look like stacks or like data of libraries, or contain stacks.
//!
//! A heap that is mistaken for something else exceeds the limit. The kernel writes to stacks and data when
//! threads end. If stacks or data are mistaken for heaps, the end of such a thread is never reported.

mod common;

use std::fs;

use common::runs::{assert_passed, heaps, octavo};

/// Runs a program in half of the memory that it needs, and returns the share of it that was managed.
#[track_caller]
fn endure(role: &str, mib: u32) -> f64 {
    let (limit, mib) = (format!("{}M", mib / 2), mib.to_string());
    let json = tempfile::NamedTempFile::new().unwrap();
    let options = ["--memory", &limit, "--json", json.path().to_str().unwrap()];
    assert_passed(&octavo(&options, heaps(), &[role, &mib]).output().unwrap());
    let summary: serde_json::Value = serde_json::from_slice(&fs::read(json.path()).unwrap()).unwrap();
    assert!(summary["swapped_in_bytes"].as_u64().unwrap() > 0, "{summary}");
    summary["managed_share"].as_f64().unwrap()
}

#[track_caller]
fn is_managed(role: &str, mib: u32) {
    let share = endure(role, mib);
    assert!(share > 0.9, "only {share} of the memory was managed");
}

#[test]
fn regions_with_guards_between_them_are_no_stacks() {
    is_managed("guards", 96);
}

#[test]
fn heaps_of_a_second_thread_are_no_stacks() {
    is_managed("arenas", 192);
}

#[test]
fn memory_that_may_grow_down_is_memory() {
    is_managed("down", 96);
}

#[test]
fn coroutines_find_their_stacks_in_the_heap_as_they_were() {
    is_managed("coroutines", 96);
}

#[test]
fn threads_end_whose_stacks_are_parts_of_a_block_that_is_out() {
    is_managed("own-stacks", 96);
}

#[test]
fn signals_are_handled_on_a_stack_that_is_out() {
    is_managed("signal-stack", 96);
}

/// The kernel reports `MADV_FREE` like `MADV_DONTNEED`, whose pages go at once. Pages that stay are adopted
/// again.
#[test]
fn pages_that_a_program_gives_back_and_keeps_go_out_as_others_do() {
    is_managed("free", 96);
}

#[test]
fn threads_end_on_stacks_that_the_c_library_keeps() {
    endure("short-threads", 96);
}

#[test]
fn the_ends_of_threads_without_the_c_library_are_told() {
    endure("bare-threads", 96);
}

#[test]
fn the_ends_of_threads_are_told_on_stacks_that_have_merged_with_a_heap() {
    endure("bare-threads-merged", 96);
}

#[test]
fn the_ends_of_threads_are_told_in_data_of_the_program() {
    endure("bare-threads-bss", 96);
}
