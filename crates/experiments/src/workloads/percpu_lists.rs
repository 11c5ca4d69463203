//! A stream of messages over loopback, as the page allocator sees it: the sender allocates a message's block,
//! and the receiver, on another CPU, frees it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::super::octavo::frame::{Block, Order};
use super::super::{now, rest, work};
use super::frames::allocator;
use super::gate::{RunResult, all_at_once};
use crate::Form;
use crate::percpu_lists::{Load, MessagePlace, QUEUED};

/// Messages on their way. The socket's own cost is part of the plain work, so this lock is the standard
/// library's and costs no simulated time.
type MessageQueue = Arc<Mutex<VecDeque<Option<Block>>>>;

fn queued(socket: &MessageQueue) -> usize {
    socket.lock().unwrap_or_else(PoisonError::into_inner).len()
}

/// Returns the times of the sender and the receiver.
pub(crate) fn run(form: Form, load: Load) -> RunResult<Duration> {
    let frames = allocator(form, 64 << 20);
    let socket = MessageQueue::default();
    let MessagePlace { order, messages } = load.place;
    let ends = vec![(frames, socket); 2];
    all_at_once(ends, move |end, (frames, socket)| {
        let began = now();
        for message in 0..load.messages {
            let is_first = message.is_multiple_of(messages);
            if end == 0 {
                while queued(&socket) >= QUEUED {
                    rest();
                }
                let order = Order::new(order).expect("an order that the allocator has");
                let block =
                    is_first.then(|| frames.alloc(order).expect("more frames than messages on their way"));
                socket.lock().unwrap_or_else(PoisonError::into_inner).push_back(block);
                work(load.beside);
            } else {
                while queued(&socket) == 0 {
                    rest();
                }
                let block = socket.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                // Over loopback, a receiver is faster than a sender, since the sender's side delivers.
                work(load.beside / 2);
                if let Some(block) = block.flatten() {
                    frames.give_back(block);
                }
            }
        }
        (now() - began, frames)
    })
}
