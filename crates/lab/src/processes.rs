//! Processes of our own program that work side by side. `octavo-lab` starts them, tells them to go, and reads
//! their results.
//!
//! A process says on its standard output that it is ready, waits for a byte on its standard input, works, and
//! writes its results as JSON. If the work has phases that all processes begin together, a process says that
//! it is ready before each phase.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use octavo_platform::usage;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use octavo_command::failure::Failure;

const READY: &str = "ready\n";

/// The last line of a process.
#[derive(Debug, Serialize, Deserialize)]
enum LastLine<T> {
    Done(T),
    Failed(String),
}

/// The processes of a run. Dropping the value ends those that still run.
#[derive(Debug, Default)]
pub struct Processes {
    running: Vec<WorkerProcess>,
}

#[derive(Debug)]
struct WorkerProcess {
    child: Child,
    /// `None` if the process waits on another input.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Processes {
    /// Starts `octavo-lab SUBCOMMAND ORDER`, which waits for its byte on `input`. With [`Stdio::piped`], the
    /// process gets a pipe of its own.
    pub fn start(&mut self, subcommand: &str, order: &impl Serialize, input: Stdio) -> Result<(), Failure> {
        let cannot_start = |error| Failure::system("cannot start a process beside this one", error);
        let order = serde_json::to_string(order).map_err(|error| cannot_start(error.into()))?;
        // Start this very program, even if its file was replaced meanwhile.
        let mut child = Command::new("/proc/self/exe")
            .args([subcommand, &order])
            .stdin(input)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(cannot_start)?;
        let input = child.stdin.take();
        let Some(output) = child.stdout.take() else {
            return Err(cannot_start(io::ErrorKind::BrokenPipe.into()));
        };
        self.running.push(WorkerProcess { child, input, output: BufReader::new(output) });
        Ok(())
    }

    /// Waits until every process has said that it is ready.
    pub fn wait_until_ready(&mut self) -> Result<(), Failure> {
        for WorkerProcess { child, output, .. } in &mut self.running {
            let mut line = String::new();
            // A line that cannot be read counts as a missing one.
            let _ = output.read_line(&mut line);
            if line == READY {
                continue;
            }
            return Err(match serde_json::from_str(&line) {
                Ok(LastLine::<()>::Failed(sentence)) => Failure::Said(sentence),
                _ => died(child.wait()),
            });
        }
        Ok(())
    }

    /// Tells each process that waits on a pipe of its own to go.
    pub fn go(&mut self) -> Result<(), Failure> {
        for input in self.running.iter_mut().filter_map(|process| process.input.as_mut()) {
            input
                .write_all(b"g")
                .map_err(|error| Failure::system("cannot start the processes beside this one", error))?;
        }
        Ok(())
    }

    /// Returns the results of all processes, in the order in which they were started.
    pub fn collect<T: DeserializeOwned>(&mut self) -> Result<Vec<T>, Failure> {
        let mut all = Vec::with_capacity(self.running.len());
        for WorkerProcess { child, output, .. } in &mut self.running {
            let mut text = String::new();
            let read = output.read_to_string(&mut text);
            let status = child.wait();
            match (read, serde_json::from_str(&text)) {
                (Ok(_), Ok(LastLine::Done(done))) => all.push(done),
                (Ok(_), Ok(LastLine::Failed(sentence))) => return Err(Failure::Said(sentence)),
                _ => return Err(died(status)),
            }
        }
        self.running.clear();
        Ok(all)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for WorkerProcess { child, .. } in &mut self.running {
            // The process may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn died(status: io::Result<ExitStatus>) -> Failure {
    let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
    Failure::Said(format!(
        "a process beside this one ended early ({how}); it may have been killed for want of memory: give a \
         smaller SIZE"
    ))
}

/// For a started process: says that it is ready and waits for one byte on standard input. Returns `false` if
/// standard input is closed: the process that started this one is gone.
pub fn ready_and_told_to_go() -> Result<bool, Failure> {
    let mut output = io::stdout().lock();
    output.write_all(READY.as_bytes()).and_then(|()| output.flush()).map_err(|_| Failure::OutputClosed)?;
    drop(output);
    // Read without a buffer: the pipe may be shared, and a buffer would take the other processes' bytes too.
    let mut byte = [0];
    let read = rustix::io::retry_on_intr(|| rustix::io::read(rustix::stdio::stdin(), &mut byte));
    read.map(|count| count == 1).map_err(|error| Failure::system("cannot wait for the start", error.into()))
}

/// For a started process: writes its results, or nothing if it was sent home.
pub fn answer<T: Serialize>(done: Result<Option<T>, Failure>) -> Result<(), Failure> {
    let answer = match done {
        Ok(Some(done)) => LastLine::Done(done),
        Ok(None) => return Ok(()),
        Err(failure) => LastLine::Failed(failure.to_string()),
    };
    let json = serde_json::to_string(&answer).map_err(|error| Failure::Said(error.to_string()))?;
    io::stdout().write_all(json.as_bytes()).map_err(|_| Failure::OutputClosed)
}

/// The kernel's counts for this process so far.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub minor_faults: u64,
    pub major_faults: u64,
    pub resident_bytes: u64,
}

impl Usage {
    pub fn now() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The program's name, in brackets, may hold any characters. Behind it, minflt is the 8th field and
        // majflt the 10th.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
        let field = |number: usize| fields.get(number - 1).and_then(|text| text.parse().ok()).unwrap_or(0);
        Self { minor_faults: field(8), major_faults: field(10), resident_bytes: usage::resident_bytes() }
    }
}
