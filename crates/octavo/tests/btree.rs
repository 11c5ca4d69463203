//! The B-tree of the examples: against a map, with threads, and what its journal sees.
#![allow(dead_code, reason = "the tests use some of the tree")]

mod common;
#[path = "../examples/btree/tree.rs"]
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use common::{MIB, PAGE, Random};
use octavo::Manager;
use proptest::prelude::*;
use tree::{PageFile, Tree};

/// Words of a value. A leaf has room for 16 of them, so that small trees have several levels.
const N: usize = 30;

fn manager() -> Manager {
    Manager::builder().budget_bytes(16 * MIB).build().unwrap()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

fn open(manager: &Manager, folder: &tempfile::TempDir) -> PageFile {
    let pages = PageFile::open(manager, &folder.path().join("tree")).unwrap();
    pages.make_trees(2).unwrap();
    pages
}

fn entries<const N: usize>(tree: &Tree<'_, N>, from: u64) -> Vec<(u64, [u64; N])> {
    let mut entries = Vec::new();
    tree.scan(from, |key, value| {
        entries.push((key, value));
        true
    })
    .unwrap();
    entries
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Insert(u64, u64),
    /// Keys in order, from one on.
    InsertMany(u64, u64),
    Remove(u64),
    Get(u64),
    ScanFrom(u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    let key = 0..2000_u64;
    prop_oneof![
        4 => (key.clone(), any::<u64>()).prop_map(|(key, value)| Operation::Insert(key, value)),
        1 => (key.clone(), 1..200_u64).prop_map(|(key, count)| Operation::InsertMany(key, count)),
        2 => key.clone().prop_map(Operation::Remove),
        2 => key.clone().prop_map(Operation::Get),
        1 => key.prop_map(Operation::ScanFrom),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_tree_does_what_a_map_does_and_keeps_it(operations in prop::collection::vec(operation(), 1..200)) {
        let folder = folder();
        let mut expected = BTreeMap::new();
        {
            let manager = manager();
            let pages = open(&manager, &folder);
            let tree = Tree::<N>::new(&pages, 1);
            for operation in operations {
                match operation {
                    Operation::Insert(key, value) => {
                        tree.insert(key, &[value; N]).unwrap();
                        expected.insert(key, [value; N]);
                    }
                    Operation::InsertMany(first, count) => {
                        for key in first..first + count {
                            tree.insert(key, &[key; N]).unwrap();
                            expected.insert(key, [key; N]);
                        }
                    }
                    Operation::Remove(key) => {
                        prop_assert_eq!(tree.remove(key).unwrap(), expected.remove(&key).is_some());
                    }
                    Operation::Get(key) => {
                        prop_assert_eq!(tree.get(key).unwrap(), expected.get(&key).copied());
                    }
                    Operation::ScanFrom(key) => {
                        let range: Vec<_> = expected.range(key..).map(|(key, value)| (*key, *value)).collect();
                        prop_assert_eq!(entries(&tree, key), range);
                    }
                }
            }
            prop_assert_eq!(entries(&Tree::<N>::new(&pages, 0), 0), [], "the trees of a file are apart");
            pages.file.sync().unwrap();
        }
        let manager = manager();
        let pages = open(&manager, &folder);
        let kept: Vec<_> = expected.into_iter().collect();
        prop_assert_eq!(entries(&Tree::<N>::new(&pages, 1), 0), kept);
    }
}

#[test]
fn keys_in_order_fill_their_leaves() {
    let (folder, manager) = (folder(), manager());
    let pages = open(&manager, &folder);
    let tree = Tree::<1>::new(&pages, 0);
    let leaves = 1000;
    for key in 0..leaves * 254 {
        tree.insert(key, &[key]).unwrap();
    }
    assert!(pages.file.len_bytes().unwrap() <= 1024 * PAGE, "the leaves and a few inner nodes");
    assert_eq!(entries(&tree, leaves * 254 - 2).len(), 2);
    assert_eq!(tree.get(u64::MAX).unwrap(), None);
}

#[test]
fn the_greatest_and_the_least_key_are_keys_like_others() {
    let (folder, manager) = (folder(), manager());
    let pages = open(&manager, &folder);
    let tree = Tree::<N>::new(&pages, 0);
    for key in (0..500).rev().chain((0..500).map(|key| u64::MAX - key)) {
        tree.insert(key, &[key; N]).unwrap();
    }
    assert_eq!(tree.get(u64::MAX).unwrap(), Some([u64::MAX; N]));
    assert_eq!(tree.get(0).unwrap(), Some([0; N]));
    assert!(tree.remove(0).unwrap() && tree.remove(u64::MAX).unwrap() && !tree.remove(0).unwrap());
    assert_eq!(entries(&tree, 0).len(), 998);
}

#[test]
fn threads_read_whole_values_in_order_while_others_insert_and_remove() {
    let (folder, manager) = (folder(), manager());
    let pages = open(&manager, &folder);
    let inserted: Vec<AtomicU64> = (0..2).map(|_| AtomicU64::new(0)).collect();
    let keys = 12_000;
    thread::scope(|scope| {
        for (writer, inserted) in (0..).zip(&inserted) {
            let pages = &pages;
            scope.spawn(move || {
                let tree = Tree::<N>::new(pages, 0);
                for number in 0..keys {
                    let key = (number * 7919 % keys) * 2 + writer;
                    tree.insert(key, &[key; N]).unwrap();
                    if key % 10 == writer {
                        tree.insert(key, &[key + 1; N]).unwrap();
                        assert!(tree.remove(key).unwrap());
                    }
                    inserted.store(number + 1, Ordering::Release);
                }
            });
        }
        for seed in 0..2 {
            let (pages, inserted) = (&pages, &inserted);
            scope.spawn(move || {
                let (tree, mut random) = (Tree::<N>::new(pages, 0), Random::new(seed));
                let is_done = || inserted.iter().all(|inserted| inserted.load(Ordering::Acquire) == keys);
                while !is_done() {
                    let writer = random.below(2);
                    let number = random.below(inserted[writer as usize].load(Ordering::Acquire) + 1);
                    let key = (number * 7919 % keys) * 2 + writer;
                    let found = tree.get(key).unwrap();
                    if number < inserted[writer as usize].load(Ordering::Acquire) && found.is_some() {
                        assert!(found == Some([key; N]) || found == Some([key + 1; N]), "{key}: {found:?}");
                    }
                    let (mut last, mut left) = (None, 300);
                    tree.scan(key, |key, value| {
                        assert!(last < Some(key) && value.iter().all(|word| *word == value[0]));
                        (last, left) = (Some(key), left - 1);
                        left > 0
                    })
                    .unwrap();
                }
            });
        }
    });
    let tree = Tree::<N>::new(&pages, 0);
    let expected: Vec<_> =
        (0..keys * 2).filter(|key| key % 10 != key % 2).map(|key| (key, [key; N])).collect();
    assert!(entries(&tree, 0) == expected);
    assert!(expected.iter().step_by(31).all(|(key, value)| tree.get(*key).unwrap() == Some(*value)));
}

#[test]
fn a_journal_sees_every_page_that_a_split_changes() {
    let (folder, manager) = (folder(), manager());
    let mut pages = open(&manager, &folder);
    let seen = Arc::new(Mutex::new((BTreeSet::new(), 0)));
    let noted = Arc::clone(&seen);
    pages.journal = Some(Box::new(move |pages| {
        let (all, lsn) = &mut *noted.lock().unwrap();
        *lsn += 1;
        for (page, node) in pages {
            assert!(node.lsn < *lsn, "a page's changes come in order");
            node.lsn = *lsn;
            all.insert(*page);
        }
    }));
    let tree = Tree::<N>::new(&pages, 0);
    for key in 0..5000 {
        tree.insert(key * 7919 % 5000, &[key; N]).unwrap();
    }
    let (all, lsn) = &*seen.lock().unwrap();
    // Page 2 is the root of the other tree.
    let expected: BTreeSet<u64> = (0..=*all.last().unwrap()).filter(|page| *page != 2).collect();
    assert!(all.len() > 300 && *all == expected);
    assert_eq!(pages.exclusive(0).unwrap()[0].lsn, *lsn, "each split takes a page");
}
