//! Processes that keep this one's descriptors when it dies.
//!
//! ```text
//!   start ─► waits beside this process ─► this process has ended, and so has the heir before ─► becomes another program
//! ```
//!
//! An heir shares the table of descriptors with this process (`clone` with `CLONE_FILES`). So it has each
//! descriptor as soon as the kernel makes it, and nobody has to send one. Like any forked child, an heir has
//! a copy of this process's memory. It uses only its orders there. Once this process is dead, the heir makes
//! the table its own, closes all but the descriptors that it was told to keep, and runs a program that
//! inherits those.
//!
//! A process with threads may start an heir, since an heir neither allocates nor locks.

use std::ffi::{CStr, c_char};
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, RawDir, readlinkat_raw};

use crate::threads::{stat_field, use_default_action};

/// The most arguments of the program.
const MOST_ARGUMENTS: usize = 8;
/// The standard streams, which an heir keeps.
const STREAMS: i32 = 3;
/// The time between two tries to become the program, while the kernel lacks memory.
const AGAIN_MS: i32 = 100;

/// An heir's orders. The two processes share the table, so the starter must keep all of these descriptors
/// open while the heir lives.
#[derive(Clone, Copy, Debug)]
pub struct Heir<'a> {
    /// The heir's name in lists of processes.
    pub name: &'a CStr,
    /// The pidfd of this process.
    pub of: BorrowedFd<'a>,
    /// The pidfd of another heir, whose end this one waits for.
    pub after: Option<BorrowedFd<'a>>,
    /// The program that the heir becomes.
    pub program: &'a CStr,
    /// The arguments. The first is the program's name.
    pub arguments: &'a [&'a CStr],
    /// The program's standard input. Its standard output is `/dev/null`.
    pub input: BorrowedFd<'a>,
    /// The link target in `/proc/self/fd` of the descriptors that the program inherits.
    pub keeps: &'a CStr,
}

impl Heir<'_> {
    /// Starts the heir, which is a child of this process and in a group of its own. Returns its number.
    ///
    /// # Errors
    /// The kernel's error if there are too many processes or no memory.
    pub fn start(&self) -> io::Result<u32> {
        let mut arguments = [std::ptr::null(); MOST_ARGUMENTS + 1];
        let (places, _end) = arguments.split_at_mut(MOST_ARGUMENTS);
        places.iter_mut().zip(self.arguments).for_each(|(place, argument)| *place = argument.as_ptr());
        let places_of_arguments = places_of_arguments();
        let flags = libc::CLONE_FILES | libc::SIGCHLD;
        // SAFETY: without `CLONE_VM` and a stack of its own, the child continues like a forked one, in a copy
        // of this memory. The child has only this thread, and locks of other threads may stay held for ever.
        // `live` takes no lock: it makes system calls only.
        match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
            -1 => Err(io::Error::last_os_error()),
            0 => self.live(&arguments, places_of_arguments),
            pid => Ok(pid as u32),
        }
    }

    /// The life of an heir.
    fn live(&self, arguments: &[*const c_char; MOST_ARGUMENTS + 1], places: Range<u64>) -> ! {
        for signal in 1..=31 {
            // A handler of this process would write to descriptors that both processes share.
            use_default_action(signal);
        }
        self.take_name(places);
        wait_for_end(self.of);
        self.take_table();
        while self.take_descriptors().is_err() {
            wait_a_while();
        }
        self.after.into_iter().for_each(wait_for_end);
        if let Ok(nothing) = rustix::fs::open(c"/dev/null", OFlags::RDWR, Mode::empty()) {
            replace(&nothing, 1);
        }
        replace(&self.input, 0);
        loop {
            // SAFETY: the strings and their list, which ends with a null pointer, are copies of what the
            // caller lent. Nothing changes the C library's list of the environment any more.
            unsafe { libc::execve(self.program.as_ptr(), arguments.as_ptr(), libc::environ.cast()) };
            // The descriptors stay open during the wait.
            wait_a_while();
        }
    }

    /// Sets the heir's name, also over the arguments in its copy of this process's memory. Leaves this
    /// process's group, so that a terminal's signals do not reach the heir.
    fn take_name(&self, places: Range<u64>) {
        let _ = rustix::process::setpgid(None, None);
        let _ = rustix::thread::set_name(self.name);
        let Ok(memory) = rustix::fs::open(c"/proc/self/mem", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        else {
            return;
        };
        let mut text = [0; 64];
        // The last byte stays zero, and ends the text.
        let letters =
            self.name.to_bytes().iter().take((places.end - places.start).saturating_sub(1) as usize);
        text.iter_mut().zip(letters).for_each(|(place, letter)| *place = *letter);
        let mut at = places.start;
        while at < places.end {
            let here = ((places.end - at) as usize).min(text.len());
            let _ = text.get(..here).map(|text| rustix::io::pwrite(&memory, text, at));
            text = [0; 64];
            at += here as u64;
        }
    }

    /// Gives the heir a table of descriptors of its own.
    fn take_table(&self) {
        // The other heir has the same table, and still uses its descriptors.
        // SAFETY: afterwards this process shares the table with no other, and the call reads no memory.
        while unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
            wait_a_while();
        }
        // Closing this one makes room for the descriptor that lists the others.
        close(self.of.as_raw_fd());
    }

    /// Lets the program inherit the descriptors to keep, and closes the others. After an error, the caller
    /// may simply call this again.
    fn take_descriptors(&self) -> rustix::io::Result<()> {
        let folder = rustix::fs::open(c"/proc/self/fd", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let own =
            [Some(folder.as_fd()), Some(self.input), self.after].map(|own| own.map(|own| own.as_raw_fd()));
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut entries = RawDir::new(&folder, &mut buffer);
        while let Some(entry) = entries.next() {
            // A skipped descriptor would be closed by `execve`, and its memory would read as zeros.
            let entry = entry?;
            let number = entry.file_name().to_bytes().iter().try_fold(0, |number, digit| {
                digit.is_ascii_digit().then(|| number * 10 + i32::from(*digit - b'0'))
            });
            let Some(number) = number.filter(|number| *number >= STREAMS && !own.contains(&Some(*number)))
            else {
                continue;
            };
            if shows(&folder, entry.file_name(), self.keeps) {
                // SAFETY: the call takes numbers only.
                unsafe { libc::fcntl(number, libc::F_SETFD, 0) };
            } else {
                close(number);
            }
        }
        Ok(())
    }
}

