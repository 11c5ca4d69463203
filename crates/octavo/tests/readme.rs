//! The code of the repository's first page: it stands here word for word, compiles, and does what its
//! comments say.

#![allow(unused_imports, reason = "the page's imports are the page's")]

#[rustfmt::skip]
fn first_page() -> octavo::Result<()> {
    use std::sync::Arc;
    use octavo::{Manager, RegionOptions, SpaceVec};

    let manager = Manager::builder().budget_bytes(16 << 20).build()?;   // all that it may use
    let space = Arc::new(manager.space()?);

    let mut numbers = SpaceVec::<u64>::new(&space);                     // 64 MiB of numbers
    numbers.extend((0..8 << 20).map(|number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15)))?;
    numbers.sort_unstable()?;                                           // in place
    for run in numbers.runs(..)? {
        assert!(run?.is_sorted());                                      // a &[u64]
    }

    let at = space.map(1 << 30, RegionOptions::new().guarded(true))?;   // 1 GiB of addresses, no memory yet
    space.exclusive::<u32>(at, 1024)?.fill(7);                          // a &mut [u32]
    assert_eq!(space.shared::<u32>(at, 2)?[..], [7, 7]);

    let words = space.map(1 << 30, RegionOptions::default())?;          // words, from any thread
    space.store(words + 4096, 41_u64)?;
    space.fetch_add(words + 4096, 1_u64)?;
    assert_eq!(space.load::<u64>(words + 4096)?, 42);
    Ok(())
}

#[rustfmt::skip]
fn as_a_library() -> octavo::Result<()> {
    use octavo::{Access, Manager, RegionOptions};

    let manager = Manager::builder().budget_bytes(64 << 20).build()?;
    let space = manager.space()?;
    let at = space.map(1 << 30, RegionOptions::default())?; // 1 GiB of addresses, no memory yet

    space.store(at + 4096, 42_u64)?;                        // now one frame
    assert_eq!(space.load::<u64>(at + 4096)?, 42);
    assert_eq!(space.load::<u64>(at + (512 << 20))?, 0);    // the zero page: still no memory

    let pin = space.pin_exact(at, 8192, Access::Write)?;    // stays where it is until dropped
    pin.copy_in(4090, b"across pages")?;
    Ok(())
}

#[rustfmt::skip]
fn where_pages_go_and_how_they_are_used() -> octavo::Result<()> {
    use octavo::{AccessPattern, Advice, Compression, Manager, RegionOptions, SwapArea};

    let manager = Manager::builder()
        .budget_bytes(64 << 20)
        .swap_area(SwapArea::temporary("/var/tmp").priority(1))    // filled first
        .swap_area(SwapArea::file("/srv/swap").limit_bytes(64 << 30))   // made if it is not there, and it stays
        .compression(Compression::Zstd)
        .encrypt(true)
        .build()?;
    let space = manager.space_named("query 7")?;
    space.set_quota(Some(32 << 20))?;                              // makes room among its own pages
    let table = space.map(1 << 30, RegionOptions::default().pattern(AccessPattern::Random))?;

    space.prefetch(table, 2 << 20)?;                               // starts to read, and returns
    space.advise(table, 2 << 20, Advice::Sequential)?;             // Random, WillNeed, Cold, PageOut, Free
    Ok(())
}

/// The element of the page: as large as a page.
#[test]
fn a_node_of_the_size_of_a_page_is_an_element() {
    use octavo::bytemuck::{Pod, Zeroable};
    use octavo::{Manager, SpaceVec};

    #[rustfmt::skip]
    #[derive(Clone, Copy, Pod, Zeroable)] #[repr(C)] struct Node { keys: [u64; 511], next: u64 }

    let text = "#[derive(Clone, Copy, Pod, Zeroable)] #[repr(C)] struct Node { keys: [u64; 511], next: u64 }";
    assert!(include_str!("../../../README.md").contains(text), "the page shows it");
    let manager = Manager::builder().budget_bytes(16 << 20).build().unwrap();
    let mut nodes = SpaceVec::<Node>::new(&std::sync::Arc::new(manager.space().unwrap()));
    let node = |next| Node { keys: [next; 511], next };
    nodes.extend((0..8192).map(node)).unwrap();
    let right =
        nodes.runs(..).unwrap().flat_map(|run| run.unwrap().iter().map(|node| node.next).collect::<Vec<_>>());
    assert!(right.eq(0..8192));
    let told = format!("{manager:?}");
    assert!(told.starts_with("Manager(") && told.len() < 40, "{told}");
}

#[test]
fn the_code_of_the_first_page_runs() {
    first_page().unwrap();
    as_a_library().unwrap();
    // It names a file of the reader's, and is only compiled.
    let _ = where_pages_go_and_how_they_are_used;
}

#[test]
fn the_first_page_shows_what_is_tested_here() {
    let words = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
    let here = words(include_str!("readme.rs"));
    let readme = include_str!("../../../README.md");
    let blocks: Vec<&str> =
        readme.split("```rust\n").skip(1).map(|block| block.split("```").next().unwrap()).collect();
    // A window's block is one of `octavo-window`.
    let (windows, own): (Vec<&str>, Vec<&str>) =
        blocks.iter().partition(|block| block.contains("octavo_window"));
    assert_eq!((windows.len(), own.len()), (1, 3));
    for block in own {
        assert!(here.contains(words(block).trim()), "not tested here as the page shows it:\n{block}");
    }
}
