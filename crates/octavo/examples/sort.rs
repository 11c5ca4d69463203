//! Sorts more rows than fit into memory, in place, and then goes through them in order.
//!
//!     cargo run --release -p octavo-vm --example sort -- 64 16      (MiB of rows, MiB of memory)

use std::error::Error;
use std::sync::Arc;

use octavo::{Manager, SpaceVec};

/// A key, and the number of the row.
type KeyedRow = [u64; 2];

fn main() -> Result<(), Box<dyn Error>> {
    let mib: Vec<u64> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    run(mib.first().unwrap_or(&64) << 20, mib.get(1).unwrap_or(&16) << 20)
}

fn key_of(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Sorts `bytes` of rows in `budget_bytes` of memory, and checks their order.
pub fn run(bytes: u64, budget_bytes: u64) -> Result<(), Box<dyn Error>> {
    let space = Arc::new(Manager::builder().budget_bytes(budget_bytes).build()?.space()?);
    let mut rows = SpaceVec::<KeyedRow>::new(&space);
    rows.extend((0..bytes / size_of::<KeyedRow>() as u64).map(|number| [key_of(number), number]))?;

    rows.sort_unstable_by_key(|row| row[0])?;

    let (mut last, mut numbers) = (0, 0);
    for run in rows.runs(..)? {
        // This is a `&[Row]` of the pages themselves, which stay in memory while the loop uses it.
        for &[key, number] in run?.iter() {
            assert!(last <= key && key == key_of(number), "rows are in order, and whole");
            (last, numbers) = (key, numbers + number);
        }
    }
    let count = rows.len() as u64;
    assert_eq!(numbers, count * count.saturating_sub(1) / 2, "each row is there once");
    println!("{count} rows sorted; {} MiB went out", space.stats()?.swapped_out_bytes >> 20);
    Ok(())
}
