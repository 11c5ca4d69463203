//! The command line.

use std::path::PathBuf;

use crate::kinds::{self, TortureKind};
use crate::work::Sabotage;

pub const USAGE: &str = "\
Usage: octavo-torture [OPTIONS]

Writes known words to memory in many ways, and checks every word that it reads. The first thing that is wrong is one
sentence on standard error, and exit status 1. At the end there is a line for each kind, with counts.

  --seconds N      how long (10)
  --memory SIZE    how much memory, about, with a suffix K, M or G (256M)
  --seed S         what is done in which order (1)
  --threads N      threads of each kind (2)
  --only K[,K...]  only these kinds, as threads of one process; `all` is every kind. Without it, each kind has a
                   process of its own, and all run at once
  --folder PATH    where files without names are made (the temporary folder)
  --patience N     seconds after the end until a kind that has not ended is a finding (120)

Kinds: writers, layout, brk, protect, fork, orphans, wiped, io, direct, shared, threads
";

/// The options of a run.
#[derive(Clone)]
pub struct Options {
    pub seconds: u64,
    pub memory_bytes: usize,
    pub seed: u64,
    pub threads: usize,
    /// The kinds to run in this process. With `None`, each kind gets a process.
    pub only: Option<Vec<TortureKind>>,
    pub folder: PathBuf,
    pub patience_seconds: u64,
    pub sabotage: Option<Sabotage>,
    /// Whether this process is one of several, and ends with the process that started it.
    pub part: bool,
}

/// The least memory for a useful test.
const LEAST_BYTES: usize = 1 << 20;

impl Options {
    /// Parses the options. The error is a sentence.
    pub fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self {
            seconds: 10,
            memory_bytes: 256 << 20,
            seed: 1,
            threads: 2,
            only: None,
            folder: std::env::temp_dir(),
            patience_seconds: 120,
            sabotage: None,
            part: false,
        };
        let mut arguments = arguments.iter();
        while let Some(name) = arguments.next() {
            if name == "--part" {
                options.part = true;
                continue;
            }
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value, or is no option"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("{name} needs a number, not `{value}`"));
            match name.as_str() {
                "--seconds" => options.seconds = number()?,
                "--memory" => options.memory_bytes = size(value)?,
                "--seed" => options.seed = number()?,
                "--threads" => options.threads = number()?.clamp(1, 64) as usize,
                "--only" => options.only = Some(kinds_named(value)?),
                "--folder" => options.folder = value.into(),
                "--patience" => options.patience_seconds = number()?,
                "--sabotage" => options.sabotage = Some(sabotage(value)?),
                _ => return Err(format!("there is no option `{name}`")),
            }
        }
        Ok(options)
    }
}

fn size(text: &str) -> Result<usize, String> {
    let (digits, shift) = match text.to_ascii_uppercase().chars().last() {
        Some('K') => (&text[..text.len() - 1], 10),
        Some('M') => (&text[..text.len() - 1], 20),
        Some('G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let bytes = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes
        .filter(|bytes| *bytes >= LEAST_BYTES)
        .ok_or_else(|| format!("--memory needs a size of at least 1M, not `{text}`"))
}

fn kinds_named(text: &str) -> Result<Vec<TortureKind>, String> {
    if text == "all" {
        return Ok(kinds::ALL.to_vec());
    }
    text.split(',')
        .map(|name| kinds::named(name).ok_or_else(|| format!("there is no kind `{name}`")))
        .collect()
}

fn sabotage(text: &str) -> Result<Sabotage, String> {
    let found = Sabotage::NAMES.iter().find(|(name, _)| *name == text);
    found.map(|(_, sabotage)| *sabotage).ok_or_else(|| format!("there is no sabotage `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options, String> {
        Options::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn sizes_and_kinds_are_read_and_nonsense_is_refused() {
        let options = parse("--memory 3M --only io,fork --sabotage flip --seed 9").unwrap();
        assert_eq!((options.memory_bytes, options.seed), (3 << 20, 9));
        assert_eq!(options.only.unwrap().iter().map(|kind| kind.name).collect::<Vec<_>>(), ["io", "fork"]);
        for nonsense in ["--memory 5", "--memory x", "--only what", "--seconds", "--what 3", "--sabotage no"]
        {
            assert!(parse(nonsense).is_err(), "{nonsense}");
        }
    }
}
