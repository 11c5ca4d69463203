//! System calls that move bytes between mappings and files, pipes and processes, down to the last byte.

use std::fs::{File, OpenOptions};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::finding::{insist, last_errno, last_error, report};
use crate::memory::OwnMapping;

/// A range of a mapping, for the kernel to read or write while the mapping is borrowed.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a> {
    at: *mut u8,
    bytes: usize,
    mapping: PhantomData<&'a OwnMapping>,
}

// SAFETY: a slice stands for a shared borrow of its mapping, which may be sent.
unsafe impl Send for Slice<'_> {}

impl<'a> Slice<'a> {
    pub fn new(mapping: &'a OwnMapping, offset: usize, bytes: usize) -> Self {
        Self { at: mapping.pointer(offset, bytes), bytes, mapping: PhantomData }
    }

    pub fn address(self) -> u64 {
        self.at as u64
    }

    pub fn bytes(self) -> usize {
        self.bytes
    }

    pub fn vector(self) -> libc::iovec {
        libc::iovec { iov_base: self.at.cast(), iov_len: self.bytes }
    }

    fn behind(self, bytes: usize) -> Self {
        assert!(bytes <= self.bytes);
        Self { at: self.at.wrapping_add(bytes), bytes: self.bytes - bytes, mapping: PhantomData }
    }
}

/// An unnamed file.
#[derive(Debug)]
pub struct ScratchFile(File);

impl ScratchFile {
    pub fn new(folder: &Path) -> Self {
        Self::open(folder, 0).unwrap_or_else(|error| {
            report(format_args!("a file without a name in {} was refused: {error}", folder.display()))
        })
    }

    /// Opens a file that bypasses the page cache, if the file system supports that.
    pub fn direct(folder: &Path) -> Option<Self> {
        Self::open(folder, libc::O_DIRECT).ok()
    }

    fn open(folder: &Path, flags: i32) -> std::io::Result<Self> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).custom_flags(libc::O_TMPFILE | flags);
        options.open(folder).map(Self)
    }

    pub fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub fn write(&self, from: Slice<'_>, offset: usize) {
        in_full("pwrite", from, |left, done| {
            // SAFETY: the range is mapped while it is borrowed, and no reference borrows its bytes.
            unsafe { libc::pwrite(self.descriptor(), left.at.cast(), left.bytes, (offset + done) as i64) }
        });
    }

    pub fn read(&self, to: Slice<'_>, offset: usize) {
        in_full("pread", to, |left, done| {
            // SAFETY: as in `write`. The kernel writes words that are reached by atomics only.
            unsafe { libc::pread(self.descriptor(), left.at.cast(), left.bytes, (offset + done) as i64) }
        });
    }

    /// Reads the start of the file into many ranges by one call.
    pub fn read_scattered<'a>(&self, to: impl Iterator<Item = Slice<'a>>) {
        let vectors: Vec<_> = to.map(Slice::vector).collect();
        let wanted: usize = vectors.iter().map(|vector| vector.iov_len).sum();
        // SAFETY: as in `read`, for each range.
        let read = unsafe { libc::preadv(self.descriptor(), vectors.as_ptr(), vectors.len() as i32, 0) };
        insist!(
            read == wanted as isize,
            "preadv of {wanted} bytes into {} ranges moved {read}: {}",
            vectors.len(),
            last_error()
        );
    }
}

/// Writes the whole range to a pipe.
pub fn write_all(pipe: &impl AsRawFd, from: Slice<'_>) {
    in_full("write", from, |left, _| {
        // SAFETY: as in `ScratchFile::write`.
        unsafe { libc::write(pipe.as_raw_fd(), left.at.cast(), left.bytes) }
    });
}

/// Fills the whole range from a pipe.
pub fn read_all(pipe: &impl AsRawFd, to: Slice<'_>) {
    in_full("read", to, |left, _| {
        // SAFETY: as in `ScratchFile::read`.
        unsafe { libc::read(pipe.as_raw_fd(), left.at.cast(), left.bytes) }
    });
}

/// This process's memory, as a debugger reads it.
#[derive(Debug)]
pub struct Debugged(File);

impl Debugged {
    pub fn new() -> Self {
        Self(File::open("/proc/self/mem").unwrap_or_else(|error| {
            report(format_args!("/proc/self/mem was refused: {error}"));
        }))
    }

    /// Copies a range. Returns `false` if a page is missing: in this call, the kernel does not ask a pager
    /// for it.
    pub fn read(&self, from: Slice<'_>, to: Slice<'_>) -> bool {
        // SAFETY: the target is mapped while it is borrowed, and no reference borrows its bytes. The source
        // is an offset in a file.
        let read =
            unsafe { libc::pread(self.0.as_raw_fd(), to.at.cast(), to.bytes, from.address().cast_signed()) };
        insist!(read >= 0 || last_errno() == libc::EIO, "a read of /proc/self/mem failed: {}", last_error());
        read == to.bytes as isize
    }
}

/// Writes to memory of this process as if it were another's.
pub fn process_write(from: Slice<'_>, to: Slice<'_>) {
    between(from, to, "process_vm_writev", |own, other| {
        // SAFETY: both ranges are mapped while they are borrowed, and no reference borrows their bytes.
        unsafe { libc::process_vm_writev(libc::getpid(), own, 1, other, 1, 0) }
    });
}

/// Reads memory of this process as if it were another's.
pub fn process_read(from: Slice<'_>, to: Slice<'_>) {
    between(to, from, "process_vm_readv", |own, other| {
        // SAFETY: as in `process_write`.
        unsafe { libc::process_vm_readv(libc::getpid(), own, 1, other, 1, 0) }
    });
}

fn between(
    own: Slice<'_>,
    other: Slice<'_>,
    name: &str,
    call: impl Fn(*const libc::iovec, *const libc::iovec) -> isize,
) {
    let moved = call(&own.vector(), &other.vector());
    insist!(
        moved == own.bytes as isize,
        "{name} of {} bytes at {:p} moved {moved}: {}",
        own.bytes,
        other.at,
        last_error()
    );
}

/// Repeats a call until the whole range is transferred.
fn in_full(name: &str, range: Slice<'_>, call: impl Fn(Slice<'_>, usize) -> isize) {
    let mut done = 0;
    while done < range.bytes {
        match call(range.behind(done), done) {
            -1 if last_errno() == libc::EINTR => {}
            moved if moved > 0 => done += moved as usize,
            moved => report(format_args!(
                "{name} of {} bytes at {:p} answered {moved} after {done} bytes: {}",
                range.bytes,
                range.at,
                last_error()
            )),
        }
    }
}
