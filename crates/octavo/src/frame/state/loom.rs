//! Models of the state word: two frees, and a mark against a free.

use super::*;
use crate::sync::{Arc, thread};

#[test]
fn loom_of_two_frees_one_is_refused() {
    ::loom::model(|| {
        let word = Arc::new(StateWord::default());
        word.set(Kind::Owned, Order::ZERO, false);
        let other = {
            let word = word.clone();
            thread::spawn(move || word.take_back(Order::ZERO))
        };
        let outcomes = [word.take_back(Order::ZERO), other.join().unwrap()];
        assert_eq!(outcomes.iter().filter(|&&outcome| outcome == TakeBack::Done).count(), 1);
    });
}

#[test]
fn loom_a_mark_against_a_free_is_seen_or_too_late() {
    ::loom::model(|| {
        let word = Arc::new(StateWord::default());
        word.set(Kind::Owned, Order::ZERO, false);
        let marker = {
            let word = word.clone();
            thread::spawn(move || word.mark_isolating())
        };
        let freed = word.take_back(Order::ZERO);
        let marked = marker.join().unwrap();
        assert_eq!(freed, if marked { TakeBack::Isolating } else { TakeBack::Done });
        assert!(word.load().is(Kind::Cached, Order::ZERO));
    });
}
