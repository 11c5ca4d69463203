//! Reads the text files about a process in `/proc/PID`.

use std::fs;
use std::io;

/// Reads a file of a process: `status`, or `task/TID/stat`. Names of files and threads in it may be any
/// bytes; the function replaces bytes that are not UTF-8.
///
/// # Errors
/// The kernel's error if the process has ended, if its file may not be read, or if no descriptors are left.
pub fn read(pid: u32, file: &str) -> io::Result<String> {
    let bytes = fs::read(format!("/proc/{pid}/{file}"))?;
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Returns the name of a process's program, for display.
pub fn name(pid: u32) -> String {
    read(pid, "comm").map_or_else(|_| "?".into(), |name| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_whatever_the_names_in_them() {
        let name = |tid: u32| format!("task/{tid}/comm");
        std::thread::spawn(move || {
            let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            rustix::thread::set_name(c"a\xffb").unwrap();
            assert_eq!(read(std::process::id(), &name(tid)).unwrap(), "a\u{fffd}b\n");
            assert!(read(std::process::id(), &format!("task/{tid}/stat")).unwrap().contains("(a\u{fffd}b)"));
        })
        .join()
        .unwrap();
        assert!(read(u32::MAX, "stat").is_err());
    }
}
