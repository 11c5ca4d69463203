//! One run of one job on one side, for `cargo xtask jobs`, which limits its memory and prints the table.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use octavo::{Manager, SwapFile};
use octavo_bench::jobs::file_array::MappingAdvice;
use octavo_bench::jobs::{self, Slices};

const USAGE: &str = "\
Usage: jobs sort|aggregation|search SIDE BYTES [BUDGET] [FOLDER]

SIDE is slices, mmap, mmap-tuned or guards. guards has BUDGET bytes of memory, and its swap in FOLDER. mmap has its files there.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("jobs: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let [job, side, bytes, rest @ ..] = arguments else { return Err(USAGE.into()) };
    let job = jobs::ALL.into_iter().find(|known| known.name == job).ok_or(USAGE)?;
    let bytes = bytes.parse()?;
    let folder = rest.get(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let began = Instant::now();
    let done = match side.as_str() {
        "guards" => {
            let budget_bytes = rest.first().ok_or(USAGE)?.parse()?;
            let builder =
                Manager::builder().budget_bytes(budget_bytes).swap_file(SwapFile::Temporary(folder));
            (job.over_guards)(bytes, &Arc::new(builder.build()?.space()?))?
        }
        "slices" => (job.over_slices)(bytes, &Slices::Plain)?,
        "mmap" => (job.over_slices)(bytes, &Slices::Mapped { folder, tuning: MappingAdvice::Nothing })?,
        "mmap-tuned" => (job.over_slices)(bytes, &Slices::Mapped { folder, tuning: MappingAdvice::Told })?,
        _ => return Err(USAGE.into()),
    };
    println!("answer {}\nseconds {}\njob {}", done.answer, began.elapsed().as_secs_f64(), done.seconds);
    Ok(())
}
