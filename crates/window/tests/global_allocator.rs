//! A program whose global allocator puts large objects in windows.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, realloc};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::mpsc;
use std::thread;

use octavo::{Manager, Protection, RegionOptions};
use octavo_platform::run_in_forked_child;
use octavo_window::{LEAST_BYTES, WindowAlloc, Windows};
use proptest::prelude::*;

#[global_allocator]
static ALLOCATOR: WindowAlloc = WindowAlloc::new();

const MIB: usize = 1 << 20;
const BUDGET: usize = 32 * MIB;

fn windows() -> (Manager, Windows) {
    let manager = Manager::builder().budget_bytes(BUDGET as u64).build().unwrap();
    let windows = Windows::new(&manager).unwrap();
    (manager, windows)
}

fn mapped(windows: &Windows) -> usize {
    windows.stats().unwrap().mapped_bytes as usize
}

fn number(index: usize) -> u64 {
    (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 5
}

#[test]
fn a_vector_larger_than_the_budget_keeps_every_element() {
    let (manager, windows) = windows();
    let wanted = 4 * BUDGET / 8;
    let mut numbers: Vec<u64> = windows.large_objects(|| (0..wanted).map(number).collect());
    for round in 0..2 {
        for (index, element) in numbers.iter().enumerate() {
            assert_eq!(*element, number(index), "round {round}, element {index}");
        }
    }
    let stats = windows.stats().unwrap();
    assert_eq!(stats.mapped_bytes, 4 * BUDGET as u64, "{stats:?}");
    assert!(stats.swapped_in_bytes > 3 * BUDGET as u64, "{stats:?}");
    assert!(stats.resident_bytes <= BUDGET as u64, "{stats:?}");
    numbers.sort_unstable();
    assert!(numbers.is_sorted());
    drop(numbers);
    assert_eq!(mapped(&windows), 0);
    manager.validate();
}

#[test]
fn a_map_of_the_standard_library_grows_beyond_the_budget() {
    let (manager, windows) = windows();
    let value = |key: usize| [number(key); 31];
    let mut map = HashMap::new();
    let count = 115_000;
    windows.large_objects(|| {
        for key in 0..count {
            map.insert(key, value(key));
        }
    });
    assert!(mapped(&windows) >= 2 * BUDGET, "{:?}", windows.stats());
    assert!((0..count).all(|key| map[&key] == value(key)));
    assert!(!map.contains_key(&count));
    map.retain(|key, _| key % 5000 == 0);
    map.shrink_to_fit();
    assert_eq!(mapped(&windows), 0, "what is small has no window");
    assert!((0..count).step_by(5000).all(|key| map[&key] == value(key)));
    manager.validate();
}

#[test]
fn a_vector_grows_in_its_windows_in_the_scope_and_after_it() {
    let (manager, windows) = windows();
    let mut numbers = Vec::new();
    windows.large_objects(|| (0..MIB).for_each(|index| numbers.push(number(index))));
    let begun = mapped(&windows);
    assert!(begun >= 8 * MIB);
    for index in MIB..3 * BUDGET / 8 {
        numbers.push(number(index));
    }
    assert!(mapped(&windows) >= 3 * BUDGET, "it stays where it is at home");
    assert!(numbers.iter().enumerate().all(|(index, element)| *element == number(index)));
    numbers.truncate(1000);
    numbers.shrink_to_fit();
    assert_eq!(mapped(&windows), 0, "what is small has no window");
    assert!(numbers.iter().enumerate().all(|(index, element)| *element == number(index)));
    manager.validate();
}

#[test]
fn a_vector_from_below_that_grows_in_a_scope_moves_to_a_window() {
    let (_manager, windows) = windows();
    let mut numbers: Vec<u64> = (0..MIB).map(number).collect();
    assert_eq!(mapped(&windows), 0);
    windows.large_objects(|| numbers.reserve_exact(MIB));
    assert_eq!(mapped(&windows), 16 * MIB);
    assert!(numbers.iter().enumerate().all(|(index, element)| *element == number(index)));
}

#[test]
fn a_vector_that_shrinks_stays_in_place_and_gives_its_pages_back() {
    let (manager, windows) = windows();
    let mut numbers: Vec<u64> = windows.large_objects(|| (0..BUDGET / 16).map(number).collect());
    let (place, kept) = (numbers.as_ptr(), MIB / 4);
    numbers.truncate(kept);
    numbers.shrink_to_fit();
    assert_eq!(numbers.as_ptr(), place);
    let stats = windows.stats().unwrap();
    assert!(stats.resident_bytes <= 2 * MIB as u64, "{stats:?}");
    numbers.reserve_exact(BUDGET / 16 - kept);
    assert_eq!(numbers.as_ptr(), place, "the window is still as long");
    numbers.extend((kept..BUDGET / 16).map(number));
    assert!(numbers.iter().enumerate().all(|(index, element)| *element == number(index)));
    drop(numbers);
    assert_eq!(mapped(&windows), 0);
    manager.validate();
}

#[test]
fn only_large_objects_of_the_scope_lie_in_windows() {
    let (_manager, windows) = windows();
    let outside = vec![1_u8; 4 * MIB];
    windows.large_objects(|| {
        let small = vec![1_u8; LEAST_BYTES - 1];
        let aligned = Layout::from_size_align(4 * MIB, 4 * MIB).unwrap();
        // SAFETY: the layout is not empty, and the block is freed with it.
        unsafe { dealloc(alloc(aligned), aligned) };
        // Another thread is not in the scope.
        let foreign = thread::spawn(|| vec![1_u8; 4 * MIB]).join().unwrap();
        assert_eq!(mapped(&windows), 0);
        let large = vec![0_u8; LEAST_BYTES];
        assert_eq!(mapped(&windows), LEAST_BYTES);
        assert!(large.iter().all(|byte| *byte == 0));
        drop((small, foreign, large));
    });
    let after = vec![1_u8; 4 * MIB];
    assert_eq!(mapped(&windows), 0);
    drop((outside, after));
}

#[test]
fn the_innermost_scope_counts_and_a_panic_ends_it() {
    let (_manager, outer) = windows();
    let (_other, inner) = windows();
    outer.large_objects(|| {
        let panics = || {
            let _block = vec![1_u8; 2 * MIB];
            assert_eq!((mapped(&outer), mapped(&inner)), (0, 2 * MIB));
            std::panic::resume_unwind(Box::new("as expected"));
        };
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| inner.large_objects(panics)));
        assert!(caught.is_err());
        let _block = vec![1_u8; 2 * MIB];
        assert_eq!((mapped(&outer), mapped(&inner)), (2 * MIB, 0));
    });
}

