//! Models of waiting. A waiter's registration races with the end of the wait, and no thread sleeps for ever.
//! (The checker reports such a thread as a deadlock.)

use std::task::Poll;

use super::{Model, bounded};
use crate::sync::park::block_until;
use crate::sync::wait::Waiting;
use crate::sync::{Arc, thread};
use crate::units::FrameId;

#[test]
fn loom_everyone_who_waits_for_an_entry_is_woken() {
    bounded(3, || {
        let shared = Model::new(1);
        let word = shared.engine.table.root(shared.spaces[0].id);
        let empty = word.load();
        word.change(empty, empty.to_busy()).unwrap();
        let waiters = [(); 2].map(|()| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let word = shared.engine.table.root(shared.spaces[0].id);
                while word.load().is_busy() {
                    shared.engine.block_on_entry(word);
                }
            })
        });
        shared.engine.publish(word, empty.to_busy().to_empty());
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

#[test]
fn loom_everyone_who_waits_for_a_read_is_woken() {
    bounded(3, || {
        let shared = Model::new(1);
        let frame = FrameId(2);
        shared.engine.frames.words(frame).holds.begin_reading();
        let waiters = [(); 2].map(|()| {
            let shared = Arc::clone(&shared);
            // As `Fault::continue_reading`.
            thread::spawn(move || {
                let engine = &shared.engine;
                block_until(|waker| {
                    loop {
                        if !engine.frames.words(frame).holds.load().is_reading() {
                            return Poll::Ready(());
                        }
                        if engine.wait_for_io(frame, waker) == Waiting::Registered {
                            return Poll::Pending;
                        }
                    }
                })
            })
        });
        if shared.engine.frames.words(frame).holds.end_read(true) {
            shared.engine.wake_io(frame);
        }
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}
