//! The short examples, at sizes that take a moment. Each example checks its own results.

// The `main` functions of the examples are for the command line.
#![allow(dead_code)]

#[path = "../examples/aggregation.rs"]
mod aggregation;
#[path = "../examples/btree/main.rs"]
mod btree;
#[path = "../examples/cache.rs"]
mod cache;
#[path = "../examples/sort.rs"]
mod sort;

const BUDGET: u64 = 16 << 20;

#[test]
fn keys_are_counted() {
    aggregation::run(270_000, BUDGET).unwrap();
}

#[test]
fn keys_are_kept_in_a_tree() {
    btree::run(600_000, BUDGET).unwrap();
}

#[test]
fn values_are_cached() {
    cache::run(12_000, BUDGET).unwrap();
}

#[test]
fn rows_are_sorted() {
    // The last page is not full.
    sort::run((33 << 20) + 16, BUDGET).unwrap();
}
