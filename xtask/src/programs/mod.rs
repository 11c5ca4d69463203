//! The program table: real programs, plain, under `octavo run`, and under the kernel's swap.
//!
//! A row is a program with an input that a seed determines ([`rows`]). It runs plainly twice, and the greater
//! peak of anonymous memory counts. Then it runs under `octavo run` in a share of that peak, and its output
//! must be the same. With `--against kernel`, it also runs in a memory control group of the same size:
//! without swap, where the kernel should kill it, and with a swap file on the same disk ([`crate::machine`]).
//! A warden undoes everything, also after a signal.

mod measure;
mod options;
pub mod place;
mod results;
pub mod rows;
mod table;

use std::process::ExitCode;

use measure::ProgramBench;
use options::Options;
use results::RowOutcome;

use crate::machine;
use crate::machine::document::{read, write};

/// Runs the rows that the options name, and prints the table.
pub fn main(arguments: &[String]) -> ExitCode {
    let help = || format!("{}\nRows:\n{}", options::USAGE, rows::list());
    machine::command(options::USAGE, help, Options::parse(arguments), run)
}

fn run(options: &Options) -> Result<(), String> {
    let bench = ProgramBench::new(options)?;
    let mut outcomes = Vec::new();
    let mut has_failed = false;
    for row in rows::ALL.iter().filter(|row| options.wants(row.name)) {
        eprintln!("==== {}: {}", row.name, row.what);
        match bench.measure(row) {
            Ok(outcome) => {
                eprint!("{}", table::line(&outcome));
                for complaint in outcome.complaints() {
                    eprintln!("{}: {complaint}", row.name);
                    has_failed = true;
                }
                outcomes.push(outcome);
            }
            Err(sentence) => {
                eprintln!("{}: {sentence}", row.name);
                has_failed = true;
            }
        }
        // Each row is saved at once, since a table takes long.
        keep(options, &outcomes)?;
    }
    print!("{}", table::table(&outcomes));
    if has_failed { Err("Not all rows went well.".into()) } else { Ok(()) }
}

fn keep(options: &Options, outcomes: &[RowOutcome]) -> Result<(), String> {
    if let Some(path) = &options.json {
        write(path, &format!("{:#}\n", results::json(outcomes)))?;
    }
    if options.write {
        let path = crate::root().join("docs/compatibility.md");
        write(&path, &table::put_into(&read(&path)?, outcomes)?)?;
    }
    Ok(())
}