/// Waits before a retry of a call for which the kernel lacked memory.
fn wait_a_while() {
    // SAFETY: the call polls no descriptors.
    unsafe { libc::poll(std::ptr::null_mut(), 0, AGAIN_MS) };
}

/// Returns the addresses of this process's start arguments, or an empty range if the kernel does not tell.
fn places_of_arguments() -> Range<u64> {
    let stat = std::fs::read("/proc/self/stat").unwrap_or_default();
    let field = |number| std::str::from_utf8(stat_field(&stat, number)?).ok()?.parse().ok();
    field(48).zip(field(49)).map_or(0..0, |(start, end)| start..end)
}

/// Waits until a process has ended, by its pidfd. Ends this heir if the pidfd has been closed: in that case,
/// the process still lives. An heir that took a closed pidfd for the process's end would kill a live process.
fn wait_for_end(process: BorrowedFd<'_>) {
    let mut polled = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    loop {
        // SAFETY: the one entry is live for the call.
        let told = unsafe { libc::poll(&raw mut polled, 1, -1) };
        if told == 1 && polled.revents & libc::POLLNVAL != 0 {
            // SAFETY: the call does not return, and runs none of this process's exit handlers.
            unsafe { libc::_exit(1) };
        }
        if told == 1 && polled.revents & libc::POLLIN != 0 {
            return;
        }
    }
}

/// Returns whether a descriptor is of this kind, judged by its link in `/proc/self/fd`.
fn shows(folder: &OwnedFd, name: &CStr, kind: &CStr) -> bool {
    let mut link = [MaybeUninit::uninit(); 64];
    readlinkat_raw(folder, name, &mut link).is_ok_and(|(link, _)| *link == *kind.to_bytes())
}

/// Closes a descriptor in an heir, where nothing owns one.
fn close(number: i32) {
    // SAFETY: the values that own these descriptors belong to the process that died. An heir never drops its
    // copies.
    unsafe { libc::close(number) };
}

