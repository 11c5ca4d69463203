//! Copies between this process's memory and another's (`process_vm_readv`, `process_vm_writev`).
//!
//! The other process takes no part and notices nothing. A missing page in a range that a userfaultfd watches
//! causes a fault: **the caller then sleeps until the page is filled.** A pager must not read pages that it
//! would have to fill itself.
//!
//! Cost: about 1 µs plus the copy.

use std::io;

use rustix::io::Errno;

/// The most vectors of one system call.
const VECTORS: usize = 1024;

/// Copies bytes of another process into memory of this one, and returns their number. The remote pieces are
/// read in order, and fill the local pieces in order. The copy ends with the shorter side.
///
/// If the kernel meets memory that it cannot read, the number is less than either side's length. If it meets
/// such memory at the very start, the call fails with `EFAULT`. It also fails with `ESRCH` for a process that
/// has ended, and with `EPERM` for another user's process.
///
/// # Safety
///
/// Each local piece is memory of this process, as long as the piece, that may be written and that nobody
/// borrows.
pub unsafe fn read_process(pid: u32, remote: &[(u64, u64)], local: &[(*mut u8, usize)]) -> io::Result<usize> {
    let local = local.iter().map(|&(start, len)| (start as u64, len as u64));
    // SAFETY: the caller's promise; the kernel writes inside the local pieces only.
    unsafe {
        copy(
            libc::SYS_process_vm_readv,
            pid,
            PieceCursor::new(local),
            PieceCursor::new(remote.iter().copied()),
        )
    }
}

