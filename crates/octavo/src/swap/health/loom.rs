//! Models of an area's health.

use crate::swap::health::{Condition, Health, TransferEnd};
use crate::sync::{Arc, thread};

/// A thread's deadline passes while an answer arrives: afterwards the device is not silent.
#[test]
fn loom_an_answer_beside_a_deadline_leaves_no_silence() {
    for end in [TransferEnd::Written, TransferEnd::Read, TransferEnd::ReadFailed] {
        loom::model(move || {
            let health = Arc::new(Health::default());
            health.begin();
            let before = health.load();
            let other = Arc::clone(&health);
            let waiter = thread::spawn(move || {
                other.note_silence(before);
                // The next wait may read the word again, and end at once.
                let again = other.load();
                other.note_silence(again);
            });
            health.end(end);
            waiter.join().unwrap();
            assert_eq!(health.load().state(), Condition::Well);
            assert_eq!(health.load().in_flight(), 0);
        });
    }
}

/// A write fails while another succeeds: the later end decides the state, and both are counted.
#[test]
fn loom_two_ends_count_both() {
    loom::model(|| {
        let health = Arc::new(Health::default());
        let idle = health.load();
        health.begin();
        health.begin();
        let other = Arc::clone(&health);
        let failing = thread::spawn(move || other.end(TransferEnd::WriteFailed));
        let before = health.end(TransferEnd::Written);
        failing.join().unwrap();
        let seen = health.load();
        assert_eq!(seen.in_flight(), 0);
        assert!(!seen.has_not_answered_since(idle));
        let failed_first = before.state() == Condition::Failing;
        assert_eq!(seen.state() == Condition::Well, failed_first);
        assert!(seen.is_cautious(), "a write failed");
    });
}