#[test]
fn blocks_keep_their_windows_and_go_from_any_thread() {
    let (manager, windows) = windows();
    let blocks: Vec<Vec<u8>> = windows.large_objects(|| (1..9).map(|n| vec![n; 3 * MIB]).collect());
    drop(windows);
    let manager = manager.shutdown().expect_err("the windows are in use").into_manager();
    thread::scope(|scope| {
        for (block, n) in blocks.into_iter().zip(1..) {
            scope.spawn(move || assert!(block.iter().all(|byte| *byte == n)));
        }
    });
    manager.shutdown().expect("the last block has ended the windows");
}

#[test]
fn blocks_go_when_their_thread_has_gone() {
    thread_local! {
        static KEPT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    let (_manager, windows) = windows();
    let thread = {
        let windows = windows.clone();
        thread::spawn(move || {
            KEPT.set(windows.large_objects(|| vec![7; 5 * MIB]));
            mapped(&windows)
        })
    };
    assert_eq!(thread.join().unwrap(), 5 * MIB);
    assert_eq!(mapped(&windows), 0);
}

#[test]
fn what_cannot_be_had_is_an_error() {
    let (manager, windows) = windows();
    let mut numbers: Vec<u64> = windows.large_objects(|| (0..MIB).map(number).collect());
    let refused = windows.large_objects(|| numbers.try_reserve_exact(1 << 57));
    assert!(refused.is_err(), "no process has so many addresses");
    let refused = windows.large_objects(|| Vec::<u8>::new().try_reserve_exact(1 << 60));
    assert!(refused.is_err());
    assert!(numbers.iter().enumerate().all(|(index, element)| *element == number(index)));
    assert_eq!(mapped(&windows), 8 * MIB);
    manager.validate();
}

#[test]
fn threads_make_and_free_large_objects_at_once() {
    let (manager, windows) = windows();
    let (sender, receiver) = mpsc::channel::<(usize, Vec<u64>)>();
    thread::scope(|scope| {
        for which in 0..6_usize {
            let (sender, windows) = (sender.clone(), &windows);
            scope.spawn(move || {
                windows.large_objects(|| {
                    for round in 0..12 {
                        let seed = which * 100 + round;
                        let mut numbers = vec![number(seed); (1 + seed % 3) * MIB / 8];
                        numbers.resize((1 + seed % 7) * MIB / 8, number(seed));
                        assert!(numbers.iter().all(|element| *element == number(seed)));
                        if round % 2 == 0 {
                            sender.send((seed, numbers)).unwrap();
                        }
                    }
                });
            });
        }
        drop(sender);
        for (seed, numbers) in receiver {
            assert!(numbers.iter().all(|element| *element == number(seed)));
        }
    });
    assert_eq!(mapped(&windows), 0);
    manager.validate();
}

#[test]
fn the_engine_has_no_memory_in_windows() {
    let (manager, windows) = windows();
    windows.large_objects(|| {
        let space = manager.space().unwrap();
        // Enough regions that their list is a large object. Neighbours differ, so that none are merged.
        for at in 1..100_000_u64 {
            let protection = if at % 2 == 0 { Protection::READ } else { Protection::READ_WRITE };
            space.map_at(at << 12, 1 << 12, RegionOptions::default().protection(protection)).unwrap();
        }
        assert_eq!(mapped(&windows), 0);
        let other = Manager::builder().budget_bytes(1 << 30).build().unwrap();
        let others = Windows::new(&other).unwrap();
        let block = others.large_objects(|| vec![3_u8; 2 * MIB]);
        assert_eq!((mapped(&windows), mapped(&others)), (0, 2 * MIB));
        manager.validate();
        other.validate();
        assert!(block.iter().all(|byte| *byte == 3));
    });
    assert_eq!(mapped(&windows), 0);
}

#[test]
fn a_forked_child_has_memory_from_below_and_may_free_what_it_inherited() {
    let (manager, windows) = windows();
    let (inherited, kept) = windows.large_objects(|| (vec![1_u8; 4 * MIB], vec![2_u8; 4 * MIB]));
    let child = || {
        drop(inherited);
        let mut own = windows.large_objects(|| vec![3_u8; 4 * MIB]);
        windows.large_objects(|| own.resize(8 * MIB, 3));
        let is_right = own.iter().all(|byte| *byte == 3);
        drop(own);
        u8::from(!is_right)
    };
    // In the parent, the closure is dropped unused, and the block with it.
    assert_eq!(run_in_forked_child(child).unwrap(), 0);
    assert!(kept.iter().all(|byte| *byte == 2));
    assert_eq!(mapped(&windows), 4 * MIB);
    manager.validate();
}

/// A step of the property test.
#[derive(Clone, Debug)]
enum Step {
    Make { bytes: usize, is_zeroed: bool, in_scope: bool },
    Resize { which: usize, bytes: usize, in_scope: bool },
    Free { which: usize, elsewhere: bool },
}

fn bytes() -> impl Strategy<Value = usize> {
    prop_oneof![
        1 => 1_usize..10_000,
        1 => LEAST_BYTES - 2..LEAST_BYTES + 3,
        4 => LEAST_BYTES..6 * MIB,
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (bytes(), any::<bool>(), any::<bool>())
            .prop_map(|(bytes, is_zeroed, in_scope)| Step::Make { bytes, is_zeroed, in_scope }),
        3 => (any::<usize>(), bytes(), any::<bool>())
            .prop_map(|(which, bytes, in_scope)| Step::Resize { which, bytes, in_scope }),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(which, elsewhere)| Step::Free { which, elsewhere }),
    ]
}

