//! A range of a space as a stream, compared with the standard library's cursor over a vector.

mod common;

use std::io::{BufRead, BufReader, Cursor, ErrorKind as IoErrorKind, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use octavo::{Error, ErrorKind, Manager, Protection, RegionOptions, SpaceCursor};
use proptest::prelude::*;

use common::{MIB, PAGE, assert_nothing_is_left};

const LEN: u64 = 3 * PAGE + 100;

#[derive(Clone, Debug)]
enum Step {
    Read(usize),
    Write(Vec<u8>),
    Seek(SeekFrom),
}

fn step() -> impl Strategy<Value = Step> {
    let near = -(2 * LEN as i64)..2 * LEN as i64;
    prop_oneof![
        (0..6000_usize).prop_map(Step::Read),
        prop::collection::vec(any::<u8>(), 0..6000).prop_map(Step::Write),
        (0..2 * LEN).prop_map(|to| Step::Seek(SeekFrom::Start(to))),
        near.clone().prop_map(|to| Step::Seek(SeekFrom::End(to))),
        near.prop_map(|to| Step::Seek(SeekFrom::Current(to))),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_cursor_does_what_one_over_a_slice_does(steps in prop::collection::vec(step(), 0..60)) {
        let manager = Manager::builder().budget_bytes(16 * MIB).build().unwrap();
        let space = Arc::new(manager.space().unwrap());
        let at = space.map(LEN, RegionOptions::default()).unwrap() + 7;
        let mut model_bytes = vec![0_u8; LEN as usize - 7];
        let end = at + model_bytes.len() as u64;
        let mut model = Cursor::new(&mut model_bytes[..]);
        let mut cursor = SpaceCursor::new(Arc::clone(&space), at..end);
        for step in steps {
            match step {
                Step::Read(len) => {
                    let (mut bytes, mut expected) = (vec![0xAA; len], vec![0xAA; len]);
                    prop_assert_eq!(cursor.read(&mut bytes).unwrap(), model.read(&mut expected).unwrap());
                    prop_assert!(bytes == expected);
                }
                Step::Write(bytes) => {
                    prop_assert_eq!(cursor.write(&bytes).unwrap(), model.write(&bytes).unwrap());
                }
                Step::Seek(to) => {
                    let (seeked, expected) = (cursor.seek(to), model.seek(to));
                    prop_assert_eq!(seeked.map_err(|error| error.kind()), expected.map_err(|error| error.kind()));
                }
            }
            prop_assert_eq!(cursor.position(), model.position());
        }
        let mut whole = Vec::new();
        SpaceCursor::new(&*space, at..end).read_to_end(&mut whole).unwrap();
        prop_assert!(whole == model_bytes);
        drop((cursor, space));
        assert_nothing_is_left(&manager);
    }
}

#[test]
fn errors_are_those_of_the_space_and_leave_the_cursor_where_it_was() {
    let manager = Manager::builder().budget_bytes(16 * MIB).build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(2 * PAGE, RegionOptions::default()).unwrap();
    space.write(at, b"one line\nand another").unwrap();
    space.protect(at, PAGE, Protection::READ).unwrap();
    let kind = |error: std::io::Error| error.downcast::<Error>().unwrap().kind();
    let mut cursor = SpaceCursor::new(&space, at..at + 3 * PAGE);
    assert_eq!(kind(cursor.write(b"x").unwrap_err()), ErrorKind::Protected);
    assert_eq!(cursor.write(b"x").unwrap_err().kind(), IoErrorKind::PermissionDenied);
    assert_eq!(kind(cursor.read(&mut [0; 3 * PAGE as usize]).unwrap_err()), ErrorKind::NotMapped);
    assert_eq!(cursor.position(), 0);
    assert_eq!(cursor.seek(SeekFrom::Current(-1)).unwrap_err().kind(), IoErrorKind::InvalidInput);
    let lines: Vec<_> =
        BufReader::with_capacity(16, cursor).lines().take(1).collect::<Result<_, _>>().unwrap();
    assert_eq!(lines, ["one line"]);
    let mut empty = SpaceCursor::new(&space, at + 5..at);
    assert_eq!((empty.read(&mut [0; 5]).unwrap(), empty.write(&[0; 5]).unwrap()), (0, 0));
    assert_eq!(empty.seek(SeekFrom::End(0)).unwrap(), 0);
}
