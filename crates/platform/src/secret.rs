//! A value that should leave no trace: not swapped out by the kernel, not in a core dump.

use std::mem::ManuallyDrop;
use std::ops::Deref;

use crate::PAGE_BYTES;

/// Pages of its own for a value, so that what is asked of the kernel for them concerns nothing else.
#[repr(align(4096))]
struct Alone<T>(ManuallyDrop<T>);

/// A value in pages of its own that the kernel keeps in memory and out of core dumps, as far as it is willing: a limit
/// on locked memory (`RLIMIT_MEMLOCK`) may forbid the first. Wiping the bytes at the end is for `T` to do.
pub struct Secret<T> {
    value: Box<Alone<T>>,
}

impl<T> Secret<T> {
    /// Moves a value there.
    pub fn new(value: T) -> Self {
        let secret = Self { value: Box::new(Alone(ManuallyDrop::new(value))) };
        let (start, len) = secret.pages();
        // SAFETY: whole pages of a live allocation of ours (aligned to pages, and as large as a multiple of them). Neither
        // call changes their bytes or access; both may fail, which leaves them as they are.
        unsafe {
            libc::mlock(start, len);
            libc::madvise(start.cast_mut(), len, libc::MADV_DONTDUMP);
        }
        secret
    }

    fn pages(&self) -> (*const libc::c_void, usize) {
        const { assert!(align_of::<Alone<T>>() == PAGE_BYTES) };
        (std::ptr::from_ref(&*self.value).cast(), size_of::<Alone<T>>())
    }
}

impl<T> Deref for Secret<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value.0
    }
}

impl<T> std::fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

impl<T> Drop for Secret<T> {
    fn drop(&mut self) {
        // SAFETY: dropped here and nowhere else, before its pages are as any others again.
        unsafe { ManuallyDrop::drop(&mut self.value.0) };
        let (start, len) = self.pages();
        // SAFETY: as in `new`. The allocator may give these pages to others next, who expect them like any other.
        unsafe {
            libc::munlock(start, len);
            libc::madvise(start.cast_mut(), len, libc::MADV_DODUMP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_secret_lies_alone_locked_and_out_of_dumps() {
        let secret = Secret::new([0x5a_u8; 40]);
        assert_eq!(*secret, [0x5a; 40]);
        let address = std::ptr::from_ref(&*secret) as usize;
        assert!(address.is_multiple_of(PAGE_BYTES));
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = maps.lines();
        let inside = |line: &str| {
            let (start, rest) = line.split_once('-')?;
            let end = rest.split_once(' ')?.0;
            let bound = |text| usize::from_str_radix(text, 16).ok();
            Some((bound(start)?..bound(end)?).contains(&address))
        };
        lines.find(|line| inside(line) == Some(true)).expect("mapped");
        let flags = lines.find(|line| line.starts_with("VmFlags:")).expect("flags");
        assert!(flags.contains(" dd"), "not dumped: {flags}");
        // One page is within any usual limit.
        assert!(flags.contains(" lo"), "locked: {flags}");
    }
}
