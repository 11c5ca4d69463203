//! Words of shared memory: plain data of up to 16 bytes that one instruction reads, writes or changes.
//!
//! Words of 16 bytes go by `portable-atomic`: a load is `vmovdqa` on processors with AVX, and `lock cmpxchg16b` on others.
//!
//! Threads may access the same bytes at different sizes. `docs/soundness.md` says what that asks of the language.

use std::sync::atomic::Ordering::{self, Relaxed, SeqCst};
use std::sync::atomic::{
    AtomicI8, AtomicI16, AtomicI32, AtomicI64, AtomicIsize, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    AtomicUsize,
};

use bytemuck::{Pod, cast};
use portable_atomic::{AtomicI128, AtomicU128};

/// Plain data of 1, 2, 4, 8 or 16 bytes, which one access reads or writes: integers, floating-point numbers, arrays of them, and
/// structures that derive [`Pod`]. To access data of another size as a word does not compile.
pub trait Word: Pod {}

impl<T: Pod> Word for T {}

/// An integer that one access changes, by arithmetic that wraps.
pub trait Integer: Word + sealed::Integer {}

/// What an access does to an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds, and wraps.
    Add,
    /// Subtracts, and wraps.
    Sub,
    /// Keeps the bits that both have.
    And,
    /// Adds the other's bits.
    Or,
    /// Inverts the other's bits.
    Xor,
    /// Keeps the lesser.
    Min,
    /// Keeps the greater.
    Max,
}

mod sealed {
    use super::Change;

    pub trait Integer: Sized {
        /// Changes the integer at `at` in one step, and returns what it was.
        ///
        /// # Safety
        /// As for `super::load`.
        unsafe fn change(at: *mut u8, change: Change, operand: Self) -> Self;
    }
}

/// Runs code with the atomic type of a word's size, and the type of its bits.
macro_rules! by_size {
    ($word:ty, |$atomic:ident, $bits:ident| $run:expr) => {{
        const { assert!(matches!(size_of::<$word>(), 1 | 2 | 4 | 8 | 16), "a word has 1, 2, 4, 8 or 16 bytes") };
        macro_rules! run {
            ($a:ty, $b:ty) => {{
                type $atomic = $a;
                type $bits = $b;
                $run
            }};
        }
        match size_of::<$word>() {
            1 => run!(AtomicU8, u8),
            2 => run!(AtomicU16, u16),
            4 => run!(AtomicU32, u32),
            8 => run!(AtomicU64, u64),
            _ => run!(AtomicU128, u128),
        }
    }};
}

/// Loads the word at `at`, relaxed.
///
/// # Safety
/// `at` is a multiple of the word's size. Its bytes are mapped, readable and writable, and only atomics, assembly and devices
/// access them. The atomics may have different sizes (`docs/soundness.md`, *What is not claimed*).
#[inline(always)]
pub(crate) unsafe fn load<W: Word>(at: *mut u8) -> W {
    by_size!(W, |Atomic, Bits| {
        // SAFETY: the caller promises what `from_ptr` asks for, but for accesses of other sizes, which x86-64 defines.
        let word = unsafe { Atomic::from_ptr(at.cast()) };
        cast::<Bits, W>(word.load(Relaxed))
    })
}

/// Stores the word at `at`, relaxed.
///
/// # Safety
/// As for [`load`].
#[inline(always)]
pub(crate) unsafe fn store<W: Word>(at: *mut u8, value: W) {
    by_size!(W, |Atomic, Bits| {
        // SAFETY: as in `load`.
        let word = unsafe { Atomic::from_ptr(at.cast()) };
        word.store(cast::<W, Bits>(value), Relaxed);
    });
}

/// Exchanges the word at `at`, and returns what it was.
///
/// # Safety
/// As for [`load`].
#[inline(always)]
pub(crate) unsafe fn swap<W: Word>(at: *mut u8, value: W) -> W {
    by_size!(W, |Atomic, Bits| {
        // SAFETY: as in `load`.
        let word = unsafe { Atomic::from_ptr(at.cast()) };
        cast::<Bits, W>(word.swap(cast::<W, Bits>(value), SeqCst))
    })
}

/// Exchanges the word at `at` if its bytes are those of `current`. Returns what it was, as an error if it was something else.
///
/// # Safety
/// As for [`load`].
#[inline(always)]
pub(crate) unsafe fn compare_exchange<W: Word>(at: *mut u8, current: W, new: W) -> Result<W, W> {
    by_size!(W, |Atomic, Bits| {
        // SAFETY: as in `load`.
        let word = unsafe { Atomic::from_ptr(at.cast()) };
        let (current, new) = (cast::<W, Bits>(current), cast::<W, Bits>(new));
        word.compare_exchange(current, new, SeqCst, SeqCst).map(cast).map_err(cast)
    })
}

/// Changes the integer at `at`, and returns what it was.
///
/// # Safety
/// As for [`load`].
#[inline(always)]
pub(crate) unsafe fn change<I: Integer>(at: *mut u8, change: Change, operand: I) -> I {
    // SAFETY: the caller promises what `change` asks for.
    unsafe { I::change(at, change, operand) }
}

macro_rules! integers {
    ($($integer:ty, $atomic:ty;)*) => {$(
        impl Integer for $integer {}

        impl sealed::Integer for $integer {
            #[inline(always)]
            unsafe fn change(at: *mut u8, change: Change, operand: Self) -> Self {
                const ORDER: Ordering = SeqCst;
                // SAFETY: as in `load`.
                let word = unsafe { <$atomic>::from_ptr(at.cast()) };
                match change {
                    Change::Add => word.fetch_add(operand, ORDER),
                    Change::Sub => word.fetch_sub(operand, ORDER),
                    Change::And => word.fetch_and(operand, ORDER),
                    Change::Or => word.fetch_or(operand, ORDER),
                    Change::Xor => word.fetch_xor(operand, ORDER),
                    Change::Min => word.fetch_min(operand, ORDER),
                    Change::Max => word.fetch_max(operand, ORDER),
                }
            }
        }
    )*};
}

integers! {
    u8, AtomicU8;
    u16, AtomicU16;
    u32, AtomicU32;
    u64, AtomicU64;
    u128, AtomicU128;
    usize, AtomicUsize;
    i8, AtomicI8;
    i16, AtomicI16;
    i32, AtomicI32;
    i64, AtomicI64;
    i128, AtomicI128;
    isize, AtomicIsize;
}
