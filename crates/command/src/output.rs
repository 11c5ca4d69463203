//! Output to standard output, standard error and report files.
//!
//! With `--json -`, standard output carries only the JSON object, and text for people goes to standard error.
//! If the reader closes its end, the program ends without a message.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

use crate::choices::JsonTarget;
use crate::failure::Failure;
use crate::result_file::ResultFile;

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

/// The target of a report. It is checked before the work, so that a wrong path fails at once.
#[derive(Debug)]
pub enum JsonSink {
    /// Standard output.
    Stdout,
    /// A file, which is written aside and renamed.
    File(ResultFile),
}

impl JsonSink {
    /// Checks the target; an existing file keeps its contents until the report is written.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written to.
    pub fn open(target: &JsonTarget) -> Result<Self, Failure> {
        match target {
            JsonTarget::Stdout => Ok(Self::Stdout),
            JsonTarget::File(path) => {
                ResultFile::open(path).map(Self::File).map_err(|error| cannot_write(path, error))
            }
        }
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
            Self::File(file) => file.write(&json).map_err(|error| cannot_write(file.path(), error)),
        }
    }
}

fn cannot_write(path: &Path, error: io::Error) -> Failure {
    Failure::system(format!("cannot write the report to {}", path.display()), error)
}

fn output_failure(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::system("cannot write to standard output", error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_report_does_not_change_the_file_that_it_replaces() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        fs::write(&path, "old").unwrap();
        let before = fs::File::open(&path).unwrap();
        let sink = JsonSink::open(&JsonTarget::File(path.clone())).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        sink.write(&[1, 2]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "[1,2]\n");
        assert_eq!(io::read_to_string(before).unwrap(), "old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left aside");
    }
}
