//! A value that should leave no trace: the kernel does not swap it out, and core dumps do not contain it.

use std::mem::ManuallyDrop;
use std::ops::Deref;

use crate::PAGE_BYTES;

/// Gives a value pages of its own, so that requests to the kernel about them affect nothing else.
#[repr(align(4096))]
struct Alone<T>(ManuallyDrop<T>);

/// A value in pages of its own, which the kernel keeps in memory and out of core dumps if it can. A limit on
/// locked memory (`RLIMIT_MEMLOCK`) may keep the kernel from locking them. `T` itself must wipe the bytes at
/// the end.
pub struct Secret<T> {
    value: Box<Alone<T>>,
}

impl<T> Secret<T> {
    /// Moves a value into pages of its own.
    pub fn new(value: T) -> Self {
        let secret = Self { value: Box::new(Alone(ManuallyDrop::new(value))) };
        let (start, len) = secret.pages();
        // SAFETY: the range is whole pages of a live allocation of ours: aligned to pages, and as large as a
        // multiple of them. Neither call changes their bytes or the access to them. A call that fails leaves
        // the pages as they are.
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
        // SAFETY: the value is dropped here and nowhere else, before its pages become ordinary pages again.
        unsafe { ManuallyDrop::drop(&mut self.value.0) };
        let (start, len) = self.pages();
        // SAFETY: as in `new`. The allocator may give these pages to another owner, who expects ordinary
        // pages.
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