/// Fills a slice with bytes of another process.
///
/// Fails like [`read_process`], and with `UnexpectedEof` if only a part can be read.
pub fn fill_from_process(pid: u32, address: u64, bytes: &mut [u8]) -> io::Result<()> {
    let (remote, local) = ([(address, bytes.len() as u64)], [(bytes.as_mut_ptr(), bytes.len())]);
    // SAFETY: the local piece is a live slice that is borrowed mutably.
    let read = unsafe { read_process(pid, &remote, &local) }?;
    if read == bytes.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Copies bytes of this process to an address of another one, and returns their number. The errors are those
/// of [`read_process`].
///
/// # Panics
///
/// Never. A write to this very process fails with `InvalidInput`, since it could overwrite anything.
pub fn write_process(pid: u32, remote: u64, bytes: &[u8]) -> io::Result<usize> {
    if pid == std::process::id() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let local = std::iter::once((bytes.as_ptr() as u64, bytes.len() as u64));
    let remote = std::iter::once((remote, bytes.len() as u64));
    // SAFETY: the bytes are only read, and are borrowed for the call.
    unsafe { copy(libc::SYS_process_vm_writev, pid, PieceCursor::new(local), PieceCursor::new(remote)) }
}

/// Returns whether two processes share their memory, as a process and its `vfork` child do.
pub fn share_memory(pid: u32, other: u32) -> bool {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: the call takes numbers only.
    unsafe { libc::syscall(libc::SYS_kcmp, pid, other, KCMP_VM, 0, 0) == 0 }
}

/// # Safety
///
/// The local pieces are memory of this process that the call may read or write, as its direction demands.
unsafe fn copy(
    call: libc::c_long,
    pid: u32,
    mut local: PieceCursor<impl Iterator<Item = (u64, u64)>>,
    mut remote: PieceCursor<impl Iterator<Item = (u64, u64)>>,
) -> io::Result<usize> {
    let mut done = 0;
    loop {
        let here = local.window();
        let there = remote.window();
        let asked = total(here).min(total(there));
        if asked == 0 {
            return Ok(done);
        }
        // SAFETY: both lists are live for the call, and at most as long as the kernel allows. The caller
        // answers for the local pieces.
        let copied = unsafe {
            libc::syscall(call, pid as usize, here.as_ptr(), here.len(), there.as_ptr(), there.len(), 0usize)
        };
        let copied = match copied {
            0 => return Ok(done),
            1.. => copied as u64,
            _ => {
                let error = io::Error::last_os_error();
                match Errno::from_io_error(&error) {
                    Some(Errno::INTR) => continue,
                    _ if done > 0 => return Ok(done),
                    _ => return Err(error),
                }
            }
        };
        done += copied as usize;
        local.advance(copied);
        remote.advance(copied);
    }
}

/// A list of pieces, passed to the kernel a window at a time.
struct PieceCursor<I> {
    rest: I,
    window: Vec<libc::iovec>,
}

impl<I: Iterator<Item = (u64, u64)>> PieceCursor<I> {
    fn new(pieces: I) -> Self {
        Self { rest: pieces, window: Vec::new() }
    }

    /// The next pieces, at most [`VECTORS`] of them.
    fn window(&mut self) -> &[libc::iovec] {
        while self.window.len() < VECTORS {
            let Some((start, len)) = self.rest.next() else { break };
            if len > 0 {
                self.window.push(libc::iovec { iov_base: start as *mut libc::c_void, iov_len: len as usize });
            }
        }
        &self.window
    }

    fn advance(&mut self, mut bytes: u64) {
        let mut whole = 0;
        for piece in &mut self.window {
            let part = bytes.min(piece.iov_len as u64);
            piece.iov_base = piece.iov_base.wrapping_byte_add(part as usize);
            piece.iov_len -= part as usize;
            bytes -= part;
            if piece.iov_len > 0 {
                break;
            }
            whole += 1;
        }
        self.window.drain(..whole);
    }
}

fn total(pieces: &[libc::iovec]) -> u64 {
    // The kernel does not accept pieces whose lengths add up to more than this.
    pieces.iter().fold(0u64, |sum, piece| sum.saturating_add(piece.iov_len as u64)).min(i64::MAX as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PAGE_BYTES, Reservation};

    const PAGE: u64 = PAGE_BYTES as u64;

    #[test]
    fn reads_scattered_pieces_in_order_over_the_limit_of_one_call() {
        let source: Vec<u8> = (0..12_000u32).map(|n| n as u8).collect();
        let base = source.as_ptr() as u64;
        let remote: Vec<(u64, u64)> = (0..3000).rev().map(|n| (base + n * 4, 4)).collect();
        let mut target = vec![0u8; 12_000];
        let local: Vec<(*mut u8, usize)> = target.chunks_mut(5).map(|c| (c.as_mut_ptr(), c.len())).collect();
        // SAFETY: the local pieces lie in `target`, which nobody borrows meanwhile.
        let read = unsafe { read_process(std::process::id(), &remote, &local) }.unwrap();
        let expected: Vec<u8> = source.chunks(4).rev().flatten().copied().collect();
        assert_eq!((read, target), (12_000, expected));
    }

    #[test]
    fn a_hole_in_the_address_space_ends_the_copy_before_it() {
        let range = Reservation::new(4 * PAGE_BYTES, PAGE_BYTES).unwrap();
        let start = range.base().as_ptr() as u64;
        // SAFETY: the page is inside the range, and nobody uses it.
        unsafe { libc::mprotect((start + 2 * PAGE) as *mut _, PAGE_BYTES, libc::PROT_NONE) };
        let mut target = vec![1u8; 4 * PAGE_BYTES];
        let local = [(target.as_mut_ptr(), target.len())];
        // SAFETY: the local piece is `target`, which nobody borrows meanwhile.
        let read = |from| unsafe { read_process(std::process::id(), &[(from, 4 * PAGE)], &local) };
        assert_eq!(read(start).unwrap(), 2 * PAGE_BYTES);
        assert_eq!(read(start + 2 * PAGE).unwrap_err().raw_os_error(), Some(libc::EFAULT));
    }

    #[test]
    fn a_write_to_this_very_process_is_refused() {
        let error = write_process(std::process::id(), 4096, &[1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_write_reaches_another_process() {
        let range = Reservation::new(PAGE_BYTES, PAGE_BYTES).unwrap();
        range.populate(0..PAGE_BYTES).unwrap();
        let start = range.base().as_ptr() as u64;
        // SAFETY: the child only waits for its end.
        let child = unsafe {
            match libc::fork() {
                0 => loop {
                    libc::pause();
                },
                pid => pid as u32,
            }
        };
        assert_eq!(write_process(child, start + 1, b"octavo").unwrap(), 6);
        let mut back = [0u8; 7];
        // SAFETY: the local piece is `back`, which nobody borrows meanwhile.
        let read = unsafe { read_process(child, &[(start, 7)], &[(back.as_mut_ptr(), 7)]) };
        // SAFETY: the child is ours, and ends here.
        unsafe {
            libc::kill(child as i32, libc::SIGKILL);
            libc::waitpid(child as i32, std::ptr::null_mut(), 0);
        }
        assert_eq!((read.unwrap(), &back), (7, b"\0octavo"));
        assert_eq!(write_process(child, start, &[1]).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
