//! The sending side: a thread that sends, and one that frees.
//!
//! The kernel allocates a message's memory where it is sent, and frees it where it was received, often on
//! another CPU. Frames belong to one process, so here a second thread of the sender stands in for the
//! receiver: it gets the blocks through a queue that is as long as a socket's. The sender wakes this thread
//! only once for each half queue, so that waking costs little.

use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use octavo::PAGE_BYTES;
use octavo::frame::{Backing, Block, FrameAllocator, FrameConfig, Order};
use octavo_command::failure::Failure;
use octavo_experiments::percpu_lists::{MessagePlace, QUEUED};

use super::message::{self, END};
use super::receiver::{self, Received};
use crate::choices::Mode;
use crate::manager::percpu_orders;
use crate::processes::Processes;

/// Bytes of the sender's frames. The messages on their way need a small part of them.
const MEMORY_BYTES: u64 = 64 << 20;
/// Messages between two reads of the clock.
const BETWEEN_LOOKS: u64 = 16;
/// How long to wait for the receiver, and how long between repeated requests.
const PATIENCE: Duration = Duration::from_secs(20);
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// Both ends of the stream.
#[derive(Debug)]
pub struct UdpStream {
    socket: UdpSocket,
    /// Dropping this value ends the receiver.
    _receiver: Processes,
    runs: u64,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sent {
    pub messages: u64,
    pub received: u64,
    /// Messages that arrived, but differ from what was sent.
    pub wrong: u64,
    pub seconds: f64,
}

/// Makes an allocator with per-CPU lists of this form.
pub fn allocator(mode: Mode) -> Result<FrameAllocator, Failure> {
    let mut config = FrameConfig::one_zone(MEMORY_BYTES, Backing::BasePages);
    config.populate = true;
    config.percpu_orders = percpu_orders(mode);
    Ok(FrameAllocator::standalone(&config, 2 * MEMORY_BYTES)?)
}

impl UdpStream {
    /// Starts the receiver.
    pub fn open() -> Result<Self, Failure> {
        let cannot = |error| Failure::system("cannot open a socket on 127.0.0.1", error);
        let ours = UdpSocket::bind("127.0.0.1:0").map_err(cannot)?;
        let theirs = UdpSocket::bind("127.0.0.1:0").map_err(cannot)?;
        ours.connect(theirs.local_addr().map_err(cannot)?).map_err(cannot)?;
        let mut processes = Processes::default();
        processes.start(receiver::SUBCOMMAND, &(), Stdio::from(OwnedFd::from(theirs)))?;
        let mut stream = Self { socket: ours, _receiver: processes, runs: 0 };
        stream.end_run()?;
        Ok(stream)
    }

    /// Sends messages of `bytes` bytes for `time`.
    pub fn run(&mut self, frames: &FrameAllocator, bytes: u64, time: Duration) -> Result<Sent, Failure> {
        frames.drain();
        let free_before = frames.free_frames();
        let (messages, seconds) = thread::scope(|scope| {
            let (hand_over, handed) = sync_channel(QUEUED);
            let freeing = thread::Builder::new()
                .name("frees".into())
                .spawn_scoped(scope, move || free_all(frames, &handed))
                .map_err(|error| Failure::system("cannot start a thread", error))?;
            let queue = FreeQueue { hand_over, freeing: freeing.thread().clone(), handed: 0 };
            self.send(frames, bytes, time, queue)
        })?;
        let received = self.end_run()?;
        frames.drain();
        let lost = free_before.saturating_sub(frames.free_frames());
        if lost > 0 {
            return Err(Failure::Said(format!(
                "{lost} frames were not given back; this is an error in octavo"
            )));
        }
        Ok(Sent { messages, received: received.messages, wrong: received.wrong, seconds })
    }

