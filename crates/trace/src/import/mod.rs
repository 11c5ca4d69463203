//! Formats of traces: tells which one a file has, and reads any of them into memory.

mod keys;
mod oracle;

use std::io::BufRead;

use crate::format::MAGIC;
use crate::{Numbering, Trace, TraceError, TraceReader};

/// The first bytes of files compressed by Zstandard, gzip, xz and bzip2.
const COMPRESSED: &[&[u8]] = &[b"\x28\xb5\x2f\xfd", b"\x1f\x8b\x08", b"\xfd7zXZ", b"BZh"];

/// A format of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Octavo's own.
    Octavo,
    /// Lines whose first column is a key.
    Csv,
    /// oracleGeneral, a binary format of libCacheSim.
    OracleGeneral,
}

impl Format {
    /// Tells the format by the first bytes of a file. Text counts as lines of keys. Other bytes count as
    /// oracleGeneral, if they make sense in this format.
    ///
    /// # Errors
    /// Fails if the file is empty, compressed, or of none of the formats.
    pub fn of(head: &[u8]) -> Result<Self, TraceError> {
        if head.is_empty() {
            return Err(TraceError::Empty);
        }
        if head.starts_with(MAGIC) {
            return Ok(Self::Octavo);
        }
        if is_compressed(head) {
            return Err(TraceError::Compressed);
        }
        let is_text = |byte: &u8| *byte >= b' ' || matches!(byte, b'\t' | b'\r' | b'\n');
        if head.iter().all(is_text) {
            return Ok(Self::Csv);
        }
        match oracle::makes_sense(head) {
            true => Ok(Self::OracleGeneral),
            false => Err(TraceError::UnknownFormat),
        }
    }
}

fn is_compressed(head: &[u8]) -> bool {
    COMPRESSED.iter().any(|first| head.starts_with(first))
}

/// Reads a trace. If no `format` is given, the contents of the file determine it. Returns the trace, its
/// format, and the bytes of a page if the file names them.
///
/// # Errors
/// Fails if the file cannot be read, or is not a trace of this format.
pub fn read(
    mut from: impl BufRead,
    format: Option<Format>,
) -> Result<(Trace, Format, Option<u32>), TraceError> {
    let format = match format {
        Some(format) => format,
        None => Format::of(from.fill_buf()?)?,
    };
    let (trace, page_bytes) = match format {
        // Records of oracleGeneral may begin with any bytes, but text never begins like a compressed file.
        Format::Csv if is_compressed(from.fill_buf()?) => return Err(TraceError::Compressed),
        Format::Csv => (keys::read(from)?, None),
        Format::OracleGeneral => (oracle::read(from)?, None),
        Format::Octavo => {
            let reader = TraceReader::new(from)?;
            let page_bytes = reader.page_bytes();
            let mut numbering = Numbering::default();
            for accesses in reader {
                let accesses = accesses?;
                numbering.add(&(accesses.task, accesses.page), accesses.is_write, accesses.times)?;
            }
            (numbering.finish(), Some(page_bytes))
        }
    };
    match trace.accesses() {
        0 => Err(TraceError::Empty),
        _ => Ok((trace, format, page_bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Accesses, TraceWriter};

    #[test]
    fn a_format_is_told_by_the_first_bytes() {
        let trace = TraceWriter::new(Vec::new(), 4096).unwrap().finish().unwrap();
        assert_eq!(Format::of(&trace).unwrap(), Format::Octavo);
        assert_eq!(Format::of("key,größe\r\n1,2\r\n".as_bytes()).unwrap(), Format::Csv);
        assert_eq!(Format::of(&oracle::record(1, 2, 3, -1)).unwrap(), Format::OracleGeneral);
        assert!(matches!(Format::of(b""), Err(TraceError::Empty)));
        assert!(matches!(Format::of(b"\x28\xb5\x2f\xfd\x04"), Err(TraceError::Compressed)));
        assert!(matches!(Format::of(b"\x1f\x8b\x08\x08name"), Err(TraceError::Compressed)));
        assert_eq!(Format::of(&oracle::record(0x8b1f, 2, 3, -1)).unwrap(), Format::OracleGeneral);
        assert!(matches!(Format::of(&[0; 100]), Err(TraceError::UnknownFormat)));
        assert!(matches!(Format::of(b"\x7fELF\x02\x01\x01\0\0\0"), Err(TraceError::UnknownFormat)));
    }

    #[test]
    fn a_compressed_file_is_no_list_of_keys_whatever_the_caller_says() {
        let gzip = &b"\x1f\x8b\x08\x08name\0\n\n"[..];
        assert!(matches!(read(gzip, Some(Format::Csv)), Err(TraceError::Compressed)));
    }

    #[test]
    fn pages_of_two_tasks_are_not_the_same() {
        let mut writer = TraceWriter::new(Vec::new(), 4096).unwrap();
        for task in [0, 1, 0] {
            writer.write(Accesses { task, page: 5, is_write: task == 1, times: 2 }).unwrap();
        }
        let (trace, format, page_bytes) = read(&*writer.finish().unwrap(), None).unwrap();
        assert_eq!((format, page_bytes), (Format::Octavo, Some(4096)));
        assert_eq!((trace.pages(), trace.accesses(), trace.writes()), (2, 6, 2));
    }

    #[test]
    fn a_trace_without_accesses_is_refused() {
        let trace = TraceWriter::new(Vec::new(), 4096).unwrap().finish().unwrap();
        assert!(matches!(read(&*trace, None), Err(TraceError::Empty)));
        assert!(matches!(read(&b"key\n"[..], None), Err(TraceError::Empty)));
        assert!(matches!(read(&b""[..], Some(Format::OracleGeneral)), Err(TraceError::Empty)));
    }
}
