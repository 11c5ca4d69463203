//! A B+-tree in a file that is larger than its memory. Several threads change and read it at once, and a
//! second run of the program finds what the first one synced.
//!
//!     cargo run --release -p octavo-vm --example btree -- 1000000 16      (keys, MiB of memory)
//!
//! `tree.rs` is the tree. It shows how guards are meant to be used: copies that are validated for readers,
//! exclusive guards for who changes a node, and one order in which they are taken.

mod tree;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::thread;

use octavo::{Counter, Manager};
use tree::{PageFile, Tree};

const THREADS: u64 = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<u64> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    run(*words.first().unwrap_or(&500_000), words.get(1).unwrap_or(&16) << 20)
}

/// Keeps `keys` keys in a tree with `budget_bytes` of memory, and checks it against a `BTreeMap`.
pub fn run(keys: u64, budget_bytes: u64) -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir_in("/var/tmp")?;
    let path = folder.path().join("tree");
    let expected = fill(&path, keys, budget_bytes)?;
    check(&path, &expected, budget_bytes)
}

/// Threads insert, change and remove keys of their own, and look up the keys of all.
fn fill(path: &Path, keys: u64, budget_bytes: u64) -> Result<BTreeMap<u64, [u64; 3]>, Box<dyn Error>> {
    let manager = Manager::builder().budget_bytes(budget_bytes).build()?;
    let pages = PageFile::open(&manager, path)?;
    pages.make_trees(1)?;
    let work = |thread: u64| -> octavo::Result<BTreeMap<u64, [u64; 3]>> {
        let (tree, mut expected) = (Tree::<3>::new(&pages, 0), BTreeMap::new());
        for number in (0..keys).filter(|number| number % THREADS == thread) {
            // Half of the keys come in order, and half at random.
            let key = if number % 2 == 0 { number } else { number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 };
            let value = [key, number, thread];
            tree.insert(key, &value)?;
            expected.insert(key, value);
            let other = number / 2;
            if let Some([found, ..]) = tree.get(other)? {
                assert_eq!(found, other, "a value is its key's");
            }
            if number % 32 == thread {
                assert!(tree.remove(key)?, "the key was there");
                expected.remove(&key);
            }
        }
        Ok(expected)
    };
    let expected = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        let parts = threads.into_iter().map(|thread| thread.join().expect("a thread does not panic"));
        parts.collect::<octavo::Result<Vec<_>>>()
    })?;
    pages.file.sync()?;
    Ok(expected.into_iter().flatten().collect())
}

/// Opens the file with a new manager, and checks that the tree has these entries.
fn check(path: &Path, expected: &BTreeMap<u64, [u64; 3]>, budget_bytes: u64) -> Result<(), Box<dyn Error>> {
    let manager = Manager::builder().budget_bytes(budget_bytes).build()?;
    let pages = PageFile::open(&manager, path)?;
    pages.make_trees(1)?;
    let tree = Tree::<3>::new(&pages, 0);
    let mut rest = expected.iter();
    tree.scan(0, |key, value| {
        assert_eq!(Some((&key, &value)), rest.next(), "the tree has the same entries in the same order");
        true
    })?;
    assert_eq!(rest.next(), None, "the tree has all entries");
    for (key, value) in expected.iter().step_by(97) {
        assert_eq!(tree.get(*key)?, Some(*value));
    }
    println!(
        "{} keys in {} MiB of file; {} pages were read again",
        expected.len(),
        pages.file.len_bytes()? >> 20,
        manager.counters().get(Counter::FileRead)
    );
    Ok(())
}
