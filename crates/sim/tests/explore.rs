//! Chosen schedules: each kind finds bugs that only some interleavings show, and finds nothing in correct
//! code.

use std::sync::Arc;
use std::time::Duration;

use octavo_sim::atomic::{AtomicU64, Ordering};
use octavo_sim::lock::Mutex;
use octavo_sim::{
    Exploration, Explored, Schedule, Stopped, ThreadChoice, explore, explore_all, interleaving, now,
    spin_hint, thread,
};

/// With this allocator, the same words share a line in every run.
#[global_allocator]
static MEMORY: octavo_sim::SimAllocator = octavo_sim::SimAllocator;

const SCHEDULES: [Schedule; 3] = [
    Schedule::Random,
    Schedule::Delays { places: 1, rarely: 2 },
    Schedule::Priorities { changes: 2, steps: 30 },
];

fn exploration(schedule: Schedule, seed: u64) -> Exploration {
    Exploration { cpus: 2, schedule, seed, most_steps: 10_000, is_traced: false }
}

fn all_in_turn() -> Exploration {
    exploration(Schedule::Given { path: Vec::new(), preemptions: 0 }, 1)
}

#[test]
fn threads_that_pause_last_end_and_sleep_as_others_do() {
    for seed in 0..50 {
        let exploration = Exploration { seed, schedule: Schedule::Random, ..all_in_turn() };
        let pausing = explore(&exploration, || both(|_| thread::yield_now()));
        assert!(pausing.result.is_ok(), "{:?}", pausing.result);
        let slept = explore(&exploration, || {
            let before = now();
            thread::yield_now();
            thread::sleep(Duration::from_millis(1));
            now() - before
        });
        assert!(slept.result.is_ok_and(|time| time >= Duration::from_millis(1)), "seed {seed}");
    }
}

#[test]
fn a_thread_that_unwinds_and_waits_for_ever_ends_its_exploration() {
    struct TakesOnDrop(Arc<Mutex<()>>);
    impl Drop for TakesOnDrop {
        fn drop(&mut self) {
            drop(self.0.lock());
        }
    }
    let wait_for_ever = || {
        explore(&all_in_turn(), || {
            let lock = Arc::new(Mutex::new(()));
            let _held = lock.lock();
            let takes = TakesOnDrop(Arc::clone(&lock));
            let other = thread::spawn(move || {
                let _takes = takes;
                panic!("told");
            });
            other.join().unwrap();
        })
    };
    let explored = std::thread::spawn(wait_for_ever).join().unwrap();
    let said = explored.result.unwrap_err().to_string();
    assert!(said.contains("it has panicked, and waits while it unwinds"), "{said}");
    // A second one on the same thread is refused, and says why.
    let twice = move || {
        let first = wait_for_ever();
        assert!(first.result.is_err());
        wait_for_ever()
    };
    let refused = std::thread::spawn(twice).join().unwrap_err();
    let said = refused.downcast_ref::<&str>().unwrap();
    assert!(said.contains("a thread of its own"), "{said}");
}

