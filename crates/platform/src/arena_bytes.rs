//! Bytes that several threads, and devices, may read and write at once.
//!
//! Words are accessed by atomics: relaxed ones, or sequentially consistent ones to change a word in one step.
//! Ranges are copied by `rep movsb` and filled by `rep stosb`, which the compiler cannot see into. So a
//! racing copy may be torn, but is never undefined behaviour in Rust's terms.
//!
//! A caller that needs an untorn copy holds the frame, or checks the entry again afterwards. Functions that
//! fill a frame anew (`zero`, `fill`, `copy_within`, `copy_to`, reads from a file) begin with a release
//! fence. So a reader that sees the new bytes also finds the entry changed.

use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::words::{self, Change, Integer, Word, cell_bytes};
use crate::{Backing, ForkCanary, PAGE_BYTES, Reservation, without_size_signal};

/// The memory of an arena, addressed by byte offset. Every access checks its bounds. A clone refers to the
/// same memory, which stays mapped until the last clone is dropped.
#[derive(Clone, Debug)]
pub struct ArenaBytes {
    // These two are copies of what `memory` has, so that an access follows no pointer to find the base and
    // the length.
    base: NonNull<u8>,
    len: usize,
    memory: Arc<ArenaMemory>,
}

// SAFETY: `base` is the start of `memory`, a range of addresses that is `Send` and `Sync` itself. Only
// atomics, assembly, system calls, and users of `pointer` with rules of their own reach the bytes behind it.
unsafe impl Send for ArenaBytes {}
// SAFETY: as above.
unsafe impl Sync for ArenaBytes {}

/// The part that all clones share.
#[derive(Debug)]
struct ArenaMemory {
    reservation: ManuallyDrop<Reservation>,
    canary: ForkCanary,
}

impl Drop for ArenaMemory {
    fn drop(&mut self) {
        // A forked child did not inherit the range, and may have mapped something else at the same addresses.
        if self.canary.is_original_process() {
            // SAFETY: the reservation is dropped here, once, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.reservation) }
        }
    }
}

impl ArenaBytes {
    /// Reserves `len` bytes at 2 MiB alignment. A forked child does not inherit them.
    ///
    /// Fails with the kernel's error if the address space is exhausted.
    pub fn new(len: usize) -> io::Result<Self> {
        let reservation = Reservation::new(len, 2 << 20)?;
        reservation.exclude_from_fork()?;
        let (base, len) = (reservation.base(), reservation.len());
        let memory = ArenaMemory { reservation: ManuallyDrop::new(reservation), canary: ForkCanary::new()? };
        Ok(Self { base, len, memory: Arc::new(memory) })
    }

    /// Returns the length in bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a reservation is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Makes the range present, backed as asked. Bytes that become present are zero.
    ///
    /// Fails with `OutOfMemory` if the kernel has no memory.
    pub fn bring_online(&self, range: Range<usize>, backing: Backing) -> io::Result<()> {
        self.memory.reservation.advise_backing(range.clone(), backing);
        self.memory.reservation.populate(range)
    }

    /// Gives the range back to the kernel. Its bytes read as zero until they are written again.
    ///
    /// Fails with the kernel's error. The memory then stays.
    pub fn take_offline(&self, range: Range<usize>) -> io::Result<()> {
        self.memory.reservation.discard(range)
    }

    /// Returns the address of the byte at `offset`, for a device or a C caller. The caller must make sure
    /// that each use of the pointer is sound.
    #[inline]
    pub fn pointer(&self, offset: usize) -> *mut u8 {
        self.at(offset, 1)
    }

