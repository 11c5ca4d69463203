//! Lines of keys: the first column of a CSV file, or one key in each line. Each line is a read of the page
//! that belongs to its key.
//!
//! A key is any text. It may be in double quotes, in which two quotes mean one. Empty lines and a byte order
//! mark are skipped. The first line is a header if it names its column (`key`, `obj_id`, `page` …), or if it
//! has no digit and the second line is a number.

use std::io::BufRead;

use crate::{Numbering, Trace, TraceError};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Titles of columns of keys, letters only.
const TITLES: &[&str] = &[
    "key", "keys", "id", "obj", "object", "objid", "objectid", "page", "pages", "block", "lba", "address",
    "addr",
];

/// Reads all lines.
pub(super) fn read(mut from: impl BufRead) -> Result<Trace, TraceError> {
    let mut numbering = Numbering::<Vec<u8>>::default();
    let (mut line, mut number) = (Vec::new(), 0);
    // The first line is kept here until the second line tells whether the first is a header.
    let mut first: Option<Vec<u8>> = None;
    let mut is_first = true;
    while from.read_until(b'\n', &mut line)? > 0 {
        number += 1;
        let text = match number {
            1 => line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&line),
            _ => &line,
        };
        let text = text.trim_ascii();
        if !text.is_empty() {
            let key = key_of(text, number)?;
            if is_first {
                is_first = false;
                first = (!is_title(&key)).then_some(key);
            } else {
                if let Some(first) = first.take().filter(|first| has_digit(first) || !is_number(&key)) {
                    numbering.add(&*first, false, 1)?;
                }
                numbering.add(&*key, false, 1)?;
            }
        }
        line.clear();
    }
    if let Some(only) = first {
        numbering.add(&*only, false, 1)?;
    }
    Ok(numbering.finish())
}

/// The first column of a line.
fn key_of(line: &[u8], number: u64) -> Result<Vec<u8>, TraceError> {
    let key = match line.strip_prefix(b"\"") {
        Some(quoted) => unquoted(quoted).ok_or(TraceError::OpenQuote { line: number })?,
        None => line.split(|byte| *byte == b',').next().unwrap_or(line).trim_ascii().to_vec(),
    };
    if key.is_empty() { Err(TraceError::NoKey { line: number }) } else { Ok(key) }
}

/// Returns the text up to the closing quote, or `None` if there is no such quote.
fn unquoted(quoted: &[u8]) -> Option<Vec<u8>> {
    let (mut text, mut bytes) = (Vec::new(), quoted.iter().copied().peekable());
    loop {
        match bytes.next()? {
            b'"' if bytes.next_if_eq(&b'"').is_none() => return Some(text),
            byte => text.push(byte),
        }
    }
}

fn is_title(key: &[u8]) -> bool {
    let letters = key.iter().filter(|byte| byte.is_ascii_alphabetic());
    let letters: Vec<u8> = letters.map(u8::to_ascii_lowercase).collect();
    !has_digit(key) && TITLES.iter().any(|title| title.as_bytes() == letters)
}

/// Returns whether a key is a number: decimal with or without a sign, or hexadecimal with or without 0x.
fn is_number(key: &[u8]) -> bool {
    let key = key.strip_prefix(b"-").unwrap_or(key);
    let digits = key.strip_prefix(b"0x").unwrap_or(key);
    has_digit(digits) && digits.iter().all(u8::is_ascii_hexdigit)
}

fn has_digit(key: &[u8]) -> bool {
    key.iter().any(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(text: &str) -> Vec<u32> {
        let trace = read(text.as_bytes()).unwrap();
        assert_eq!(trace.writes(), 0);
        trace.steps().iter().flat_map(|step| vec![step.page(); step.times() as usize]).collect()
    }

    #[test]
    fn keys_are_numbers_or_text_with_and_without_a_header() {
        for text in [
            "5\n7\n5\n",
            "5\n7\n5",
            "key\n5\n7\n5\n",
            "obj_id,size\r\n5,1\r\n7,1\r\n5,2\r\n",
            "volume\n5\n7\n5\n",
            "a/b\nc\na/b\n",
            "\n0xff\n\n0x10\n0xff\n",
            "-5\n7\n-5\n",
            "a3f0\n1234\na3f0\n",
            "volume\na3f0\n1234\na3f0\n",
            "\u{feff}5\n7\n5\n",
            "\u{feff}key\n5\n7\n5\n",
            "\"a, \"\"b\"\"\",1\nb,2\n\"a, \"\"b\"\"\",3\n",
        ] {
            assert_eq!(pages(text), [0, 1, 0], "{text:?}");
        }
        assert_eq!(pages("only"), [0]);
        assert_eq!(pages("key\n"), []);
        assert_eq!(pages("key1\nkey2\nkey1\n"), [0, 1, 0], "keys with digits are no titles");
    }

    #[test]
    fn a_line_without_a_key_is_named() {
        for (text, line) in [("1\n\n,5\n", 3), ("\"\",5\n", 1)] {
            assert!(
                matches!(read(text.as_bytes()), Err(TraceError::NoKey { line: at }) if at == line),
                "{text:?}"
            );
        }
        assert!(matches!(read(&b"1\n\"2\n"[..]), Err(TraceError::OpenQuote { line: 2 })));
    }
}
