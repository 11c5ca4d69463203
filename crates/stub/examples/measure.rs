//! Measures the cost of a mover: `cargo run --release -p octavo-stub --example measure -- PROGRAM`.
//!
//! PROGRAM is the test program `octavo-stub-program`. Each line has the median, the minimum and the maximum.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use octavo_platform::process_memory::read_process;
use octavo_platform::userfaultfd::RegisterMode;
use octavo_stub::{Mover, OutgoingRun, Staging};

const PAGE: u64 = 4096;
const PAGES: u64 = 64;

fn main() {
    let program = std::env::args().nth(1).expect("the path of octavo-stub-program");
    let (mut stopped, mut whole) = (Vec::new(), Vec::new());
    for role in ["idle", "epoll_wait", "count"] {
        for _ in 0..41 {
            let mut child = start(&program, role);
            let injected = Mover::inject(child.0.id(), PAGES * PAGE).expect("a mover");
            stopped.push(injected.stopped);
            whole.push(injected.whole);
            drop(injected);
            end(&mut child.0);
        }
        print(&format!("{role}: thread stopped"), &mut stopped);
        print(&format!("{role}: whole injection"), &mut whole);
    }
    let (mut child, line) = start(&program, "count");
    let mover = Mover::inject(child.id(), PAGES * PAGE).expect("a mover").mover;
    // SAFETY: the child is ours. It is stopped, so that its pages stay where they are.
    unsafe { libc::kill(child.id() as i32, libc::SIGSTOP) };
    let mut empty: Vec<_> = (0..2001).map(|_| timed(|| mover.call(&mut []).expect("an answer"))).collect();
    print("empty batch, one behind the other", &mut empty);
    let mut rare: Vec<_> = (0..501)
        .map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            timed(|| mover.call(&mut []).expect("an answer"))
        })
        .collect();
    print("empty batch, to a mover that sleeps", &mut rare);
    let mut address = line.split(' ').map(|number| u64::from_str_radix(number, 16).expect("an address"));
    let start_at = address.next().expect("an address");
    let mode = RegisterMode { missing: true, write_protect: true };
    // SAFETY: the memory is another process's.
    unsafe { mover.faults().register(start_at, 256 * PAGE, mode) }.expect("a registration");
    let mut buffer = vec![0u8; (PAGES * PAGE) as usize];
    for (what, pages_each) in [("one run of 64", 64), ("16 runs of 4", 4), ("64 runs of 1", 1)] {
        let (mut out, mut move_only, mut back) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..401 {
            // Neighbouring runs have a gap between them, as in real programs.
            let runs: Vec<OutgoingRun> = (0..PAGES / pages_each)
                .map(|run| OutgoingRun {
                    address: start_at + run * 2 * pages_each * PAGE,
                    len: pages_each * PAGE,
                })
                .collect();
            let begin = Instant::now();
            let staging = if round == 0 { Staging::Keep } else { Staging::DiscardFirst };
            let moved = mover.move_out(&runs, staging).expect("an answer");
            move_only.push(begin.elapsed());
            assert!(moved.is_whole(), "{moved:?}");
            let local = [(buffer.as_mut_ptr(), buffer.len())];
            let remote = [(mover.staging().0[1], PAGES * PAGE)];
            // SAFETY: the local piece is the buffer, which nobody borrows meanwhile.
            let read = unsafe { read_process(child.id(), &remote, &local) };
            out.push(begin.elapsed());
            assert_eq!(read.expect("a copy"), buffer.len());
            let begin = Instant::now();
            for (index, run) in runs.iter().enumerate() {
                let from = &buffer[index * run.len as usize..];
                // SAFETY: the source is a live slice, as long as the run.
                let copied = unsafe { mover.faults().copy(run.address, from.as_ptr(), run.len, false, true) };
                assert!(copied.is_whole(), "{copied:?}");
            }
            back.push(begin.elapsed());
        }
        print(&format!("{what}: batch of discard and moves"), &mut move_only);
        print(&format!("{what}: batch and read"), &mut out);
        print(&format!("{what}: back by copies"), &mut back);
        mover.discard().expect("a discard");
    }
    end(&mut child);
}

fn start(program: &str, role: &str) -> (Child, String) {
    let mut child = Command::new(program)
        .arg(role)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut line = String::new();
    let output = child.stdout.as_mut().expect("an output");
    BufReader::new(output).read_line(&mut line).expect("a line");
    std::thread::sleep(Duration::from_millis(2));
    (child, line.trim().into())
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn timed(act: impl FnOnce()) -> Duration {
    let begin = Instant::now();
    act();
    begin.elapsed()
}

fn print(what: &str, times: &mut Vec<Duration>) {
    times.sort_unstable();
    let micros = |time: Duration| time.as_nanos() as f64 / 1000.0;
    let (least, median, most) = (times[0], times[times.len() / 2], times[times.len() - 1]);
    println!("{what:45} {:8.1} µs ({:.1} to {:.1})", micros(median), micros(least), micros(most));
    times.clear();
}
