//! The command line of the program table.

use std::path::PathBuf;

use super::rows;
use crate::machine;

pub const USAGE: &str = "\
Usage: cargo xtask programs [NAME...] [OPTIONS]

  --budget-share X  the budget as a share of the plain run's peak (0.5)
  --against kernel  also runs each row in a memory control group, without and with kernel swap (as root)
  --scale X         makes the inputs larger or smaller (1)
  --limit SECONDS   ends a run that takes longer (300)
  --octavo PATH     the octavo program (target/release/octavo)
  --compression C   passed on to octavo run
  --no-octavo       leaves octavo out
  --no-install      installs no packages
  --json FILE       writes the figures there
  --write           puts the rows into docs/compatibility.md
  --list            lists the rows
";

#[derive(Debug)]
pub struct Options {
    names: Vec<String>,
    pub budget_share: f64,
    pub against_kernel: bool,
    pub scale: f64,
    pub limit_seconds: u64,
    pub octavo: Option<PathBuf>,
    pub compression: Option<String>,
    pub install: bool,
    pub json: Option<PathBuf>,
    pub write: bool,
}

impl Options {
    /// Reads the options. `None` asks for help. The error is a sentence without its full stop.
    pub fn parse(arguments: &[String]) -> Result<Option<Self>, String> {
        let mut options = Self {
            names: Vec::new(),
            budget_share: 0.5,
            against_kernel: false,
            scale: 1.0,
            limit_seconds: 300,
            octavo: Some(crate::root().join("target/release/octavo")),
            compression: None,
            install: true,
            json: None,
            write: false,
        };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "--budget-share" => options.budget_share = positive(argument, value()?)?,
                "--scale" => options.scale = positive(argument, value()?)?,
                "--limit" => options.limit_seconds = positive(argument, value()?)?.ceil() as u64,
                "--against" if value()? == "kernel" => options.against_kernel = true,
                "--against" => return Err("--against knows only `kernel`".into()),
                "--octavo" => options.octavo = Some(machine::absolute(value()?)?),
                "--compression" => options.compression = Some(value()?.clone()),
                "--no-octavo" => options.octavo = None,
                "--no-install" => options.install = false,
                "--json" => options.json = Some(value()?.into()),
                "--write" => options.write = true,
                "--list" | "--help" | "-h" => return Ok(None),
                name if rows::ALL.iter().any(|row| row.name == name) => options.names.push(name.into()),
                name => return Err(format!("there is no row and no option `{name}`")),
            }
        }
        if options.budget_share > 1.0 {
            return Err("--budget-share is at most 1".into());
        }
        Ok(Some(options))
    }

    /// Returns whether the options name this row.
    pub fn wants(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|wanted| wanted == name)
    }
}

fn positive(name: &str, value: &str) -> Result<f64, String> {
    value
        .parse()
        .ok()
        .filter(|number: &f64| number.is_finite() && *number > 0.0)
        .ok_or_else(|| format!("{name} needs a number above 0, not `{value}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<Options>, String> {
        Options::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn rows_and_options_are_read_and_nonsense_is_refused() {
        let options = parse("numpy-sort --budget-share 0.25 --against kernel --scale 2").unwrap().unwrap();
        assert!(options.wants("numpy-sort") && !options.wants("redis") && options.against_kernel);
        assert_eq!((options.budget_share, options.scale), (0.25, 2.0));
        assert!(parse("").unwrap().unwrap().wants("redis"));
        for nonsense in ["numpy-sorted", "--budget-share 2", "--scale 0", "--against zram", "--json"] {
            assert!(parse(nonsense).is_err(), "{nonsense}");
        }
    }
}
