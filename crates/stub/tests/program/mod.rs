//! The test program, as a child process.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

/// The program in one of its roles, ready.
pub struct Program {
    child: Child,
    pid: u32,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// The first line that the program printed.
    pub greeting: String,
}

impl Program {
    pub fn start(role: &str) -> Self {
        Self::start_by(Command::new(env!("CARGO_BIN_EXE_octavo-stub-program")).arg(role))
    }

    /// A program that is a child of another program, and not of this process.
    pub fn start_apart(role: &str) -> Self {
        let mut program =
            Self::start_by(Command::new(env!("CARGO_BIN_EXE_octavo-stub-program")).args(["apart", role]));
        program.pid = program.greeting.parse().unwrap();
        program.greeting = program.line();
        program
    }

    pub fn start_by(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut greeting = String::new();
        output.read_line(&mut greeting).unwrap();
        Self { pid: child.id(), child, input, output, greeting: greeting.trim().into() }
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The address and the length that the program printed.
    pub fn memory(&self) -> (u64, u64) {
        let mut numbers = self.greeting.split(' ').map(|number| u64::from_str_radix(number, 16).unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    }

    /// Sends the program a byte.
    pub fn tell(&mut self) {
        self.say("\n");
    }

    pub fn say(&mut self, text: &str) {
        self.input.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Returns the next line of the program's output.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().into()
    }

    /// Ends the program's input, and returns the rest of its output.
    pub fn finish(mut self) -> String {
        drop(self.input.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        rest.trim().into()
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Returns a line of the program's status.
    pub fn status(&self, field: &str) -> String {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        text.lines().find_map(|line| line.strip_prefix(field)).unwrap().trim().into()
    }

    /// Returns the program's open descriptors, and what they lead to.
    pub fn descriptors(&self) -> Vec<(String, String)> {
        let folder = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap();
        let mut found: Vec<_> = folder
            .map(|entry| {
                let path = entry.unwrap().path();
                let leads_to = std::fs::read_link(&path).unwrap();
                (path.display().to_string(), leads_to.display().to_string())
            })
            .collect();
        found.sort();
        found
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // A program that is not our child ends with its input.
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
