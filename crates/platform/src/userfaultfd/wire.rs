//! The kernel's structures and numbers for userfaultfd, as `linux/userfaultfd.h` lays them out.

/// The kernel's `uffdio_move`. The process whose memory moves passes it to the call [`MOVE`] by raw numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoveRequest {
    /// The address to move the pages to.
    pub to: u64,
    /// The address to move the pages from.
    pub from: u64,
    /// The length in bytes.
    pub len: u64,
    /// [`MOVE_WITHOUT_WAKING`], [`MOVE_ALLOWS_HOLES`] or both.
    pub mode: u64,
    /// The kernel's answer: the bytes moved, or an error number below zero.
    pub moved: i64,
}

/// The size of a [`MoveRequest`].
pub const MOVE_REQUEST_BYTES: usize = size_of::<MoveRequest>();
/// Makes a descriptor from an open `/dev/userfaultfd` (`USERFAULTFD_IOC_NEW`).
pub const NEW: u64 = 0xaa00;
/// Moves pages (`UFFDIO_MOVE`).
pub const MOVE: u64 = read_write(0x05, MOVE_REQUEST_BYTES);
/// Threads that wait for a moved page stay asleep.
pub const MOVE_WITHOUT_WAKING: u64 = 1;
/// A hole in the source moves as a hole, and is no error.
pub const MOVE_ALLOWS_HOLES: u64 = 2;

pub(super) const API_VERSION: u64 = 0xaa;
pub(super) const API: u64 = read_write(0x3f, size_of::<ApiRequest>());
pub(super) const REGISTER: u64 = read_write(0x00, size_of::<RegisterRequest>());
pub(super) const UNREGISTER: u64 = read(0x01, size_of::<UffdRange>());
pub(super) const WAKE: u64 = read(0x02, size_of::<UffdRange>());
pub(super) const COPY: u64 = read_write(0x03, size_of::<CopyRequest>());
pub(super) const ZERO: u64 = read_write(0x04, size_of::<ZeroRequest>());
pub(super) const WRITE_PROTECT: u64 = read_write(0x06, size_of::<ProtectRequest>());

pub(super) const REGISTER_MISSING: u64 = 1;
pub(super) const REGISTER_WRITE_PROTECT: u64 = 2;
pub(super) const COPY_WITHOUT_WAKING: u64 = 1;
pub(super) const COPY_PROTECTED: u64 = 2;
pub(super) const ZERO_WITHOUT_WAKING: u64 = 1;
pub(super) const PROTECT_ON: u64 = 1;

pub(super) const EVENT_FAULT: u8 = 0x12;
pub(super) const EVENT_FORK: u8 = 0x13;
pub(super) const EVENT_REMAP: u8 = 0x14;
pub(super) const EVENT_REMOVE: u8 = 0x15;
pub(super) const EVENT_UNMAP: u8 = 0x16;
pub(super) const FAULT_WRITE: u64 = 1;
pub(super) const FAULT_PROTECTED: u64 = 2;

#[repr(C)]
#[derive(Debug)]
pub(super) struct ApiRequest {
    pub version: u64,
    pub features: u64,
    pub calls: u64,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct UffdRange {
    pub start: u64,
    pub len: u64,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct RegisterRequest {
    pub range: UffdRange,
    pub mode: u64,
    pub calls: u64,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct CopyRequest {
    pub to: u64,
    pub from: u64,
    pub len: u64,
    pub mode: u64,
    pub copied: i64,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct ZeroRequest {
    pub range: UffdRange,
    pub mode: u64,
    pub zeroed: i64,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct ProtectRequest {
    pub range: UffdRange,
    pub mode: u64,
}

/// One message of a descriptor (`uffd_msg`). The meaning of the three words depends on the event.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UffdMessage {
    pub event: u8,
    pub reserved: [u8; 7],
    pub words: [u64; 3],
}

/// The number of a call that passes a structure in and out (`_IOWR`).
const fn read_write(number: u64, bytes: usize) -> u64 {
    (3 << 30) | ((bytes as u64) << 16) | (0xaa << 8) | number
}

/// The number of a call that the header declares as reading (`_IOR`).
const fn read(number: u64, bytes: usize) -> u64 {
    (2 << 30) | ((bytes as u64) << 16) | (0xaa << 8) | number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_kernel_header() {
        assert_eq!(API, 3_222_841_919);
        assert_eq!(REGISTER, 3_223_366_144);
        assert_eq!(UNREGISTER, 2_148_575_745);
        assert_eq!(WAKE, 2_148_575_746);
        assert_eq!(COPY, 3_223_890_435);
        assert_eq!(ZERO, 3_223_366_148);
        assert_eq!(WRITE_PROTECT, 3_222_841_862);
        assert_eq!(MOVE, 0xc028_aa05);
        assert_eq!(size_of::<UffdMessage>(), 32);
    }
}