    #[inline(always)]
    pub(crate) fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset <= self.len && len <= self.len - offset, "offset inside the arena");
        // SAFETY: the offset is inside the reservation (just checked).
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Loads the word at `offset`, rounded down to a multiple of its size. Relaxed.
    #[inline(always)]
    pub fn load<W: Word>(&self, offset: usize) -> W {
        // SAFETY: see `word_at`.
        unsafe { words::load(self.word_at::<W>(offset)) }
    }

    /// Stores the word at `offset`, rounded down to a multiple of its size. Relaxed.
    #[inline(always)]
    pub fn store<W: Word>(&self, offset: usize, value: W) {
        // SAFETY: see `word_at`.
        unsafe { words::store(self.word_at::<W>(offset), value) }
    }

    /// Exchanges the word at `offset`, and returns the old one. All changes of words are sequentially
    /// consistent.
    #[inline(always)]
    pub fn swap<W: Word>(&self, offset: usize, value: W) -> W {
        // SAFETY: see `word_at`.
        unsafe { words::swap(self.word_at::<W>(offset), value) }
    }

    /// Exchanges the word at `offset` if its bytes are those of `current`. Returns the old word, as an error
    /// if it differed.
    #[inline(always)]
    pub fn compare_exchange<W: Word>(&self, offset: usize, current: W, new: W) -> Result<W, W> {
        // SAFETY: see `word_at`.
        unsafe { words::compare_exchange(self.word_at::<W>(offset), current, new) }
    }

    /// Changes the integer at `offset`, and returns the old value.
    #[inline(always)]
    pub fn change<I: Integer>(&self, offset: usize, change: Change, operand: I) -> I {
        // SAFETY: see `word_at`.
        unsafe { words::change(self.word_at::<I>(offset), change, operand) }
    }

    /// Returns the place of a word. The place is in bounds (`at`) and aligned (by `aligned`, since the base
    /// is 2 MiB aligned). The arena's bytes are mapped, and only atomics, assembly and devices access them.
    #[inline(always)]
    fn word_at<W>(&self, offset: usize) -> *mut u8 {
        self.at(aligned::<W>(offset), cell_bytes::<W>())
    }

    /// Copies bytes out. The copy is torn if someone writes the bytes meanwhile.
    #[inline]
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) {
        // SAFETY: the source is in bounds (`at`), and the destination is an exclusive slice of the same
        // length. The two overlap only if a guard lent the slice and a late reader's frame has become the
        // guard's. The copying instructions have a result even then, and the reader discards it.
        unsafe { copy_bytes(self.at(offset, to.len()), to.as_mut_ptr(), to.len()) }
    }

    /// Copies bytes in.
    #[inline]
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        // SAFETY: as in `copy_out`, with the sides exchanged.
        unsafe { copy_bytes(from.as_ptr(), self.at(offset, from.len()), from.len()) }
    }

    /// Copies `len` bytes from `from` in this arena to `to` in `target`.
    pub fn copy_to(&self, from: usize, target: &Self, to: usize, len: usize) {
        if self.base == target.base {
            return self.copy_within(from, to, len);
        }
        // The module doc gives the reason for the fence.
        fence(Ordering::Release);
        // SAFETY: both ranges are in bounds (`at`). They lie in two reservations, which do not overlap.
        unsafe { copy_bytes(self.at(from, len), target.at(to, len), len) }
    }

    /// Copies `len` bytes between two places that do not overlap.
    pub fn copy_within(&self, from: usize, to: usize, len: usize) {
        assert!(from.abs_diff(to) >= len, "copies inside the arena do not overlap");
        // The module doc gives the reason for the fence.
        fence(Ordering::Release);
        // SAFETY: both ranges are in bounds (`at`) and disjoint (asserted).
        unsafe { copy_bytes(self.at(from, len), self.at(to, len), len) }
    }

    /// Fills the range with zeros.
    #[inline]
    pub fn zero(&self, offset: usize, len: usize) {
        let to = self.at(offset, len);
        // The module doc gives the reason for the fence.
        fence(Ordering::Release);
        // SAFETY: the range is in bounds (`at`). `rep stosb` writes exactly `len` bytes upwards from `to`,
        // because the ABI keeps the direction flag clear.
        unsafe {
            std::arch::asm!("rep stosb", inout("rcx") len => _, inout("rdi") to => _, in("al") 0u8,
                options(nostack, preserves_flags));
        }
    }

    /// Returns whether the range holds only zeros. `offset` and `len` are multiples of 8. Stops at the first
    /// word that is not zero.
    pub fn is_zero(&self, offset: usize, len: usize) -> bool {
        (offset..offset + len).step_by(8).all(|at| self.load::<u64>(at) == 0)
    }

    /// Returns the word that fills the whole range, if one word does. `offset` and `len` are multiples of 64.
    /// For most pages, a look at two words is enough. A page that is filled with one word costs 512 loads.
    pub fn repeated_word(&self, offset: usize, len: usize) -> Option<u64> {
        assert!(len >= 64 && (offset | len).is_multiple_of(64), "whole lines");
        let start = self.at(offset, len);
        // SAFETY: `at` checked the whole range, and each use below stays under `len`. The words are aligned.
        // See `load` for the rest.
        let word = |at: usize| unsafe { words::load::<u64>(start.add(at)) };
        let first = word(0);
        if word(8) != first || word(len - 8) != first || word(len / 2) != first {
            return None;
        }
        let differs =
            |line: usize| (0..64).step_by(8).fold(0, |bits, at| bits | (word(line + at) ^ first)) != 0;
        (!(0..len).step_by(64).any(differs)).then_some(first)
    }

    /// Fills the range with one word. `offset` and `len` are multiples of 8.
    pub fn fill(&self, offset: usize, len: usize, word: u64) {
        if word == 0 {
            return self.zero(offset, len);
        }
        assert!((offset | len).is_multiple_of(8), "whole words");
        let start = self.at(offset, len);
        // The module doc gives the reason for the fence.
        fence(Ordering::Release);
        for at in (0..len).step_by(8) {
            // SAFETY: `at` checked the whole range, and the word is aligned. See `load` for the rest.
            unsafe { words::store(start.add(at), word) };
        }
    }

    /// Runs `look` on a copy of the range, for functions that want a slice of arena bytes. The range is at
    /// most a page, and the copy lies on the stack. Copying a page costs some 60 ns.
    #[inline]
    pub fn with_copy<R>(&self, offset: usize, len: usize, look: impl FnOnce(&[u8]) -> R) -> R {
        assert!(len <= PAGE_BYTES, "at most a page");
        let mut copy = MaybeUninit::<[u8; PAGE_BYTES]>::uninit();
        let from = self.at(offset, len);
        // SAFETY: the source is in bounds (`at`); the destination is our own and large enough (asserted). The
        // assembly writes exactly the `len` bytes that the slice then covers. Nobody writes them while the
        // slice lives.
        let copied = unsafe {
            copy_bytes(from, copy.as_mut_ptr().cast(), len);
            std::slice::from_raw_parts(copy.as_ptr().cast::<u8>(), len)
        };
        look(copied)
    }

    /// Moves bytes between `file` at `file_offset` and consecutive `segments` of the arena. It makes one
    /// system call, which waits for the device, and returns how many bytes moved. Fewer bytes than asked for
    /// move at the end of the file, after a signal, or if the segments form more than [`TRANSFER_VECTORS`]
    /// separate runs.
    ///
    /// Fails with the kernel's error if nothing moved.
    pub fn transfer_some(
        &self,
        file: BorrowedFd<'_>,
        file_offset: u64,
        direction: Direction,
        segments: impl Iterator<Item = Range<usize>>,
    ) -> io::Result<usize> {
        if direction == Direction::Read {
            // The module doc gives the reason for the fence.
            fence(Ordering::Release);
        }
        let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; TRANSFER_VECTORS];
        let mut count = 0;
        for run in MergedRuns::new(segments).take(TRANSFER_VECTORS) {
            let len = run.end - run.start;
            vectors[count].write(libc::iovec { iov_base: self.at(run.start, len).cast(), iov_len: len });
            count += 1;
        }
        let (fd, first, offset) = (file.as_raw_fd(), vectors.as_ptr().cast(), file_offset as libc::off_t);
        let transfer = || loop {
            // SAFETY: each of the `count` initialised vectors is a range inside the arena (`at`), which stays
            // mapped during the call. The kernel reads and writes arena bytes as another thread might, and
            // every access to the arena allows for that.
            let moved = unsafe {
                match direction {
                    Direction::Read => libc::preadv(fd, first, count as libc::c_int, offset),
                    Direction::Write => libc::pwritev(fd, first, count as libc::c_int, offset),
                }
            };
            if moved >= 0 {
                return Ok(moved as usize);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        };
        match direction {
            Direction::Read => transfer(),
            Direction::Write => without_size_signal(transfer),
        }
    }

    /// Sends a range of bytes as one message of a connected socket. Returns how many bytes were sent.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn send(&self, socket: BorrowedFd<'_>, range: Range<usize>) -> io::Result<usize> {
        let len = range.len();
        let from = self.at(range.start, len).cast();
        loop {
            // SAFETY: the range is inside the arena (`at`), which stays mapped during the call. The kernel
            // reads arena bytes as another thread might, and every access to the arena allows for that.
            let sent = unsafe { libc::send(socket.as_raw_fd(), from, len, libc::MSG_NOSIGNAL) };
            if sent >= 0 {
                return Ok(sent as usize);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// Rounds down, which takes one instruction. A check would take a branch. Callers refuse unaligned words with
/// an error of their own.
#[inline(always)]
fn aligned<W>(offset: usize) -> usize {
    debug_assert!(offset.is_multiple_of(cell_bytes::<W>()), "word aligned");
    offset & !(cell_bytes::<W>() - 1)
}

/// The most separate runs of bytes that [`ArenaBytes::transfer_some`] hands to the kernel.
pub const TRANSFER_VECTORS: usize = 256;

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the file into the arena.
    Read,
    /// From the arena into the file.
    Write,
}

/// Merges neighbouring segments that touch into one run.
#[derive(Debug)]
pub(crate) struct MergedRuns<I> {
    segments: I,
    next: Option<Range<usize>>,
}

impl<I: Iterator<Item = Range<usize>>> MergedRuns<I> {
    pub(crate) fn new(mut segments: I) -> Self {
        let next = segments.next();
        Self { segments, next }
    }
}

impl<I: Iterator<Item = Range<usize>>> Iterator for MergedRuns<I> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let mut run = self.next.take()?;
        for segment in self.segments.by_ref() {
            assert!(segment.start <= segment.end, "segments go upwards");
            if segment.start != run.end {
                self.next = Some(segment);
                break;
            }
            run.end = segment.end;
        }
        Some(run)
    }
}

