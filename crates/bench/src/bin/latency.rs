//! One run of one side of `cargo xtask latency`, which limits its memory and prints the table.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use hdrhistogram::Histogram;
use octavo::{HugePolicy, Manager, SwapFile};
use octavo_bench::latency::{self, LatencyWork, PlainPages};

const USAGE: &str = "Usage: latency octavo|kernel BUDGET SECONDS FOLDER [BYTES A SECOND]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("latency: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let [side, budget, seconds, folder, rest @ ..] = arguments else { return Err(USAGE.into()) };
    let (budget_bytes, length) = (budget.parse()?, Duration::from_secs_f64(seconds.parse()?));
    let pace = rest.first().map(|pace| pace.parse()).transpose()?;
    let work = LatencyWork { budget_bytes, length, pace };
    let waits = match side.as_str() {
        "octavo" => {
            let builder = Manager::builder().budget_bytes(budget_bytes as u64).huge(HugePolicy::Never);
            let manager = builder.swap_file(SwapFile::Temporary(PathBuf::from(folder))).build()?;
            latency::run(&manager.space()?, work)?
        }
        "kernel" => latency::run(&PlainPages::new()?, work)?,
        _ => return Err(USAGE.into()),
    };
    print("refault", &waits.refaults);
    print("new", &waits.new_pages);
    println!("written {}", waits.written_per_s / 1e6);
    Ok(())
}

/// Prints the figures of some waits in microseconds.
fn print(name: &str, waits: &Histogram<u64>) {
    println!("{name}_count {}", waits.len());
    for (quantile, at) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)] {
        println!("{name}_{quantile} {}", waits.value_at_quantile(at) as f64 / 1e3);
    }
}
