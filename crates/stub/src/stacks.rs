//! Where the stacks of running threads are.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use rustix::thread::set_current_timer_slack;

use crate::inject::on_own_thread;
use crate::tracee::Tracee;

/// How long the threads may take to stop, all together.
const STOP_WITHIN: Duration = Duration::from_millis(20);

/// Returns the stack pointers of threads that may be running. Stops each thread for about 50 µs: the kernel
/// tells the stack pointers of sleeping and of stopped threads only. Leaves out threads that have ended, are
/// traced already, or do not stop within 20 ms.
#[must_use]
pub fn stack_pointers(threads: Vec<u32>) -> Vec<(u32, u64)> {
    on_own_thread(move || Ok(ask(&threads))).unwrap_or_default()
}

fn ask(threads: &[u32]) -> Vec<(u32, u64)> {
    // The pauses of this thread are short, and the kernel would make them 50 µs longer. A refusal costs time
    // only.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    let (mut found, deadline) = (Vec::new(), Instant::now() + STOP_WITHIN);
    for tid in threads {
        // One after the other: while a thread of a process is traced, another may call `exec`, and then the
        // next seizure would wait for that call, and the call for this thread.
        let Ok(thread) = Tracee::seize(*tid, 0) else { continue };
        if thread.interrupt().is_err() || !thread.stops_before(deadline) {
            // It is released when this thread ends.
            break;
        }
        if let Ok(registers) = thread.registers() {
            found.push((thread.tid(), registers.rsp));
        }
        thread.let_go();
    }
    found
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use octavo_platform::proc_text;

    use super::*;
    use crate::target::Status;

    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    fn within_a_minute(condition: impl Fn() -> bool) {
        let begins = Instant::now();
        while !condition() {
            assert!(begins.elapsed() < Duration::from_secs(60));
        }
    }

    #[test]
    fn running_threads_tell_where_their_stacks_are_and_go_on() {
        let spin = || Killed(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap());
        let programs = [spin(), spin()];
        let pids: Vec<_> = programs.iter().map(|program| program.0.id()).collect();
        let is_in_stack = |(pid, at): &(u32, u64)| {
            let maps = proc_text::read(*pid, "maps").unwrap();
            let line = maps.lines().find(|line| line.ends_with("[stack]")).unwrap();
            let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let address = |text| u64::from_str_radix(text, 16).unwrap();
            (address(start)..address(end)).contains(at)
        };
        // On a busy machine, they may take longer to stop.
        for _ in 0..3 {
            within_a_minute(|| {
                let found = stack_pointers(pids.clone());
                found.len() == 2 && found.iter().all(is_in_stack)
            });
        }
        for pid in &pids {
            assert_eq!(Status::of(*pid).unwrap().tracer, 0);
            let stat = || proc_text::read(*pid, "stat").unwrap();
            let ticks = || stat().rsplit(") ").next().unwrap().split(' ').nth(11).unwrap().to_string();
            let before = ticks();
            within_a_minute(|| ticks() != before);
        }
        drop(programs);
        assert_eq!(stack_pointers(pids), [], "they have ended");
    }
}
