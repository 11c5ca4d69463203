//! oracleGeneral, the binary format in which libCacheSim publishes its traces: records of 24 bytes, little
//! endian, without a header.
//!
//! ```text
//! +--------------+------------+--------------+-------------------+
//! | time (s) u32 | object u64 | its size u32 | next use i64      |
//! +--------------+------------+--------------+-------------------+
//! ```
//!
//! Each record is a read of the page that belongs to its object, whatever the object's size. The next use is
//! the number of a later record. It is -1 or 2^63 - 1 if there is none, and -2 if it is unknown. Only the
//! detection of the format reads it.

use std::io::{self, BufRead};

use crate::{Numbering, Trace, TraceError};

const RECORD_BYTES: usize = 24;
/// The detection of the format checks this many records.
const CHECKED: usize = 64;
/// No trace has this many records.
const MOST_RECORDS: i64 = 1 << 40;

/// Reads all records.
pub(super) fn read(mut from: impl BufRead) -> Result<Trace, TraceError> {
    let mut numbering = Numbering::<u64>::default();
    let mut record = [0; RECORD_BYTES];
    for accesses in 0.. {
        if from.fill_buf()?.is_empty() {
            break;
        }
        from.read_exact(&mut record).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => TraceError::Truncated { accesses },
            _ => error.into(),
        })?;
        numbering.add(&object_of(&record), false, 1)?;
    }
    Ok(numbering.finish())
}

/// Returns whether `head` could be the first records: next uses are numbers of records, times never go back,
/// and sizes are not all 0.
pub(super) fn makes_sense(head: &[u8]) -> bool {
    let (records, _) = head.as_chunks::<RECORD_BYTES>();
    let records = &records[..records.len().min(CHECKED)];
    let mut sizes = 0_u64;
    let mut last_time = 0;
    for record in records {
        let [time, size] = [0, 12].map(|from| u32::from_le_bytes(array(record, from)));
        let next_use = i64::from_le_bytes(array(record, 16));
        let is_next_use = matches!(next_use, -2 | -1 | 1..MOST_RECORDS | i64::MAX);
        if time < last_time || !is_next_use {
            return false;
        }
        last_time = time;
        sizes += u64::from(size);
    }
    sizes > 0
}

fn object_of(record: &[u8; RECORD_BYTES]) -> u64 {
    u64::from_le_bytes(array(record, 4))
}

fn array<const LENGTH: usize>(record: &[u8; RECORD_BYTES], from: usize) -> [u8; LENGTH] {
    *record[from..].first_chunk().expect("a record has the field")
}

#[cfg(test)]
pub(super) fn record(time: u32, object: u64, size: u32, next_use: i64) -> Vec<u8> {
    [&time.to_le_bytes()[..], &object.to_le_bytes(), &size.to_le_bytes(), &next_use.to_le_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_pages() {
        let bytes = [(0, u64::MAX, 512, 3), (0, 7, 512, i64::MAX), (5, u64::MAX, 512, -1)]
            .map(|(time, object, size, next)| record(time, object, size, next))
            .concat();
        let trace = read(&*bytes).unwrap();
        assert_eq!(trace.steps().iter().map(|step| step.page()).collect::<Vec<_>>(), [0, 1, 0]);
        assert!(makes_sense(&bytes));
        assert!(matches!(read(&bytes[..60]), Err(TraceError::Truncated { accesses: 2 })));
    }

    #[test]
    fn records_of_something_else_make_no_sense() {
        assert!(!makes_sense(&record(5, 1, 0, -1)));
        assert!(!makes_sense(&[record(5, 1, 1, -1), record(4, 1, 1, -1)].concat()));
        assert!(!makes_sense(&[record(5, 1, 1, -1), record(5, 1, 1, 0)].concat()));
        assert!(!makes_sense(&record(5, 1, 1, 1 << 50)));
        assert!(!makes_sense(b"short"));
    }
}
