//! Loads random words of data that is larger than memory, with Octavo and beside it. The library's `misses`
//! module has the details.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use octavo_bench_compare::misses::{Data, sides};
use octavo_bench_compare::stats::Summary;
use octavo_bench_compare::worker::Plan;
use serde_json::{Map, Value, json};

/// Thousands of random loads a second, of data that does not fit in memory: Octavo, vmcache's scheme, the
/// device
#[derive(Parser, Debug)]
struct Arguments {
    /// Data, in MiB
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(64..=1 << 22))]
    total_mib: u64,
    /// Memory, in MiB: Octavo's budget, and what vmcache's scheme keeps
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..=1 << 22))]
    memory_mib: u64,
    /// Threads to measure with (comma-separated)
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 8, 64], value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: Vec<u64>,
    /// Where files go: on a disk
    #[arg(long, default_value = "/var/tmp")]
    folder: PathBuf,
    /// Rounds; medians are taken over them
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Timed milliseconds of each side, number of threads and round
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    millis: u64,
    /// Only sides whose name contains one of these (comma-separated)
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Also write everything, every round included, to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let data = Data {
        pages: arguments.total_mib << 8,
        memory_bytes: arguments.memory_mib << 20,
        folder: arguments.folder.clone(),
    };
    let wants = |name: &str| {
        let name = name.to_lowercase();
        arguments.only.is_empty() || arguments.only.iter().any(|part| name.contains(&part.to_lowercase()))
    };
    println!(
        "random_reads: thousands of loads a second; {} MiB of data, {} MiB of memory; medians of {} rounds \
         (min..max), {} ms each",
        arguments.total_mib, arguments.memory_mib, arguments.rounds, arguments.millis
    );
    let sides = sides(&data, wants);
    for (name, side) in &sides {
        if let Err(missing) = side {
            println!("  {name:<18} missing: {missing}");
        }
    }
    let present: Vec<_> =
        sides.iter().filter_map(|(name, side)| Some((*name, side.as_ref().ok()?))).collect();
    let mut results = Map::new();
    let mut wrong = false;
    for (name, side) in &present {
        if !side.fill(&data) {
            eprintln!("random_reads: {name} answered a wrong word");
            wrong = true;
        }
    }
    let mut turn = 0;
    for &threads in &arguments.threads {
        let mut rates: Vec<Vec<f64>> = vec![Vec::new(); present.len()];
        for round in 0..arguments.rounds as usize {
            turn += 1;
            for place in 0..present.len() {
                let which = (round + place) % present.len();
                let (name, side) = present[which];
                match side.measure(&data, threads as usize, Plan::of_millis(arguments.millis), turn) {
                    Some(rate) => rates[which].push(rate / 1e3),
                    None => {
                        eprintln!("random_reads: {name} answered a wrong word");
                        wrong = true;
                    }
                }
            }
        }
        println!("{threads} threads");
        let octavo = present.iter().position(|(name, _)| *name == "Octavo").map(|which| rates[which].clone());
        for ((name, _), rates) in present.iter().zip(&rates) {
            let Some(summary) = Summary::of(rates) else { continue };
            let ratio =
                octavo.as_ref().filter(|_| *name != "Octavo").and_then(|ours| Summary::of_ratio(ours, rates));
            let ratio = ratio.map_or_else(String::new, |ratio| {
                format!("   Octavo has {:.2} of it ({:.2}..{:.2})", ratio.median, ratio.min, ratio.max)
            });
            println!("  {name:<18} {:>7.1} ({:.1}..{:.1}){ratio}", summary.median, summary.min, summary.max);
        }
        let object: Map<String, Value> = present
            .iter()
            .zip(&rates)
            .filter_map(|((name, _), rates)| Some((name.to_string(), Summary::of(rates)?.to_json())))
            .collect();
        results.insert(threads.to_string(), Value::Object(object));
    }
    if let Some(path) = &arguments.json {
        let document = json!({
            "program": "random_reads",
            "unit": "thousands of loads a second",
            "total_mib": arguments.total_mib,
            "memory_mib": arguments.memory_mib,
            "by_threads": results,
        });
        if let Err(error) = std::fs::write(path, format!("{document:#}\n")) {
            eprintln!("{}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    }
    if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
