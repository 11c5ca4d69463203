//! Words of a space: every size, atomic changes, and their visibility between threads, while pages go out and
//! come back.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use bytemuck::{Pod, Zeroable};
use octavo::{
    Access, Advice, Compression, ErrorKind, HugePolicy, Integer, Manager, RegionOptions, Space, Word,
};

use common::{MIB, PAGE, assert_nothing_is_left};

const BUDGET: u64 = 16 * MIB;

fn space(manager: &Manager, len: u64) -> (Space, u64) {
    let space = manager.space().unwrap();
    let at = space.map(len, RegionOptions::default()).unwrap();
    (space, at)
}

#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct WordPair {
    key: u64,
    value: f64,
}

#[test]
fn plain_data_of_up_to_sixteen_bytes_is_a_word() {
    fn check<W: Word + PartialEq + std::fmt::Debug>(space: &Space, at: u64, values: [W; 2]) {
        let [first, second] = values;
        assert_eq!(space.load::<W>(at + PAGE).unwrap(), W::zeroed(), "a page of zeros");
        space.store(at, first).unwrap();
        assert_eq!(space.load::<W>(at).unwrap(), first);
        assert_eq!(space.swap(at, second).unwrap(), first);
        assert_eq!(space.compare_exchange(at, first, first).unwrap(), Err(second));
        assert_eq!(space.compare_exchange(at, second, first).unwrap(), Ok(second));
        assert_eq!(space.load::<W>(at).unwrap(), first);
        let unaligned = space.compare_exchange(at + 1, first, second);
        assert_eq!(unaligned.is_ok(), size_of::<W>() == 1);
        assert!(unaligned.is_ok() || unaligned.unwrap_err().kind() == ErrorKind::InvalidRange);
    }
    let manager = Manager::builder().budget_bytes(BUDGET).build().unwrap();
    let (space, at) = space(&manager, 2 * PAGE);
    check(&space, at, [1_u8, 2]);
    check(&space, at, [-1_i8, 2]);
    check(&space, at, [[1_u8, 2], [3, 4]]);
    check(&space, at, [1.5_f32, -2.5]);
    check(&space, at, [1.5_f64, f64::INFINITY]);
    check(&space, at, [1_usize, 2]);
    check(&space, at, [u128::MAX, 1]);
    check(&space, at, [[1_u8, 2, 3], [4, 5, 6]]);
    check(&space, at, [[1_u16, 2, 3], [4, 5, 6]]);
    check(&space, at, [[1_u32, 2, 3], [u32::MAX, 5, 6]]);
    check(&space, at, [[1_u8; 15], [2; 15]]);
    check(&space, at, [WordPair { key: 1, value: 1.5 }, WordPair { key: u64::MAX, value: -1.5 }]);
    drop(space);
    assert_nothing_is_left(&manager);
}

/// A word of twelve bytes lies in a cell of sixteen.
#[test]
fn what_lies_behind_a_word_stays_as_it_is() {
    const ROUNDS: u32 = 50_000;
    let manager = Manager::builder().budget_bytes(BUDGET).build().unwrap();
    let (space, at) = space(&manager, PAGE);
    let pin = space.pin_exact(at + 32, 12, Access::Write).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| (1..=ROUNDS).for_each(|round| space.store(at + 12, round).unwrap()));
        for round in 1..=ROUNDS {
            space.store(at, [round; 3]).unwrap();
            assert_eq!(space.compare_exchange(at, [round; 3], [round + 1; 3]).unwrap(), Ok([round; 3]));
            assert_eq!(space.swap(at, [round; 3]).unwrap(), [round + 1; 3]);
            let [one, other, third]: [u32; 3] = space.load(at).unwrap();
            assert!(one == round && other == round && third == round, "not torn");
        }
    });
    assert_eq!(space.load::<[u32; 4]>(at).unwrap(), [ROUNDS; 4]);
    // The last word of a pin may end at the end of the pin.
    pin.store(0, [7_u32; 3]).unwrap();
    assert_eq!(pin.load::<[u32; 3]>(0).unwrap(), [7; 3]);
    let error = space.load::<[u32; 3]>(at + 4).unwrap_err();
    assert!(
        error.to_string().contains("a word of 12 bytes")
            && error.to_string().contains("align the address to 16")
    );
}

#[test]
fn integers_change_as_their_types_say() {
    fn check<I: Integer + PartialEq + std::fmt::Debug>(space: &Space, at: u64, [least, one, most]: [I; 3]) {
        space.store(at, most).unwrap();
        assert_eq!(space.fetch_add(at, one).unwrap(), most);
        assert_eq!(space.fetch_sub(at, one).unwrap(), least, "it wraps");
        assert_eq!(space.fetch_min(at, least).unwrap(), most);
        assert_eq!(space.fetch_max(at, one).unwrap(), least);
        assert_eq!(space.fetch_xor(at, most).unwrap(), one);
        space.fetch_or(at, one).unwrap();
        assert_eq!(space.fetch_and(at, one).unwrap(), most);
        assert_eq!(space.load::<I>(at).unwrap(), one);
    }
    let manager = Manager::builder().budget_bytes(BUDGET).build().unwrap();
    let (space, at) = space(&manager, PAGE);
    check(&space, at, [u8::MIN, 1, u8::MAX]);
    check(&space, at, [i16::MIN, 1, i16::MAX]);
    check(&space, at, [u32::MIN, 1, u32::MAX]);
    check(&space, at, [i64::MIN, 1, i64::MAX]);
    check(&space, at, [i128::MIN, 1, i128::MAX]);
    space.store(at, 7_u32).unwrap();
    assert_eq!(space.fetch_update(at, |value: u32| value.checked_mul(2)).unwrap(), Ok(7));
    assert_eq!(space.fetch_update(at, |value: u32| value.checked_sub(15)).unwrap(), Err(14));
    assert_eq!(space.fetch_add(at + 2, 1_u32).unwrap_err().kind(), ErrorKind::InvalidRange);
    assert_eq!(space.swap(at + PAGE, 1_u32).unwrap_err().kind(), ErrorKind::NotMapped);
}

