//! The code of the repository's README: it is copied here word for word, and does what its comments say.

use std::sync::Arc;

use octavo::{Manager, SpaceVec};

fn sort() -> octavo::Result<()> {
    // All the memory that Octavo may use: 16 MiB.
    let manager = Manager::builder().budget_bytes(16 << 20).build()?;
    let space = Arc::new(manager.space()?);

    // 64 MiB of numbers, sorted in place.
    let mut numbers = SpaceVec::<u64>::new(&space);
    numbers.extend((0..8 << 20).map(|number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15)))?;
    numbers.sort_unstable()?;

    // Each run is a &[u64].
    for run in numbers.runs(..)? {
        assert!(run?.is_sorted());
    }
    Ok(())
}

#[test]
fn the_code_of_the_first_page_runs() {
    sort().unwrap();
}

#[test]
fn the_first_page_shows_what_is_tested_here() {
    let readme = include_str!("../../../README.md");
    let blocks: Vec<_> =
        readme.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(blocks.len(), 1);
    assert!(include_str!("readme.rs").contains(blocks[0]), "not tested here as the page shows it");
}

/// The element from the guide's page on the library, which is as large as a page.
#[test]
fn a_node_of_the_size_of_a_page_is_an_element() {
    use octavo::bytemuck::{Pod, Zeroable};

    #[derive(Clone, Copy, Pod, Zeroable)]
    #[repr(C)]
    struct Node {
        keys: [u64; 511],
        next: u64,
    }

    let shown =
        "#[derive(Clone, Copy, Pod, Zeroable)]\n#[repr(C)]\nstruct Node { keys: [u64; 511], next: u64 }";
    assert!(include_str!("../../../docs/library.md").contains(shown), "the page shows it");
    let manager = Manager::builder().budget_bytes(16 << 20).build().unwrap();
    let mut nodes = SpaceVec::<Node>::new(&Arc::new(manager.space().unwrap()));
    let node = |next| Node { keys: [next; 511], next };
    nodes.extend((0..8192).map(node)).unwrap();
    let right =
        nodes.runs(..).unwrap().flat_map(|run| run.unwrap().iter().map(|node| node.next).collect::<Vec<_>>());
    assert!(right.eq(0..8192));
    let told = format!("{manager:?}");
    assert!(told.starts_with("Manager(") && told.len() < 40, "{told}");
}
