//! The folders of a row: a cache for inputs that stay, and a fresh folder for each run.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::machine::process::last_lines;
use crate::machine::warden::Warden;

/// The place of a row's inputs.
#[derive(Debug)]
pub struct InputFolder {
    pub folder: PathBuf,
    pub scale: f64,
    pub seed: u64,
}

impl InputFolder {
    /// Scales a size.
    pub fn scaled(&self, size: u64) -> String {
        format!("{}", ((size as f64 * self.scale) as u64).max(1))
    }

    /// Returns the path of a file in the folder, for a command line.
    pub fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// Writes a file, unless it has this text already.
    pub fn file(&self, name: &str, text: &str) -> Result<(), String> {
        let path = self.folder.join(name);
        if fs::read_to_string(&path).is_ok_and(|there| there == text) {
            return Ok(());
        }
        let made = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, text));
        made.map_err(|error| format!("cannot write {}: {error}", path.display()))
    }

    /// Runs a shell command in the folder, if `made` does not exist. The command must not leave `made` behind
    /// when it fails.
    pub fn make(&self, made: &str, command: &str) -> Result<(), String> {
        if self.folder.join(made).exists() {
            return Ok(());
        }
        let mut warden = Warden::start()?;
        let mut shell = Command::new("sh");
        shell.args(["-ec", command]).current_dir(&self.folder).process_group(0);
        shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let shell = shell.spawn().map_err(|error| format!("cannot run sh: {error}"))?;
        warden.end_group(shell.id())?;
        let output = shell.wait_with_output().map_err(|error| format!("cannot run sh: {error}"))?;
        match output.status.success() && self.folder.join(made).exists() {
            true => Ok(()),
            false => Err(format!(
                "cannot prepare the input: {}",
                last_lines(&String::from_utf8_lossy(&output.stderr))
            )),
        }
    }
}
