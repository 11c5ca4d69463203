//! A hash aggregation: rows of a key and a value, summed by key in a table with open addressing. Seven
//! eighths of the data are rows, which are read in order, and an eighth is the table, which is read and
//! written at random.

use std::error::Error;
use std::sync::Arc;

use octavo::{ExclusiveGuard, Space, SpaceVec};
use octavo_measure::random;

use super::{ArrayPattern, JobResult, Slices, timed};

/// Words of a row, and of a place of the table: the key, where 0 means none, and the value or sum.
const WIDTH: usize = 2;

#[derive(Clone, Copy)]
struct TableSizes {
    rows: usize,
    /// The number of places in the table, a power of two.
    places: usize,
    keys: u64,
}

impl TableSizes {
    fn of(bytes: usize) -> Self {
        let places = (bytes / 8 / (8 * WIDTH)).next_power_of_two();
        let rows = (bytes / (8 * WIDTH)).saturating_sub(places);
        Self { rows, places, keys: places as u64 / 2 }
    }

    fn row(self, number: u64) -> [u64; WIDTH] {
        [random::word(number) % self.keys + 1, number]
    }

    fn first_place(self, key: u64) -> usize {
        random::word(key) as usize & (self.places - 1)
    }
}

fn fold(sum: u64, place: &[u64]) -> u64 {
    sum.wrapping_add(random::word(place[0]) ^ place[1])
}

/// Aggregates slices.
///
/// # Errors
/// Fails if the kernel does.
pub fn over_slices(bytes: usize, memory: &Slices) -> Result<JobResult, Box<dyn Error>> {
    let sizes = TableSizes::of(bytes);
    let mut rows = memory.array(WIDTH * sizes.rows, ArrayPattern::InOrder)?;
    let mut table = memory.array(WIDTH * sizes.places, ArrayPattern::AtRandom)?;
    rows.chunks_exact_mut(WIDTH).zip(0..).for_each(|(row, number)| row.copy_from_slice(&sizes.row(number)));
    timed(|| {
        for row in rows.chunks_exact(WIDTH) {
            let mut place = sizes.first_place(row[0]);
            let found = loop {
                let found = &mut table[WIDTH * place..WIDTH * (place + 1)];
                if found[0] == row[0] || found[0] == 0 {
                    break found;
                }
                place = (place + 1) & (sizes.places - 1);
            };
            found[0] = row[0];
            found[1] = found[1].wrapping_add(row[1]);
        }
        Ok(table.chunks_exact(WIDTH).fold(0, fold))
    })
}

/// Aggregates over guards. The table is small enough to hold while the rows are read: one guard for each 2
/// MiB.
///
/// # Errors
/// Fails if the space does.
pub fn over_guards(bytes: usize, space: &Arc<Space>) -> Result<JobResult, Box<dyn Error>> {
    let sizes = TableSizes::of(bytes);
    let mut rows = SpaceVec::new(space);
    rows.extend((0..sizes.rows as u64).map(|number| sizes.row(number)))?;
    let mut table = SpaceVec::<[u64; WIDTH]>::new(space);
    table.resize(sizes.places, [0; WIDTH])?;
    timed(|| {
        let mut held: Vec<ExclusiveGuard<'_, [u64; WIDTH]>> = table.pieces_mut().collect::<Result<_, _>>()?;
        let per_piece = held[0].len();
        for run in rows.runs(..)? {
            for row in run?.iter() {
                let mut place = sizes.first_place(row[0]);
                let found = loop {
                    let found = &mut held[place / per_piece][place % per_piece];
                    if found[0] == row[0] || found[0] == 0 {
                        break found;
                    }
                    place = (place + 1) & (sizes.places - 1);
                };
                *found = [row[0], found[1].wrapping_add(row[1])];
            }
        }
        Ok(held.iter().flat_map(|piece| piece.iter()).fold(0, |sum, place| fold(sum, place)))
    })
}