    /// Sends messages. Returns their number, and the seconds.
    fn send(
        &self,
        frames: &FrameAllocator,
        bytes: u64,
        time: Duration,
        mut queue: FreeQueue,
    ) -> Result<(u64, f64), Failure> {
        let place = MessagePlace::of(bytes);
        let order = Order::new(place.order).expect("an order that the allocator has");
        let (each, bytes) = (order.bytes() / place.messages as usize, bytes as usize);
        let (mut messages, mut block) = (0_u64, None);
        let began = Instant::now();
        loop {
            if messages.is_multiple_of(BETWEEN_LOOKS) && began.elapsed() >= time {
                break;
            }
            let part = messages % place.messages;
            let held = match block.take() {
                Some(held) => held,
                None => queue.wait_for(|| frames.alloc(order)),
            };
            let start = held.frame().0 as usize * PAGE_BYTES + part as usize * each;
            let arena = frames.bytes();
            for (at, word) in
                [(0, self.runs), (8, messages), (16, bytes as u64), (message::tail_at(bytes), messages)]
            {
                arena.store(start + at, word);
            }
            if let Err(error) = arena.send(self.socket.as_fd(), start..start + bytes) {
                queue.push(held);
                return Err(Failure::system("cannot send to the receiver", error));
            }
            messages += 1;
            if part + 1 == place.messages {
                queue.push(held);
            } else {
                block = Some(held);
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        block.into_iter().for_each(|held| queue.push(held));
        Ok((messages, seconds))
    }

    /// Ends a run, and returns its result. The last message may be lost like any other, so it is repeated.
    fn end_run(&mut self) -> Result<Received, Failure> {
        let cannot = |error| Failure::system("cannot hear from the receiver", error);
        let (end, run) = (message::end_of(self.runs), self.runs);
        self.runs += 1;
        self.socket.set_read_timeout(Some(ASK_AGAIN)).map_err(cannot)?;
        let began = Instant::now();
        debug_assert_eq!(message::read(&end).map(|head| head.number), Some(END));
        while began.elapsed() < PATIENCE {
            self.socket.send(&end).map_err(cannot)?;
            let mut answer = [0; Received::BYTES];
            while self.socket.recv(&mut answer).is_ok_and(|bytes| bytes == Received::BYTES) {
                let received = Received::read(&answer);
                if received.run == run {
                    return Ok(received);
                }
            }
        }
        Err(Failure::Said("the receiver does not answer; it may have been killed".into()))
    }
}

/// Blocks on their way to be freed. Dropping it ends the thread that frees.
struct FreeQueue {
    hand_over: SyncSender<Block>,
    freeing: thread::Thread,
    handed: usize,
}

impl FreeQueue {
    fn push(&mut self, mut block: Block) {
        loop {
            match self.hand_over.try_send(block) {
                Ok(()) => break,
                Err(TrySendError::Full(back)) => block = back,
                Err(TrySendError::Disconnected(_)) => unreachable!("it frees until this ends"),
            }
            self.freeing.unpark();
            thread::yield_now();
        }
        self.handed += 1;
        if self.handed.is_multiple_of(QUEUED / 2) {
            self.freeing.unpark();
        }
    }

    /// Retries until the other thread has freed enough.
    fn wait_for(&self, mut alloc: impl FnMut() -> Option<Block>) -> Block {
        loop {
            if let Some(block) = alloc() {
                return block;
            }
            self.freeing.unpark();
            thread::yield_now();
        }
    }
}

impl Drop for FreeQueue {
    fn drop(&mut self) {
        // The other thread sees the queue's end at its next look.
        let (closed, _) = sync_channel(1);
        self.hand_over = closed;
        self.freeing.unpark();
    }
}

fn free_all(frames: &FrameAllocator, handed: &Receiver<Block>) {
    loop {
        match handed.try_recv() {
            Ok(block) => frames.give_back(block),
            Err(TryRecvError::Empty) => thread::park(),
            Err(TryRecvError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_that_is_gone_is_an_error_and_leaves_no_frame_behind() {
        let nobody = UdpSocket::bind("127.0.0.1:0").unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(nobody.local_addr().unwrap()).unwrap();
        drop(nobody);
        let mut stream = UdpStream { socket, _receiver: Processes::default(), runs: 0 };
        let frames = allocator(Mode::Base).unwrap();
        for bytes in [64, 16384] {
            let said = stream.run(&frames, bytes, Duration::from_secs(5)).unwrap_err().to_string();
            assert!(said.contains("cannot send to the receiver"), "{said}");
        }
        frames.validate();
    }
}
