//! Hit ratios of the reclaim policies on recorded traces, and the misses of the default divided by those of
//! the best of the others.
//!
//! `policies [SEED [ACCESSES [PAGES [FRAMES]]]]`: by default a million accesses to 65536 pages over 16384
//! frames.

use octavo_bench::policies::{
    Contender, DEFAULT, Knows, OPTIMUM, OTHERS, OTHERS_UNSEEN, TraceRow, TraceSize, UNSEEN, traces,
};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = |name: &str, otherwise: u32| match arguments.next().map(|text| text.parse()) {
        None => otherwise,
        Some(Ok(value)) => value,
        Some(Err(_)) => {
            eprintln!("{name} is to be a number");
            std::process::exit(2);
        }
    };
    let seed = next("SEED", 1);
    let size = TraceSize {
        accesses: next("ACCESSES", 1_000_000),
        pages: next("PAGES", 65_536),
        frames: next("FRAMES", 16_384),
    };
    print_table(u64::from(seed), size, &DEFAULT, OTHERS);
    println!("\nWhere only faults are seen:\n");
    print_table(u64::from(seed), size, &UNSEEN, OTHERS_UNSEEN);
}

fn print_table(seed: u64, size: TraceSize, first: &Contender, others: &[Contender]) {
    let names = [OPTIMUM.name, first.name].into_iter().chain(others.iter().map(|contender| contender.name));
    println!("| trace | {} | misses, of the best's |", names.collect::<Vec<_>>().join(" | "));
    println!("|---|{}", "---|".repeat(others.len() + 3));
    for trace in traces::all(seed, size) {
        let row = TraceRow::of(&trace, size.frames, first, others);
        let hits = |misses: u64| format!("{:.1}", 100.0 - 100.0 * misses as f64 / row.accesses as f64);
        let figures = [row.optimum, row.first].into_iter().chain(row.others.iter().copied()).map(hits);
        println!(
            "| {} | {} | {:.2}{} |",
            row.trace,
            figures.collect::<Vec<_>>().join(" | "),
            row.over_best(),
            if row.ruled || first.knows != Knows::Marks { "" } else { " (not ruled)" }
        );
    }
}
