//! The error of an access for which there is no room names what uses the budget, and its parts add up.

mod common;

use common::target::{Able, BUDGET, TestTarget, TranslatedPair, pair_of};
use common::{MIB, PAGE, says};
use octavo::file::{FileOptions, Sharing};
use octavo::io::SwapFile;
use octavo::{
    Access, Compression, Error, ErrorKind, HugePolicy, Manager, ManagerBuilder, Protection, RegionOptions,
    Result, Space,
};

/// A manager whose pages stay.
fn without_swap() -> ManagerBuilder {
    Manager::builder().budget_bytes(BUDGET).background(false).swap_file(SwapFile::None)
}

/// Returns a printed size and by how much rounding may have changed it, in bytes.
fn size_of_text(text: &str) -> Option<(f64, f64)> {
    let (number, unit) = text.split_once(' ')?;
    let scale = match unit {
        "bytes" => 1.0,
        "KiB" => 1024.0,
        "MiB" => MIB as f64,
        _ => return None,
    };
    let rounded = if number.contains('.') { 0.05 * scale } else { 0.0 };
    Some((number.parse::<f64>().ok()? * scale, rounded))
}

/// Asserts that the parts of the text add up to the budget, and returns the text. A part is a size behind a
/// colon.
#[track_caller]
fn adds_up(result: Result<()>, words: &[&str]) -> String {
    let error: Error = says(result, ErrorKind::OutOfMemory, &["the budget of 16 MiB"]);
    let told = error.to_string();
    words.iter().for_each(|word| assert!(told.contains(word), "{word:?} is missing in: {told}"));
    let of_part = |part: &str| size_of_text(part.split_once(": ")?.1.split(',').next()?);
    let parts: Vec<_> = told.split("; ").filter_map(of_part).collect();
    assert!(parts.len() >= 2, "{told}");
    let excess = told.split("; ").find_map(|part| {
        size_of_text(part.strip_prefix("together ")?.strip_suffix(" more than the budget")?)
    });
    let (excess, excess_rounded) = excess.unwrap_or_default();
    let sum: f64 = parts.iter().map(|(bytes, _)| bytes).sum();
    let rounded: f64 = parts.iter().map(|(_, rounded)| rounded).sum();
    let off = (sum - excess - BUDGET as f64).abs();
    assert!(off <= rounded + excess_rounded + 1.0, "the sum is off by {off} bytes: {told}");
    told
}

/// Stores to each page until the first error.
fn fill(space: &Space, at: u64, len: u64) -> Result<()> {
    (at..at + len).step_by(PAGE as usize).try_for_each(|page| space.store(page, page))
}

#[test]
fn pages_of_several_spaces_add_up_and_the_largest_are_named() {
    let manager = without_swap().build().unwrap();
    let spaces: Vec<_> =
        ["small", "middle", "the hog"].iter().map(|name| manager.space_named(*name).unwrap()).collect();
    let at: Vec<_> =
        spaces.iter().map(|space| space.map(64 * MIB, RegionOptions::default()).unwrap()).collect();
    fill(&spaces[0], at[0], MIB).unwrap();
    fill(&spaces[1], at[1], 2 * MIB).unwrap();
    let words = ["the largest spaces: the hog (", "middle (2 MiB), small (1 MiB)", "configure a swap file"];
    adds_up(fill(&spaces[2], at[2], 64 * MIB), &words);
}

#[test]
fn pins_and_compressed_pages_add_up() {
    let manager = Manager::builder().budget_bytes(BUDGET).background(false).compression(Compression::Lz4);
    let manager = manager.build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(64 * MIB, RegionOptions::default()).unwrap();
    fill(&space, at, 32 * MIB).unwrap();
    let pin = space.pin_prefix(at, 64 << 20, Access::Write).unwrap();
    let next = at + pin.len() as u64;
    adds_up(space.store(next, 1_u64), &["drop pins"]);
    drop(pin);
    adds_up(space.pin_exact(at, 64 << 20, Access::Write).map(drop), &["drop pins"]);
}

#[test]
fn what_is_outside_adds_up_even_above_the_budget() {
    for (outside, words) in [
        (BUDGET / 2, &["outside of Octavo: 8 MiB"][..]),
        (2 * BUDGET, &["outside of Octavo: 32 MiB", "more than the budget"][..]),
    ] {
        let manager = without_swap().huge(HugePolicy::Never).build().unwrap();
        let space = manager.space().unwrap();
        let at = space.map(2 * BUDGET, RegionOptions::default()).unwrap();
        manager.set_outside_bytes(outside).unwrap();
        adds_up(fill(&space, at, 2 * BUDGET), words);
    }
}

fn translated() -> TranslatedPair {
    pair_of(without_swap().huge(HugePolicy::Never), Able::ALL, 4 * BUDGET)
}

/// Stores on the other side until there is no room.
fn fill_away(pair: &TranslatedPair) -> Result<()> {
    (0..4 * BUDGET / PAGE).try_for_each(|page| pair.target.store(&pair.space, pair.page(page), page + 1))
}

#[test]
fn pages_in_translated_spaces_add_up_and_shared_ones_count_once() {
    let pair = translated();
    adds_up(fill_away(&pair), &["the largest spaces: translated ("]);
    let pair = translated();
    pair.manager.set_shared_bytes(BUDGET / 2).unwrap();
    adds_up(fill_away(&pair), &["the largest spaces: translated (2"]);
    assert!(pair.manager.stats().unwrap().used_bytes > BUDGET, "some are charged twice");
    // Stores made copies of all, which are there and above the budget.
    pair.manager.set_shared_bytes(0).unwrap();
    let page = pair.page(4 * BUDGET / PAGE - 1);
    adds_up(pair.target.store(&pair.space, page, 1), &["more than the budget"]);
}

#[test]
fn pages_of_a_child_and_its_parent_add_up() {
    let pair = translated();
    fill(&pair.space, pair.at, 6 * MIB).unwrap();
    let child = pair.manager.translated_space("child", TestTarget::new(Able::ALL)).unwrap();
    child.fork_from(&pair.space).unwrap();
    let at = pair.at + 6 * MIB;
    adds_up(fill(&pair.space, at, 4 * BUDGET - 6 * MIB), &["translated (", "child (6 MiB)"]);
}

/// Two spaces that show a page of a file show one frame.
#[test]
fn pages_of_a_file_that_two_spaces_show_count_once() {
    const SHARED: u64 = 6 * MIB;
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, vec![7; SHARED as usize]).unwrap();
    let manager = without_swap().huge(HugePolicy::Never).build().unwrap();
    let file = manager.open(&path, FileOptions::new()).unwrap();
    let spaces = ["one", "other"].map(|name| manager.space_named(name).unwrap());
    let read_only = RegionOptions::new().protection(Protection::READ);
    let pins = spaces.each_ref().map(|space| {
        let at = space.map_file(&file, 0, SHARED, Sharing::Shared, read_only).unwrap();
        space.pin_exact(at, SHARED as usize, Access::Read).unwrap()
    });
    let at = spaces[0].map(2 * BUDGET, RegionOptions::default()).unwrap();
    let told = adds_up(fill(&spaces[0], at, 2 * BUDGET), &["one (1", "other (6 MiB)"]);
    assert!(!told.contains("more than the budget"), "{told}");
    let resident: u64 = spaces.iter().map(|space| space.stats().unwrap().resident_bytes).sum();
    assert!(resident > BUDGET, "the test looks at shared pages: {told}");
    drop(pins);
}