fn replace(file: &impl AsFd, number: i32) {
    // SAFETY: as in `close`.
    unsafe { libc::dup2(file.as_fd().as_raw_fd(), number) };
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::{Read, Seek, Write};
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid};

    use super::*;

    fn wait_until(mut is_so: impl FnMut() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(60), "in vain");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn pidfd(pid: u32) -> OwnedFd {
        pidfd_open(Pid::from_raw(pid as i32).unwrap(), PidfdFlags::empty()).unwrap()
    }

    /// The test's child starts two heirs, then opens files, and dies.
    #[test]
    fn heirs_have_what_a_process_opened_later_and_one_follows_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let mut input = File::create_new(path("input")).unwrap();
        fs::write(path("kept"), "a kept file").unwrap();
        fs::write(path("other"), "another file").unwrap();
        let kept = std::ffi::CString::new(path("kept").to_str().unwrap()).unwrap();
        // The first reads what it has kept, says who it is, and waits for the file `go`.
        let script = "for fd in /proc/self/fd/*; do n=$(readlink $fd); \
                      case $n in */kept) k=\"$k$(cat $fd)\";; */other) k=\"$k!\";; esac; done; \
                      echo \"$1 $k\" >>\"$2/said\"; until [ -e \"$2/go\" ]; do sleep 0.01; done";
        let script = std::ffi::CString::new(script).unwrap();
        let place = std::ffi::CString::new(folder.path().to_str().unwrap()).unwrap();
        input.write_all(b"x").unwrap();
        let code = crate::run_in_forked_child(|| {
            let of = pidfd(std::process::id());
            let heir = |name: &CStr, after: Option<BorrowedFd<'_>>| {
                let arguments = [c"sh", c"-c", &script, c"sh", name, &place];
                let (of, input, keeps) = (of.as_fd(), input.as_fd(), kept.as_c_str());
                Heir { name, of, after, program: c"/bin/sh", arguments: &arguments, input, keeps }.start()
            };
            let first = heir(c"first", None).unwrap();
            let process = pidfd(first);
            let second = heir(c"second", Some(process.as_fd())).unwrap();
            wait_until(|| fs::read_to_string(format!("/proc/{first}/comm")).unwrap() == "first\n");
            wait_until(|| fs::read_to_string(format!("/proc/{second}/comm")).unwrap() == "second\n");
            let (kept, other) = (File::open(path("kept")).unwrap(), File::open(path("other")).unwrap());
            // The files, and the pidfds that the heirs wait for, stay open until this process ends.
            std::mem::forget((kept, other, of, process));
            0
        });
        assert_eq!(code.unwrap(), 0);
        let said = || fs::read_to_string(path("said")).unwrap_or_default();
        wait_until(|| said() == "first a kept file\n");
        fs::write(path("go"), "").unwrap();
        wait_until(|| said() == "first a kept file\nsecond a kept file\n");
    }

    #[test]
    fn an_heir_that_is_not_needed_can_be_killed_and_has_moved_nothing() {
        let of = pidfd(std::process::id());
        let mut input = tempfile::tempfile().unwrap();
        let (of, keeps) = (of.as_fd(), c"nothing");
        let heir = Heir {
            name: c"an heir",
            of,
            after: None,
            program: c"/bin/false",
            arguments: &[c"false"],
            input: input.as_fd(),
            keeps,
        };
        let pid = Pid::from_raw(heir.start().unwrap() as i32).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
        assert!(waitpid(Some(pid), WaitOptions::empty()).unwrap().is_some());
        input.write_all(b"still here").unwrap();
        input.rewind().unwrap();
        let mut text = String::new();
        input.read_to_string(&mut text).unwrap();
        assert_eq!(text, "still here");
    }

    /// The table is shared: a descriptor that the process closes is closed for its heirs as well.
    #[test]
    fn an_heir_ends_without_a_word_where_its_process_lives_and_has_closed_the_descriptor() {
        let folder = tempfile::tempdir().unwrap();
        let said = std::ffi::CString::new(folder.path().join("said").to_str().unwrap()).unwrap();
        let input = tempfile::tempfile().unwrap();
        let code = crate::run_in_forked_child(|| {
            let of = pidfd(std::process::id());
            let heir = Heir {
                name: c"an heir",
                of: of.as_fd(),
                after: None,
                program: c"/bin/touch",
                arguments: &[c"touch", &said],
                input: input.as_fd(),
                keeps: c"nothing",
            };
            let pid = heir.start().unwrap();
            drop(of);
            let number = Pid::from_raw(pid as i32).unwrap();
            wait_until(|| {
                // After a stop, the heir's `poll` continues, and checks its descriptor again.
                let _ = kill_process(number, Signal::STOP);
                let _ = kill_process(number, Signal::CONT);
                waitpid(Some(number), WaitOptions::NOHANG).unwrap().is_some()
            });
            0
        });
        assert_eq!(code.unwrap(), 0);
        assert!(!folder.path().join("said").exists(), "it took its process for dead");
    }
}
