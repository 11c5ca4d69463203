//! Reads a trace record by record.

use std::collections::HashMap;
use std::io::{self, BufRead};

use crate::format::{DELTA_SHIFT, END, FURTHER, MAGIC, MOST_NUMBER_BYTES, TASK, VERSION, WRITE, page_at};
use crate::{Accesses, TraceError};

/// A trace that is being read: an iterator over its records. It ends with an error if the file is incomplete.
#[derive(Debug)]
pub struct TraceReader<R> {
    from: R,
    page_bytes: u32,
    task: u32,
    last_page: HashMap<u32, u64>,
    accesses: u64,
    has_ended: bool,
}

impl<R: BufRead> TraceReader<R> {
    /// Begins to read a trace.
    ///
    /// # Errors
    /// Fails if the file cannot be read, is not a trace, or has a newer version.
    pub fn new(mut from: R) -> Result<Self, TraceError> {
        let mut magic = [0; MAGIC.len()];
        match from.read_exact(&mut magic) {
            Ok(()) if magic == *MAGIC => {}
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error.into()),
            _ => return Err(TraceError::NotATrace),
        }
        let mut reader =
            Self { from, page_bytes: 0, task: 0, last_page: HashMap::new(), accesses: 0, has_ended: false };
        let version = u16::from_le_bytes(reader.bytes()?);
        match version {
            0 => return Err(reader.malformed("its version is 0, and the first one was 1")),
            1..=VERSION => {}
            newer => return Err(TraceError::NewerVersion(newer)),
        }
        reader.page_bytes = u32::from_le_bytes(reader.bytes()?);
        Ok(reader)
    }

    /// The bytes of a page.
    pub fn page_bytes(&self) -> u32 {
        self.page_bytes
    }

    /// Returns the next record, or `None` after the last one.
    fn record(&mut self) -> Result<Option<Accesses>, TraceError> {
        let head = self.number()?;
        if head == END {
            return self.end().map(|()| None);
        }
        let head = head - 1;
        if head & TASK != 0 {
            let task = self.number()?;
            self.task = task.try_into().map_err(|_| self.malformed("the number of a task is above 2^32"))?;
        }
        let further = if head & FURTHER != 0 { self.number()? } else { 0 };
        let last_page = self.last_page.get(&self.task).copied().unwrap_or(0);
        let page = page_at(last_page, head >> DELTA_SHIFT);
        let page = page.ok_or_else(|| self.malformed("the number of a page is negative or above 2^52"))?;
        self.last_page.insert(self.task, page);
        let times = further.checked_add(1);
        let sum = times.and_then(|times| self.accesses.checked_add(times));
        let (Some(times), Some(sum)) = (times, sum) else {
            return Err(self.malformed("there are more than 2^64 accesses"));
        };
        self.accesses = sum;
        Ok(Some(Accesses { task: self.task, page, is_write: head & WRITE != 0, times }))
    }

    fn end(&mut self) -> Result<(), TraceError> {
        let accesses = u64::from_le_bytes(self.bytes()?);
        if accesses != self.accesses {
            return Err(self.malformed("its end tells another number of accesses"));
        }
        match self.from.fill_buf()?.is_empty() {
            true => Ok(()),
            false => Err(self.malformed("something follows behind its end")),
        }
    }

    fn number(&mut self) -> Result<u64, TraceError> {
        let mut number = 0_u64;
        for place in 0..MOST_NUMBER_BYTES {
            let [byte] = self.bytes()?;
            let bits = u64::from(byte & 0x7f);
            if bits.leading_zeros() < 7 * place {
                break;
            }
            number |= bits << (7 * place);
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(self.malformed("a number is above 2^64"))
    }

    fn bytes<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], TraceError> {
        let mut bytes = [0; LENGTH];
        self.from.read_exact(&mut bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => TraceError::Truncated { accesses: self.accesses },
            _ => error.into(),
        })?;
        Ok(bytes)
    }

    fn malformed(&self, problem: &'static str) -> TraceError {
        TraceError::Malformed { accesses: self.accesses, problem }
    }
}

impl<R: BufRead> Iterator for TraceReader<R> {
    type Item = Result<Accesses, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        let record = self.record();
        self.has_ended = !matches!(record, Ok(Some(_)));
        record.transpose()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{MOST_PAGES, TraceWriter};

