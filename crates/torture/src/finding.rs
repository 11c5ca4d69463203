//! Ends the program at the first error that it finds: one sentence on standard error, and exit status 1.
//!
//! A finding may come from a forked child or from a signal handler. So it is written from the stack by one
//! system call, and the process ends by `_exit`, without destructors. Everything that the program makes ends
//! with it.

use std::fmt::{self, Write};

/// The exit status of a finding.
pub const FOUND: i32 = 1;

/// A short text on the stack. The rest of a longer text is cut off.
struct Sentence {
    bytes: [u8; 480],
    used: usize,
}

impl Write for Sentence {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let taken = text.len().min(self.bytes.len() - self.used);
        self.bytes[self.used..self.used + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.used += taken;
        Ok(())
    }
}

/// Prints what is wrong, and ends the process.
pub fn report(what: fmt::Arguments<'_>) -> ! {
    let mut sentence = Sentence { bytes: [0; 480], used: 0 };
    let _ = writeln!(sentence, "octavo-torture (process {}): {what}", std::process::id());
    // SAFETY: the text lies on this stack and is initialised up to `used`. `_exit` takes no memory.
    unsafe {
        libc::write(libc::STDERR_FILENO, sentence.bytes.as_ptr().cast(), sentence.used);
        libc::_exit(FOUND)
    }
}

/// Ends the process by [`report`] unless the condition holds.
macro_rules! insist {
    ($condition:expr, $($what:tt)+) => {
        if !$condition {
            $crate::finding::report(format_args!($($what)+));
        }
    };
}
pub(crate) use insist;

/// The last error of a system call.
pub fn last_error() -> std::io::Error {
    std::io::Error::last_os_error()
}

/// The number of the last error of a system call.
pub fn last_errno() -> i32 {
    last_error().raw_os_error().unwrap_or(0)
}
