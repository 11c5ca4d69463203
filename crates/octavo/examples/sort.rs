//! Sorts more words than fit into its memory: runs that fit are sorted one by one, and then merged.
//!
//!     cargo run --release -p octavo-vm --example sort -- 64 16      (MiB of words, MiB of memory)

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::error::Error;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Write};

use octavo::{AccessPattern, Manager, RegionOptions, Space, SpaceCursor};

/// Of a run, which is sorted in plain memory.
const RUN_BYTES: u64 = 2 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let mib: Vec<u64> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    run(mib.first().unwrap_or(&64) << 20, mib.get(1).unwrap_or(&16) << 20)
}

/// Sorts `len` bytes of words in `budget_bytes` of memory, and checks their order.
pub fn run(len: u64, budget_bytes: u64) -> Result<(), Box<dyn Error>> {
    let space = Manager::builder().budget_bytes(budget_bytes).build()?.space()?;
    let in_order = RegionOptions::new().pattern(AccessPattern::Sequential);
    let (words, sorted, mut sum, mut last) = (space.map(len, in_order)?, space.map(len, in_order)?, 0_u64, 0);
    let mut out = BufWriter::new(SpaceCursor::new(&space, words..words + len));
    for word in (0..len / 8).map(|index| index.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
        sum = sum.wrapping_add(word);
        out.write_all(&word.to_le_bytes())?;
    }
    out.flush()?;
    sort(&space, words, sorted, len)?;
    for word in Words(BufReader::with_capacity(1 << 16, SpaceCursor::new(&space, sorted..sorted + len))) {
        let word = word?;
        assert!(last <= word, "the words are in order");
        (sum, last) = (sum.wrapping_sub(word), word);
    }
    assert_eq!(sum, 0, "they are the words that were written");
    println!("{} words sorted; {} MiB went out", len / 8, space.stats()?.swapped_out_bytes >> 20);
    Ok(())
}

/// Sorts `len` bytes of words at `from` to `to`.
fn sort(space: &Space, from: u64, to: u64, len: u64) -> Result<(), Box<dyn Error>> {
    let mut runs = Vec::new();
    for start in (from..from + len).step_by(RUN_BYTES as usize) {
        let range = start..(start + RUN_BYTES).min(from + len);
        let mut bytes = vec![0; (range.end - range.start) as usize];
        space.read(start, &mut bytes)?;
        let mut run: Vec<u64> =
            bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        run.sort_unstable();
        space.write(start, &run.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())?;
        runs.push(Words(BufReader::with_capacity(1 << 16, SpaceCursor::new(space, range))));
    }
    let mut heads = BinaryHeap::new();
    for (index, run) in runs.iter_mut().enumerate() {
        heads.extend(run.next().transpose()?.map(|word| Reverse((word, index))));
    }
    let mut out = BufWriter::with_capacity(1 << 16, SpaceCursor::new(space, to..to + len));
    while let Some(Reverse((word, index))) = heads.pop() {
        out.write_all(&word.to_le_bytes())?;
        heads.extend(runs[index].next().transpose()?.map(|word| Reverse((word, index))));
    }
    Ok(out.flush()?)
}

struct Words<R>(R); // of a stream

impl<R: Read> Iterator for Words<R> {
    type Item = std::io::Result<u64>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut word = [0; 8];
        match self.0.read_exact(&mut word) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => None,
            read => Some(read.map(|()| u64::from_le_bytes(word))),
        }
    }
}
