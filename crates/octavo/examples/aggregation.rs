//! Several threads count keys in one hash table, which is larger than the memory for it. A slot is two words:
//! `compare_exchange` claims the first for a key, and `fetch_add` counts in the second.
//!
//!     cargo run --release -p octavo-vm --example aggregation -- 2000000 16      (keys, MiB of memory)

use std::error::Error;
use std::thread;

use octavo::{AccessPattern, Manager, RegionOptions, Space};

const THREADS: u64 = 4;
/// How often each key comes, over all threads.
const TIMES: u64 = THREADS;
const SLOT_BYTES: u64 = 16;

/// Slots of a key and a count. The key 0 means that a slot is free.
struct CountTable<'s> {
    space: &'s Space,
    at: u64,
    slots: u64,
}

impl<'s> CountTable<'s> {
    fn new(space: &'s Space, keys: u64) -> octavo::Result<Self> {
        let slots = (keys * 2).next_power_of_two();
        let options = RegionOptions::new().pattern(AccessPattern::Random);
        Ok(Self { space, at: space.map(slots * SLOT_BYTES, options)?, slots })
    }

    /// Adds to the count of a key, which is not 0.
    fn add(&self, key: u64, count: u64) -> octavo::Result<()> {
        let mut slot = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        loop {
            let at = self.at + (slot & (self.slots - 1)) * SLOT_BYTES;
            let mut found: u64 = self.space.load(at)?;
            if found == 0 {
                found = self.space.compare_exchange(at, 0, key)?.map_or_else(|other| other, |_| key);
            }
            if found == key {
                return self.space.fetch_add(at + 8, count).map(drop);
            }
            slot += 1;
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<u64> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    run(*words.first().unwrap_or(&500_000), words.get(1).unwrap_or(&16) << 20)
}

/// Counts `keys` keys in `budget_bytes` of memory, and checks every count.
pub fn run(keys: u64, budget_bytes: u64) -> Result<(), Box<dyn Error>> {
    let space = Manager::builder().budget_bytes(budget_bytes).build()?.space()?;
    let table = CountTable::new(&space, keys)?;
    thread::scope(|scope| {
        let counting = |thread: u64| {
            let table = &table;
            // Each thread counts all keys, but begins at another key.
            let order =
                (0..keys * TIMES / THREADS).map(move |index| (index + thread * keys / THREADS) % keys);
            scope.spawn(move || order.map(|key| key + 1).try_for_each(|key| table.add(key, 1)))
        };
        let threads: Vec<_> = (0..THREADS).map(counting).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;
    let (mut found, mut sum) = (0, 0);
    for slot in 0..table.slots {
        let [key, count] = space.load::<[u64; 2]>(table.at + slot * SLOT_BYTES)?;
        (found, sum) = (found + u64::from(key != 0), sum + count);
    }
    assert_eq!((found, sum), (keys, keys * TIMES), "each key is there once, and nothing was lost");
    println!("{found} keys, {sum} counted; {} MiB went out", space.stats()?.swapped_out_bytes >> 20);
    Ok(())
}
