//! The command line of the comparison.

use std::path::PathBuf;

use super::jobs;
use crate::machine;

pub const USAGE: &str = "\
Usage: cargo xtask against-kernel [NAME...] [OPTIONS]     (as root)

  --total SIZE      what a program that outgrows its memory needs (512M)
  --budget SIZE     the memory that it gets (256M)
  --rounds N        rounds, in which the sides take turns (5)
  --reads N         random reads of one thread; threads together make three times as many (20000)
  --limit SECONDS   ends a run that takes longer (300)
  --octavo PATH     the octavo program (target/release/octavo)
  --swap PATH       passed on to octavo run (a temporary file in the folder of the kernel's swap file)
  --compression C   passed on to octavo run
  --no-install      installs no packages
  --write           puts the table into docs/benchmarks.md
  --list            lists the measurements
";

#[derive(Debug)]
pub struct Options {
    names: Vec<String>,
    pub total_bytes: u64,
    pub budget_bytes: u64,
    pub rounds: usize,
    pub reads: u64,
    pub limit_seconds: u64,
    pub octavo: PathBuf,
    pub swap: Option<String>,
    pub compression: Option<String>,
    pub install: bool,
    pub write: bool,
}

impl Options {
    /// Reads the options. `None` asks for help. The error is a sentence without its full stop.
    pub fn parse(arguments: &[String]) -> Result<Option<Self>, String> {
        let mut options = Self {
            names: Vec::new(),
            total_bytes: 512 << 20,
            budget_bytes: 256 << 20,
            rounds: 5,
            reads: 20_000,
            limit_seconds: 300,
            octavo: crate::root().join("target/release/octavo"),
            swap: None,
            compression: None,
            install: true,
            write: false,
        };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--total" => options.total_bytes = size(argument, value()?)?,
                "--budget" => options.budget_bytes = size(argument, value()?)?,
                "--rounds" => options.rounds = size(argument, value()?)? as usize,
                "--reads" => options.reads = size(argument, value()?)?,
                "--limit" => options.limit_seconds = size(argument, value()?)?,
                "--octavo" => options.octavo = machine::absolute(value()?)?,
                "--swap" => options.swap = Some(value()?.clone()),
                "--compression" => options.compression = Some(value()?.clone()),
                "--no-install" => options.install = false,
                "--write" => options.write = true,
                "--list" | "--help" | "-h" => return Ok(None),
                name if jobs::ALL.iter().any(|job| job.name == name) => options.names.push(name.into()),
                name => return Err(format!("there is no measurement and no option `{name}`")),
            }
        }
        if options.budget_bytes > options.total_bytes {
            return Err("--budget is at most --total, or nothing would have to go out".into());
        }
        if options.write && !options.names.is_empty() {
            return Err("--write replaces the whole table, so it takes no names".into());
        }
        Ok(Some(options))
    }

    /// Returns whether the options name this measurement.
    pub fn wants(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|wanted| wanted == name)
    }
}

/// Reads a number above 0, with or without a suffix.
fn size(name: &str, value: &str) -> Result<u64, String> {
    let (digits, shift) = match value.to_ascii_uppercase().chars().last() {
        Some('K') => (&value[..value.len() - 1], 10),
        Some('M') => (&value[..value.len() - 1], 20),
        Some('G') => (&value[..value.len() - 1], 30),
        _ => (value, 0),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    number.filter(|number| *number > 0).ok_or_else(|| format!("{name} needs a number above 0, not `{value}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<Options>, String> {
        Options::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn measurements_and_options_are_read_and_nonsense_is_refused() {
        let options = parse("start-up --total 1G --budget 300M --rounds 3").unwrap().unwrap();
        assert!(options.wants("start-up") && !options.wants("numpy"));
        assert_eq!((options.total_bytes, options.budget_bytes, options.rounds), (1 << 30, 300 << 20, 3));
        assert!(parse("").unwrap().unwrap().wants("numpy"));
        for nonsense in ["start", "--total 0", "--budget 1G", "--rounds", "start-up --write"] {
            assert!(parse(nonsense).is_err(), "{nonsense}");
        }
    }
}