/// Copies by `rep movsb`, or word by word if the start-up of that instruction (some 30 cycles) would
/// dominate.
///
/// Both ranges are mapped for `len` bytes and do not overlap. Another thread may access either range by
/// atomics or assembly at the same time, but by nothing else.
#[inline]
unsafe fn copy_bytes(from: *const u8, to: *mut u8, len: usize) {
    if len <= 64 && len.is_multiple_of(8) {
        for at in (0..len).step_by(8) {
            // SAFETY: the loop bound keeps `at` inside both ranges. One side may be the caller's own slice,
            // which atomics must not access. So assembly copies by a single `mov` each way, aligned or not.
            unsafe {
                std::arch::asm!("mov {word}, [{from}]", "mov [{to}], {word}", word = out(reg) _, from = in(reg) from.add(at),
                    to = in(reg) to.add(at), options(nostack, preserves_flags));
            }
        }
        return;
    }
    // SAFETY: the caller promises the ranges. The instruction reads and writes exactly `len` bytes upwards,
    // because the ABI keeps the direction flag clear.
    unsafe {
        std::arch::asm!("rep movsb", inout("rcx") len => _, inout("rsi") from => _, inout("rdi") to => _,
            options(nostack, preserves_flags));
    }
}

const _: () = assert!(PAGE_BYTES.is_multiple_of(8));

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn words_and_ranges_come_back() {
        let arena = ArenaBytes::new(4 << 20).unwrap();
        arena.store(4096, 0x1122_3344_5566_7788_u64);
        assert_eq!(arena.load::<u64>(4096), 0x1122_3344_5566_7788);
        assert_eq!(arena.load::<u8>(4096), 0x88);
        arena.store(4104, -1.5f64);
        assert_eq!(arena.load::<f64>(4104), -1.5);
        arena.store(4112, [1_u32, 2, 3, 4]);
        assert_eq!(arena.load::<u128>(4112), 0x4_0000_0003_0000_0002_0000_0001);
        for len in [1, 7, 8, 63, 64, 65, 4096] {
            let data: Vec<u8> = (0..len).map(|i| i as u8 ^ 0x5a).collect();
            let mut back = vec![0; len];
            arena.copy_in(8192, &data);
            arena.copy_within(8192, 16384, len);
            arena.copy_out(16384, &mut back);
            assert_eq!(back, data);
        }
        assert!(!arena.is_zero(8192, 64));
        arena.zero(8192, 4096);
        assert!(arena.is_zero(8192, 4096));
    }

    #[test]
    fn words_of_every_size_are_exchanged_and_integers_changed() {
        fn exchange<W: Word + PartialEq + std::fmt::Debug>(arena: &ArenaBytes, values: [W; 3]) {
            let [first, second, third] = values;
            assert_eq!(arena.swap(64, first), W::zeroed());
            assert_eq!(arena.compare_exchange(64, second, third), Err(first));
            assert_eq!(arena.compare_exchange(64, first, second), Ok(first));
            assert_eq!((arena.load::<W>(64), arena.load::<u64>(64 + size_of::<W>().max(8))), (second, 0));
            arena.store(64, W::zeroed());
        }
        let arena = ArenaBytes::new(2 << 20).unwrap();
        exchange(&arena, [1_u8, 2, 3]);
        exchange(&arena, [-1_i16, 2, 3]);
        exchange(&arena, [1.5_f32, 2.5, 3.5]);
        exchange(&arena, [[1_u16, 2, 3, 4], [5; 4], [6; 4]]);
        exchange(&arena, [u128::MAX, 2, 3]);
        arena.store(64, -3_i128);
        for (change, operand, after) in [
            (Change::Add, 5, 2_i128),
            (Change::Sub, 4, -2),
            (Change::And, 0xf, 0xe),
            (Change::Or, 1, 0xf),
            (Change::Xor, 2, 0xd),
            (Change::Min, -9, -9),
            (Change::Max, 7, 7),
        ] {
            let before = arena.load::<i128>(64);
            assert_eq!((arena.change(64, change, operand), arena.load(64)), (before, after), "{change:?}");
        }
        assert_eq!(arena.change(8, Change::Sub, 1_u8), 0);
        assert_eq!((arena.load::<u8>(8), arena.load::<u64>(0), arena.load::<u64>(16)), (255, 0, 0));
    }

    #[test]
    fn a_repeated_word_is_told_and_one_other_byte_anywhere_is_seen() {
        let arena = ArenaBytes::new(4 << 20).unwrap();
        assert_eq!(arena.repeated_word(4096, 4096), Some(0));
        arena.fill(4096, 4096, 0x0102_0304_0506_0708);
        assert_eq!(arena.repeated_word(4096, 4096), Some(0x0102_0304_0506_0708));
        assert_eq!(
            (arena.load::<u64>(4088), arena.load::<u64>(8192)),
            (0, 0),
            "its neighbours are as they were"
        );
        for at in 4096..8192 {
            let byte = arena.load::<u8>(at);
            arena.store(at, !byte);
            assert_eq!(arena.repeated_word(4096, 4096), None, "byte {at} differs");
            arena.store(at, byte);
        }
    }

    #[test]
    fn a_copy_holds_exactly_the_range() {
        let arena = ArenaBytes::new(2 << 20).unwrap();
        let data: Vec<u8> = (0..4096).map(|i| (i % 251) as u8).collect();
        arena.copy_in(4096, &data);
        for (offset, len) in [(0, 0), (0, 8), (0, 100), (5, 4091), (0, 4096)] {
            arena.with_copy(4096 + offset, len, |copy| assert_eq!(copy, &data[offset..offset + len]));
        }
    }

    #[test]
    fn one_call_merges_neighbours_and_says_how_much_it_moved() {
        let arena = ArenaBytes::new(4 << 20).unwrap();
        let other = ArenaBytes::new(2 << 20).unwrap();
        let file = tempfile::tempfile().unwrap();
        (0..512).for_each(|page| arena.store(page * 4096, page as u64));
        // 300 adjacent pages are one run. 300 pages that do not touch are more runs than one call takes.
        let together = (0..300).map(|page| page * 4096..(page + 1) * 4096);
        let apart = (0..300).map(|page| page * 8192..page * 8192 + 4096);
        let moved = arena.transfer_some(file.as_fd(), 0, Direction::Write, together).unwrap();
        assert_eq!(moved, 300 * 4096);
        let moved = arena.transfer_some(file.as_fd(), 0, Direction::Write, apart).unwrap();
        assert_eq!(moved, TRANSFER_VECTORS * 4096);
        let moved =
            other.transfer_some(file.as_fd(), 0, Direction::Read, std::iter::once(0..400 * 4096)).unwrap();
        assert_eq!(moved, 300 * 4096, "the file ends there");
        assert_eq!(other.load::<u64>(255 * 4096), 510);
        assert_eq!(other.load::<u64>(256 * 4096), 256);
        other.copy_to(255 * 4096, &arena, 8, 8);
        assert_eq!(arena.load::<u64>(8), 510);
    }

    #[test]
    fn a_clone_keeps_the_memory_and_a_forked_child_unmaps_nothing() {
        let arena = ArenaBytes::new(2 << 20).unwrap();
        let clone = arena.clone();
        arena.store(64, 7u64);
        drop(arena);
        assert_eq!(clone.load::<u64>(64), 7);
        let (at, len) = (clone.pointer(0), clone.len());
        let code = crate::run_in_forked_child(|| {
            // The child's mapping at the same addresses belongs to the child.
            // SAFETY: the child did not inherit the range, so nothing is mapped there; otherwise
            // MAP_FIXED_NOREPLACE fails.
            let mine = unsafe {
                libc::mmap(
                    at.cast(),
                    len,
                    libc::PROT_READ,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                    -1,
                    0,
                )
            };
            if mine != at.cast() {
                return 1;
            }
            drop(clone);
            // SAFETY: the call asks about a range and touches nothing.
            u8::from(unsafe { libc::msync(mine, len, libc::MS_ASYNC) } != 0) * 2
        });
        assert_eq!(code.unwrap(), 0);
    }

    #[test]
    #[should_panic(expected = "inside the arena")]
    fn an_offset_outside_is_refused() {
        let arena = ArenaBytes::new(2 << 20).unwrap();
        arena.load::<u64>(2 << 20);
    }
}
