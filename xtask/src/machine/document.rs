//! Documents with a part, between two marks, that a command writes.

use std::fs;
use std::path::Path;

/// The marks around the part that a command writes.
#[derive(Clone, Copy, Debug)]
pub struct Marks {
    pub begin: &'static str,
    pub end: &'static str,
}

impl Marks {
    /// Returns the part of a text between the marks.
    pub fn part_of<'t>(&self, text: &'t str) -> Result<&'t str, String> {
        self.split(text).map(|(_, part, _)| part)
    }

    /// Returns the text with another part between the marks.
    pub fn put_into(&self, text: &str, part: &str) -> Result<String, String> {
        let (before, _, after) = self.split(text)?;
        Ok(format!("{before}{}\n{part}{}{after}", self.begin, self.end))
    }

    /// Prints the part of `docs/benchmarks.md` between these marks, and writes it there if `is_written`.
    pub fn show_benchmark(&self, part: &str, is_written: bool) -> Result<(), String> {
        print!("{part}");
        if !is_written {
            return Ok(());
        }
        let path = crate::root().join("docs/benchmarks.md");
        write(&path, &self.put_into(&read(&path)?, part)?)
    }

    fn split<'t>(&self, text: &'t str) -> Result<(&'t str, &'t str, &'t str), String> {
        let lacks = |mark| format!("the document has no mark {mark}");
        let (before, rest) = text.split_once(self.begin).ok_or_else(|| lacks(self.begin))?;
        let (part, after) = rest.split_once(self.end).ok_or_else(|| lacks(self.end))?;
        Ok((before, part, after))
    }
}

/// Names the day and the machine in a sentence.
pub fn measured_on() -> String {
    let said = |program: &str, argument: &str| {
        let output = std::process::Command::new(program).arg(argument).output().ok();
        output.map_or_else(|| "?".into(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = fs::read_to_string("/proc/meminfo").ok();
    let gibibytes = memory
        .as_deref()
        .and_then(|text| text.lines().find_map(|line| line.strip_prefix("MemTotal:")))
        .and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<f64>().ok())
        .map_or(0.0, |kib| kib / f64::from(1 << 20));
    format!(
        "Measured on {}, {cpus} CPUs, {gibibytes:.0} GiB, Linux {}.",
        said("date", "+%F"),
        said("uname", "-r").split('-').next().unwrap_or_default(),
    )
}

/// Reads a file of text.
pub fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// Writes a file.
pub fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_between_the_marks_is_replaced_and_the_rest_stays() {
        let marks = Marks { begin: "<b>", end: "<e>" };
        assert_eq!(marks.put_into("head <b>\nold\n<e> tail", "new\n").unwrap(), "head <b>\nnew\n<e> tail");
        assert_eq!(marks.part_of("<b>\nold\n<e>").unwrap(), "\nold\n");
        assert!(marks.put_into("no marks", "").is_err());
    }
}