/// No increment is lost if pages of counters go out to a device and come back in between.
#[test]
fn counters_lose_nothing_while_their_pages_come_and_go() {
    const THREADS: u64 = 4;
    for (huge, compression) in [(HugePolicy::Never, Compression::Off), (HugePolicy::Always, Compression::Lz4)]
    {
        let manager =
            Manager::builder().budget_bytes(BUDGET).huge(huge).compression(compression).build().unwrap();
        let len = 2 * BUDGET;
        let (space, at) = space(&manager, len);
        thread::scope(|scope| {
            for lane in 0..THREADS {
                let space = &space;
                // Each thread begins at a different page, so that they meet from time to time.
                let pages =
                    (0..len / PAGE).map(move |page| (page + lane * len / PAGE / THREADS) % (len / PAGE));
                scope.spawn(move || {
                    for page in pages {
                        space.fetch_add(at + page * PAGE, 1_u64).unwrap();
                        space.fetch_sub(at + page * PAGE + 16, 1_u128).unwrap();
                        space
                            .fetch_update(at + page * PAGE + 8, |seen: u32| Some(seen + 3))
                            .unwrap()
                            .unwrap();
                    }
                });
            }
        });
        for page in (at..at + len).step_by(PAGE as usize) {
            assert_eq!(space.load::<u64>(page).unwrap(), THREADS);
            assert_eq!(space.load::<u32>(page + 8).unwrap(), 3 * THREADS as u32);
            assert_eq!(space.load::<i128>(page + 16).unwrap(), -i128::from(THREADS));
        }
        assert!(space.stats().unwrap().swapped_in_bytes > 0);
        manager.validate();
    }
}

/// A word of 16 bytes is never torn. A thread that reads a flag also sees the words that were stored before
/// the flag. Meanwhile a third thread sends the pages out.
#[test]
fn threads_see_each_others_words_whole_and_in_order() {
    const ROUNDS: u64 = 20_000;
    let manager = Manager::builder().budget_bytes(BUDGET).compression(Compression::Off).build().unwrap();
    let (space, at) = space(&manager, 2 * PAGE);
    let (message, flag) = (at, at + PAGE);
    let done = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                space.store(message, [round, !round]).unwrap();
                space.store(flag, round).unwrap();
                if round % 1000 == 0 {
                    space.advise(at, 2 * PAGE, Advice::PageOut).unwrap();
                }
            }
            done.store(true, Ordering::Release);
        });
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                manager.reclaim(1).unwrap();
            }
        });
        let mut told = 0;
        while told < ROUNDS {
            told = space.load::<u64>(flag).unwrap();
            let [round, inverted] = space.load::<[u64; 2]>(message).unwrap();
            assert!(told == 0 || round == !inverted, "torn: {round:#x}, {inverted:#x}");
            assert!(round >= told, "the flag said {told}, and the message {round}");
        }
    });
    assert!(space.stats().unwrap().swapped_out_bytes > 0);
}

/// The rounds that two threads have reached. They meet by spinning, so that both continue at once.
struct Meeting([AtomicU64; 2]);

/// Ends the wait of the other thread, even after a panic.
struct Leaves<'m>(&'m AtomicU64);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.store(u64::MAX, Ordering::Release);
    }
}

impl Meeting {
    fn wait(&self, me: usize, round: u64) {
        self.0[me].store(round, Ordering::Release);
        let mut turns = 0;
        while self.0[1 - me].load(Ordering::Acquire) < round {
            turns += 1;
            if turns % 1000 == 0 {
                thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}

/// If two threads each change a word and then read the other's, at least one sees the other's change.
#[test]
fn changes_are_in_one_order_for_all() {
    const ROUNDS: u64 = 20_000;
    let manager = Manager::builder().budget_bytes(BUDGET).build().unwrap();
    let (space, at) = space(&manager, 2 * PAGE);
    let (space, meeting) = (&space, &Meeting(Default::default()));
    let seen = |me: usize| {
        move || {
            let _leaves = Leaves(&meeting.0[me]);
            let (mine, others) = (at + me as u64 * PAGE, at + (1 - me as u64) * PAGE);
            let look = |round| {
                meeting.wait(me, round);
                space.swap(mine, round).unwrap();
                space.fetch_add(others, 0_u64).unwrap() >= round
            };
            (1..=ROUNDS).map(look).collect::<Vec<bool>>()
        }
    };
    thread::scope(|scope| {
        let (one, other) = (scope.spawn(seen(0)), scope.spawn(seen(1)));
        let looks = one.join().unwrap().into_iter().zip(other.join().unwrap());
        let missed = looks.enumerate().find(|(_, (one, other))| !one && !other);
        assert_eq!(missed, None, "neither saw the other");
    });
}
