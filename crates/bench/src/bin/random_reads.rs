//! Loads random words of data that is larger than memory, with Octavo and its peers in turn. The library's
//! `misses` module has the details.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use octavo_bench::peers::misses::{DataSet, sides};
use octavo_bench::peers::options::Options;
use octavo_bench::peers::report::{rounds_json, write_document};
use octavo_measure::rounds::turns;
use octavo_measure::statistics::{Spread, ratios};
use serde_json::{Map, Value, json};

/// Thousands of random loads a second, of data that does not fit in memory: Octavo, vmcache's scheme, the
/// device
#[derive(Parser, Debug)]
#[command(mut_arg("millis", |millis| millis.default_value("1000")))]
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
    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let options = &arguments.options;
    let data = DataSet {
        pages: arguments.total_mib << 8,
        memory_bytes: arguments.memory_mib << 20,
        folder: arguments.folder.clone(),
    };
    println!(
        "random_reads: thousands of loads a second; {} MiB of data, {} MiB of memory; medians of {} rounds \
         (min..max), {} ms each",
        arguments.total_mib, arguments.memory_mib, options.rounds, options.millis
    );
    let sides = sides(&data, |name| options.wants(name));
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
    let rounds = options.rounds as usize;
    for (number, &threads) in arguments.threads.iter().enumerate() {
        let mut rates: Vec<Vec<f64>> = vec![Vec::new(); present.len()];
        for (round, which) in turns(rounds, present.len()) {
            let (name, side) = present[which];
            let turn = (number * rounds + round) as u64;
            match side.measure(&data, threads as usize, options.plan(), turn) {
                Some(rate) => rates[which].push(rate / 1e3),
                None => {
                    eprintln!("random_reads: {name} answered a wrong word");
                    wrong = true;
                }
            }
        }
        println!("{threads} threads");
        let octavo = present.iter().position(|(name, _)| *name == "Octavo").map(|which| rates[which].clone());
        for ((name, _), rates) in present.iter().zip(&rates) {
            let Some(spread) = Spread::of(rates.iter().copied()) else { continue };
            let ratio = octavo.as_ref().filter(|_| *name != "Octavo");
            let ratio = ratio.and_then(|ours| Spread::of(ratios(ours, rates)));
            let ratio = ratio.map_or_else(String::new, |ratio| {
                format!("   Octavo has {:.2} of it ({:.2}..{:.2})", ratio.median, ratio.min, ratio.max)
            });
            println!("  {name:<18} {:>7.1} ({:.1}..{:.1}){ratio}", spread.median, spread.min, spread.max);
        }
        let measured = present.iter().zip(&rates).filter(|(_, rates)| !rates.is_empty());
        let object: Map<String, Value> =
            measured.map(|((name, _), rates)| (name.to_string(), rounds_json(rates))).collect();
        results.insert(threads.to_string(), Value::Object(object));
    }
    let document = json!({
        "program": "random_reads",
        "unit": "thousands of loads a second",
        "total_mib": arguments.total_mib,
        "memory_mib": arguments.memory_mib,
        "by_threads": results,
    });
    let written = write_document(options, &document);
    if wrong { ExitCode::FAILURE } else { written }
}
