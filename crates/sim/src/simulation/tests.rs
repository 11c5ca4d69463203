use std::sync::Arc;

use super::*;
use crate::atomic::{AtomicU64, Ordering};
use crate::lock::{Condvar, Mutex, RwLock};
use crate::thread;

fn machine() -> MachineModel {
    MachineModel::named("haswell-ep").unwrap()
}

fn on_cpu<T: Send + 'static>(cpu: usize, work: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    thread::Builder::new().cpu(cpu).spawn(work).unwrap()
}

/// Runs one thread on each of the first `cpus` CPUs that adds to a common word, with plain work in between.
/// Returns the nanoseconds for each addition of all threads together.
fn additions(machine: &MachineModel, seed: u64, cpus: usize, times: u32, between: Duration) -> (f64, Report) {
    let (_, report) = run(machine, seed, move || {
        let word = Arc::new(AtomicU64::new(0));
        let add = |cpu| {
            let word = Arc::clone(&word);
            on_cpu(cpu, move || {
                for _ in 0..times {
                    word.fetch_add(1, Ordering::Relaxed);
                    work(between);
                }
            })
        };
        let threads: Vec<_> = (0..cpus).map(add).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(word.load(Ordering::Relaxed), (cpus as u64) * u64::from(times));
    })
    .unwrap();
    (report.elapsed / (cpus as f64 * f64::from(times)), report)
}

#[test]
fn the_same_seed_gives_the_same_report_and_another_one_another() {
    let one = |seed| additions(&machine(), seed, 72, 50, Duration::from_nanos(300)).1;
    assert_eq!(one(7), one(7));
    assert_ne!(one(7), one(8));
}

#[test]
fn words_of_one_thread_cost_what_the_machine_says() {
    let (_, report) = run(&machine(), 1, || {
        let word = Arc::new(AtomicU64::new(0));
        for _ in 0..1000 {
            word.fetch_add(1, Ordering::Relaxed);
        }
    })
    .unwrap();
    let costs = machine().nanoseconds;
    let [place] = &report.places[..] else { panic!("one place: {:?}", report.places) };
    assert_eq!((place.accesses, place.stalls), (1000, 1));
    assert!(
        (place.time - (1000.0 * costs.update + costs.memory)).abs() < 0.15 * costs.memory,
        "{}",
        place.time
    );
}

#[test]
fn words_on_stacks_have_no_line_that_a_build_could_choose() {
    let (_, report) = run(&machine(), 1, || {
        let words = [AtomicU64::new(0), AtomicU64::new(0)];
        (0..1000).for_each(|turn| _ = words[turn % 2].fetch_add(1, Ordering::Relaxed));
    })
    .unwrap();
    let [place] = &report.places[..] else { panic!("one place: {:?}", report.places) };
    assert_eq!((place.accesses, place.stalls), (1000, 0));
    assert!((place.time - 1000.0 * machine().nanoseconds.update).abs() < 1.0, "{}", place.time);
}

