//! The process that receives (`octavo-lab udp-receiver`). Its standard input is the socket.
//!
//! It checks both ends of each message, and answers the message that ends a run with the run's result. It
//! ends with the process that started it.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;

use octavo_command::failure::Failure;
use rustix::process::{Signal, set_parent_process_death_signal};

use super::message::{self, END, MessageHead};

/// The subcommand by which `octavo-lab` starts this process.
pub const SUBCOMMAND: &str = "udp-receiver";

/// The result of a run, as the answer carries it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    pub run: u64,
    pub messages: u64,
    /// Messages that differ from what was sent.
    pub wrong: u64,
}

impl Received {
    pub const BYTES: usize = 24;

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut answer = [0; Self::BYTES];
        for (word, value) in answer.chunks_exact_mut(8).zip([self.run, self.messages, self.wrong]) {
            word.copy_from_slice(&value.to_le_bytes());
        }
        answer
    }

    pub fn read(answer: &[u8; Self::BYTES]) -> Self {
        let word = |at: usize| u64::from_le_bytes(answer[at..at + 8].try_into().expect("eight bytes"));
        Self { run: word(0), messages: word(8), wrong: word(16) }
    }
}

pub fn receiver_main() -> Result<(), Failure> {
    serve().map_err(|error| Failure::system("cannot receive", error))
}

fn serve() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let socket = UdpSocket::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut buffer = vec![0; 1 << 16];
    let mut received = Received::default();
    loop {
        let (bytes, from) = socket.recv_from(&mut buffer)?;
        let Some(MessageHead { run, number, is_whole }) = message::read(&buffer[..bytes]) else {
            received.wrong += 1;
            continue;
        };
        if run != received.run {
            received = Received { run, ..Received::default() };
        }
        if number == END {
            socket.send_to(&received.to_bytes(), from)?;
            continue;
        }
        received.messages += 1;
        received.wrong += u64::from(!is_whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_what_it_was_made_of() {
        let received = Received { run: 1, messages: 1 << 40, wrong: 3 };
        assert_eq!(Received::read(&received.to_bytes()), received);
    }
}
