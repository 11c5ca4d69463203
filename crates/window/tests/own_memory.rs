//! Arrays in windows of this process.

use std::thread;

use octavo::io::SwapArea;
use octavo::{Access, Compression, ErrorKind, Manager};
use octavo_window::Windows;

const MIB: usize = 1 << 20;
const BUDGET: usize = 32 * MIB;

fn windows() -> (Manager, Windows) {
    let manager = Manager::builder().budget_bytes(BUDGET as u64).build().unwrap();
    let windows = Windows::new(&manager).unwrap();
    (manager, windows)
}

fn number(index: usize) -> u64 {
    (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 5
}

#[test]
fn an_array_larger_than_the_budget_keeps_every_element() {
    let (manager, windows) = windows();
    let mut array = windows.vec::<u64>(4 * BUDGET / 8).unwrap();
    assert!(array.iter().take(1000).all(|element| *element == 0));
    for (index, element) in array.iter_mut().enumerate() {
        *element = number(index);
    }
    for round in 0..2 {
        for (index, element) in array.iter().enumerate() {
            assert_eq!(*element, number(index), "round {round}, element {index}");
        }
    }
    let mut at = 7_usize;
    for _ in 0..5000 {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let index = (at >> 20) % array.len();
        assert_eq!(array[index], number(index));
        array[index] ^= 0;
    }
    let stats = windows.stats().unwrap();
    assert!(stats.swapped_in_bytes > 3 * BUDGET as u64, "{stats:?}");
    assert!(stats.resident_bytes <= BUDGET as u64, "{stats:?}");
    drop(array);
    assert_eq!(windows.stats().unwrap().mapped_bytes, 0);
    manager.validate();
}

#[test]
fn threads_share_an_array() {
    let (_manager, windows) = windows();
    let mut array = windows.boxed::<u64>(2 * BUDGET / 8).unwrap();
    let part = array.len() / 4;
    thread::scope(|scope| {
        for (which, chunk) in array.chunks_mut(part).enumerate() {
            scope.spawn(move || {
                for round in 1..4 {
                    for (index, element) in chunk.iter_mut().enumerate() {
                        assert_eq!(*element, if round == 1 { 0 } else { number(which + index) + round - 1 });
                        *element = number(which + index) + round;
                    }
                }
            });
        }
    });
}

#[test]
fn handles_and_pins_reach_the_same_bytes() {
    let (_manager, windows) = windows();
    let mut array = windows.vec::<u64>(MIB / 8).unwrap();
    array[5] = 55;
    let at = array.as_ptr() as u64;
    // SAFETY: the array is not borrowed while the space stores to it.
    let space = unsafe { windows.space() };
    assert_eq!(space.load::<u64>(at + 40).unwrap(), 55);
    space.store::<u64>(at + 48, 66).unwrap();
    assert_eq!(array[6], 66);
    let pin = space.pin_exact(at, 4096, Access::Read).unwrap();
    drop(pin);
    assert_eq!((array[5], array[6]), (55, 66));
}

/// If a page could not be had, the process would end.
#[test]
fn what_is_out_can_be_read_while_swap_is_full() {
    const WORDS: usize = 4096 / 8;
    let builder = Manager::builder().budget_bytes(BUDGET as u64).compression(Compression::Off);
    let manager = builder.swap_area(SwapArea::ram(BUDGET as u64)).build().unwrap();
    let windows = Windows::new(&manager).unwrap();
    let mut array = windows.vec::<u64>(4 * BUDGET / 8).unwrap();
    let at = array.as_ptr() as u64;
    // SAFETY: the array is not borrowed while the space stores to it.
    let space = unsafe { windows.space() };
    let mut words = 0;
    let error = loop {
        let page: Vec<u8> = (words..words + WORDS).flat_map(|index| number(index).to_ne_bytes()).collect();
        match space.write(at + 8 * words as u64, &page) {
            Ok(()) => words += WORDS,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::SwapFull, "{error}");
    assert!(8 * words > BUDGET + BUDGET / 2, "memory and swap are filled: {words} words");
    for _ in 0..2 {
        assert!(array.iter().take(words).enumerate().all(|(index, element)| *element == number(index)));
    }
    thread::scope(|scope| {
        for seed in 0..4_usize {
            let array = &array;
            scope.spawn(move || {
                let mut at = seed;
                for _ in 0..words / WORDS {
                    at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let index = (at >> 20) % words;
                    assert_eq!(array[index], number(index));
                }
            });
        }
    });
    // A store to an existing page needs no new page.
    (0..words).step_by(WORDS).for_each(|index| array[index] += 1);
    assert!((0..words).step_by(WORDS).all(|index| array[index] == number(index) + 1));
    drop(array);
    manager.validate();
}

#[test]
fn windows_come_and_go() {
    let (manager, windows) = windows();
    for round in 0..40_usize {
        let mut array = windows.vec::<u32>((1 + round % 7) * MIB).unwrap();
        let last = array.len() - 1;
        (array[0], array[last]) = (1, round as u32);
        assert_eq!((array[0], array[last], array[last / 2]), (1, round as u32, 0));
    }
    manager.validate();
    let too_long = windows.vec::<u64>(usize::MAX).unwrap_err();
    assert_eq!(too_long.kind(), octavo::ErrorKind::InvalidRange, "{too_long}");
    let too_long = windows.vec::<u8>(usize::MAX).unwrap_err();
    assert_eq!(too_long.kind(), octavo::ErrorKind::InvalidRange, "{too_long}");
    let too_large = windows.vec::<u8>(1 << 50).unwrap_err();
    assert_eq!(too_large.kind(), octavo::ErrorKind::System, "{too_large}");
    assert!(too_large.to_string().contains("raise the limits of this process"), "{too_large}");
}

#[test]
fn collections_grow_in_windows_beyond_the_budget() {
    let (manager, windows) = windows();
    let mut numbers = allocator_api2::vec::Vec::new_in(windows.clone());
    let wanted = 3 * BUDGET / 8;
    for index in 0..wanted {
        numbers.push(number(index));
    }
    assert!(windows.stats().unwrap().mapped_bytes >= 3 * BUDGET as u64);
    assert!(numbers.iter().enumerate().all(|(index, element)| *element == number(index)));
    numbers.truncate(1000);
    numbers.shrink_to_fit();
    assert_eq!(windows.stats().unwrap().mapped_bytes, 0, "what is small has no window");
    assert!(numbers.iter().enumerate().all(|(index, element)| *element == number(index)));
    let words: allocator_api2::boxed::Box<[String], _> = {
        let mut words = allocator_api2::vec::Vec::with_capacity_in(MIB, windows.clone());
        words.extend((0..MIB).map(|index| if index % 1000 == 0 { index.to_string() } else { String::new() }));
        words.into_boxed_slice()
    };
    assert!((0..MIB).step_by(1000).all(|index| words[index] == index.to_string()));
    drop((words, numbers));
    assert_eq!(windows.stats().unwrap().mapped_bytes, 0);
    manager.validate();
}