#[test]
fn threads_on_one_line_are_slower_together_than_on_lines_of_their_own() {
    let run_with = |stride: usize| {
        let (_, report) = run(&machine(), 1, move || {
            let words: Arc<Vec<AtomicU64>> = Arc::new((0..16 * 16).map(AtomicU64::new).collect());
            let threads: Vec<_> = (0..8)
                .map(|cpu| {
                    let words = Arc::clone(&words);
                    on_cpu(cpu, move || {
                        (0..10_000).for_each(|_| _ = words[cpu * stride].fetch_add(1, Ordering::Relaxed))
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        })
        .unwrap();
        report.elapsed
    };
    assert!(run_with(1) > 3.0 * run_with(16));
}

#[test]
fn a_lock_lets_one_thread_in_at_a_time_and_loses_nobody() {
    let (most, _) = run(&machine(), 3, || {
        let lock = Arc::new(Mutex::new((0_u32, 0_u32)));
        let inside = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..40)
            .map(|cpu| {
                let (lock, inside) = (Arc::clone(&lock), Arc::clone(&inside));
                on_cpu(cpu, move || {
                    for _ in 0..20 {
                        let mut value = lock.lock();
                        let others = inside.fetch_add(1, Ordering::Relaxed) as u32;
                        value.0 += 1;
                        value.1 = value.1.max(others);
                        work(Duration::from_micros(1));
                        inside.fetch_sub(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        *lock.lock()
    })
    .unwrap();
    assert_eq!(most, (800, 0));
}

#[test]
fn readers_share_a_lock_and_a_writer_has_it_alone() {
    let ((together, alone), _) = run(&machine(), 5, || {
        let lock = Arc::new(RwLock::new(0_u64));
        let readers = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..24)
            .map(|cpu| {
                let (lock, readers) = (Arc::clone(&lock), Arc::clone(&readers));
                on_cpu(cpu, move || {
                    let mut most = 0;
                    for _ in 0..20 {
                        if cpu % 4 == 0 {
                            let mut value = lock.write();
                            *value += 1;
                            assert_eq!(readers.load(Ordering::Relaxed), 0);
                        } else {
                            let _value = lock.read();
                            most = most.max(readers.fetch_add(1, Ordering::Relaxed) + 1);
                            work(Duration::from_nanos(500));
                            readers.fetch_sub(1, Ordering::Relaxed);
                        }
                    }
                    most
                })
            })
            .collect();
        let most = threads.into_iter().map(|thread| thread.join().unwrap()).max().unwrap();
        (most, *lock.read())
    })
    .unwrap();
    assert!(together > 1, "readers were never together");
    assert_eq!(alone, 6 * 20);
}

#[test]
fn a_condition_is_woken_or_times_out() {
    let (waited, _) = run(&machine(), 1, || {
        let pair = Arc::new((Mutex::new(false), Condvar::default()));
        let other = Arc::clone(&pair);
        let sleeper = on_cpu(1, move || {
            let mut value = other.0.lock();
            while !*value {
                value = other.1.wait_for(value, Duration::from_secs(1000));
            }
            now()
        });
        thread::sleep(Duration::from_millis(3));
        *pair.0.lock() = true;
        pair.1.notify_one();
        let woken = sleeper.join().unwrap();
        let before = now();
        drop(pair.1.wait_for(pair.0.lock(), Duration::from_millis(2)));
        (woken, now() - before)
    })
    .unwrap();
    assert!(waited.0 >= Duration::from_millis(3) && waited.0 < Duration::from_millis(4), "{waited:?}");
    assert!(waited.1 >= Duration::from_millis(2) && waited.1 < Duration::from_millis(3), "{waited:?}");
}

#[test]
fn a_wake_up_that_comes_first_is_not_lost() {
    let (_, report) = run(&machine(), 1, || {
        let me = thread::current();
        me.unpark();
        thread::park();
        on_cpu(3, move || me.unpark()).join().unwrap();
        thread::park();
    })
    .unwrap();
    assert!(report.elapsed < 1e6);
}

#[test]
fn threads_of_one_cpu_take_turns() {
    let (ends, _) = run(&machine(), 1, || {
        let word = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let word = Arc::clone(&word);
                on_cpu(5, move || {
                    for _ in 0..100 {
                        work(Duration::from_micros(200));
                        word.fetch_add(1, Ordering::Relaxed);
                    }
                    now()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    })
    .unwrap();
    // Each thread needs 20 ms, so all three end near the end of the 60 ms.
    assert!(ends.iter().all(|end| *end > Duration::from_millis(48)), "{ends:?}");
}

#[test]
fn threads_that_wait_for_each_other_are_named() {
    let stuck = run(&machine(), 1, || {
        let lock = Arc::new(Mutex::new(()));
        let _held = lock.lock();
        let other = Arc::clone(&lock);
        let waiter = thread::Builder::new().name("waiter".into()).spawn(move || drop(other.lock())).unwrap();
        let _ = waiter.join();
    });
    let Err(Stopped::Deadlock(deadlock)) = stuck else { panic!("{stuck:?}") };
    assert_eq!(deadlock.waiting, ["main", "waiter"]);
}

#[test]
fn a_panic_comes_out_of_the_thread_that_waits_for_it() {
    let (message, _) = run(&machine(), 1, || {
        let panic = on_cpu(1, || panic!("told")).join().unwrap_err();
        *panic.downcast_ref::<&str>().unwrap()
    })
    .unwrap();
    assert_eq!(message, "told");
    let outer = catch_unwind(|| run(&machine(), 1, || panic!("whole")));
    assert_eq!(*outer.unwrap_err().downcast_ref::<&str>().unwrap(), "whole");
    // The panic does not disturb the next simulation.
    assert_eq!(run(&machine(), 1, || 5).unwrap().0, 5);
}

#[test]
fn threads_that_are_left_at_the_end_are_dropped() {
    let held = Arc::new(());
    let inside = Arc::clone(&held);
    run(&machine(), 1, move || {
        on_cpu(2, move || {
            let _inside = inside;
            thread::park();
        });
        thread::sleep(Duration::from_millis(1));
    })
    .unwrap();
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn a_section_keeps_its_cpu() {
    let (order, _) = run(&machine(), 1, || {
        let log = Arc::new(std::sync::Mutex::new(Vec::new()));
        let word = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..2)
            .map(|number| {
                let (log, word) = (Arc::clone(&log), Arc::clone(&word));
                on_cpu(9, move || {
                    in_section(|| {
                        for _ in 0..3 {
                            log.lock().unwrap().push(number);
                            work(Duration::from_millis(10));
                            word.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        Arc::into_inner(log).unwrap().into_inner().unwrap()
    })
    .unwrap();
    assert!(order == [0, 0, 0, 1, 1, 1] || order == [1, 1, 1, 0, 0, 0], "{order:?}");
}

#[test]
fn words_outside_of_a_simulation_are_plain_words() {
    let word = AtomicU64::new(1);
    assert_eq!(word.fetch_add(1, Ordering::Relaxed), 1);
    assert_eq!(word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |value| Some(value * 5)), Ok(2));
    assert_eq!(word.into_inner(), 10);
    assert_eq!(*Mutex::new(3).lock(), 3);
    assert_eq!((now(), current_cpu(), possible_cpus()), (Duration::ZERO, 0, 1));
}

#[test]
fn a_profile_that_was_restarted_has_only_what_came_after() {
    let ((before, after), _) = run(&machine(), 1, || {
        let word = AtomicU64::new(0);
        (0..10).for_each(|_| _ = word.fetch_add(1, Ordering::Relaxed));
        let before = profile();
        restart_profile();
        (0..3).for_each(|_| _ = word.fetch_add(1, Ordering::Relaxed));
        (before, profile())
    })
    .unwrap();
    let accesses = |report: &Report| report.places.iter().map(|place| place.accesses).sum::<u64>();
    assert_eq!((accesses(&before), accesses(&after)), (10, 3));
    assert!((after.elapsed - 3.0 * machine().nanoseconds.update).abs() < 0.01, "{}", after.elapsed);
    assert_eq!(after.busy[0], after.elapsed);
}
