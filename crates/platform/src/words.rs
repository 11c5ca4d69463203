//! Words of shared memory: plain data of up to 16 bytes that one instruction reads, writes or changes.
//!
//! A word lies in a *cell*: its size, rounded up to a power of two, at a multiple of that. A word that is
//! smaller than its cell changes by compare-and-swap of the cell, and leaves the bytes behind it as they are.
//!
//! Words of 16 bytes use `portable-atomic`: a load is `vmovdqa` on processors with AVX, and `lock cmpxchg16b`
//! on others.
//!
//! Threads may access the same bytes at different sizes. `docs/soundness.md` says what that asks of the
//! language.

use std::sync::atomic::Ordering::{self, Relaxed, SeqCst};
use std::sync::atomic::{
    AtomicI8, AtomicI16, AtomicI32, AtomicI64, AtomicIsize, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    AtomicUsize,
};

use bytemuck::{Pod, bytes_of, bytes_of_mut, cast, pod_read_unaligned};
use portable_atomic::{AtomicI128, AtomicU128};

/// Plain data of 1 to 16 bytes that `load`, `store` and similar calls access in one step: integers,
/// floating-point numbers, arrays of them, and structures that derive
/// [`Pod`](https://docs.rs/bytemuck/latest/bytemuck/trait.Pod.html). A word of another size does not compile.
pub trait Word: Pod {}

impl<T: Pod> Word for T {}

/// The integer types, which `fetch_add` and similar calls change in one step. Arithmetic wraps around.
pub trait Integer: Word + sealed::Integer {}

/// The change that an access makes to an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds, and wraps.
    Add,
    /// Subtracts, and wraps.
    Sub,
    /// Keeps the bits that both have.
    And,
    /// Sets the bits that the operand has.
    Or,
    /// Inverts the bits that the operand has.
    Xor,
    /// Keeps the lesser of the two values.
    Min,
    /// Keeps the greater of the two values.
    Max,
}

mod sealed {
    use super::Change;

    pub trait Integer: Sized {
        /// Changes the integer at `at` in one step, and returns the old value.
        ///
        /// # Safety
        /// The conditions of `super::load`.
        unsafe fn change(at: *mut u8, change: Change, operand: Self) -> Self;
    }
}

/// The size of a word's cell. The word's address is a multiple of this size.
pub const fn cell_bytes<W>() -> usize {
    size_of::<W>().next_power_of_two()
}

/// Whether the word fills its cell.
const fn fills_cell<W>() -> bool {
    size_of::<W>() == cell_bytes::<W>()
}

/// Returns the cell with this word in it. The cell's other bytes stay.
#[inline(always)]
fn with_word<W: Word, Bits: Pod>(mut cell: Bits, word: W) -> Bits {
    if fills_cell::<W>() {
        return cast(word);
    }
    bytes_of_mut(&mut cell)[..size_of::<W>()].copy_from_slice(bytes_of(&word));
    cell
}

/// The word in a cell.
#[inline(always)]
fn word_in<Bits: Pod, W: Word>(cell: Bits) -> W {
    if fills_cell::<W>() { cast(cell) } else { pod_read_unaligned(&bytes_of(&cell)[..size_of::<W>()]) }
}

/// Runs code with the atomic type of a word's cell, and the type of its bits.
macro_rules! by_size {
    ($word:ty, |$atomic:ident, $bits:ident| $run:expr) => {{
        const { assert!(matches!(size_of::<$word>(), 1..=16), "a word has 1 to 16 bytes") };
        macro_rules! run {
            ($a:ty, $b:ty) => {{
                type $atomic = $a;
                type $bits = $b;
                $run
            }};
        }
        match cell_bytes::<$word>() {
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
/// `at` is a multiple of the size of the word's cell. The cell's bytes are mapped, readable and writable, and
/// only atomics, assembly and devices access them. The atomics may have different sizes (`docs/soundness.md`,
/// *What is not claimed*).
#[inline(always)]
pub(crate) unsafe fn load<W: Word>(at: *mut u8) -> W {
    by_size!(W, |Atomic, Bits| {
        // SAFETY: the caller promises what `from_ptr` asks for, except for accesses of other sizes, which
        // x86-64 defines.
        let word = unsafe { Atomic::from_ptr(at.cast()) };
        word_in::<Bits, W>(word.load(Relaxed))
    })
}

/// Stores the word at `at`, relaxed.
///
/// # Safety
/// The conditions of [`load`].
#[inline(always)]
pub(crate) unsafe fn store<W: Word>(at: *mut u8, value: W) {
    by_size!(W, |Atomic, Bits| {
        // SAFETY: as in `load`.
        let word = unsafe { Atomic::from_ptr(at.cast()) };
        if fills_cell::<W>() {
            word.store(with_word::<W, Bits>(0, value), Relaxed);
        } else {
            let changed = word.fetch_update(Relaxed, Relaxed, |cell| Some(with_word(cell, value)));
            debug_assert!(changed.is_ok());
        }
    });
}

/// Exchanges the word at `at`, and returns the old one.
///
/// # Safety
/// The conditions of [`load`].
#[inline(always)]
pub(crate) unsafe fn swap<W: Word>(at: *mut u8, value: W) -> W {
    by_size!(W, |Atomic, Bits| {
        // SAFETY: as in `load`.
        let word = unsafe { Atomic::from_ptr(at.cast()) };
        word_in::<Bits, W>(if fills_cell::<W>() {
            word.swap(with_word::<W, Bits>(0, value), SeqCst)
        } else {
            word.fetch_update(SeqCst, SeqCst, |cell| Some(with_word(cell, value))).unwrap_or_else(|cell| cell)
        })
    })
}

/// Exchanges the word at `at` if its bytes are those of `current`. Returns the old word, as an error if it
/// differed.
///
/// # Safety
/// The conditions of [`load`].
#[inline(always)]
pub(crate) unsafe fn compare_exchange<W: Word>(at: *mut u8, current: W, new: W) -> Result<W, W> {
    by_size!(W, |Atomic, Bits| {
        // SAFETY: as in `load`.
        let word = unsafe { Atomic::from_ptr(at.cast()) };
        let outcome = if fills_cell::<W>() {
            let (current, new) = (with_word::<W, Bits>(0, current), with_word::<W, Bits>(0, new));
            word.compare_exchange(current, new, SeqCst, SeqCst)
        } else {
            // If only the bytes behind the word have changed meanwhile, this tries again.
            word.fetch_update(SeqCst, SeqCst, |cell| {
                (with_word(cell, current) == cell).then(|| with_word(cell, new))
            })
        };
        outcome.map(word_in).map_err(word_in)
    })
}

/// Changes the integer at `at`, and returns the old value.
///
/// # Safety
/// The conditions of [`load`].
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
