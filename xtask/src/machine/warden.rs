//! A warden: a shell that undoes a run's changes to the machine, however the run ends.
//!
//! The warden reads shell commands, and runs them, the last one first, when its pipe closes. The pipe closes
//! when the value is dropped, and also when this process is killed. It has a process group of its own, so
//! that the terminal's signals do not reach it. Before each step, the caller gives the warden the command
//! that undoes the step. The command must do no harm if the step was never taken.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const SCRIPT: &str = r#"
undo=""
while IFS= read -r line; do
    undo="$line
$undo"
done
eval "$undo" >/dev/null 2>&1
"#;

#[derive(Debug)]
pub struct Warden(Child);

impl Warden {
    pub fn start() -> Result<Self, String> {
        let shell = Command::new("sh").args(["-c", SCRIPT]).stdin(Stdio::piped()).process_group(0).spawn();
        shell.map(Self).map_err(|error| format!("cannot start the shell that cleans up: {error}"))
    }

    /// Takes a command of one line to run at the end.
    pub fn at_the_end(&mut self, command: &str) -> Result<(), String> {
        let pipe = self.0.stdin.as_mut().ok_or("the shell that cleans up is gone")?;
        writeln!(pipe, "{command}").map_err(|error| format!("the shell that cleans up is gone: {error}"))
    }

    /// Ends all processes of a group at the end.
    pub fn end_group(&mut self, group: u32) -> Result<(), String> {
        // The shell of Debian takes a group behind `--` only if the signal has a name.
        self.at_the_end(&format!("kill -s KILL -- -{group}"))
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Quotes a path as one word of a shell.
pub fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_last_is_undone_first() {
        let folder = std::env::temp_dir().join(format!("octavo-warden-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let log = folder.join("it's a log");
        let mut warden = Warden::start().unwrap();
        for word in ["first", "second"] {
            warden.at_the_end(&format!("echo {word} >> {}", quoted(&log))).unwrap();
        }
        assert!(!log.exists());
        drop(warden);
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "second\nfirst\n");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_group_is_ended() {
        let mut child = Command::new("sleep").arg("100").process_group(0).spawn().unwrap();
        let mut warden = Warden::start().unwrap();
        warden.end_group(child.id()).unwrap();
        drop(warden);
        assert!(!child.wait().unwrap().success());
    }
}
