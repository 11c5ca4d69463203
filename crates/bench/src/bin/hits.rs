//! Hits pages in memory with Octavo and its peers in turn. The library's `hits` module has the details.

use std::process::ExitCode;

use clap::Parser;
use octavo_bench::peers::compare::alternate;
use octavo_bench::peers::hits::{Working, sides};
use octavo_bench::peers::options::Options;
use octavo_bench::peers::report;
use serde_json::json;

/// ns for a hit on a page in memory: Octavo beside its peers, all in this run
#[derive(Parser, Debug)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Pages of the small set, which the hot page belongs to as well
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 22))]
    few_pages: u32,
    /// Pages of the large set
    #[arg(long, default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=1 << 22))]
    many_pages: u32,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let options = &arguments.options;
    let sets = [
        (format!("{}", arguments.few_pages), Working::random(arguments.few_pages)),
        (format!("{}", arguments.many_pages), Working::random(arguments.many_pages)),
        (format!("one hot of {}", arguments.few_pages), Working::hot(arguments.few_pages)),
    ];
    let mut groups = Vec::new();
    let mut described = Vec::new();
    for (title, working) in sets {
        let sides = sides(options, &working);
        if groups.is_empty() {
            report::print_header("hits", "ns per thread for one hit", options, &sides);
        }
        let title = vec![("pages", title)];
        let group = alternate(title, &sides, options.rounds, options.plan(), |bench, threads, plan| {
            bench.measure(&working, threads, plan)
        });
        report::print_group(&group);
        groups.push(group);
        described = sides;
    }
    let settings = json!({ "few_pages": arguments.few_pages, "many_pages": arguments.many_pages });
    report::finish("hits", options, settings, &described, &groups)
}
