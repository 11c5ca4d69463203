//! Output to standard output, standard error and report files.
//!
//! With `--json -`, standard output carries only the JSON object, and text for people goes to standard error.
//! If the reader closes its end, the program ends without a message.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use crate::choices::JsonTarget;
use crate::failure::Failure;

/// Writes a line to standard error.
pub fn tell(line: impl fmt::Display) {
    // If standard error is closed, there is no place left for a message.
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Text for people, line by line.
#[derive(Debug)]
pub struct Text {
    to_stderr: bool,
}

impl Text {
    /// Text that leaves standard output free if `json` goes there.
    pub fn beside(json: Option<&JsonTarget>) -> Self {
        Self { to_stderr: matches!(json, Some(JsonTarget::Stdout)) }
    }

    /// Writes one line.
    ///
    /// # Errors
    /// Returns an error if the output was closed or cannot be written to.
    pub fn line(&self, line: impl fmt::Display) -> Result<(), Failure> {
        let written = if self.to_stderr {
            writeln!(io::stderr().lock(), "{line}")
        } else {
            writeln!(io::stdout().lock(), "{line}")
        };
        written.map_err(output_failure)
    }
}

/// The target of a report. It is opened before the work, so that a wrong path fails at once.
#[derive(Debug)]
pub enum JsonSink {
    /// Standard output.
    Stdout,
    /// A file, with its path for messages.
    File {
        /// The file.
        file: File,
        /// The path of the file.
        name: String,
    },
}

impl JsonSink {
    /// Opens the target; an existing file keeps its contents until the report is written.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written to.
    pub fn open(target: &JsonTarget) -> Result<Self, Failure> {
        let path = match target {
            JsonTarget::Stdout => return Ok(Self::Stdout),
            JsonTarget::File(path) => path,
        };
        let name = path.display().to_string();
        open_for_writing(path)
            .map(|file| Self::File { file, name: name.clone() })
            .map_err(|error| Failure::system(format!("cannot write the report to {name}"), error))
    }

    /// Writes the report and a newline.
    ///
    /// # Errors
    /// Returns an error if the target cannot be written to.
    pub fn write(self, report: &impl Serialize) -> Result<(), Failure> {
        let json = serde_json::to_string(report)
            .map_err(|error| Failure::Said(format!("the report cannot be written as JSON: {error}")))?;
        match self {
            Self::Stdout => writeln!(io::stdout().lock(), "{json}").map_err(output_failure),
            Self::File { mut file, name } => replace_contents(&mut file, &json)
                .map_err(|error| Failure::system(format!("cannot write the report to {name}"), error)),
        }
    }
}

fn open_for_writing(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).open(path)
}

fn replace_contents(file: &mut File, text: &str) -> io::Result<()> {
    // A device or a pipe (/dev/stderr, a FIFO) cannot be truncated.
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    writeln!(file, "{text}")
}

fn output_failure(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::system("cannot write to standard output", error),
    }
}
