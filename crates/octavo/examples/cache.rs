//! A cache of values, which may be larger than the memory for it. A value is lent where it lies. Octavo packs
//! cold values, and then moves them to disk.
//!
//!     cargo run --release -p octavo-vm --example cache -- 20000 16      (values of up to 8 KiB, MiB of memory)

use std::collections::HashMap;
use std::error::Error;

use octavo::{Manager, RegionOptions, SharedGuard, Space};

/// Values by keys. An index in plain memory says where each value lies.
struct ValueCache {
    space: Space,
    places: HashMap<String, (u64, usize)>,
    /// The address of the next value, and the end of the addresses.
    next: u64,
    end: u64,
}

impl ValueCache {
    /// Addresses cost nothing, so there are many.
    const ADDRESSES: u64 = 1 << 40;
    /// A guard lends bytes of one piece only. A piece has this many bytes.
    const PIECE: u64 = 2 << 20;

    fn new(budget_bytes: u64) -> octavo::Result<Self> {
        let space = Manager::builder().budget_bytes(budget_bytes).build()?.space_named("cache")?;
        let next = space.map(Self::ADDRESSES, RegionOptions::new().guarded(true))?;
        Ok(Self { space, places: HashMap::new(), next, end: next + Self::ADDRESSES })
    }

    /// Lends the value of a key. If the cache does not have the value, makes it first. A value has at least
    /// one byte, and fits into a piece.
    fn get(&mut self, key: &str, make: impl FnOnce() -> Vec<u8>) -> octavo::Result<SharedGuard<'_, u8>> {
        if let Some(&(at, len)) = self.places.get(key) {
            return self.space.shared(at, len);
        }
        let value = make();
        let is_cut = self.next % Self::PIECE + value.len() as u64 > Self::PIECE;
        let at = if is_cut { self.next.next_multiple_of(Self::PIECE) } else { self.next };
        assert!(at + value.len() as u64 <= self.end, "a terabyte of values");
        self.space.exclusive(at, value.len())?.copy_from_slice(&value);
        self.next = at + value.len() as u64;
        self.places.insert(key.into(), (at, value.len()));
        self.space.shared(at, value.len())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<u64> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    run(*words.first().unwrap_or(&20_000), words.get(1).unwrap_or(&16) << 20)
}

/// Makes and gets `values` values in `budget_bytes` of memory, and checks each value.
pub fn run(values: u64, budget_bytes: u64) -> Result<(), Box<dyn Error>> {
    let mut cache = ValueCache::new(budget_bytes)?;
    let make = |key: u64| format!("value {key}, ").repeat(1 + (key % 600) as usize).into_bytes();
    let mut made = 0_u64;
    for round in 0..3 {
        for index in 0..values {
            // Each round gets the same keys, but begins at another key.
            let key = (index + round * values / 3) % values;
            let value = cache.get(&format!("key {key}"), || {
                made += 1;
                make(key)
            })?;
            assert!(*value == make(key), "the value of {key} is what was made");
        }
    }
    assert_eq!(made, values, "each value was made once");
    let stats = cache.space.stats()?;
    println!(
        "{values} values; {} MiB in memory, {} MiB went out",
        stats.resident_bytes >> 20,
        stats.swapped_out_bytes >> 20
    );
    Ok(())
}
