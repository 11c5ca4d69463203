//! A large array of atomics in reserved address space. Every element is zero at first. The kernel allocates a
//! page at its first touch. The array never moves.

use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, Range};

use zerocopy::FromZeros;

use crate::{PAGE_BYTES, Reservation};

/// `len` values of `T`, zero until written. An untouched page costs address space only.
#[derive(Debug)]
pub struct ZeroedArray<T> {
    memory: Reservation,
    len: usize,
    element: PhantomData<T>,
}

impl<T: FromZeros + Sync> ZeroedArray<T> {
    /// Reserves room for `len` values.
    ///
    /// Fails with the kernel's error if the address space is exhausted.
    pub fn new(len: usize) -> io::Result<Self> {
        const { assert!(align_of::<T>() <= PAGE_BYTES && size_of::<T>() > 0) };
        let bytes = len.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = Reservation::new(bytes, PAGE_BYTES)?;
        memory.advise_backing(0..memory.len(), crate::Backing::BasePages);
        Ok(Self { memory, len, element: PhantomData })
    }

    /// Reserves room as [`ZeroedArray::new`] does, but a forked child finds every value zero.
    ///
    /// Fails with the kernel's error. Before Linux 4.14, the kernel cannot wipe memory on fork.
    pub fn wiped_on_fork(len: usize) -> io::Result<Self> {
        let array = Self::new(len)?;
        array.memory.wipe_on_fork()?;
        Ok(array)
    }

    /// Makes the memory of these elements present now. Touching them later cannot fail.
    ///
    /// Fails with `OutOfMemory` if the kernel has no memory.
    pub fn populate(&self, elements: Range<usize>) -> io::Result<()> {
        assert!(elements.end <= self.len, "elements inside the array");
        let start = elements.start * size_of::<T>() / PAGE_BYTES * PAGE_BYTES;
        let end = (elements.end * size_of::<T>()).next_multiple_of(PAGE_BYTES);
        self.memory.populate(start..end.min(self.memory.len()))
    }
}

impl<T: FromZeros + Sync> Deref for ZeroedArray<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the reservation holds `len * size_of::<T>()` bytes at page alignment, which is enough for
        // `T` (`new` checks it). All-zero bytes are a valid `T` (`FromZeros`). The memory is never unmapped,
        // discarded or mutably borrowed while `self` lives. The kernel wipes it on fork before the child's
        // first instruction, so within one process values change only through `T`'s own interior mutability.
        unsafe { std::slice::from_raw_parts(self.memory.base().as_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn starts_zero_and_keeps_what_is_stored() {
        let array = ZeroedArray::<AtomicU64>::new(1 << 30).unwrap();
        assert_eq!(array[(1 << 30) - 1].load(Ordering::Relaxed), 0);
        array[12345].store(7, Ordering::Relaxed);
        array.populate(12000..13000).unwrap();
        assert_eq!(array[12345].load(Ordering::Relaxed), 7);
    }
}
