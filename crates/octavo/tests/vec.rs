//! Vectors in a space, compared with vectors of the standard library.

mod common;

use std::sync::Arc;
use std::thread;

use bytemuck::{Pod, Zeroable};
use octavo::{ErrorKind, HugePolicy, Manager, Space, SpaceVec};
use proptest::prelude::*;

use common::{MIB, PAGE, Random, assert_only_kept, says};

const BUDGET: u64 = 16 * MIB;

fn space() -> (Manager, Arc<Space>) {
    space_of(HugePolicy::Never)
}

fn space_of(huge: HugePolicy) -> (Manager, Arc<Space>) {
    let manager = Manager::builder().budget_bytes(BUDGET).huge(huge).build().unwrap();
    let space = Arc::new(manager.space().unwrap());
    (manager, space)
}

/// Single pages, and pages in blocks.
const BOTH: [HugePolicy; 2] = [HugePolicy::Never, HugePolicy::Advised];

/// An element whose size does not divide a page: every page has some unused bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Pod, Zeroable)]
#[repr(C)]
struct OddRow {
    key: u64,
    rest: [u64; 2],
}

/// An element larger than half a page: its units have several pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Pod, Zeroable)]
#[repr(C)]
struct Large([[u64; 25]; 15]);

fn large(number: u64) -> Large {
    Large([[number; 25]; 15])
}

#[test]
fn a_vector_may_go_to_other_threads() {
    fn goes<T: Send + Sync>() {}
    goes::<SpaceVec<u64>>();
    goes::<SpaceVec<[u8; 3]>>();
}

#[test]
fn a_vector_of_four_times_the_budget_is_sorted_in_place() {
    let (manager, space) = space();
    let mut random = Random::new(1);
    let count = 4 * BUDGET as usize / 8;
    let mut model: Vec<u64> = (0..count).map(|_| random.next()).collect();
    let mut vec = SpaceVec::new(&space);
    vec.extend_from_slice(&model).unwrap();
    vec.sort_unstable().unwrap();
    model.sort_unstable();
    assert_eq!(vec.len(), count);
    for (index, run) in vec.runs(..).unwrap().enumerate() {
        assert!(run.unwrap()[..] == model[index * 512..(index + 1) * 512], "run {index}");
    }
    drop(vec);
    assert_eq!(space.stats().unwrap().mapped_bytes, 0);
    drop(space);
    assert_only_kept(&manager, false, false);
}

/// Orders that are bad for quicksort, with sizes around one run, two runs, and the buffer.
#[test]
fn every_shape_is_sorted() {
    BOTH.into_iter().for_each(every_shape_is_sorted_in);
}

fn every_shape_is_sorted_in(huge: HugePolicy) {
    let (_manager, space) = space_of(huge);
    let mut random = Random::new(2);
    let runs = [511, 512, 513, 1025, (1 << 14) - 1, (1 << 14) + 1];
    let buffers = [(1 << 17) - 1, 1 << 17, (1 << 17) + 1, (1 << 18) + 1, 400_000, 800_000];
    for len in [0, 1, 2].into_iter().chain(runs).chain(buffers) {
        let shapes: [&dyn Fn(u64, u64) -> u64; 8] = [
            &|index, _| index,
            &|index, _| u64::MAX - index,
            &|_, _| 7,
            &|_, random| random % 2,
            &|_, random| random % 100,
            &|index, _| index % 512,
            &|index, random| if index % 97 == 0 { random } else { index },
            &|_, random| random,
        ];
        for (number, shape) in shapes.iter().enumerate() {
            let mut model: Vec<u64> = (0..len).map(|index| shape(index, random.next())).collect();
            let mut vec = SpaceVec::new(&space);
            vec.extend(model.iter().copied()).unwrap();
            vec.sort_unstable().unwrap();
            model.sort_unstable();
            assert!(vec.iter().map(Result::unwrap).eq(model), "shape {number} of {len}");
        }
    }
}

#[test]
fn elements_of_any_size_are_sorted_by_any_order() {
    BOTH.into_iter().for_each(elements_of_any_size_are_sorted_in);
}

fn elements_of_any_size_are_sorted_in(huge: HugePolicy) {
    let (_manager, space) = space_of(huge);
    let mut random = Random::new(3);
    let mut rows: Vec<OddRow> =
        (0..200_000).map(|_| OddRow { key: random.below(5000), rest: [random.next(), 1] }).collect();
    let mut vec = SpaceVec::new(&space);
    vec.extend_from_slice(&rows).unwrap();
    vec.sort_unstable_by_key(|row| std::cmp::Reverse((row.key, row.rest))).unwrap();
    rows.sort_unstable_by_key(|row| std::cmp::Reverse((row.key, row.rest)));
    assert!(vec.iter().map(Result::unwrap).eq(rows));
    let mut numbers: Vec<u64> = (0..3000).map(|_| random.next()).collect();
    let mut vec = SpaceVec::new(&space);
    vec.extend(numbers.iter().map(|number| large(*number))).unwrap();
    vec.sort_unstable().unwrap();
    numbers.sort_unstable();
    assert!(vec.iter().map(Result::unwrap).eq(numbers.into_iter().map(large)));
    let mut bytes = SpaceVec::<u8>::new(&space);
    bytes.extend((0..3_000_000).map(|index: u32| (index * 7 % 251) as u8)).unwrap();
    bytes.sort_unstable().unwrap();
    assert!(bytes.runs(..).unwrap().all(|run| run.unwrap().is_sorted()));
}