    fn written(all: &[Accesses]) -> Vec<u8> {
        let mut writer = TraceWriter::new(Vec::new(), 4096).unwrap();
        all.iter().for_each(|accesses| writer.write(*accesses).unwrap());
        writer.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> Result<Vec<Accesses>, TraceError> {
        TraceReader::new(bytes)?.collect()
    }

    fn complaint(bytes: &[u8]) -> String {
        read(bytes).unwrap_err().to_string()
    }

    /// Joins accesses as the writer joins them into records.
    fn joined(all: &[Accesses]) -> Vec<Accesses> {
        let mut joined: Vec<Accesses> = Vec::new();
        for next in all {
            match joined.last_mut() {
                Some(last) if (Accesses { times: next.times, ..*last }) == *next => last.times += next.times,
                _ => joined.push(*next),
            }
        }
        joined
    }

    fn any_accesses() -> impl Strategy<Value = Accesses> {
        let task = prop_oneof![0..3_u32, any::<u32>()];
        let page = prop_oneof![0..8_u64, 0..MOST_PAGES, Just(MOST_PAGES - 1)];
        let times = prop_oneof![Just(1_u64), 1..1000_u64, Just(1 << 40)];
        (task, page, any::<bool>(), times).prop_map(|(task, page, is_write, times)| Accesses {
            task,
            page,
            is_write,
            times,
        })
    }

    proptest! {
        #[test]
        fn a_trace_comes_back_as_it_was_written(all in prop::collection::vec(any_accesses(), 0..200)) {
            prop_assert_eq!(read(&written(&all)).unwrap(), joined(&all));
        }

        #[test]
        fn a_part_of_a_trace_is_no_trace(all in prop::collection::vec(any_accesses(), 0..20), part in 0.0..1.0) {
            let bytes = written(&all);
            let part = (bytes.len() as f64 * part) as usize;
            match read(&bytes[..part]) {
                Err(TraceError::NotATrace) => prop_assert!(part < 8),
                Err(TraceError::Truncated { .. }) => prop_assert!(part >= 8),
                other => prop_assert!(false, "{:?}", other),
            }
        }

        #[test]
        fn no_bytes_make_the_reader_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
            bytes.splice(..0, written(&[])[..14].iter().copied());
            let _ = read(&bytes);
        }
    }

    #[test]
    fn a_page_after_its_neighbour_takes_one_byte() {
        let all: Vec<_> =
            (0..1000_u64).map(|page| Accesses { task: 0, page, is_write: page % 2 == 0, times: 1 }).collect();
        assert_eq!(written(&all).len(), 8 + 2 + 4 + 1000 + 1 + 8);
    }

    #[test]
    fn tasks_have_pages_of_their_own() {
        let access = |task, page| Accesses { task, page, is_write: false, times: 1 };
        let all: Vec<_> = (0..100).flat_map(|at| [access(1, 1 << 40 | at), access(2, at)]).collect();
        let bytes = written(&all);
        assert_eq!(read(&bytes).unwrap(), all);
        assert!(bytes.len() < 23 + 2 * all.len() + 10, "{} bytes", bytes.len());
    }

    #[test]
    fn files_that_are_no_traces_are_refused_with_a_reason() {
        assert!(matches!(read(b""), Err(TraceError::NotATrace)));
        assert!(matches!(read(b"key\n1\n2\n3\n4\n"), Err(TraceError::NotATrace)));
        let good = written(&[Accesses { task: 3, page: 9, is_write: true, times: 4 }]);
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            bytes
        };
        assert!(complaint(&with(8, 2)).contains("version 2"), "{}", complaint(&with(8, 2)));
        assert!(complaint(&with(8, 0)).contains("version is 0"), "{}", complaint(&with(8, 0)));
        assert!(complaint(&good[..good.len() - 1]).contains("ends too early"));
        let end = with(good.len() - 8, 7);
        assert!(complaint(&end).contains("another number of accesses"), "{}", complaint(&end));
        assert!(complaint(&[good, vec![0]].concat()).contains("follows behind its end"));
        let head = written(&[])[..14].to_vec();
        // A distance of -1 from page 0.
        assert!(complaint(&[head.clone(), vec![(1 << DELTA_SHIFT) + 1]].concat()).contains("negative"));
        assert!(complaint(&[head, vec![0xff; 11]].concat()).contains("above 2^64"));
    }
}