/// A block and its content: every 509th byte has a value of the block's own.
struct HeldBlock {
    block: *mut u8,
    bytes: usize,
    fill: u8,
}

// SAFETY: a block belongs to no thread.
unsafe impl Send for HeldBlock {}

impl HeldBlock {
    fn layout(&self) -> Layout {
        Layout::from_size_align(self.bytes, 8).unwrap()
    }

    fn fill(&mut self, fill: u8) {
        self.fill = fill;
        // SAFETY: the places lie in the block.
        (0..self.bytes).step_by(509).for_each(|at| unsafe { self.block.add(at).write(fill) });
    }

    fn holds(&self, bytes: usize, fill: u8) -> bool {
        // SAFETY: the places lie in the block, and were written or are zero.
        (0..bytes).step_by(509).all(|at| unsafe { self.block.add(at).read() } == fill)
    }

    fn free(self) {
        assert!(self.holds(self.bytes, self.fill));
        // SAFETY: the block was made with this layout, and is freed once.
        unsafe { dealloc(self.block, self.layout()) };
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn blocks_keep_their_bytes_wherever_they_lie(steps in proptest::collection::vec(step(), 1..40)) {
        let (manager, windows) = windows();
        let act = |in_scope: bool, act: &mut dyn FnMut() -> *mut u8| {
            if in_scope { windows.large_objects(act) } else { act() }
        };
        let mut held: Vec<HeldBlock> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            let fill = 1 + (number % 250) as u8;
            match step {
                Step::Make { bytes, is_zeroed, in_scope } => {
                    let layout = Layout::from_size_align(bytes, 8).unwrap();
                    // SAFETY: the layout is not empty.
                    let block = act(in_scope, &mut || unsafe {
                        if is_zeroed { alloc_zeroed(layout) } else { alloc(layout) }
                    });
                    assert!(!block.is_null());
                    let mut made = HeldBlock { block, bytes, fill };
                    assert!(!is_zeroed || made.holds(bytes, 0));
                    made.fill(fill);
                    held.push(made);
                }
                Step::Resize { which, bytes, in_scope } if !held.is_empty() => {
                    let which = which % held.len();
                    let block = &mut held[which];
                    let (old, layout) = (block.block, block.layout());
                    // SAFETY: the block was made with this layout, and the old pointer is not used again.
                    block.block = act(in_scope, &mut || unsafe { realloc(old, layout, bytes) });
                    assert!(!block.block.is_null());
                    assert!(block.holds(bytes.min(layout.size()), block.fill));
                    block.bytes = bytes;
                    block.fill(fill);
                }
                Step::Free { which, elsewhere } if !held.is_empty() => {
                    let block = held.swap_remove(which % held.len());
                    if elsewhere {
                        thread::spawn(move || block.free()).join().unwrap();
                    } else {
                        block.free();
                    }
                }
                Step::Resize { .. } | Step::Free { .. } => {}
            }
        }
        held.into_iter().for_each(HeldBlock::free);
        assert_eq!(mapped(&windows), 0);
        manager.validate();
    }
}
