//! Makes pages of several kinds of data, the same on every run.

use octavo::PAGE_BYTES;
use octavo_measure::random::Random;

const TEXT: &str = concat!(
    include_str!("../../octavo/src/frame/allocator.rs"),
    include_str!("../../octavo/src/frame/percpu.rs"),
    include_str!("../../octavo/src/table/mod.rs"),
    include_str!("../../octavo/src/space.rs"),
    include_str!("../../octavo/src/fault/mod.rs"),
    include_str!("../../../docs/locking.md"),
    include_str!("../../../docs/state-words.md"),
);

/// Makes `count` pages of *text* (this repository's own), *half* (random bytes, then zeros), or *floats*
/// (random numbers of 30 bits). Every other kind gives random bytes.
pub fn pages(kind: &str, count: usize) -> Vec<Vec<u8>> {
    let mut random = Random::new(1);
    let mut page = |index: usize| {
        let mut bytes: Vec<u8> = match kind {
            // Each page begins at another place of the text.
            "text" => TEXT.bytes().cycle().skip(index * 1237 % TEXT.len()).take(PAGE_BYTES).collect(),
            "floats" => {
                let number = |_| (random.below(1 << 30) as f64 / f64::from(1 << 30)).to_le_bytes();
                (0..PAGE_BYTES / 8).flat_map(number).collect()
            }
            _ => (0..PAGE_BYTES).map(|_| random.below(256) as u8).collect(),
        };
        if kind == "half" {
            bytes[PAGE_BYTES / 2..].fill(0);
        }
        bytes
    };
    (0..count).map(&mut page).collect()
}