/// The elements are so large that the buffer has room for only a few. Another part has a comparison that
/// contradicts itself.
#[test]
fn large_elements_are_sorted_and_a_comparison_without_order_ends() {
    #[derive(Clone, Copy, Pod, Zeroable)]
    #[repr(C)]
    struct HugeElement([[[u64; 31]; 11]; 11]);
    let (_manager, space) = space_of(HugePolicy::Advised);
    for len in [34, 35, 36, 70, 200] {
        let mut vec = SpaceVec::new(&space);
        let mut random = Random::new(len);
        vec.extend((0..len).map(|_| HugeElement([[[random.below(100); 31]; 11]; 11]))).unwrap();
        vec.sort_unstable_by_key(|one| one.0[10][10][30]).unwrap();
        assert!(vec.iter().map(|one| one.unwrap().0[0][0][0]).is_sorted(), "{len}");
    }
    let mut vec = SpaceVec::<u64>::new(&space);
    vec.extend(0..300_000).unwrap();
    // The sort may also panic, like the sort of the standard library.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        vec.sort_unstable_by(|_, _| std::cmp::Ordering::Less).unwrap();
    }));
    let mut sorted = vec.iter().map(Result::unwrap).collect::<Vec<_>>();
    sorted.sort_unstable();
    assert!(sorted.into_iter().eq(0..300_000));
}

/// No element is lost when the comparison panics in the middle.
#[test]
fn a_comparison_that_panics_loses_nothing() {
    BOTH.into_iter().for_each(a_comparison_that_panics_loses_nothing_in);
}

fn a_comparison_that_panics_loses_nothing_in(huge: HugePolicy) {
    let (_manager, space) = space_of(huge);
    let mut random = Random::new(4);
    let mut model: Vec<u64> = (0..300_000).map(|_| random.next()).collect();
    let mut vec = SpaceVec::new(&space);
    vec.extend_from_slice(&model).unwrap();
    for most in [10, 1000, 200_000, 500_000, 2_000_000] {
        let mut calls = 0;
        let sorted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            vec.sort_unstable_by(|one, other| {
                calls += 1;
                assert!(calls < most, "enough");
                one.cmp(other)
            })
        }));
        assert!(sorted.is_err(), "it was sorted by fewer than {most} comparisons");
    }
    vec.sort_unstable().unwrap();
    model.sort_unstable();
    assert!(vec.iter().map(Result::unwrap).eq(model));
}

#[test]
fn slices_lie_in_one_piece_and_bad_ranges_are_errors() {
    let (_manager, space) = space();
    let mut vec = SpaceVec::<u64>::new(&space);
    says(vec.get(0), ErrorKind::InvalidRange, &["no element 0", "len()"]);
    vec.resize(600_000, 9).unwrap();
    assert_eq!((vec.piece(0), vec.piece(300_000)), (0..262_144, 262_144..524_288));
    assert_eq!((vec.piece(599_999), vec.piece(600_000)), (524_288..600_000, 600_000..600_000));
    let lens = |pieces: Vec<usize>| assert_eq!(pieces, [262_144, 262_144, 75_712]);
    lens(vec.pieces().map(|piece| piece.unwrap().len()).collect());
    lens(vec.pieces_mut().collect::<Result<Vec<_>, _>>().unwrap().iter().map(|piece| piece.len()).collect());
    {
        let mut cursor = vec.cursor();
        assert_eq!((cursor.at(510..514).unwrap().len(), cursor.at(512..514).unwrap().len()), (2, 2));
        assert_eq!((cursor.at(7..7).unwrap().len(), cursor.at(599_990..600_000).unwrap()), (0, &[9; 10][..]));
        let (start, end) = (8, 7);
        says(cursor.at(start..end), ErrorKind::InvalidRange, &["not inside"]);
        says(cursor.at(599_990..600_001), ErrorKind::InvalidRange, &["not inside"]);
    }
    vec.slice_mut(100..200_000).unwrap().fill(1);
    assert_eq!(vec.slice(..262_144).unwrap().iter().sum::<u64>(), 199_900 + 9 * 62_244);
    says(vec.slice(262_143..262_145), ErrorKind::InvalidRange, &["one piece", "runs()"]);
    says(vec.slice(5..5), ErrorKind::InvalidRange, &["empty"]);
    says(vec.slice(600_000..), ErrorKind::InvalidRange, &["empty"]);
    says(vec.runs(..600_001), ErrorKind::InvalidRange, &["not inside"]);
    says(vec.set(600_000, 1), ErrorKind::InvalidRange, &["no element"]);
    says(vec.copy_to(599_999, &mut [0; 2]), ErrorKind::InvalidRange, &["not inside"]);
    says(vec.reserve(usize::MAX), ErrorKind::InvalidRange, &["shorter"]);
    says(SpaceVec::<u64>::new(&space).reserve(1 << 45), ErrorKind::InvalidRange, &[]);
    let mut large_ones = SpaceVec::new(&space);
    large_ones.resize(100, large(3)).unwrap();
    let piece = large_ones.piece(30);
    assert!(piece.contains(&30) && large_ones.slice(piece).unwrap().iter().all(|one| *one == large(3)));
}

