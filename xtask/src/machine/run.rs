//! One run of a program of `crates/bench`: in a folder and a control group of its own, with its figures read from what it printed.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::kernel::{Group, Purpose};
use super::process::{self, last_lines, said};
use super::warden::{Warden, quoted};

/// What a program has printed: lines of a name and a value.
#[derive(Debug)]
pub struct Said(String);

impl Said {
    /// The value of a name.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
    }

    /// A value that is a number.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.value(name)?.parse().ok()
    }
}

/// Makes one run. Whatever happens, nothing of it is left in `folder`. `None`: the kernel has killed it for want of memory.
pub fn in_a_group(
    folder: &Path,
    words: &[String],
    purpose: Option<Purpose>,
    limit: Duration,
) -> Result<Option<Said>, String> {
    let scratch = folder.join(format!("run-{}", std::process::id()));
    let mut warden = Warden::start()?;
    warden.at_the_end(&format!("rm -rf {}", quoted(&scratch)))?;
    let work = scratch.join("work");
    fs::create_dir_all(&work).map_err(|error| format!("cannot make {}: {error}", work.display()))?;
    let group = purpose.map(|purpose| Group::new(&mut warden, purpose)).transpose()?;
    let words = group.as_ref().map_or(words.to_vec(), |group| group.entering(words));
    let mut child = process::start(&mut warden, &words, &scratch, &[])?;
    let status = process::wait(&mut child, limit)?;
    if group.as_ref().is_some_and(Group::has_killed) {
        return Ok(None);
    }
    if !status.success() {
        let errors = last_lines(&said(&scratch, "stderr"));
        return Err(format!("`{}` failed: {status}: {errors}", words.join(" ")));
    }
    Ok(Some(Said(said(&scratch, "stdout"))))
}
