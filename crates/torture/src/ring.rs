//! An io_uring with one registered buffer and one entry at a time.
//!
//! The kernel holds the buffer's pages from registration on. It reads and writes these pages, even if other
//! pages are at the buffer's addresses by then.

use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::finding::{insist, last_errno, last_error};
use crate::memory::{OwnMapping, PAGE};
use crate::transfer::{ScratchFile, Slice};

// From the kernel's io_uring.h.
const SUBMISSIONS_OFFSET: i64 = 0;
const COMPLETIONS_OFFSET: i64 = 0x800_0000;
const ENTRIES_OFFSET: i64 = 0x1000_0000;
const REGISTER_BUFFERS: libc::c_uint = 0;
const GET_EVENTS: libc::c_uint = 1;
const READ_FIXED: u64 = 4;
const WRITE_FIXED: u64 = 5;
const ENTRY_BYTES: usize = 64;
const COMPLETION_BYTES: usize = 16;

/// `io_sqring_offsets`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SubmissionOffsets {
    head: u32,
    tail: u32,
    mask: u32,
    entries: u32,
    flags: u32,
    dropped: u32,
    array: u32,
    reserved: u32,
    address: u64,
}

/// `io_cqring_offsets`.
#[repr(C)]
#[derive(Clone, Copy)]
struct CompletionOffsets {
    head: u32,
    tail: u32,
    mask: u32,
    entries: u32,
    overflow: u32,
    completions: u32,
    flags: u32,
    reserved: u32,
    address: u64,
}

/// `io_uring_params`.
#[repr(C)]
struct Parameters {
    submissions: u32,
    completions: u32,
    flags: u32,
    thread_cpu: u32,
    thread_idle: u32,
    features: u32,
    workers: u32,
    reserved: [u32; 3],
    submission_offsets: SubmissionOffsets,
    completion_offsets: CompletionOffsets,
}

/// A ring with one registered buffer.
pub struct BufferRing {
    descriptor: OwnedFd,
    submissions: OwnMapping,
    completions: OwnMapping,
    entries: OwnMapping,
    parameters: Parameters,
}

impl BufferRing {
    /// Makes a ring and registers the buffer. Returns `None` if the machine does not allow it.
    pub fn with_buffer(buffer: Slice<'_>) -> Option<BufferRing> {
        // SAFETY: zeros are valid parameters, which the call fills in. The descriptor is fresh.
        let (descriptor, parameters) = unsafe {
            let mut parameters: Parameters = zeroed();
            let descriptor = libc::syscall(libc::SYS_io_uring_setup, 2 as libc::c_uint, &mut parameters);
            if descriptor < 0 {
                return None;
            }
            (OwnedFd::from_raw_fd(descriptor as i32), parameters)
        };
        let raw = descriptor.as_raw_fd();
        let (vector, count) = (buffer.vector(), 1 as libc::c_uint);
        // SAFETY: the vector lives during the call. After that, the kernel holds the pages itself.
        let registered =
            unsafe { libc::syscall(libc::SYS_io_uring_register, raw, REGISTER_BUFFERS, &vector, count) };
        if registered < 0 {
            // If a limit on locked memory refuses the buffer, that is no finding.
            insist!(
                last_errno() == libc::ENOMEM,
                "the registration of a buffer was refused: {}",
                last_error()
            );
            return None;
        }
        let of = |offset| OwnMapping::of_file(PAGE, raw, offset);
        Some(BufferRing {
            submissions: of(SUBMISSIONS_OFFSET),
            completions: of(COMPLETIONS_OFFSET),
            entries: of(ENTRIES_OFFSET),
            descriptor,
            parameters,
        })
    }

    /// Reads the start of the file into the registered buffer.
    pub fn read_fixed(&self, file: &ScratchFile, buffer: Slice<'_>) {
        self.transfer(READ_FIXED, file, buffer);
    }

    /// Writes the registered buffer to the start of the file.
    pub fn write_fixed(&self, file: &ScratchFile, buffer: Slice<'_>) {
        self.transfer(WRITE_FIXED, file, buffer);
    }

    /// Submits one entry and waits for its completion, so that nothing is in flight after the call.
    fn transfer(&self, operation: u64, file: &ScratchFile, buffer: Slice<'_>) {
        let of = self.parameters.submission_offsets;
        let tail = self.submissions.short_word(of.tail as usize);
        let mask = self.submissions.short_word(of.mask as usize).load(Relaxed);
        let at = tail.load(Relaxed);
        let place = (at & mask) as usize;
        // The words of an `io_uring_sqe`: opcode and descriptor, file offset, address, length, user data,
        // buffer index.
        let words = [
            operation | (file.descriptor() as u64) << 32,
            0,
            buffer.address(),
            buffer.bytes() as u64,
            0,
            0,
            0,
            0,
        ];
        for (word, value) in self.entries.words(place * ENTRY_BYTES, ENTRY_BYTES).iter().zip(words) {
            word.store(value, Relaxed);
        }
        self.submissions.short_word(of.array as usize + 4 * place).store(place as u32, Relaxed);
        // Release: the kernel reads the entry after it has read the tail.
        tail.store(at.wrapping_add(1), Release);
        let result = loop {
            if let Some(result) = self.completion() {
                break result;
            }
            let entered = self.enter(
                tail.load(Relaxed).wrapping_sub(self.submissions.short_word(of.head as usize).load(Acquire)),
            );
            insist!(
                entered >= 0 || last_errno() == libc::EINTR,
                "io_uring_enter was refused: {}",
                last_error()
            );
        };
        insist!(
            result == buffer.bytes() as i32,
            "a transfer of {} bytes by the registered buffer at {:#x} answered {result}.",
            buffer.bytes(),
            buffer.address()
        );
    }

    fn enter(&self, submitted: u32) -> i64 {
        let (raw, none) = (self.descriptor.as_raw_fd(), std::ptr::null::<libc::sigset_t>());
        // SAFETY: the entry names a registered buffer, whose words are reached by atomics only, and the
        // caller borrows it until the completion has come.
        unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                raw,
                submitted,
                1 as libc::c_uint,
                GET_EVENTS,
                none,
                0usize,
            )
        }
    }

    fn completion(&self) -> Option<i32> {
        let of = self.parameters.completion_offsets;
        let head = self.completions.short_word(of.head as usize);
        let at = head.load(Relaxed);
        if at == self.completions.short_word(of.tail as usize).load(Acquire) {
            return None;
        }
        let mask = self.completions.short_word(of.mask as usize).load(Relaxed);
        // `res` is behind the user data of an `io_uring_cqe`.
        let entry = of.completions as usize + (at & mask) as usize * COMPLETION_BYTES;
        let result = self.completions.short_word(entry + 8).load(Relaxed) as i32;
        head.store(at.wrapping_add(1), Release);
        Some(result)
    }
}
