//! Threads that may be in a call that drops pages (`madvise`).
//!
//! The kernel reports such a call before it frees the pages. Until the thread has left the call, a present
//! page may go at any moment. The kernel shows the call of a sleeping thread, and a stopped thread is in no
//! call. For a running thread, the kernel shows nothing, so the question is repeated.
//!
//! Costs about 10 µs for each question about a thread. At most [`AT_ONCE`] threads are asked about at a time.

use std::collections::VecDeque;
use std::io;

use octavo_platform::proc_text;
use octavo_platform::threads::{of_process, stat_field};

/// The numbers of `madvise` and `process_madvise` on x86-64.
const CALLS: [&str; 2] = ["28", "440"];

/// The threads of a process that existed when its pages were dropped, and may still be dropping them.
#[derive(Debug)]
pub(crate) struct Droppers(VecDeque<u32>);

/// The most threads that are asked about at a time.
const AT_ONCE: usize = 32;

impl Droppers {
    /// # Errors
    /// Returns the kernel's error if the process has ended, or descriptors run out.
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        // Read the list twice: a thread that ends during a read may hide another.
        let mut all: Vec<u32> = of_process(pid)?.into_iter().chain(of_process(pid)?).collect();
        all.sort_unstable();
        all.dedup();
        Ok(Self(all.into()))
    }

    /// Asks about some of the threads that are left. Returns whether all have been seen outside of such a
    /// call.
    pub(crate) fn have_left(&mut self, pid: u32) -> bool {
        for _ in 0..self.0.len().min(AT_ONCE) {
            let asked = self.0.pop_front().filter(|thread| may_drop(pid, *thread));
            self.0.extend(asked);
        }
        self.0.is_empty()
    }
}

fn may_drop(pid: u32, thread: u32) -> bool {
    let read = |file| proc_text::read(pid, &format!("task/{thread}/{file}"));
    let stat = match read("stat") {
        Ok(stat) => stat,
        Err(error) => return !has_ended(&error),
    };
    // A thread that a signal or a debugger has stopped is on its way out of the call.
    if matches!(stat_field(stat.as_bytes(), 3), Some(b"T" | b"t" | b"Z" | b"X")) {
        return false;
    }
    match read("syscall") {
        Ok(call) => {
            let number = call.split_ascii_whitespace().next().unwrap_or_default();
            number == "running" || CALLS.contains(&number)
        }
        Err(error) => !has_ended(&error),
    }
}

fn has_ended(error: &io::Error) -> bool {
    let error = rustix::io::Errno::from_io_error(error);
    matches!(error, Some(rustix::io::Errno::NOENT | rustix::io::Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    use super::*;
    use crate::managed::tests::wait_until;

    #[test]
    fn a_thread_that_sleeps_elsewhere_has_left_and_one_that_runs_may_have_not() {
        let pid = std::process::id();
        let (tell, told) = mpsc::channel();
        let may_end = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let end = &may_end;
            scope.spawn(move || {
                let own = fs::read_link("/proc/thread-self").unwrap();
                tell.send(own.file_name().unwrap().to_str().unwrap().parse().unwrap()).unwrap();
                while !end.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let runs = told.recv().unwrap();
            assert!((0..1000).all(|_| may_drop(pid, runs)));
            assert!(!Droppers::of(pid).unwrap().have_left(pid));
            may_end.store(true, Ordering::Relaxed);
        });
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let mut droppers = Droppers::of(child.id()).unwrap();
        wait_until(|| droppers.have_left(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!may_drop(child.id(), child.id()), "it has ended");
    }

    #[test]
    fn a_thread_has_left_whatever_its_name() {
        let ((tell, told), (end, ended)) = (mpsc::channel(), mpsc::channel::<()>());
        let sleeper = std::thread::spawn(move || {
            rustix::thread::set_name(c"\xff").unwrap();
            tell.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            ended.recv().unwrap_err();
        });
        let thread = told.recv().unwrap();
        wait_until(|| !may_drop(std::process::id(), thread));
        drop(end);
        sleeper.join().unwrap();
    }
}
