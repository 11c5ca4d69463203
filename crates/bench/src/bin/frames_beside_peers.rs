//! Allocates and frees page blocks with Octavo and its peers in turn. The library's `frames` module has the
//! details.

use std::process::ExitCode;

use clap::Parser;
use octavo_bench::peers::compare::alternate;
use octavo_bench::peers::frames::{BlockCounts, BlockPattern, sides};
use octavo_bench::peers::options::Options;
use octavo_bench::peers::report;
use serde_json::json;

/// ns for one allocation and free of a page block: Octavo beside its peers, all in this run
#[derive(Parser, Debug)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Patterns
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = BlockPattern::ALL)]
    patterns: Vec<BlockPattern>,
    /// Orders: a block is 4 KiB << order
    #[arg(long, value_delimiter = ',', default_values_t = [0, 4, 9], value_parser = clap::value_parser!(u32).range(0..=9))]
    orders: Vec<u32>,
    /// Live blocks of each thread under `random`
    #[arg(long, default_value_t = 512)]
    pool: usize,
    /// Allocations in a row of each thread under `bulk`
    #[arg(long, default_value_t = 4096)]
    bulk: usize,
    /// GiB of address space for each side that manages an arena (untouched, so not memory)
    #[arg(long, default_value_t = 20)]
    arena_gib: usize,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let options = &arguments.options;
    let sides = sides(options, arguments.arena_gib << 30, &arguments.orders);
    report::print_header("frames_beside_peers", "ns per thread for one allocation and free", options, &sides);
    let sizes = BlockCounts { pool: arguments.pool, bulk: arguments.bulk };
    let mut groups = Vec::new();
    for &pattern in &arguments.patterns {
        for &order in &arguments.orders {
            let title =
                vec![("pattern", format!("{pattern:?}").to_lowercase()), ("order", order.to_string())];
            let group = alternate(title, &sides, options.rounds, options.plan(), |bench, threads, plan| {
                bench.measure(pattern, order, sizes, threads, plan)
            });
            report::print_group(&group);
            groups.push(group);
        }
    }
    let settings = json!({ "pool": sizes.pool, "bulk": sizes.bulk, "arena_gib": arguments.arena_gib });
    report::finish("frames_beside_peers", options, settings, &sides, &groups)
}