#[test]
fn what_is_truncated_gives_its_memory_back() {
    let (_manager, space) = space();
    let mut vec = SpaceVec::<OddRow>::new(&space);
    vec.extend((0..300_000).map(|key| OddRow { key, ..OddRow::default() })).unwrap();
    let resident = || space.stats().unwrap().resident_bytes;
    let before = resident();
    vec.truncate(200_001).unwrap();
    assert!(resident() < before);
    assert_eq!((vec.len(), vec.get(200_000).unwrap().key), (200_001, 200_000));
    vec.resize(250_000, OddRow::default()).unwrap();
    assert_eq!((vec.get(200_000).unwrap().key, vec.get(200_001).unwrap().key), (200_000, 0));
    vec.truncate(1).unwrap();
    assert_eq!((resident(), vec.get(0).unwrap().key), (PAGE, 0));
    vec.pop().unwrap();
    vec.clear().unwrap();
    assert_eq!((resident(), vec.pop().unwrap(), vec.is_empty()), (0, None, true));
}

#[test]
fn many_threads_read_while_pages_come_and_go() {
    let (_manager, space) = space();
    let mut vec = SpaceVec::<u64>::new(&space);
    vec.extend(0..2 * BUDGET / 8).unwrap();
    thread::scope(|scope| {
        for thread in 0..4 {
            let vec = &vec;
            scope.spawn(move || {
                let mut random = Random::new(thread);
                for _ in 0..20_000 {
                    let index = random.below(vec.len() as u64);
                    assert_eq!(vec.get(index as usize).unwrap(), index);
                }
                let mut next = 0;
                for run in vec.runs(..).unwrap() {
                    for value in run.unwrap().iter() {
                        assert_eq!(*value, next);
                        next += 1;
                    }
                }
            });
        }
    });
}

#[derive(Clone, Debug)]
enum Step {
    Push(u64),
    Pop,
    Set(usize, u64),
    Extend(Vec<u64>),
    Truncate(usize),
    Resize(usize),
    CopyFrom(usize, Vec<u64>),
    Sort,
}

fn step() -> impl Strategy<Value = Step> {
    let values = || prop::collection::vec(any::<u64>(), 0..3000);
    prop_oneof![
        any::<u64>().prop_map(Step::Push),
        Just(Step::Pop),
        (any::<usize>(), any::<u64>()).prop_map(|(index, value)| Step::Set(index, value)),
        values().prop_map(Step::Extend),
        any::<usize>().prop_map(Step::Truncate),
        (0..5000_usize).prop_map(Step::Resize),
        (any::<usize>(), values()).prop_map(|(index, values)| Step::CopyFrom(index, values)),
        Just(Step::Sort),
    ]
}

/// Makes the row for a number.
fn row(number: u64) -> OddRow {
    OddRow { key: number, rest: [!number, 7] }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_vector_does_what_the_standard_one_does(steps in prop::collection::vec(step(), 0..40)) {
        let (_manager, space) = space();
        let (mut vec, mut model) = (SpaceVec::new(&space), Vec::new());
        for step in steps {
            match step {
                Step::Push(value) => {
                    vec.push(row(value)).unwrap();
                    model.push(row(value));
                }
                Step::Pop => prop_assert_eq!(vec.pop().unwrap(), model.pop()),
                Step::Set(index, value) if !model.is_empty() => {
                    let index = index % model.len();
                    vec.set(index, row(value)).unwrap();
                    model[index] = row(value);
                }
                Step::Set(..) => prop_assert!(vec.set(0, row(0)).is_err()),
                Step::Extend(values) => {
                    vec.extend(values.iter().map(|value| row(*value))).unwrap();
                    model.extend(values.into_iter().map(row));
                }
                Step::Truncate(len) => {
                    let len = len % (2 * model.len() + 1);
                    vec.truncate(len).unwrap();
                    model.truncate(len);
                }
                Step::Resize(len) => {
                    vec.resize(len, row(5)).unwrap();
                    model.resize(len, row(5));
                }
                Step::CopyFrom(index, values) => {
                    let index = index % (model.len() + 1);
                    let values: Vec<OddRow> = values.into_iter().take(model.len() - index).map(row).collect();
                    vec.copy_from(index, &values).unwrap();
                    model[index..index + values.len()].copy_from_slice(&values);
                }
                Step::Sort => {
                    vec.sort_unstable().unwrap();
                    model.sort_unstable();
                }
            }
            prop_assert_eq!(vec.len(), model.len());
        }
        let mut all = vec![OddRow::default(); model.len()];
        vec.copy_to(0, &mut all).unwrap();
        prop_assert!(all == model);
        prop_assert!(vec.iter().map(Result::unwrap).eq(model.into_iter()));
    }
}
