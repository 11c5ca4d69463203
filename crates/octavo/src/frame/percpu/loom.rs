//! A model of a CPU's lists: a free and an allocation against a drain of all CPUs.

use super::*;
use crate::frame::state::{Kind, StateWord, TakeBack};
use crate::sync::{Arc, thread};

/// A thread frees a frame to its CPU's list and allocates. Another drains all CPUs, and takes the frames that
/// it finds. In the end the frame has one owner, and its word agreed at every step.
#[test]
fn loom_a_freed_frame_goes_to_the_drain_or_back_to_its_cpu() {
    ::loom::model(|| {
        let tuning = Tuning { batch: 1, high_min: 2, high_max: 2 };
        let orders = PercpuOrders::OrderZero;
        let lists = PerCpuLists::new(Cpus::real(), orders, StackForm::Sections, tuning, tuning).unwrap();
        lists.make_room(&lists.stacks().exclusive(0).unwrap(), 0, 2);
        let shared = Arc::new((lists, StateWord::default()));
        shared.1.set(Kind::Owned, Order::ZERO, false);
        let drainer = {
            let shared = shared.clone();
            thread::spawn(move || {
                let (lists, word) = &*shared;
                let mut owned = 0;
                let held = lists.stacks().exclusive(0).unwrap();
                lists.drain(&held, |_, order| {
                    word.hand_out(order);
                    owned += 1;
                });
                owned
            })
        };
        let (lists, word) = &*shared;
        assert_eq!(word.take_back(Order::ZERO), TakeBack::Done);
        let mut owned = 0;
        let listed = lists.push(0, FrameId(0)) == Push::Done;
        if !listed || matches!(lists.pop(0), Pop::Value(0)) {
            word.hand_out(Order::ZERO);
            owned += 1;
        }
        owned += drainer.join().unwrap();
        lists.drain(&lists.stacks().exclusive(0).unwrap(), |_, order| {
            word.hand_out(order);
            owned += 1;
        });
        assert_eq!(owned, 1);
    });
}
