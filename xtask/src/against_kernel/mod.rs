//! One table that compares `octavo run` with the kernel's swap, and with no limit at all.
//!
//! The sides take turns, round by round: a program without a limit, under `octavo run`, and in a memory
//! control group of the same limit with a swap file on the disk where Octavo has its swap. The kernel's side
//! runs both with and without huge pages, and the better of the two counts. [`jobs`] lists the measurements
//! and their targets, [`measure`] runs them, [`table`] prints them. The program is `outgrow` of
//! `crates/bench`, which checks all bytes that it reads. [`crate::machine`] makes the groups and undoes
//! everything.

mod figures;
mod jobs;
mod measure;
mod options;
mod table;

use std::process::ExitCode;

use octavo_measure::table::markdown_header;

use crate::machine;
use crate::machine::document::Marks;
use measure::JobBench;
use options::Options;

const MARKS: Marks = Marks { begin: "<!-- against-kernel: begin -->", end: "<!-- against-kernel: end -->" };

/// Makes the measurements that the options name, and prints the table.
pub fn main(arguments: &[String]) -> ExitCode {
    let help = || format!("{}\nMeasurements:\n{}", options::USAGE, jobs::list());
    machine::command(options::USAGE, help, Options::parse(arguments), run)
}

fn run(options: &Options) -> Result<(), String> {
    let mut bench = JobBench::new(options)?;
    let mut lines = String::new();
    let mut failures = Vec::new();
    for job in jobs::ALL.iter().filter(|job| options.wants(job.name)) {
        eprintln!("==== {}: {}", job.name, job.what);
        match bench.measure(job) {
            Ok(figures) => {
                let new = table::lines(job, &figures);
                eprint!("{new}");
                lines += &new;
            }
            Err(sentence) => failures.push(format!("{}: {sentence}", job.name)),
        }
    }
    let part = format!("{}\n{}{lines}", table::circumstances(options), markdown_header(table::COLUMNS));
    MARKS.show_benchmark(&part, options.write && failures.is_empty())?;
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}
