//! The options of `octavo-lab compare`.

use clap::ValueEnum;

/// Compare results of workloads.
///
/// FILE is what a workload has written with --json. Of a file with several modes, FILE#MODE takes one; a file
/// alone compares its modes with each other. The first side is the one that the others are compared to.
/// Several runs of a side (--rounds) show how much its figures differ by themselves.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
                        octavo-lab usemem -n 4 512M --mode all --json modes.json && octavo-lab compare modes.json\n  \
                        octavo-lab compare before.json after.json --layout lkp\n  \
                        octavo-lab compare modes.json#base modes.json#best --layout mmtests")]
pub struct CompareArgs {
    /// Results, the first to compare the others to
    #[arg(value_name = "FILE[#MODE]", required = true)]
    pub files: Vec<String>,
    /// How the table looks
    #[arg(long, value_enum, default_value_t = TableLayout::Plain)]
    pub layout: TableLayout,
    /// List every metric; without it, lkp lists what has changed, and the others leave out counters and
    /// shares of time
    #[arg(long)]
    pub all: bool,
    /// Only metrics whose name has this in it
    #[arg(long = "metric", value_name = "NAME")]
    pub metrics: Vec<String>,
}

/// How a table looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TableLayout {
    /// Medians, and by how much they are better
    Plain,
    /// As lkp-tests: %stddev and %change, and only what has changed
    Lkp,
    /// As lkp-tests in 2016, which also gave changes of shares in percent
    #[value(name = "lkp-2016")]
    Lkp2016,
    /// As mmtests: means, and asterisks where intervals do not meet
    Mmtests,
}
