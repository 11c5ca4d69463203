//! A message: the run that it belongs to, its number, its length, and its number again at its end.

/// Bytes of the words at the start.
pub const HEAD_BYTES: usize = 24;
/// The number of the message that ends a run.
pub const END: u64 = u64::MAX;

/// Returns the offset of the last whole word of a message.
pub fn tail_at(bytes: usize) -> usize {
    bytes / 8 * 8 - 8
}

/// Makes the message that ends a run.
pub fn end_of(run: u64) -> [u8; HEAD_BYTES] {
    let mut message = [0; HEAD_BYTES];
    for (word, value) in message.chunks_exact_mut(8).zip([run, END, HEAD_BYTES as u64]) {
        word.copy_from_slice(&value.to_le_bytes());
    }
    message
}

/// The head of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHead {
    pub run: u64,
    pub number: u64,
    /// Whether the message is complete, and its end belongs to its start.
    pub is_whole: bool,
}

/// Reads a message. Returns `None` if it is too short to be one.
pub fn read(message: &[u8]) -> Option<MessageHead> {
    let word = |at: usize| Some(u64::from_le_bytes(message.get(at..at + 8)?.try_into().ok()?));
    let (run, number, bytes) = (word(0)?, word(8)?, word(16)?);
    let has_end = number == END || word(tail_at(message.len()))? == number;
    Some(MessageHead { run, number, is_whole: bytes == message.len() as u64 && has_end })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_whole_or_it_is_not() {
        let mut message = vec![0xAA; 67];
        for (at, value) in [(0, 3), (8, 7), (16, 67), (tail_at(67), 7_u64)] {
            message[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        assert_eq!(read(&message), Some(MessageHead { run: 3, number: 7, is_whole: true }));
        assert_eq!(read(&message[..66]).map(|head| head.is_whole), Some(false));
        message[tail_at(67)] ^= 1;
        assert_eq!(read(&message).map(|head| head.is_whole), Some(false));
        assert_eq!(read(&end_of(9)), Some(MessageHead { run: 9, number: END, is_whole: true }));
        assert_eq!((read(&[]), read(&[0; 23])), (None, None));
    }
}