fn both(work: impl Fn(u64) + Send + Sync + 'static) {
    let work = Arc::new(work);
    let start = |number| {
        let work = Arc::clone(&work);
        thread::Builder::new().name(format!("thread {number}")).spawn(move || work(number)).unwrap()
    };
    let threads: Vec<_> = (0..2).map(start).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Counts by a load and a store, or by one operation.
fn count(is_atomic: bool) {
    let word = Arc::new(AtomicU64::new(0));
    let shared = Arc::clone(&word);
    both(move |_| {
        if is_atomic {
            shared.fetch_add(1, Ordering::Relaxed);
        } else {
            shared.store(shared.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    });
    assert_eq!(word.load(Ordering::Relaxed), 2, "a count was lost");
}

fn take_both_locks(in_order: bool) {
    let locks = Arc::new([Mutex::new(()), Mutex::new(())]);
    both(move |number| {
        let first = if in_order { 0 } else { number as usize };
        let _one = locks[first].lock();
        let _other = locks[1 - first].lock();
    });
}

fn find<T: 'static>(
    schedule: &Schedule,
    seeds: u64,
    work: impl Fn() -> T + Copy + 'static,
) -> Option<(u64, Explored<T>)> {
    (1..=seeds)
        .map(|seed| (seed, explore(&exploration(schedule.clone(), seed), work)))
        .find(|(_, one)| one.result.is_err())
}

#[test]
fn a_lost_count_is_found_by_each_kind_of_schedule_and_replayed() {
    for schedule in SCHEDULES {
        let (seed, found) = find(&schedule, 100, || count(false)).expect("it is lost in some");
        let Err(Stopped::Panicked { thread, message }) = &found.result else { panic!("{found:?}") };
        assert!(thread == "main" && message.contains("a count was lost"), "{found:?}");
        let traced = Exploration { is_traced: true, ..exploration(schedule.clone(), seed) };
        let (one, other) = (explore(&traced, || count(false)), explore(&traced, || count(false)));
        assert_eq!((found.steps, found.switches), (one.steps, one.switches));
        let text = |explored: &Explored<()>| interleaving(&explored.trace, |place| place.line().to_string());
        assert_eq!(text(&one), text(&other));
        assert!(text(&one).contains("thread 1: load in"), "{}", text(&one));
    }
    let (tried, _, found) = explore_all(&all_in_turn(), 1, 1000, || || count(false));
    assert!(found.is_some() && tried < 30, "{tried}");
}

#[test]
fn what_is_right_is_right_in_every_schedule_with_two_preemptions() {
    let (tried, are_all, found) = explore_all(&all_in_turn(), 2, 100_000, || || count(true));
    assert!(are_all && found.is_none() && tried >= 10, "{tried}");
    for schedule in SCHEDULES {
        assert!(find(&schedule, 100, || count(true)).is_none());
    }
}

#[test]
fn locks_that_are_taken_in_two_orders_are_a_deadlock_in_some_schedule() {
    for schedule in SCHEDULES {
        let (_, found) = find(&schedule, 3000, || take_both_locks(false)).expect("a deadlock");
        let Err(Stopped::Deadlock(deadlock)) = found.result else { panic!("{found:?}") };
        assert!(deadlock.waiting.contains(&"thread 0".into()), "{deadlock}");
        assert!(find(&schedule, 200, || take_both_locks(true)).is_none());
    }
}

#[test]
fn whoever_spins_waits_for_a_change_and_for_ever_is_too_long() {
    let wait = |is_set: bool| {
        let word = Arc::new(AtomicU64::new(0));
        let shared = Arc::clone(&word);
        both(move |number| {
            if number == 1 {
                shared.store(u64::from(is_set), Ordering::Release);
            }
            while number == 0 && shared.load(Ordering::Acquire) == 0 {
                spin_hint();
            }
        });
    };
    for schedule in SCHEDULES {
        assert!(find(&schedule, 50, move || wait(true)).is_none());
        let (seed, found) = find(&schedule, 1, move || wait(false)).unwrap();
        assert!(seed == 1 && matches!(found.result, Err(Stopped::TooLong(10_000))), "{found:?}");
    }
}

#[test]
fn sleepers_wake_in_the_order_of_their_times_unless_a_schedule_is_random() {
    for schedule in
        [Schedule::Given { path: Vec::<ThreadChoice>::new(), preemptions: 0 }, SCHEDULES[2].clone()]
    {
        let explored = explore(&exploration(schedule, 1), || {
            let log = Arc::new(std::sync::Mutex::new(Vec::new()));
            let shared = Arc::clone(&log);
            both(move |number| {
                thread::sleep(Duration::from_millis(20 - 10 * number));
                shared.lock().unwrap().push((number, now().as_millis()));
            });
            Arc::into_inner(log).expect("the threads have ended").into_inner().unwrap()
        });
        assert_eq!(explored.result.unwrap(), [(1, 10), (0, 20)]);
    }
}
